//! The claim of a program that changes a file system below the engine.
//!
//! [`HostClaim`] gives out a device over that of the file system. All changes go through it. For
//! example, a resize is planned and written through it for ten minutes. The block says all the time
//! that the file system is in use, and its sequence changes every five seconds. The program sees
//! the block as a clean one: its checks and plans need not know of the claim.
//!
//! # Content of the block
//! Each claimed block has a *clean* content, which reads return and which the release writes.
//! Writes of the program change that, and the block on the device gets the claim's sequence over
//! it. So a claim without such writes leaves the block as it was.
//!
//! The block may move: a write of a superblock that names another place is preceded by a claimed
//! block there. If such a superblock has no block, the claim ends with it.
//!
//! # Invariants
//! - Nothing is written once another host has written the block. Each write follows a look at the
//!   block that is younger than the interval after which other hosts may take over.
//!
//! # Locking
//! One lock (`HostClaim`) covers the blocks, also while they are read and written. Transfers of
//! other blocks hold no lock.

use super::{
    Block, LOOK, announce, check_interval, disk, in_use, node_name, patience, pause,
    update_interval, watch,
};
use crate::error::{Errno, Error, Result};
use extant_blocks::{AlignedDevice, BlockDevice, HostBytes};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use extant_format::{BlockNr, Geometry, Incompat};
use extant_sync::scheduler::{Lane, Lanes, NextRun, Scheduler, Task};
use extant_sync::{Level, Mutex};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The offset of no block.
const NOWHERE: u64 = u64::MAX;

/// The claim of a file system that nothing has open, against other hosts. It is renewed, and ends
/// when it is dropped. A file system without multiple mount protection has one without effect.
#[derive(Debug)]
#[must_use]
pub struct HostClaim {
    device: Arc<ClaimedDevice>,
    renewal: Option<Task>,
}

/// The state that device and renewal share.
#[derive(Debug)]
struct Shared {
    blocks: Mutex<Vec<Claimed>>,
    /// The offsets of the blocks, of which there are two while one moves. Written with the lock
    /// held.
    offsets: [AtomicU64; 2],
    /// Bytes of a block.
    size: u64,
    begun: Instant,
    /// Milliseconds from the beginning until the last look at the blocks began. Relaxed: a writer
    /// that sees an older one looks once more.
    looked: AtomicU64,
    /// The age of a look after which a write needs another one.
    max_age: Duration,
    /// Another host has taken the file system. Set with the lock held.
    lost: AtomicBool,
}

/// A block with the claim.
#[derive(Debug)]
struct Claimed {
    block: Block,
    /// The content that the program sees, and that the release writes.
    clean: Vec<u8>,
}

/// The device of a claimed file system.
#[derive(Debug)]
struct ClaimedDevice {
    inner: Arc<dyn BlockDevice>,
    /// `None` without multiple mount protection.
    shared: Option<Arc<Shared>>,
}

impl HostClaim {
    /// Claims the file system of a superblock on a device: EBUSY if another host uses or checks it.
    /// Waits as long as the format asks for, and writes the block. EINTR, with the block as it was,
    /// if `interrupt` is set meanwhile. Without a superblock there is nothing to claim.
    ///
    /// # Errors
    /// Those above; a damaged block; those of the device.
    pub fn take(
        device: Arc<dyn BlockDevice>,
        superblock: Option<&Superblock>,
        interrupt: Option<&AtomicBool>,
    ) -> Result<HostClaim> {
        Taking { device, interrupt, checks: false }.take(superblock)
    }

    /// Claims as [`HostClaim::take`] does, as a program that checks the file system: also with a
    /// damaged block, if no other host writes it. Others are refused at once then. If the program
    /// is killed, they are refused until a user clears the block.
    ///
    /// # Errors
    /// As [`HostClaim::take`].
    pub fn take_for_check(
        device: Arc<dyn BlockDevice>,
        superblock: Option<&Superblock>,
        interrupt: Option<&AtomicBool>,
    ) -> Result<HostClaim> {
        Taking { device, interrupt, checks: true }.take(superblock)
    }

