//! Directories: blocks, entries, indexes. Counts the names of each inode.
//!
//! Directories are read in parallel. Names of files are counted at once; links to directories are
//! merged in order, so that the first directory with an entry is the parent for any number of
//! threads.

mod entries;
mod index;

use crate::facts::{Fact, Facts, InodeState};
use crate::finding::{Finding, FindingCode, FindingList, FindingPlace, Findings};
use crate::maps::Runs;
use crate::parallel::Workers;
use crate::passes::inodes::DirRef;
use crate::volume::Volume;
use entries::{DirCheck, Place};
use extant_format::dir::{DirFormat, verify_leaf};
use extant_format::htree::verify_htree;
use extant_format::inode::{Inode, tail};
use extant_format::xattr::{NameIndex, decode_inode_area};
use extant_format::{Compat, FileType, InodeFlags, InodeNr, inline};
use index::{BlockUse, Index};

/// A directory after the pass.
#[derive(Clone, Copy, Debug)]
pub struct Dir {
    pub ino: InodeNr,
    /// The first directory with an entry of this one.
    pub parent: Option<InodeNr>,
    /// The inode that `..` names; `None` if the directory could not be read.
    pub dot_dot: Option<InodeNr>,
}

/// Results for one directory.
#[derive(Debug, Default)]
pub struct DirScan {
    pub findings: FindingList,
    /// Directories with an entry here.
    pub children: Vec<InodeNr>,
    pub dot_dot: Option<InodeNr>,
}

/// The context of the pass.
#[derive(Clone, Copy)]
pub struct DirPass<'p> {
    pub volume: &'p Volume<'p>,
    pub facts: &'p Facts,
}

impl DirPass<'_> {
    /// Reads all directories. Returns them in the order of their numbers.
    pub fn run(
        &self,
        workers: Workers<'_>,
        list: &[DirRef],
        findings: &mut Findings<'_>,
        done: &mut dyn FnMut(),
    ) -> Vec<Dir> {
        let unread = |dir: &DirRef| Dir { ino: dir.ino, parent: None, dot_dot: None };
        let mut dirs: Vec<Dir> = list.iter().map(unread).collect();
        let work = |part: usize| list.get(part).map(|dir| self.directory(*dir)).unwrap_or_default();
        workers.run(list.len(), work, |part, scan| {
            findings.report_all(scan.findings);
            let Some(dir) = dirs.get_mut(part) else { return };
            dir.dot_dot = scan.dot_dot;
            let ino = dir.ino;
            for child in scan.children {
                link(&mut dirs, ino, child, findings);
            }
            done();
        });
        dirs
    }

    fn directory(&self, dir: DirRef) -> DirScan {
        let mut scan = DirScan::default();
        let slot = self.volume.slot(dir.ino).filter(|_| dir.readable);
        let Some(slot) = slot else { return scan };
        let geometry = &self.volume.reader.geometry;
        let Ok(inode) = Inode::decode_unverified(&slot, geometry, dir.ino) else { return scan };
        let mut check = DirCheck::new(self, dir.ino, &inode, &mut scan);
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            check.inline(&slot);
        } else {
            check.blocks();
        }
        scan
    }
}

/// Records that directory `ino` has an entry of directory `child`.
fn link(dirs: &mut [Dir], ino: InodeNr, child: InodeNr, findings: &mut Findings<'_>) {
    let Ok(at) = dirs.binary_search_by_key(&child, |dir| dir.ino) else { return };
    let Some(dir) = dirs.get_mut(at) else { return };
    if dir.parent.is_some() || child == InodeNr::ROOT {
        let place = FindingPlace::inode(ino).field("entry");
        findings.report(Finding::new(FindingCode::DirectoryLinked, place).found(child.0));
    } else {
        dir.parent = Some(ino);
    }
}

impl DirCheck<'_> {
    /// Checks a directory in an inode: two areas of entries, and the parent's number.
    fn inline(&mut self, slot: &[u8]) {
        let geometry = &self.pass.volume.reader.geometry;
        let parent = inline::parent(&self.inode.i_block);
        self.count_dot(self.ino);
        self.dot_dot(parent);
        let rest = decode_inode_area(tail(slot, geometry, self.inode)).unwrap_or_default();
        let data = NameIndex::INLINE_DATA_NAME;
        let rest = rest.iter().find(|entry| entry.is(NameIndex::SYSTEM, data));
        self.area(inline::dir_area(&self.inode.i_block), Place::inline());
        if let Some(extant_format::xattr::Value::Inline(bytes)) = rest.map(|entry| &entry.value)
            && !bytes.is_empty()
        {
            self.area(bytes, Place::inline());
        }
    }

    fn blocks(&mut self) {
        let volume = self.pass.volume;
        let runs = Runs::of(&volume.reader, self.ino, self.inode);
        let count = self.inode.size >> volume.reader.geometry.block_bits;
        let indexed = self.inode.flags.contains(InodeFlags::INDEX)
            && volume.reader.geometry.compat(Compat::DIR_INDEX);
        let index = indexed.then(|| Index::read(self, &runs, count));
        let mut next = 0;
        for run in &runs.runs {
            for (logical, block) in (run.logical..count.min(run.end())).zip(run.blocks()) {
                self.holes(next..logical);
                next = logical.saturating_add(1);
                let usage = match &index {
                    Some(index) => index.usage(logical),
                    None => BlockUse::Leaf { hashes: 0..=u32::MAX, version: None },
                };
                self.block(logical, block, &usage);
            }
        }
        self.holes(next..count);
    }

    fn holes(&mut self, blocks: std::ops::Range<u64>) {
        if !blocks.is_empty() {
            let place = FindingPlace::inode(self.ino).logical(blocks.start);
            self.scan.findings.add(FindingCode::DirectoryHole, place);
        }
    }

    fn block(&mut self, logical: u64, block: u64, usage: &BlockUse) {
        let volume = self.pass.volume;
        let place = FindingPlace::inode(self.ino).logical(logical).block(block);
        let Some(bytes) = volume.reader.block(block) else {
            self.scan.findings.add(FindingCode::Unreadable, place);
            return;
        };
        let seed = self.inode.seed(&volume.reader.geometry, self.ino);
        let is_node = !matches!(usage, BlockUse::Leaf { .. });
        if volume.reader.geometry.metadata_csum {
            let verified =
                if is_node { verify_htree(&bytes, seed) } else { verify_leaf(&bytes, seed) };
            if let Err(error) = verified {
                let finding = Finding::corrupt(FindingCode::DirectoryChecksum, place, &error);
                self.scan.findings.push(finding);
            }
        }
        let area =
            if is_node { &bytes } else { DirFormat::new(&volume.reader.geometry).area(&bytes) };
        self.area(area, Place::of_block(logical, block, usage));
    }

    fn count_dot(&self, ino: InodeNr) {
        if let Some(fact) = self.pass.facts.get(self.pass.volume, ino) {
            fact.count_name();
        }
    }

    fn dot_dot(&mut self, parent: InodeNr) {
        self.scan.dot_dot = Some(parent);
        let fact = self.pass.facts.get(self.pass.volume, parent);
        match fact.filter(|fact| is_named_dir(fact)) {
            Some(fact) => fact.count_name(),
            None => {
                let place = FindingPlace::inode(self.ino).field("..");
                let finding = Finding::new(FindingCode::DotEntries, place);
                self.scan.findings.push(finding.found(parent.0));
            }
        }
    }
}

fn is_named_dir(fact: &Fact) -> bool {
    fact.state == InodeState::Used && fact.kind == FileType::Directory
}
