//! One directory: its valid entries, and its blocks, written anew.
//!
//! A directory of more than one block gets an index where the file system has indexes: leaves in
//! the order of hashes, nodes above them. They lie in the blocks that the directory has, and in new
//! ones if these are too few.

use super::RepairError;
use super::draft::Round;
use crate::facts::InodeState;
use crate::maps::{Run, Runs};
use extant_format::dir::{
    DirEntry, DirFormat, NAME_MAX, NewEntry, entries, entry_len, fill, insert, seal_dir_leaf,
    set_rec_len,
};
use extant_format::extent::NodeMut as ExtentNodeMut;
use extant_format::htree::{HashVersion, Kind, NodeMut, RootInfo, dirhash, seal_htree};
use extant_format::inode::{I_BLOCK_SIZE, Inode, tail};
use extant_format::xattr::{NameIndex, Value, decode_inode_area, encode_inode_area};
use extant_format::{Compat, FileType, Incompat, InodeFlags, InodeNr, dir::Dots, inline};
use std::collections::HashSet;

/// The shortest encrypted name.
const MIN_ENCRYPTED: usize = 16;

/// Records begin at multiples of this number of bytes.
const RECORD_STEP: usize = 4;

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct Named {
    pub name: Vec<u8>,
    pub ino: InodeNr,
    pub kind: FileType,
}

/// A directory in memory.
pub struct Directory {
    pub ino: InodeNr,
    inode: Inode,
    pub parent: InodeNr,
    pub entries: Vec<Named>,
    /// Its blocks on the device, in order.
    blocks: Vec<u64>,
}

impl Directory {
    /// Returns the block of the device with its begin.
    pub fn first_block(&self) -> Option<u64> {
        self.blocks.first().copied()
    }
}

/// Returns the runs of blocks that follow each other in a file.
pub(super) fn runs_of(blocks: &[u64]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (logical, block) in (0u64..).zip(blocks) {
        match runs.last_mut() {
            Some(run) if run.blocks().end == *block => run.len = run.len.saturating_add(1),
            _ => runs.push(Run { logical, physical: *block, len: 1, unwritten: false }),
        }
    }
    runs
}

