//! Twenty requests find the cache expired; and one that rebuilds it falls asleep over it.

use std::process::ExitCode;

use leasehold_examples::{cache, way};

fn main() -> ExitCode {
    way::tell("cache", cache::run)
}
