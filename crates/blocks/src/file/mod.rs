//! A device in a file: an image or a disk.
//!
//! # Invariants
//! The device is the bytes `start..start + len` of the file. While the device is open, the file is
//! claimed: see [`options`](OpenOptions). A file or disk that others make longer gives the device
//! its new length when that is asked for; one that they make shorter gives errors.
//!
//! With direct I/O, transfers whose offset and length are multiples of [`ALIGN`] bypass the
//! operating system's page cache, through an aligned copy if their memory is not aligned. Other
//! transfers use the page cache. The operating system keeps both coherent.

mod claim;
mod extents;
mod kernel_use;
mod options;
mod transfer;
mod zero;

pub use options::{OpenOptions, is_write_protected};

use crate::device::{total_len, write_zeroes_plainly};
use crate::error::{check_range, read_only};
use crate::{BlockDevice, DeviceError, HostBytes, Op, Origin, OriginRun};
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustix::fs::{FileType, SeekFrom, Stat, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use transfer::{AlignedBuf, is_aligned};
use zero::Deallocator;

/// Alignment of direct transfers in bytes: of offset, length and memory.
const ALIGN: usize = 4096;

/// Bytes of the aligned copy of a longer direct transfer.
const BOUNCE: usize = 1 << 20;

/// A device in a regular file or on a block device.
#[derive(Debug)]
pub struct FileDevice {
    name: String,
    file: File,
    direct: Option<File>,
    start: u64,
    len: AtomicU64,
    /// The device ends where its file or disk does, at no partition's end.
    open_ended: bool,
    /// The length can be set.
    resizable: bool,
    read_only: bool,
    /// Other descriptors share the lock, so that it must last until all are closed.
    is_shared: AtomicBool,
    deallocator: Deallocator,
    /// Whether the file system tells blocks that are shared, when it was asked.
    tells_shared: OnceLock<bool>,
}

impl FileDevice {
    /// Takes an open regular file that no other program writes to, without a lock.
    ///
    /// # Errors
    /// `InvalidInput` if it is no regular file; those of the operating system.
    pub fn of_file(file: File) -> io::Result<FileDevice> {
        let found = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no regular file"));
        }
        Ok(FileDevice {
            name: format!("/proc/self/fd/{}", file.as_raw_fd()),
            file,
            direct: None,
            start: 0,
            len: AtomicU64::new(u64::try_from(found.st_size).unwrap_or(0)),
            open_ended: true,
            resizable: true,
            read_only: false,
            is_shared: AtomicBool::new(false),
            deallocator: Deallocator::default(),
            tells_shared: OnceLock::new(),
        })
    }

    /// Returns whether aligned transfers bypass the operating system's page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Returns the offset of the device in its file, in bytes.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Adds the position to an error.
    fn at(&self, op: Op, offset: u64, len: u64) -> impl Fn(io::Error) -> io::Error + '_ {
        move |cause| DeviceError { op, device: self.name.clone(), offset, len, cause }.into()
    }

    fn check_read(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(Op::Read, &|| self.name.clone(), self.len(), offset, len)
    }

    fn check_change(&self, op: Op, offset: u64, len: u64) -> io::Result<()> {
        if self.read_only {
            return Err(read_only(op, self.name.clone(), offset, len));
        }
        check_range(op, &|| self.name.clone(), self.len(), offset, len)
    }

    /// Returns the direct file, if a transfer at this offset and of this length may use it.
    fn direct_for(&self, at: u64, len: usize) -> Option<&File> {
        let aligned = at.is_multiple_of(ALIGN as u64) && len.is_multiple_of(ALIGN);
        self.direct.as_ref().filter(|_| aligned)
    }

    fn read_file(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        match self.direct_for(at, buf.len()) {
            None => self.file.read_exact_at(buf, at),
            Some(direct) if is_aligned(buf) => direct.read_exact_at(buf, at),
            Some(direct) => read_bounced(direct, buf, at),
        }
    }

    fn write_file(&self, data: &[u8], at: u64) -> io::Result<()> {
        match self.direct_for(at, data.len()) {
            None => self.file.write_all_at(data, at),
            Some(direct) if is_aligned(data) => direct.write_all_at(data, at),
            Some(direct) => write_bounced(direct, &[IoSlice::new(data)], at),
        }
    }

    fn write_file_vectored(&self, bufs: &[IoSlice<'_>], at: u64, len: u64) -> io::Result<()> {
        match self.direct_for(at, usize::try_from(len).unwrap_or(1)) {
            None => transfer::write_vectored(&self.file, bufs, at),
            Some(direct)
                if bufs.iter().all(|buf| is_aligned(buf) && buf.len().is_multiple_of(ALIGN)) =>
            {
                transfer::write_vectored(direct, bufs, at)
            }
            Some(direct) => write_bounced(direct, bufs, at),
        }
    }

    /// Returns the origin of a range of a regular file: blocks that others share, or the file.
    fn file_origin(&self, found: &Stat, offset: u64, len: u64) -> OriginRun {
        let tells = *self.tells_shared.get_or_init(|| extents::tells_shared_blocks(&self.file));
        // Without an answer the file itself is known.
        let shared = tells.then(|| extents::shared_origin(&self.file, found.st_dev, offset, len));
        let run = shared.and_then(Result::ok).unwrap_or(OriginRun::own(len));
        let own = Origin::Host { device: found.st_dev, ino: Some(found.st_ino), offset };
        OriginRun { origin: if run.origin == Origin::Own { own } else { run.origin }, ..run }
    }

    fn seek(&self, to: SeekFrom) -> rustix::io::Result<Option<u64>> {
        match seek(&self.file, to) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn zero_data(&self, offset: u64, len: u64) -> io::Result<()> {
        match self.deallocator.zero(&self.file, self.start + offset, len) {
            Ok(true) => Ok(()),
            Ok(false) => write_zeroes_plainly(self, offset, len),
            Err(error) => Err(self.at(Op::Zero, offset, len)(error)),
        }
    }

    /// Returns the next range of the file with data, within the device. Returns `None` if none
    /// follows.
    fn seek_data(&self, offset: u64) -> rustix::io::Result<Option<Range<u64>>> {
        let end = self.start + self.len();
        let Some(data) = self.seek(SeekFrom::Data(self.start + offset))? else { return Ok(None) };
        let hole = self.seek(SeekFrom::Hole(data))?.unwrap_or(end).min(end);
        Ok((data < hole).then(|| data - self.start..hole - self.start))
    }
}

fn read_bounced(direct: &File, buf: &mut [u8], at: u64) -> io::Result<()> {
    let mut bounce = AlignedBuf::new(buf.len().min(BOUNCE));
    let mut place = at;
    for part in buf.chunks_mut(BOUNCE) {
        let bytes = &mut bounce.bytes_mut()[..part.len()];
        direct.read_exact_at(bytes, place)?;
        part.copy_from_slice(bytes);
        place += part.len() as u64;
    }
    Ok(())
}

/// Writes through an aligned copy. The total length must be a multiple of the alignment.
fn write_bounced(direct: &File, bufs: &[IoSlice<'_>], at: u64) -> io::Result<()> {
    let size = usize::try_from(total_len(bufs)).unwrap_or(BOUNCE).min(BOUNCE);
    let mut bounce = AlignedBuf::new(size);
    let mut place = at;
    let mut filled = 0;
    for buf in bufs {
        let mut rest: &[u8] = buf;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(size - filled));
            bounce.bytes_mut()[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
            rest = after;
            if filled == size {
                direct.write_all_at(bounce.bytes_mut(), place)?;
                place += size as u64;
                filled = 0;
            }
        }
    }
    direct.write_all_at(&bounce.bytes_mut()[..filled], place)
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if !self.is_shared.load(Ordering::Acquire) {
            claim::unlock(&self.file);
        }
    }
}

