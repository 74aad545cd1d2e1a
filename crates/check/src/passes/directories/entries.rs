//! The entries of a directory.

use super::index::BlockUse;
use super::{DirPass, DirScan};
use crate::facts::InodeState;
use crate::finding::{Finding, FindingCode, FindingPlace};
use extant_format::dir::{DirEntry, DirFormat, entries};
use extant_format::htree::{HashVersion, dirhash};
use extant_format::inode::Inode;
use extant_format::{FileType, InodeFlags, InodeNr};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

/// The least length of an encrypted name.
const MIN_ENCRYPTED: usize = 16;

/// Names of a directory that are compared with each other, at most; later ones are compared within
/// their block. Eight bytes each bound the memory.
const MAX_NAMES: usize = 1 << 20;

/// Bytes of the record of `.`.
const DOT_RECORD: usize = 12;

/// The place of an area of entries.
pub struct Place {
    logical: Option<u64>,
    block: Option<u64>,
    hashes: RangeInclusive<u32>,
    version: Option<HashVersion>,
    has_dots: bool,
}

impl Place {
    pub fn inline() -> Place {
        let hashes = 0..=u32::MAX;
        Place { logical: None, block: None, hashes, version: None, has_dots: false }
    }

    pub fn of_block(logical: u64, block: u64, usage: &BlockUse) -> Place {
        let (hashes, version) = match usage {
            BlockUse::Leaf { hashes, version } => (hashes.clone(), *version),
            _ => (0..=u32::MAX, None),
        };
        let (logical, has_dots) = (Some(logical), logical == 0);
        Place { logical, block: Some(block), hashes, version, has_dots }
    }
}

/// The check of one directory.
pub struct DirCheck<'d> {
    pub pass: &'d DirPass<'d>,
    pub ino: InodeNr,
    pub inode: &'d Inode,
    pub scan: &'d mut DirScan,
    pub format: DirFormat,
    names: HashSet<u64>,
}

impl<'d> DirCheck<'d> {
    pub fn new(
        pass: &'d DirPass<'d>,
        ino: InodeNr,
        inode: &'d Inode,
        scan: &'d mut DirScan,
    ) -> DirCheck<'d> {
        let format = DirFormat::new(&pass.volume.reader.geometry);
        DirCheck { pass, ino, inode, scan, format, names: HashSet::new() }
    }

    /// Checks the entries of an area.
    pub fn area(&mut self, area: &[u8], place: Place) {
        let format = self.format;
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        for (n, entry) in entries(area, &format).enumerate() {
            let at = self.place(&place);
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let finding = Finding::corrupt(FindingCode::DirectoryBlock, at, &error);
                    self.scan.findings.push(finding);
                    return;
                }
            };
            match n {
                0 | 1 if place.has_dots => self.dot(n, &entry, area, at),
                _ if entry.is_used() => self.entry(&entry, area, &place),
                _ => {}
            }
        }
    }

    fn place(&self, place: &Place) -> FindingPlace {
        let own = FindingPlace::inode(self.ino);
        FindingPlace { block: place.block, logical: place.logical, ..own }
    }

    /// Checks one of the first two entries, which are `.` and `..`.
    fn dot(&mut self, n: usize, entry: &DirEntry<'_>, area: &[u8], at: FindingPlace) {
        let name: &[u8] = if n == 0 { b"." } else { b".." };
        let terminated = entry.is_terminated(area);
        let kind = self.is_type(entry, area, FileType::Directory);
        let own = n != 0 || entry.ino == self.ino && entry.rec_len == DOT_RECORD;
        let field = if n == 0 { "." } else { ".." };
        if entry.name != name || !terminated || !kind || !own || !entry.is_used() {
            let finding = Finding::new(FindingCode::DotEntries, at.field(field));
            self.scan.findings.push(finding.found(entry.ino.0));
        }
        match n {
            0 => self.count_own(),
            _ if entry.name == name => self.dot_dot(entry.ino),
            _ => {}
        }
    }

    fn count_own(&self) {
        if let Some(fact) = self.pass.facts.get(self.pass.volume, self.ino) {
            fact.count_name();
        }
    }

    fn entry(&mut self, entry: &DirEntry<'_>, area: &[u8], place: &Place) {
        let at = self.place(place);
        let add = |scan: &mut DirScan, code| {
            scan.findings.push(Finding::new(code, at).found(entry.ino.0));
        };
        if entry.is_dot_or_dot_dot() || !self.is_new(entry.name) {
            add(self.scan, FindingCode::EntryDuplicate);
        }
        if !self.is_name(entry.name) {
            add(self.scan, FindingCode::EntryName);
        }
        if let Some(version) = place.version
            && !place.hashes.contains(&self.hash(version, entry.name))
        {
            add(self.scan, FindingCode::DirectoryIndex);
        }
        let geometry = &self.pass.volume.reader.geometry;
        let reserved = entry.ino != InodeNr::ROOT && entry.ino.0 < geometry.first_ino;
        let fact = self.pass.facts.get(self.pass.volume, entry.ino);
        let fact = fact.filter(|fact| !reserved && fact.state == InodeState::Used);
        let Some(fact) = fact else { return add(self.scan, FindingCode::EntryInode) };
        if !self.is_type(entry, area, fact.kind) {
            add(self.scan, FindingCode::EntryType);
        }
        fact.count_name();
        if fact.kind == FileType::Directory {
            self.scan.children.push(entry.ino);
        }
    }

    /// Returns whether an entry's type is right. It may be left out.
    fn is_type(&self, entry: &DirEntry<'_>, area: &[u8], expected: FileType) -> bool {
        match entry.file_type {
            FileType::Unknown => entry.type_byte(area) == 0,
            found => found == expected,
        }
    }

    fn is_new(&mut self, name: &[u8]) -> bool {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        self.names.insert(hasher.finish())
    }

    fn is_name(&self, name: &[u8]) -> bool {
        if self.inode.flags.contains(InodeFlags::ENCRYPT) {
            return name.len() >= MIN_ENCRYPTED;
        }
        !name.iter().any(|byte| matches!(byte, 0 | b'/'))
    }

    fn hash(&self, version: HashVersion, name: &[u8]) -> u32 {
        let geometry = &self.pass.volume.reader.geometry;
        dirhash(version, geometry.hash_unsigned, &geometry.hash_seed, name).0
    }
}