impl Round<'_> {
    /// Reads the valid entries of a directory. Names that occur twice get a suffix.
    pub fn directory(&self, ino: InodeNr) -> Result<Directory, RepairError> {
        let (slot, inode) = (self.slot(ino)?, self.inode(ino)?);
        let keyed = InodeFlags::ENCRYPT | InodeFlags::CASEFOLD;
        if inode.flags.contains(keyed) {
            return Err(RepairError::Unsupported("a directory of encrypted names without case"));
        }
        let at = self.survey.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok();
        let dir = at.and_then(|at| self.survey.dirs.get(at));
        let named = |ino: &InodeNr| self.named_kind(*ino) == Some(FileType::Directory);
        let parent = dir.and_then(|dir| dir.parent.or(dir.dot_dot.filter(named)));
        let parent = parent.filter(|_| ino != InodeNr::ROOT).unwrap_or(InodeNr::ROOT);
        let mut directory =
            Directory { ino, inode, parent, entries: Vec::new(), blocks: Vec::new() };
        let mut names = HashSet::new();
        if directory.inode.flags.contains(InodeFlags::INLINE_DATA) {
            let area = tail(&slot, self.geometry(), &directory.inode);
            let list = decode_inode_area(area).unwrap_or_default();
            let data = list.iter().find(|e| e.is(NameIndex::SYSTEM, NameIndex::INLINE_DATA_NAME));
            let first = inline::dir_area(&directory.inode.i_block).to_vec();
            self.read_area(&first, &mut directory, &mut names);
            if let Some(Value::Inline(bytes)) = data.map(|entry| &entry.value) {
                self.read_area(bytes, &mut directory, &mut names);
            }
            return Ok(directory);
        }
        let runs = Runs::of(&self.survey.volume.reader, ino, &directory.inode);
        for run in runs.runs.iter().filter(|run| !run.unwritten) {
            directory.blocks.extend(run.blocks());
        }
        let format = DirFormat::new(self.geometry());
        for block in directory.blocks.clone() {
            let bytes = self.block(block)?;
            self.read_area(format.area(&bytes), &mut directory, &mut names);
        }
        Ok(directory)
    }

    /// Adds the valid entries of an area, also those behind a broken record.
    fn read_area(&self, area: &[u8], directory: &mut Directory, names: &mut HashSet<Vec<u8>>) {
        let format = DirFormat::new(self.geometry());
        let mut start = 0;
        while let Some(rest) = area.get(start..).filter(|rest| !rest.is_empty()) {
            let mut end = 0usize;
            for entry in entries(rest, &format).map_while(Result::ok) {
                end = entry.offset.saturating_add(entry.rec_len);
                self.read_entry(&entry, directory, names);
            }
            let Some(broken) = rest.get(end..).filter(|broken| !broken.is_empty()) else { return };
            start = start.saturating_add(end);
            // A record whose length alone is wrong has a name, and the next one follows on that.
            let len = broken.len().min(entry_len(NAME_MAX));
            let mut record = broken.get(..len).unwrap_or(broken).to_vec();
            set_rec_len(&mut record, &format, 0, len);
            let entry = entries(&record, &format).next().and_then(Result::ok);
            if let Some(entry) = entry.filter(|entry| self.is_likely(entry)) {
                self.read_entry(&entry, directory, names);
                start = start.saturating_add(entry.needed());
            } else {
                start = start.saturating_add(RECORD_STEP);
            }
            start = self.find_record(area, start, &format);
        }
    }

    /// Returns the place of the next record that is likely to be one, from a place on; the end of
    /// the area if there is none.
    fn find_record(&self, area: &[u8], from: usize, format: &DirFormat) -> usize {
        let is_record = |at: &usize| {
            let first = area.get(*at..).and_then(|rest| entries(rest, format).next());
            first.and_then(Result::ok).is_some_and(|entry| self.is_likely(&entry))
        };
        (from..area.len()).step_by(RECORD_STEP).find(is_record).unwrap_or(area.len())
    }

    /// Returns whether bytes are likely to be an entry: the name is one, and the inode has the
    /// type.
    fn is_likely(&self, entry: &DirEntry<'_>) -> bool {
        let kind = self.named_kind(entry.ino);
        let is_name =
            !entry.name.is_empty() && !entry.name.iter().any(|byte| b"/\0".contains(byte));
        let has_kind = kind == Some(entry.file_type) || !self.geometry().has_filetype();
        entry.is_used() && kind.is_some() && has_kind && is_name && !entry.is_dot_or_dot_dot()
    }

    fn read_entry(
        &self,
        entry: &DirEntry<'_>,
        directory: &mut Directory,
        names: &mut HashSet<Vec<u8>>,
    ) {
        let encrypted = directory.inode.flags.contains(InodeFlags::ENCRYPT);
        let short = encrypted && entry.name.len() < MIN_ENCRYPTED;
        if !entry.is_used() || entry.is_dot_or_dot_dot() || short {
            return;
        }
        let Some(kind) = self.named_kind(entry.ino) else { return };
        let name = unique(clean(entry.name, encrypted), names);
        directory.entries.push(Named { name, ino: entry.ino, kind });
    }

    /// Returns the type of an inode that may have names.
    fn named_kind(&self, ino: InodeNr) -> Option<FileType> {
        let volume = &self.survey.volume;
        let reserved = ino != InodeNr::ROOT && ino.0 < volume.reader.geometry.first_ino;
        let fact = self.survey.inodes.facts.get(volume, ino);
        fact.filter(|fact| !reserved && fact.state == InodeState::Used).map(|fact| fact.kind)
    }

    /// Writes a directory.
    pub fn write_directory(&self, mut directory: Directory) -> Result<(), RepairError> {
        if directory.inode.flags.contains(InodeFlags::INLINE_DATA) {
            self.leave_inline(&mut directory)?;
        }
        let format = DirFormat::new(self.geometry());
        let leaves = linear(&directory.entries, &format);
        let indexed = leaves.len() > 1
            && self.geometry().compat(Compat::DIR_INDEX)
            && !directory.inode.flags.contains(InodeFlags::CASEFOLD);
        let indexed = indexed && self.write_indexed(&mut directory, &format)?;
        if !indexed {
            self.write_linear(&mut directory, &format, &leaves)?;
        }
        let (ino, blocks) = (directory.ino, &directory.blocks);
        let size = (blocks.len() as u64).saturating_mul(self.geometry().block_size.into());
        self.edit_inode(ino, |inode| {
            inode.size = size;
            inode.flags.set(InodeFlags::INDEX, indexed);
        })?;
        let wanted = runs_of(blocks);
        let inode = self.inode(ino)?;
        let runs = Runs::of(&self.survey.volume.reader, ino, &inode);
        if runs.damaged || runs.runs != wanted { self.write_map(ino, &wanted) } else { Ok(()) }
    }

    /// Gives a directory in its inode a map without blocks.
    fn leave_inline(&self, directory: &mut Directory) -> Result<(), RepairError> {
        let (ino, extents) = (directory.ino, self.geometry().incompat(Incompat::EXTENTS));
        let slot = self.slot(ino)?;
        let area = tail(&slot, self.geometry(), &directory.inode);
        let mut list = decode_inode_area(area).unwrap_or_default();
        list.retain(|entry| !entry.is(NameIndex::SYSTEM, NameIndex::INLINE_DATA_NAME));
        let range = directory.inode.xattr_area(self.geometry());
        self.edit_slot(ino, |slot| {
            let area = slot.get_mut(range).unwrap_or(&mut []);
            if !encode_inode_area(&list, area) {
                area.fill(0);
            }
            Ok(())
        })?;
        self.edit_inode(ino, |inode| {
            inode.flags.remove(InodeFlags::INLINE_DATA);
            inode.flags.set(InodeFlags::EXTENTS, extents);
            inode.i_block = [0; I_BLOCK_SIZE];
            if extents {
                ExtentNodeMut::init(&mut inode.i_block, 0);
            }
        })?;
        directory.inode = self.inode(ino)?;
        Ok(())
    }

    fn need_blocks(&self, directory: &mut Directory, count: usize) -> Result<(), RepairError> {
        let ratio = self.geometry().cluster_ratio() as usize;
        while directory.blocks.len() < count {
            // The blocks of a cluster belong to the same file.
            let joined =
                directory.blocks.last().filter(|_| !directory.blocks.len().is_multiple_of(ratio));
            let block = match joined {
                Some(last) => last.saturating_add(1),
                None => self.allocate()?,
            };
            directory.blocks.push(block);
        }
        Ok(())
    }

    fn write_linear(
        &self,
        directory: &mut Directory,
        format: &DirFormat,
        leaves: &[Vec<Named>],
    ) -> Result<(), RepairError> {
        self.need_blocks(directory, leaves.len().max(1))?;
        directory.blocks.truncate(leaves.len().max(1));
        let dots = Dots { own: directory.ino, parent: directory.parent };
        for (n, nr) in directory.blocks.iter().enumerate() {
            let list = leaves.get(n).map_or(&[][..], |list| list);
            let mut bytes = vec![0; self.block_size()];
            if n == 0 {
                format.init_first_block(&mut bytes, dots);
                for entry in list {
                    let NewName { name, ino, kind } = NewName::of(entry);
                    let new = NewEntry { ino, file_type: kind, name };
                    insert(format.area_mut(&mut bytes), format, new)?;
                }
                self.put_leaf(*nr, bytes, directory)?;
            } else {
                format.init_block(&mut bytes);
                put_entries(&mut bytes, format, list);
                self.put_leaf(*nr, bytes, directory)?;
            }
        }
        Ok(())
    }

    fn put_leaf(&self, nr: u64, mut bytes: Vec<u8>, dir: &Directory) -> Result<(), RepairError> {
        if self.geometry().metadata_csum {
            seal_dir_leaf(&mut bytes, nr, dir.inode.seed(self.geometry(), dir.ino));
        }
        self.put(nr, &bytes)
    }

    fn put_node(&self, nr: u64, mut bytes: Vec<u8>, dir: &Directory) -> Result<(), RepairError> {
        if self.geometry().metadata_csum {
            seal_htree(&mut bytes, nr, dir.inode.seed(self.geometry(), dir.ino));
        }
        self.put(nr, &bytes)
    }

    /// Writes a directory with an index. Returns `false` if it has too many entries for two levels.
    fn write_indexed(
        &self,
        directory: &mut Directory,
        format: &DirFormat,
    ) -> Result<bool, RepairError> {
        let version = self.hash_version();
        let leaves = self.hashed(&directory.entries, version, format);
        let (of_root, of_node) =
            (usize::from(Kind::Root.limit(format)), usize::from(Kind::Interior.limit(format)));
        let nodes = if leaves.len() > of_root { leaves.len().div_ceil(of_node.max(1)) } else { 0 };
        if nodes > of_root {
            return Ok(false);
        }
        let first_leaf = nodes.saturating_add(1);
        let count = first_leaf.saturating_add(leaves.len());
        self.need_blocks(directory, count)?;
        directory.blocks.truncate(count);
        let mut index = Vec::new();
        for (logical, (hash, list)) in (first_leaf..).zip(&leaves) {
            let mut bytes = vec![0; self.block_size()];
            format.init_block(&mut bytes);
            put_entries(&mut bytes, format, list);
            let nr = directory.blocks.get(logical).copied().unwrap_or_default();
            self.put_leaf(nr, bytes, directory)?;
            index.push((*hash, logical as u32));
        }
        let mut top = index.clone();
        if nodes > 0 {
            top.clear();
            for (logical, part) in (1usize..).zip(index.chunks(of_node.max(1))) {
                let mut bytes = vec![0; self.block_size()];
                let _ = NodeMut::init_interior(&mut bytes, format, 0).set_entries(part);
                let nr = directory.blocks.get(logical).copied().unwrap_or_default();
                self.put_node(nr, bytes, directory)?;
                top.push((part.first().map_or(0, |(hash, _)| *hash), logical as u32));
            }
        }
        let info = RootInfo { hash_version: version, levels: u8::from(nodes > 0) };
        let dots = Dots { own: directory.ino, parent: directory.parent };
        let mut bytes = vec![0; self.block_size()];
        let _ = NodeMut::init_root(&mut bytes, format, info, dots, 0).set_entries(&top);
        let nr = directory.blocks.first().copied().unwrap_or_default();
        self.put_node(nr, bytes, directory)?;
        Ok(true)
    }

    fn hash_version(&self) -> HashVersion {
        let default = self.survey.volume.superblock.def_hash_version();
        HashVersion::from_raw(default)
            .ok()
            .filter(|version| version.to_raw() <= 2)
            .unwrap_or(HashVersion::HalfMd4)
    }

    /// Returns the leaves of an index, each with its first hash. Bit 0 marks a leaf whose first
    /// hash is also in the leaf before.
    fn hashed(
        &self,
        list: &[Named],
        version: HashVersion,
        format: &DirFormat,
    ) -> Vec<(u32, Vec<Named>)> {
        let geometry = self.geometry();
        let hash = |named: &Named| {
            dirhash(version, geometry.hash_unsigned, &geometry.hash_seed, &named.name)
        };
        let mut sorted: Vec<((u32, u32), &Named)> = list.iter().map(|n| (hash(n), n)).collect();
        sorted.sort_by_key(|(hash, _)| *hash);
        let mut leaves: Vec<(u32, Vec<Named>)> = Vec::new();
        let (mut left, mut last) = (0, None);
        for ((hash, _), named) in sorted {
            let len = entry_len(named.name.len());
            match leaves.last_mut() {
                Some((_, leaf)) if len <= left => leaf.push(named.clone()),
                _ => {
                    let joined = u32::from(last == Some(hash));
                    leaves.push((hash | joined, vec![named.clone()]));
                    left = format.usable();
                }
            }
            left = left.saturating_sub(len);
            last = Some(hash);
        }
        leaves
    }
}

