//! A job of the night on three instances.

use std::process::ExitCode;

use leasehold_examples::{nightly, way};

fn main() -> ExitCode {
    way::tell("nightly", nightly::run)
}
