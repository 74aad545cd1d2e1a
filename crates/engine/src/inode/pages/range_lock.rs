//! Ranges of blocks that one thread at a time works on, in the order in which they were asked for:
//! a long range waits for those that overlap it and came before, and for none that came later.

use extant_sync::levels::{self, Entered};
use extant_sync::{Condvar, Level, Mutex};
use std::ops::Range;

/// Ranges in use, and those that are waited for. Ranges that do not overlap are independent.
#[derive(Debug)]
pub struct RangeLock {
    queue: Mutex<Queue>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Ranges and their tickets, in the order of tickets. One is in use if it overlaps none before
    /// it.
    ranges: Vec<(u64, Range<u32>)>,
    next: u64,
}

impl Queue {
    /// Whether one before the ticket's overlaps `range`.
    fn must_wait(&self, ticket: u64, range: &Range<u32>) -> bool {
        self.ranges
            .iter()
            .take_while(|(before, _)| *before < ticket)
            .any(|(_, other)| overlap(other, range))
    }
}

/// A range in use by this thread.
pub struct RangeGuard<'a> {
    lock: &'a RangeLock,
    ticket: u64,
    entered: Option<Entered>,
}

impl Default for RangeLock {
    fn default() -> Self {
        RangeLock { queue: Mutex::new(Level::InodeRange, Queue::default()), freed: Condvar::new() }
    }
}

impl RangeLock {
    /// Waits until nothing in `range` is in use, or was asked for before, and uses it.
    pub fn lock(&self, range: Range<u32>) -> RangeGuard<'_> {
        let mut queue = self.queue.lock();
        let ticket = queue.next;
        queue.next += 1;
        queue.ranges.push((ticket, range.clone()));
        while queue.must_wait(ticket, &range) {
            self.freed.wait(&mut queue);
        }
        drop(queue);
        RangeGuard { lock: self, ticket, entered: Some(levels::enter(Level::InodeRange)) }
    }
}

fn overlap(a: &Range<u32>, b: &Range<u32>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        // First, since the list is a lock of the same level.
        self.entered.take();
        let mut queue = self.lock.queue.lock_nested();
        // Few at a time; those behind keep their order.
        queue.ranges.retain(|(ticket, _)| *ticket != self.ticket);
        drop(queue);
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
        assert!(lock.queue.lock().ranges.is_empty());
    }

    #[test]
    fn a_long_range_is_not_overtaken_by_short_ones() {
        let lock = RangeLock::default();
        let order = Mutex::new(Level::Leaf, Vec::new());
        let asked_for = |ranges: u64| {
            while lock.queue.lock_nested().next < ranges {
                std::thread::yield_now();
            }
        };
        let first = lock.lock(0..2);
        std::thread::scope(|scope| {
            let ask = |range: Range<u32>| {
                let (lock, order) = (&lock, &order);
                scope.spawn(move || {
                    let guard = lock.lock(range.clone());
                    order.lock().push(range.len());
                    drop(guard);
                });
            };
            ask(0..100);
            asked_for(2);
            // It overlaps a waiting range, and none in use.
            ask(50..51);
            asked_for(3);
            drop(first);
        });
        assert_eq!(*order.lock(), [100, 1]);
    }
}
