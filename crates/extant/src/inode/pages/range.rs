//! Ranges of blocks that one thread at a time works on.

use extant_sync::levels::{self, Entered};
use extant_sync::{Condvar, Level, Mutex};
use std::ops::Range;

/// Ranges in use. Ranges that do not overlap are independent.
#[derive(Debug)]
pub struct RangeLock {
    busy: Mutex<Vec<Range<u32>>>,
    freed: Condvar,
}

/// A range in use by this thread.
pub struct RangeGuard<'a> {
    lock: &'a RangeLock,
    range: Range<u32>,
    entered: Option<Entered>,
}

impl Default for RangeLock {
    fn default() -> Self {
        RangeLock { busy: Mutex::new(Level::InodeRange, Vec::new()), freed: Condvar::new() }
    }
}

impl RangeLock {
    /// Waits until nothing in `range` is in use, and uses it.
    pub fn lock(&self, range: Range<u32>) -> RangeGuard<'_> {
        let mut busy = self.busy.lock();
        while busy.iter().any(|other| overlap(other, &range)) {
            self.freed.wait(&mut busy);
        }
        busy.push(range.clone());
        drop(busy);
        RangeGuard { lock: self, range, entered: Some(levels::enter(Level::InodeRange)) }
    }
}

fn overlap(a: &Range<u32>, b: &Range<u32>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        // First, since the list is a lock of the same level.
        self.entered.take();
        let mut busy = self.lock.busy.lock_nested();
        if let Some(at) = busy.iter().position(|own| *own == self.range) {
            busy.swap_remove(at);
        }
        drop(busy);
        self.lock.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn overlapping_ranges_exclude_each_other() {
        let lock = RangeLock::default();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..200 {
                        let _guard = lock.lock(i % 3..5);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }

    #[test]
    fn disjoint_ranges_do_not_wait() {
        let lock = RangeLock::default();
        let first = lock.lock(0..5);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock(5..9)));
        });
        drop(first);
        assert!(lock.busy.lock().is_empty());
    }
}
