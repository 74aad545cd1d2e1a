//! The cache of metadata blocks.
//!
//! For example, two threads read the absent block 100. The first registers a load, reads the device
//! and checks the bytes; the second waits for that load and gets the same [`Buffer`].
//!
//! # Invariants
//! - A block has at most one live [`Buffer`]: a buffer leaves its shard only while it has no other
//!   references (which [`ArcTable`] ensures), except through [`Cache::forget`], whose caller gave
//!   up the block.
//! - A buffer that [`Cache::read`] or [`Cache::peek`] returns holds bytes that passed a check, or
//!   that were made in memory. Blocks read ahead stay unverified until their first reader's check.
//! - A block that fails to load, or fails its check, leaves no trace.
//!
//! # Locking
//! A cached block is found without a lock, with one change of its own reference count. Each shard
//! has one lock (`CacheShard`) for changes, inside which the table's own lock (`Leaf`) is taken.
//! The device is read and checks run outside of it: the first reader of an absent block registers a
//! load, and other readers wait for that load.

mod buffer;
mod load;
mod shard;

pub use buffer::{Buffer, BufferRead, BufferWrite};

use crate::BlockDevice;
use extant_sync::{
    Arc, ArcTable, CachePadded, Level, MemoryPressure, Mutex, OnceLock, ShardedCounter, levels,
    shard_count,
};
use load::{Load, Loading, Outcome};
use shard::{Blocks, Shard};
use std::fmt;
use std::io;

/// The most bytes that one call reads ahead.
const MAX_READ_AHEAD: usize = 1 << 20;

/// Ranges of more blocks than this are forgotten by a pass over all cached blocks, instead of by
/// number.
const FORGET_BY_NUMBER: u64 = 256;

/// A bounded cache of the metadata blocks of one device, by block number.
///
/// Its capacity limits the unused blocks; pinned and referenced ones stay, whatever their number.
pub struct Cache {
    device: Arc<dyn BlockDevice>,
    block_size: usize,
    blocks: Arc<Blocks>,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    counters: Counters,
    /// Told of evictions, if it was named.
    pressure: OnceLock<Arc<MemoryPressure>>,
}

#[derive(Debug, Default)]
struct Counters {
    hits: ShardedCounter,
    misses: ShardedCounter,
    read_ahead: ShardedCounter,
    evictions: ShardedCounter,
}

/// Contents and counts of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks cached.
    pub blocks: u64,
    /// Bytes cached.
    pub bytes: u64,
    /// Pinned blocks.
    pub pinned: u64,
    /// Reads that found their block.
    pub hits: u64,
    /// Reads that went to the device.
    pub misses: u64,
    /// Blocks read ahead.
    pub read_ahead: u64,
    /// Blocks evicted for others.
    pub evictions: u64,
}

impl Cache {
    /// Makes a cache of `device`'s blocks of `block_size` bytes, which must not be 0, with about
    /// `capacity_bytes`.
    pub fn new(
        device: Arc<dyn BlockDevice>,
        block_size: usize,
        capacity_bytes: usize,
    ) -> Arc<Cache> {
        let block_size = block_size.max(1);
        let blocks = capacity_bytes / block_size;
        let shards = shards(shard_count(), blocks);
        let capacity = blocks.div_ceil(shards).max(1);
        let blocks = Arc::new(ArcTable::new(Level::Leaf, shards));
        let shard = |_| {
            CachePadded::new(Mutex::new(Level::CacheShard, Shard::new(blocks.clone(), capacity)))
        };
        let shards = (0..shards).map(shard).collect();
        let counters = Counters::default();
        Arc::new(Cache { device, block_size, blocks, shards, counters, pressure: OnceLock::new() })
    }