    /// Ends the claim that a host has left in the block, as a killed check does. Returns false, and
    /// writes nothing, if there is none. EBUSY if a host writes the block meanwhile: it is watched
    /// for as long as the format asks for, unless `watches` is false. EINTR if `interrupt` is set.
    ///
    /// # Errors
    /// Those above; a file system without the block; a damaged block, which is not written: a check
    /// claims the file system with it; those of the device.
    pub fn clear(
        device: Arc<dyn BlockDevice>,
        superblock: &Superblock,
        watches: bool,
        interrupt: Option<&AtomicBool>,
    ) -> Result<bool> {
        let geometry = Geometry::new(superblock)?;
        if !superblock.incompat().contains(Incompat::MMP) {
            let none = "the file system has no multi-mount protection (mmp)";
            return Err(Error::Unsupported(none.into()));
        }
        let mut block = Block::open(AlignedDevice::over(device), superblock, &geometry)?;
        let seen = block.read()?;
        if seen.seq == disk::MMP_SEQ_CLEAN {
            return Ok(false);
        }
        if watches {
            block.own.clone_from(&block.bytes);
            announce(check_interval(superblock, &seen));
            let begin = Instant::now();
            while begin.elapsed() < patience(check_interval(superblock, &seen)) {
                pause(LOOK * 10, interrupt)?;
                block.read_own()?;
            }
        }
        let update = superblock.mmp_update_interval();
        let clean = disk::Mmp {
            seq: disk::MMP_SEQ_CLEAN,
            node_name: node_name(),
            bdev_name: block.dev.name(),
            check_interval: update.max(disk::MMP_MIN_CHECK_INTERVAL),
            ..disk::Mmp::default()
        };
        block.bytes.fill(0);
        block.write(&clean)?;
        Ok(true)
    }

    /// Returns the device through which the file system is read and changed. Once another host has
    /// taken it, and after the end of the claim, writes fail.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    /// Checks that the file system is still this host's.
    ///
    /// # Errors
    /// EBUSY if another host has taken it; those of the device.
    pub fn check(&self) -> Result<()> {
        self.device.shared.as_ref().map_or(Ok(()), |shared| shared.renew())
    }

    /// Ends the claim: leaves the block clean. Must follow the last write.
    ///
    /// # Errors
    /// EBUSY, and nothing is written, if another host has taken the file system; those of the
    /// device.
    pub fn release(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(task) = self.renewal.take() else { return Ok(()) };
        task.stop();
        self.device.shared.as_ref().map_or(Ok(()), |shared| shared.release())
    }
}

impl Drop for HostClaim {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!("the MMP block could not be released: {error}");
        }
    }
}

/// A claim in the making.
struct Taking<'t> {
    device: Arc<dyn BlockDevice>,
    interrupt: Option<&'t AtomicBool>,
    checks: bool,
}

