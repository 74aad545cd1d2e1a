//! Owners of blocks: a scan over the maps of all inodes.

use super::runs::ClaimedRuns;
use super::{InodeSlot, InspectedBitmap, Inspector};
use crate::claims::ClaimMap;
use crate::finding::Finding;
use crate::maps::{MapVisitor, Run, walk};
use std::collections::BTreeSet;

/// Bound on the owners that are kept.
const MAX_FOUND: usize = 1 << 16;

/// The use of a block by an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOwner {
    /// Content of the file: the block of the file, and whether it reads as zeroes.
    Content {
        /// Block of the file.
        logical: u64,
        /// The block reads as zeroes.
        unwritten: bool,
    },
    /// A node of the map.
    Map,
    /// Extended attributes.
    Xattrs,
}

/// Owners of blocks.
#[derive(Clone, Debug, Default)]
pub struct FoundOwners {
    /// Blocks, each with an inode that uses it; in the order of inodes.
    pub owners: Vec<(u64, u32, BlockOwner)>,
    /// Damage that may hide owners, in words.
    pub problems: Vec<String>,
}

struct Visitor<'v> {
    wanted: &'v BTreeSet<u64>,
    nodes: &'v ClaimMap,
    ino: u32,
    found: &'v mut Vec<(u64, u32, BlockOwner)>,
    damaged: bool,
}

impl Visitor<'_> {
    fn push(&mut self, block: u64, owner: BlockOwner) {
        if self.found.len() < MAX_FOUND {
            self.found.push((block, self.ino, owner));
        }
    }
}

impl MapVisitor for Visitor<'_> {
    fn enter(&mut self, block: u64) -> bool {
        if self.wanted.contains(&block) {
            self.push(block, BlockOwner::Map);
        }
        self.nodes.claim(block..block.saturating_add(1)).is_none()
    }

    fn run(&mut self, run: Run) {
        let wanted = self.wanted;
        for block in wanted.range(run.blocks()) {
            let logical = run.logical.saturating_add(block.saturating_sub(run.physical));
            self.push(*block, BlockOwner::Content { logical, unwritten: run.unwritten });
        }
    }

    fn bad(&mut self, _: Finding) {
        self.damaged = true;
    }
}

impl Inspector {
    /// Hands the map of each inode in use, or of the wanted ones, to `each`: first block of the
    /// file, first block of the device and number of blocks of each run. Returns the problems.
    pub fn each_map(
        &self,
        wanted: Option<&BTreeSet<u32>>,
        each: &mut dyn FnMut(u32, Vec<(u64, u64, u64)>),
    ) -> Vec<String> {
        let (reader, nodes) = (self.reader(), self.no_claims());
        let mut damaged = Vec::new();
        let mut problems = self.each_slot(&mut |slot| {
            let is_wanted = wanted.is_none_or(|wanted| wanted.contains(&slot.ino));
            if !is_wanted || !slot.is_linked() || !slot.has_map(&self.geometry) {
                return;
            }
            let map = ClaimedRuns::of(&reader, &slot, &nodes);
            if map.damaged && damaged.len() < MAX_FOUND {
                damaged.push(slot.ino);
            }
            let runs = map.runs.iter().map(|run| (run.logical, run.physical, run.len));
            each(slot.ino, runs.collect());
        });
        let message = "is damaged: blocks may be missing";
        problems.extend(damaged.iter().map(|ino| format!("the map of inode {ino} {message}")));
        problems
    }

    /// Finds the inodes that use blocks.
    pub fn owners(&self, wanted: &BTreeSet<u64>) -> FoundOwners {
        let (reader, nodes) = (self.reader(), self.no_claims());
        let (mut found, mut damaged) = (Vec::new(), BTreeSet::new());
        let mut bitmap = (u32::MAX, None);
        let mut each = |slot: InodeSlot| {
            if !slot.is_linked() {
                // An inode without a link is in use while it is open.
                if bitmap.0 != slot.group {
                    bitmap = (slot.group, self.inode_bitmap(slot.group.into()).ok());
                }
                let bits: Option<&InspectedBitmap> = bitmap.1.as_ref();
                let index = self.geometry.inode_location(slot.number()).map_or(0, |(_, bit)| bit);
                if slot.inode.mode == 0 || !bits.is_some_and(|bits| bits.is_set(index)) {
                    return;
                }
            }
            let ino = slot.ino;
            let mut visitor =
                Visitor { wanted, nodes: &nodes, ino, found: &mut found, damaged: false };
            if wanted.contains(&slot.inode.file_acl) && slot.inode.file_acl != 0 {
                visitor.push(slot.inode.file_acl, BlockOwner::Xattrs);
            }
            if slot.has_map(&self.geometry) {
                walk(&reader, slot.number(), &slot.inode, &mut visitor);
            }
            if visitor.damaged && damaged.len() < MAX_FOUND {
                damaged.insert(ino);
            }
        };
        let mut problems = self.each_slot(&mut each);
        let message = "is damaged: blocks may be missing";
        problems.extend(damaged.iter().map(|ino| format!("the map of inode {ino} {message}")));
        FoundOwners { owners: found, problems }
    }
}
