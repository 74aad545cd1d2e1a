//! Directories: blocks, entries, removed entries, hash trees, and the way from a path to an inode.

use super::runs::ClaimedRuns;
use super::{ChecksumState, InodeSlot, InspectError, Inspector};
use crate::claims::ClaimMap;
use extant_format::dir::{DirEntry, DirFormat, entries, removed, verify_leaf};
use extant_format::htree::{Kind, Node, RootInfo, is_interior, verify_htree};
use extant_format::inline::{INLINE_FIRST, dir_area, parent};
use extant_format::{FileType, InodeFlags};
use std::ops::ControlFlow;

/// Symbolic links on the way of a path at most, as in the kernel.
const MAX_LINKS: usize = 40;

/// Bytes of a symbolic link's target at most.
const MAX_TARGET: usize = 4096;

/// A block of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryBlock {
    /// The block of the directory.
    pub logical: u64,
    /// The block of the device; `None` for content in the inode.
    pub physical: Option<u64>,
    /// `leaf`, `root` or `node` of a hash tree, or `inline`.
    pub kind: &'static str,
    /// Verdict on the checksum.
    pub checksum: ChecksumState,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryRecord {
    /// The inode; 0 in a removed entry that has lost it.
    pub ino: u32,
    /// The type that the entry tells.
    pub file_type: FileType,
    /// The name.
    pub name: Vec<u8>,
    /// Offset in the block's area, in bytes.
    pub offset: usize,
    /// Bytes of the record.
    pub rec_len: usize,
    /// The entry was removed, and its bytes are still there.
    pub is_removed: bool,
}

/// A part of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryPart {
    /// A block; its parts follow.
    Block(DirectoryBlock),
    /// An entry.
    Record(DirectoryRecord),
    /// The properties of a hash tree: version of the hash, levels below the root, capacity.
    Root {
        /// Number of the hash.
        hash_version: u8,
        /// Levels of nodes between the root and the leaves.
        levels: u8,
    },
    /// An entry of a node of a hash tree: the lowest hash, and the block of the directory.
    Hash {
        /// Number in the node.
        number: u32,
        /// The lowest hash; bit 0 tells that names of the block before may have it, too.
        hash: u32,
        /// Block of the directory.
        block: u32,
    },
    /// Damage, in words.
    Problem(String),
}

/// Receiver of parts, which may end a walk.
type Sink<'s> = &'s mut dyn FnMut(DirectoryPart) -> ControlFlow<()>;

impl Inspector {
    /// Hands each part of a directory to `sink`, in the order of its blocks, until it breaks.
    pub fn directory(
        &self,
        slot: &InodeSlot,
        sink: &mut dyn FnMut(DirectoryPart) -> ControlFlow<()>,
    ) {
        let _ = self.directory_within(slot, &self.no_claims(), sink);
    }

