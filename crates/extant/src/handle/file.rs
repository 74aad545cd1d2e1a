//! An open regular file.

use super::Inode;
use crate::core::{Core, number};
use crate::error::{Error, ErrorKind, Op, Result};
use crate::types::Extent;
use extant_engine as engine;
use extant_engine::{Errno, Falloc};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// An open regular file. It keeps the inode alive after its last name is removed, and is closed
/// when dropped. Any number of threads may call the methods that take an offset.
///
/// [`Read`], [`Write`] and [`Seek`] use a position that begins at 0. [`Write::flush`] does nothing:
/// [`File::sync`] makes content durable.
///
/// After [`Fs::unmount`](crate::Fs::unmount) calls fail with
/// [`Unmounted`](ErrorKind::Unmounted).
///
/// ```
/// # use extant::*;
/// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
/// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
/// let file = fs.create_file("/f")?;
/// file.write_all_at(b"hello", 3)?;
/// file.sync()?;
/// let mut buf = [0; 16];
/// assert_eq!(file.read_at(&mut buf, 0)?, 8);
/// assert_eq!(&buf[..8], b"\0\0\0hello");
/// # drop(file); fs.unmount()?; Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct File {
    // Before `core`: the engine's file is closed before the file system.
    file: engine::File,
    core: Arc<Core>,
    position: u64,
}

impl File {
    pub(crate) fn new(core: &Arc<Core>, file: engine::File) -> File {
        File { file, core: core.clone(), position: 0 }
    }

    #[inline]
    fn done<T>(&self, op: Op, done: engine::Result<T>) -> Result<T> {
        self.core.done(op, number(self.file.node()), done)
    }

    /// The inode of the file.
    pub fn inode(&self) -> Inode {
        Inode::new(&self.core, self.file.node().clone())
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, as in std")]
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Reads from an offset in bytes, and gives the number of bytes: fewer than `buf` has only at
    /// the end of the file. See [`File`] for an example.
    ///
    /// # Errors
    /// Those of every call ([`Fs`](crate::Fs#errors)).
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.done(Op::Read, self.file.read_at(offset, buf))
    }

    /// Reads all content, whose length may change meanwhile. The length that the inode claims
    /// reserves no memory beyond a chunk: a sparse file of a hostile image claims any.
    pub(crate) fn read_all(&self) -> Result<Vec<u8>> {
        const CHUNK: usize = 1 << 20;
        let mut content = Vec::new();
        loop {
            let from = content.len();
            let left = self.len().saturating_sub(from as u64);
            let more = usize::try_from(left).unwrap_or(CHUNK).clamp(1, CHUNK.max(from));
            if content.try_reserve(more).is_err() {
                return Err(Error::new(ErrorKind::FileTooLarge, Errno::FBig, Op::Read));
            }
            content.resize(from + more, 0);
            let n = self.read_at(&mut content[from..], from as u64)?;
            content.truncate(from + n);
            if n < more {
                return Ok(content);
            }
        }
    }

    /// Writes all of `data` at an offset in bytes; at the end for a file that was opened to append.
    /// The content is durable after [`File::sync`].
    ///
    /// # Errors
    /// `NoSpace`, `QuotaExceeded`, `FileTooLarge`, `ReadOnly`, `PermissionDenied` for a file that
    /// was not opened to write; those of every call ([`Fs`](crate::Fs#errors)). After an error a
    /// beginning of `data` may have been written.
    #[inline]
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let (mut data, mut offset) = (data, offset);
        loop {
            let n = self.done(Op::Write, self.file.write_at(offset, data))?;
            if n >= data.len() {
                return Ok(());
            }
            if n == 0 {
                return Err(Error::new(ErrorKind::Other, Errno::Io, Op::Write));
            }
            (data, offset) = (&data[n..], offset.saturating_add(n as u64));
        }
    }

    /// Cuts the file to a length in bytes, or lets it grow with a hole.
    ///
    /// # Errors
    /// As [`File::write_all_at`].
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.done(Op::SetLen, self.file.set_len(len))
    }

    /// Allocates, zeroes, removes or moves a range, offset and length in bytes, as fallocate(2).
    ///
    /// # Errors
    /// `Unsupported` for a file that is mapped by indirect blocks, `InvalidInput` for an empty
    /// range, or one that must consist of whole blocks and does not; as [`File::write_all_at`].
    pub fn allocate(&self, how: Falloc, offset: u64, len: u64) -> Result<()> {
        self.done(Op::Allocate, self.file.allocate(how, offset, len))
    }

    /// Iterates over the parts of the file that have space, in order. Any call is allowed between
    /// two items; each part is of the moment at which it was read.
    ///
    /// ```
    /// # use extant::*;
    /// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
    /// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
    /// let file = fs.create_file("/sparse")?;
    /// file.write_all_at(&[1; 4096], 1 << 20)?;
    /// file.sync()?;
    /// let extents: Vec<Extent> = file.extents().collect::<Result<_>>()?;
    /// assert_eq!((extents[0].offset, extents[0].len), (1 << 20, 4096));
    /// # drop(file); fs.unmount()?; Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// An item is an error of every call ([`Fs`](crate::Fs#errors)), and the last item then.
    pub fn extents(&self) -> Extents<'_> {
        Extents { file: self, batch: Vec::new().into_iter(), next: Some(0) }
    }

    /// Makes content and attributes durable, and the names that lead to the file. A writeback that
    /// failed is told once to each open file.
    ///
    /// # Errors
    /// `Device`, `Aborted`, `NoSpace`; those of every call ([`Fs`](crate::Fs#errors)).
    pub fn sync(&self) -> Result<()> {
        self.done(Op::Sync, self.file.sync())
    }

    /// As [`File::sync`], without attributes that reading the content does not need, such as times.
    ///
    /// # Errors
    /// As [`File::sync`].
    pub fn sync_data(&self) -> Result<()> {
        self.done(Op::Sync, self.file.sync_data())
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.read_at(buf, self.position)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let n = self.done(Op::Write, self.file.write_at(self.position, data))?;
        self.position = self.position.saturating_add(n as u64);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(distance) => self.len().checked_add_signed(distance),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
        };
        let invalid = || Error::new(ErrorKind::InvalidInput, Errno::Inval, Op::Seek);
        self.position = position.ok_or_else(invalid)?;
        Ok(self.position)
    }
}

/// Extents that are read at once.
const BATCH: usize = 64;

/// The iterator of [`File::extents`].
#[derive(Debug)]
pub struct Extents<'a> {
    file: &'a File,
    batch: std::vec::IntoIter<Extent>,
    /// The offset to read on from; `None` at the end.
    next: Option<u64>,
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(extent) = self.batch.next() {
            return Some(Ok(extent));
        }
        let from = self.next.take()?;
        let mut batch = Vec::new();
        let done = self.file.file.extents(from, u64::MAX - from, |extent| {
            batch.push(Extent::of(extent));
            batch.len() < BATCH
        });
        if let Err(error) = self.file.done(Op::Extents, done) {
            return Some(Err(error));
        }
        if batch.len() == BATCH {
            self.next = batch.last().map(|last| last.offset.saturating_add(last.len));
        }
        self.batch = batch.into_iter();
        self.batch.next().map(Ok)
    }
}
