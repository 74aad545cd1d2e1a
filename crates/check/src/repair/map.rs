//! Block maps, written anew from runs.

use super::RepairError;
use super::draft::Round;
use crate::claims::ClaimMap;
use crate::finding::Finding;
use crate::maps::{MapVisitor, Run, walk};
use extant_format::extent::{
    Index, Leaf, MAX_UNWRITTEN_LEN, MAX_WRITTEN_LEN, NodeMut, capacity, seal_extent_block,
};
use extant_format::indirect::{DIRECT, IND, TIND, pointers_per_block, put_pointer};
use extant_format::inode::I_BLOCK_SIZE;
use extant_format::{Inode, InodeFlags, InodeNr};

/// Parts into which one run may be cut by metadata; the rest is dropped.
const MAX_PARTS: usize = 64;

/// A visitor that keeps the runs that a file may have: in order, outside of metadata.
struct Keep<'k> {
    metadata: &'k ClaimMap,
    /// Nodes of all maps of the round: a node belongs to the first inode that has it.
    nodes: &'k ClaimMap,
    cluster_mask: u64,
    runs: Vec<Run>,
}

impl Keep<'_> {
    /// Adds a run, without the parts that lie in metadata.
    fn add(&mut self, mut run: Run) {
        for _ in 0..MAX_PARTS {
            let Some(taken) = self.metadata.first_claimed(run.blocks()) else {
                self.runs.push(run);
                return;
            };
            let before = taken.saturating_sub(run.physical);
            if before > 0 {
                self.runs.push(Run { len: before, ..run });
            }
            let skipped = before.saturating_add(1);
            run.logical = run.logical.saturating_add(skipped);
            run.physical = run.physical.saturating_add(skipped);
            run.len = run.len.saturating_sub(skipped);
            if run.len == 0 {
                return;
            }
        }
    }
}

impl MapVisitor for Keep<'_> {
    fn enter(&mut self, block: u64) -> bool {
        let range = block..block.saturating_add(1);
        self.metadata.first_claimed(range.clone()).is_none() && self.nodes.claim(range).is_none()
    }

    fn run(&mut self, mut run: Run) {
        let end = self.runs.last().map_or(0, Run::end);
        let skipped = end.saturating_sub(run.logical);
        if skipped >= run.len || (run.logical ^ run.physical) & self.cluster_mask != 0 {
            return;
        }
        run.logical = run.logical.saturating_add(skipped);
        run.physical = run.physical.saturating_add(skipped);
        run.len = run.len.saturating_sub(skipped);
        self.add(run);
    }

    fn bad(&mut self, _: Finding) {}
}

/// The extents of runs.
fn leaves(runs: &[Run]) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    for run in runs {
        let most = if run.unwritten { MAX_UNWRITTEN_LEN } else { MAX_WRITTEN_LEN };
        for done in (0..run.len).step_by(most.into()) {
            leaves.push(Leaf {
                lblk: run.logical.saturating_add(done) as u32,
                pblk: run.physical.saturating_add(done),
                len: run.len.saturating_sub(done).min(most.into()) as u16,
                unwritten: run.unwritten,
            });
        }
    }
    leaves
}

