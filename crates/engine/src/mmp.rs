//! Multiple mount protection: a block that says whether another host uses the file system.
//!
//! The block bypasses all caches and is not journalled. While the file system is open a task
//! renews its sequence; another host that wants to open it waits for long enough to see that.
//!
//! # Invariants
//! - A sequence that is not the one written last is another host's: this one was not heard of for
//!   too long, and writes nothing any more.

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
    dev: Arc<MountedDevice>,
    offset: u64,
    seed: Option<u32>,
    bytes: Vec<u8>,
    /// The sequence that was written last.
    seq: u32,
}

/// The action when another host has taken the file system.
type WhenLost = OnceLock<Box<dyn Fn() + Send + Sync>>;

/// A claimed file system.
pub struct Mmp {
    block: Arc<Mutex<Block>>,
    when_lost: Arc<WhenLost>,
    task: Task,
}

/// The claim of an unmounted file system, against other hosts; see
/// [`Fs::take_host_claim`](crate::Fs::take_host_claim). It is renewed, and ends when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct HostClaim(Option<Mmp>);

impl HostClaim {
    pub(crate) fn new(mmp: Mmp) -> HostClaim {
        HostClaim(Some(mmp))
    }

    /// Checks that the file system is still this host's.
    ///
    /// # Errors
    /// EBUSY if another host has taken it; those of the device.
    pub fn check(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), Mmp::check)
    }
}

impl Drop for HostClaim {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(Mmp::release) {
            tracing::error!("the MMP block could not be released: {error}");
        }
    }
}

impl std::fmt::Debug for Mmp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mmp").field("block", &self.block).finish_non_exhaustive()
    }
}

impl Block {
    fn open(dev: Arc<MountedDevice>, sb: &Superblock, geo: &Geometry) -> Result<Block> {
        let nr = sb.mmp_block();
        if !geo.data_range_valid(nr, 1) {
            let bad =
                extant_format::error::Corrupt::new("superblock").field("mmp_block").found(nr.0);
            return Err(bad.into());
        }
        let seed = geo.metadata_csum.then_some(geo.csum_seed);
        let offset = nr.0 * u64::from(geo.block_size);
        Ok(Block { dev, offset, seed, bytes: vec![0; geo.block_size as usize], seq: 0 })
    }

    fn read(&mut self) -> Result<disk::Mmp> {
        self.dev.read_exact_at(&mut self.bytes, self.offset)?;
        Ok(disk::Mmp::parse(&self.bytes, self.seed)?)
    }

    fn write(&mut self, mmp: &disk::Mmp) -> Result<()> {
        mmp.encode(&mut self.bytes, self.seed);
        self.seq = mmp.seq;
        self.dev.write_all_at(&self.bytes, self.offset)?;
        Ok(self.dev.flush()?)
    }

    /// Reads the block, which must be as it was written last; EBUSY if another host has written it.
    fn read_own(&mut self) -> Result<disk::Mmp> {
        let mmp = self.read()?;
        if mmp.seq == self.seq { Ok(mmp) } else { Err(in_use(&mmp)) }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// How long to watch a block that says it is in use, in seconds.
fn patience(interval: u16) -> u64 {
    let i = u64::from(interval);
    (2 * i + 1).min(i + 60)
}

/// Waits for signs of another host, with a message, since that may take minutes. EINTR once
/// `interrupt` is set.
fn watch(interval: u16, interrupt: Option<&AtomicBool>) -> Result<()> {
    let seconds = patience(interval);
    tracing::warn!(
        "multiple mount protection: waiting {seconds} seconds for signs of another host"
    );
    let begin = Instant::now();
    loop {
        if interrupt.is_some_and(|flag| flag.load(Ordering::Acquire)) {
            return Err(Errno::Intr.into());
        }
        match Duration::from_secs(seconds).checked_sub(begin.elapsed()) {
            Some(left) if !left.is_zero() => std::thread::sleep(left.min(LOOK)),
            _ => return Ok(()),
        }
    }
}

/// The names come from the image: escaped, they cannot forge further messages.
fn in_use(mmp: &disk::Mmp) -> Error {
    let (host, device) = (mmp.node_name.escape_debug(), mmp.bdev_name.escape_debug());
    tracing::error!("the file system is in use on {host} (device {device})");
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
        let mut block = Block::open(dev, sb, geo)?;
        let mut seen = block.read()?;
        let interval = sb.mmp_update_interval().max(seen.check_interval);
        // No writer of the format makes others wait longer; an image may have any value.
        let interval = interval.clamp(disk::MMP_MIN_CHECK_INTERVAL, disk::MMP_MAX_CHECK_INTERVAL);
        if seen.seq == disk::MMP_SEQ_FSCK {
            return Err(in_use(&seen));
        }
        if seen.seq != disk::MMP_SEQ_CLEAN {
            watch(interval, interrupt)?;
            let again = block.read()?;
            if again.seq != seen.seq {
                return Err(in_use(&again));
            }
        }
        let before = seen.clone();
        let claimed =
            (now().subsec_nanos() ^ std::process::id().rotate_left(16)) % disk::MMP_SEQ_MAX;
        seen.seq = claimed.max(1);
        seen.time = now().as_secs();
        seen.node_name = node_name();
        seen.bdev_name = block.dev.name();
        block.write(&seen)?;
        if let Err(interrupted) = watch(interval, interrupt) {
            block.read_own()?;
            block.write(&before)?;
            return Err(interrupted);
        }
        let again = block.read()?;
        if again.seq != seen.seq {
            return Err(in_use(&again));
        }
        let every = Duration::from_secs(u64::from(sb.mmp_update_interval().max(1)));
        Ok(Self::keep(block, every, tasks))
    }

    /// Renews the block until released.
    fn keep(block: Block, every: Duration, tasks: &TaskOwner) -> Mmp {
        let dev = block.dev.clone();
        let block = Arc::new(Mutex::new(Level::Buffer, block));
        let when_lost = Arc::new(WhenLost::new());
        let (own, lost) = (block.clone(), when_lost.clone());
        let task = tasks.task(Lane::Device, "mmp", move || {
            // Another host may take the file system meanwhile: the block is read after that.
            if dev.is_frozen() {
                return NextRun::After(LOOK);
            }
            let renewed = renew(&mut own.lock());
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

    /// Whether the block is written through the device of this mount.
    pub fn is_on(&self, mount: u32) -> bool {
        self.block.lock().dev.id() == mount
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

fn renew(block: &mut Block) -> Result<()> {
    let mut mmp = block.read_own()?;
    mmp.seq = if mmp.seq >= disk::MMP_SEQ_MAX { 1 } else { mmp.seq + 1 };
    mmp.time = now().as_secs();
    block.write(&mmp)
}

fn node_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".into(), |s| s.trim().into())
}
