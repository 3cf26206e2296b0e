//! Twenty buyers want one each of the five that are left.

use std::process::ExitCode;

use leasehold_examples::{stock, way};

fn main() -> ExitCode {
    way::tell("stock", stock::run)
}