impl Taking<'_> {
    fn take(self, superblock: Option<&Superblock>) -> Result<HostClaim> {
        let inner = AlignedDevice::over(self.device.clone());
        let sb = superblock.filter(|sb| sb.incompat().contains(Incompat::MMP));
        // The program refuses impossible values, and a repair a block outside.
        let known = sb.and_then(|sb| Some((sb, Geometry::new(sb).ok()?)));
        let is_inside = |sb: &Superblock, geometry: &Geometry| {
            !self.checks || geometry.data_range_valid(sb.mmp_block(), 1)
        };
        let Some((sb, geometry)) = known.filter(|(sb, geometry)| is_inside(sb, geometry)) else {
            let device = Arc::new(ClaimedDevice { inner, shared: None });
            return Ok(HostClaim { device, renewal: None });
        };
        let mut block = Block::open(inner.clone(), sb, &geometry)?;
        let seen = self.look(sb, &mut block)?;
        let found = block.bytes.clone();
        let interval = check_interval(sb, &seen);
        let mut mmp = block.claim(seen, interval, self.interrupt)?;
        // From here on with a checksum, under each superblock that the program may write: where the
        // file system has none, its field is not looked at.
        let seed = geometry.csum_seed;
        block.seed = Some(seed);
        if self.checks {
            mmp.seq = disk::MMP_SEQ_FSCK;
            block.write(&mmp)?;
        }
        let shared = Arc::new(Shared {
            offsets: [block.offset.into(), NOWHERE.into()],
            size: geometry.block_size.into(),
            blocks: Mutex::new(
                Level::HostClaim,
                vec![Claimed { clean: without_claim(found, seed), block }],
            ),
            begun: Instant::now(),
            looked: AtomicU64::new(0),
            max_age: Duration::from_secs(interval.into()),
            lost: AtomicBool::new(false),
        });
        let renewal = Some(keep(&shared, update_interval(sb))?);
        let device = Arc::new(ClaimedDevice { inner, shared: Some(shared) });
        Ok(HostClaim { device, renewal })
    }

    /// Reads the block. In place of a damaged one, that does not change meanwhile, a check has a
    /// clean one.
    fn look(&self, sb: &Superblock, block: &mut Block) -> Result<disk::Mmp> {
        match block.read() {
            Err(Error::Corrupt(_)) if self.checks => {
                let seen = disk::Mmp {
                    seq: disk::MMP_SEQ_CLEAN,
                    check_interval: sb.mmp_update_interval(),
                    ..disk::Mmp::default()
                };
                let found = block.bytes.clone();
                watch(check_interval(sb, &seen), self.interrupt)?;
                block.dev.read_exact_at(&mut block.bytes, block.offset)?;
                if found == block.bytes { Ok(seen) } else { Err(in_use(&seen)) }
            }
            read => read,
        }
    }
}

/// Returns a block as a host leaves it that uses the file system no more; a damaged one as it is.
fn without_claim(mut bytes: Vec<u8>, seed: u32) -> Vec<u8> {
    if let Ok(mut mmp) = disk::Mmp::parse(&bytes, None)
        && mmp.seq != disk::MMP_SEQ_CLEAN
    {
        mmp.seq = disk::MMP_SEQ_CLEAN;
        mmp.encode(&mut bytes, Some(seed));
    }
    bytes
}

/// Renews the claim until its end.
fn keep(shared: &Arc<Shared>, every: Duration) -> Result<Task> {
    let scheduler = Scheduler::new(Lanes::for_one_owner(1, || ()));
    scheduler.start()?;
    let own = shared.clone();
    let task = scheduler.owner().task(Lane::Device, "mmp", move || match own.renew() {
        Err(error) if error.is(Errno::Busy) => NextRun::Never,
        Err(error) => {
            tracing::error!("the MMP block cannot be renewed: {error}");
            NextRun::After(every.min(LOOK * 20))
        }
        Ok(()) => NextRun::After(every),
    });
    task.wake_after(every);
    Ok(task)
}

impl Shared {
    /// Looks at the blocks, and writes their next sequence.
    fn renew(&self) -> Result<()> {
        self.renew_all(&mut self.blocks.lock())
    }

