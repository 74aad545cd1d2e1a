//! A cached block.
//!
//! # Invariants
//! While a snapshot of the bytes exists, they are replaced, not changed: a snapshot is frozen. For
//! example, the journal takes a snapshot of block 100 for transaction 7; a handle of transaction 8
//! that changes the block gets a copy.

use extant_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use extant_sync::{Arc, Level, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A block in memory.
pub struct Buffer {
    nr: u64,
    /// The position in the ring of its shard, protected by the shard's lock.
    place: AtomicUsize,
    data: RwLock<Arc<[u8]>>,
    /// The transaction that the block joined last; 0 for none.
    tid: AtomicU64,
    /// The journal's tag for the block's seal in that transaction.
    seal_tag: AtomicU64,
    /// The block stays cached while this is not 0.
    pins: AtomicU32,
    /// Used since the last pass of the clock's hand.
    referenced: AtomicBool,
    /// The bytes passed a check or were made in memory.
    verified: AtomicBool,
}

/// A block's bytes, locked for reading.
pub struct BufferRead<'a>(RwLockReadGuard<'a, Arc<[u8]>>);

/// A block's bytes, locked for writing. Earlier snapshots keep the old bytes.
pub struct BufferWrite<'a>(RwLockWriteGuard<'a, Arc<[u8]>>);

impl Buffer {
    pub(super) fn new(nr: u64, bytes: Arc<[u8]>, verified: bool) -> Self {
        Buffer {
            nr,
            place: AtomicUsize::new(0),
            data: RwLock::new(Level::Buffer, bytes),
            tid: AtomicU64::new(0),
            seal_tag: AtomicU64::new(0),
            pins: AtomicU32::new(0),
            referenced: AtomicBool::new(true),
            verified: AtomicBool::new(verified),
        }
    }

    /// Returns the block's number.
    #[inline]
    pub fn nr(&self) -> u64 {
        self.nr
    }

    /// Locks the bytes for reading.
    #[inline]
    pub fn read(&self) -> BufferRead<'_> {
        BufferRead(self.data.read())
    }

    /// Returns a frozen snapshot of the bytes. Cheap.
    #[inline]
    pub fn snapshot(&self) -> Arc<[u8]> {
        Arc::clone(&self.data.read())
    }

    /// Locks the bytes for writing. Must be called only by the journal, which must know of every
    /// change first.
    #[doc(hidden)]
    #[inline]
    pub fn write_unlogged(&self) -> BufferWrite<'_> {
        BufferWrite(self.data.write())
    }

    /// Keeps the block cached until [`Buffer::unpin`].
    #[inline]
    pub fn pin(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes one pin.
    #[inline]
    pub fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "block {} unpinned more often than pinned", self.nr);
    }

    /// Returns whether the block is pinned.
    #[inline]
    pub fn pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Returns the transaction that the block joined last; 0 for none.
    #[inline]
    pub fn tid(&self) -> u64 {
        self.tid.load(Ordering::Acquire)
    }

    /// Sets the transaction that the block joins.
    #[inline]
    pub fn set_tid(&self, tid: u64) {
        self.tid.store(tid, Ordering::Release);
    }

    /// Returns the tag set by [`Buffer::set_seal_tag`].
    #[inline]
    pub fn seal_tag(&self) -> u64 {
        self.seal_tag.load(Ordering::Acquire)
    }

    /// Sets the tag of the block's seal. The journal must set it before the transaction.
    #[inline]
    pub fn set_seal_tag(&self, tag: u64) {
        self.seal_tag.store(tag, Ordering::Release);
    }

    /// Returns the position in the ring. Relaxed: accessed under the shard's lock.
    pub(super) fn place(&self) -> usize {
        self.place.load(Ordering::Relaxed)
    }

    pub(super) fn set_place(&self, place: usize) {
        self.place.store(place, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn touch(&self) {
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }

    /// Clears the mark of use. Returns whether it was set.
    pub(super) fn untouch(&self) -> bool {
        self.referenced.swap(false, Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Acquire)
    }

    pub(super) fn set_verified(&self) {
        self.verified.store(true, Ordering::Release);
    }

    /// Returns the bytes of a buffer known only to readers of the cache. No thread holds its lock
    /// for long, so the order among buffers does not matter.
    pub(super) fn unverified_bytes(&self) -> Arc<[u8]> {
        Arc::clone(&self.data.read_nested())
    }

    /// Zeroes a block whose old contents no longer matter. All former users gave it up, so the
    /// order among buffers does not matter.
    pub(super) fn zero(&self) {
        let mut bytes = BufferWrite(self.data.write_nested());
        bytes.fill(0);
        self.set_verified();
    }
}

impl Deref for BufferRead<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl BufferRead<'_> {
    /// Returns a frozen snapshot of the bytes. Cheap.
    pub fn snapshot(&self) -> Arc<[u8]> {
        Arc::clone(&self.0)
    }
}

impl Deref for BufferWrite<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for BufferWrite<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.0)
    }
}

impl BufferWrite<'_> {
    /// Returns a frozen snapshot of the bytes. The next change copies them.
    pub fn snapshot(&self) -> Arc<[u8]> {
        Arc::clone(&self.0)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Buffer { nr, tid, pins, verified, .. } = self;
        f.debug_struct("Buffer")
            .field("nr", nr)
            .field("tid", tid)
            .field("pins", pins)
            .field("verified", verified)
            .finish_non_exhaustive()
    }
}
