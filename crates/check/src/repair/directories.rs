//! Directories that are damaged: written anew from their valid entries.

use super::RepairError;
use super::directory::Directory;
use super::draft::Round;
use crate::finding::{Finding, FindingCode as Code};
use extant_format::dir::{DirFormat, has_tail, seal_dir_leaf, verify_leaf};
use extant_format::htree::{seal_htree, verify_htree};
use extant_format::{InodeFlags, InodeNr};
use std::collections::{BTreeMap, BTreeSet};

impl Round<'_> {
    /// Repairs directories.
    pub fn repair_directories(&self, found: &[Finding]) -> Result<(), RepairError> {
        let mut by_inode: BTreeMap<u32, Vec<Finding>> = BTreeMap::new();
        for finding in found {
            by_inode.entry(finding.place.inode.unwrap_or(0)).or_default().push(*finding);
        }
        for (ino, list) in by_inode.into_iter().filter(|(ino, _)| *ino != 0) {
            let ino = InodeNr(ino);
            let only_sums = list.iter().all(|finding| finding.code == Code::DirectoryChecksum);
            if only_sums && self.seal_blocks(ino, &list)? {
                continue;
            }
            let mut directory = self.directory(ino)?;
            let linked = list.iter().filter(|finding| finding.code == Code::DirectoryLinked);
            let extra: BTreeSet<u32> =
                linked.filter_map(|finding| finding.found).map(|ino| ino as u32).collect();
            self.drop_links(&mut directory, &extra);
            self.write_directory(directory)?;
        }
        Ok(())
    }

    /// Removes entries of directories that have their name elsewhere, or earlier here.
    fn drop_links(&self, directory: &mut Directory, extra: &BTreeSet<u32>) {
        let mut seen = BTreeSet::new();
        let own = directory.ino;
        directory.entries.retain(|named| {
            if !extra.contains(&named.ino.0) {
                return true;
            }
            self.parent_of(named.ino) == Some(own) && seen.insert(named.ino.0)
        });
    }

    /// Returns the first directory with an entry of a directory.
    pub fn parent_of(&self, ino: InodeNr) -> Option<InodeNr> {
        let at = self.survey.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()?;
        self.survey.dirs.get(at)?.parent
    }

    /// Computes checksums of blocks again. Returns `false` if a block has no place for one.
    fn seal_blocks(&self, ino: InodeNr, list: &[Finding]) -> Result<bool, RepairError> {
        let inode = self.inode(ino)?;
        let seed = inode.seed(self.geometry(), ino);
        let format = DirFormat::new(self.geometry());
        let mut sealed = true;
        for finding in list {
            let Some(nr) = finding.place.block else { return Ok(false) };
            let mut bytes = self.block(nr)?;
            let root = finding.place.logical == Some(0) && inode.flags.contains(InodeFlags::INDEX);
            if root || extant_format::htree::is_interior(&bytes, &format) {
                seal_htree(&mut bytes, nr, seed);
                sealed &= verify_htree(&bytes, seed).is_ok();
            } else {
                seal_dir_leaf(&mut bytes, nr, seed);
                sealed &= has_tail(&bytes) && verify_leaf(&bytes, seed).is_ok();
            }
            if !sealed {
                return Ok(false);
            }
            self.put(nr, &bytes)?;
        }
        Ok(true)
    }
}
