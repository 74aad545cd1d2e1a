//! Slots of inodes in an image of metadata: without data of files, and with other names.

use super::content::{Cleaner, TablePart, is_encrypted, name_space};
use super::records::{Kept, each_name, put};
use super::scramble::Scrambler;
use crate::debug::{ChecksumState, InodeSlot};
use extant_format::dir::DirFormat;
use extant_format::inline::dir_area_mut;
use extant_format::inode::{I_BLOCK_SIZE, i_block_mut, seal_inode, tail, tail_mut};
use extant_format::xattr::{NameIndex, inode_value_range};
use extant_format::{FileType, Geometry, GroupNr, InodeFlags, InodeNr};
use std::ops::Range;

/// Bytes of an inode's area for attributes that stay if the area is damaged: a header, and an entry
/// with the name of inline data.
const DAMAGED_AREA: usize = 24;

/// Bytes of a slot that stay if the length of its fields is impossible and it has data: all fields
/// of any program.
const DAMAGED_SLOT: usize = 160;

impl Cleaner {
    /// Removes from a block of an inode table.
    pub(super) fn clean_table(
        &self,
        geometry: &Geometry,
        part: TablePart,
        block: u64,
        bytes: &mut [u8],
    ) {
        let size = usize::from(geometry.inode_size).max(1);
        for (index, slot) in (part.first..).zip(bytes.chunks_exact_mut(size)) {
            if index >= part.unused {
                slot.fill(0);
            } else if slot.iter().any(|byte| *byte != 0) {
                let ino = geometry.inode_at(part.group, index);
                self.clean_slot(geometry, (part.group, block), ino, slot);
            }
        }
    }

    fn clean_slot(
        &self,
        geometry: &Geometry,
        (group, block): (GroupNr, u64),
        ino: InodeNr,
        bytes: &mut [u8],
    ) {
        let Some(slot) = InodeSlot::decode(geometry, ino, (group, block, 0), bytes) else { return };
        let is_inline = slot.inode.flags.contains(InodeFlags::INLINE_DATA);
        let is_changed = match slot.inode.file_type() {
            _ if !is_inline => self.scramble_fast_target(geometry, &slot, bytes),
            FileType::Directory => self.scramble_inline_directory(geometry, &slot, bytes),
            FileType::Symlink => self.scramble_inline_target(geometry, &slot, bytes),
            _ => {
                i_block_mut(bytes).fill(0);
                let rest = inline_rest(geometry, &slot);
                tail_part(bytes, geometry, &slot, rest).fill(0);
                true
            }
        };
        if is_inline && slot.problem.is_some() {
            bytes.iter_mut().skip(DAMAGED_SLOT).for_each(|byte| *byte = 0);
        }
        if is_changed && slot.checksum == ChecksumState::Right {
            seal_inode(bytes, geometry, ino);
        }
    }

    /// Returns the scrambler, unless the target of a link is ciphertext.
    fn scrambler_of(&self, geometry: &Geometry, slot: &InodeSlot) -> Option<&Scrambler> {
        self.scrambler.as_ref().filter(|_| !is_encrypted(geometry, slot))
    }

    fn scramble_fast_target(
        &self,
        geometry: &Geometry,
        slot: &InodeSlot,
        bytes: &mut [u8],
    ) -> bool {
        let Some(scrambler) = self.scrambler_of(geometry, slot) else { return false };
        let Some(len) = fast_target_len(geometry, slot) else { return false };
        let (names, rest) = i_block_mut(bytes).split_at_mut(len.min(I_BLOCK_SIZE));
        scrambler.scramble_path(name_space(slot), names);
        rest.fill(0);
        true
    }

    fn scramble_inline_target(
        &self,
        geometry: &Geometry,
        slot: &InodeSlot,
        bytes: &mut [u8],
    ) -> bool {
        let Some(scrambler) = self.scrambler_of(geometry, slot) else { return false };
        let mut target = i_block_mut(bytes).to_vec();
        let rest = inline_rest(geometry, slot);
        target.extend_from_slice(tail_part(bytes, geometry, slot, rest.clone()));
        let size = usize::try_from(slot.inode.size).unwrap_or(usize::MAX).min(target.len());
        let (names, unused) = target.split_at_mut(size);
        scrambler.scramble_path(name_space(slot), names);
        unused.fill(0);
        let (first, second) = target.split_at(I_BLOCK_SIZE.min(target.len()));
        put(i_block_mut(bytes), first);
        put(tail_part(bytes, geometry, slot, rest), second);
        true
    }

    fn scramble_inline_directory(
        &self,
        geometry: &Geometry,
        slot: &InodeSlot,
        bytes: &mut [u8],
    ) -> bool {
        let Some(scrambler) = &self.scrambler else { return false };
        let (format, space) = (DirFormat::new(geometry), name_space(slot));
        let kept = Kept::of(is_encrypted(geometry, slot), space);
        let mut replace = |name: &mut [u8]| {
            if kept == Kept::Nothing {
                scrambler.scramble(space, name);
            }
        };
        let mut first = slot.inode.i_block;
        each_name(dir_area_mut(&mut first), &format, kept, &mut replace);
        put(i_block_mut(bytes), &first);
        let rest = inline_rest(geometry, slot);
        each_name(tail_part(bytes, geometry, slot, rest), &format, kept, &mut replace);
        true
    }
}

/// Returns the length of a target in `i_block`; `None` if there is none. Old kernels leave the
/// target of a deleted link, and damaged sizes hide others.
fn fast_target_len(geometry: &Geometry, slot: &InodeSlot) -> Option<usize> {
    let inode = &slot.inode;
    if !inode.is_symlink() || inode.flags.contains(InodeFlags::EXTENTS) {
        return None;
    }
    if let Some(target) = inode.fast_symlink(geometry).filter(|_| inode.links > 0) {
        return Some(target.len());
    }
    let is_hidden = inode.blocks == 0 || inode.links == 0;
    is_hidden.then(|| inode.i_block.iter().position(|byte| *byte == 0).unwrap_or(I_BLOCK_SIZE))
}

/// Returns the part of an inode's area for attributes that holds the rest of inline data.
fn inline_rest(geometry: &Geometry, slot: &InodeSlot) -> Range<usize> {
    let area = tail(&slot.bytes, geometry, &slot.inode);
    match inode_value_range(area, NameIndex::SYSTEM, NameIndex::INLINE_DATA_NAME) {
        Ok(found) => found.unwrap_or(0..0),
        // The data may be anywhere.
        Err(_) => DAMAGED_AREA.min(area.len())..area.len(),
    }
}

fn tail_part<'b>(
    bytes: &'b mut [u8],
    geometry: &Geometry,
    slot: &InodeSlot,
    part: Range<usize>,
) -> &'b mut [u8] {
    tail_mut(bytes, geometry, &slot.inode).get_mut(part).unwrap_or(&mut [])
}
