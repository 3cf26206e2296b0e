//! The command line as it may be written. What it means is elsewhere.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use leasehold_core::Mark;

use crate::durations::{duration, some_duration};

/// Runs commands under a lock that ends before its term does, and shows who holds what.
#[derive(Debug, Parser)]
#[command(name = "leasehold", bin_name = "leasehold", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Under which the common options stand in the help of each command.
const EVERYWHERE: &str = "Options of every command";

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The store's URL [default: see "Which store" in `leasehold --help`]
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Put P and a slash before every name [default: LEASEHOLD_NAMESPACE]
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "P")]
    pub(crate) namespace: Option<OsString>,
    /// How long each call of the store may take, and how long it is tried until it is reached
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "D", default_value = "10s", value_parser = some_duration)]
    pub(crate) timeout: Duration,
    /// Say nothing but errors
    #[arg(short, long, global = true, help_heading = EVERYWHERE, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more: the store used, who is waited for, renewals that are overdue
    #[arg(short, long, global = true, help_heading = EVERYWHERE)]
    pub(crate) verbose: bool,
}

impl Common {
    /// What --timeout is without it.
    pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
}

impl Ask {
    /// What --ttl is without it.
    pub(crate) const TTL: Duration = Duration::from_secs(30);
}

impl Run {
    /// What --grace is without it.
    pub(crate) const GRACE: Duration = Duration::from_secs(5);
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Acquire a lock, run a command, release
    Run(Run),
    /// Acquire a lock and hold it until a signal, the end of stdin, or the end of a process
    Hold(Hold),
    /// Acquire a lock that lives by its term alone, print it, and exit
    Acquire(Acquire),
    /// Give an acquired lock another term
    Renew(Renew),
    /// Release an acquired lock
    Release(ClaimOf),
    /// Say whether an acquired lock is still held: exit code 0, or 76
    Check(ClaimOf),
    /// List names, and who holds them and waits for them
    Ls(Ls),
    /// Show one name: who holds it, who waits, how the last grant ended
    Show(Show),
    /// Take a lock away from its holder
    Break(Break),
    /// Refuse what comes with a stale token
    #[command(subcommand)]
    Fence(Fence),
    /// Forget names that have been unused for long
    Gc(Gc),
    /// Print the tables of a store in its own words
    Schema(Schema),
    /// Print the completions of a shell
    Completions(Completions),
    /// Print the manual page
    Man,
}

/// How a lock is asked for.
#[derive(Debug, Args)]
pub(crate) struct Ask {
    /// How long the lock lasts unless renewed
    #[arg(long, value_name = "D", default_value = "30s", value_parser = duration)]
    pub(crate) ttl: Duration,
    /// Wait at most this long [default: for ever]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Do not wait
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Hold it together with other shared holders
    #[arg(long, conflicts_with_all = ["permits", "limit"])]
    pub(crate) shared: bool,
    /// Take N of the M permits that --limit names
    #[arg(long, value_name = "N", requires = "limit")]
    pub(crate) permits: Option<u32>,
    /// How many permits there are
    #[arg(long, value_name = "M", requires = "permits")]
    pub(crate) limit: Option<u32>,
    /// What others see as the holder [default: host, pid and the program's name]
    #[arg(long, value_name = "LABEL")]
    pub(crate) holder: Option<String>,
    /// Stay away this long after a holder that did not release
    #[arg(long, value_name = "D", default_value = "0s", value_parser = duration)]
    pub(crate) after_loss: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = crate::help::after_run())]
pub(crate) struct Run {
    /// What to lock: 1 to 512 bytes of UTF-8 without control characters
    pub(crate) name: OsString,
    #[command(flatten)]
    pub(crate) ask: Ask,
    /// When the lock is lost: end the command before its right ends, or only say so
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OnLost::Kill)]
    pub(crate) on_lost: OnLost,
    /// The time between TERM and KILL, at most a third of what each deadline leaves
    #[arg(long, value_name = "D", default_value = "5s", value_parser = duration)]
    pub(crate) grace: Duration,
    /// Keep the lock at least this long, also when the command ends sooner
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) hold_at_least: Option<Duration>,
    /// Release only when all that the command started is gone
    #[arg(long)]
    pub(crate) wait_all: bool,
    /// Enter a lock that an enclosing run holds, instead of failing
    #[arg(long)]
    pub(crate) reenter: bool,
    /// End the command when leasehold's parent ends
    #[arg(long)]
    pub(crate) with_parent: bool,
    /// The exit code when the lock is busy [default: 75]
    #[arg(long, value_name = "N")]
    pub(crate) busy_exit_code: Option<u8>,
    /// Write one JSON object with how it ended to this descriptor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) status_fd: Option<i32>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, the grace, KILL: all of it before another can hold the lock
    Kill,
    /// Say so and let it go on; the exit code is 76 all the same
    Warn,
}

