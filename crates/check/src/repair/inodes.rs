//! Inodes: fields, flags, maps, sizes.

use super::RepairError;
use super::draft::Round;
use crate::claims::ClaimMap;
use crate::finding::{Finding, FindingCode as Code};
use crate::passes::inodes::WRONG_FLAGS;
use extant_format::extent::{Node, seal_extent_block};
use extant_format::indirect::{DIND, pointer, pointers_per_block, put_pointer};
use extant_format::inode::I_BLOCK_SIZE;
use extant_format::{FileType, GroupNr, Incompat, InodeFlags, InodeNr};
use std::collections::BTreeMap;

/// The bytes of an inode that every revision has.
const OLD_INODE_SIZE: usize = 128;

/// The extra size that covers all fields.
const EXTRA_ISIZE: u16 = 32;

/// Mode of the resize inode: a regular file of root alone.
const RESIZE_MODE: u16 = 0o100_600;

/// Returns the bytes of a field that is to be zero.
fn zero_field(name: &str) -> Option<std::ops::Range<usize>> {
    Some(match name {
        "high part of the size" => 0x6C..0x70,
        "fragment address" => 0x70..0x74,
        "high part of the block count" => 0x74..0x76,
        "high part of the attribute block" => 0x76..0x78,
        _ => return None,
    })
}

