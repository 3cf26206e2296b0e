//! Runs schedules of the seeded simulation, or replays one.

use std::process::ExitCode;
use std::time::Instant;

use leasehold_testkit::sim::{Bug, Fired, replay_command, simulate};

const USAGE: &str = "usage: leasehold-sim [--seeds N] [--from S] [--bug B]   runs N schedules
       leasehold-sim --seed S [--bug B]               replays one, a line an event
       leasehold-sim --table [--seeds N]              what convicts each planted bug";

fn main() -> ExitCode {
    match Options::read(std::env::args().skip(1)) {
        Ok(Options { seed: Some(seed), bug, .. }) => replay(seed, bug),
        Ok(Options { table: true, from, seeds, .. }) => table(from, seeds),
        Ok(options) => run_many(&options),
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            ExitCode::from(64)
        }
    }
}

struct Options {
    seed: Option<u64>,
    from: u64,
    seeds: u64,
    bug: Option<Bug>,
    table: bool,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options { seed: None, from: 0, seeds: 1000, bug: None, table: false };
        while let Some(name) = args.next() {
            if name == "--table" {
                options.table = true;
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{name} wants a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{name} wants a number"));
            match name.as_str() {
                "--seed" => options.seed = Some(number()?),
                "--seeds" => options.seeds = number()?,
                "--from" => options.from = number()?,
                "--bug" => options.bug = Some(value.parse()?),
                _ => return Err(format!("no option is called {name}")),
            }
        }
        Ok(options)
    }
}

fn replay(seed: u64, bug: Option<Bug>) -> ExitCode {
    let run = simulate(seed, bug);
    for (index, event) in run.history.events.iter().enumerate() {
        println!("{index:>5} {event}");
    }
    println!("digest {:016x}, {} events", run.history.digest(), run.events);
    match run.verdict {
        Ok(()) => {
            println!("all promises held");
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}

fn run_many(options: &Options) -> ExitCode {
    let started = Instant::now();
    let mut fired = Fired::default();
    let (mut events, mut events_min, mut failed) = (0, u64::MAX, 0_u64);
    for seed in options.from..options.from.saturating_add(options.seeds) {
        let run = simulate(seed, options.bug);
        fired.add(&run.fired);
        events += run.events;
        events_min = events_min.min(run.events);
        if let Err(violation) = run.verdict {
            failed += 1;
            if failed <= 5 {
                println!("seed {seed}: {violation}");
                println!("  replay: {}", replay_command(seed, options.bug));
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    print!("{fired}");
    let never = fired.never();
    println!(
        "{} schedules from seed {}: {failed} failed, {events} events ({events_min} at least), \
         {:.0} schedules a second",
        options.seeds,
        options.from,
        options.seeds as f64 / seconds,
    );
    if !never.is_empty() {
        println!("faults that never fired: {never:?}");
    }
    let enough = never.is_empty() || options.seeds < 1000;
    if failed == 0 && enough { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn table(from: u64, seeds: u64) -> ExitCode {
    let mut missed = false;
    println!("{:<26} {:>6}  convicted by", "bug", "seed");
    for bug in Bug::ALL {
        let found = (from..from.saturating_add(seeds)).find_map(|seed| {
            simulate(seed, Some(*bug)).verdict.err().map(|violation| (seed, violation.promise))
        });
        match found {
            Some((seed, promise)) => println!("{bug:<26} {seed:>6}  {promise}"),
            None => {
                missed = true;
                println!("{bug:<26} {:>6}  never", "-");
            }
        }
    }
    if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
