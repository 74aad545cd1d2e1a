//! Discarding free space.

use super::Operations;
use crate::error::{Errno, Result};

impl Operations {
    /// Discards free runs of at least `min_blocks` blocks within the given blocks (FITRIM). Returns
    /// the number of discarded blocks. Earlier frees are committed first, and queued discards are
    /// done, so that they count.
    pub fn trim(&self, blocks: std::ops::Range<u64>, min_blocks: u64) -> Result<u64> {
        self.alive()?;
        self.st().writable()?;
        self.reclaim();
        self.st().alloc.finish_discards();
        self.record_corruption(self.st().alloc.trim(blocks, min_blocks))
    }

    /// As [`Operations::trim`], in bytes and with the limits of FITRIM. Gives the number of bytes
    /// discarded.
    ///
    /// # Errors
    /// EINVAL if the range begins behind the last block or is shorter than one, and for runs longer
    /// than a group.
    pub fn trim_bytes(&self, start: u64, len: u64, min: u64) -> Result<u64> {
        let geo = &self.st().geo;
        let block = u64::from(geo.block_size);
        let group = u64::from(geo.blocks_per_group);
        if len < block || start / block >= geo.blocks_count || min / block > group {
            return Err(Errno::Inval.into());
        }
        let blocks = start / block..(start.saturating_add(len) / block).min(geo.blocks_count);
        Ok(self.trim(blocks, min.div_ceil(block).max(1))? * block)
    }
}
