//! Descriptors of groups: from a copy, with bitmaps in new blocks if no copy knows better.

use super::draft::Round;
use super::{RepairError, RepairLevel};
use crate::descriptors::{DescriptorCopies, forget_unused};
use crate::finding::{Finding, FindingCode as Code};
use crate::reader::Reader;
use extant_format::inode::verify_inode;
use extant_format::{BlockNr, GroupDesc, GroupNr, Inode, InodeNr};
use std::collections::BTreeMap;

impl Round<'_> {
    /// Repairs descriptors.
    pub fn repair_groups(&self, found: &[Finding]) -> Result<(), RepairError> {
        let mut by_group: BTreeMap<u32, Vec<Finding>> = BTreeMap::new();
        for finding in found {
            by_group.entry(finding.place.group.unwrap_or(0)).or_default().push(*finding);
        }
        for (group, list) in &by_group {
            self.repair_descriptor(GroupNr(*group), list)?;
        }
        Ok(())
    }

    fn repair_descriptor(&self, group: GroupNr, list: &[Finding]) -> Result<(), RepairError> {
        let mut desc = self.desc(group)?;
        let places = ["block bitmap", "inode bitmap", "inode table"];
        let wrong: Vec<&str> = list
            .iter()
            .filter(|finding| finding.code != Code::DescriptorChecksum)
            .filter_map(|finding| finding.place.field)
            .filter(|field| places.contains(field))
            .collect();
        if !wrong.is_empty() {
            self.relocate(group, &mut desc, &wrong)?;
        }
        // Flags may be wrong, too: without them the whole table is read, and bitmaps are written.
        let checksums = self.geometry().has_group_checksums();
        let doubtful = wrong.is_empty() || !checksums;
        if doubtful || list.iter().any(|finding| finding.code == Code::DescriptorChecksum) {
            forget_unused(&mut desc);
        }
        let geometry = self.geometry();
        desc.free_inodes = desc.free_inodes.min(geometry.inodes_per_group);
        desc.free_clusters = desc.free_clusters.min(geometry.clusters_per_group);
        self.edit_desc(group, |old| *old = desc)
    }

    /// Gives bitmaps and table a place of their own.
    fn relocate(
        &self,
        group: GroupNr,
        desc: &mut GroupDesc,
        wrong: &[&str],
    ) -> Result<(), RepairError> {
        let copy = self.copy_of(group);
        for field in wrong {
            match *field {
                "block bitmap" => {
                    let old = copy.map(|copy| copy.block_bitmap).filter(|nr| self.is_free(*nr));
                    desc.block_bitmap = old.map_or_else(|| self.allocate_near(group), Ok)?;
                }
                "inode bitmap" => {
                    let old = copy.map(|copy| copy.inode_bitmap).filter(|nr| self.is_free(*nr));
                    desc.inode_bitmap = old.map_or_else(|| self.allocate_near(group), Ok)?;
                }
                _ => {
                    let known = copy.map(|copy| copy.inode_table);
                    let known = known.filter(|place| *place != desc.inode_table);
                    let place = known.or_else(|| self.guess_table(group, desc));
                    desc.inode_table = match place {
                        Some(place) => place,
                        None => self.new_table(group)?,
                    };
                }
            }
        }
        Ok(())
    }

    /// Returns the place where the layout of mke2fs has the table, if inodes are there.
    fn guess_table(&self, group: GroupNr, desc: &GroupDesc) -> Option<u64> {
        let geometry = self.geometry();
        let first = geometry.first_block_of_group(group).0;
        let base = first.saturating_add(geometry.base_meta_blocks(group).into());
        let table = u64::from(geometry.inode_table_blocks());
        let neighbor = group.0.checked_sub(1).map(GroupNr).and_then(|group| self.desc(group).ok());
        let after = neighbor.map(|neighbor| neighbor.inode_table.saturating_add(table));
        let bitmaps = [desc.inode_bitmap, desc.block_bitmap, base];
        let near = bitmaps.into_iter().flat_map(|nr| (1..=16).map(move |n| nr.saturating_add(n)));
        after.into_iter().chain(near).find(|place| self.is_table(group, *place))
    }

    /// Returns whether a free range has inodes of the group: with checksums, one of its first block
    /// is right; otherwise the group is the first one, and the root is a directory.
    fn is_table(&self, group: GroupNr, place: u64) -> bool {
        let (geometry, volume) = (self.geometry(), &self.survey.volume);
        let blocks = place..place.saturating_add(geometry.inode_table_blocks().into());
        let valid = geometry.data_range_valid(BlockNr(place), blocks.end.saturating_sub(place));
        if !valid || volume.metadata.first_claimed(blocks).is_some() {
            return false;
        }
        let Ok(bytes) = self.block(place) else { return false };
        let slots = bytes.chunks_exact(geometry.inode_size.into());
        let mut inodes = (0..).map(|index| geometry.inode_at(group, index)).zip(slots);
        inodes.any(|(ino, slot)| {
            let inode = Inode::decode_unverified(slot, geometry, ino);
            let used = inode.is_ok_and(|inode| inode.links > 0 && inode.is_dir());
            let known = ino == InodeNr::ROOT || geometry.metadata_csum;
            used && known && verify_inode(slot, geometry, ino).is_ok()
        })
    }

    /// Makes an empty table: the inodes of the old one are lost.
    fn new_table(&self, group: GroupNr) -> Result<u64, RepairError> {
        if self.level == RepairLevel::Safe {
            return Err(RepairError::Unsupported(
                "an inode table whose place no copy of the descriptor tells; it needs `lossy`",
            ));
        }
        let place = self.allocate_run(group, self.geometry().inode_table_blocks().into())?;
        Ok(place)
    }

    fn is_free(&self, nr: u64) -> bool {
        let range = nr..nr.saturating_add(1);
        self.survey.volume.is_block(nr)
            && self.survey.claims.first_claimed(range.clone()).is_none()
            && self.survey.claims.claim(range).is_none()
    }

    fn allocate_near(&self, group: GroupNr) -> Result<u64, RepairError> {
        self.next.set(self.geometry().first_block_of_group(group).0);
        self.allocate()
    }

    /// Returns a usable copy of a descriptor.
    fn copy_of(&self, group: GroupNr) -> Option<GroupDesc> {
        let reader = Reader::new(&*self.draft.device, *self.geometry());
        let (index, _) = reader.geometry.desc_location(group);
        DescriptorCopies::read(&reader, index).find(&reader.geometry, group)
    }
}
