//! Multiple mount protection: a block that says whether another host uses the file system.
//!
//! The block bypasses all caches and is not journalled. While the file system is open a task
//! renews its sequence; another host that wants to open it waits for long enough to see that.
//!
//! [`Mmp`] is the claim of an open file system, [`HostClaim`] that of a program which changes one
//! below the engine (module `claim`).
//!
//! # Invariants
//! - A block that is not as it was written last is another host's: this one was not heard of for
//!   too long, and writes nothing any more.

mod claim;

pub use claim::HostClaim;

use crate::error::{Errno, Error, Result};
use extant_blocks::{BlockDevice, MountedDevice};
use extant_format::Geometry;
use extant_format::mmp as disk;
use extant_format::superblock::Superblock;
use extant_sync::scheduler::{Lane, NextRun, Task, TaskOwner};
use extant_sync::{Level, Mutex, OnceLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often a wait looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// The block's position and content.
#[derive(Debug)]
struct Block {
    dev: Arc<dyn BlockDevice>,
    offset: u64,
    /// The seed of checksums that are verified; `None` where blocks have none.
    seed: Option<u32>,
    /// The content that was read or written last.
    bytes: Vec<u8>,
    /// The content that was written or read last.
    own: Vec<u8>,
    /// The content whose write failed since: the device has this one or the other.
    unsure: Option<Vec<u8>>,
}

/// The action when another host has taken the file system.
type WhenLost = OnceLock<Box<dyn Fn() + Send + Sync>>;

/// A claimed file system.
pub struct Mmp {
    block: Arc<Mutex<Block>>,
    when_lost: Arc<WhenLost>,
    task: Task,
}

impl std::fmt::Debug for Mmp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mmp").field("block", &self.block).finish_non_exhaustive()
    }
}

impl Block {
    fn open(dev: Arc<dyn BlockDevice>, sb: &Superblock, geo: &Geometry) -> Result<Block> {
        let nr = sb.mmp_block();
        if !geo.data_range_valid(nr, 1) {
            let bad =
                extant_format::error::Corrupt::new("superblock").field("mmp_block").found(nr.0);
            return Err(bad.into());
        }
        let seed = geo.metadata_csum.then_some(geo.csum_seed);
        let offset = nr.0 * u64::from(geo.block_size);
        let bytes = vec![0; geo.block_size as usize];
        Ok(Block { dev, offset, seed, bytes, own: Vec::new(), unsure: None })
    }

    fn read(&mut self) -> Result<disk::Mmp> {
        self.dev.read_exact_at(&mut self.bytes, self.offset)?;
        Ok(disk::Mmp::parse(&self.bytes, self.seed)?)
    }

    fn write(&mut self, mmp: &disk::Mmp) -> Result<()> {
        mmp.encode(&mut self.bytes, self.seed);
        self.write_bytes()
    }

    /// Writes the content as it is in memory, durably.
    fn write_bytes(&mut self) -> Result<()> {
        self.unsure = Some(self.bytes.clone());
        self.dev.write_all_at(&self.bytes, self.offset)?;
        self.dev.flush()?;
        (self.own, self.unsure) = (self.bytes.clone(), None);
        Ok(())
    }

    /// Reads the block, which must be as it was written last; EBUSY if another host has written it.
    fn read_own(&mut self) -> Result<disk::Mmp> {
        self.dev.read_exact_at(&mut self.bytes, self.offset)?;
        // Damage counts as the write of another host, too: it is none of this one.
        let found = disk::Mmp::parse(&self.bytes, None).unwrap_or_default();
        if self.bytes != self.own && self.unsure.as_ref() != Some(&self.bytes) {
            return Err(in_use(&found));
        }
        self.own.clone_from(&self.bytes);
        Ok(found)
    }

    /// Writes the next sequence. EBUSY, and nothing is written, if the block is another host's.
    fn renew(&mut self) -> Result<()> {
        let mut mmp = self.read_own()?;
        mmp.seq = match mmp.seq {
            disk::MMP_SEQ_FSCK => mmp.seq,
            seq if seq >= disk::MMP_SEQ_MAX => 1,
            seq => seq + 1,
        };
        mmp.time = now().as_secs();
        self.write(&mmp)
    }

