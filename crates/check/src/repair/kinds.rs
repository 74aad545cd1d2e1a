//! Types of inodes that content contradicts.
//!
//! For example, one flipped bit makes a socket of a directory. Its blocks still begin with `.` and
//! `..`, so it gets its type back, and no file in it is lost.

use super::RepairError;
use super::draft::Round;
use crate::finding::{Finding, FindingCode as Code};
use crate::maps::Runs;
use extant_format::dir::{DirFormat, entries};
use extant_format::inode::FAST_SYMLINK_MAX;
use extant_format::{FileType, Inode, InodeFlags, InodeNr};
use std::collections::BTreeMap;

/// The bits of the mode that tell the type.
const TYPE_BITS: u16 = 0o170_000;

impl Round<'_> {
    /// Gives inodes with an impossible type the one that their content tells. Returns whether there
    /// was one.
    pub(super) fn restore_types(
        &self,
        found: &BTreeMap<u32, Vec<Finding>>,
    ) -> Result<bool, RepairError> {
        let mut restored = false;
        let of_type = |finding: &Finding| {
            matches!(finding.code, Code::InodeMode | Code::Symlink | Code::RootInode)
        };
        for (ino, _) in found.iter().filter(|(_, list)| list.iter().any(of_type)) {
            restored |= self.restore_type(InodeNr(*ino))?;
        }
        Ok(restored)
    }

    /// Gives an inode the type that its content tells. Returns whether that is another one.
    pub(super) fn restore_type(&self, ino: InodeNr) -> Result<bool, RepairError> {
        let is_named = ino == InodeNr::ROOT || ino.0 >= self.geometry().first_ino;
        let Ok(inode) = self.inode(ino) else { return Ok(false) };
        let has_own = match inode.file_type() {
            FileType::Regular | FileType::Directory => true,
            FileType::Symlink => inode.blocks == 0,
            _ => false,
        };
        if !is_named || has_own || inode.links == 0 {
            return Ok(false);
        }
        let Some(kind) = self.likely_type(ino, &inode) else { return Ok(false) };
        self.edit_inode(ino, |inode| inode.mode = inode.mode & !TYPE_BITS | kind.to_mode())?;
        Ok(true)
    }

    /// Returns the type that the content tells: that of a directory if it begins like one, that of
    /// a file if it has blocks, that of a symbolic link if it is a short text.
    fn likely_type(&self, ino: InodeNr, inode: &Inode) -> Option<FileType> {
        let is_unknown = inode.file_type() == FileType::Unknown;
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            return None;
        }
        let runs = Runs::of(&self.survey.volume.reader, ino, inode);
        if inode.blocks > 0 && !runs.damaged && !runs.runs.is_empty() {
            let is_dir = runs.runs.first().is_some_and(|run| {
                run.logical == 0 && !run.unwritten && self.is_first_of_dir(ino, run.physical)
            });
            // The number of a device looks like a map of blocks.
            let is_device =
                matches!(inode.file_type(), FileType::CharDevice | FileType::BlockDevice);
            let other = (!is_device).then_some(FileType::Regular);
            return if is_dir { Some(FileType::Directory) } else { other };
        }
        let size = usize::try_from(inode.size).unwrap_or(usize::MAX);
        let text = inode.i_block.get(..size).filter(|_| size <= FAST_SYMLINK_MAX);
        let is_text = text.is_some_and(|text| !text.is_empty() && !text.contains(&0));
        if is_unknown && inode.flags.contains(InodeFlags::EXTENTS) && !runs.damaged {
            return Some(FileType::Regular);
        }
        (is_unknown && is_text).then_some(FileType::Symlink)
    }

    /// Returns whether a block begins with the entries that each directory has.
    fn is_first_of_dir(&self, ino: InodeNr, nr: u64) -> bool {
        let format = DirFormat::new(self.geometry());
        let Ok(bytes) = self.block(nr) else { return false };
        let mut list = entries(format.area(&bytes), &format);
        let (own, parent) = (list.next(), list.next());
        matches!(own, Some(Ok(entry)) if entry.name == b"." && entry.ino == ino)
            && matches!(parent, Some(Ok(entry)) if entry.name == b".."
                && self.geometry().inode_in_range(entry.ino))
    }
}
