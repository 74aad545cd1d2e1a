//! References to inodes and blocks that have moved: entries of directories, attributes, the
//! superblock.

use super::moves::{Mover, decode_area};
use crate::maps::Runs;
use crate::resize::ResizeError;
use extant_format::dir::{DirFormat, entries, seal_dir_leaf, set_target};
use extant_format::htree::{seal_htree, verify_htree};
use extant_format::xattr::{NameIndex, Value, decode_block, encode_block, seal_xattr_block};
use extant_format::{BlockNr, Corrupt, Inode, InodeFlags, InodeNr, Superblock, inline, orphan};

impl Mover<'_> {
    /// Moves blocks of attributes, and changes the numbers of inodes in them.
    pub fn move_attributes(&mut self) -> Result<(), ResizeError> {
        let blocks: Vec<u64> = self.round.survey.inodes.shared.blocks().collect();
        for nr in blocks {
            let mut bytes = self.round.block(nr)?;
            let (header, mut list) = decode_block(&bytes)?;
            let is_changed = self.has_moved_value(&list);
            let stays = nr < self.end || self.attributes.len() >= self.limit;
            if stays && !is_changed {
                continue;
            }
            if is_changed {
                self.renumber_values(&mut list)?;
                if !encode_block(&list, header.refcount, &mut bytes) {
                    let why = format!("the attributes of block {nr}");
                    return Err(ResizeError::Unsupported(why));
                }
            }
            let new = if stays { nr } else { self.take()? };
            let geometry = self.round.geometry();
            if geometry.metadata_csum {
                seal_xattr_block(&mut bytes, new, geometry.csum_seed);
            }
            self.round.put(new, &bytes)?;
            if new != nr {
                self.attributes.insert(nr, new);
            }
        }
        Ok(())
    }

    /// Changes the numbers of inodes in all directories.
    pub fn rename(&self) -> Result<(), ResizeError> {
        if self.numbers.is_empty() {
            return Ok(());
        }
        let dirs = &self.round.survey.dirs;
        dirs.iter().try_for_each(|dir| self.rename_in(dir.ino))
    }

    fn rename_in(&self, old: InodeNr) -> Result<(), ResizeError> {
        let ino = self.number(old);
        let inode = self.round.inode(ino)?;
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            return self.rename_in_inode(ino, &inode);
        }
        let runs = Runs::of(&self.volume().reader, ino, &inode);
        let blocks = runs.blocks(inode.size >> self.round.geometry().block_bits);
        let blocks = blocks.ok_or_else(|| Corrupt::new("map").at_inode(old))?;
        blocks.into_iter().try_for_each(|nr| self.rename_in_block(nr, &inode, (old, ino)))
    }

    /// Changes an area of entries. Returns whether there was one to be changed.
    fn rename_in_area(&self, area: &mut [u8], format: &DirFormat) -> Result<bool, ResizeError> {
        let mut found = Vec::new();
        for entry in entries(area, format) {
            let entry = entry?;
            let new = self.number(entry.ino);
            if new != entry.ino {
                found.push((entry.offset, new, entry.file_type));
            }
        }
        for (offset, new, kind) in &found {
            set_target(area, format, *offset, *new, *kind);
        }
        Ok(!found.is_empty())
    }

    fn rename_in_block(
        &self,
        nr: u64,
        inode: &Inode,
        (old, ino): (InodeNr, InodeNr),
    ) -> Result<(), ResizeError> {
        let geometry = self.round.geometry();
        let format = DirFormat::new(geometry);
        let mut bytes = self.round.block(nr)?;
        // Blocks of the index have another checksum than those of entries.
        let is_index = inode.flags.contains(InodeFlags::INDEX)
            && geometry.metadata_csum
            && verify_htree(&bytes, inode.seed(geometry, old)).is_ok();
        let area = if is_index { &mut bytes[..] } else { format.area_mut(&mut bytes) };
        let is_changed = self.rename_in_area(area, &format)?;
        if !is_changed && old == ino {
            return Ok(());
        }
        if geometry.metadata_csum {
            let seed = inode.seed(geometry, ino);
            if is_index {
                seal_htree(&mut bytes, nr, seed);
            } else {
                seal_dir_leaf(&mut bytes, nr, seed);
            }
        }
        Ok(self.round.put(nr, &bytes)?)
    }

    /// Changes a directory that lies in its inode.
    fn rename_in_inode(&self, ino: InodeNr, inode: &Inode) -> Result<(), ResizeError> {
        let geometry = self.round.geometry();
        let format = DirFormat::new(geometry);
        let mut i_block = inode.i_block;
        let parent = inline::parent(&i_block);
        inline::set_parent(&mut i_block, self.number(parent));
        self.rename_in_area(inline::dir_area_mut(&mut i_block), &format)?;
        if i_block != inode.i_block {
            self.round.edit_inode(ino, |inode| inode.i_block = i_block)?;
        }
        let mut list = decode_area(&self.round.slot(ino)?, geometry, inode);
        let is_rest = |entry: &&mut extant_format::xattr::Entry| {
            entry.is(NameIndex::SYSTEM, NameIndex::INLINE_DATA_NAME)
        };
        if let Some(entry) = list.iter_mut().find(is_rest)
            && let Value::Inline(bytes) = &mut entry.value
            && !bytes.is_empty()
            && self.rename_in_area(bytes, &format)?
        {
            return self.write_area(ino, &list);
        }
        Ok(())
    }

    /// Writes the orphan file's blocks anew, whose checksums depend on inode and block. They are
    /// empty.
    pub fn seal_orphan_file(&self) -> Result<(), ResizeError> {
        let (geometry, superblock) = (self.round.geometry(), &self.volume().superblock);
        if !geometry.compat(extant_format::Compat::ORPHAN_FILE) || !geometry.metadata_csum {
            return Ok(());
        }
        let ino = self.number(superblock.orphan_file_inum());
        let inode = self.round.inode(ino)?;
        let runs = Runs::of(&self.volume().reader, ino, &inode);
        let count = inode.size >> geometry.block_bits;
        let seed = inode.seed(geometry, ino);
        for nr in runs.blocks(count).unwrap_or_default() {
            let mut bytes = self.round.block(nr)?;
            orphan::seal_orphan_block(&mut bytes, nr, seed);
            self.round.put(nr, &bytes)?;
        }
        Ok(())
    }

    /// Moves the block of multi-mount protection. Returns its place.
    pub fn move_mmp(&mut self) -> Result<Option<BlockNr>, ResizeError> {
        let old = self.volume().superblock.mmp_block();
        if !self.round.geometry().incompat(extant_format::Incompat::MMP) || old.0 < self.end {
            return Ok(None);
        }
        let new = self.take()?;
        self.round.put(new, &self.round.block(old.0)?)?;
        Ok(Some(BlockNr(new)))
    }

    /// Changes the numbers of inodes in the superblock.
    pub fn rename_in_super(&self, sb: &mut Superblock) {
        sb.set_orphan_file_inum(self.number(sb.orphan_file_inum()));
        sb.set_usr_quota_inum(self.number(sb.usr_quota_inum()));
        sb.set_grp_quota_inum(self.number(sb.grp_quota_inum()));
        sb.set_prj_quota_inum(self.number(sb.prj_quota_inum()));
        sb.set_lpf_ino(self.number(sb.lpf_ino()));
    }
}
