//! Fast commits: small logical records between full commits. Their numbers are little-endian.
//!
//! # Invariants
//! A record never crosses a block. Records count only up to the last tail whose transaction and
//! checksum are right; the checksum of a tail covers everything since the one before it, from the
//! raw seed 0.

use crate::bytes::{le16, le32};
use crate::checksum::crc32c_raw;
use crate::extent::Leaf;
use crate::types::{InodeNr, LogicalBlock};

const TLV_HEADER: usize = 4;

/// A range of a file's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FcRange {
    /// The file.
    pub ino: InodeNr,
    /// The first block.
    pub first: LogicalBlock,
    /// Number of blocks.
    pub len: u32,
}

/// The end of a fast commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastCommitTail {
    /// The transaction that follows the last full commit.
    pub tid: u32,
    /// The checksum that the tail carries.
    pub checksum: u32,
    /// The checksum of the bytes that were read since the tail before.
    pub computed: u32,
}

impl FastCommitTail {
    /// Returns whether the records up to this tail may be replayed after the full commit before
    /// `tid`.
    pub const fn valid_for(&self, tid: u32) -> bool {
        self.tid == tid && self.checksum == self.computed
    }
}

/// A record of a fast commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastCommitTag<'a> {
    /// A file has gained an extent.
    AddRange(InodeNr, Leaf),
    /// A file has lost blocks.
    DelRange(FcRange),
    /// A file was created; parent, file, name.
    Create(InodeNr, InodeNr, &'a [u8]),
    /// A name was added; parent, file, name.
    Link(InodeNr, InodeNr, &'a [u8]),
    /// A name was removed; parent, file, name.
    Unlink(InodeNr, InodeNr, &'a [u8]),
    /// The inode's slot, as far as it is used.
    Inode(InodeNr, &'a [u8]),
    /// Padding to the end of a block.
    Pad,
    /// The end of a fast commit.
    Tail(FastCommitTail),
    /// The beginning of the area: features and transaction.
    Head(u32, u32),
    /// A record of an unknown type, with the type's number.
    Unknown(u16),
}

/// The records in one block of the fast-commit area.
///
/// The running checksum is carried from block to block: take it with [`checksum`](Self::checksum)
/// at a block's end and give it to the next.
#[derive(Clone, Debug)]
pub struct FastCommitTags<'a> {
    block: &'a [u8],
    next: usize,
    checksum: u32,
}

impl<'a> FastCommitTags<'a> {
    /// Reads a block; `checksum` is 0 at the area's beginning.
    pub fn new(block: &'a [u8], checksum: u32) -> FastCommitTags<'a> {
        FastCommitTags { block, next: 0, checksum }
    }

    /// Returns the running checksum so far.
    pub const fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Returns whether the block was read to its end: no record fits the remaining bytes.
    pub const fn is_at_end(&self) -> bool {
        self.next.saturating_add(TLV_HEADER) > self.block.len()
    }

    fn named(value: &'a [u8]) -> Option<(InodeNr, InodeNr, &'a [u8])> {
        let name = value.get(8..).filter(|name| (1..=255).contains(&name.len()))?;
        Some((InodeNr(le32(value, 0)), InodeNr(le32(value, 4)), name))
    }

    fn range(value: &[u8]) -> Option<FcRange> {
        let first = LogicalBlock(le32(value, 4));
        (value.len() >= 12).then(|| FcRange {
            ino: InodeNr(le32(value, 0)),
            first,
            len: le32(value, 8),
        })
    }

    fn tail(&mut self, start: usize) -> Option<FastCommitTail> {
        let (value, _) = self.block.get(start.checked_add(TLV_HEADER)?..)?.split_at_checked(8)?;
        let (covered, _) = self.block.get(start..)?.split_at_checked(TLV_HEADER + 4)?;
        let computed = crc32c_raw(self.checksum, covered);
        self.checksum = 0;
        Some(FastCommitTail { tid: le32(value, 0), checksum: le32(value, 4), computed })
    }

    fn decode(kind: u16, value: &'a [u8]) -> Option<FastCommitTag<'a>> {
        let ino = InodeNr(le32(value, 0));
        Some(match kind {
            1 => FastCommitTag::AddRange(ino, Leaf::decode(value.get(4..16)?)),
            2 => FastCommitTag::DelRange(Self::range(value)?),
            3 => Self::named(value)
                .map(|(parent, ino, name)| FastCommitTag::Create(parent, ino, name))?,
            4 => Self::named(value)
                .map(|(parent, ino, name)| FastCommitTag::Link(parent, ino, name))?,
            5 => Self::named(value)
                .map(|(parent, ino, name)| FastCommitTag::Unlink(parent, ino, name))?,
            6 => FastCommitTag::Inode(ino, value.get(4..).filter(|slot| slot.len() >= 128)?),
            7 => FastCommitTag::Pad,
            9 => FastCommitTag::Head(ino.0, value.get(4..8).map(|tid| le32(tid, 0))?),
            other => FastCommitTag::Unknown(other),
        })
    }
}

const TAIL: u16 = 8;

impl<'a> Iterator for FastCommitTags<'a> {
    type Item = FastCommitTag<'a>;

    /// Returns the next record; `None` at the block's end and at bytes that are no record.
    fn next(&mut self) -> Option<FastCommitTag<'a>> {
        let start = self.next;
        let header = self.block.get(start..start.checked_add(TLV_HEADER)?)?;
        let (kind, len) = (le16(header, 0), usize::from(le16(header, 2)));
        let end = start.checked_add(TLV_HEADER)?.checked_add(len)?;
        let record = self.block.get(start..end)?;
        self.next = end;
        if kind == TAIL {
            return self.tail(start).map(FastCommitTag::Tail);
        }
        let tag = Self::decode(kind, record.get(TLV_HEADER..)?)?;
        self.checksum = crc32c_raw(self.checksum, record);
        Some(tag)
    }
}
