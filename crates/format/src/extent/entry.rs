//! The entries of extent nodes: extents in leaves, index entries above.

use crate::bytes::{le16, le32, put_le16, put_le32};
use crate::error::{Corrupt, Result};
use crate::geometry::Geometry;
use crate::types::BlockNr;

/// Blocks of a written extent at most.
pub const MAX_WRITTEN_LEN: u16 = 32768;

/// Blocks of an unwritten extent at most.
pub const MAX_UNWRITTEN_LEN: u16 = 32767;

/// Encoded lengths above this value denote unwritten extents.
const UNWRITTEN_BASE: u16 = 32768;

/// An extent: consecutive logical blocks at consecutive physical blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Leaf {
    /// The first logical block.
    pub lblk: u32,
    /// Number of blocks: 1 to [`MAX_WRITTEN_LEN`] or [`MAX_UNWRITTEN_LEN`].
    pub len: u16,
    /// Whether the blocks are allocated but read as zeros.
    pub unwritten: bool,
    /// The first physical block, 48 bits.
    pub pblk: u64,
}

impl Leaf {
    /// Reads an entry.
    pub fn decode(bytes: &[u8]) -> Leaf {
        let raw = le16(bytes, 4);
        let unwritten = raw > UNWRITTEN_BASE;
        Leaf {
            lblk: le32(bytes, 0),
            len: if unwritten { raw.saturating_sub(UNWRITTEN_BASE) } else { raw },
            unwritten,
            pblk: u64::from(le16(bytes, 6)) << 32 | u64::from(le32(bytes, 8)),
        }
    }

    /// Writes an entry.
    pub fn encode(&self, bytes: &mut [u8]) {
        let flag = if self.unwritten { UNWRITTEN_BASE } else { 0 };
        put_le32(bytes, 0, self.lblk);
        put_le16(bytes, 4, self.len.wrapping_add(flag));
        put_le16(bytes, 6, (self.pblk >> 32) as u16);
        put_le32(bytes, 8, self.pblk as u32);
    }

    /// Returns the logical block after the last one; 64 bits, since it may exceed the range of
    /// `u32`.
    pub const fn end(&self) -> u64 {
        (self.lblk as u64).saturating_add(self.len as u64)
    }

    /// Returns the physical block after the last one.
    pub const fn physical_end(&self) -> u64 {
        self.pblk.saturating_add(self.len as u64)
    }

    /// Returns the last logical block.
    pub const fn last(&self) -> u32 {
        self.lblk.saturating_add(self.len as u32).saturating_sub(1)
    }

    /// Returns whether the logical block is one of the extent's.
    pub const fn contains(&self, lblk: u32) -> bool {
        lblk >= self.lblk && (lblk as u64) < self.end()
    }

    /// Returns the physical block of a logical block of the extent.
    pub fn map(&self, lblk: u32) -> Option<u64> {
        let offset = lblk.checked_sub(self.lblk).filter(|_| self.contains(lblk))?;
        Some(self.pblk.saturating_add(offset.into()))
    }

    /// Returns the maximum length in blocks of an extent of this kind.
    pub const fn max_len(unwritten: bool) -> u16 {
        if unwritten { MAX_UNWRITTEN_LEN } else { MAX_WRITTEN_LEN }
    }

    /// Returns whether `next` continues this extent and both together fit one extent.
    pub fn can_join(&self, next: &Leaf) -> bool {
        self.end() == u64::from(next.lblk)
            && self.physical_end() == next.pblk
            && self.unwritten == next.unwritten
            && self
                .len
                .checked_add(next.len)
                .is_some_and(|len| len <= Leaf::max_len(self.unwritten))
    }

    /// Verifies that the blocks lie in the file system.
    ///
    /// # Errors
    /// [`Corrupt`] with the physical block if they do not.
    pub fn check_physical(&self, geo: &Geometry) -> Result<()> {
        if geo.data_range_valid(BlockNr(self.pblk), self.len.into()) {
            return Ok(());
        }
        Err(Corrupt::new("extent")
            .field("physical block")
            .found(self.pblk)
            .expected(geo.blocks_count))
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.len == 0 {
            return Err(Corrupt::new("extent").field("length").found(0u64));
        }
        if self.end() > u64::from(u32::MAX) {
            return Err(Corrupt::new("extent").field("logical block").found(self.lblk));
        }
        Ok(())
    }
}

/// An index entry: the node below, and the first logical block that it may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Index {
    /// The first logical block.
    pub lblk: u32,
    /// The block of the node below, 48 bits.
    pub child: u64,
}

impl Index {
    /// Reads an entry.
    pub fn decode(bytes: &[u8]) -> Index {
        Index {
            lblk: le32(bytes, 0),
            child: u64::from(le16(bytes, 8)) << 32 | u64::from(le32(bytes, 4)),
        }
    }

    /// Writes an entry.
    pub fn encode(&self, bytes: &mut [u8]) {
        put_le32(bytes, 0, self.lblk);
        put_le32(bytes, 4, self.child as u32);
        put_le16(bytes, 8, (self.child >> 32) as u16);
        put_le16(bytes, 10, 0);
    }

    /// Verifies that the node below lies in the file system.
    ///
    /// # Errors
    /// [`Corrupt`] with the block if it does not.
    pub fn check_physical(&self, geo: &Geometry) -> Result<()> {
        if geo.data_range_valid(BlockNr(self.child), 1) {
            return Ok(());
        }
        Err(Corrupt::new("extent index")
            .field("child block")
            .found(self.child)
            .expected(geo.blocks_count))
    }
}
