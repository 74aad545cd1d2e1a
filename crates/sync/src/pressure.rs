//! Memory pressure: the bytes that caches evicted for new content.

use crate::atomic::{AtomicU64, Ordering::Relaxed};
use crate::scheduler::Bell;

/// A count of the bytes that the caches of one owner evicted, and a bell that rings when they are
/// many. Only evictions touch it: hits in a cache, and insertions into a cache that is not full,
/// neither read nor write it.
#[derive(Debug, Default)]
pub struct MemoryPressure {
    evicted: AtomicU64,
    /// The bell rings from this number of bytes on.
    threshold: AtomicU64,
    bell: Bell,
}

impl MemoryPressure {
    /// Returns the bell, whose task asks for memory.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Sets the number of evicted bytes at which the bell rings, and counts from 0.
    pub fn reset(&self, threshold: u64) {
        self.threshold.store(threshold, Relaxed);
        self.evicted.store(0, Relaxed);
    }

    /// Counts bytes that left a cache to make space. Locks of any level but Leaf may be held.
    pub fn evicted(&self, bytes: u64) {
        // Relaxed: a hint about sizes. A count that a concurrent reset loses is made up for by the
        // next evictions.
        let before = self.evicted.fetch_add(bytes, Relaxed);
        if before.saturating_add(bytes) >= self.threshold.load(Relaxed) {
            self.bell.ring();
        }
    }

    /// Whether enough was evicted since [`MemoryPressure::reset`] for the bell to ring.
    pub fn is_high(&self) -> bool {
        self.evicted.load(Relaxed) >= self.threshold.load(Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_high_from_the_threshold_on_until_the_reset() {
        let pressure = MemoryPressure::default();
        pressure.reset(100);
        pressure.evicted(99);
        assert!(!pressure.is_high());
        pressure.evicted(1);
        assert!(pressure.is_high());
        pressure.reset(50);
        assert!(!pressure.is_high());
    }
}