    fn renew_all(&self, blocks: &mut [Claimed]) -> Result<()> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Errno::Busy.into());
        }
        let looked = self.begun.elapsed().as_millis() as u64;
        for claimed in blocks {
            let renewed = claimed.block.renew();
            if renewed.as_ref().is_err_and(|error| error.is(Errno::Busy)) {
                self.lost.store(true, Ordering::Release);
            }
            renewed?;
        }
        self.looked.store(looked, Ordering::Relaxed);
        Ok(())
    }

    /// Refuses a write when another host may have taken the file system.
    fn check_write(&self) -> io::Result<()> {
        let looked = Duration::from_millis(self.looked.load(Ordering::Relaxed));
        let is_recent = self.begun.elapsed().saturating_sub(looked) < self.max_age;
        if !self.lost.load(Ordering::Acquire) && is_recent {
            return Ok(());
        }
        self.renew().map_err(refused)
    }

    fn release(&self) -> Result<()> {
        let mut blocks = self.blocks.lock();
        if self.lost.swap(true, Ordering::AcqRel) {
            return Err(Errno::Busy.into());
        }
        for Claimed { block, clean } in blocks.iter_mut() {
            block.read_own()?;
            block.bytes.clone_from(clean);
            block.write_bytes()?;
        }
        self.forget(&mut blocks, |_| false);
        Ok(())
    }

    /// Drops all blocks but those at these offsets.
    fn forget(&self, blocks: &mut Vec<Claimed>, stays: impl Fn(u64) -> bool) {
        blocks.retain(|claimed| stays(claimed.block.offset));
        for (n, offset) in self.offsets.iter().enumerate() {
            let at = blocks.get(n).map_or(NOWHERE, |claimed| claimed.block.offset);
            offset.store(at, Ordering::Release);
        }
    }

    /// Returns whether a range of bytes meets a claimed block.
    fn meets(&self, range: &Range<u64>) -> bool {
        let ranges = self.offsets.iter().map(|offset| offset.load(Ordering::Acquire));
        ranges.map(|at| at..at.saturating_add(self.size)).any(|own| meet(&own, range).is_some())
    }

    /// Puts the clean content of the blocks into the bytes of a read.
    fn cover(&self, buf: &mut [u8], offset: u64) {
        let range = offset..offset.saturating_add(buf.len() as u64);
        for Claimed { block, clean } in self.blocks.lock().iter() {
            if let Some(part) = meet(&(block.offset..block.offset + self.size), &range) {
                let from = &clean[within(&part, block.offset)];
                buf[within(&part, offset)].copy_from_slice(from);
            }
        }
    }

    /// Writes bytes that meet a claimed block, or the superblock.
    fn write(&self, inner: &dyn BlockDevice, data: &[u8], offset: u64) -> io::Result<()> {
        let mut blocks = self.blocks.lock();
        let range = offset..offset.saturating_add(data.len() as u64);
        let stays = self.follow(inner, &mut blocks, (data, &range))?;
        let mut at = range.start;
        let mut own: Vec<usize> = (0..blocks.len()).collect();
        own.sort_unstable_by_key(|n| blocks[*n].block.offset);
        for n in own {
            let claimed = &mut blocks[n];
            let start = claimed.block.offset;
            let Some(part) = meet(&(start..start + self.size), &range) else { continue };
            if at < part.start {
                inner.write_all_at(&data[within(&(at..part.start), offset)], at)?;
            }
            claimed.clean[within(&part, start)].copy_from_slice(&data[within(&part, offset)]);
            claimed.write_over().map_err(refused)?;
            at = part.end;
        }
        if at < range.end || range.is_empty() {
            inner.write_all_at(&data[within(&(at..range.end), offset)], at)?;
        }
        if let Some(place) = stays {
            self.forget(&mut blocks, |at| Some(at) == place);
        }
        Ok(())
    }

    /// Claims the block of a superblock that is to be written, if it has another place. Returns the
    /// only place after the write, where a superblock is written.
    fn follow(
        &self,
        inner: &dyn BlockDevice,
        blocks: &mut Vec<Claimed>,
        (data, range): (&[u8], &Range<u64>),
    ) -> io::Result<Option<Option<u64>>> {
        let end = SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64;
        let Some(part) = meet(&(SUPERBLOCK_OFFSET..end), range) else { return Ok(None) };
        let mut bytes = [0; SUPERBLOCK_SIZE];
        inner.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
        bytes[within(&part, SUPERBLOCK_OFFSET)].copy_from_slice(&data[within(&part, range.start)]);
        let Ok(sb) = Superblock::parse_unverified(&bytes) else { return Ok(None) };
        let Some(Claimed { block: own, .. }) = blocks.first() else { return Ok(None) };
        if !sb.incompat().contains(Incompat::MMP) {
            return Ok(Some(None));
        }
        let BlockNr(nr) = sb.mmp_block();
        let offset = nr.saturating_mul(self.size);
        if blocks.iter().any(|claimed| claimed.block.offset == offset) {
            return Ok(Some(Some(offset)));
        }
        let mut clean = vec![0; own.bytes.len()];
        let is_there = u64::from(sb.block_size()) == self.size
            && inner.read_exact_at(&mut clean, offset).is_ok()
            && disk::Mmp::parse(&clean, None).is_ok();
        if !is_there {
            return Ok(None);
        }
        let (dev, written) = (own.dev.clone(), own.own.clone());
        let (seed, bytes) = (own.seed, written.clone());
        let block = Block { dev, offset, seed, bytes, own: written, unsure: None };
        let mut claimed = Claimed { block, clean };
        claimed.write_over().map_err(refused)?;
        blocks.truncate(1);
        blocks.push(claimed);
        self.forget(blocks, |_| true);
        Ok(Some(Some(offset)))
    }
}

