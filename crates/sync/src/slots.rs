//! A fixed number of slots that threads fill and empty without a lock.
//!
//! # Invariants
//! 1. `free` is at most the number of empty slots at every instant: a reservation lowers `free`
//!    before a slot is filled, and a release empties the slot before raising `free`. So a
//!    reservation guarantees an empty slot.
//! 2. A filled slot belongs to the thread that filled it, and only that thread empties it.
//! 3. A thread that has lowered `free` sees the slots that earlier releases emptied.
//!
//! # Memory order
//! A release raises `free` after emptying its slot (at least Release), and a reservation that reads
//! the raised value acquires it. Invariant 3 follows. The search for the guaranteed slot can
//! therefore fail only while other threads take and release slots faster than the search advances.
//! The search is bounded for that reason, and because the slots' contents may come from a damaged
//! medium. Filling is a compare-and-swap, since several reservations may meet at one slot. Emptying
//! a slot, raising `free` and looking at either again acquire and release, as [`Hints`] require:
//! the hints over the slots, and the hints of a user over many [`Slots`].

use crate::atomic::{AtomicU32, Ordering};
use crate::{CachePadded, Hints};

/// Walks over all slots after the hints have led to no empty one.
const WALKS: usize = 3;

/// Slots that hold a number each, 0 if empty.
#[derive(Debug)]
pub struct Slots {
    /// On a cache line of its own, since each reservation and release writes it.
    free: CachePadded<AtomicU32>,
    hints: Hints,
    slots: Box<[AtomicU32]>,
}

impl Slots {
    /// Makes slots with these numbers.
    pub fn new(numbers: impl IntoIterator<Item = u32>) -> Slots {
        let numbers: Vec<u32> = numbers.into_iter().collect();
        let free = numbers.iter().filter(|number| **number == 0).count();
        let hints = Hints::new(numbers.len(), |slot| numbers.get(slot) == Some(&0));
        let slots = numbers.into_iter().map(AtomicU32::new).collect();
        Slots {
            free: CachePadded::new(AtomicU32::new(u32::try_from(free).unwrap_or(u32::MAX))),
            hints,
            slots,
        }
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether every slot is empty and unreserved.
    pub fn is_empty(&self) -> bool {
        self.free() as usize == self.slots.len()
    }

    /// Returns the number of reservations that would succeed now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.free.load(Ordering::Acquire)
    }

    /// Returns whether a reservation would succeed, for hints over many [`Slots`]: see
    /// [`Hints::find`].
    pub fn has_free(&self) -> bool {
        self.free.fetch_or(0, Ordering::AcqRel) > 0
    }

    /// Reserves an empty slot. Must be followed by [`Slots::claim`] or [`Slots::give_back`].
    #[inline]
    #[must_use]
    pub fn reserve(&self) -> bool {
        let less = |free: u32| free.checked_sub(1);
        // Acquire: see invariant 3.
        self.free.fetch_update(Ordering::Acquire, Ordering::Relaxed, less).is_ok()
    }

    /// Undoes [`Slots::reserve`].
    #[inline]
    pub fn give_back(&self) {
        self.free.fetch_add(1, Ordering::AcqRel);
    }

    /// Fills a reserved slot with `number`, which must not be 0, searching from `start`. Returns
    /// `None` if other threads were always faster: the caller must then return the reservation.
    #[inline]
    pub fn claim(&self, start: usize, number: u32) -> Option<usize> {
        self.claim_counting(start, number, &mut 0)
    }

    /// As [`Self::claim`], and adds the slots that were tried in vain to `retries`: they were taken
    /// already, or other threads were faster.
    #[inline]
    pub fn claim_counting(&self, start: usize, number: u32, retries: &mut u32) -> Option<usize> {
        self.claim_by_hint(start, number, retries).or_else(|| self.walk(start, number, retries))
    }

    #[inline]
    pub(crate) fn claim_by_hint(
        &self,
        start: usize,
        number: u32,
        retries: &mut u32,
    ) -> Option<usize> {
        let take = |slot| self.fill(slot, number, retries).then_some(slot);
        self.hints.find(start, take, |slot| self.is_free(slot))
    }

