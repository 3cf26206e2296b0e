//! Runs a command under deadlines that this program makes up, as `leasehold run` does under those
//! of a lease, and writes what happens to a file. The tests of this crate drive it.
//!
//! `supervised [OPTION ...] -- COMMAND [ARGUMENT ...]`
//! `supervised as-root COMMAND [ARGUMENT ...]`: becomes root altogether, where the file is root's
//! and setuid, and runs COMMAND.
//! `supervised count`: says how many interrupts it had, at each of them and at the end by USR1.
//! `supervised beat FILE`: writes what the monotonic clock reads to FILE every millisecond.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use leasehold_supervise::{
    ClockKind, Deadline, DeadlineSender, Ended, Event, Front, How, Lookup, OnDeadline, Plan,
    Reason, Signals, Start, die_by, lookup, wait_readable,
};

type Failure = Box<dyn std::error::Error>;

/// What the options say.
struct Options {
    log: Option<File>,
    clock: ClockKind,
    term: Option<Duration>,
    renew_every: Option<Duration>,
    renewals: u32,
    end_after: Option<Duration>,
    wait_before: Option<Duration>,
    panic_after: Option<Duration>,
    env: Vec<(OsString, OsString)>,
    descriptor: Option<File>,
    release_stdio: bool,
}

fn main() -> Result<ExitCode, Failure> {
    let mut args = std::env::args_os().skip(1).peekable();
    if args.peek().is_some_and(|arg| arg == "beat") {
        let file = args.nth(1).ok_or("beat needs a file")?;
        return Err(beat(&File::create(file)?));
    }
    if args.peek().is_some_and(|arg| arg == "count") {
        return count();
    }
    if args.peek().is_some_and(|arg| arg == "as-root") {
        let program = args.nth(1).ok_or("as-root needs a command")?;
        return Err(Command::new(program).args(args).uid(0).exec().into());
    }
    let mut plan = Plan::new("".into(), Vec::new());
    let mut options = Options {
        log: None,
        clock: ClockKind::Monotonic,
        term: None,
        renew_every: None,
        renewals: u32::MAX,
        end_after: None,
        wait_before: None,
        panic_after: None,
        env: Vec::new(),
        descriptor: None,
        release_stdio: false,
    };
    while let Some(option) = args.next() {
        if option == "--" {
            break;
        }
        parse(&option, &mut args, &mut options, &mut plan)?;
    }
    plan.args = args.collect();
    let name = plan.args.first().ok_or("no command")?;
    plan.program = match lookup(name, std::env::var_os("PATH").as_deref()) {
        Lookup::Found(program) => program,
        Lookup::NotExecutable(_) => return Ok(ExitCode::from(126)),
        Lookup::NotFound => return Ok(ExitCode::from(127)),
    };
    run(&plan, options)
}

fn parse(
    option: &OsString,
    args: &mut impl Iterator<Item = OsString>,
    options: &mut Options,
    plan: &mut Plan,
) -> Result<(), Failure> {
    let mut value = || args.next().ok_or("an option lacks its value");
    let ms = |value: OsString| -> Result<Duration, Failure> {
        Ok(Duration::from_millis(value.to_str().ok_or("not a number")?.parse()?))
    };
    match option.to_str().ok_or("not an option")? {
        "--log" => options.log = Some(File::create(value()?)?),
        "--boot" => options.clock = ClockKind::Boot,
        "--term" => options.term = Some(ms(value()?)?),
        "--renew" => options.renew_every = Some(ms(value()?)?),
        "--renewals" => options.renewals = value()?.to_str().ok_or("not a number")?.parse()?,
        "--end-after" => options.end_after = Some(ms(value()?)?),
        "--wait-before" => options.wait_before = Some(ms(value()?)?),
        "--panic-after" => options.panic_after = Some(ms(value()?)?),
        "--env" => options.env.push((value()?, value()?)),
        "--descriptor" => options.descriptor = Some(File::open(value()?)?),
        "--release-stdio" => options.release_stdio = true,
        "--grace" => plan.grace = ms(value()?)?,
        "--warn" => plan.on_deadline = OnDeadline::Warn,
        "--wait-all" => plan.wait_all = true,
        "--with-parent" => plan.with_parent = true,
        other => return Err(format!("no such option: {other}").into()),
    }
    Ok(())
}

