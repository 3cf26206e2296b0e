//! Clocks that drift, freeze and step against the time of the simulation.

use std::time::Duration;

use leasehold_core::Moment;

/// A clock that runs in straight pieces.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    /// Where the present piece begins, in the time of the simulation and on this clock.
    from: Moment,
    shown: Moment,
    /// Parts per million that it gains.
    gain: i64,
    frozen: bool,
}

const MILLION: i128 = 1_000_000;

impl Clock {
    pub(super) fn new(shown: Moment, gain: i64) -> Clock {
        Clock { from: Moment::START, shown, gain, frozen: false }
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// What it shows at this time.
    pub(super) fn at(&self, time: Moment) -> Moment {
        if self.frozen {
            return self.shown;
        }
        let span = i128::from(time.as_nanos()) - i128::from(self.from.as_nanos());
        let ran = span * (MILLION + i128::from(self.gain)) / MILLION;
        let shown = i128::from(self.shown.as_nanos()) + ran.max(0);
        Moment::from_nanos(u64::try_from(shown).unwrap_or(u64::MAX))
    }

    /// The first time at which it shows this or later; none while it is frozen.
    pub(super) fn when(&self, shown: Moment) -> Option<Moment> {
        if self.frozen || shown == Moment::NEVER {
            return None;
        }
        let span =
            i128::try_from(shown.since(self.shown).as_nanos()).unwrap_or(i128::MAX / MILLION / 2);
        let rate = MILLION + i128::from(self.gain);
        let time = i128::from(self.from.as_nanos()) + (span * MILLION + rate - 1) / rate;
        let mut time = Moment::from_nanos(u64::try_from(time).unwrap_or(u64::MAX));
        while self.at(time) < shown {
            time = time + Duration::from_nanos(1);
        }
        Some(time)
    }

    fn rebase(&mut self, time: Moment) {
        self.shown = self.at(time);
        self.from = time;
    }

    pub(super) fn freeze(&mut self, time: Moment) {
        self.rebase(time);
        self.frozen = true;
    }

    pub(super) fn thaw(&mut self, time: Moment) {
        self.frozen = false;
        self.from = time;
    }

    pub(super) fn step_ahead(&mut self, time: Moment, span: Duration) {
        self.rebase(time);
        self.shown = self.shown + span;
    }

    pub(super) fn step_back(&mut self, time: Moment, span: Duration) {
        self.rebase(time);
        self.shown = self.shown.before(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(seconds)
    }

    #[test]
    fn it_drifts_freezes_and_steps() {
        let mut clock = Clock::new(s(100), 40_000);
        assert_eq!(clock.at(s(10)).since(s(100)), Duration::from_millis(10_400));
        let when = clock.when(s(200)).unwrap();
        assert!(
            clock.at(when) >= s(200) && clock.at(when.before(Duration::from_nanos(2))) < s(200)
        );
        clock.freeze(s(25));
        assert_eq!((clock.at(s(99)), clock.when(s(200))), (s(126), None));
        clock.thaw(s(30));
        clock.step_ahead(s(30), Duration::from_secs(4));
        assert_eq!(clock.at(s(55)), s(156));
        clock.step_back(s(55), Duration::from_secs(6));
        assert_eq!(clock.at(s(55)), s(150));
    }
}
