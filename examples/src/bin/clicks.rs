//! One order, and a customer who clicks five times, and once more ten seconds later.

use std::process::ExitCode;

use leasehold_examples::{clicks, way};

fn main() -> ExitCode {
    way::tell("clicks", clicks::run)
}
