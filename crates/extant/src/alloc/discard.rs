//! Tells the device which blocks hold nothing.

use super::Alloc;
use super::blocks::Blocks;
use crate::error::Result;
use extant_format::types::{BlockNr, GroupNr};
use extant_space::{FreeMap, Run};
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

    /// Discards free runs of a group, under its lock, so that nobody takes them meanwhile. Gives how many clusters.
    fn trim(&self, g: GroupNr, clusters: Range<u32>, min: u64) -> Result<u64> {
        let Some(mut group) = self.lock(g) else { return Ok(0) };
        let Some(map) = self.warm(g, &mut group) else { return Ok(0) };
        let (mut at, mut done) = (clusters.start, 0);
        while let Some(run) = map.free.run_from(at).filter(|run| run.start < clusters.end) {
            let len = run.end().min(clusters.end) - run.start;
            if u64::from(len) >= min {
                self.discard(g, Run { start: run.start, len })?;
                done += u64::from(len);
            }
            at = run.end();
        }
        Ok(done)
    }

    fn discard(&self, g: GroupNr, run: Run) -> Result<()> {
        let geo = &self.vol.geo;
        let start = geo.block_of_bit(g, run.start).0;
        let len = (u64::from(run.len) << geo.cluster_bits).min(geo.blocks_count.saturating_sub(start));
        Ok(self.vol.dev.discard(start << geo.block_bits, len << geo.block_bits)?)
    }

    /// Discards clusters that are still claimed; neighbours together. Errors are only noted: discarding is a favour.
    pub(super) fn discard_runs(&self, runs: impl Iterator<Item = (GroupNr, Run)>) {
        let mut merged: Option<(GroupNr, Run)> = None;
        let flush = |part: Option<(GroupNr, Run)>| {
            if let Some((g, run)) = part
                && let Err(error) = self.discard(g, run)
            {
                tracing::debug!("discard: {error}");
            }
        };
        for (g, run) in runs {
            match &mut merged {
                Some((last, whole)) if *last == g && whole.end() == run.start => whole.len += run.len,
                other => flush(other.replace((g, run))),
            }
        }
        flush(merged);
    }
}
