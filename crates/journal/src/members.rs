//! The blocks and revokes of the running transaction.
//!
//! For example, block 100 joins transaction 7: it is entered into its shard, and its buffer gets
//! the `tid` 7. Further handles see the `tid` and skip the shard. A revoke of block 100 removes it
//! again.
//!
//! # Invariants
//! 1. A block is in a shard if and only if its buffer's `tid` is the running transaction's; both
//!    change under the shard's lock. Its `seal` there is the one that the buffer's `seal_tag`
//!    names, which is stored before `tid`. A thread that finds both as it needs them can therefore
//!    skip the shard.
//! 2. A block is not both a member and revoked: each cancels the other.
//! 3. A member is pinned until its copy is home.
//! 4. `content` is set if the transaction has any content. It may stay set after all content was
//!    removed again; a commit then finds the transaction empty.
//!
//! # Locking
//! Each shard has one mutex, taken by a block's first handle in a transaction and by revokes. The
//! words that all threads read are written once per transaction.

use crate::seal::Seal;
use crate::tid::Tid;
use extant_blocks::Buffer;
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_sync::{Arc, CachePadded, Level, Mutex, Sharded};
use rustc_hash::{FxHashMap, FxHashSet};

const SHARD_BITS: u32 = 6;

/// A reference to a buffer that pins it in the cache.
#[derive(Debug)]
pub(crate) struct Pinned(Arc<Buffer>);

impl Pinned {
    pub fn new(buffer: &Arc<Buffer>) -> Pinned {
        buffer.pin();
        Pinned(Arc::clone(buffer))
    }

    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.unpin();
    }
}

#[derive(Debug)]
pub(crate) struct Member {
    pub buffer: Pinned,
    pub seal: Seal,
}

#[derive(Debug)]
pub(crate) struct Members {
    shards: [CachePadded<Mutex<Shard>>; 1 << SHARD_BITS],
    content: CachePadded<AtomicBool>,
    /// Blocks whose revoke was paid for, including cancelled ones, by shards of threads.
    promised: Sharded<AtomicU64>,
}

#[derive(Debug, Default)]
struct Shard {
    members: FxHashMap<u64, Member>,
    revoked: FxHashSet<u64>,
}

/// The content of a frozen transaction.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// In ascending order of block numbers.
    pub members: Vec<(u64, Member)>,
    /// In ascending order.
    pub revoked: Vec<u64>,
}

impl Default for Members {
    fn default() -> Self {
        let shard = |_| CachePadded::new(Mutex::new(Level::JournalList, Shard::default()));
        Members {
            shards: std::array::from_fn(shard),
            content: CachePadded::new(AtomicBool::new(false)),
            promised: Sharded::default(),
        }
    }
}

impl Members {
    /// Returns the shard of a block. Blocks of one kind are at regular distances; the
    /// multiplication spreads them over the shards.
    #[inline]
    fn shard(&self, nr: u64) -> &Mutex<Shard> {
        &self.shards[(nr.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SHARD_BITS)) as usize]
    }

    /// Makes the block a member and sets its seal. Returns whether it was no member before.
    pub fn add(&self, tid: Tid, buffer: &Arc<Buffer>, seal: Seal) -> bool {
        let nr = buffer.nr();
        let mut shard = self.shard(nr).lock();
        if buffer.tid() == tid.0 {
            if let (false, Some(member)) = (seal.is_none(), shard.members.get_mut(&nr)) {
                member.seal = seal;
                buffer.set_seal_tag(seal.tag());
            }
            return false;
        }
        buffer.set_seal_tag(seal.tag());
        buffer.set_tid(tid.0);
        if !shard.revoked.is_empty() {
            shard.revoked.remove(&nr);
        }
        shard.members.insert(nr, Member { buffer: Pinned::new(buffer), seal }).is_none()
    }

    /// Returns whether the block is a member with this seal, from its buffer and without a lock.
    #[inline]
    pub fn has(tid: Tid, buffer: &Buffer, seal: Seal) -> bool {
        buffer.tid() == tid.0
            && (seal.is_none() || matches!(seal.tag(), tag if tag != 0 && tag == buffer.seal_tag()))
    }

    /// Removes the block from the transaction and, with `record`, adds a revoke. Returns whether it
    /// was a member.
    pub fn revoke(&self, nr: u64, record: bool) -> bool {
        let mut shard = self.shard(nr).lock();
        if record {
            shard.revoked.insert(nr);
        }
        let member = shard.members.remove(&nr);
        if let Some(member) = &member {
            member.buffer.buffer().set_tid(0);
        }
        member.is_some()
    }

    /// Counts blocks that threads of a shard are about to revoke. Returns the count before.
    pub fn promise_revokes(&self, shard: usize, count: u64) -> u64 {
        self.promised.at(shard).fetch_add(count, Ordering::Relaxed)
    }

    /// Undoes [`Members::promise_revokes`].
    pub fn take_back(&self, shard: usize, count: u64) {
        self.promised.at(shard).fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns true only if the transaction changes nothing.
    pub fn is_empty(&self) -> bool {
        !self.content.load(Ordering::SeqCst)
    }

    /// Notes that the transaction changes something. Returns true for the first change.
    #[inline]
    pub fn note_content(&self) -> bool {
        self.is_empty() && !self.content.swap(true, Ordering::SeqCst)
    }

    /// Resets the counts of the transaction. Must be called when the successor's number is
    /// published, not before, so that a thread that sees a transaction running and empty can rely
    /// on it.
    pub fn reset_counts(&self) {
        self.found_empty();
        self.promised.iter().for_each(|promised| promised.store(0, Ordering::Relaxed));
    }

    /// Notes that all content was removed again. No handle may be open.
    pub fn found_empty(&self) {
        self.content.store(false, Ordering::SeqCst);
    }

    /// Removes and returns the content, except for the counts. No handle may be open.
    pub fn take(&self) -> Taken {
        let mut taken = Taken::default();
        for shard in &self.shards {
            let Shard { members, revoked } = &mut *shard.lock();
            taken.members.extend(members.drain());
            taken.revoked.extend(revoked.drain());
        }
        taken.members.sort_unstable_by_key(|(nr, _)| *nr);
        taken.revoked.sort_unstable();
        taken
    }
}
