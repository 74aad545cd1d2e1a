//! The resize inode: its map lists the blocks that are reserved for descriptors, in the first group
//! and in each group with a superblock copy.

use super::{GroupScan, InodePass, Subject};
use crate::finding::{Finding, FindingCode};
use extant_format::indirect::{DIND, DIRECT, TIND, max_blocks, pointer, pointers_per_block};
use extant_format::{Compat, GroupNr, InodeFlags};

/// Flags that the resize inode cannot have: those of other maps and kinds.
pub const WRONG_FLAGS: InodeFlags =
    InodeFlags::EXTENTS.union(InodeFlags::INLINE_DATA).union(InodeFlags::CASEFOLD);

impl InodePass<'_> {
    pub(super) fn check_resize(&self, subject: &Subject<'_>, scan: &mut GroupScan) {
        if self.volume.reader.geometry.compat(Compat::RESIZE_INODE) {
            self.check_reserved_map(subject, scan);
            self.check_large(subject, scan);
            return;
        }
        let inode = subject.inode;
        let mut slots = (0..=TIND).map(|slot| pointer(&inode.i_block, slot));
        if inode.links != 0 || inode.blocks != 0 || slots.any(|block| block != 0) {
            scan.findings.add(FindingCode::ReservedInode, subject.place());
        }
    }

    fn check_reserved_map(&self, subject: &Subject<'_>, scan: &mut GroupScan) {
        let (inode, geometry) = (subject.inode, &self.volume.reader.geometry);
        let dind = u64::from(pointer(&inode.i_block, DIND));
        let others = (0..=TIND).filter(|slot| *slot != DIND);
        let stray = others.map(|slot| pointer(&inode.i_block, slot)).any(|block| block != 0);
        if geometry.reserved_gdt_blocks == 0 && dind == 0 && !stray {
            return;
        }
        let bytes = self.volume.reader.block(dind).filter(|_| self.volume.is_block(dind));
        let foreign = inode.flags.intersects(WRONG_FLAGS) || inode.file_acl != 0;
        let is_map = inode.is_regular() && inode.links > 0 && !foreign && !stray;
        let Some(bytes) = bytes.filter(|_| is_map) else {
            scan.findings.add(FindingCode::ResizeInode, subject.place());
            return;
        };
        scan.resize_blocks.push(dind);
        let base = geometry.base_meta(GroupNr(0));
        let per_block = u64::from(pointers_per_block(geometry.block_size).max(1));
        let table = base.superblock.map_or(0, |block| block.0.saturating_add(1));
        let mut expected = vec![0; per_block as usize];
        for block in base.reserved.clone() {
            let index = block.saturating_sub(table).checked_rem(per_block).unwrap_or(0);
            expected.iter_mut().skip(index as usize).take(1).for_each(|slot| *slot = block);
        }
        let listed = (0..).zip(&expected).all(|(slot, nr)| u64::from(pointer(&bytes, slot)) == *nr);
        if !listed {
            scan.findings.add(FindingCode::ResizeInode, subject.place().block(dind));
        }
        let mut reserved_blocks = base.reserved.clone();
        if let Some(block) = reserved_blocks.find(|block| !self.lists_copies(*block)) {
            scan.findings.add(FindingCode::ResizeInode, subject.place().block(block));
        }
        // A block has no pointers for more; a false number of groups is not walked through.
        let copies = geometry.super_groups().skip(1).take(per_block as usize).count() as u64;
        let last = base.reserved.end.saturating_sub(table).saturating_sub(1);
        let last = last.checked_rem(per_block).unwrap_or(0).saturating_mul(per_block);
        let first = per_block.saturating_add(DIRECT as u64);
        let last = first.saturating_add(last).saturating_add(copies).saturating_sub(1);
        let size = last.saturating_mul(geometry.block_size.into());
        let most = max_blocks(geometry.block_size).saturating_mul(geometry.block_size.into());
        let size = if copies > 0 { size } else { 0 };
        if !(size..=most).contains(&inode.size) {
            let finding = Finding::new(FindingCode::InodeSize, subject.place());
            scan.findings.push(finding.values(inode.size, size));
        }
        let reserved = base.reserved.end.saturating_sub(base.reserved.start);
        let blocks = reserved.saturating_mul(copies.saturating_add(1)).saturating_add(1);
        let sectors = u64::from(geometry.sectors_per_block()) << geometry.cluster_bits;
        let expected = blocks.saturating_mul(sectors);
        // Reserved blocks share clusters.
        if (!geometry.has_bigalloc() || reserved == 0) && inode.blocks != expected {
            let finding = Finding::new(FindingCode::InodeBlocks, subject.place());
            scan.findings.push(finding.values(inode.blocks, expected));
        }
    }

    /// Returns whether a reserved block of the first group lists its copies in the other groups,
    /// and nothing else.
    fn lists_copies(&self, block: u64) -> bool {
        let Some(bytes) = self.volume.reader.block(block) else { return false };
        let geometry = &self.volume.reader.geometry;
        let copies = geometry.super_groups().skip(1).map(|group| {
            let start = u64::from(group.0).saturating_mul(geometry.blocks_per_group.into());
            start.saturating_add(block)
        });
        let slots = pointers_per_block(geometry.block_size) as usize;
        let mut expected = copies.chain(std::iter::repeat(0));
        (0..slots).all(|slot| expected.next() == Some(u64::from(pointer(&bytes, slot))))
    }
}