    fn is_free(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.fetch_or(0, Ordering::AcqRel) == 0)
    }

    #[cold]
    fn walk(&self, start: usize, number: u32, retries: &mut u32) -> Option<usize> {
        let count = self.slots.len();
        let start = start.checked_rem(count)?;
        (start..start + count * WALKS)
            .map(|step| step % count)
            .find(|slot| self.fill(*slot, number, retries))
    }

    fn fill(&self, slot: usize, number: u32, retries: &mut u32) -> bool {
        let Some(slot) = self.slots.get(slot) else { return false };
        let filled = slot.load(Ordering::Relaxed) == 0
            && slot.compare_exchange(0, number, Ordering::Acquire, Ordering::Relaxed).is_ok();
        *retries += u32::from(!filled);
        filled
    }

    /// Empties a slot that the caller filled; does nothing if it is empty. Returns true if no slot
    /// could be reserved before.
    #[inline]
    pub fn release(&self, slot: usize) -> bool {
        let Some(place) = self.slots.get(slot) else { return false };
        if place.swap(0, Ordering::AcqRel) == 0 {
            return false;
        }
        // The hint precedes the count, so that a thread that reserves this slot is led to it.
        self.hints.note(slot);
        self.free.fetch_add(1, Ordering::AcqRel) == 0
    }

    /// Returns the number in a slot; 0 past the end.
    pub fn get(&self, slot: usize) -> u32 {
        self.slots.get(slot).map_or(0, |slot| slot.load(Ordering::Acquire))
    }

    /// Returns the numbers of all slots in order. A slot that changes meanwhile yields its old or
    /// new number.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().map(|slot| slot.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_once_and_come_back() {
        let slots = Slots::new([0, 5, 0]);
        let take = |start, number| if slots.reserve() { slots.claim(start, number) } else { None };
        assert_eq!((take(2, 7), take(2, 8), take(0, 9)), (Some(2), Some(0), None));
        assert!(slots.release(1));
        assert!(!slots.release(1), "it is empty");
        assert!(!slots.release(9), "there is none");
        assert_eq!((slots.free(), slots.len()), (1, 3));
        assert_eq!((take(0, 11), take(0, 12)), (Some(1), None));
        assert_eq!(slots.numbers().collect::<Vec<_>>(), [8, 11, 7]);
        for slot in 0..3 {
            slots.release(slot);
        }
        assert!(slots.is_empty());
    }

    #[test]
    fn slots_that_are_tried_in_vain_are_counted() {
        let slots = Slots::new([0; 4]);
        let mut retries = 0;
        for (start, slot, tried) in [(0, 0, 0), (0, 1, 1), (1, 2, 2), (0, 3, 3)] {
            assert!(slots.reserve());
            assert_eq!(slots.claim_counting(start, 7, &mut retries), Some(slot));
            assert_eq!(retries, tried);
        }
    }

    #[test]
    fn a_walk_ends_where_nothing_is_empty() {
        let slots = Slots::new([0]);
        slots.slots[0].store(5, Ordering::Relaxed);
        assert!(slots.reserve());
        assert_eq!(slots.claim(0, 9), None);
        assert_eq!(Slots::new([]).claim(0, 9), None);
    }

    #[test]
    fn a_place_without_a_hint_is_found() {
        let slots = Slots::new([5, 5, 5]);
        slots.slots[1].store(0, Ordering::Relaxed);
        slots.give_back();
        assert!(slots.reserve());
        assert_eq!(slots.claim(2, 9), Some(1));
    }

    #[test]
    fn threads_share_slots() {
        let slots = Slots::new([0; 50]);
        std::thread::scope(|scope| {
            for thread in 1..=4u32 {
                let slots = &slots;
                scope.spawn(move || {
                    for round in 0..crate::times(2000) {
                        assert!(slots.reserve());
                        let slot = slots.claim(round as usize % 7, thread).expect("an empty slot");
                        assert_eq!(slots.get(slot), thread);
                        slots.release(slot);
                    }
                });
            }
        });
        assert!(slots.is_empty());
    }
}
