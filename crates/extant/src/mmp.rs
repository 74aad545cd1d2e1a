//! Multiple mount protection: a block that says whether another host uses the file system.
//!
//! The block bypasses all caches and is not journalled. While the file system is open a thread renews its sequence; another host that
//! wants to open it waits for long enough to see that.

use crate::error::{Errno, Error, Result};
use extant_blocks::BlockDevice;
use extant_format::mmp as disk;
use extant_format::superblock::{Geometry, Superblock};
use extant_sync::{Condvar, Level, Mutex};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where the block is, and what is on it.
#[derive(Debug)]
struct Block {
    dev: Arc<dyn BlockDevice>,
    offset: u64,
    seed: Option<u32>,
    bytes: Vec<u8>,
}

/// A claimed file system.
#[derive(Debug)]
pub struct Mmp {
    block: Arc<Mutex<Block>>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Block {
    fn open(dev: Arc<dyn BlockDevice>, sb: &Superblock, geo: &Geometry) -> Result<Block> {
        let nr = sb.mmp_block();
        if !geo.data_range_valid(nr, 1) {
            let bad = extant_format::error::Corrupt::new("superblock").field("mmp_block").found(nr.0);
            return Err(bad.into());
        }
        let seed = geo.metadata_csum.then_some(geo.csum_seed);
        let offset = nr.0 * u64::from(geo.block_size);
        Ok(Block { dev, offset, seed, bytes: vec![0; geo.block_size as usize] })
    }

    fn read(&mut self) -> Result<disk::Mmp> {
        self.dev.read_at(&mut self.bytes, self.offset)?;
        Ok(disk::Mmp::parse(&self.bytes, self.seed)?)
    }

    fn write(&mut self, mmp: &disk::Mmp) -> Result<()> {
        mmp.encode(&mut self.bytes, self.seed);
        self.dev.write_at(&self.bytes, self.offset)?;
        Ok(self.dev.flush()?)
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

fn in_use(mmp: &disk::Mmp) -> Error {
    tracing::error!("the file system is in use on {} (device {})", mmp.node_name, mmp.bdev_name);
    Errno::Busy.into()
}

impl Mmp {
    /// Claims the file system. EBUSY if another host uses or checks it. Waits as long as the format asks for: at once if it was left clean, but for
    /// the watch after claiming.
    pub fn claim(dev: Arc<dyn BlockDevice>, sb: &Superblock, geo: &Geometry) -> Result<Mmp> {
        let mut block = Block::open(dev, sb, geo)?;
        let mut seen = block.read()?;
        let interval = sb.mmp_update_interval().max(seen.check_interval).max(disk::MMP_MIN_CHECK_INTERVAL);
        if seen.seq == disk::MMP_SEQ_FSCK {
            return Err(in_use(&seen));
        }
        if seen.seq != disk::MMP_SEQ_CLEAN {
            std::thread::sleep(Duration::from_secs(patience(interval)));
            let again = block.read()?;
            if again.seq != seen.seq {
                return Err(in_use(&again));
            }
        }
        let claimed = (now().subsec_nanos() ^ std::process::id().rotate_left(16)) % disk::MMP_SEQ_MAX;
        seen.seq = claimed.max(1);
        seen.time = now().as_secs();
        seen.node_name = node_name();
        seen.bdev_name = block.dev.name();
        block.write(&seen)?;
        std::thread::sleep(Duration::from_secs(patience(interval)));
        let again = block.read()?;
        if again.seq != seen.seq {
            return Err(in_use(&again));
        }
        Self::keep(block, u64::from(sb.mmp_update_interval().max(1)))
    }

    /// Renews the block until released.
    fn keep(block: Block, every: u64) -> Result<Mmp> {
        let block = Arc::new(Mutex::new(Level::Buffer, block));
        let stop = Arc::new((Mutex::new(Level::FsState, false), Condvar::new()));
        let (own, end) = (block.clone(), stop.clone());
        let body = move || {
            let (asked, wake) = &*end;
            let mut asked = asked.lock();
            while !*asked {
                wake.wait_for(&mut asked, Duration::from_secs(every));
                if let (false, Err(e)) = (*asked, renew(&mut own.lock())) {
                    tracing::error!("the MMP block cannot be renewed: {e}");
                }
            }
        };
        let thread = Builder::new().name("extant-mmp".into()).spawn(body)?;
        Ok(Mmp { block, stop, thread: Some(thread) })
    }

    /// Leaves the block clean.
    pub fn release(mut self) -> Result<()> {
        self.end();
        let mut block = self.block.lock();
        let mut mmp = block.read()?;
        mmp.seq = disk::MMP_SEQ_CLEAN;
        mmp.time = now().as_secs();
        block.write(&mmp)
    }

    fn end(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that renews the MMP block had panicked");
        }
    }
}

impl Drop for Mmp {
    fn drop(&mut self) {
        self.end();
    }
}

fn renew(block: &mut Block) -> Result<()> {
    let mut mmp = block.read()?;
    mmp.seq = if mmp.seq >= disk::MMP_SEQ_MAX { 1 } else { mmp.seq + 1 };
    mmp.time = now().as_secs();
    block.write(&mmp)
}

fn node_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "unknown".into(), |s| s.trim().into())
}
