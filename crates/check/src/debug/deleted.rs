//! Deleted files, and their content in blocks that are still free.
//!
//! The slot of a deleted inode has the time of the deletion. Where the slot has lost its map, as
//! after a deletion by the kernel, an earlier copy of the slot in the log has it. For example,
//! inode 17 was deleted in transaction 9, and the log has its slot of transaction 7. The map of 7
//! leads to blocks 900 to 920, and those that the bitmap has as free hold the content.
//!
//! # Invariants
//! A block is content of one deleted file at most: of the one that was deleted last.

use super::journal::{AsOf, JournalLog};
use super::runs::ClaimedRuns;
use super::{ContentPiece, InodeSlot, InspectedBitmap, Inspector};
use crate::claims::ClaimMap;
use crate::maps::Run;
use crate::reader::Reader;
use extant_format::{BlockNr, GroupNr, Inode, InodeFlags, bitmap};
use std::io;
use std::ops::{ControlFlow, Range};

/// Blocks that are read at once.
const PIECE_BLOCKS: u64 = 64;

/// The place of the map of a deleted file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletedSource {
    /// The slot of the inode.
    Inode,
    /// The copy of the slot in a transaction of the log.
    Transaction(u32),
}

/// A deleted file.
#[derive(Clone, Debug)]
pub struct DeletedFile {
    /// The slot as it lies in the table.
    pub slot: InodeSlot,
    /// The inode with size and map before the deletion, as far as it is known.
    pub inode: Inode,
    /// The place of the map; `None` if no map is left.
    pub source: Option<DeletedSource>,
    /// Blocks of content.
    pub blocks: u64,
    /// Blocks of content that are still free.
    pub free: u64,
    /// Blocks of the map, and those that are still free.
    pub map_blocks: (u64, u64),
    /// A part of the map is damaged.
    pub is_damaged: bool,
    /// Content in the inode.
    inline: Option<Vec<u8>>,
    /// The runs, and whether their blocks are free; in the order of the file.
    runs: Vec<(Run, bool)>,
}

impl DeletedFile {
    /// Returns whether a map is known, and all content is there.
    pub fn is_complete(&self) -> bool {
        self.source.is_some() && self.free == self.blocks && !self.is_damaged
    }

    /// Returns whether some content is there.
    pub fn has_content(&self) -> bool {
        self.inline.is_some() || self.free > 0
    }
}

/// Blocks and nodes that the files before have.
struct Search<'s> {
    inspector: &'s Inspector,
    log: Option<&'s JournalLog<'s>>,
    nodes: ClaimMap,
    logged_nodes: ClaimMap,
    content: ClaimMap,
    /// The bitmap that was read last.
    bitmap: Option<(GroupNr, Option<InspectedBitmap>)>,
}

impl Inspector {
    /// Returns the deleted inodes, those that were deleted last first, and damage that may hide
    /// some, in words.
    pub fn deleted_inodes(&self) -> (Vec<u32>, Vec<String>) {
        let mut found: Vec<(u32, u32)> = Vec::new();
        let mut bitmap: Option<(u32, Option<InspectedBitmap>)> = None;
        let per_group = self.geometry.inodes_per_group.max(1);
        let problems = self.each_slot(&mut |slot| {
            let inode = &slot.inode;
            if inode.links > 0 || inode.dtime == 0 || inode.mode == 0 {
                return;
            }
            if bitmap.as_ref().is_none_or(|(group, _)| *group != slot.group) {
                bitmap = Some((slot.group, self.inode_bitmap(slot.group.into()).ok()));
            }
            let bits = bitmap.as_ref().and_then(|(_, bits)| bits.as_ref());
            let bit = slot.ino.saturating_sub(1).checked_rem(per_group).unwrap_or(0);
            // An inode that is open yet has the next one of a list in place of the time.
            let is_orphan =
                bits.map_or(inode.dtime <= self.geometry.inodes_count, |bits| bits.is_set(bit));
            if !is_orphan {
                found.push((inode.dtime, slot.ino));
            }
        });
        found.sort_unstable_by_key(|(time, ino)| (std::cmp::Reverse(*time), *ino));
        (found.into_iter().map(|(_, ino)| ino).collect(), problems)
    }

