//! The blocks and revokes of the running transaction.
//!
//! # Invariants
//! 1. A block is in a shard exactly if its buffer's `tid` is the running transaction's; both change
//!    under the shard's lock. Its `seal` there is the one that the buffer's `seal_tag` names; that
//!    is stored before `tid`. So who finds both as it wants them need not look into the shard.
//! 2. A block is not both a member and revoked: each cancels the other.
//! 3. A member is pinned until its copy is home.
//! 4. `content` is set if the transaction holds anything. It may be set though everything was taken
//!    out again: a commit then finds out.
//!
//! # Locking
//! One mutex for each shard, taken by a block's first handle in a transaction and by those that
//! revoke. What all threads look at is written once per transaction.

use crate::client::Seal;
use crate::tid::Tid;
use extant_blocks::Buffer;
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_sync::{Arc, CachePadded, Level, Mutex, Sharded};
use rustc_hash::{FxHashMap, FxHashSet};

const SHARD_BITS: u32 = 6;

/// A reference to a buffer that keeps it in the cache.
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
    /// Blocks whose revoke was paid for, whether or not it was taken back, by shards of threads.
    promised: Sharded<AtomicU64>,
}

#[derive(Debug, Default)]
struct Shard {
    members: FxHashMap<u64, Member>,
    revoked: FxHashSet<u64>,
}

/// What a transaction held when it was frozen.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// By block number, ascending.
    pub members: Vec<(u64, Member)>,
    /// Ascending.
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
    /// Blocks of one kind lie at regular distances; multiplied they do not meet in one shard.
    #[inline]
    fn shard(&self, nr: u64) -> &Mutex<Shard> {
        &self.shards[(nr.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SHARD_BITS)) as usize]
    }

    /// Makes the block a member and notes its seal. True if it was none before.
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

    /// Whether the block is a member with that seal, as its buffer says without a lock.
    #[inline]
    pub fn has(tid: Tid, buffer: &Buffer, seal: Seal) -> bool {
        buffer.tid() == tid.0
            && (seal.is_none() || matches!(seal.tag(), tag if tag != 0 && tag == buffer.seal_tag()))
    }

    /// Takes the block out of the transaction and notes that it is revoked. True if it was a
    /// member.
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

    /// Counts blocks that are about to be revoked by threads of a shard. Gives how many these had
    /// counted before.
    pub fn promise_revokes(&self, shard: usize, count: u64) -> u64 {
        self.promised.at(shard).fetch_add(count, Ordering::Relaxed)
    }

    /// Undoes [`Members::promise_revokes`].
    pub fn take_back(&self, shard: usize, count: u64) {
        self.promised.at(shard).fetch_sub(count, Ordering::Relaxed);
    }

    /// The transaction changes nothing, for sure.
    pub fn is_empty(&self) -> bool {
        !self.content.load(Ordering::SeqCst)
    }

    /// Notes that the transaction changes something. True for the first in it.
    #[inline]
    pub fn note_content(&self) -> bool {
        self.is_empty() && !self.content.swap(true, Ordering::SeqCst)
    }

    /// Forgets how much the transaction held. Called when the successor's number is published, not
    /// before, so that who sees a transaction running and empty may rely on it.
    pub fn reset_counts(&self) {
        self.found_empty();
        self.promised.iter().for_each(|promised| promised.store(0, Ordering::Relaxed));
    }

    /// All that the transaction held was taken out again. No handle is open.
    pub fn found_empty(&self) {
        self.content.store(false, Ordering::SeqCst);
    }

    /// Empties the transaction, but for the counts. No handle is open.
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
