//! The base of all modules: the device, its geometry, the block cache, the journal, the clock and
//! the generator of random numbers.

mod live_geometry;

pub use live_geometry::LiveGeometry;

use crate::bounds::Remarks;
use crate::error::{Errno, Error, Result};
use extant_blocks::{BlockDevice, Cache, MountedDevice};
use extant_format::features::RoCompat;
use extant_format::quota::QuotaKind;
use extant_format::types::Timestamp;
use extant_journal::{Handle, Journal};
use extant_sync::atomic::{AtomicBool, Ordering};
use extant_sync::{OnceLock, SharedRng, shard_index};
use std::fmt::Debug;
use std::sync::Arc;

/// The source of time. Reproducible builds and the lab's virtual time use their own.
pub trait Clock: Send + Sync + Debug {
    /// The wall clock.
    fn now(&self) -> Timestamp;
}

/// Seconds for the superblock's times: a little late, since checkers read a clock that ticks some
/// milliseconds behind and object to times in the future.
pub fn superblock_seconds(clock: &dyn Clock) -> u64 {
    const BEHIND_NANOS: u32 = 20_000_000;
    let now = clock.now();
    let late = now.nsec < BEHIND_NANOS;
    u64::try_from(now.sec - i64::from(late)).unwrap_or(0)
}

/// The system's clock, in the ticks of the kernel's file times: a later file time of the kernel is
/// not earlier.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        crate::os::now()
    }
}

/// Rights of a caller to space that other callers are denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceRights {
    /// File content may use the blocks that are reserved for root.
    pub use_reserve: bool,
    /// Quota limits do not apply.
    pub ignore_limits: bool,
}

/// Decisions of a mount that hold for all its files.
#[derive(Debug, Default)]
pub struct MountPolicy {
    /// Damage in the file system's own structures ends all changes (`errors=remount-ro`).
    pub stop_on_error: bool,
    /// The bytes of the device depend on the calls only, as long as they come from one thread.
    pub deterministic: bool,
    /// File data go through the journal (`data=journal`).
    pub log_data: bool,
    /// File data may use the blocks that are reserved for root.
    pub use_reserve: AtomicBool,
}

impl MountPolicy {
    /// Whether content of a caller with these rights may use root's reserve. Relaxed: a switch that
    /// guards nothing.
    pub fn may_use_reserve(&self, rights: SpaceRights) -> bool {
        rights.use_reserve || self.use_reserve.load(Ordering::Relaxed)
    }
}

/// The base of all modules, which share it; owned by `fs`.
#[derive(Debug)]
pub struct Volume {
    /// Facts of this file system; only its size may change.
    pub geo: LiveGeometry,
    /// The device, journal replayed (or overlaid).
    pub dev: Arc<dyn BlockDevice>,
    /// The device that every transfer goes through in the end: it is frozen, revoked and counted
    /// there.
    pub mounted: Arc<MountedDevice>,
    /// The first error that ended all changes.
    pub cause: OnceLock<String>,
    /// Set when the file system is closed: no operation begins any more.
    pub closed: AtomicBool,
    /// Cached metadata blocks.
    pub cache: Arc<Cache>,
    /// Transactions; present also on file systems without a journal (see `extant_journal`).
    pub journal: Arc<Journal>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The generator of random numbers.
    pub rng: SharedRng,
    /// Set when nothing may be changed: asked for, or after an error.
    pub read_only: AtomicBool,
    /// Set by a shutdown, which acts as a power cut; the file system is read-only then, too.
    pub shut_down: AtomicBool,
    /// Decisions of the mount that hold for all files.
    pub policy: MountPolicy,
    /// The number of shards of structures that threads share, a power of two; a bound on threads
    /// for work that can be divided.
    pub shards: usize,
    /// The messages logged so far.
    pub remarks: Remarks,
}

/// Inodes of this size have room for whole seconds only.
const OLD_INODE_BYTES: u16 = 128;

impl Volume {
    /// Current time at the file system's resolution.
    pub fn now(&self) -> Timestamp {
        let now = self.clock.now();
        if self.geo.inode_size > OLD_INODE_BYTES { now } else { Timestamp { nsec: 0, ..now } }
    }

    /// The shard of this thread, where it decides on places on the device.
    pub fn placing_shard(&self) -> usize {
        if self.policy.deterministic { 0 } else { shard_index() & (self.shards - 1) }
    }

    /// Fails if the file system is closed.
    #[inline]
    pub fn alive(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Unmounted) } else { Ok(()) }
    }

    /// Fails with EROFS if the file system may not be changed, with EIO if it was shut down.
    pub fn writable(&self) -> Result<()> {
        match self.read_only.load(Ordering::Acquire) {
            true if self.is_shut_down() => Err(Errno::Io.into()),
            true => Err(Errno::RoFs.into()),
            false => Ok(()),
        }
    }

    /// Ends all changes; the first cause is kept. Returns whether changes were allowed before.
    fn stop_changes(&self, why: &Error) -> bool {
        // An error means that an earlier cause is kept.
        let _ = self.cause.set(why.to_string());
        !self.read_only.swap(true, Ordering::AcqRel)
    }

    /// Why nothing may be changed any more, after an error.
    pub fn cause(&self) -> String {
        let own = self.cause.get().cloned();
        own.or_else(|| self.journal.abort_cause().map(ToString::to_string))
            .unwrap_or_else(|| "unknown".into())
    }

    /// Returns whether the file system was shut down.
    pub fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// Applies the error policy to damage in the file system's own structures. A policy that ends
    /// all changes aborts the journal, as in the kernel: the running transaction may have changes
    /// that were made from the damage, and must not become durable.
    pub fn obey_error_policy(&self, why: &Error) {
        if self.policy.stop_on_error {
            if self.stop_changes(why) {
                tracing::error!(
                    "nothing is changed any more, as demanded for errors: check the file system, \
                    then mount it anew"
                );
            }
            self.journal.abort(why.errno());
        }
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> usize {
        self.cache.block_size()
    }

    /// Credits of charging an inode's owners: a record of each kind.
    pub fn owner_credits(&self) -> u32 {
        if self.geo.ro_compat(RoCompat::QUOTA) { QuotaKind::ALL.len() as u32 } else { 0 }
    }

    /// Aborts after a change that failed half-way and cannot be undone: nothing may become durable
    /// any more.
    pub fn abort(&self, why: &Error) {
        tracing::error!("a change failed half-way, so nothing is changed any more: {why}");
        self.stop_changes(why);
        self.journal.abort(why.errno());
    }

    /// Starts a handle that may change at most `credits` blocks.
    pub fn start(&self, credits: u32) -> Result<Handle<'_>> {
        self.writable()?;
        self.journal.start(credits).map_err(Error::from)
    }
}