    /// Hands deleted files to `sink`, in this order, until it breaks.
    pub fn deleted_files(
        &self,
        inodes: &[u32],
        log: Option<&JournalLog<'_>>,
        sink: &mut dyn FnMut(&DeletedFile) -> ControlFlow<()>,
    ) {
        let mut search = Search {
            inspector: self,
            log,
            nodes: self.no_claims(),
            logged_nodes: self.no_claims(),
            content: self.no_claims(),
            bitmap: None,
        };
        for ino in inodes {
            let Ok(slot) = self.inode(*ino) else { continue };
            if sink(&search.file(slot)).is_break() {
                break;
            }
        }
    }

    /// Hands the content of a deleted file to `sink`, in order. Blocks that are no longer free, and
    /// those that cannot be read, are holes. Returns the number of bytes that are missing.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn deleted_content(
        &self,
        file: &DeletedFile,
        sink: &mut dyn FnMut(ContentPiece<'_>) -> io::Result<()>,
    ) -> io::Result<u64> {
        if let Some(content) = &file.inline {
            sink(ContentPiece::Data(content))?;
            return Ok(0);
        }
        let bits = self.geometry.block_bits;
        let (mut at, mut missing, size) = (0u64, 0u64, file.inode.size);
        for (run, is_free) in &file.runs {
            let start = run.logical.checked_shl(bits).unwrap_or(u64::MAX).min(size);
            if start > at {
                sink(ContentPiece::Hole(start.saturating_sub(at)))?;
                at = start;
            }
            if start < at {
                continue;
            }
            let end = start.saturating_add(run.len.checked_shl(bits).unwrap_or(u64::MAX)).min(size);
            if !is_free || run.unwritten {
                let len = end.saturating_sub(at);
                if len > 0 {
                    sink(ContentPiece::Hole(len))?;
                }
                missing = missing.saturating_add(if run.unwritten { 0 } else { len });
                at = end;
            }
            let mut block = run.physical;
            while at < end {
                let count = end.saturating_sub(at).div_ceil(1 << bits).min(PIECE_BLOCKS);
                let len = (count << bits).min(end.saturating_sub(at));
                let mut buffer = vec![0; len as usize];
                let offset = block.checked_shl(bits).unwrap_or(u64::MAX);
                if self.device.read_exact_at(&mut buffer, offset).is_ok() {
                    sink(ContentPiece::Data(&buffer))?;
                } else {
                    sink(ContentPiece::Hole(len))?;
                    missing = missing.saturating_add(len);
                }
                at = at.saturating_add(len);
                block = block.saturating_add(count);
            }
        }
        if at < size {
            sink(ContentPiece::Hole(size.saturating_sub(at)))?;
        }
        Ok(missing)
    }
}

