//! The watch over a clock that is not ours.

use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::Moment;

/// How many observations ago a step is still remembered at most.
const STEPS_MAX: usize = 16;

/// Notices that a server's wall clock has stepped, from the server's time in each answer.
///
/// Two clocks are never compared, only two differences: how far the server's clock has moved from
/// one answer to a later one, and how far ours (a boot clock, which does not step) has. An answer
/// carries a time from somewhere between its request's sending and its coming, so a difference is
/// only as sharp as the two round trips; what that leaves open counts as no step.
#[derive(Debug, Default)]
pub struct ServerClock {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The sharpest recent observation that later ones are compared with.
    base: Option<Observation>,
    steps: Vec<(Moment, i64)>,
}

#[derive(Debug, Clone, Copy)]
struct Observation {
    sent: Moment,
    received: Moment,
    server_us: u64,
}

/// What an observation shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Skew {
    /// Both clocks have moved alike, as far as the round trips let one see.
    Steady,
    /// The server's clock has gained this much on ours since the last observation, at least.
    Ahead(Duration),
    /// The server's clock has lost this much on ours, at least.
    Behind(Duration),
}

impl ServerClock {
    /// A watch that has seen nothing yet.
    pub fn new() -> ServerClock {
        ServerClock::default()
    }

    /// Takes in the server's time `server_us` from an answer that came at `received` to a request
    /// sent at `sent`; says whether the server's clock has moved against ours by more than
    /// `tolerated` since the observation before.
    ///
    /// Small, steady drift is not told: each observation is compared with the last.
    pub fn observe(
        &self,
        sent: Moment,
        received: Moment,
        server_us: u64,
        tolerated: Duration,
    ) -> Skew {
        let mut inner = self.inner.lock().unwrap_or_else(|e| e.into_inner());
        let now = Observation { sent, received, server_us };
        let Some(base) = inner.base else {
            inner.base = Some(now);
            return Skew::Steady;
        };
        if received <= base.received {
            return Skew::Steady; // answers of two connections may cross
        }
        inner.base = Some(now);
        let skew = skew(base, now, tolerated);
        let step = match skew {
            Skew::Steady => return skew,
            Skew::Ahead(by) => i64::try_from(by.as_micros()).unwrap_or(i64::MAX),
            Skew::Behind(by) => i64::try_from(by.as_micros()).map_or(i64::MIN, |by| -by),
        };
        if inner.steps.len() == STEPS_MAX {
            inner.steps.remove(0);
        }
        inner.steps.push((received, step));
        skew
    }

    /// By how much the server's clock was seen to gain on ours since a moment, in microseconds;
    /// negative where it lost. A claim asked for before a gain of more than its drift may have
    /// ended early.
    pub fn stepped_since(&self, since: Moment) -> i64 {
        let inner = self.inner.lock().unwrap_or_else(|e| e.into_inner());
        let steps = inner.steps.iter().filter(|(at, _)| *at >= since);
        steps.fold(0, |sum, (_, by)| sum.saturating_add(*by))
    }
}

fn skew(base: Observation, now: Observation, tolerated: Duration) -> Skew {
    // The least and the most that our clock can have moved between the two readings; the least is
    // negative where the requests overlapped.
    let least = micros_between(base.received, now.sent);
    let most = micros_between(base.sent, now.received);
    let moved = i128::from(now.server_us) - i128::from(base.server_us);
    let tolerated = i128::try_from(tolerated.as_micros()).unwrap_or(i128::MAX);
    if moved > most.saturating_add(tolerated) {
        Skew::Ahead(span(moved - most))
    } else if moved < least.saturating_sub(tolerated) {
        Skew::Behind(span(least - moved))
    } else {
        Skew::Steady
    }
}

fn micros_between(from: Moment, to: Moment) -> i128 {
    (i128::from(to.as_nanos()) - i128::from(from.as_nanos())) / 1000
}

fn span(micros: i128) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLERATED: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn us(ms: u64) -> u64 {
        1_700_000_000_000_000 + ms * 1000
    }

    #[test]
    fn clocks_that_run_alike_are_steady_whatever_the_round_trips() {
        let clock = ServerClock::new();
        for (sent, received, server) in
            [(0, 5, 0), (1000, 1900, 1850), (2000, 2001, 2000), (9000, 9900, 9010)]
        {
            let skew = clock.observe(at(sent), at(received), us(server), TOLERATED);
            assert_eq!(skew, Skew::Steady, "at {received}");
        }
        assert_eq!(clock.stepped_since(Moment::START), 0);
    }

    #[test]
    fn steps_are_told_with_their_sign_and_remembered() {
        let clock = ServerClock::new();
        clock.observe(at(0), at(1), us(0), TOLERATED);
        let hour = 3_600_000;
        let skew = clock.observe(at(1000), at(1001), us(1000 + hour), TOLERATED);
        assert!(matches!(skew, Skew::Ahead(by) if by >= Duration::from_secs(3599)), "{skew:?}");
        assert!(clock.stepped_since(at(500)) > 3_599_000_000);
        assert_eq!(clock.stepped_since(at(1002)), 0);
        let skew = clock.observe(at(2000), at(2001), us(2000), TOLERATED);
        assert!(matches!(skew, Skew::Behind(by) if by >= Duration::from_secs(3599)), "{skew:?}");
    }

    #[test]
    fn answers_that_cross_are_not_compared() {
        let clock = ServerClock::new();
        clock.observe(at(100), at(500), us(450), TOLERATED);
        assert_eq!(clock.observe(at(90), at(400), us(100), TOLERATED), Skew::Steady);
        assert_eq!(clock.observe(at(510), at(520), us(515), TOLERATED), Skew::Steady);
        // Sent before the last answer came: the server may have read its clock before it, too.
        assert_eq!(clock.observe(at(200), at(530), us(210), TOLERATED), Skew::Steady);
    }
}