fn run(plan: &Plan, options: Options) -> Result<ExitCode, Failure> {
    let mut front = Front::fork(plan)?;
    let log = |line: String| {
        if let Some(mut file) = options.log.as_ref() {
            let _ = file.write_all(format!("{line}\n").as_bytes());
        }
    };
    log(format!("keeper {}", front.keeper_pid()));
    if let Some(code) = wait_before(&mut front, options.wait_before, &log)? {
        return Ok(code);
    }
    let deadline = options.term.map(|term| Deadline::after(options.clock, term));
    front.start(&Start {
        env_set: options.env,
        deadline,
        descriptors: options.descriptor.iter().map(AsFd::as_fd).collect(),
        release_stdio: options.release_stdio,
        ..Start::default()
    })?;
    if let Some(deadline) = deadline {
        log(format!("deadline {}", deadline.at_ns));
    }
    if let (Some(every), Some(term)) = (options.renew_every, options.term) {
        let sender = front.deadlines();
        let log = options.log.as_ref().map(File::try_clone).transpose()?;
        let clock = options.clock;
        std::thread::spawn(move || renew(&sender, clock, every, term, options.renewals, log));
    }
    let began = Instant::now();
    let mut end_after = options.end_after;
    loop {
        if options.panic_after.is_some_and(|after| began.elapsed() >= after) {
            std::panic::panic_any("as asked");
        }
        if end_after.is_some_and(|after| began.elapsed() >= after) {
            end_after = None;
            front.end(Reason::Lost);
        }
        let next = [end_after, options.panic_after].into_iter().flatten().min();
        let event = front.wait(next.map(|at| at.saturating_sub(began.elapsed())))?;
        if event != Event::TimedOut {
            log(format!("{} {event:?}", ClockKind::Monotonic.now_ns()));
        }
        if let Event::Ended(ended) = event {
            drop(front);
            return Ok(finish(&ended));
        }
    }
}

/// Waits as if for a lock: a signal ends it, a second one at once.
fn wait_before(
    front: &mut Front,
    before: Option<Duration>,
    log: &impl Fn(String),
) -> Result<Option<ExitCode>, Failure> {
    let Some(before) = before else { return Ok(None) };
    let began = Instant::now();
    loop {
        match front.wait(Some(before.saturating_sub(began.elapsed())))? {
            Event::TimedOut => return Ok(None),
            Event::Signal(signal) if signal.asks_to_end() => {
                front.end_at_once();
                log(format!("left {signal:?}"));
                // A store that hangs while the queue is left.
                std::thread::sleep(before);
                return Ok(Some(ExitCode::from(u8::try_from(128 + signal.number)?)));
            }
            event => log(format!("waiting {event:?}")),
        }
    }
}

fn finish(ended: &Ended) -> ExitCode {
    if ended.forced.is_some() || ended.deadline_passed {
        return ExitCode::from(76);
    }
    match ended.how {
        How::Signaled(signal @ (libc::SIGINT | libc::SIGQUIT)) => die_by(signal),
        how => ExitCode::from(how.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(70)),
    }
}

fn renew(
    sender: &DeadlineSender,
    clock: ClockKind,
    every: Duration,
    term: Duration,
    renewals: u32,
    mut log: Option<File>,
) {
    for _ in 0..renewals {
        std::thread::sleep(every);
        let deadline = Deadline::after(clock, term);
        if sender.extend(deadline).is_err() {
            return;
        }
        if let Some(log) = &mut log {
            let _ = log.write_all(format!("deadline {}\n", deadline.at_ns).as_bytes());
        }
    }
}

fn count() -> Result<ExitCode, Failure> {
    let signals = Signals::take()?;
    println!("up");
    let mut interrupts = 0;
    loop {
        wait_readable([Some(signals.as_fd())], None)?;
        match signals.next().map(|signal| signal.number) {
            Some(libc::SIGINT) => interrupts += 1,
            Some(libc::SIGUSR1) => break,
            _ => continue,
        }
        println!("interrupt {interrupts}");
    }
    println!("had {interrupts} in all");
    Ok(ExitCode::SUCCESS)
}

fn beat(file: &File) -> Failure {
    loop {
        let now = format!("{:020}", ClockKind::Monotonic.now_ns());
        if let Err(error) = file.write_all_at(now.as_bytes(), 0) {
            return error.into();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
