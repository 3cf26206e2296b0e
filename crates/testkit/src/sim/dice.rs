//! Chance, from a seed.

use std::time::Duration;

use leasehold_core::Noise;

/// A stream of decisions; the same seed decides the same.
#[derive(Debug, Clone)]
pub(super) struct Dice(Noise);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        // Neighbouring seeds must not run side by side.
        let mut noise = Noise::seeded(seed.wrapping_mul(0xa076_1d64_78bd_642f) ^ 0x2545_f491);
        noise.next_u64();
        Dice(noise)
    }

    pub(super) fn bits(&mut self) -> u128 {
        u128::from(self.0.next_u64()) << 64 | u128::from(self.0.next_u64())
    }

    /// Whether something happens that does so `permille` times of a thousand.
    pub(super) fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let index = usize::try_from(self.below(of.len() as u64)).unwrap_or_default();
        of[index]
    }

    pub(super) fn millis(&mut self, low: u64, high: u64) -> Duration {
        self.0.between(Duration::from_millis(low), Duration::from_millis(high))
    }

    pub(super) fn micros(&mut self, low: u64, high: u64) -> Duration {
        self.0.between(Duration::from_micros(low), Duration::from_micros(high))
    }
}
