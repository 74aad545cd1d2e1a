//! Hints to the free places among many: a bitmap whose bits are cleared late.
//!
//! # Invariants
//! The bit of a free place is set, except between a thread's failed attempt to take the place and
//! that thread's second look. A set bit guarantees nothing: taking a place leaves its bit set, and
//! the next thread that finds the place taken clears the bit. A place that is taken and freed by
//! turns thus costs the bitmap no write, and searches visit a place that stays taken only once.
//!
//! For example, a thread takes place 5 and leaves its bit. The next search tries place 5, fails,
//! clears the bit and looks again. If place 5 was freed meanwhile, the search sets the bit again.
//!
//! # Memory order
//! A thread that frees a place does so by a read-modify-write, then reads the place's bit. A thread
//! that doubts a place clears its bit, then looks at the place by a read-modify-write that may
//! change nothing. Both acquire and release. One of the two comes first in the modification order
//! of the place:
//!
//! - The freeing comes first. Then the look sees the place free, and sets the bit again.
//! - The look comes first. Then the clearing happened before the freeing, which reads a clear bit
//!   and sets it.
//!
//! The bits themselves therefore need no ordering. A thread that reaches a place by other means
//! than its bit must have other reasons to see it free.

use crate::atomic::{AtomicU64, Ordering::Relaxed};

const BITS: usize = u64::BITS as usize;

/// A bitmap of places that may be free. See the module's documentation.
#[derive(Debug)]
pub struct Hints {
    words: Box<[AtomicU64]>,
    len: usize,
}

impl Hints {
    /// Makes hints for `len` places, with a bit for each place for which `free` returns true.
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

    /// Returns the number of places.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no places.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Notes that a place was freed. The caller must have freed it by a read-modify-write that
    /// acquires and releases.
    #[inline]
    pub fn note(&self, place: usize) {
        let Some(word) = self.words.get(place / BITS) else { return };
        if word.load(Relaxed) & bit(place) == 0 {
            word.fetch_or(bit(place), Relaxed);
        }
    }

    /// Returns the first place that `take` succeeds in taking, from `start` on and around. A place
    /// that `take` fails to take is doubted: `free` looks at it again, and must do so by a
    /// read-modify-write that acquires and releases. Each place is tried at most once.
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

    /// Clears the bit of a place that was found taken, and sets it again if the place is free by
    /// now.
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
        assert_eq!(
            hints.find(0, Some, |_| false),
            Some(5),
            "only the place that was free again is left"
        );
        hints.note(129);
        assert_eq!(hints.find(6, Some, |_| false), Some(129));
        hints.note(130_000);
        assert_eq!(Hints::new(0, |_| true).find(3, Some, |_| true), None);
        assert!(Hints::new(0, |_| true).is_empty());
        assert_eq!(hints.len(), 130);
    }
}
