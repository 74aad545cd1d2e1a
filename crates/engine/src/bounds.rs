//! Bounds of long work: distinct blocks of the device, and the patience of the caller. Bounds of
//! messages.
//!
//! An image may map one block in many places, so that a few blocks stand for billions. A [`Walk`]
//! counts the blocks that it visits: of blocks 7, 8, 9, 8 it refuses the fourth. Maps of valid
//! files never lead to a block twice.
//!
//! # Invariants
//! - A walk makes at most twice as many steps as it visits distinct blocks, and [`KEPT`] more.
//! - A walk takes memory for [`KEPT`] blocks at most. Of more blocks it keeps a sample: those with
//!   a hash that ends with so many zero bits. The sample also tells how many distinct blocks were
//!   met, to a few percent. The hash has a seed of its own each time, so that no image can be made
//!   to evade the sample.

use crate::error::{Errno, Result};
use extant_format::error::Corrupt;
use extant_format::types::{BlockNr, InodeNr};
use extant_sync::atomic::{AtomicU64, Ordering};
use foldhash::fast::RandomState;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;

/// Blocks that a walk keeps in memory at most: 1 MiB.
const KEPT: usize = 1 << 16;

/// Steps of a walk before the caller is asked for its patience: a signal that interrupts a system
/// call of a short operation must not fail it.
const PATIENT_STEPS: u64 = 256;

/// Messages of a kind that are told one by one.
pub const MAX_REMARKS: u64 = 20;

/// Kinds of messages about things of an image, which may have millions of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remark {
    /// Damage that an operation met.
    Damage,
    /// Hash trees of directories that cannot be walked.
    HashTree,
    /// Blocks that do not have the hash that they should have.
    Verity,
    /// Groups that are not used any more, and wrong counts of groups.
    Group,
    /// Owners with a wrong usage.
    Owner,
    /// Inodes of attributes' values that are left behind.
    Value,
    /// Files with content that could not be written.
    Writeback,
    /// Inodes without a name that could not be freed.
    Orphan,
}

impl Remark {
    const ALL: [(Remark, &str); 8] = [
        (Remark::Damage, "operations met damage"),
        (Remark::HashTree, "searches met a corrupt hash tree"),
        (Remark::Verity, "blocks did not have the hash that they should have"),
        (Remark::Group, "groups were not used any more"),
        (Remark::Owner, "owners were counted wrong"),
        (Remark::Value, "inodes of attributes' values were left behind"),
        (Remark::Writeback, "writes of files failed"),
        (Remark::Orphan, "unlinked inodes could not be freed"),
    ];
}

/// How many messages of each kind there were: the first [`MAX_REMARKS`] are told one by one, the
/// others by their number at the end.
#[derive(Debug, Default)]
pub struct Remarks([AtomicU64; Remark::ALL.len()]);

impl Remarks {
    /// Counts a message; whether it is to be told now.
    pub fn tells(&self, kind: Remark) -> bool {
        // Relaxed, here and below: the counts order nothing.
        self.0
            .get(kind as usize)
            .is_none_or(|count| count.fetch_add(1, Ordering::Relaxed) < MAX_REMARKS)
    }

    /// Tells how many messages were counted only. The counts begin anew.
    pub fn sum_up(&self) {
        for (count, (_, what)) in self.0.iter().zip(Remark::ALL) {
            let more = count.swap(0, Ordering::Relaxed).saturating_sub(MAX_REMARKS);
            if more > 0 {
                tracing::warn!("{more} more {what}; the first {MAX_REMARKS} were told one by one");
            }
        }
    }
}

/// Refuses blocks that are met again.
#[derive(Debug)]
pub struct Walk {
    ino: InodeNr,
    met: HashSet<u64, RandomState>,
    /// Low bits of a hash that are zero in the sample.
    mask: u64,
    steps: Steps,
}

impl Walk {
    /// A walk over blocks of an inode.
    pub fn of(ino: InodeNr) -> Walk {
        Walk {
            ino,
            met: HashSet::with_hasher(RandomState::default()),
            mask: 0,
            steps: Steps::default(),
        }
    }

    /// The next block.
    ///
    /// # Errors
    /// `Corrupt` if the walk has met it before, or has met many blocks again; EINTR if the caller
    /// has no more patience.
    pub fn enter(&mut self, block: u64) -> Result<()> {
        self.steps.next()?;
        let is_new = self.met.hasher().hash_one(block) & self.mask != 0 || self.met.insert(block);
        if !is_new || self.steps.0 > self.bound() {
            return Err(self.repeated(block));
        }
        if self.met.len() > KEPT {
            self.thin_out();
        }
        Ok(())
    }

    /// The next blocks.
    ///
    /// # Errors
    /// As [`Walk::enter`].
    pub fn enter_all(&mut self, mut blocks: Range<u64>) -> Result<()> {
        blocks.try_for_each(|block| self.enter(block))
    }

    /// Steps that the distinct blocks met so far allow.
    fn bound(&self) -> u64 {
        let distinct = (self.met.len() as u64).saturating_mul(self.mask.saturating_add(1));
        distinct.saturating_mul(2).saturating_add(KEPT as u64)
    }