#[derive(Debug, Args)]
pub(crate) struct Hold {
    /// What to lock
    pub(crate) name: OsString,
    #[command(flatten)]
    pub(crate) ask: Ask,
    /// Hold it until this process ends
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,
    /// When the lock is lost: send TERM to the process that --pid names
    #[arg(long, value_enum, value_name = "WHAT", requires = "pid")]
    pub(crate) on_lost: Option<HoldOnLost>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HoldOnLost {
    /// Send TERM
    Term,
}

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    /// What to lock
    pub(crate) name: OsString,
    #[command(flatten)]
    pub(crate) ask: Ask,
    /// One JSON object, or assignments for a shell's `eval`
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Print::Json)]
    pub(crate) print: Print,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Print {
    /// One JSON object
    Json,
    /// NAME='value' lines of what a command under `run` finds in its environment
    Env,
}

/// A claim that `acquire` printed.
#[derive(Debug, Args)]
pub(crate) struct ClaimOf {
    /// What is locked
    pub(crate) name: OsString,
    /// The claim's id, as `acquire` printed it
    #[arg(long, value_name = "ID")]
    pub(crate) claim: String,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) of: ClaimOf,
    /// The term from now on
    #[arg(long, value_name = "D", default_value = "30s", value_parser = duration)]
    pub(crate) ttl: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only names that begin with this
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "With -q it prints nothing: exit code 0 for held, 1 for free.")]
pub(crate) struct Show {
    /// Which name
    pub(crate) name: OsString,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "The holder is told at its next renewal, and the name is free when that \
    one leaves or at its old expiry. The next token is higher either way.")]
pub(crate) struct Break {
    /// Which name
    pub(crate) name: OsString,
    /// Only the grant with this token
    #[arg(long, value_name = "N", value_parser = parse_mark)]
    pub(crate) token: Option<Mark>,
    /// Free it at once, beside a holder that may still be at work
    #[arg(long)]
    pub(crate) now: bool,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Fence {
    /// Run a command; no newer token is accepted until it ends
    Run(FenceRun),
    /// Replace a file by what comes from stdin
    Put(FencePut),
    /// Say whether a token would be accepted: a race by itself, since a newer one may come next
    Check(FenceCheck),
}

/// What a fence compares.
#[derive(Debug, Args)]
pub(crate) struct Token {
    /// The fencing token: N, or EPOCH:N
    #[arg(long, value_name = "N", value_parser = parse_mark)]
    pub(crate) token: Mark,
    /// The access is shared: refused only by a newer exclusive one
    #[arg(long)]
    pub(crate) shared: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FenceRun {
    /// What is guarded
    pub(crate) resource: OsString,
    #[command(flatten)]
    pub(crate) token: Token,
    /// One permit slot of the resource
    #[arg(long, value_name = "S")]
    pub(crate) slot: Option<u32>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct FencePut {
    /// The file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) token: Token,
}

#[derive(Debug, Args)]
pub(crate) struct FenceCheck {
    /// What is guarded
    pub(crate) resource: OsString,
    #[command(flatten)]
    pub(crate) token: Token,
    /// One permit slot of the resource
    #[arg(long, value_name = "S")]
    pub(crate) slot: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Say what would be forgotten, and forget nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// For how long a name must have been unused
    #[arg(long, value_name = "D", default_value = "7days", value_parser = duration)]
    pub(crate) unused_for: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "leasehold makes them by itself where it may; where it may not, whoever \
    may runs what this prints.\n\nWith --fence the resource is called as the table is, and a program \
    that nobody can edit gets its token from outside: \
    PGOPTIONS=\"-c leasehold.mark=$LEASEHOLD_EPOCH:$LEASEHOLD_TOKEN\", or --init-command of MySQL's client. What it \
    prints says how.")]
pub(crate) struct Schema {
    /// Which store
    #[arg(value_enum, value_name = "STORE")]
    pub(crate) of: SchemaOf,
    /// Instead, a trigger that refuses writes to this table without a fencing token, or with a stale one
    #[arg(long, value_name = "TABLE")]
    pub(crate) fence: Option<String>,
}

/// Stores that keep tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaOf {
    /// PostgreSQL
    Postgres,
    /// MySQL and MariaDB
    Mysql,
    /// The embedded store
    Sqlite,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Which shell
    pub(crate) shell: clap_complete::Shell,
}

fn parse_mark(text: &str) -> Result<Mark, String> {
    text.parse().map_err(|_| "want N or EPOCH:N, with N from 1 to 9007199254740991".to_string())
}
