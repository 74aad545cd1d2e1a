//! Bytes in their order: parts of files, and streams that cannot be read twice.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes read at a time.
pub(crate) const PIECE: usize = 256 << 10;

/// A reader that can pass over bytes.
pub(crate) trait Stream: Read {
    /// Passes over `count` bytes, or over all that are left if these are fewer. Returns their
    /// number.
    ///
    /// # Errors
    /// Those of the stream.
    fn skip(&mut self, count: u64) -> io::Result<u64>;

    /// Returns the next bytes, as many as `buf` has at most, in `buf` or in a buffer of its own;
    /// none at the end.
    ///
    /// # Errors
    /// Those of the stream.
    fn part<'a>(&'a mut self, buf: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let read = loop {
            match self.read(buf) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        Ok(buf.get(..read).unwrap_or_default())
    }
}

impl<S: Stream + ?Sized> Stream for Box<S> {
    fn part<'a>(&'a mut self, buf: &'a mut [u8]) -> io::Result<&'a [u8]> {
        (**self).part(buf)
    }

    fn skip(&mut self, count: u64) -> io::Result<u64> {
        (**self).skip(count)
    }
}

/// A part of a file.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    file: Arc<File>,
    next: u64,
    end: u64,
}

impl Section {
    /// Makes a section of `len` bytes from `start`. The file may be shorter.
    pub(crate) fn new(file: Arc<File>, start: u64, len: u64) -> Section {
        Section { file, next: start, end: start.saturating_add(len) }
    }

    /// Returns the file.
    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Returns the offset in the file of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.next
    }

    /// Returns the bytes that are left.
    pub(crate) fn len(&self) -> u64 {
        self.end - self.next
    }
}

impl Read for Section {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.len()).map_or(buf.len(), |left| left.min(buf.len()));
        let read = self.file.read_at(buf.get_mut(..len).unwrap_or_default(), self.next)?;
        self.next += read as u64;
        Ok(read)
    }
}

impl Stream for Section {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let passed = count.min(self.len());
        self.next += passed;
        Ok(passed)
    }
}

/// A reader whose bytes are read to pass over them.
#[derive(Debug)]
pub(crate) struct Sequential<R>(pub R);

impl<R: Read> Read for Sequential<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl<R: Read> Stream for Sequential<R> {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        io::copy(&mut (&mut self.0).take(count), &mut io::sink())
    }
}

/// Fills `buf`; returns the number of bytes before the end.
pub(crate) fn fill(reader: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
