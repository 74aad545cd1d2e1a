//! A few words that readers copy without a lock, and always see as one writer left them.
//!
//! # Invariants
//! - Writers exclude each other by a lock of their own; the version is odd during a write.
//! - A reader that copied the words between two reads of the same even version has the words of one
//!   write.
//!
//! # Memory order
//! A writer makes the version odd before it stores a word (with a release fence in between), and
//! even again with release. A reader that saw any of the new words sees a changed version at its
//! second read: the reader's acquire fence, after the words, pairs with the writer's fence. A
//! reader that starts with the even version sees all words stored before that version.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Copies that a reader attempts before it gives up, since the writer may have been preempted.
const TRIES: u32 = if cfg!(loom) { 2 } else { 64 };

/// `N` words under a version.
#[derive(Debug)]
pub struct SeqCell<const N: usize> {
    version: AtomicU32,
    words: [AtomicU64; N],
}

impl<const N: usize> SeqCell<N> {
    /// Makes a cell with these words.
    pub fn new(words: [u64; N]) -> Self {
        SeqCell { version: AtomicU32::new(0), words: words.map(AtomicU64::new) }
    }

    /// Returns a copy of the words. Returns `None` if a write stays in progress; the caller then
    /// reads under the writers' lock.
    #[inline]
    pub fn read(&self) -> Option<[u64; N]> {
        self.read_first()
    }

    /// Returns a copy of the first `K` words; `K` must be at most `N`. Returns `None` as
    /// [`SeqCell::read`].
    #[inline]
    pub fn read_first<const K: usize>(&self) -> Option<[u64; K]> {
        const { assert!(K <= N) };
        for _ in 0..TRIES {
            let before = self.version.load(Ordering::Acquire);
            let words = core::array::from_fn(|n| self.words[n].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.version.load(Ordering::Relaxed) == before {
                return Some(words);
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Returns the first word alone, as some writer left it. Acquire: a reader that sees a writer's
    /// store also sees all that the writer did before, by the release fence before the stores.
    #[inline]
    pub fn first(&self) -> u64 {
        self.words.first().map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Writes the words if any of them differs. The caller must hold the lock that excludes other
    /// writers.
    pub fn write(&self, words: [u64; N]) {
        let same =
            self.words.iter().zip(&words).all(|(old, new)| old.load(Ordering::Relaxed) == *new);
        if same {
            return;
        }
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.words.iter().zip(words).for_each(|(old, new)| old.store(new, Ordering::Relaxed));
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn readers_see_words_of_one_writing() {
        let cell = SeqCell::<4>::new([0; 4]);
        let writings = crate::times(20_000).into();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < writings {
                        if let Some(words) = cell.read() {
                            assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
                            assert!(words[0] >= last && cell.first() >= words[0]);
                            last = words[0];
                        }
                    }
                });
            }
            (1..=writings).for_each(|n| cell.write([n; 4]));
        });
    }
}