    #[cold]
    fn thin_out(&mut self) {
        self.mask = self.mask << 1 | 1;
        let (hasher, mask) = (self.met.hasher().clone(), self.mask);
        self.met.retain(|block| hasher.hash_one(block) & mask == 0);
    }

    #[cold]
    fn repeated(&self, block: u64) -> crate::error::Error {
        Corrupt::new("block map")
            .field("block in several places")
            .found(block)
            .at_inode(self.ino)
            .at_block(BlockNr(block))
            .into()
    }
}

/// Steps of a long operation: each may be the last one that the caller waits for.
#[derive(Debug, Default)]
pub struct Steps(u64);

impl Steps {
    /// Counts a step.
    ///
    /// # Errors
    /// EINTR if the caller has no more patience; not before there were many steps.
    #[inline]
    pub fn next(&mut self) -> Result<()> {
        self.0 += 1;
        if self.0 > PATIENT_STEPS { check_interrupt() } else { Ok(()) }
    }
}

/// Tells whether long operations of a thread must end.
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

thread_local! {
    static INTERRUPT: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
    /// Number of pieces of work that must not end half-way, each within the one before.
    static UNINTERRUPTED: Cell<u32> = const { Cell::new(0) };
}

/// Has long operations of this thread end with EINTR once `asked` answers true. They ask now and
/// then, so the answer must be cheap. `None` takes that back. Returns the function that was asked
/// before.
///
/// Short operations do not ask. An operation that ends so has changed nothing, but for those that
/// say how far they came.
///
/// ```
/// use extant_engine::set_interrupt;
/// use std::sync::Arc;
/// use std::time::{Duration, Instant};
///
/// let end = Instant::now() + Duration::from_secs(5);
/// let before = set_interrupt(Some(Arc::new(move || Instant::now() > end)));
/// // Here, this thread lists directories of an image that it does not trust.
/// set_interrupt(before);
/// ```
pub fn set_interrupt(asked: Option<Interrupt>) -> Option<Interrupt> {
    INTERRUPT.replace(asked)
}

/// Runs work that must not end half-way: nothing in it ends with EINTR.
#[inline]
pub fn uninterrupted<T>(work: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            UNINTERRUPTED.set(UNINTERRUPTED.get() - 1);
        }
    }
    UNINTERRUPTED.set(UNINTERRUPTED.get() + 1);
    let _leave = Leave;
    work()
}

/// EINTR if the caller has no more patience.
///
/// # Errors
/// That one.
pub fn check_interrupt() -> Result<()> {
    if UNINTERRUPTED.get() == 0
        && INTERRUPT.with_borrow(|asked| asked.as_ref().is_some_and(|asked| asked()))
    {
        Err(Errno::Intr.into())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk() -> Walk {
        Walk::of(InodeNr(12))
    }

    #[test]
    fn messages_of_a_kind_are_told_until_they_are_many() {
        let remarks = Remarks::default();
        let told = (0..90).filter(|_| remarks.tells(Remark::Verity)).count() as u64;
        assert_eq!(told, MAX_REMARKS);
        assert!(remarks.tells(Remark::Orphan), "each kind has a count of its own");
        remarks.sum_up();
        assert!(remarks.tells(Remark::Verity), "the counts begin anew");
    }

    #[test]
    fn a_block_met_again_is_refused() {
        let mut walk = walk();
        walk.enter_all(7..10).unwrap();
        let error = walk.enter(8).unwrap_err();
        assert_eq!(
            error.to_string(),
            "corrupt: corrupt block map, block in several places 8, inode 12, block 8"
        );
    }

    #[test]
    fn honest_walks_of_any_length_pass() {
        let mut walk = walk();
        walk.enter_all(0..5_000_000).unwrap();
        assert!(walk.met.len() <= KEPT && walk.met.len() > KEPT / 4, "{}", walk.met.len());
    }

    #[test]
    fn steps_are_bounded_by_distinct_blocks() {
        let mut walk = walk();
        walk.enter_all(0..1_000_000).unwrap();
        // A single block that happens not to be in the sample may come many times, but not for
        // ever.
        let spared = (0..1_000_000).find(|block| !walk.met.contains(block)).unwrap();
        let more = (0..10_000_000).take_while(|_| walk.enter(spared).is_ok()).count();
        assert!((500_000..2_000_000).contains(&more), "{more}");
    }

    #[test]
    fn many_blocks_met_again_are_noticed_at_once() {
        let mut walk = walk();
        walk.enter_all(0..1_000_000).unwrap();
        let again = (0..1_000_000).take_while(|block| walk.enter(*block).is_ok()).count();
        assert!(again < 10_000, "{again}");
    }

    #[test]
    fn long_walks_ask_whether_to_go_on() {
        let before = set_interrupt(Some(Arc::new(|| true)));
        let mut walk = walk();
        walk.enter_all(0..PATIENT_STEPS).unwrap();
        assert!(walk.enter(PATIENT_STEPS).unwrap_err().is(Errno::Intr));
        set_interrupt(before);
        walk.enter(PATIENT_STEPS + 1).unwrap();
    }
}
