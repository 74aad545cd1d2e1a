//! Paths: inodes without a name go to `lost+found`, and `..` leads to the parent.

use super::RepairError;
use super::directory::Named;
use super::draft::Round;
use crate::finding::{Finding, FindingCode as Code};
use crate::maps::Runs;
use extant_format::dir::{DirFormat, dot_dot, seal_dir_leaf, set_target};
use extant_format::extent::NodeMut;
use extant_format::htree::seal_htree;
use extant_format::inode::I_BLOCK_SIZE;
use extant_format::types::Timestamp;
use extant_format::{FileType, Incompat, Inode, InodeFlags, InodeNr, inline};
use std::collections::BTreeSet;

/// The directory for inodes without a name.
const LOST_AND_FOUND: &[u8] = b"lost+found";

const LOST_MODE: u16 = 0o040_700;
const ROOT_MODE: u16 = 0o040_755;

impl Round<'_> {
    /// Repairs paths.
    pub fn repair_names(&self, found: &[Finding]) -> Result<(), RepairError> {
        let with = |code| found.iter().filter(move |finding| finding.code == code);
        let inodes = |code| with(code).filter_map(|finding| finding.place.inode).map(InodeNr);
        for finding in with(Code::DotEntries) {
            let (Some(ino), Some(parent)) = (finding.place.inode, finding.expected) else {
                continue;
            };
            self.set_parent(InodeNr(ino), InodeNr(parent as u32))?;
        }
        // A circle of directories is cut; the next survey finds its rest without a name.
        for ino in inodes(Code::Disconnected) {
            let Some(parent) = self.parent_of(ino) else { continue };
            let mut directory = self.directory(parent)?;
            directory.entries.retain(|named| named.ino != ino);
            self.write_directory(directory)?;
        }
        let lost: BTreeSet<InodeNr> = inodes(Code::Unattached).collect();
        if lost.is_empty() { Ok(()) } else { self.reconnect(&lost) }
    }

    /// Gives inodes a name in `lost+found`.
    fn reconnect(&self, lost: &BTreeSet<InodeNr>) -> Result<(), RepairError> {
        let mut root = self.directory(InodeNr::ROOT)?;
        let existing = root.entries.iter().find(|named| named.name == LOST_AND_FOUND);
        // Names in an encrypted directory need its key.
        let open =
            |ino| self.inode(ino).is_ok_and(|inode| !inode.flags.contains(InodeFlags::ENCRYPT));
        let is_home = |named: &&Named| named.kind == FileType::Directory && open(named.ino);
        let home = match existing.filter(is_home) {
            Some(named) => named.ino,
            None => {
                let ino = self.take_inode()?;
                self.make_directory(ino, LOST_MODE, InodeNr::ROOT)?;
                root.entries.retain(|named| named.name != LOST_AND_FOUND);
                let name = LOST_AND_FOUND.to_vec();
                root.entries.push(Named { name, ino, kind: FileType::Directory });
                // Its other facts are known to the next survey only, which reconnects the rest.
                return self.write_directory(root);
            }
        };
        let mut directory = self.directory(home)?;
        let names: BTreeSet<Vec<u8>> =
            directory.entries.iter().map(|named| named.name.clone()).collect();
        for ino in lost.iter().filter(|ino| **ino != home) {
            let fact = self.survey.inodes.facts.get(&self.survey.volume, *ino);
            let Some(fact) = fact else { continue };
            let mut name = format!("#{ino}").into_bytes();
            while names.contains(&name) {
                name.push(b'~');
            }
            directory.entries.push(Named { name, ino: *ino, kind: fact.kind });
        }
        self.write_directory(directory)
    }

    /// Makes a new root directory.
    pub fn make_root(&self) -> Result<(), RepairError> {
        self.make_directory(InodeNr::ROOT, ROOT_MODE, InodeNr::ROOT)
    }

    /// Makes an empty directory in a free slot.
    fn make_directory(&self, ino: InodeNr, mode: u16, parent: InodeNr) -> Result<(), RepairError> {
        let geometry = self.geometry();
        let now = Timestamp::new(self.now.into(), 0);
        let mut new = Inode::new(geometry, mode, now);
        new.links = 2;
        if geometry.incompat(Incompat::EXTENTS) {
            new.flags.insert(InodeFlags::EXTENTS);
            NodeMut::init(&mut new.i_block, 0);
        }
        self.edit_slot(ino, |slot| {
            slot.fill(0);
            Ok(new.encode(slot, geometry, ino)?)
        })?;
        let mut directory = self.directory(ino)?;
        directory.parent = parent;
        directory.entries.clear();
        self.write_directory(directory)
    }

    /// Sets the parent that `..` names.
    fn set_parent(&self, ino: InodeNr, parent: InodeNr) -> Result<(), RepairError> {
        let inode = self.inode(ino)?;
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            return self.edit_inode(ino, |inode| {
                let mut bytes: [u8; I_BLOCK_SIZE] = inode.i_block;
                inline::set_parent(&mut bytes, parent);
                inode.i_block = bytes;
            });
        }
        let runs = Runs::of(&self.survey.volume.reader, ino, &inode);
        let first = runs.runs.first().filter(|run| run.logical == 0);
        let Some(nr) = first.map(|run| run.physical) else { return Ok(()) };
        let format = DirFormat::new(self.geometry());
        let mut bytes = self.block(nr)?;
        let offset = dot_dot(&bytes, &format)?.offset;
        set_target(&mut bytes, &format, offset, parent, FileType::Directory);
        if self.geometry().metadata_csum {
            let seed = inode.seed(self.geometry(), ino);
            if inode.flags.contains(InodeFlags::INDEX) {
                seal_htree(&mut bytes, nr, seed);
            } else {
                seal_dir_leaf(&mut bytes, nr, seed);
            }
        }
        self.put(nr, &bytes)
    }
}
