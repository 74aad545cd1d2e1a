//! New files of the file system itself: orphan file, quota files, journal.

use super::RepairError;
use super::draft::Round;
use super::journal::MODE;
use extant_format::extent::NodeMut;
use extant_format::group_desc::{GroupFlags, init_inode_bitmap};
use extant_format::types::Timestamp;
use extant_format::{GroupNr, Incompat, Inode, InodeFlags, InodeNr};

impl Round<'_> {
    /// Makes an inode an empty file of the file system itself.
    pub fn create_file(&self, ino: InodeNr, flags: InodeFlags) -> Result<(), RepairError> {
        let geometry = self.geometry();
        let mut inode = Inode::new(geometry, MODE, Timestamp::new(self.now.into(), 0));
        inode.links = 1;
        inode.flags = flags;
        if geometry.incompat(Incompat::EXTENTS) {
            inode.flags.insert(InodeFlags::EXTENTS);
            NodeMut::init(&mut inode.i_block, 0);
        }
        self.edit_slot(ino, |slot| {
            slot.fill(0);
            Ok(inode.encode(slot, geometry, ino)?)
        })
    }

    /// Takes a free inode, also one of the part of a table that was never used.
    pub fn take_inode(&self) -> Result<InodeNr, RepairError> {
        match self.allocate_inode() {
            Err(RepairError::NoSpace) => {}
            other => return other,
        }
        for group in self.survey.volume.reader.groups() {
            if let Some(ino) = self.extend_table(group)? {
                return Ok(ino);
            }
        }
        Err(RepairError::NoSpace)
    }

    /// Takes the first of a group's inodes that were never used, and zeroes it.
    fn extend_table(&self, group: GroupNr) -> Result<Option<InodeNr>, RepairError> {
        let geometry = self.geometry();
        let mut desc = self.desc(group)?;
        let is_blank = desc.has_flag(geometry, GroupFlags::INODE_UNINIT);
        let all = geometry.inodes_per_group;
        let unused = if is_blank { all } else { desc.itable_unused.min(all) };
        let index = all.saturating_sub(unused);
        let ino = geometry.inode_at(group, index);
        if !geometry.has_group_checksums() || unused == 0 || ino.0 < geometry.first_ino {
            return Ok(None);
        }
        let (block, offset) = geometry.inode_slot(index);
        let nr = desc.inode_table.saturating_add(block.into());
        let mut bytes = self.block(nr)?;
        bytes.iter_mut().skip(offset).for_each(|byte| *byte = 0);
        self.put(nr, &bytes)?;
        if is_blank {
            let mut bits = vec![0; self.block_size()];
            init_inode_bitmap(&mut bits, geometry);
            self.put(desc.inode_bitmap, &bits)?;
            desc.seal_inode_bitmap(&bits, geometry);
            desc.flags.remove(GroupFlags::INODE_UNINIT);
        }
        desc.itable_unused = unused.saturating_sub(1);
        self.edit_desc(group, |old| *old = desc)?;
        Ok(Some(ino))
    }
}
