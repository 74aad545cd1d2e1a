//! The two bitmaps of a group: read and verified, or made up where they were never written.
//!
//! # Locking
//! The caller holds its own lock of the group and the kind of bitmap, so that a bitmap is
//! initialised once.

use super::{Groups, Kind};
use crate::error::{Error, Result};
use extant_blocks::Buffer;
use extant_format::Geometry;
use extant_format::error::Corrupt;
use extant_format::group_desc::{self, GroupDesc, GroupFlags};
use extant_format::types::GroupNr;
use extant_journal::{Handle, Seal};
use std::sync::Arc;

/// A bitmap to look at.
#[derive(Debug)]
pub enum Bitmap {
    /// As it is in its block.
    Block(Arc<Buffer>),
    /// The block may have any content; these bytes are used in its place.
    Made(Vec<u8>),
}

impl Bitmap {
    /// Runs `f` on the bits.
    pub fn with<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Bitmap::Block(buffer) => f(&buffer.read()),
            Bitmap::Made(bits) => f(bits),
        }
    }
}

impl Kind {
    fn flag(self) -> GroupFlags {
        match self {
            Kind::Blocks => GroupFlags::BLOCK_UNINIT,
            Kind::Inodes => GroupFlags::INODE_UNINIT,
        }
    }

    fn block(self, desc: &GroupDesc) -> u64 {
        match self {
            Kind::Blocks => desc.block_bitmap,
            Kind::Inodes => desc.inode_bitmap,
        }
    }

    fn make(self, bits: &mut [u8], geo: &Geometry, g: GroupNr, desc: &GroupDesc) {
        match self {
            Kind::Blocks => group_desc::init_block_bitmap(bits, geo, g, desc),
            Kind::Inodes => group_desc::init_inode_bitmap(bits, geo),
        }
    }

    fn verify(self, bits: &[u8], geo: &Geometry, desc: &GroupDesc) -> Result<(), Corrupt> {
        match self {
            Kind::Blocks => desc.verify_block_bitmap(bits, geo),
            Kind::Inodes => desc.verify_inode_bitmap(bits, geo),
        }
    }
}

impl Groups {
    /// The bitmap of a group, verified when just read.
    ///
    /// # Errors
    /// `Corrupt` naming the group; `Io`.
    pub fn bitmap(&self, g: GroupNr, kind: Kind) -> Result<Bitmap> {
        let desc = self.desc(g)?;
        if desc.has_flag(&self.vol.geo, kind.flag()) {
            let mut bits = vec![0; self.vol.block_size()];
            kind.make(&mut bits, &self.vol.geo, g, &desc);
            return Ok(Bitmap::Made(bits));
        }
        self.read(g, kind, &desc).map(Bitmap::Block)
    }

    /// The block of a bitmap that is about to be changed within `h`. A bitmap that was never
    /// written is initialised. Costs a credit for the bitmap, and two more if it is initialised.
    ///
    /// # Errors
    /// As [`Self::bitmap`] and [`Self::edit`].
    pub fn bitmap_block(&self, h: &mut Handle<'_>, g: GroupNr, kind: Kind) -> Result<Arc<Buffer>> {
        let desc = self.desc(g)?;
        if !desc.has_flag(&self.vol.geo, kind.flag()) {
            return self.read(g, kind, &desc);
        }
        let buffer = self.vol.cache.fresh(kind.block(&desc));
        kind.make(&mut h.write(&buffer, Seal::NONE)?, &self.vol.geo, g, &desc);
        self.bitmap_changed(h, g, kind)?;
        self.edit(h, g, |desc| {
            desc.flags.remove(kind.flag());
            Ok(())
        })?;
        Ok(buffer)
    }

    /// The block of a bitmap that is part of the transaction, and so in memory.
    ///
    /// # Errors
    /// As [`Self::bitmap`].
    pub fn bitmap_in_memory(&self, g: GroupNr, kind: Kind) -> Result<Arc<Buffer>> {
        self.read(g, kind, &self.desc(g)?)
    }

    fn read(&self, g: GroupNr, kind: Kind, desc: &GroupDesc) -> Result<Arc<Buffer>> {
        let geo = &self.vol.geo;
        let check = |bits: &[u8]| {
            kind.verify(bits, geo, desc).map_err(|error| Error::from(error.at_group(g)))
        };
        self.vol.cache.read(kind.block(desc), check)
    }
}
