//! The map of a file as far as any program could read it.
//!
//! A check takes no extent of a node with extents in a wrong order. Others do, and find the blocks
//! to which the extents lead. So an image has these blocks, too.

use crate::claims::ClaimMap;
use crate::debug::runs::ClaimedRuns;
use crate::debug::{InodeSlot, Inspector};
use crate::maps::Run;
use crate::reader::Reader;
use extant_format::InodeFlags;
use extant_format::extent::Node;

/// Bound on the runs of a file.
const MAX_RUNS: usize = 1 << 20;

/// The map of a file.
#[derive(Debug, Default)]
pub struct FoundMap {
    /// Blocks with nodes, each once for all maps.
    pub nodes: Vec<u64>,
    /// The runs, in the order of the map.
    pub runs: Vec<Run>,
    /// A part is damaged, or another inode has it, too.
    pub is_damaged: bool,
}

impl FoundMap {
    /// Reads the map of an inode, but for nodes that have a claim. The others are claimed.
    pub fn read(view: &Inspector, slot: &InodeSlot, claims: &ClaimMap) -> FoundMap {
        let reader = view.reader();
        if !slot.inode.flags.contains(InodeFlags::EXTENTS) {
            let found = ClaimedRuns::of(&reader, slot, claims);
            return FoundMap { nodes: found.entered, runs: found.runs, is_damaged: found.damaged };
        }
        let mut found = FoundMap::default();
        found.node(&reader, claims, &slot.inode.i_block, None);
        found
    }

    /// Reads a node below one of depth `above`.
    fn node(&mut self, reader: &Reader<'_>, claims: &ClaimMap, bytes: &[u8], above: Option<u16>) {
        let node = match Node::open(bytes) {
            Ok(node) if above.is_none_or(|above| node.depth() < above) => node,
            _ => return self.is_damaged = true,
        };
        self.is_damaged |= Node::parse(bytes, None).is_err();
        for leaf in node.leaves() {
            if leaf.check_physical(&reader.geometry).is_err() || self.runs.len() >= MAX_RUNS {
                self.is_damaged = true;
                continue;
            }
            let (logical, physical, len) = (leaf.lblk.into(), leaf.pblk, leaf.len.into());
            self.runs.push(Run { logical, physical, len, unwritten: leaf.unwritten });
        }
        for index in node.indexes() {
            let child = index.child;
            let is_free = index.check_physical(&reader.geometry).is_ok()
                && claims.claim(child..child.saturating_add(1)).is_none();
            let bytes = is_free.then(|| reader.block(child)).flatten();
            let Some(bytes) = bytes else {
                self.is_damaged = true;
                continue;
            };
            self.nodes.push(child);
            self.node(reader, claims, &bytes, Some(node.depth()));
        }
    }
}
