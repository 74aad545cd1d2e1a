//! Blocks of directories with other names.

use super::content::{Cleaner, DirectoryFacts};
use super::index::{HashRange, HashRanges};
use super::scramble::{NameSpace, Scrambler};
use extant_format::Geometry;
use extant_format::dir::{DirFormat, dot_dot, entries, has_tail, seal_dir_leaf, verify_leaf};
use extant_format::htree::{self, Kind, RootInfo, clear_unused, is_interior};
use std::collections::{BTreeMap, BTreeSet};

/// Tries for a name in a leaf: so many times the expected number, which leaves one name of millions
/// without a match.
const MATCH_FACTOR: u64 = 16;

/// Bounds on the tries for a name.
const MAX_TRIES: u64 = 1 << 22;
const MIN_TRIES: u64 = 1 << 12;

/// Bytes of the header of a record.
const RECORD_HEADER: usize = 8;

/// The highest number of a file's type.
const MAX_TYPE: u8 = 7;

/// Bytes of the hash behind an encrypted name.
const KEPT_HASH: usize = 8;

/// The parts of a record that stay, in addition to its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// Names are replaced.
    Nothing,
    /// Names are ciphertext.
    Names,
    /// Names are ciphertext, and their hashes follow them.
    Hashes,
}

impl Kept {
    pub fn of(is_encrypted: bool, space: NameSpace) -> Kept {
        match (is_encrypted, space.folds) {
            (false, _) => Kept::Nothing,
            (true, false) => Kept::Names,
            (true, true) => Kept::Hashes,
        }
    }
}

impl Cleaner {
    pub(super) fn clean_directory(
        &mut self,
        geometry: &Geometry,
        facts: &DirectoryFacts,
        logical: u64,
        bytes: &mut [u8],
    ) {
        let format = DirFormat::new(geometry);
        if let Some(kind) = index_node_kind(facts, logical, bytes, &format) {
            // An index made of a leaf may still have its names there.
            return clear_unused(bytes, kind, &format);
        }
        let has_checksum = geometry.metadata_csum && has_tail(bytes);
        let is_right = has_checksum && verify_leaf(bytes, facts.seed).is_ok();
        let leaf = facts.index.as_ref().and_then(|index| Some((index, index.leaf(logical)?)));
        let kept = Kept::of(facts.is_encrypted, facts.space);
        if let Some(scrambler) = &self.scrambler {
            let mut names = LeafNames::new(scrambler, facts.space, leaf);
            let area = if has_checksum { format.area_mut(bytes) } else { &mut *bytes };
            each_name(area, &format, kept, &mut |name| {
                if kept == Kept::Nothing {
                    names.replace(name);
                }
            });
            self.mismatches = self.mismatches.saturating_add(names.mismatches);
        }
        if is_right {
            seal_dir_leaf(bytes, 0, facts.seed);
        }
    }
}

/// Returns whether a block begins with a record.
pub fn is_directory_block(geometry: &Geometry, bytes: &[u8]) -> bool {
    entries(bytes, &DirFormat::new(geometry)).next().is_some_and(|entry| entry.is_ok())
}

/// Returns whether a block consists of records with possible inodes and types, and has names.
pub fn has_names(geometry: &Geometry, bytes: &[u8]) -> bool {
    let mut has_any = false;
    for entry in entries(bytes, &DirFormat::new(geometry)) {
        let Ok(entry) = entry else { return false };
        if entry.is_used() {
            has_any = true;
            if entry.ino.0 > geometry.inodes_count || entry.type_byte(bytes) > MAX_TYPE {
                return false;
            }
        }
    }
    has_any
}

/// Returns the kind of a block with hashes in place of names; `None` for one with names.
fn index_node_kind(
    facts: &DirectoryFacts,
    logical: u64,
    bytes: &[u8],
    format: &DirFormat,
) -> Option<Kind> {
    if !facts.is_indexed {
        return None;
    }
    if logical == 0 {
        let is_root = RootInfo::parse(bytes, format).is_ok()
            || htree::Node::open(bytes, Kind::Root, format).is_ok();
        return (dot_dot(bytes, format).is_ok() && is_root).then_some(Kind::Root);
    }
    let is_known = facts.index.as_ref().is_some_and(|index| index.is_node(logical))
        || htree::Node::open(bytes, Kind::Interior, format).is_ok();
    (is_interior(bytes, format) && is_known).then_some(Kind::Interior)
}

