//! Tells the device which blocks hold nothing.

use super::Alloc;
use super::blocks::Blocks;
use crate::error::Result;
use extant_format::types::{BlockNr, GroupNr};
use extant_space::Run;
use extant_sync::atomic::Ordering;
use std::ops::Range;

impl Alloc {
    /// Whether space that is freed from now on is discarded, once its freeing is durable.
    pub fn set_discard(&self, on: bool) {
        self.blocks.discard.store(on, Ordering::Relaxed);
    }

    /// Discards free runs of at least `min` blocks within `blocks`; gives how many blocks that were. Space that was
    /// freed by transactions that are not durable yet is left out.
    ///
    /// # Errors
    /// The device's.
    pub fn trim(&self, blocks: Range<u64>, min: u64) -> Result<u64> {
        let geo = &self.vol.geo;
        let end = blocks.end.min(geo.blocks_count);
        let mut at = blocks.start.max(geo.first_data_block.into());
        let mut done = 0;
        while at < end {
            let Some(g) = geo.group_of_block(BlockNr(at)) else { break };
            let first = geo.first_block_of_group(g).0;
            let group_end = first.saturating_add(geo.blocks_in_group(g).into()).min(end);
            // Only clusters that lie in the range as a whole.
            let clusters = (at - first).div_ceil(u64::from(geo.cluster_ratio())) as u32
                ..((group_end - first) >> geo.cluster_bits) as u32;
            done += self.blocks.trim(g, clusters, self.blocks.clusters_of(min))?;
            at = group_end.max(at + 1);
        }
        Ok(done << geo.cluster_bits)
    }
}

impl Blocks {
    fn clusters_of(&self, blocks: u64) -> u64 {
        blocks.div_ceil(self.cluster_ratio().into()).max(1)
    }

    /// Discards free runs of a group. They are held meanwhile, so that nobody takes them. Gives how many clusters.
    fn trim(&self, g: GroupNr, clusters: Range<u32>, min: u64) -> Result<u64> {
        let mut done = 0;
        let mut at = clusters.start;
        while let Some(run) = self.hold_free(g, at..clusters.end, min) {
            let discarded = self.discard(g, run);
            self.release(g, run);
            discarded?;
            done += u64::from(run.len);
            at = run.end();
        }
        Ok(done)
    }

    /// Takes the first free run that is long enough. Where the budget has not so much left, space is too short to be held for a
    /// favour: that ends the search.
    fn hold_free(&self, g: GroupNr, clusters: Range<u32>, min: u64) -> Option<Run> {
        let t = self.shape.tree_of(g);
        let mut tree = self.with_group(g, true)?;
        let run = self.runs_of(g, &tree, clusters).find(|run| u64::from(run.len) >= min)?;
        if !self.budget.take(run.len.into(), 0) {
            return None;
        }
        self.change(t, &mut tree, |tree| tree.claim(self.shape.place(g, run))).then_some(run)
    }

    fn discard(&self, g: GroupNr, run: Run) -> Result<()> {
        let geo = &self.vol.geo;
        let start = geo.block_of_bit(g, run.start).0;
        let len = (u64::from(run.len) << geo.cluster_bits).min(geo.blocks_count.saturating_sub(start));
        Ok(self.vol.dev.discard(start << geo.block_bits, len << geo.block_bits)?)
    }

    /// Discards clusters that are held still. An error is only noted: discarding is a favour.
    pub(super) fn discard_freed(&self, g: GroupNr, run: Run) {
        if let Err(error) = self.discard(g, run) {
            tracing::debug!("discard: {error}");
        }
    }
}
