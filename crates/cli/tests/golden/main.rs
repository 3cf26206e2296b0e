//! The contract of the command line, line by line, with real processes, signals and terminals.

#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

mod bad_input;
mod break_gc;
mod codes;
mod death;
mod environment;
mod fence;
mod help;
mod hold;
mod nested;
mod run;
mod scripts;
mod secrets;
mod servers;
mod show;
mod terminal;
mod untouched;
mod waiting;
mod world;
