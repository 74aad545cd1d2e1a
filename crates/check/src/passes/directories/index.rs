//! The index of a directory: levels, order of hashes, and one reference to each block.

use super::entries::DirCheck;
use crate::finding::{Finding, FindingCode, FindingPlace};
use crate::maps::Runs;
use extant_format::htree::{HashVersion, Kind, Node, RootInfo};
use extant_format::{Corrupt, InodeFlags};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The use of a block of a directory.
#[derive(Clone, Debug)]
pub enum BlockUse {
    Root,
    Interior,
    /// Entries, whose hashes are within a range if the directory has an index.
    Leaf {
        hashes: RangeInclusive<u32>,
        version: Option<HashVersion>,
    },
}

/// Mask of a hash without the mark of a collision.
const HASH_MASK: u32 = !1;

/// The uses of the blocks of an indexed directory.
pub struct Index {
    uses: BTreeMap<u64, BlockUse>,
}

struct Builder<'b, 'd> {
    check: &'b mut DirCheck<'d>,
    runs: &'b Runs,
    count: u64,
    version: Option<HashVersion>,
    uses: BTreeMap<u64, BlockUse>,
}

impl Index {
    /// Reads the index of a directory of `count` blocks, and reports its defects.
    pub fn read(check: &mut DirCheck<'_>, runs: &Runs, count: u64) -> Index {
        let mut builder = Builder { check, runs, count, version: None, uses: BTreeMap::new() };
        builder.root();
        let missing = (0..count).find(|block| !builder.uses.contains_key(block));
        if let Some(block) = missing.filter(|_| builder.version.is_some()) {
            builder.bad(block, &Corrupt::new("directory index").field("unreferenced block"));
        }
        Index { uses: builder.uses }
    }

    /// Returns the use of a block.
    pub fn usage(&self, logical: u64) -> BlockUse {
        let none = BlockUse::Leaf { hashes: 0..=u32::MAX, version: None };
        self.uses.get(&logical).cloned().unwrap_or(none)
    }
}

impl Builder<'_, '_> {
    fn bad(&mut self, logical: u64, error: &Corrupt) {
        let place = FindingPlace::inode(self.check.ino).logical(logical);
        let finding = Finding::corrupt(FindingCode::DirectoryIndex, place, error);
        self.check.scan.findings.push(finding);
    }

    fn read(&self, logical: u64) -> Option<Vec<u8>> {
        let runs = &self.runs.runs;
        let at = runs.partition_point(|run| run.end() <= logical);
        let run = runs.get(at).filter(|run| run.logical <= logical)?;
        let block = run.physical.saturating_add(logical.saturating_sub(run.logical));
        self.check.pass.volume.reader.block(block)
    }

    fn root(&mut self) {
        let Some(bytes) = self.read(0) else { return };
        self.uses.insert(0, BlockUse::Root);
        let format = self.check.format;
        let opened = RootInfo::parse(&bytes, &format)
            .and_then(|info| Ok((info, Node::open(&bytes, Kind::Root, &format)?)));
        match opened {
            Ok((info, node)) => {
                self.version = Some(info.hash_version);
                self.node(0, &node, info.levels, 0..=u32::MAX);
            }
            // Names in encrypted directories that ignore case have hashes with a key.
            Err(_) if self.check.inode.flags.contains(keyed()) => {
                self.uses.clear();
                self.uses.insert(0, BlockUse::Root);
            }
            Err(error) => self.bad(0, &error),
        }
    }

    fn node(&mut self, logical: u64, node: &Node<'_>, levels: u8, hashes: RangeInclusive<u32>) {
        if let Err(error) = node.check_order() {
            self.bad(logical, &error);
            return;
        }
        let starts: Vec<(u32, u32)> = node.entries().collect();
        let ends = starts.iter().skip(1).map(|(hash, _)| *hash);
        let ends = ends.chain(std::iter::once(*hashes.end()));
        for (n, ((hash, block), end)) in starts.iter().zip(ends).enumerate() {
            let start = if n == 0 { *hashes.start() } else { *hash & HASH_MASK };
            if start > end || end > *hashes.end() {
                let error = Corrupt::new("directory index").field("hash").found(*hash);
                self.bad(logical, &error);
            }
            self.child(u64::from(*block), levels, start..=end);
        }
    }

    fn child(&mut self, logical: u64, levels: u8, hashes: RangeInclusive<u32>) {
        let known = self.uses.contains_key(&logical);
        if logical >= self.count || known {
            let field = if known { "block referenced twice" } else { "block" };
            self.bad(logical, &Corrupt::new("directory index").field(field).found(logical));
            return;
        }
        if levels == 0 {
            let flags = self.check.inode.flags;
            let version = self.version.filter(|_| !flags.contains(InodeFlags::CASEFOLD));
            self.uses.insert(logical, BlockUse::Leaf { hashes, version });
            return;
        }
        self.uses.insert(logical, BlockUse::Interior);
        let Some(bytes) = self.read(logical) else { return };
        match Node::open(&bytes, Kind::Interior, &self.check.format) {
            Ok(node) => self.node(logical, &node, levels.saturating_sub(1), hashes),
            Err(error) => self.bad(logical, &error),
        }
    }
}

fn keyed() -> InodeFlags {
    InodeFlags::ENCRYPT | InodeFlags::CASEFOLD
}
