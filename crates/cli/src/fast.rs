//! Reads the plain form of `run` without clap.
//!
//! Describing all options to clap takes a tenth of all that a short run adds. So the options of
//! `run` are read here first, in their long form and as separate words; whatever looks otherwise
//! is left to clap, which also words every refusal. A test holds both to the same answers.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use crate::args::{Ask, Cli, Command, Common, OnLost, Run};
use crate::durations::{duration, some_duration};

/// The command line, if it is a plain `run`.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> Option<Cli> {
    let mut args = args.into_iter();
    let mut common = Common {
        store: None,
        namespace: None,
        timeout: Common::TIMEOUT,
        quiet: false,
        verbose: false,
    };
    let mut seen = Vec::new();
    loop {
        let arg = args.next()?;
        if arg == "run" {
            break;
        }
        once(&mut seen, &arg)?;
        take_common(&mut common, arg.to_str()?, &mut args)?;
    }
    let mut run = blank();
    let mut name = None;
    loop {
        let arg = args.next()?;
        let text = arg.to_str()?;
        if text == "--" {
            break;
        }
        if !text.starts_with('-') {
            match name.replace(arg) {
                None => continue,
                Some(_) => return None,
            }
        }
        once(&mut seen, &arg)?;
        if take_common(&mut common, text, &mut args).is_none() {
            take_run(&mut run, text, &mut args)?;
        }
    }
    run.name = name?;
    run.command = args.collect();
    let conflicts = (common.quiet && common.verbose)
        || (run.ask.no_wait && run.ask.wait.is_some())
        || (run.ask.permits.is_some() != run.ask.limit.is_some())
        || (run.ask.shared && run.ask.permits.is_some());
    (!conflicts && !run.command.is_empty()).then_some(Cli { common, command: Command::Run(run) })
}

/// `run` with its defaults, and no name and command yet.
fn blank() -> Run {
    Run {
        name: OsString::new(),
        ask: Ask {
            ttl: Ask::TTL,
            wait: None,
            no_wait: false,
            shared: false,
            permits: None,
            limit: None,
            holder: None,
            after_loss: Duration::ZERO,
        },
        on_lost: OnLost::Kill,
        grace: Run::GRACE,
        hold_at_least: None,
        wait_all: false,
        reenter: false,
        with_parent: false,
        busy_exit_code: None,
        status_fd: None,
        command: Vec::new(),
    }
}

/// What is written twice is clap's to refuse.
fn once(seen: &mut Vec<OsString>, option: &OsStr) -> Option<()> {
    if seen.iter().any(|before| before == option) {
        return None;
    }
    seen.push(option.to_os_string());
    Some(())
}

type Rest<'a> = &'a mut dyn Iterator<Item = OsString>;

/// The value of an option; one that could be another option is clap's to judge.
fn value(rest: Rest<'_>) -> Option<OsString> {
    rest.next().filter(|value| !value.is_empty() && !value.as_encoded_bytes().starts_with(b"-"))
}

fn text(rest: Rest<'_>) -> Option<String> {
    value(rest)?.into_string().ok()
}

fn span(rest: Rest<'_>) -> Option<Duration> {
    duration(&text(rest)?).ok()
}