/// An entry as it is written.
struct NewName<'n> {
    name: &'n [u8],
    ino: InodeNr,
    kind: FileType,
}

impl NewName<'_> {
    fn of(named: &Named) -> NewName<'_> {
        NewName { name: &named.name, ino: named.ino, kind: named.kind }
    }
}

/// Fills a block with entries that fit.
fn put_entries(bytes: &mut [u8], format: &DirFormat, list: &[Named]) {
    let list = list.iter().map(|named| (named.ino, named.kind, &named.name[..]));
    let _ = fill(format.area_mut(bytes), format, list);
}

/// Returns the entries of each block of a directory without index. The first one has `.` and `..`.
fn linear(list: &[Named], format: &DirFormat) -> Vec<Vec<Named>> {
    let dots = entry_len(1).saturating_add(entry_len(2));
    let mut blocks = vec![Vec::new()];
    let mut left = format.usable().saturating_sub(dots);
    for named in list {
        let len = entry_len(named.name.len());
        if len > left {
            blocks.push(Vec::new());
            left = format.usable();
        }
        left = left.saturating_sub(len);
        if let Some(block) = blocks.last_mut() {
            block.push(named.clone());
        }
    }
    blocks
}

/// Replaces bytes that no name may have.
fn clean(name: &[u8], encrypted: bool) -> Vec<u8> {
    let byte = |byte: &u8| if matches!(byte, 0 | b'/') && !encrypted { b'.' } else { *byte };
    let name: Vec<u8> = name.iter().map(byte).collect();
    if name == b"." || name == b".." { b"...".to_vec() } else { name }
}

/// Returns the name, with a suffix if it occurred before.
fn unique(name: Vec<u8>, names: &mut HashSet<Vec<u8>>) -> Vec<u8> {
    let mut candidate = name.clone();
    for n in 0u64.. {
        if names.insert(candidate.clone()) {
            break;
        }
        let suffix = format!("~{n}").into_bytes();
        candidate = name.clone();
        candidate.truncate(NAME_MAX.saturating_sub(suffix.len()));
        candidate.extend(suffix);
    }
    candidate
}
