//! Sharded values: about one copy of a value for each processor.
//!
//! A thread is assigned an index at its first use and keeps it. Indices are assigned round-robin,
//! and each structure uses their low bits, so as many threads as it has shards share none.
//!
//! # The number of shards
//! It is a property of each structure, fixed when the structure is made: the number in force on the
//! making thread ([`shard_count`]). By default that follows from the processors. [`with_shards`]
//! replaces it for all structures that a call makes, such as those of one file system. For example,
//! a file system opened with 128 shards runs the code of 128 processors on a machine with two,
//! beside one that was opened with the default.

use crate::{CachePadded, LazyLock};
use core::fmt;
// A static, which cannot be a type of the model checker: models assign shards in the same way.
use core::sync::atomic::{AtomicUsize, Ordering};
use std::cell::Cell;

/// The greatest number of shards, for any number of processors.
pub const MAX_SHARDS: usize = 128;

static BY_PROCESSORS: LazyLock<usize> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    processors.clamp(1, MAX_SHARDS).next_power_of_two()
});

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    /// The number that [`with_shards`] has put into force; 0 for the number by processors.
    static CHOSEN: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of shards of structures that this thread makes now: a power of two, up to
/// [`MAX_SHARDS`]. Without [`with_shards`] it is at least the number of processors. A structure
/// that exists has the number of its construction.
pub fn shard_count() -> usize {
    match CHOSEN.try_with(Cell::get).unwrap_or(0) {
        0 => *BY_PROCESSORS,
        chosen => chosen,
    }
}

/// Runs `make` with another number of shards for all structures that it makes on this thread. The
/// number is rounded up to a power of two, and is [`MAX_SHARDS`] at most; 0 stands for the number
/// by processors.
pub fn with_shards<R>(count: usize, make: impl FnOnce() -> R) -> R {
    /// Restores the number in force before, also after a panic.
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = CHOSEN.try_with(|chosen| chosen.set(self.0));
        }
    }
    let chosen = if count == 0 { 0 } else { count.min(MAX_SHARDS).next_power_of_two() };
    let _restore = Restore(CHOSEN.try_with(|now| now.replace(chosen)).unwrap_or(0));
    make()
}

/// Returns this thread's index, less than [`MAX_SHARDS`]. A structure with fewer shards uses its
/// low bits ([`Sharded::at`]).
#[inline]
pub fn shard_index() -> usize {
    let mine = MINE.try_with(Cell::get).unwrap_or(0);
    if mine != usize::MAX { mine } else { assign_shard() }
}

#[cold]
fn assign_shard() -> usize {
    let index = NEXT.fetch_add(1, Ordering::Relaxed) & (MAX_SHARDS - 1);
    let _ = MINE.try_with(|mine| mine.set(index));
    index
}

/// Gives this thread another index: threads that share some work take successive ones, so that no
/// two of them use the same shard by chance. Its high bits are dropped.
pub fn set_shard_index(index: usize) {
    let _ = MINE.try_with(|mine| mine.set(index & (MAX_SHARDS - 1)));
}

/// One value for each shard.
pub struct Sharded<T> {
    shards: Box<[CachePadded<T>]>,
}

impl<T> Sharded<T> {
    /// Makes each shard's value from its index.
    pub fn new(make: impl FnMut(usize) -> T) -> Self {
        let mut make = make;
        Sharded { shards: (0..shard_count()).map(|index| CachePadded::new(make(index))).collect() }
    }

    /// Returns the number of shards, a power of two.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "there is at least one shard")]
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// Returns the index of this thread's shard, less than the number of shards.
    #[inline]
    pub fn local_index(&self) -> usize {
        shard_index() & (self.shards.len() - 1)
    }

    /// Returns the value of this thread's shard. Other threads may share it.
    #[inline]
    pub fn local(&self) -> &T {
        self.at(shard_index())
    }

    /// Returns the value of the shard `index` modulo the number of shards.
    #[inline]
    pub fn at(&self, index: usize) -> &T {
        &self.shards[index & (self.shards.len() - 1)]
    }

    /// Returns the values of all shards in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().map(|shard| &shard.0)
    }
}

impl<T: Default> Default for Sharded<T> {
    fn default() -> Self {
        Sharded::new(|_| T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Sharded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_shard() {
        assert!(shard_count().is_power_of_two());
        assert!(shard_index() < MAX_SHARDS);
        assert_eq!(shard_index(), shard_index());
        let sharded: Sharded<AtomicUsize> = Sharded::default();
        sharded.local().fetch_add(1, Ordering::Relaxed);
        assert_eq!(sharded.at(shard_index()).load(Ordering::Relaxed), 1);
        assert_eq!(sharded.iter().count(), shard_count());
        assert!(std::ptr::eq(sharded.at(shard_count()), sharded.at(0)));
    }

    #[test]
    fn the_number_of_shards_is_that_of_the_construction() {
        let number = |count| with_shards(count, || Sharded::<u8>::default().len());
        assert_eq!([1, 2, 3, 128, 1000, usize::MAX].map(number), [1, 2, 4, 128, 128, 128]);
        assert_eq!(number(0), shard_count());
        let (one, many) = with_shards(1, || {
            let many = with_shards(64, Sharded::<AtomicUsize>::default);
            (Sharded::<AtomicUsize>::default(), many)
        });
        assert_eq!((one.len(), one.local_index(), many.len()), (1, 0, 64));
        assert!(many.local_index() < 64 && std::ptr::eq(many.local(), many.at(shard_index())));
        let made = std::panic::catch_unwind(|| with_shards(1, || panic!("planted")));
        assert!(made.is_err() && Sharded::<u8>::default().len() == *BY_PROCESSORS);
        // Another thread makes structures of its own.
        with_shards(1, || {
            let other = std::thread::spawn(shard_count).join();
            assert_eq!(other.ok(), Some(*BY_PROCESSORS));
        });
    }
}
