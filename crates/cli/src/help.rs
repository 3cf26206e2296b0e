//! Reads the command line, and says what is wrong with it in one line.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use crate::args::Cli;
use crate::exit::{Code, End, usage};
use crate::fast;
use crate::output;

/// The command line, or how the program ends without one.
pub(crate) fn parse() -> Result<Cli, End> {
    match fast::run(std::env::args_os().skip(1)) {
        Some(cli) => Ok(cli),
        None => Cli::try_parse().map_err(|error| refused(&error)),
    }
}

/// The whole of the command line's description, exit codes and all.
pub(crate) fn described() -> clap::Command {
    let after = format!("{}\n\n{}", stores(), exit_codes());
    Cli::command().after_help(after).disable_help_subcommand(true)
}

fn exit_codes() -> String {
    format!("Exit codes:\n{}", Code::table())
}

/// What stands under the options of `run`.
pub(crate) fn after_run() -> String {
    format!("{}\n\n`leasehold man` has examples, also of units and jobs.", exit_codes())
}

/// Which store is used, and what it may be.
pub(crate) fn stores() -> String {
    let urls: Vec<String> = leasehold::STORE_URLS.iter().map(|url| format!("  {url}\n")).collect();
    format!("{STORES}\nWhat a store's URL looks like:\n{}", urls.concat().trim_end())
}

const STORES: &str = "\
Which store: --store, else LEASEHOLD_STORE, else `store = \"URL\"` in
$XDG_CONFIG_HOME/leasehold/config.toml or /etc/leasehold/config.toml, else an embedded one in
$STATE_DIRECTORY, $XDG_STATE_HOME/leasehold, ~/.local/state/leasehold, or /var/lib/leasehold for root.
sqlite:PATH?mode=0660 shares it between users. The password of a store: LEASEHOLD_STORE_PASSWORD, or
the file that LEASEHOLD_STORE_PASSWORD_FILE names, or $CREDENTIALS_DIRECTORY/leasehold.
Durations: 500ms, 30s, 5m, 1h30m.";

/// Help and version are data; everything else is a usage error of one line.
fn refused(error: &clap::Error) -> End {
    match error.kind() {
        ErrorKind::DisplayVersion => printed(&error.render().to_string()),
        ErrorKind::DisplayHelp => {
            // Parsed again with all of it: runs need not make what only help shows.
            let text = match described().try_get_matches() {
                Err(help) if help.kind() == ErrorKind::DisplayHelp => rendered(&help),
                _ => rendered(error),
            };
            printed(&text)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            usage("a command is missing: see `leasehold --help`")
        }
        _ => usage(one_line(error)),
    }
}

fn printed(text: &str) -> End {
    match output::data(text) {
        Ok(()) => End::DONE,
        Err(end) => end,
    }
}

fn rendered(error: &clap::Error) -> String {
    if output::wants_colour() {
        error.render().ansi().to_string()
    } else {
        error.render().to_string()
    }
}

/// What clap says in several lines, in one.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::InvalidUtf8 {
        return "an argument is not UTF-8, which only the command's own may be".into();
    }
    if let Some(hint) = missing_dashes(error) {
        return hint;
    }
    let text = error.render().to_string();
    let before_usage = text.split("\n\nUsage:").next().unwrap_or(&text);
    let before_usage = before_usage.split("\n\nFor more information").next().unwrap_or_default();
    // Its tip takes a mistyped option for a value: after `--` it would be run as a command.
    let before_usage = before_usage.split("\n\n  tip: to pass").next().unwrap_or_default();
    let line = before_usage.split_whitespace().collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_string()
}

/// `run NAME CMD`, where `run NAME -- CMD` was meant.
fn missing_dashes(error: &clap::Error) -> Option<String> {
    let mut args = std::env::args_os().skip(1);
    let runs = args.any(|arg| arg == "run");
    if !runs || std::env::args_os().any(|arg| arg == "--") {
        return None;
    }
    let missing = error.kind() == ErrorKind::MissingRequiredArgument;
    let unexpected = error.kind() == ErrorKind::UnknownArgument
        && matches!(error.get(ContextKind::InvalidArg),
            Some(ContextValue::String(arg)) if !arg.starts_with('-'));
    let form = if std::env::args_os().any(|arg| arg == "fence") {
        "fence run RESOURCE --token N"
    } else {
        "run NAME"
    };
    (missing || unexpected).then(|| {
        format!("the command is missing: want it after `--`, as in `leasehold {form} -- CMD …`")
    })
}