impl BlockDevice for FileDevice {
    fn share_file(&self) -> io::Result<File> {
        self.is_shared.store(true, Ordering::Release);
        self.file.try_clone()
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let len = buf.len() as u64;
        self.check_read(offset, len)?;
        self.read_file(buf, self.start + offset).map_err(self.at(Op::Read, offset, len))
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let len = data.len() as u64;
        self.check_change(Op::Write, offset, len)?;
        self.write_file(data, self.start + offset).map_err(self.at(Op::Write, offset, len))
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.check_read(offset, len)?;
        let at = self.start + offset;
        let result = if self.direct.is_some() {
            let mut place = at;
            bufs.iter_mut().try_for_each(|buf| {
                let this = place;
                place += buf.len() as u64;
                self.read_file(buf, this)
            })
        } else {
            transfer::read_vectored(&self.file, bufs, at)
        };
        result.map_err(self.at(Op::Read, offset, len))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len = total_len(bufs);
        self.check_change(Op::Write, offset, len)?;
        self.write_file_vectored(bufs, self.start + offset, len).map_err(self.at(
            Op::Write,
            offset,
            len,
        ))
    }

    fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.file.sync_data().map_err(self.at(Op::Flush, 0, self.len()))
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_change(Op::Discard, offset, len)?;
        let result = self.deallocator.discard(&self.file, self.start + offset, len);
        result.map_err(self.at(Op::Discard, offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_change(Op::Zero, offset, len)?;
        // Holes are zero already, and stay holes.
        let (mut at, end) = (offset, offset + len);
        while at < end
            && let Some(data) = self.next_data(at)?
            && data.start < end
        {
            let part = data.start.max(at)..data.end.min(end);
            self.zero_data(part.start, part.end - part.start)?;
            at = part.end;
        }
        Ok(())
    }

    fn origin(&self, offset: u64, len: u64) -> io::Result<OriginRun> {
        self.check_read(offset, len)?;
        let found = rustix::fs::fstat(&self.file)?;
        let offset = self.start + offset;
        let origin = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => return Ok(self.file_origin(&found, offset, len)),
            FileType::BlockDevice => Origin::Host { device: found.st_rdev, ino: None, offset },
            _ => Origin::Own,
        };
        Ok(OriginRun { origin, len })
    }

