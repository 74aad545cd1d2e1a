//! Random numbers by splitmix64: equal seeds give equal sequences. They keep no secret.

use crate::Sharded;
use crate::atomic::{AtomicU64, Ordering};

/// The distance of neighboring states.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The distance of the sequences of two shards.
const SHARD_DISTANCE: u64 = 1 << 57;

/// The number that follows from a state.
#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A sequence of random numbers for one thread.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        SplitMix64 { state: seed }
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// A number in `0..bound`; 0 if `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound.max(1)
    }
}

/// Sequences of random numbers for many threads.
#[derive(Debug)]
pub struct SharedRng {
    states: Sharded<AtomicU64>,
    /// All threads draw from one sequence.
    one: bool,
}

impl SharedRng {
    /// The same seed gives the same numbers, whichever threads draw them.
    pub fn new(seed: u64) -> Self {
        SharedRng { one: true, ..SharedRng::spread(seed) }
    }

    /// Threads draw from sequences of their own.
    pub fn spread(seed: u64) -> Self {
        let state = |shard: usize| {
            AtomicU64::new(seed.wrapping_add((shard as u64).wrapping_mul(SHARD_DISTANCE)))
        };
        SharedRng { states: Sharded::new(state), one: false }
    }

    /// The next number.
    #[inline]
    pub fn next_u32(&self) -> u32 {
        // Relaxed: only the counter's own modification order matters.
        let state = if self.one { self.states.at(0) } else { self.states.local() };
        (mix(state.fetch_add(STEP, Ordering::Relaxed)) >> 16) as u32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_the_seed() {
        // The first numbers of the published generator for seed 0.
        let mut own = SplitMix64::new(0);
        assert_eq!(
            [own.next_u64(), own.next_u64()],
            [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4]
        );
        assert_eq!((own.below(0), own.below(1)), (0, 0));
        // A shared sequence begins a step earlier.
        let shared = SharedRng::new(STEP);
        assert_eq!(shared.next_u32(), (0xE220_A839_7B1D_CDAF_u64 >> 16) as u32);
        assert_eq!(shared.next_u32(), (0x6E78_9E6A_A1B9_65F4_u64 >> 16) as u32);
    }
}
