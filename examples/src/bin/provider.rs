//! One call at a time to a payment provider that knows no tokens, and sometimes hangs.

use std::process::ExitCode;

use leasehold_examples::{provider, way};

fn main() -> ExitCode {
    way::tell("provider", provider::run)
}
