//! Linear directory blocks.
//!
//! Functions work on an *area*: the part of a block before its checksum tail (see
//! [`DirFormat::area`]), or one of the two parts of an inline directory. Records cover an area
//! without gaps.
//!
//! # Invariants
//! Reading is total: an entry is given only if its record and name lie in the area. After an error
//! an iteration ends.

mod edit;
mod read;
mod slack;
mod tail;
#[cfg(test)]
mod tests;

pub use edit::{NewEntry, fill, init_area, insert, put_entry, remove, set_rec_len, set_target};
pub use read::{
    DirEntry, Entries, Search, dot_dot, entries, find, find_room, largest_gap, room_at, search,
};
pub use slack::removed;
pub use tail::{DIR_TAIL_SIZE, has_tail, init_tail, seal_dir_leaf, verify_leaf};

use crate::features::Incompat;
use crate::geometry::Geometry;
use crate::types::InodeNr;

/// Maximum length of a name in bytes.
pub const NAME_MAX: usize = 255;

const HEADER_SIZE: usize = 8;
/// The shortest record: a header and one character, padded.
const MIN_REC_LEN: usize = 12;

/// Returns the number of bytes of a record for a name: header and name, padded to four.
pub const fn entry_len(name_len: usize) -> usize {
    name_len.saturating_add(HEADER_SIZE).next_multiple_of(4)
}

/// The inodes of `.` and `..`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dots {
    /// The directory.
    pub own: InodeNr,
    /// Its parent.
    pub parent: InodeNr,
}

impl Dots {
    /// Writes both entries; the record of `..` takes the rest of the area.
    pub(crate) fn put(self, area: &mut [u8], format: &DirFormat) {
        let first = entry_len(1);
        let rest = area.len().saturating_sub(first);
        put_entry(area, format, 0, first, NewEntry::directory(self.own, b"."));
        put_entry(area, format, first, rest, NewEntry::directory(self.parent, b".."));
    }
}

/// Format of the directory blocks of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirFormat {
    /// Bytes of a block.
    pub block_size: u32,
    /// Whether entries carry file types.
    pub filetype: bool,
    /// Whether blocks end with a checksum.
    pub metadata_csum: bool,
    /// Whether hash trees may have a third level.
    pub largedir: bool,
}

impl DirFormat {
    /// Returns the format that follows from the file system's features.
    pub fn new(geo: &Geometry) -> DirFormat {
        DirFormat {
            block_size: geo.block_size,
            filetype: geo.has_filetype(),
            metadata_csum: geo.metadata_csum,
            largedir: geo.incompat(Incompat::LARGEDIR),
        }
    }

    /// Returns the number of bytes of a block that entries may take.
    #[inline]
    pub const fn usable(&self) -> usize {
        let tail = if self.metadata_csum { DIR_TAIL_SIZE } else { 0 };
        (self.block_size as usize).saturating_sub(tail)
    }

    /// Returns the part of a block that holds entries.
    #[inline]
    pub fn area<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        crate::bytes::part(block, 0, self.usable())
    }

    /// Returns the part of a block that holds entries, to be changed.
    #[inline]
    pub fn area_mut<'a>(&self, block: &'a mut [u8]) -> &'a mut [u8] {
        crate::bytes::part_mut(block, 0, self.usable())
    }

    /// Makes an empty block.
    pub fn init_block(&self, block: &mut [u8]) {
        block.fill(0);
        init_area(self.area_mut(block), self);
        if self.metadata_csum {
            init_tail(block);
        }
    }

    /// Makes the first block of a directory: `.` and `..`.
    pub fn init_first_block(&self, block: &mut [u8], dots: Dots) {
        self.init_block(block);
        dots.put(self.area_mut(block), self);
    }

    /// A record length from its two bytes. Blocks of 64 KiB need lengths that 16 bits do not hold.
    #[inline]
    fn decode_rec_len(&self, raw: u16) -> usize {
        let len = usize::from(raw);
        if self.block_size < 65536 {
            return len;
        }
        if raw == 0xFFFF || raw == 0 {
            self.block_size as usize
        } else {
            len & 0xFFFC | (len & 3) << 16
        }
    }

    #[inline]
    pub(crate) fn encode_rec_len(&self, len: usize) -> u16 {
        match len {
            0..65536 => len as u16,
            65536 => 0xFFFF,
            _ => (len & 0xFFFC | len >> 16 & 3) as u16,
        }
    }
}
