//! The exit codes: one enum, from which `--help` and the manual page are made.

use std::fmt::Write as _;

use leasehold_core::ErrorKind;

/// Why leasehold ends with a code of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// `show -q` found nobody.
    Free,
    /// The command line cannot be meant.
    Usage,
    /// The store was not reached.
    Unreachable,
    /// A defect of leasehold.
    Bug,
    /// What was to be printed could not be.
    Output,
    /// Someone else holds it.
    Busy,
    /// The lease ended before the work did.
    Lost,
    /// A fence refused a token.
    Stale,
    /// The store's URL, place, permission or configuration.
    Config,
    /// The command is there and cannot be executed.
    NotExecutable,
    /// The command is not there.
    NotFound,
}

impl Code {
    /// In the order of their numbers.
    const ALL: [Code; 11] = [
        Code::Free,
        Code::Usage,
        Code::Unreachable,
        Code::Bug,
        Code::Output,
        Code::Busy,
        Code::Lost,
        Code::Stale,
        Code::Config,
        Code::NotExecutable,
        Code::NotFound,
    ];

    /// The number.
    pub(crate) const fn number(self) -> i32 {
        match self {
            Code::Free => 1,
            Code::Usage => 64,
            Code::Unreachable => 69,
            Code::Bug => 70,
            Code::Output => 74,
            Code::Busy => 75,
            Code::Lost => 76,
            Code::Stale => 77,
            Code::Config => 78,
            Code::NotExecutable => 126,
            Code::NotFound => 127,
        }
    }

    /// What it says, in a line.
    const fn meaning(self) -> &'static str {
        match self {
            Code::Free => "free (`show -q` only)",
            Code::Usage => "the command line cannot be meant: also a bad name, term or limit",
            Code::Unreachable => "the store was not reached, or could not do it now",
            Code::Bug => "a defect of leasehold",
            Code::Output => "the answer could not be written",
            Code::Busy => "busy (or what --busy-exit-code says)",
            Code::Lost => "lost: the lease ended before the work did, or the claim is not theirs",
            Code::Stale => "a fence refused a stale token",
            Code::Config => "a bad store URL, configuration, permission or credentials",
            Code::NotExecutable => "the command cannot be executed",
            Code::NotFound => "the command was not found",
        }
    }

    /// Lines of `number  meaning`, the command's own codes among them.
    pub(crate) fn table() -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  0      done; under `run` the command's own code, any");
        for code in Code::ALL {
            let _ = writeln!(text, "  {:<6} {}", code.number(), code.meaning());
        }
        text.push_str("  128+N  signal N ended it");
        text
    }
}

impl From<ErrorKind> for Code {
    fn from(kind: ErrorKind) -> Code {
        match kind {
            ErrorKind::Usage | ErrorKind::Unsupported => Code::Usage,
            ErrorKind::Unreachable | ErrorKind::Unavailable | ErrorKind::Replaced => {
                Code::Unreachable
            }
            ErrorKind::Config | ErrorKind::Permission | ErrorKind::Corrupt | ErrorKind::Version => {
                Code::Config
            }
            _ => Code::Bug,
        }
    }
}

/// How the program ends. Decided here and there, carried out in `main` alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// With this number.
    Exit(i32),
    /// By this signal, as the command did.
    Signal(i32),
    /// With this code, after a line that says why.
    Fail(Code, String),
}

impl End {
    /// All is well.
    pub(crate) const DONE: End = End::Exit(0);

    /// 128+N, for a signal that leasehold acted on.
    pub(crate) const fn by_signal(number: i32) -> End {
        End::Exit(128 + number)
    }

    /// With a code of leasehold's own and nothing to say.
    pub(crate) const fn code(code: Code) -> End {
        End::Exit(code.number())
    }
}

impl From<leasehold_core::Error> for End {
    fn from(error: leasehold_core::Error) -> End {
        End::Fail(error.kind().into(), format!("failed to {error}"))
    }
}

impl From<leasehold_supervise::Error> for End {
    fn from(error: leasehold_supervise::Error) -> End {
        let code = if error.is_invalid_input() { Code::Usage } else { Code::Bug };
        End::Fail(code, error.to_string())
    }
}

/// A usage error with a line.
pub(crate) fn usage(why: impl Into<String>) -> End {
    End::Fail(Code::Usage, why.into())
}

/// A configuration error with a line.
pub(crate) fn config(why: impl Into<String>) -> End {
    End::Fail(Code::Config, why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_table_once_and_in_order() {
        let table = Code::table();
        let numbers: Vec<i32> = Code::ALL.map(Code::number).to_vec();
        assert!(numbers.is_sorted());
        for number in numbers {
            let line = format!("\n  {number:<6} ");
            assert_eq!(table.matches(&line).count(), 1, "{number}");
        }
    }
}
