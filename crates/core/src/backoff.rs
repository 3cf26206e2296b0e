//! Waits that grow, are jittered and are bounded.

use core::time::Duration;

/// Exponential backoff with full jitter: each wait is drawn between a quarter of the step and the
/// step, and the step doubles up to a cap (Brooker, "Exponential Backoff And Jitter", 2015).
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    step: Duration,
    noise: Noise,
}

impl Backoff {
    /// A backoff that starts at `first` and grows to `cap`, jittered from this seed.
    pub fn new(first: Duration, cap: Duration, seed: u64) -> Backoff {
        Backoff { first, cap, step: first, noise: Noise::seeded(seed) }
    }

    /// How long to wait before the next try.
    pub fn next_wait(&mut self) -> Duration {
        let step = self.step;
        self.step = (step * 2).min(self.cap);
        self.noise.between(step / 4, step)
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.step = self.first;
    }
}

/// A small stream of pseudo-random numbers for jitter (splitmix64, Steele et al. 2014); not for
/// ids.
#[derive(Debug, Clone)]
pub struct Noise {
    state: u64,
}

impl Noise {
    /// A stream from this seed.
    pub const fn seeded(seed: u64) -> Noise {
        Noise { state: seed }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A span between `low` and `high`, both included; `low` if they are the wrong way round.
    pub fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let width = u64::try_from(high.saturating_sub(low).as_nanos()).unwrap_or(u64::MAX);
        let extra = if width == u64::MAX { self.next_u64() } else { self.next_u64() % (width + 1) };
        low + Duration::from_nanos(extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_start_over() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(10), ms(200), 7);
        for step in [10, 20, 40, 80, 160, 200, 200] {
            let wait = backoff.next_wait();
            assert!(wait >= ms(step) / 4 && wait <= ms(step), "{wait:?} for step {step} ms");
        }
        backoff.reset();
        assert!(backoff.next_wait() <= ms(10));
    }

    #[test]
    fn two_seeds_do_not_march_together() {
        let mut a = Noise::seeded(1);
        let mut b = Noise::seeded(2);
        assert!((0..8).any(|_| a.next_u64() % 16 != b.next_u64() % 16));
    }
}
