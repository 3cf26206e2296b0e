//! A payment provider calls back five times about one payment.

use std::process::ExitCode;

use leasehold_examples::{callback, way};

fn main() -> ExitCode {
    way::tell("callback", callback::run)
}
