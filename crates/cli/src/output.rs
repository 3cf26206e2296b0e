//! Messages to stderr, data to stdout; nothing that is written can end the program.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

use crate::exit::{Code, End};

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Quiet,
    Normal,
    Verbose,
}

/// Says things on stderr, as far as the user wants to hear them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Voice {
    level: Level,
}

impl Voice {
    pub(crate) const fn new(quiet: bool, verbose: bool) -> Voice {
        let level = match (quiet, verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        };
        Voice { level }
    }

    pub(crate) fn is_quiet(self) -> bool {
        self.level == Level::Quiet
    }

    pub(crate) fn is_verbose(self) -> bool {
        self.level == Level::Verbose
    }

    /// What the user should know; not with `-q`.
    pub(crate) fn warn(self, text: impl Display) {
        if !self.is_quiet() {
            error(text);
        }
    }

    /// What only the curious want; with `-v`.
    pub(crate) fn detail(self, text: impl Display) {
        if self.is_verbose() {
            error(text);
        }
    }
}

/// One line on stderr, in one write, whatever becomes of it: a closed stderr ends nothing.
pub(crate) fn error(text: impl Display) {
    let line = format!("leasehold: {}\n", redacted(&text.to_string()));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// A line that the next one replaces; `None` takes it away. For terminals.
pub(crate) fn status(text: Option<&str>) {
    let line = match text {
        Some(text) => format!("\r\x1b[Kleasehold: {}", redacted(text)),
        None => "\r\x1b[K".to_string(),
    };
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Whether stderr is a terminal that can replace a line.
pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether stdout is a terminal that may be given colours.
pub(crate) fn wants_colour() -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !forbidden
}

/// Whether this program was started with stdout closed: what is written would vanish unseen.
pub(crate) fn is_closed() -> bool {
    leasehold_supervise::closed_at_start()[1]
}

/// Refuses to go on where nobody could read the answer.
pub(crate) fn ensure_open() -> Result<(), End> {
    if is_closed() {
        return Err(End::Fail(
            Code::Output,
            "stdout is closed: want it open for the answer".into(),
        ));
    }
    Ok(())
}

/// Writes data to stdout. A reader that has gone away (`| head`) ends the program quietly.
pub(crate) fn data(text: &str) -> Result<(), End> {
    ensure_open()?;
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(End::DONE),
        Err(error) => Err(End::Fail(Code::Output, format!("cannot write to stdout: {error}"))),
    }
}

/// `text` with the passwords of URLs made `***`.
///
/// URLs may stand in the middle of a message, also one that quotes the command line.
pub(crate) fn redacted(text: &str) -> String {
    without_options(&without_logins(text))
}

/// What stands behind `password=`, as an option of a URL has it, and a login behind `listen=`.
fn without_options(text: &str) -> String {
    let text = masked(text, "password=", |_| true);
    masked(&text, "listen=", |value| value.contains("%40"))
}

/// `text` with the values of this option made `***`, as far as they are secret.
fn masked(text: &str, option: &str, is_secret: impl Fn(&str) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(option) {
        let (before, after) = rest.split_at(at + option.len());
        let ends = |c: char| c.is_whitespace() || matches!(c, '&' | '\'' | '"' | '`');
        let (value, after) = after.split_at(after.find(ends).unwrap_or(after.len()));
        out.push_str(before);
        out.push_str(if is_secret(value) { "***" } else { value });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// What stands between `://` or a user's colon and an `@`.
fn without_logins(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after
            .find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '\'' | '"' | '`'))
            .unwrap_or(after.len());
        // A secret may itself hold what ends an authority: the last `@` of the word decides.
        let word = after.find(char::is_whitespace).unwrap_or(after.len());
        let sign = after[..word].rfind('@').or_else(|| sign_after_blank(after, word));
        match sign {
            Some(sign) => {
                match after[..sign].split_once(':') {
                    Some((user, _)) => {
                        out.push_str(user);
                        out.push_str(if user.is_empty() { "***" } else { ":***" });
                    }
                    None => out.push_str(&after[..sign]),
                }
                rest = &after[sign..];
            }
            None => {
                out.push_str(&after[..end]);
                rest = &after[end..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// The `@` behind a password with a blank in it, which begins in this word.
fn sign_after_blank(text: &str, word: usize) -> Option<usize> {
    let (_, tail) = text[..word].split_once(':')?;
    // A port, or a list of servers with ports, is no password.
    let is_port = tail.starts_with(|c: char| c.is_ascii_digit());
    let line = text.find(['\n', '\'', '"', '`']).unwrap_or(text.len());
    if is_port { None } else { text[..line].rfind('@') }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_taken_out_of_any_message() {
        for (text, want) in [
            ("no url", "no url"),
            ("use redis://h:1/0 now", "use redis://h:1/0 now"),
            ("redis://:s3cret@h:1/0", "redis://***@h:1/0"),
            ("redis://u:s3cret@h/0", "redis://u:***@h/0"),
            ("s://u:s3 cr et@h/0", "s://u:***@h/0"),
            ("s://h:1 and u@h", "s://h:1 and u@h"),
            ("s://h/d?listen=u%3As%40h&epoch=1", "s://h/d?listen=***&epoch=1"),
            ("s://h/d?listen=h2:5432", "s://h/d?listen=h2:5432"),
            ("'s://h/m?x_password=a&b=c' is", "'s://h/m?x_password=***&b=c' is"),
            ("'redis://u:a/b@c?d@h' is", "'redis://u:***@h' is"),
            ("postgres://app@h and mysql://u:p@h", "postgres://app@h and mysql://u:***@h"),
        ] {
            assert_eq!(redacted(text), want, "{text}");
        }
    }
}
