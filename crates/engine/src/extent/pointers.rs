//! The pointers of an inode's indirect map: the first ones in the inode's body, the others in the
//! block cache.
//!
//! # Locking
//! As in [`super::nodes`].

use super::indirect::{Pointers, PointersMut};
use super::nodes::{Reader, Writer};
use super::tree::At;
use super::verify::is_system;
use crate::error::{Errno, Error, Result};
use extant_blocks::Buffer;
use extant_format::error::Corrupt;
use extant_format::types::BlockNr;
use extant_journal::Seal;
use std::sync::Arc;

impl Reader<'_> {
    /// Verifies that data blocks are the device's, and none of them the file system's own.
    pub fn check_data(&self, first: u64, len: u64) -> Result<()> {
        let (env, ino) = (self.env, self.inode.ino);
        if env.geo.data_range_valid(BlockNr(first), len)
            && !is_system(env.groups.zone(), ino, first, len)
        {
            Ok(())
        } else {
            Err(Corrupt::new("block map")
                .field("block")
                .found(first)
                .at_inode(self.inode.ino)
                .into())
        }
    }

    fn pointer_block(&self, nr: u64) -> Result<Arc<Buffer>> {
        self.check_data(nr, 1)?;
        self.env.cache.read::<Error>(nr, |_| Ok(()))
    }
}

impl Pointers for Reader<'_> {
    fn block_size(&self) -> u32 {
        self.env.geo.block_size
    }

    fn view<R>(&self, at: At, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        match at {
            At::Root => Ok(f(&self.root())),
            At::Block(nr) => Ok(f(&self.pointer_block(nr)?.read())),
        }
    }

    fn place(&self, block: u32, first: u32, level: u8) -> Result<()> {
        if self.inode.pointer_places.is_place(block, first, level) {
            Ok(())
        } else {
            Err(Corrupt::new("block map")
                .field("pointer block in several places")
                .found(block)
                .at_inode(self.inode.ino)
                .into())
        }
    }
}

impl Pointers for Writer<'_, '_, '_> {
    fn block_size(&self) -> u32 {
        self.env.geo.block_size
    }

    fn view<R>(&self, at: At, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Pointers::view(&self.reader(), at, f)
    }

    fn place(&self, block: u32, first: u32, level: u8) -> Result<()> {
        self.reader().place(block, first, level)
    }
}

impl PointersMut for Writer<'_, '_, '_> {
    fn change<R>(&mut self, at: At, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        match at {
            At::Root => self.with_root(f),
            At::Block(nr) => {
                let buffer = self.reader().pointer_block(nr)?;
                let mut bytes = self.step.write(&buffer, Seal::NONE)?;
                Ok(f(&mut bytes))
            }
        }
    }

    fn prepare(&mut self, blocks: usize) -> Result<()> {
        self.claim_blocks(blocks, true)
    }

    fn create(&mut self) -> Result<u32> {
        let block = self.take_block(true)?;
        let buffer = self.env.cache.fresh(block.0);
        self.step.write(&buffer, Seal::NONE)?;
        u32::try_from(block.0).map_err(|_| Errno::FBig.into())
    }

    fn release(&mut self, block: u32) -> Result<()> {
        self.inode.pointer_places.forget(block);
        self.free_block(block.into())
    }

    fn hold(&mut self, at: At) -> Result<()> {
        if let At::Block(nr) = at {
            let buffer = self.reader().pointer_block(nr)?;
            self.hold_block(buffer);
        }
        Ok(())
    }

    fn prepare_release(&mut self, block: u32) -> Result<()> {
        self.prepare_free(block.into())
    }

    fn step<R>(&mut self, change: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        self.in_step(change)
    }
}
