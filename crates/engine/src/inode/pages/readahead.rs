//! How far to read ahead of a sequential reader.

use extant_sync::atomic::{AtomicU32, Ordering};

/// The last miss of a file's readers. Races between readers cost some read-ahead, nothing else.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// The block that a sequential reader misses next.
    next: AtomicU32,
    /// Blocks read by the last miss.
    window: AtomicU32,
}

impl ReadAhead {
    /// How many blocks to read for a miss at `lblk` that needs `wanted` blocks; at most `max`,
    /// unless more are wanted.
    pub fn miss(&self, lblk: u32, wanted: u32, max: u32) -> u32 {
        let sequential = lblk == self.next.load(Ordering::Relaxed);
        let window = if sequential {
            self.window.load(Ordering::Relaxed).saturating_mul(2).clamp(4, max.max(4))
        } else {
            0
        };
        let blocks = wanted.max(window).max(1);
        self.window.store(blocks, Ordering::Relaxed);
        self.next.store(lblk.saturating_add(blocks), Ordering::Relaxed);
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_for_sequential_misses_only() {
        let ahead = ReadAhead::default();
        assert_eq!(ahead.miss(0, 1, 64), 4);
        assert_eq!(ahead.miss(4, 1, 64), 8);
        assert_eq!(ahead.miss(12, 1, 64), 16);
        assert_eq!(ahead.miss(1000, 2, 64), 2);
        assert_eq!(ahead.miss(1002, 100, 64), 100);
        assert_eq!(ahead.miss(1102, 1, 64), 64);
    }
}
