//! The list of bad blocks: the map of inode 1, whose blocks no file gets.
//!
//! The list is written in the draft before the first round. A block of a file that is listed then
//! has two owners, of which inode 1 has the lowest number: it keeps the block, and the file gets a
//! copy. Structures with a fixed place stay where they are: such blocks are not listed, but
//! returned with their use.
//!
//! For example, block 1177 belongs to a file, block 9000 to nothing, and block 134 to an inode
//! table. The list gets 1177 and 9000, and the file a copy of 1177 in a free block.

use super::RepairError;
use super::draft::Round;
use crate::maps::{Run, Runs};
use crate::reader::Reader;
use crate::view::{journal_extents, journal_slot};
use extant_format::indirect::{DIND, pointer};
use extant_format::inode::I_BLOCK_SIZE;
use extant_format::types::Timestamp;
use extant_format::{Compat, Corrupt, Inode, InodeFlags, InodeNr};
use std::collections::BTreeSet;
use std::ops::Range;

/// Maximum number of listed blocks.
const MAX_LISTED: usize = 1 << 18;

/// The reason of a number that is no block.
const OUTSIDE: &str = "outside of the file system";

/// Blocks for the list of bad blocks.
#[derive(Clone, Debug, Default)]
pub struct BadBlocks {
    /// Numbers of blocks of the file system, in any order.
    pub blocks: Vec<u64>,
    /// The present list is emptied before.
    pub replace: bool,
}

/// A bad block that is not listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UnlistedBlock {
    /// Its number.
    pub block: u64,
    /// The use that it has, or the reason why it can have none.
    pub reason: &'static str,
}

impl UnlistedBlock {
    /// Returns whether a structure of the file system has the block.
    pub fn is_in_use(&self) -> bool {
        self.reason != OUTSIDE
    }
}

/// Returns the blocks that are listed as bad.
///
/// # Errors
/// An inode of no use.
pub fn listed_blocks(reader: &Reader<'_>) -> Result<BTreeSet<u64>, Corrupt> {
    let ino = InodeNr::BAD_BLOCKS;
    let (table, offset) = journal_slot(reader, ino)?;
    let bytes = reader.block(table).unwrap_or_default();
    let slot = bytes.get(offset..).unwrap_or(&[]);
    let inode = Inode::decode_unverified(slot, &reader.geometry, ino)?;
    let runs = Runs::of(reader, ino, &inode).runs;
    Ok(runs.iter().flat_map(Run::blocks).take(MAX_LISTED).collect())
}

/// Blocks of structures that are not moved.
struct Fixed {
    uses: Vec<(Range<u64>, &'static str)>,
}

impl Fixed {
    fn of(round: &Round<'_>) -> Fixed {
        let volume = &round.survey.volume;
        let (sb, geometry) = (&volume.superblock, round.geometry());
        let mut uses = Vec::new();
        if geometry.compat(Compat::HAS_JOURNAL)
            && let Ok(extents) = journal_extents(&volume.reader, sb.journal_inum())
        {
            for extent in extents {
                let end = extent.physical.saturating_add(extent.len.into());
                uses.push((extent.physical..end, "a part of the journal"));
            }
        }
        if let Ok(inode) = round.inode(InodeNr::RESIZE) {
            let list = u64::from(pointer(&inode.i_block, DIND));
            uses.push((list..list.saturating_add(1), "a part of the resize inode"));
        }
        Fixed { uses }
    }

    /// Returns the reason why a block is not listed; `None` if it can be.
    fn reason(&self, round: &Round<'_>, block: u64) -> Option<&'static str> {
        let volume = &round.survey.volume;
        if !volume.is_block(block) {
            return Some(OUTSIDE);
        }
        let range = block..block.saturating_add(1);
        if volume.metadata.first_claimed(range).is_some() {
            return Some("a part of superblocks, descriptors, bitmaps or inode tables");
        }
        self.uses.iter().find(|(blocks, _)| blocks.contains(&block)).map(|(_, reason)| *reason)
    }
}

impl Round<'_> {
    /// Writes the list of bad blocks. Returns the blocks that it does not get.
    pub fn list_bad_blocks(&self, wanted: &BadBlocks) -> Result<Vec<UnlistedBlock>, RepairError> {
        if self.geometry().has_bigalloc() {
            return Err(RepairError::Unsupported("a list of bad blocks with bigalloc"));
        }
        let old = listed_blocks(&self.survey.volume.reader);
        let mut blocks = match &old {
            Ok(old) if !wanted.replace => old.clone(),
            _ => BTreeSet::new(),
        };
        blocks.extend(&wanted.blocks);
        let fixed = Fixed::of(self);
        let mut unlisted = Vec::new();
        blocks.retain(|block| {
            let reason = fixed.reason(self, *block);
            unlisted.extend(reason.map(|reason| UnlistedBlock { block: *block, reason }));
            reason.is_none()
        });
        if blocks.len() > MAX_LISTED {
            return Err(RepairError::Unsupported("so many bad blocks: replace the device"));
        }
        if old.as_ref().ok() != Some(&blocks) {
            self.write_list(&blocks)?;
        }
        Ok(unlisted)
    }

    fn write_list(&self, blocks: &BTreeSet<u64>) -> Result<(), RepairError> {
        let ino = InodeNr::BAD_BLOCKS;
        // Neither the map nor copies of blocks get a bad one.
        blocks.iter().for_each(|nr| self.survey.claims.claim_all(*nr..nr.saturating_add(1)));
        if self.inode(ino).is_err() {
            self.clear_inode(ino)?;
        }
        let mut runs = Vec::new();
        for (logical, physical) in (0..).zip(blocks) {
            Run { logical, physical: *physical, len: 1, unwritten: false }.add_to(&mut runs);
        }
        let now = Timestamp::new(self.now.into(), 0);
        self.edit_inode(ino, |inode| {
            (inode.mode, inode.uid, inode.gid, inode.links) = (0, 0, 0, 0);
            (inode.dtime, inode.file_acl, inode.flags) = (0, 0, InodeFlags::empty());
            (inode.mtime, inode.ctime) = (now, now);
            inode.i_block = [0; I_BLOCK_SIZE];
            inode.size = (blocks.len() as u64).saturating_mul(self.geometry().block_size.into());
        })?;
        self.write_map(ino, &runs)?;
        let inode = self.inode(ino)?;
        let nodes = Runs::of(&self.survey.volume.reader, ino, &inode).nodes().count();
        let count = blocks.len().saturating_add(nodes) as u64;
        let sectors = u64::from(self.geometry().sectors_per_block());
        self.edit_inode(ino, |inode| inode.blocks = count.saturating_mul(sectors))
    }
}
