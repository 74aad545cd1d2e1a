//! The runs of a map whose nodes are read for the first inode that has them only.

use super::InodeSlot;
use crate::claims::ClaimMap;
use crate::finding::Finding;
use crate::maps::{MapVisitor, Run, walk};
use crate::reader::Reader;

/// Bound on the runs of a file.
const MAX_RUNS: usize = 1 << 20;

/// The runs of an inode.
pub struct ClaimedRuns<'c> {
    nodes: &'c ClaimMap,
    /// The blocks with nodes.
    pub entered: Vec<u64>,
    /// The runs, in the order of the file.
    pub runs: Vec<Run>,
    /// A part of the map is damaged, or another inode has it, too.
    pub damaged: bool,
}

impl<'c> ClaimedRuns<'c> {
    /// Reads the map of an inode, but for nodes that have a claim. The others are claimed.
    pub fn of(reader: &Reader<'_>, slot: &InodeSlot, nodes: &'c ClaimMap) -> ClaimedRuns<'c> {
        let mut found =
            ClaimedRuns { nodes, entered: Vec::new(), runs: Vec::new(), damaged: false };
        walk(reader, slot.number(), &slot.inode, &mut found);
        found
    }
}

impl MapVisitor for ClaimedRuns<'_> {
    fn enter(&mut self, block: u64) -> bool {
        let is_new = self.nodes.claim(block..block.saturating_add(1)).is_none();
        self.damaged |= !is_new;
        if is_new {
            self.entered.push(block);
        }
        is_new
    }

    fn run(&mut self, run: Run) {
        if self.runs.len() < MAX_RUNS {
            self.runs.push(run);
        } else {
            self.damaged = true;
        }
    }

    fn bad(&mut self, _: Finding) {
        self.damaged = true;
    }
}
