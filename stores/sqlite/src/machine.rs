//! What a store reads of the machine it runs on: two clocks and which boot this is.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use leasehold_core::{Clock, Error, ErrorKind, Moment};
use rustix::time::{ClockId, clock_gettime};

use crate::error::from_io;

/// The clocks and the boot of the machine. Tests put their own in.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The local clock, `CLOCK_MONOTONIC` unless a test has its own.
    pub clock: Arc<dyn Clock>,
    /// The wall clock.
    pub wall: Arc<dyn WallClock>,
    /// Which boot this is: times of another boot mean nothing now.
    pub boot: BootId,
    /// How far the local clock is ahead of the machine's own, in nanoseconds: processes in
    /// different time namespaces read different clocks.
    pub ahead_ns: i64,
}

/// The id of a boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootId(pub [u8; 16]);

/// A source of the time of day.
pub trait WallClock: fmt::Debug + Send + Sync + 'static {
    /// Microseconds since 1970; may step either way.
    fn now_us(&self) -> u64;
}

impl Machine {
    /// This machine.
    ///
    /// # Errors
    ///
    /// `Config` where the system does not say which boot this is.
    pub fn local() -> Result<Machine, Error> {
        Ok(Machine {
            clock: Arc::new(Monotonic),
            wall: Arc::new(SystemWall),
            boot: boot_id()?,
            ahead_ns: time_namespace_offset()?,
        })
    }

    /// A moment of the local clock on the clock that all processes of the machine share.
    pub(crate) fn shared(&self, local: Moment) -> Moment {
        shift(local, self.ahead_ns.saturating_neg())
    }

    /// The other way.
    pub(crate) fn local_moment(&self, shared: Moment) -> Moment {
        shift(shared, self.ahead_ns)
    }
}

fn shift(moment: Moment, by_ns: i64) -> Moment {
    match moment {
        Moment::NEVER => Moment::NEVER,
        _ => Moment::from_nanos(moment.as_nanos().saturating_add_signed(by_ns)),
    }
}

/// `CLOCK_MONOTONIC`.
#[derive(Debug)]
struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> Moment {
        let time = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Moment::from_nanos(seconds * 1_000_000_000 + nanos)
    }
}

#[derive(Debug)]
struct SystemWall;

impl WallClock for SystemWall {
    fn now_us(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

fn boot_id() -> Result<BootId, Error> {
    let unknown = |detail: &str| {
        Error::new(ErrorKind::Config, "open the store", detail)
            .advise("mount /proc, or use a store with a server")
    };
    let text = std::fs::read("/proc/sys/kernel/random/boot_id")
        .map_err(|e| unknown("the system does not say which boot this is").caused_by(e))?;
    let mut id = [0_u8; 16];
    let mut digits = text.iter().filter_map(|&b| char::from(b).to_digit(16));
    for byte in &mut id {
        let pair = digits.next().zip(digits.next());
        let value = pair.and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        *byte = value.ok_or_else(|| unknown("the boot id of the system has no 32 digits"))?;
    }
    Ok(BootId(id))
}

/// How far `CLOCK_MONOTONIC` is ahead in this time namespace.
fn time_namespace_offset() -> Result<i64, Error> {
    let text = match std::fs::read_to_string("/proc/self/timens_offsets") {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => {
            let detail = "the time namespace's offsets cannot be read";
            return Err(from_io(ErrorKind::Config, detail, error));
        }
    };
    parse_offset(&text).ok_or_else(|| {
        Error::new(
            ErrorKind::Config,
            "open the store",
            "the time namespace's offsets are not understood",
        )
    })
}

fn parse_offset(text: &str) -> Option<i64> {
    let line = text.lines().find(|l| l.starts_with("monotonic"))?;
    let mut numbers = line.split_whitespace().skip(1).map(str::parse::<i64>);
    let seconds = numbers.next()?.ok()?;
    let nanos = numbers.next()?.ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_and_bring_all_to_one_clock() {
        let text = "monotonic       -3600      250000000\nboottime            1         0\n";
        assert_eq!(parse_offset(text), Some(-3_599_750_000_000));
        assert_eq!(parse_offset("boottime 1 0\n"), None);
        let mut machine = Machine::local().unwrap();
        machine.ahead_ns = 5;
        let local = Moment::from_nanos(12);
        assert_eq!(machine.shared(local), Moment::from_nanos(7));
        assert_eq!(machine.local_moment(machine.shared(local)), local);
    }
}