/// Gives `replace` the name of each record in use of an area, and zeroes all bytes that are neither
/// header nor name nor `kept`. Of a bad record, with which the area ends, the lengths stay.
pub fn each_name(
    area: &mut [u8],
    format: &DirFormat,
    kept: Kept,
    replace: &mut dyn FnMut(&mut [u8]),
) {
    let mut records = Vec::new();
    let mut next = 0usize;
    let mut is_bad = false;
    for entry in entries(area, format) {
        let Ok(entry) = entry else {
            is_bad = true;
            break;
        };
        let name = entry.offset.saturating_add(RECORD_HEADER);
        next = entry.offset.saturating_add(entry.rec_len);
        let needed = entry.offset.saturating_add(entry.needed());
        let len = if entry.is_used() { entry.name.len() } else { 0 };
        let free = match kept {
            _ if !entry.is_used() => name,
            // The zero behind their names is checked.
            _ if entry.is_dot_or_dot_dot() => needed,
            Kept::Hashes => needed.saturating_add(KEPT_HASH),
            _ => name.saturating_add(len),
        };
        records.push((name..name.saturating_add(len), free..next));
    }
    for (name, free) in records {
        if let Some(name) = area.get_mut(name).filter(|name| !name.is_empty()) {
            replace(name);
        }
        if let Some(free) = area.get_mut(free) {
            free.fill(0);
        }
    }
    if is_bad && let Some(rest) = area.get_mut(next..) {
        // The number of the inode does not matter for the damage, and may be a part of a name.
        let lengths = RECORD_HEADER / 2..RECORD_HEADER;
        let is_kept = |n: &usize| lengths.contains(n);
        rest.iter_mut().enumerate().filter(|(n, _)| !is_kept(n)).for_each(|(_, byte)| *byte = 0);
    }
}

/// Copies bytes, as many as both have.
pub fn put(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

/// The new names of a block of a directory.
struct LeafNames<'l> {
    scrambler: &'l Scrambler,
    space: NameSpace,
    leaf: Option<(&'l HashRanges, HashRange)>,
    /// New names by old ones: equal names stay equal.
    known: BTreeMap<Vec<u8>, Vec<u8>>,
    /// New names, in one case where that does not matter.
    used: BTreeSet<Vec<u8>>,
    mismatches: u64,
}

impl<'l> LeafNames<'l> {
    fn new(
        scrambler: &'l Scrambler,
        space: NameSpace,
        leaf: Option<(&'l HashRanges, HashRange)>,
    ) -> LeafNames<'l> {
        let (known, used) = (BTreeMap::new(), BTreeSet::new());
        LeafNames { scrambler, space, leaf, known, used, mismatches: 0 }
    }

    fn folded(&self, name: &[u8]) -> Vec<u8> {
        if self.space.folds { name.to_ascii_lowercase() } else { name.to_vec() }
    }

    /// Replaces a name in a block to which no index leads. Where case does not matter, a name
    /// beyond ASCII may become equal to another one.
    fn replace_anywhere(&mut self, name: &mut [u8]) {
        if !self.space.folds || Scrambler::keeps(name) {
            return self.scrambler.scramble(self.space, name);
        }
        if let Some(known) = self.known.get(&*name) {
            return put(name, known);
        }
        let old = name.to_vec();
        self.scrambler.scramble(self.space, name);
        for _ in 0..MIN_TRIES {
            if !self.used.contains(&self.folded(name)) && !Scrambler::keeps(name) {
                break;
            }
            self.scrambler.advance(self.space, name);
        }
        self.used.insert(self.folded(name));
        self.known.insert(old, name.to_vec());
    }

    fn replace(&mut self, name: &mut [u8]) {
        let Some((index, range)) = self.leaf.filter(|_| !Scrambler::keeps(name)) else {
            return self.replace_anywhere(name);
        };
        if let Some(known) = self.known.get(&*name) {
            return put(name, known);
        }
        let old = name.to_vec();
        let hash = index.hash(self.space, name);
        let side = hash.map_or(std::cmp::Ordering::Equal, |hash| range.side(hash));
        self.scrambler.scramble(self.space, name);
        let first = name.to_vec();
        let tries = range.odds(side).saturating_mul(MATCH_FACTOR).clamp(MIN_TRIES, MAX_TRIES);
        let mut is_found = false;
        for _ in 0..tries {
            let is_free = !self.used.contains(&self.folded(name)) && !Scrambler::keeps(name);
            let hash = index.hash(self.space, name).filter(|_| is_free);
            if hash.is_some_and(|hash| range.accepts(side, hash)) {
                is_found = true;
                break;
            }
            self.scrambler.advance(self.space, name);
            if *name == *first {
                break;
            }
        }
        if !is_found {
            put(name, &first);
            self.mismatches = self.mismatches.saturating_add(1);
        }
        self.used.insert(self.folded(name));
        self.known.insert(old, name.to_vec());
    }
}
