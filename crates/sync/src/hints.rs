//! Which of many places may be free: a bitmap whose bits are cleared late.
//!
//! # Invariants
//! A free place has its bit set, but for the moment in which somebody who met it taken is about to
//! look again. A set bit says nothing for sure: taking a place leaves its bit, and whoever finds it
//! taken clears it. So a place that is taken and freed by turns costs the bitmap no write, and a
//! search meets each place that was taken for good once.
//!
//! # Memory order
//! Whoever frees a place does so by a read-modify-write, then reads its bit. Whoever doubts a place
//! clears its bit, then looks at the place by a read-modify-write that may change nothing; both
//! acquire and release. Of the two one comes first in the order of the place's changes. If that is
//! the freeing, the look sees the place free, and sets the bit again. If it is the look, the
//! clearing happened before the freeing, which then reads a clear bit, and sets it. So the bits
//! themselves need no order; who is led to a place by other means than its bit has other reasons to
//! see it free.

use crate::atomic::{AtomicU64, Ordering::Relaxed};

const BITS: usize = u64::BITS as usize;

/// See the module's description.
#[derive(Debug)]
pub struct Hints {
    words: Box<[AtomicU64]>,
    len: usize,
}

impl Hints {
    /// Hints for `len` places: those that `free` says.
    pub fn new(len: usize, free: impl Fn(usize) -> bool) -> Hints {
        let word = |word: usize| {
            let places = word * BITS..len.min((word + 1) * BITS);
            places.filter(|place| free(*place)).fold(0, |bits, place| bits | bit(place))
        };
        Hints {
            words: (0..len.div_ceil(BITS)).map(|index| AtomicU64::new(word(index))).collect(),
            len,
        }
    }

    /// The number of places.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no place.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Notes that a place was made free, by a read-modify-write that acquires and releases.
    #[inline]
    pub fn note(&self, place: usize) {
        let Some(word) = self.words.get(place / BITS) else { return };
        if word.load(Relaxed) & bit(place) == 0 {
            word.fetch_or(bit(place), Relaxed);
        }
    }

    /// Tries to take a place: the first one that `take` gets, from `start` on and around. What
    /// `take` does not get is doubted: `free` looks again, by a read-modify-write that acquires and
    /// releases. Each place is tried once at most.
    #[inline]
    pub fn find<T>(
        &self,
        start: usize,
        mut take: impl FnMut(usize) -> Option<T>,
        free: impl Fn(usize) -> bool,
    ) -> Option<T> {
        let words = self.words.len();
        let start = if start < self.len { start } else { 0 };
        let below = bit(start).wrapping_sub(1);
        // The first word is visited twice: its upper part first, its lower part last.
        for step in 0..=words {
            let index = (start / BITS + step) % words.max(1);
            let part = match step {
                0 => !below,
                last if last == words => below,
                _ => u64::MAX,
            };
            let mut bits = self.words.get(index)?.load(Relaxed) & part;
            while bits != 0 {
                let place = index * BITS + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(taken) = take(place) {
                    return Some(taken);
                }
                self.doubt(place, &free);
            }
        }
        None
    }

    /// Clears the bit of a place that was found taken, unless it is free by now.
    fn doubt(&self, place: usize, free: &impl Fn(usize) -> bool) {
        let Some(word) = self.words.get(place / BITS) else { return };
        word.fetch_and(!bit(place), Relaxed);
        if free(place) {
            word.fetch_or(bit(place), Relaxed);
        }
    }
}

fn bit(place: usize) -> u64 {
    1 << (place % BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_goes_around_and_remembers() {
        let hints = Hints::new(130, |place| place != 1);
        let mut seen = Vec::new();
        let none = hints.find(
            70,
            |place| {
                seen.push(place);
                None::<()>
            },
            |place| place == 5,
        );
        assert!(none.is_none());
        let expected: Vec<usize> = (70..130).chain(0..1).chain(2..70).collect();
        assert_eq!(seen, expected);
        assert_eq!(hints.find(0, Some, |_| false), Some(5), "only what was free again is left");
        hints.note(129);
        assert_eq!(hints.find(6, Some, |_| false), Some(129));
        hints.note(130_000);
        assert_eq!(Hints::new(0, |_| true).find(3, Some, |_| true), None);
        assert!(Hints::new(0, |_| true).is_empty());
        assert_eq!(hints.len(), 130);
    }
}
