//! Bitmaps, counts and copies, which follow from everything else.

use super::RepairError;
use super::draft::Round;
use super::superblock::add_ro_compat;
use crate::finding::{Finding, FindingCode as Code};
use extant_format::group_desc::GroupFlags;
use extant_format::inode::LINK_MAX;
use extant_format::mmp::{MMP_SEQ_CLEAN, Mmp};
use extant_format::superblock::State;
use extant_format::xattr::{seal_xattr_block, set_refcount};
use extant_format::{GroupDesc, GroupNr, InodeNr, RoCompat, bitmap};
use extant_journal::offline::reset_log;
use std::collections::BTreeMap;

/// Parts of a group that are wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Wrong {
    block_bitmap: bool,
    inode_bitmap: bool,
}

impl Round<'_> {
    /// Corrects counts of links and of references.
    pub fn repair_links(&self, found: &[Finding]) -> Result<(), RepairError> {
        for finding in found {
            let ino = InodeNr(finding.place.inode.unwrap_or(0));
            let expected = finding.expected.unwrap_or(0);
            match (finding.code, finding.place.block) {
                (Code::LinkCount, _) if expected > LINK_MAX.into() && self.inode(ino)?.is_dir() => {
                    self.draft.edit_super(|sb| add_ro_compat(sb, RoCompat::DIR_NLINK))?;
                    self.edit_inode(ino, |inode| inode.links = 1)?;
                }
                (Code::LinkCount, _) => {
                    self.edit_inode(ino, |inode| inode.links = expected as u16)?;
                }
                (Code::XattrReferences, Some(nr)) => {
                    let mut bytes = self.block(nr)?;
                    set_refcount(&mut bytes, expected as u32);
                    if self.geometry().metadata_csum {
                        seal_xattr_block(&mut bytes, nr, self.geometry().csum_seed);
                    }
                    self.put(nr, &bytes)?;
                }
                (Code::XattrValue, _) if expected == 0 => self.clear_inode(ino)?,
                _ => self.edit_inode(ino, |inode| inode.set_ea_refcount(expected))?,
            }
        }
        Ok(())
    }

    /// Writes bitmaps, counts and copies that are wrong.
    pub fn repair_counts(&self, found: &[Finding]) -> Result<(), RepairError> {
        let mut groups: BTreeMap<u32, Wrong> = BTreeMap::new();
        for finding in found {
            let Some(group) = finding.place.group else { continue };
            let group = match finding.code {
                Code::BackupSuperblock => {
                    self.write_copy(GroupNr(group), finding.place.block.unwrap_or(0))?;
                    continue;
                }
                _ => groups.entry(group).or_default(),
            };
            match finding.code {
                Code::BlockBitmapChecksum
                | Code::BlockBitmapPadding
                | Code::BlockMarkedFree
                | Code::BlockMarkedUsed => group.block_bitmap = true,
                Code::InodeBitmapChecksum
                | Code::InodeBitmapPadding
                | Code::InodeMarkedFree
                | Code::InodeMarkedUsed => group.inode_bitmap = true,
                _ => {}
            }
        }
        for (group, wrong) in groups {
            self.repair_group_counts(GroupNr(group), wrong)?;
        }
        self.repair_totals(found)?;
        self.repair_quota(found)
    }

    fn repair_group_counts(&self, group: GroupNr, wrong: Wrong) -> Result<(), RepairError> {
        let (geometry, facts) = (self.geometry(), &self.survey.inodes.facts);
        let (mut blocks, mut inodes) = (vec![0; self.block_size()], vec![0; self.block_size()]);
        let (clusters, count) =
            (geometry.clusters_in_group(group) as usize, geometry.inodes_per_group as usize);
        self.survey.claims.copy_group(group, &mut blocks);
        facts.mark_used(group, &mut inodes, geometry.first_ino);
        let mut desc = self.desc(group)?;
        desc.free_clusters = bitmap::count_zeros(&blocks, 0..clusters) as u32;
        desc.free_inodes = bitmap::count_zeros(&inodes, 0..count) as u32;
        desc.used_dirs = facts.dirs(group);
        let end = self.block_size().saturating_mul(8);
        if wrong.block_bitmap {
            bitmap::set_range(&mut blocks, clusters..end);
            desc.flags.remove(GroupFlags::BLOCK_UNINIT);
            desc.seal_block_bitmap(&blocks, geometry);
            self.put(desc.block_bitmap, &blocks)?;
        }
        if wrong.inode_bitmap {
            bitmap::set_range(&mut inodes, count..end);
            desc.flags.remove(GroupFlags::INODE_UNINIT);
            desc.seal_inode_bitmap(&inodes, geometry);
            self.put(desc.inode_bitmap, &inodes)?;
        }
        self.edit_desc(group, |old: &mut GroupDesc| *old = desc)
    }

    fn repair_totals(&self, found: &[Finding]) -> Result<(), RepairError> {
        let bits = self.geometry().cluster_bits;
        for finding in found {
            match (finding.code, finding.place.field, finding.expected) {
                (Code::SuperblockCount, Some("free blocks"), Some(clusters)) => {
                    let blocks = clusters.checked_shl(bits).unwrap_or(0);
                    self.draft.edit_super(|sb| sb.set_free_blocks_count(blocks))?;
                }
                (Code::SuperblockCount, _, Some(inodes)) => {
                    self.draft.edit_super(|sb| sb.set_free_inodes_count(inodes as u32))?;
                }
                (Code::Mmp, _, _) => self.write_mmp()?,
                (Code::ErrorsRecorded, ..) => self.clear_log_error()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn clear_log_error(&self) -> Result<(), RepairError> {
        let Some(log) = self.inside_log() else { return Ok(()) };
        self.draft.mark_changed();
        reset_log(&log).map_err(RepairError::Journal)?;
        self.draft.edit_super(|sb| sb.set_state(sb.state() | State::ERROR))
    }

    fn write_mmp(&self) -> Result<(), RepairError> {
        let volume = &self.survey.volume;
        let nr = volume.superblock.mmp_block().0;
        if !volume.is_block(nr) {
            return Err(RepairError::Unsupported("an MMP block outside of the file system"));
        }
        let interval = volume.superblock.mmp_update_interval();
        let mmp = Mmp { seq: MMP_SEQ_CLEAN, check_interval: interval, ..Mmp::default() };
        let mut bytes = vec![0; self.block_size()];
        let geometry = self.geometry();
        mmp.encode(&mut bytes, geometry.metadata_csum.then_some(geometry.csum_seed));
        self.put(nr, &bytes)
    }

    /// Writes the copy of the superblock of a group.
    fn write_copy(&self, group: GroupNr, nr: u64) -> Result<(), RepairError> {
        let mut sb = self.survey.volume.superblock.clone();
        sb.set_state(State::VALID);
        sb.clear_errors();
        let copy = sb.encode_backup(group.0);
        let mut bytes = vec![0; self.block_size()];
        if let Some(start) = bytes.get_mut(..copy.len()) {
            start.copy_from_slice(&copy);
        }
        self.put(nr, &bytes)
    }
}
