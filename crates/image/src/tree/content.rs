//! Content of files: bytes in memory, or ranges of a source that are read when the image is
//! written.

use extant_blocks::HostBytes;
use std::io;

/// A place with the content of files, such as an archive or a directory.
///
/// Content is read after the whole tree is known, by several threads at once, and possibly twice.
pub trait ContentSource: Send + Sync {
    /// Opens the content at `position`, a number that the source chose when the file was added: an
    /// offset in an archive, or the index of a file.
    ///
    /// # Errors
    /// Those of the medium; an error if the content has changed since the file was added.
    fn open(&self, position: u64) -> io::Result<Box<dyn OpenContent + '_>>;

    /// Verifies that no content has changed since the files were added. Called after the last read
    /// of all.
    ///
    /// # Errors
    /// An error if content has changed.
    fn finish(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Open content of a file.
pub trait OpenContent {
    /// Fills `buf` from `offset`, in bytes from the content's start.
    ///
    /// # Errors
    /// Those of the medium; `UnexpectedEof` if the content has fewer bytes.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Returns the content's bytes in a file of the host, if there is one: large content is copied
    /// by the host then, without being read.
    fn host_bytes(&self) -> Option<HostBytes<'_>> {
        None
    }

    /// Verifies that the content is still the one that was opened. Called after the last read.
    ///
    /// # Errors
    /// An error if the content has changed.
    fn finish(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Content that a stream has brought, and that cannot be read again.
pub(super) struct Written;

impl ContentSource for Written {
    fn open(&self, _: u64) -> io::Result<Box<dyn OpenContent + '_>> {
        Err(io::Error::other("its bytes were written to the image when they arrived"))
    }
}

/// A source that was added to a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceId(pub(super) u32);

/// A range of a file with data; bytes outside of all ranges are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataRange {
    /// First byte in the file.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Position that [`ContentSource::open`] takes.
    pub position: u64,
    /// Bytes of the opened content before the range.
    pub skip: u64,
}

impl DataRange {
    /// Returns the byte of the file after the range.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Returns the byte of the opened content that is byte `offset` of the file, which the range
    /// has.
    pub(super) fn in_content(&self, offset: u64) -> u64 {
        self.skip + (offset - self.start)
    }
}

/// Content of a new file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FileContent {
    /// Bytes, which the tree keeps in memory.
    Bytes(Vec<u8>),
    /// `size` bytes from `position` of a source.
    Whole {
        /// Source.
        source: SourceId,
        /// Position that [`ContentSource::open`] takes.
        position: u64,
        /// Bytes.
        size: u64,
    },
    /// `size` zero bytes, as a hole.
    Zeroes {
        /// Bytes.
        size: u64,
    },
    /// `size` bytes, zero outside of the ranges.
    Sparse {
        /// Source of all ranges.
        source: SourceId,
        /// Bytes of the file.
        size: u64,
        /// Ranges with data, ascending, without overlap.
        ranges: Vec<DataRange>,
    },
}

/// Content as a node stores it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoredContent {
    /// Zeroes, or no bytes at all.
    Hole,
    /// Bytes from this offset of the tree's own ones.
    Bytes(u64),
    /// The whole of a position.
    Whole { source: SourceId, position: u64 },
    /// Ranges, by their index.
    Sparse { source: SourceId, index: u32 },
}

/// Returns whether ranges are ascending, disjoint, not empty, and within `size` bytes.
pub(super) fn are_valid(ranges: &[DataRange], size: u64) -> bool {
    let mut end = 0;
    ranges.iter().all(|range| {
        let valid = range.len > 0
            && range.start >= end
            && range.start.checked_add(range.len).is_some_and(|end| end <= size)
            && range.skip.checked_add(range.len).is_some();
        end = range.end();
        valid
    })
}