impl Round<'_> {
    /// Repairs inodes, each with all of its findings.
    pub fn repair_inodes(&self, found: &[Finding]) -> Result<(), RepairError> {
        let mut by_inode: BTreeMap<u32, Vec<Finding>> = BTreeMap::new();
        for finding in found {
            by_inode.entry(finding.place.inode.unwrap_or(0)).or_default().push(*finding);
        }
        // Blocks of inodes whose type was wrong have no owner in this survey: the next one knows
        // them, before another repair takes free blocks.
        if self.restore_types(&by_inode)? {
            return Ok(());
        }
        let geometry = self.geometry();
        let nodes = ClaimMap::of_blocks(geometry, self.survey.volume.groups.len());
        for (ino, list) in &by_inode {
            match InodeNr(*ino) {
                InodeNr::NONE => {}
                InodeNr::RESIZE => self.repair_resize_inode(list)?,
                ino => self.repair_inode(ino, list, &nodes)?,
            }
        }
        self.repair_shared(found)
    }

    fn repair_inode(
        &self,
        ino: InodeNr,
        list: &[Finding],
        nodes: &ClaimMap,
    ) -> Result<(), RepairError> {
        let has = |code| list.iter().any(|finding| finding.code == code);
        if has(Code::RootInode) {
            return self.make_root();
        }
        if self.must_go(ino, list)? {
            return if ino == InodeNr::ROOT { self.make_root() } else { self.clear_inode(ino) };
        }
        for finding in list {
            self.repair_field(ino, finding)?;
        }
        self.repair_own_xattrs(ino, list)?;
        let in_map = [
            Code::ExtentNode,
            Code::ExtentEntry,
            Code::BlockPointer,
            Code::Misaligned,
            Code::BlockInMetadata,
            Code::Unreadable,
        ];
        if in_map.into_iter().any(has) {
            let inode = self.inode(ino)?;
            let runs = self.valid_runs(ino, &inode, nodes);
            self.write_map(ino, &runs)?;
        } else if has(Code::ExtentChecksum) {
            self.seal_extents(ino, list)?;
        }
        // Seals the inode, whatever its checksum was.
        self.edit_slot(ino, |_| Ok(()))
    }

    /// Returns whether nothing of the inode can be kept.
    fn must_go(&self, ino: InodeNr, list: &[Finding]) -> Result<bool, RepairError> {
        for finding in list {
            let gone = match finding.code {
                Code::InodeMode => {
                    let kind = self.inode(ino).map(|inode| inode.file_type());
                    matches!(kind, Ok(FileType::Unknown | FileType::Directory) | Err(_))
                        || matches!(kind, Ok(kind) if kind == FileType::Symlink)
                        || ino.0 < self.geometry().first_ino
                }
                Code::ReservedInode | Code::Symlink => true,
                Code::InlineData => finding.place.field != Some("size"),
                _ => false,
            };
            if gone {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn repair_field(&self, ino: InodeNr, finding: &Finding) -> Result<(), RepairError> {
        match finding.code {
            Code::InodeField => self.repair_inode_field(ino, finding.place.field.unwrap_or("")),
            Code::InodeFlag => self.repair_flag(ino, finding.found.unwrap_or(0)),
            Code::InodeMode => {
                let flags = InodeFlags::EXTENTS | InodeFlags::INDEX | InodeFlags::INLINE_DATA;
                self.edit_inode(ino, |inode| inode.flags.remove(flags))
            }
            // A deleted inode may have fields that cannot be read.
            Code::DeletionTime if self.inode(ino).is_err() => self.clear_inode(ino),
            Code::DeletionTime => {
                let time = if finding.expected == Some(0) { 0 } else { self.now };
                self.edit_inode(ino, |inode| inode.dtime = time)
            }
            Code::InlineData => {
                let size = finding.expected.unwrap_or(0);
                self.edit_inode(ino, |inode| inode.size = size)
            }
            _ => Ok(()),
        }
    }

    fn repair_inode_field(&self, ino: InodeNr, field: &str) -> Result<(), RepairError> {
        if let Some(bytes) = zero_field(field) {
            return self.edit_slot(ino, |slot| {
                slot.get_mut(bytes).unwrap_or(&mut []).fill(0);
                Ok(())
            });
        }
        // The extra size is wrong, and so are all fields and attributes after it.
        self.edit_slot(ino, |slot| {
            slot.get_mut(OLD_INODE_SIZE..).unwrap_or(&mut []).fill(0);
            Ok(())
        })?;
        let room = self.geometry().inode_size.saturating_sub(OLD_INODE_SIZE as u16);
        self.edit_inode(ino, |inode| inode.extra_isize = EXTRA_ISIZE.min(room))
    }

    fn repair_flag(&self, ino: InodeNr, bits: u64) -> Result<(), RepairError> {
        let flags = InodeFlags::from_bits_retain(bits as u32);
        let inode = self.inode(ino)?;
        let is_tree = Node::parse(&inode.i_block, None).is_ok();
        let place = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
        if flags.contains(place) {
            let wrong = if is_tree { InodeFlags::INLINE_DATA } else { InodeFlags::EXTENTS };
            return self.edit_inode(ino, |inode| inode.flags.remove(wrong));
        }
        if flags.contains(InodeFlags::EXTENTS) && is_tree {
            return self.edit_features(|_, incompat| incompat.insert(Incompat::EXTENTS));
        }
        if flags.contains(InodeFlags::INLINE_DATA) {
            return self.edit_features(|_, incompat| incompat.insert(Incompat::INLINE_DATA));
        }
        if flags.contains(InodeFlags::EXTENTS) {
            return self.clear_inode(ino);
        }
        self.edit_inode(ino, |inode| inode.flags.remove(flags))
    }

    fn seal_extents(&self, ino: InodeNr, list: &[Finding]) -> Result<(), RepairError> {
        let seed = self.inode(ino)?.seed(self.geometry(), ino);
        for finding in list.iter().filter(|finding| finding.code == Code::ExtentChecksum) {
            let Some(nr) = finding.place.block else { continue };
            let mut bytes = self.block(nr)?;
            seal_extent_block(&mut bytes, nr, seed);
            self.put(nr, &bytes)?;
        }
        Ok(())
    }

    /// Corrects sizes and counts of blocks.
    pub fn repair_sizes(&self, found: &[Finding]) -> Result<(), RepairError> {
        for finding in found {
            let Some(ino) = finding.place.inode.map(InodeNr) else { continue };
            let inode = self.inode(ino)?;
            if finding.expected == Some(0) && self.restore_type(ino)? {
                continue;
            }
            match (finding.code, finding.expected) {
                (Code::InodeBlocks, Some(blocks)) => {
                    self.edit_inode(ino, |inode| inode.blocks = blocks)?;
                }
                (Code::InodeSize, Some(size))
                    if inode.is_dir() && (size == 0 || size >> 32 != 0) =>
                {
                    self.write_directory(self.directory(ino)?)?;
                }
                (Code::InodeSize, Some(size)) => {
                    self.edit_inode(ino, |inode| inode.size = size)?;
                    if size == 0 || inode.is_dir() {
                        self.repair_inode_field(ino, "high part of the size")?;
                    }
                }
                _ => self.repair_inode_field(ino, "high part of the size")?,
            }
        }
        Ok(())
    }

    /// Writes the map of the resize inode, which follows from the layout.
    fn repair_resize_inode(&self, list: &[Finding]) -> Result<(), RepairError> {
        if list.iter().all(|finding| finding.code == Code::InodeChecksum) {
            return self.edit_slot(InodeNr::RESIZE, |_| Ok(()));
        }
        let geometry = self.geometry();
        let base = geometry.base_meta(GroupNr(0));
        if !geometry.compat(extant_format::Compat::RESIZE_INODE) {
            return self.clear_inode(InodeNr::RESIZE);
        }
        // Of a slot that cannot be read, nothing is of use.
        if self.inode(InodeNr::RESIZE).is_err() {
            self.clear_inode(InodeNr::RESIZE)?;
        }
        let inode = self.inode(InodeNr::RESIZE)?;
        let old = u64::from(pointer(&inode.i_block, DIND));
        let volume = &self.survey.volume;
        let reusable = volume.is_block(old)
            && inode.is_regular()
            && volume.metadata.first_claimed(old..old.saturating_add(1)).is_none()
            && !list.iter().any(|finding| finding.place.block.is_none())
            && self.lists_reserved(old)?;
        let dind = if reusable { old } else { self.allocate()? };
        let copies = self.write_reserved(dind)?;
        let reserved = base.reserved.end.saturating_sub(base.reserved.start);
        let blocks = reserved.saturating_mul(copies.saturating_add(1)).saturating_add(1);
        let per_block = u64::from(pointers_per_block(geometry.block_size));
        let size = per_block.saturating_mul(per_block).saturating_add(per_block).saturating_add(12);
        self.edit_inode(InodeNr::RESIZE, |inode| {
            inode.mode = RESIZE_MODE;
            inode.links = 1;
            inode.dtime = 0;
            inode.flags.remove(WRONG_FLAGS);
            inode.file_acl = 0;
            inode.i_block = [0; I_BLOCK_SIZE];
            put_pointer(&mut inode.i_block, DIND, dind as u32);
            inode.size = size.saturating_mul(geometry.block_size.into());
            let sectors = u64::from(geometry.sectors_per_block());
            inode.blocks = blocks.saturating_mul(sectors << geometry.cluster_bits);
        })
    }

    /// Returns whether a block may be the list of the reserved blocks, and no block of a file: it
    /// has at least one of them, and nothing else.
    fn lists_reserved(&self, block: u64) -> Result<bool, RepairError> {
        let geometry = self.geometry();
        let (bytes, reserved) = (self.block(block)?, geometry.base_meta(GroupNr(0)).reserved);
        let slots = pointers_per_block(geometry.block_size) as usize;
        let mut listed = (0..slots).map(|slot| u64::from(pointer(&bytes, slot)));
        let has_some = listed.clone().any(|nr| nr != 0) || reserved.is_empty();
        Ok(has_some && listed.all(|nr| nr == 0 || reserved.contains(&nr)))
    }

    /// Writes the block that lists the reserved blocks, and those, which list their copies. Returns
    /// the number of copies of each.
    fn write_reserved(&self, dind: u64) -> Result<u64, RepairError> {
        let geometry = self.geometry();
        let base = geometry.base_meta(GroupNr(0));
        let per_block = u64::from(pointers_per_block(geometry.block_size).max(1));
        let table = base.superblock.map_or(0, |block| block.0.saturating_add(1));
        let listed = geometry.super_groups().skip(1).take(per_block as usize);
        let groups: Vec<GroupNr> = listed.collect();
        let mut list = vec![0; self.block_size()];
        for block in base.reserved {
            let slot = block.saturating_sub(table).checked_rem(per_block).unwrap_or(0);
            put_pointer(&mut list, slot as usize, block as u32);
            let mut copies = vec![0; self.block_size()];
            for (slot, group) in groups.iter().enumerate() {
                let start = u64::from(group.0).saturating_mul(geometry.blocks_per_group.into());
                put_pointer(&mut copies, slot, start.saturating_add(block) as u32);
            }
            self.put(block, &copies)?;
        }
        self.put(dind, &list)?;
        Ok(groups.len() as u64)
    }
}