    /// As [`Inspector::directory`], but for blocks that have a claim. The others are claimed.
    pub(super) fn directory_within(
        &self,
        slot: &InodeSlot,
        claims: &ClaimMap,
        sink: Sink<'_>,
    ) -> ControlFlow<()> {
        if slot.inode.flags.contains(InodeFlags::INLINE_DATA) {
            return self.inline_directory(slot, sink);
        }
        let reader = self.reader();
        let map = ClaimedRuns::of(&reader, slot, claims);
        if map.damaged {
            let message = format!("the map of inode {} is damaged: parts are missing", slot.ino);
            sink(DirectoryPart::Problem(message))?;
        }
        for run in &map.runs {
            for (logical, physical) in (run.logical..).zip(run.blocks()) {
                if physical >= reader.device_blocks() {
                    let message = "of the directory is behind the end of the device";
                    sink(DirectoryPart::Problem(format!("block {physical} {message}")))?;
                    break;
                }
                let block = physical..physical.saturating_add(1);
                if claims.claim(block).is_some() {
                    let message = format!("block {physical} was in a directory before");
                    // A run that is there again may be long, and so are those behind it.
                    return sink(DirectoryPart::Problem(message));
                }
                match reader.block(physical) {
                    Some(bytes) => self.block_parts(slot, (logical, physical), &bytes, sink)?,
                    None => {
                        let message = format!("block {physical} cannot be read");
                        sink(DirectoryPart::Problem(message))?;
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn block_parts(
        &self,
        slot: &InodeSlot,
        (logical, physical): (u64, u64),
        bytes: &[u8],
        sink: Sink<'_>,
    ) -> ControlFlow<()> {
        let format = DirFormat::new(&self.geometry);
        let seed = slot.inode.seed(&self.geometry, slot.number());
        let is_tree = slot.inode.flags.contains(InodeFlags::INDEX);
        let node = match logical {
            0 if is_tree => Some(Kind::Root),
            _ if is_tree && is_interior(bytes, &format) => Some(Kind::Interior),
            _ => None,
        };
        let right = || match node {
            Some(_) => verify_htree(bytes, seed).is_ok(),
            None => verify_leaf(bytes, seed).is_ok(),
        };
        sink(DirectoryPart::Block(DirectoryBlock {
            logical,
            physical: Some(physical),
            kind: match node {
                Some(Kind::Root) => "root",
                Some(Kind::Interior) => "node",
                None => "leaf",
            },
            checksum: ChecksumState::of(self.has_checksums(), right),
        }))?;
        let Some(kind) = node else { return records(format.area(bytes), &format, sink) };
        if kind == Kind::Root {
            // The record of `..` covers the tree, up to the end of the block.
            let dots = entries(bytes, &format).take(2);
            for entry in dots {
                match entry {
                    Ok(entry) => sink(DirectoryPart::Record(record(&entry, false)))?,
                    Err(error) => sink(DirectoryPart::Problem(error.to_string()))?,
                }
            }
            match RootInfo::parse(bytes, &format) {
                Ok(info) => sink(DirectoryPart::Root {
                    hash_version: info.hash_version.to_raw(),
                    levels: info.levels,
                })?,
                Err(error) => {
                    sink(DirectoryPart::Problem(error.at_block(physical).to_string()))?;
                }
            }
        }
        match Node::open(bytes, kind, &format) {
            Ok(node) => {
                for (number, (hash, block)) in (0u32..).zip(node.entries()) {
                    sink(DirectoryPart::Hash { number, hash, block })?;
                }
            }
            Err(error) => sink(DirectoryPart::Problem(error.at_block(physical).to_string()))?,
        }
        ControlFlow::Continue(())
    }

    fn inline_directory(&self, slot: &InodeSlot, sink: Sink<'_>) -> ControlFlow<()> {
        let format = DirFormat::new(&self.geometry);
        sink(DirectoryPart::Block(DirectoryBlock {
            logical: 0,
            physical: None,
            kind: "inline",
            checksum: ChecksumState::Absent,
        }))?;
        let i_block = &slot.inode.i_block;
        for (ino, name) in [(slot.ino, "."), (parent(i_block).0, "..")] {
            sink(DirectoryPart::Record(DirectoryRecord {
                ino,
                file_type: FileType::Directory,
                name: name.into(),
                offset: 0,
                rec_len: 0,
                is_removed: false,
            }))?;
        }
        records(dir_area(i_block), &format, sink)?;
        let (content, problem) = self.inline_content(slot);
        if let Some(problem) = problem {
            sink(DirectoryPart::Problem(problem))?;
        }
        records(content.get(INLINE_FIRST..).unwrap_or_default(), &format, sink)
    }

    /// Returns the inode of a name in a directory.
    ///
    /// # Errors
    /// It is no directory, or has no such name in the parts that can be read.
    pub fn lookup(&self, dir: u32, name: &[u8]) -> Result<u32, InspectError> {
        let slot = self.inode(dir)?;
        if !slot.inode.is_dir() {
            return Err(InspectError::new(format!("inode {dir} is not a directory")));
        }
        let (mut found, mut is_damaged) = (None, false);
        self.directory(&slot, &mut |part| match part {
            DirectoryPart::Record(record) if !record.is_removed && record.name == name => {
                found = Some(record.ino);
                ControlFlow::Break(())
            }
            DirectoryPart::Problem(_) => {
                is_damaged = true;
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        });
        let why = if is_damaged { ", and parts of it are damaged" } else { "" };
        let name = extant_format::Printable(name);
        let missing = || InspectError(format!("no such file: inode {dir} has no name {name}{why}"));
        found.ok_or_else(missing)
    }

    /// Returns the inode at a path, which begins at the root. Symbolic links are followed, but for
    /// one at the end.
    ///
    /// # Errors
    /// There is no such path in the parts that can be read.
    pub fn resolve(&self, path: &[u8]) -> Result<u32, InspectError> {
        let root = extant_format::InodeNr::ROOT.0;
        let (mut dir, mut links) = (root, 0usize);
        let split = |path: &[u8]| -> Vec<Vec<u8>> {
            let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
            parts.rev().map(<[u8]>::to_vec).collect()
        };
        // The last element is the next one.
        let mut left = split(path);
        while let Some(name) = left.pop() {
            let ino = match name.as_slice() {
                b"." => dir,
                name => self.lookup(dir, name)?,
            };
            let slot = self.inode(ino)?;
            if left.is_empty() || !slot.inode.is_symlink() {
                dir = ino;
                continue;
            }
            links = links.saturating_add(1);
            if links > MAX_LINKS {
                return Err(InspectError::new("too many symbolic links".into()));
            }
            let target = self.target(&slot)?;
            if target.first() == Some(&b'/') {
                dir = root;
            }
            left.extend(split(&target));
        }
        Ok(dir)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn target(&self, slot: &InodeSlot) -> Result<Vec<u8>, InspectError> {
        let mut target = Vec::new();
        let problem = || InspectError(format!("the target of inode {} cannot be read", slot.ino));
        if slot.inode.size > MAX_TARGET as u64 {
            return Err(problem());
        }
        let problems = self.content(slot, &mut |piece| {
            if let super::ContentPiece::Data(bytes) = piece {
                target.extend_from_slice(bytes);
            }
            Ok(())
        });
        problems.ok().filter(Vec::is_empty).map(|_| target).ok_or_else(problem)
    }
}

fn record(entry: &DirEntry<'_>, is_removed: bool) -> DirectoryRecord {
    DirectoryRecord {
        ino: entry.ino.0,
        file_type: entry.file_type,
        name: entry.name.to_vec(),
        offset: entry.offset,
        rec_len: entry.rec_len,
        is_removed,
    }
}

/// Gives the entries of an area, each with the removed ones in its record.
pub(super) fn records(area: &[u8], format: &DirFormat, sink: Sink<'_>) -> ControlFlow<()> {
    for entry in entries(area, format) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return sink(DirectoryPart::Problem(error.to_string())),
        };
        if entry.is_used() {
            sink(DirectoryPart::Record(record(&entry, false)))?;
        }
        for entry in removed(area, format, &entry) {
            sink(DirectoryPart::Record(record(&entry, true)))?;
        }
    }
    ControlFlow::Continue(())
}
