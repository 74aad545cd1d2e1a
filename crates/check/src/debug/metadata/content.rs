//! The content of blocks as an image of metadata has it: without content of files, and with other
//! names if they are asked for.
//!
//! # Invariants
//! - A block or inode whose checksum was right has a right one afterwards, and else a wrong one.
//! - Records of directories keep place, length and inode.
//! - Of a block that is none of its kind, such as a node without the magic of nodes and without a
//!   right checksum, only the header stays.

use super::index::HashRanges;
use super::records::{has_names, is_directory_block};
use super::scramble::{NameSpace, Scrambler};
use crate::debug::InodeSlot;
use extant_format::dir::verify_leaf;
use extant_format::extent::{Node, verify_extent_block};
use extant_format::xattr::{is_xattr_block, verify_xattr_block};
use extant_format::{Geometry, GroupNr, Incompat, InodeFlags, InodeNr};

/// Bytes that stay of a block that is none of its kind: those that show it. The others may be
/// content of a file.
const RECORD_HEADER: usize = 8;
const EXTENT_HEADER: usize = 12;
const XATTR_HEADER: usize = 32;

/// The use of a block.
#[derive(Clone, Copy, Debug)]
pub enum Content<'c> {
    /// Metadata without content of files and without names.
    Plain,
    /// A node of an extent tree, with the seed of checksums.
    Extents(u32),
    /// Attributes.
    Xattrs,
    /// A block of an inode table.
    Inodes(TablePart),
    /// A block of a directory.
    Directory(&'c DirectoryFacts, u64),
    /// The target of a symbolic link.
    Target(&'c InodeSlot),
}

/// A block of an inode table.
#[derive(Clone, Copy, Debug)]
pub struct TablePart {
    pub group: GroupNr,
    /// The index of the first inode.
    pub first: u32,
    /// The index of the first inode of the group that nothing reads.
    pub unused: u32,
}

/// A directory whose names are replaced.
#[derive(Debug)]
pub struct DirectoryFacts {
    pub space: NameSpace,
    /// Names are ciphertext, and stay.
    pub is_encrypted: bool,
    pub is_indexed: bool,
    /// The seed of checksums.
    pub seed: u32,
    /// The index, if it can be read.
    pub index: Option<HashRanges>,
}

impl DirectoryFacts {
    pub fn of(slot: &InodeSlot, geometry: &Geometry, index: Option<HashRanges>) -> DirectoryFacts {
        DirectoryFacts {
            space: name_space(slot),
            is_encrypted: is_encrypted(geometry, slot),
            is_indexed: slot.inode.flags.contains(InodeFlags::INDEX),
            seed: slot.inode.seed(geometry, InodeNr(slot.ino)),
            index,
        }
    }

    /// Returns the facts of a directory of which only a block is known.
    fn unknown(geometry: &Geometry) -> DirectoryFacts {
        DirectoryFacts {
            space: NameSpace { ino: 0, folds: false },
            is_encrypted: false,
            is_indexed: false,
            seed: geometry.csum_seed,
            index: None,
        }
    }
}

pub(super) fn name_space(slot: &InodeSlot) -> NameSpace {
    NameSpace { ino: slot.ino, folds: slot.inode.flags.contains(InodeFlags::CASEFOLD) }
}

/// Returns whether names or the target of an inode are ciphertext. The mark of the inode may be
/// damage where the file system has no such inodes.
pub(super) fn is_encrypted(geometry: &Geometry, slot: &InodeSlot) -> bool {
    geometry.incompat(Incompat::ENCRYPT) && slot.inode.flags.contains(InodeFlags::ENCRYPT)
}

/// Removes content of files, and names if there is a scrambler.
#[derive(Debug)]
pub struct Cleaner {
    pub(super) scrambler: Option<Scrambler>,
    /// Names whose hash leads to another leaf: no name of their length was found.
    pub mismatches: u64,
}

impl Cleaner {
    pub fn new(key: Option<[u8; 16]>) -> Cleaner {
        Cleaner { scrambler: key.map(Scrambler::new), mismatches: 0 }
    }

    /// Returns whether names are replaced.
    pub fn scrambles(&self) -> bool {
        self.scrambler.is_some()
    }

    /// Removes from the bytes of a block that no image has.
    pub fn clean(
        &mut self,
        geometry: &Geometry,
        block: u64,
        content: Content<'_>,
        bytes: &mut [u8],
    ) {
        if let Some(kept) = header_of_other_kind(geometry, block, content, bytes) {
            return bytes.iter_mut().skip(kept).for_each(|byte| *byte = 0);
        }
        match content {
            Content::Inodes(part) => self.clean_table(geometry, part, block, bytes),
            Content::Directory(facts, logical) if self.scrambles() => {
                self.clean_directory(geometry, facts, logical, bytes);
            }
            // Damage may show a directory's block as another one.
            Content::Plain if self.scrambles() && has_names(geometry, bytes) => {
                self.clean_directory(geometry, &DirectoryFacts::unknown(geometry), 1, bytes);
            }
            Content::Target(slot) => {
                let scrambler = self.scrambler.as_ref().filter(|_| !is_encrypted(geometry, slot));
                clean_target(scrambler, geometry, slot, bytes);
            }
            _ => {}
        }
    }
}

/// Returns the length of the header that stays of a block that is none of its kind; `None` if it is
/// of its kind, or may be of any. A right checksum shows that it is of its kind.
fn header_of_other_kind(
    geometry: &Geometry,
    block: u64,
    content: Content<'_>,
    bytes: &[u8],
) -> Option<usize> {
    let (kept, is_right) = match content {
        Content::Extents(seed) if Node::open(bytes).is_err() => {
            (EXTENT_HEADER, verify_extent_block(bytes, seed))
        }
        Content::Xattrs if !is_xattr_block(bytes) => {
            let verified = verify_xattr_block(bytes, block, geometry.csum_seed);
            (XATTR_HEADER, verified.is_ok())
        }
        Content::Directory(facts, _) if !is_directory_block(geometry, bytes) => {
            (RECORD_HEADER, verify_leaf(bytes, facts.seed).is_ok())
        }
        _ => return None,
    };
    (!(geometry.metadata_csum && is_right)).then_some(kept)
}

/// Removes the bytes behind the target of a symbolic link, and replaces the target.
fn clean_target(
    scrambler: Option<&Scrambler>,
    geometry: &Geometry,
    slot: &InodeSlot,
    bytes: &mut [u8],
) {
    let size = usize::try_from(slot.inode.size).unwrap_or(usize::MAX);
    let zero = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    // A shorter text is damage, and stays one of its length. Of a longer one, a byte shows that.
    let len = if is_encrypted(geometry, slot) { size } else { zero.min(size.saturating_add(1)) };
    let (names, rest) = bytes.split_at_mut(len.min(bytes.len()));
    if let Some(scrambler) = scrambler {
        scrambler.scramble_path(name_space(slot), names);
    }
    rest.fill(0);
}
