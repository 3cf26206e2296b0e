//! The `leasehold` command: runs commands under a lock, and shows who holds what.

mod acquiring;
mod args;
mod asked;
mod claims_env;
mod commands;
mod config_file;
mod context;
mod durations;
mod exit;
mod fast;
mod help;
mod marks;
mod names;
mod output;
mod panics;
mod password;
mod patience;
mod records;
mod status_fd;
mod store;
mod store_choice;
mod table;
mod urls;

use exit::End;

fn main() {
    leasehold_supervise::outlive_file_limit();
    let end = panics::caught(|| help::parse().and_then(|cli| commands::run(&cli)));
    match end {
        End::Exit(code) => std::process::exit(code),
        End::Signal(signal) => leasehold_supervise::die_by(signal),
        End::Fail(code, why) => {
            output::error(why);
            std::process::exit(code.number())
        }
    }
}