/// A number as clap reads it too: digits alone.
fn number<T: std::str::FromStr>(rest: Rest<'_>) -> Option<T> {
    let digits = text(rest)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn take_common(common: &mut Common, option: &str, rest: Rest<'_>) -> Option<()> {
    match option {
        "--store" => common.store = Some(text(rest)?),
        "--namespace" => common.namespace = Some(value(rest)?),
        "--timeout" => common.timeout = some_duration(&text(rest)?).ok()?,
        "-q" => common.quiet = true,
        "-v" => common.verbose = true,
        _ => return None,
    }
    Some(())
}

fn take_run(run: &mut Run, option: &str, rest: Rest<'_>) -> Option<()> {
    let ask = &mut run.ask;
    match option {
        "--ttl" => ask.ttl = span(rest)?,
        "--wait" => ask.wait = Some(span(rest)?),
        "--no-wait" => ask.no_wait = true,
        "--shared" => ask.shared = true,
        "--permits" => ask.permits = Some(number(rest)?),
        "--limit" => ask.limit = Some(number(rest)?),
        "--holder" => ask.holder = Some(text(rest)?),
        "--after-loss" => ask.after_loss = span(rest)?,
        "--grace" => run.grace = span(rest)?,
        "--hold-at-least" => run.hold_at_least = Some(span(rest)?),
        "--wait-all" => run.wait_all = true,
        "--reenter" => run.reenter = true,
        "--with-parent" => run.with_parent = true,
        "--busy-exit-code" => run.busy_exit_code = Some(number(rest)?),
        "--status-fd" => run.status_fd = Some(number(rest)?),
        "--on-lost" => {
            run.on_lost = match text(rest)?.as_str() {
                "kill" => OnLost::Kill,
                "warn" => OnLost::Warn,
                _ => return None,
            }
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::os::unix::ffi::OsStringExt;

    fn both(line: &[OsString]) -> (Option<String>, Option<String>) {
        let fast = run(line.iter().cloned()).map(|cli| format!("{cli:?}"));
        let program = OsString::from("leasehold");
        let whole = Cli::try_parse_from([program].iter().chain(line));
        (fast, whole.ok().map(|cli| format!("{cli:?}")))
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(Into::into).collect()
    }

    #[test]
    fn plain_runs_are_read_as_clap_reads_them() {
        for line in [
            "run n -- true",
            "run n --ttl 5s --grace 1s -- sh -c exit",
            "-v --store sqlite:/x --timeout 1m run --shared n --wait 1h30m -- a --ttl -- b",
            "run --store sqlite:/x -q --namespace a/b n -- true",
            "run n --permits 2 --limit 3 --holder me --after-loss 1s --hold-at-least 5m -- true",
            "run n --no-wait --wait-all --reenter --with-parent --on-lost warn -- true",
            "run n --busy-exit-code 255 --status-fd 3 --on-lost kill -- true",
            "run run -- run",
        ] {
            let (fast, whole) = both(&words(line));
            assert!(fast.is_some(), "left to clap: {line}");
            assert_eq!(fast, whole, "{line}");
        }
        let odd = [words("run n -- x"), vec![OsString::from_vec(vec![0xff])]].concat();
        let (fast, whole) = both(&odd);
        assert_eq!((fast.is_some(), fast), (true, whole));
    }

    /// Every line of a few words that it reads, clap reads the same.
    #[test]
    fn whatever_it_reads_clap_reads_the_same() {
        let pool = [
            "run",
            "n",
            "--",
            "true",
            "--ttl",
            "30s",
            "-5s",
            "--wait",
            "--no-wait",
            "--shared",
            "--permits",
            "--limit",
            "2",
            "+2",
            "007",
            "-v",
            "-q",
            "--store",
            "",
            "--on-lost",
            "warn",
            "--status-fd",
            "300",
            "--busy-exit-code",
            "fence",
            "--help",
            "-vq",
            "--ttl=5s",
            "--wait-all",
            "-",
            "--holder",
            "--namespace",
            "show",
        ];
        // The same numbers every time: a line that differs is found again.
        let mut state = 1_u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below
        };
        let mut read = 0;
        for _ in 0..4_000 {
            let mut line: Vec<OsString> =
                (0..next(7)).map(|_| pool[next(pool.len())].into()).collect();
            if next(4) > 0 {
                line.insert(next(line.len() + 1), "run".into());
                line.extend(words("-- true"));
            }
            let (fast, whole) = both(&line);
            if fast.is_some() {
                read += 1;
                assert_eq!(fast, whole, "{line:?}");
            }
        }
        assert!(read > 100, "{read} lines were read at all");
    }
}