impl Round<'_> {
    /// Returns the runs of a map that may stay. `nodes` has the nodes of the maps so far.
    pub fn valid_runs(&self, ino: InodeNr, inode: &Inode, nodes: &ClaimMap) -> Vec<Run> {
        let cluster_mask = u64::from(self.geometry().cluster_ratio()).saturating_sub(1);
        let metadata = &self.survey.volume.metadata;
        let mut keep = Keep { metadata, nodes, cluster_mask, runs: Vec::new() };
        walk(&self.survey.volume.reader, ino, inode, &mut keep);
        keep.runs
    }

    /// Writes a map of these runs, which must be in order, with new nodes. The old ones are free.
    pub fn write_map(&self, ino: InodeNr, runs: &[Run]) -> Result<(), RepairError> {
        let inode = self.inode(ino)?;
        let i_block = if inode.flags.contains(InodeFlags::EXTENTS) {
            self.tree(&leaves(runs), inode.seed(self.geometry(), ino))?
        } else {
            self.pointer_map(runs)?
        };
        self.edit_inode(ino, |inode| inode.i_block = i_block)
    }

    /// Writes an extent tree, and returns its root.
    fn tree(&self, leaves: &[Leaf], seed: u32) -> Result<[u8; I_BLOCK_SIZE], RepairError> {
        let mut root = [0; I_BLOCK_SIZE];
        let of_root = usize::from(capacity(I_BLOCK_SIZE));
        if leaves.len() <= of_root {
            let _ = NodeMut::init(&mut root, 0).set_leaves(leaves);
            return Ok(root);
        }
        let of_block = usize::from(capacity(self.block_size())).max(1);
        let mut level = Vec::new();
        for part in leaves.chunks(of_block) {
            let key = part.first().map_or(0, |leaf| leaf.lblk);
            let child = self.node(0, seed, |node| node.set_leaves(part))?;
            level.push(Index { lblk: key, child });
        }
        let mut depth = 1;
        while level.len() > of_root {
            let mut above = Vec::new();
            for part in level.chunks(of_block) {
                let key = part.first().map_or(0, |index| index.lblk);
                let child = self.node(depth, seed, |node| node.set_indexes(part))?;
                above.push(Index { lblk: key, child });
            }
            level = above;
            depth = depth.saturating_add(1);
        }
        let _ = NodeMut::init(&mut root, depth).set_indexes(&level);
        Ok(root)
    }

    fn node(
        &self,
        depth: u16,
        seed: u32,
        fill: impl FnOnce(&mut NodeMut<'_>) -> bool,
    ) -> Result<u64, RepairError> {
        let nr = self.allocate()?;
        let mut bytes = vec![0; self.block_size()];
        fill(&mut NodeMut::init(&mut bytes, depth));
        if self.geometry().metadata_csum {
            seal_extent_block(&mut bytes, nr, seed);
        }
        self.put(nr, &bytes)?;
        Ok(nr)
    }

    /// Writes a map of pointers, and returns the ones in the inode.
    fn pointer_map(&self, runs: &[Run]) -> Result<[u8; I_BLOCK_SIZE], RepairError> {
        let mut root = [0; I_BLOCK_SIZE];
        self.fill_pointers(&mut root, runs, 0, (DIRECT, 0))?;
        let per_block = u64::from(pointers_per_block(self.geometry().block_size));
        let (mut first, mut reach) = (DIRECT as u64, per_block);
        for (slot, level) in (IND..=TIND).zip(1..) {
            let block = self.pointer_block(runs, first, level)?;
            put_pointer(&mut root, slot, block);
            first = first.saturating_add(reach);
            reach = reach.saturating_mul(per_block);
        }
        Ok(root)
    }

    /// Writes the pointer block of a level whose first data block is `first`. Returns 0 if it
    /// would have no pointer.
    fn pointer_block(&self, runs: &[Run], first: u64, level: u32) -> Result<u32, RepairError> {
        let per_block = u64::from(pointers_per_block(self.geometry().block_size));
        let end = first.saturating_add(per_block.saturating_pow(level));
        let from = runs.partition_point(|run| run.end() <= first);
        let to = runs.partition_point(|run| run.logical < end);
        let Some(runs) = runs.get(from..to).filter(|runs| !runs.is_empty()) else { return Ok(0) };
        let nr = self.allocate()?;
        let mut bytes = vec![0; self.block_size()];
        self.fill_pointers(&mut bytes, runs, first, (per_block as usize, level.saturating_sub(1)))?;
        self.put(nr, &bytes)?;
        u32::try_from(nr).map_err(|_| RepairError::Unsupported("pointers to blocks past 2^32"))
    }

    /// Fills `count` pointers, the first of which leads to block `first` of the file. They are
    /// `below` levels above the data.
    fn fill_pointers(
        &self,
        bytes: &mut [u8],
        runs: &[Run],
        first: u64,
        (count, below): (usize, u32),
    ) -> Result<(), RepairError> {
        let per_block = u64::from(pointers_per_block(self.geometry().block_size));
        let reach = per_block.saturating_pow(below);
        for slot in 0..count {
            let start = first.saturating_add(reach.saturating_mul(slot as u64));
            let pointer = if below > 0 {
                self.pointer_block(runs, start, below)?
            } else {
                let at = runs.partition_point(|run| run.end() <= start);
                let run = runs.get(at).filter(|run| run.logical <= start);
                let block = run.map_or(0, |run| {
                    run.physical.saturating_add(start.saturating_sub(run.logical))
                });
                block as u32
            };
            put_pointer(bytes, slot, pointer);
        }
        Ok(())
    }
}
