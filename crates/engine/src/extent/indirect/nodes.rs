//! The storage of pointers, as the map sees it.

use crate::error::Result;
use crate::extent::tree::At;
use extant_format::indirect::pointers_per_block;

/// Pointers for reading.
pub(in crate::extent) trait Pointers {
    /// Bytes of a pointer block.
    fn block_size(&self) -> u32;

    /// Runs `f` on the inode's pointers or on a pointer block. `f` must not take a lock.
    fn view<R>(&self, at: At, f: impl FnOnce(&[u8]) -> R) -> Result<R>;

    /// Notes that a pointer leads to block `block` of pointers: to logical block `first` and
    /// following, `level` steps below the inode.
    ///
    /// # Errors
    /// `Corrupt` if the block is known in another place.
    fn place(&self, block: u32, first: u32, level: u8) -> Result<()>;

    /// Returns the number of pointers of a block.
    fn per_block(&self) -> u32 {
        pointers_per_block(self.block_size())
    }
}

/// Pointers for changing.
pub(in crate::extent) trait PointersMut: Pointers {
    /// Runs `f` on pointers that were viewed or created before. `f` must not take a lock.
    fn change<R>(&mut self, at: At, f: impl FnOnce(&mut [u8]) -> R) -> Result<R>;

    /// Makes sure that the next `blocks` calls of [`Self::create`] do not lack space. Changes
    /// nothing on disk.
    fn prepare(&mut self, blocks: usize) -> Result<()>;

    /// Allocates a block of zeroes, below 2^32.
    fn create(&mut self) -> Result<u32>;

    /// Frees a pointer block.
    fn release(&mut self, block: u32) -> Result<()>;

    /// Reads pointers and keeps them in memory until the next step has ended.
    fn hold(&mut self, at: At) -> Result<()>;

    /// Reads the bitmaps that the next step needs to release the block. Changes nothing.
    fn prepare_release(&mut self, block: u32) -> Result<()>;

    /// Runs a step, of which all or nothing becomes durable. Everything that it needs must be
    /// prepared and held: an error after its first change aborts the journal.
    fn step<R>(&mut self, change: impl FnOnce(&mut Self) -> Result<R>) -> Result<R>;
}
