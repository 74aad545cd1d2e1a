//! The blocks and revokes of the running transaction.
//!
//! # Invariants
//! 1. A block is in a shard exactly if its buffer's `tid` is the running transaction's; both change under the shard's
//!    lock.
//! 2. A block is not both a member and revoked: each cancels the other.
//! 3. A member is pinned until its copy is home.

use crate::client::Seal;
use crate::tid::Tid;
use extant_blocks::Buffer;
use extant_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use extant_sync::{Arc, Level, Mutex};
use rustc_hash::{FxHashMap, FxHashSet};

const SHARDS: usize = 16;

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
    shards: [Mutex<FxHashMap<u64, Member>>; SHARDS],
    revoked: Mutex<FxHashSet<u64>>,
    blocks: AtomicU32,
    revokes: AtomicU32,
    /// Blocks whose revoke was paid for, whether or not it was taken back.
    promised: AtomicU64,
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
        Members {
            shards: std::array::from_fn(|_| Mutex::new(Level::JournalList, FxHashMap::default())),
            revoked: Mutex::new(Level::JournalList, FxHashSet::default()),
            blocks: AtomicU32::new(0),
            revokes: AtomicU32::new(0),
            promised: AtomicU64::new(0),
        }
    }
}

impl Members {
    fn shard(&self, nr: u64) -> &Mutex<FxHashMap<u64, Member>> {
        &self.shards[(nr % SHARDS as u64) as usize]
    }

    /// Makes the block a member and notes its seal. True if it was none before.
    pub fn add(&self, tid: Tid, buffer: &Arc<Buffer>, seal: Seal) -> bool {
        let nr = buffer.nr();
        let mut shard = self.shard(nr).lock();
        if buffer.tid() == tid.0 {
            if let (false, Some(member)) = (seal.is_none(), shard.get_mut(&nr)) {
                member.seal = seal;
            }
            return false;
        }
        buffer.set_tid(tid.0);
        let fresh = shard.insert(nr, Member { buffer: Pinned::new(buffer), seal }).is_none();
        drop(shard);
        if self.revokes.load(Ordering::Relaxed) != 0 && self.revoked.lock().remove(&nr) {
            self.revokes.fetch_sub(1, Ordering::Relaxed);
        }
        if fresh {
            self.blocks.fetch_add(1, Ordering::SeqCst);
        }
        fresh
    }

    /// Takes the block out of the transaction and notes that it is revoked. True if it was a member.
    pub fn revoke(&self, nr: u64, record: bool) -> bool {
        let member = self.shard(nr).lock().remove(&nr);
        if let Some(member) = &member {
            member.buffer.buffer().set_tid(0);
            self.blocks.fetch_sub(1, Ordering::Relaxed);
        }
        if record && self.revoked.lock().insert(nr) {
            self.revokes.fetch_add(1, Ordering::Relaxed);
        }
        member.is_some()
    }

    /// Counts blocks that are about to be revoked. Gives how many were counted before.
    pub fn promise_revokes(&self, count: u64) -> u64 {
        self.promised.fetch_add(count, Ordering::Relaxed)
    }

    /// Undoes [`Members::promise_revokes`].
    pub fn take_back(&self, count: u64) {
        self.promised.fetch_sub(count, Ordering::Relaxed);
    }

    /// Whether the transaction changes nothing.
    pub fn is_empty(&self) -> bool {
        self.blocks.load(Ordering::SeqCst) == 0 && self.revokes.load(Ordering::SeqCst) == 0
    }

    /// Forgets how much the transaction held. Called when the successor's number is published, not before, so that who
    /// sees a transaction running and empty may rely on it.
    pub fn reset_counts(&self) {
        self.blocks.store(0, Ordering::SeqCst);
        self.revokes.store(0, Ordering::SeqCst);
        self.promised.store(0, Ordering::SeqCst);
    }

    /// Empties the transaction, but for the counts. No handle is open.
    pub fn take(&self) -> Taken {
        let mut members: Vec<(u64, Member)> = Vec::new();
        for shard in &self.shards {
            members.extend(shard.lock().drain());
        }
        members.sort_unstable_by_key(|(nr, _)| *nr);
        let mut revoked: Vec<u64> = self.revoked.lock().drain().collect();
        revoked.sort_unstable();
        Taken { members, revoked }
    }
}
