//! A service with an idempotency layer, a fence layer, leases as extractors, and a graceful end.
//!
//! ```sh
//! cargo run -q -p leasehold-examples --bin service             # its own PostgreSQL, a free port
//! cargo run -q -p leasehold-examples --bin service postgres://me@db.example/test 127.0.0.1:8080
//! ```
//!
//! Exit code 0 when it was told to end, 76 when its lease was lost, 1 when it failed.

use std::process::ExitCode;
use std::time::Duration;

use leasehold_examples::Result;
use leasehold_examples::service::{self, Ended};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(Ended::Told) => ExitCode::SUCCESS,
        Ok(Ended::Lost(loss)) => {
            eprintln!("service: {loss}");
            ExitCode::from(76)
        }
        Err(error) => {
            eprintln!("service: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `[URL [ADDRESS [MILLISECONDS OF SILENCE UNTIL A RUN IS TAKEN OVER]]]`
async fn run() -> Result<Ended> {
    let told: Vec<String> = std::env::args().skip(1).collect();
    let addr = told.get(1).map_or("127.0.0.1:0", String::as_str).parse()?;
    let term = match told.get(2) {
        Some(term) => Duration::from_millis(term.parse()?),
        None => Duration::from_secs(60),
    };
    service::main(told.first().map(String::as_str), addr, term).await
}
