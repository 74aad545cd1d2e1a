//! Bytes in their order: parts of files, and streams that cannot be read twice.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
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

/// Bytes that [`Headers`] reads at once: a header with its extensions, as a rule.
const WINDOW: usize = 4096;

/// A part of a file that is read for the headers in it, and passed over in between.
#[derive(Debug)]
pub(crate) struct Headers {
    section: Section,
    window: Box<[u8; WINDOW]>,
    /// The bytes of the window that come next.
    ready: Range<usize>,
}

impl Headers {
    pub(crate) fn new(section: Section) -> Headers {
        Headers { section, window: Box::new([0; WINDOW]), ready: 0..0 }
    }
}

impl Read for Headers {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.ready.is_empty() {
            if buf.len() >= WINDOW {
                return self.section.read(buf);
            }
            self.ready = 0..self.section.read(&mut self.window[..])?;
        }
        let ready = self.window.get(self.ready.clone()).unwrap_or_default();
        let len = ready.len().min(buf.len());
        buf[..len].copy_from_slice(&ready[..len]);
        self.ready.start += len;
        Ok(len)
    }
}

impl Stream for Headers {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let ready = self.ready.len() as u64;
        if count <= ready {
            self.ready.start += count as usize;
            return Ok(count);
        }
        self.ready = 0..0;
        Ok(ready + self.section.skip(count - ready)?)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::Spool;
    use std::io::Write;

    /// Reads and skips of any length see the bytes of the section, and no others.
    #[test]
    fn headers_are_read_between_skips() {
        let bytes: Vec<u8> = (0..40_000_u32).map(|n| (n / 3) as u8).collect();
        let mut spool = Spool::new(&std::env::temp_dir()).unwrap();
        spool.write_all(&bytes).unwrap();
        let file = spool.file().unwrap().clone();
        let mut headers = Headers::new(Section::new(file, 100, 30_000));
        let bytes = &bytes[100..30_100];
        let mut at = 0;
        for (read, skip) in [(512, 0), (512, 3000), (100, 4096), (5000, 1), (10, 9000), (4096, 7)] {
            let mut found = vec![0; read];
            assert_eq!(fill(&mut headers, &mut found).unwrap(), read);
            assert!(found == bytes[at..at + read], "{at}");
            assert_eq!(headers.skip(skip).unwrap(), skip);
            at += read + skip as usize;
        }
        let left = bytes.len() - at;
        assert_eq!(headers.skip(u64::MAX).unwrap(), left as u64);
        assert_eq!(headers.read(&mut [0; 10]).unwrap(), 0);
    }
}
