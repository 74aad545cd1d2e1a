//! The hashes of the names in each leaf of an indexed directory.
//!
//! A name that takes the place of another one must have a hash that leads to the same leaf, or the
//! index would be wrong. [`HashRanges`] knows these hashes, and a name that is in a wrong
//! leaf gets one that is, on the same side.

use super::scramble::NameSpace;
use super::wide::is_stable;
use crate::debug::{InodeSlot, Inspector};
use crate::maps::Run;
use extant_format::dir::DirFormat;
use extant_format::htree::{HashVersion, Kind, Node, RootInfo, dirhash};
use extant_format::{Geometry, InodeFlags};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Bound on the leaves of a directory.
const MAX_LEAVES: usize = 1 << 20;

/// Mask of a hash without the mark of a collision.
const HASH_MASK: u32 = !1;

/// The hashes of the names in a leaf. A name with the hash of the next leaf may be in both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashRange {
    pub first: u32,
    /// The first hash of the next leaf.
    pub next: u32,
}

impl HashRange {
    /// Returns whether the hash of a name in the leaf is below the range, in it, or above.
    pub fn side(&self, hash: u32) -> Ordering {
        if hash < self.first {
            Ordering::Less
        } else if hash > self.next {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }

    /// Returns whether a new name with this hash is on a side, and in no other leaf.
    pub fn accepts(&self, side: Ordering, hash: u32) -> bool {
        self.side(hash) == side && (hash != self.next || self.next == self.first)
    }

    /// Returns the number of names, chosen at random, of which one is accepted.
    pub fn odds(&self, side: Ordering) -> u64 {
        let hashes = match side {
            Ordering::Less => u64::from(self.first),
            Ordering::Equal => u64::from(self.next).saturating_sub(self.first.into()),
            Ordering::Greater => u64::from(u32::MAX).saturating_sub(self.next.into()),
        };
        u64::from(u32::MAX).checked_div(hashes.max(1)).unwrap_or(u64::MAX)
    }
}

/// The index of a directory.
#[derive(Debug)]
pub struct HashRanges {
    version: HashVersion,
    unsigned: bool,
    seed: [u32; 4],
    /// By the block of the directory.
    leaves: BTreeMap<u64, HashRange>,
    nodes: BTreeSet<u64>,
}

impl HashRanges {
    /// Reads the index of a directory with these runs, as far as it can be read. `None` if the
    /// directory has none.
    pub fn read(view: &Inspector, slot: &InodeSlot, runs: &[Run]) -> Option<HashRanges> {
        if !slot.inode.flags.contains(InodeFlags::INDEX) {
            return None;
        }
        let geometry: &Geometry = view.geometry();
        let format = DirFormat::new(geometry);
        let reading = Reading { view, runs, format };
        let root = reading.block(0)?;
        let info = RootInfo::parse(&root, &format).ok()?;
        let node = Node::open(&root, Kind::Root, &format).ok()?;
        let mut found = HashRanges {
            version: info.hash_version,
            unsigned: geometry.hash_unsigned,
            seed: geometry.hash_seed,
            leaves: BTreeMap::new(),
            nodes: BTreeSet::from([0]),
        };
        let all = HashRange { first: 0, next: u32::MAX };
        found.node(&reading, &node, info.levels, all);
        Some(found)
    }

    fn node(&mut self, reading: &Reading<'_>, node: &Node<'_>, levels: u8, range: HashRange) {
        let starts: Vec<(u32, u32)> = node.entries().collect();
        let ends = starts.iter().skip(1).map(|(hash, _)| hash & HASH_MASK).chain([range.next]);
        for (n, ((hash, block), next)) in starts.iter().zip(ends).enumerate() {
            let first = if n == 0 { range.first } else { hash & HASH_MASK };
            let (logical, below) = (u64::from(*block), HashRange { first, next: next.max(first) });
            if levels == 0 {
                if self.leaves.len() < MAX_LEAVES && reading.place(logical).is_some() {
                    self.leaves.entry(logical).or_insert(below);
                }
                continue;
            }
            let bytes = reading.block(logical).filter(|_| self.nodes.insert(logical));
            let Some(bytes) = bytes else { continue };
            if let Ok(child) = Node::open(&bytes, Kind::Interior, &reading.format) {
                self.node(reading, &child, levels.saturating_sub(1), below);
            }
        }
    }

    /// Returns whether a block of the directory is a node of the index.
    pub fn is_node(&self, logical: u64) -> bool {
        self.nodes.contains(&logical)
    }

    /// Returns the hashes of a leaf; `None` if the index does not lead there.
    pub fn leaf(&self, logical: u64) -> Option<HashRange> {
        self.leaves.get(&logical).copied()
    }

    /// Returns the hash of a name; `None` if it takes tables of Unicode.
    pub fn hash(&self, space: NameSpace, name: &[u8]) -> Option<u32> {
        let hash = |name: &[u8]| dirhash(self.version, self.unsigned, &self.seed, name).0;
        if !space.folds {
            return Some(hash(name));
        }
        match std::str::from_utf8(name) {
            Ok(text) if is_stable(text) => Some(hash(&name.to_ascii_lowercase())),
            Ok(_) => None,
            // Names that are not UTF-8 are taken as they are.
            Err(_) => Some(hash(name)),
        }
    }
}

/// A directory whose blocks are read.
struct Reading<'r> {
    view: &'r Inspector,
    runs: &'r [Run],
    format: DirFormat,
}

impl Reading<'_> {
    /// Returns the block of the device with a block of the directory.
    fn place(&self, logical: u64) -> Option<u64> {
        let at = self.runs.partition_point(|run| run.end() <= logical);
        let run = self.runs.get(at).filter(|run| run.logical <= logical)?;
        Some(run.physical.saturating_add(logical.saturating_sub(run.logical)))
    }

    fn block(&self, logical: u64) -> Option<Vec<u8>> {
        self.view.reader().block(self.place(logical)?)
    }
}