    /// Claims the block, of which `seen` is the content. EBUSY if another host uses or checks the
    /// file system. Waits as long as the format asks for: at once if it was left clean, but for the
    /// watch after claiming. EINTR, with the block as it was, if `interrupt` is set meanwhile.
    fn claim(
        &mut self,
        mut seen: disk::Mmp,
        interval: u16,
        interrupt: Option<&AtomicBool>,
    ) -> Result<disk::Mmp> {
        if seen.seq == disk::MMP_SEQ_FSCK {
            return Err(in_use(&seen));
        }
        if seen.seq != disk::MMP_SEQ_CLEAN {
            watch(interval, interrupt)?;
            let again = self.read()?;
            if again != seen {
                return Err(in_use(&again));
            }
        }
        let before = self.bytes.clone();
        let claimed =
            (now().subsec_nanos() ^ std::process::id().rotate_left(16)) % disk::MMP_SEQ_MAX;
        seen.seq = claimed.max(1);
        seen.time = now().as_secs();
        seen.node_name = node_name();
        seen.bdev_name = self.dev.name();
        self.write(&seen)?;
        announce(interval);
        // A host that comes now watches the block for as long: it has to see a change before that
        // ends, not when this watch does.
        for _ in 0..2 {
            if let Err(interrupted) = pause(patience(interval) / 2, interrupt) {
                self.read_own()?;
                self.bytes = before;
                self.write_bytes()?;
                return Err(interrupted);
            }
            self.renew()?;
        }
        self.read_own()
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the interval after which a host without a sign counts as gone, in seconds. No writer of
/// the format makes others wait longer; an image may have any value.
fn check_interval(sb: &Superblock, seen: &disk::Mmp) -> u16 {
    let interval = sb.mmp_update_interval().max(seen.check_interval);
    interval.clamp(disk::MMP_MIN_CHECK_INTERVAL, disk::MMP_MAX_CHECK_INTERVAL)
}

/// Returns the time between two renewals.
fn update_interval(sb: &Superblock) -> Duration {
    let most = disk::MMP_MAX_CHECK_INTERVAL;
    Duration::from_secs(u64::from(sb.mmp_update_interval().clamp(1, most)))
}

/// How long to watch a block that says it is in use.
fn patience(interval: u16) -> Duration {
    let i = u64::from(interval);
    Duration::from_secs((2 * i + 1).min(i + 60))
}

/// Waits for signs of another host. EINTR once `interrupt` is set.
fn watch(interval: u16, interrupt: Option<&AtomicBool>) -> Result<()> {
    announce(interval);
    pause(patience(interval), interrupt)
}

/// Says that the program waits, since that may take minutes.
fn announce(interval: u16) {
    let seconds = patience(interval).as_secs();
    tracing::warn!(
        "multiple mount protection: waiting {seconds} seconds for signs of another host"
    );
}

fn pause(time: Duration, interrupt: Option<&AtomicBool>) -> Result<()> {
    let begin = Instant::now();
    loop {
        if interrupt.is_some_and(|flag| flag.load(Ordering::Acquire)) {
            return Err(Errno::Intr.into());
        }
        match time.checked_sub(begin.elapsed()) {
            Some(left) if !left.is_zero() => std::thread::sleep(left.min(LOOK)),
            _ => return Ok(()),
        }
    }
}

/// The names come from the image: escaped, they cannot forge further messages.
fn in_use(mmp: &disk::Mmp) -> Error {
    let (host, device) = (mmp.node_name.escape_debug(), mmp.bdev_name.escape_debug());
    match mmp.seq {
        disk::MMP_SEQ_FSCK => {
            tracing::error!("the file system is being checked on {host} (device {device})");
        }
        _ if mmp.node_name.is_empty() => tracing::error!("the file system is in use elsewhere"),
        _ => tracing::error!("the file system is in use on {host} (device {device})"),
    }
    Errno::Busy.into()
}

impl Mmp {
    /// Claims the file system. EBUSY if another host uses or checks it. Waits as long as the format
    /// asks for: at once if it was left clean, but for the watch after claiming. EINTR, with the
    /// block as it was, if `interrupt` is set meanwhile.
    pub fn claim(
        dev: Arc<MountedDevice>,
        sb: &Superblock,
        geo: &Geometry,
        interrupt: Option<&AtomicBool>,
        tasks: &TaskOwner,
    ) -> Result<Mmp> {
        let mut block = Block::open(dev.clone(), sb, geo)?;
        let seen = block.read()?;
        let interval = check_interval(sb, &seen);
        block.claim(seen, interval, interrupt)?;
        Ok(Self::keep(dev, block, update_interval(sb), tasks))
    }

    /// Renews the block until released.
    fn keep(dev: Arc<MountedDevice>, block: Block, every: Duration, tasks: &TaskOwner) -> Mmp {
        let block = Arc::new(Mutex::new(Level::HostClaim, block));
        let when_lost = Arc::new(WhenLost::new());
        let (own, lost) = (block.clone(), when_lost.clone());
        let task = tasks.task(Lane::Device, "mmp", move || {
            // Another host may take the file system meanwhile: the block is read after that.
            if dev.is_frozen() {
                return NextRun::After(LOOK);
            }
            let renewed = own.lock().renew();
            match renewed {
                Err(e) if e.is(Errno::Busy) => {
                    lost.get().into_iter().for_each(|act| act());
                    return NextRun::Never;
                }
                Err(e) => tracing::error!("the MMP block cannot be renewed: {e}"),
                Ok(()) => {}
            }
            NextRun::After(every)
        });
        task.wake_after(every);
        Mmp { block, when_lost, task }
    }

    /// Sets the action for the case that another host has taken the file system. It runs once, and
    /// must stop all writing.
    pub fn when_lost(&self, act: impl Fn() + Send + Sync + 'static) {
        let first = self.when_lost.set(Box::new(act)).is_ok();
        debug_assert!(first, "there is one thing to be done");
    }

    /// Whether the file system is still this host's. EBUSY if another one has taken it.
    pub fn check(&self) -> Result<()> {
        self.block.lock().read_own().map(drop)
    }

    /// Leaves the block clean. EBUSY, and nothing is written, if it is another host's.
    pub fn release(self) -> Result<()> {
        self.task.stop();
        let mut block = self.block.lock();
        let mut mmp = block.read_own()?;
        mmp.seq = disk::MMP_SEQ_CLEAN;
        mmp.time = now().as_secs();
        block.write(&mmp)
    }
}

fn node_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".into(), |s| s.trim().into())
}