impl Claimed {
    /// Writes the block: the claim over the clean content.
    fn write_over(&mut self) -> Result<()> {
        let claim = disk::Mmp::parse(&self.block.own, None)?;
        self.block.bytes.clone_from(&self.clean);
        self.block.write(&claim)
    }
}

/// Returns the common part of two ranges; `None` if it is empty.
fn meet(a: &Range<u64>, b: &Range<u64>) -> Option<Range<u64>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (both.start < both.end).then_some(both)
}

/// Returns the place of a range in bytes that begin at `base`.
fn within(range: &Range<u64>, base: u64) -> Range<usize> {
    (range.start - base) as usize..(range.end - base) as usize
}

/// Turns an error of the claim into one of a write.
fn refused(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        error if error.is(Errno::Busy) => io::Error::other(
            "another host has taken the file system (MMP): nothing is written any more",
        ),
        error => io::Error::other(error.to_string()),
    }
}

impl ClaimedDevice {
    /// Returns the claim if a range of bytes meets its block, or for writes also the superblock.
    fn concerned(&self, offset: u64, len: u64, writes: bool) -> Option<&Shared> {
        let range = offset..offset.saturating_add(len);
        let end = SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64;
        let is_super = writes && meet(&(SUPERBLOCK_OFFSET..end), &range).is_some();
        self.shared.as_deref().filter(|shared| is_super || shared.meets(&range))
    }

    fn check_write(&self) -> io::Result<()> {
        self.shared.as_ref().map_or(Ok(()), |shared| shared.check_write())
    }
}

impl BlockDevice for ClaimedDevice {
    extant_blocks::forward_device!(self => self.inner;
        len, name, read_only, alignment, flush, next_data, claim);

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_exact_at(buf, offset)?;
        if let Some(shared) = self.concerned(offset, buf.len() as u64, false) {
            shared.cover(buf, offset);
        }
        Ok(())
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        if self.concerned(offset, len, false).is_none() {
            return self.inner.read_vectored_at(bufs, offset);
        }
        let mut at = offset;
        for buf in bufs {
            self.read_exact_at(buf, at)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check_write()?;
        match self.concerned(offset, data.len() as u64, true) {
            Some(shared) => shared.write(&*self.inner, data, offset),
            None => self.inner.write_all_at(data, offset),
        }
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        if self.concerned(offset, len, true).is_none() {
            self.check_write()?;
            return self.inner.write_vectored_at(bufs, offset);
        }
        let mut at = offset;
        for buf in bufs {
            self.write_all_at(buf, at)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    /// A block with another content than the inner device's is not the host's to copy.
    fn host_bytes(&self) -> Option<HostBytes<'_>> {
        if self.shared.is_some() { None } else { self.inner.host_bytes() }
    }

    fn copy_from_host(&self, source: HostBytes<'_>, offset: u64, len: u64) -> io::Result<u64> {
        self.check_write()?;
        match self.concerned(offset, len, true) {
            Some(_) => Ok(0),
            None => self.inner.copy_from_host(source, offset, len),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_write()?;
        match self.concerned(offset, len, false) {
            // A device may ignore the call.
            Some(_) => Ok(()),
            None => self.inner.discard(offset, len),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_write()?;
        let Some(shared) = self.concerned(offset, len, true) else {
            return self.inner.write_zeroes(offset, len);
        };
        let step = shared.size.max(1);
        for at in (offset..offset.saturating_add(len)).step_by(step as usize) {
            let zeroes = vec![0; step.min(offset.saturating_add(len) - at) as usize];
            shared.write(&*self.inner, &zeroes, at)?;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_write()?;
        self.inner.set_len(len)
    }
}