    fn host_bytes(&self) -> Option<HostBytes<'_>> {
        // The copy would go through the page cache.
        self.direct.is_none().then(|| HostBytes::new(&self.file, self.start))
    }

    fn copy_from_host(&self, source: HostBytes<'_>, offset: u64, len: u64) -> io::Result<u64> {
        self.check_change(Op::Write, offset, len)?;
        let plain = self.direct.is_none();
        Ok(if plain { source.copy_to(&self.file, self.start + offset, len) } else { 0 })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.read_only {
            return Err(read_only(Op::SetLen, self.name.clone(), 0, len));
        }
        let end = self.start.checked_add(len).filter(|end| *end <= i64::MAX as u64);
        let unsupported =
            || io::Error::new(io::ErrorKind::Unsupported, "the device's length is fixed");
        let too_long = || Errno::FBIG.into();
        let result = match end {
            _ if !self.resizable => Err(unsupported()),
            None => Err(too_long()),
            Some(end) => self.file.set_len(end),
        };
        result.map_err(self.at(Op::SetLen, 0, len))?;
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn refresh_len(&self) -> io::Result<u64> {
        if self.open_ended {
            let end = seek(&self.file, SeekFrom::End(0)).map_err(io::Error::from);
            let end = end.map_err(self.at(Op::Read, 0, self.len()))?;
            self.len.fetch_max(end.saturating_sub(self.start), Ordering::AcqRel);
        }
        Ok(self.len())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let len = self.len();
        if offset >= len {
            return Ok(None);
        }
        match self.seek_data(offset) {
            Ok(range) => Ok(range),
            Err(Errno::INVAL) => Ok(Some(offset..len)),
            Err(error) => Err(self.at(Op::Read, offset, len - offset)(error.into())),
        }
    }
}