impl Search<'_> {
    fn file(&mut self, slot: InodeSlot) -> DeletedFile {
        let mut file = DeletedFile {
            inode: slot.inode.clone(),
            slot,
            source: None,
            blocks: 0,
            free: 0,
            map_blocks: (0, 0),
            is_damaged: false,
            inline: None,
            runs: Vec::new(),
        };
        let own = file.slot.clone();
        let reader = self.inspector.reader();
        if !self.take(&mut file, &own, &reader, DeletedSource::Inode)
            && let Some(log) = self.log
        {
            let is_version = |(_, version): &(u32, InodeSlot)| {
                version.inode.generation == own.inode.generation && has_content(&version.inode)
            };
            if let Some((sequence, version)) = log.slots_of(&own).find(is_version) {
                let device = AsOf { log, sequence };
                let reader = Reader::new(&device, self.inspector.geometry);
                self.take(&mut file, &version, &reader, DeletedSource::Transaction(sequence));
            }
        }
        file
    }

    /// Takes content and map of a version of the inode. Returns whether it has any.
    fn take(
        &mut self,
        file: &mut DeletedFile,
        version: &InodeSlot,
        reader: &Reader<'_>,
        source: DeletedSource,
    ) -> bool {
        let inode = &version.inode;
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            let (content, problem) = self.inspector.inline_content(version);
            if content.is_empty() || problem.is_some() {
                return false;
            }
            (file.inline, file.source) = (Some(content), Some(source));
            file.inode = inode.clone();
            return true;
        }
        if !version.has_map(&self.inspector.geometry) || !has_content(inode) {
            return false;
        }
        let nodes = match source {
            DeletedSource::Inode => &self.nodes,
            DeletedSource::Transaction(_) => &self.logged_nodes,
        };
        let ClaimedRuns { entered, runs, damaged, .. } = ClaimedRuns::of(reader, version, nodes);
        if runs.is_empty() {
            return false;
        }
        (file.inode, file.source, file.is_damaged) = (inode.clone(), Some(source), damaged);
        let mut free = 0u64;
        for block in &entered {
            let is_free = self.next_free(*block..block.saturating_add(1)).is_some();
            free = free.saturating_add(is_free.into());
        }
        file.map_blocks = (entered.len() as u64, free);
        for run in &runs {
            self.split(run, file);
        }
        true
    }

    /// Adds a run to a file, in pieces that are free or not.
    fn split(&mut self, run: &Run, file: &mut DeletedFile) {
        let part = |blocks: Range<u64>| Run {
            logical: run.logical.saturating_add(blocks.start.saturating_sub(run.physical)),
            physical: blocks.start,
            len: blocks.end.saturating_sub(blocks.start),
            unwritten: run.unwritten,
        };
        file.blocks = file.blocks.saturating_add(run.len);
        let (mut next, end) = (run.physical, run.blocks().end);
        while next < end {
            let piece = self.next_free(next..end).unwrap_or(end..end);
            if piece.start > next {
                file.runs.push((part(next..piece.start), false));
            }
            let taken = self.content.claim(piece.clone()).unwrap_or(piece.end);
            if taken > piece.start {
                file.free = file.free.saturating_add(taken.saturating_sub(piece.start));
                file.runs.push((part(piece.start..taken), true));
            }
            if taken < piece.end {
                // The rest of a run from a block of another file on is not looked at, so that each
                // look costs no more than the blocks that it claims.
                file.runs.push((part(taken..end), false));
                break;
            }
            next = piece.end;
        }
    }

    /// Returns the first free blocks of a range, of one group.
    fn next_free(&mut self, blocks: Range<u64>) -> Option<Range<u64>> {
        let geometry = self.inspector.geometry;
        let mut next = blocks.start;
        while next < blocks.end {
            let (group, bit) = geometry.group_and_bit(BlockNr(next))?;
            if self.bitmap.as_ref().is_none_or(|(loaded, _)| *loaded != group) {
                self.bitmap = Some((group, self.inspector.block_bitmap(group).ok()));
            }
            let first = geometry.first_block_of_group(group).0;
            let group_end = first.saturating_add(geometry.blocks_in_group(group).into());
            let bits = self.bitmap.as_ref().and_then(|(_, bits)| bits.as_ref());
            let free = bits.and_then(|found| {
                bitmap::next_zero_run(&found.bits, bit as usize, found.len as usize)
            });
            let block = |bit: usize| geometry.block_of_bit(group, bit as u32).0;
            if let Some(free) = free {
                let start = block(free.start).max(next);
                let end = block(free.end).min(blocks.end).min(group_end);
                return (start < end).then_some(start..end);
            }
            next = group_end.max(next.saturating_add(1));
        }
        None
    }
}

/// Returns whether an inode has a map that is not empty.
fn has_content(inode: &Inode) -> bool {
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        return inode.size > 0;
    }
    if inode.flags.contains(InodeFlags::EXTENTS) {
        let root = extant_format::extent::Node::open(&inode.i_block);
        return root.is_ok_and(|root| !root.is_empty());
    }
    inode.i_block.iter().any(|byte| *byte != 0)
}