    /// Returns the device below.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Returns the size of a block in bytes.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Returns the block `nr`, from the device if necessary.
    ///
    /// `check` runs on bytes just read from the device, before any other thread sees them; if it
    /// fails, the block is not cached. It must take no lock. Of concurrent readers of an absent
    /// block, one reads the device, and the others get the same buffer; if it fails, they try for
    /// themselves.
    ///
    /// # Errors
    /// The device's (beyond its end: `UnexpectedEof`) or those of `check`.
    pub fn read<E: From<io::Error>>(
        &self,
        nr: u64,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Arc<Buffer>, E> {
        if let Some(buffer) = self.lookup(nr).filter(|buffer| buffer.is_verified()) {
            self.counters.hits.add(1);
            return Ok(buffer);
        }
        self.read_slow(nr, check)
    }

    #[cold]
    fn read_slow<E: From<io::Error>>(
        &self,
        nr: u64,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Arc<Buffer>, E> {
        loop {
            let outcome = self.shard(nr).lock().begin(nr);
            match outcome {
                Outcome::Cached(buffer) if buffer.is_verified() => return Ok(buffer),
                Outcome::Cached(buffer) => return self.verify(buffer, check),
                Outcome::LoadedByOther(load) => load.wait(),
                Outcome::LoadHere(load) => return self.load(nr, load, check),
            }
        }
    }

    /// Reads and checks a block whose load this thread registered.
    fn load<E: From<io::Error>>(
        &self,
        nr: u64,
        load: Arc<Load>,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Arc<Buffer>, E> {
        let loading = Loading::new(self, nr, load);
        self.counters.misses.add(1);
        let bytes = self.read_block(nr)?;
        check(&bytes)?;
        Ok(loading.publish(Buffer::new(nr, bytes, true)))
    }

    fn read_block(&self, nr: u64) -> io::Result<Arc<[u8]>> {
        let mut bytes = zeroes(self.block_size);
        if let Some(unshared) = Arc::get_mut(&mut bytes) {
            self.device.read_exact_at(unshared, self.offset(nr)?)?;
        }
        Ok(bytes)
    }

    /// Runs the first reader's check on a block that was read ahead.
    fn verify<E>(
        &self,
        buffer: Arc<Buffer>,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Arc<Buffer>, E> {
        match check(&buffer.unverified_bytes()) {
            Ok(()) => Ok(self.shard(buffer.nr()).lock().confirm(buffer)),
            Err(error) => {
                self.shard(buffer.nr()).lock().remove_if(buffer.nr(), |held| !held.is_verified());
                Err(error)
            }
        }
    }

    /// Returns a block that is about to be overwritten whole: zeroed and valid, without reading the
    /// device.
    ///
    /// A buffer of the block that is still in use is zeroed in place.
    pub fn fresh(&self, nr: u64) -> Arc<Buffer> {
        let buffer = Arc::new(Buffer::new(nr, zeroes(self.block_size), true));
        let (used, dropped) = self.shard(nr).lock().insert_fresh(buffer);
        self.evicted(dropped.len());
        drop(dropped);
        used.unwrap_or_else(|existing| {
            existing.zero();
            existing
        })
    }

    /// Returns the block if it is cached and verified.
    pub fn peek(&self, nr: u64) -> Option<Arc<Buffer>> {
        self.lookup(nr).filter(|buffer| buffer.is_verified())
    }

    /// Drops `count` blocks from `nr` on without writing them, even if they are in use: their
    /// contents no longer matter. Loads of these blocks in progress are not cached.
    pub fn forget(&self, nr: u64, count: u64) {
        let range = nr..nr.saturating_add(count);
        if count > FORGET_BY_NUMBER {
            self.shards.iter().for_each(|shard| drop(shard.lock().forget_range(&range)));
            return;
        }
        for nr in range {
            let dropped = self.shard(nr).lock().forget(nr);
            drop(dropped);
        }
    }

    /// Drops all unused blocks.
    pub fn forget_unused(&self) {
        self.shrink(0);
    }

    /// Reads the absent ones of `count` blocks from `nr` on, each gap between cached ones in one
    /// request, at most 1 MiB in all. Errors are left to later reads, and so are checks.
    pub fn read_ahead(&self, nr: u64, count: u64) {
        let end = nr.saturating_add(count.min((MAX_READ_AHEAD / self.block_size).max(1) as u64));
        let end = end.min(self.device.len() / self.block_size as u64);
        let mut at = nr;
        while at < end {
            let run = self.begin_run(at, end);
            at = at.saturating_add((run.len() as u64).max(1));
            self.load_run(run);
        }
    }

    /// Registers loads for the absent blocks from `nr` on, up to the first that is cached or being
    /// loaded.
    fn begin_run(&self, nr: u64, end: u64) -> Vec<Loading<'_>> {
        let load_of = |nr| match self.shard(nr).lock().begin(nr) {
            Outcome::LoadHere(load) => Some(load),
            Outcome::Cached(_) | Outcome::LoadedByOther(_) => None,
        };
        (nr..end).map_while(|nr| Some(Loading::new(self, nr, load_of(nr)?))).collect()
    }

    fn load_run(&self, run: Vec<Loading<'_>>) {
        let Some(first) = run.first() else { return };
        let mut bytes = vec![0; run.len() * self.block_size];
        let read = self
            .offset(first.nr())
            .and_then(|offset| self.device.read_exact_at(&mut bytes, offset));
        if read.is_err() {
            return;
        }
        self.counters.read_ahead.add(run.len() as i64);
        for (loading, block) in run.into_iter().zip(bytes.chunks_exact(self.block_size)) {
            let nr = loading.nr();
            loading.publish(Buffer::new(nr, Arc::from(block), false));
        }
    }

    /// Counts blocks that were evicted for others. The caller must hold no lock of a shard.
    #[inline]
    fn evicted(&self, blocks: usize) {
        self.counters.evictions.add(blocks as i64);
        if blocks > 0
            && let Some(pressure) = self.pressure.get()
        {
            pressure.evicted((blocks * self.block_size) as u64);
        }
    }

    /// Counts evictions in `pressure`, too, from now on. Only the first call has an effect.
    pub fn watch(&self, pressure: Arc<MemoryPressure>) {
        let _ = self.pressure.set(pressure);
    }

    /// Changes the capacity to about `bytes`, and drops unused blocks beyond it.
    pub fn set_capacity(&self, bytes: usize) {
        let capacity = (bytes / self.block_size).div_ceil(self.shards.len()).max(1);
        for shard in &self.shards {
            let dropped = shard.lock().set_capacity(capacity);
            self.counters.evictions.add(dropped.len() as i64);
        }
    }

    /// Drops unused blocks until at most `target_bytes` are cached, as far as possible. Returns the
    /// bytes dropped.
    pub fn shrink(&self, target_bytes: usize) -> usize {
        let target = target_bytes / self.block_size / self.shards.len();
        let dropped: usize =
            self.shards.iter().map(|shard| shard.lock().shrink(target).len()).sum();
        self.counters.evictions.add(dropped as i64);
        dropped * self.block_size
    }

    /// Returns the present contents and the counts so far.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            hits: self.counters.hits.sum() as u64,
            misses: self.counters.misses.sum() as u64,
            read_ahead: self.counters.read_ahead.sum() as u64,
            evictions: self.counters.evictions.sum() as u64,
            ..CacheStats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.blocks += shard.len() as u64;
            stats.pinned += shard.pinned() as u64;
        }
        stats.bytes = stats.blocks * self.block_size as u64;
        stats
    }

    #[inline]
    fn lookup(&self, nr: u64) -> Option<Arc<Buffer>> {
        levels::assert_may_take(Level::CacheShard);
        let buffer = self.blocks.get(nr)?;
        buffer.touch();
        Some(buffer)
    }

    /// Returns the shard of a block. The table's hash spreads neighbors and strides over all
    /// shards.
    fn shard(&self, nr: u64) -> &Mutex<Shard> {
        &self.shards[self.blocks.shard_of(nr) & (self.shards.len() - 1)]
    }

    fn offset(&self, nr: u64) -> io::Result<u64> {
        nr.checked_mul(self.block_size as u64).ok_or_else(|| {
            let message = format!("{}: block {nr} lies beyond any device", self.device.name());
            io::Error::new(io::ErrorKind::UnexpectedEof, message)
        })
    }
}

/// Returns the number of shards for a cache of `blocks` blocks, a power of two. There are many for
/// each shard of threads, so that threads that look up different blocks rarely write the same lock,
/// provided that each shard has enough blocks for a choice of the one to evict.
fn shards(threads: usize, blocks: usize) -> usize {
    const MIN_PER_THREAD: usize = 8;
    const MAX_PER_THREAD: usize = 128;
    const BLOCKS_PER_SHARD: usize = 64;
    (blocks / BLOCKS_PER_SHARD)
        .clamp(threads * MIN_PER_THREAD, threads * MAX_PER_THREAD)
        .next_power_of_two()
}

fn zeroes(len: usize) -> Arc<[u8]> {
    std::iter::repeat_n(0, len).collect()
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("device", &self.device).field("stats", &self.stats()).finish()
    }
}
