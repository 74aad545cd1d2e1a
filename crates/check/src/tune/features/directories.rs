//! Directories with and without checksums, and without indexes.
//!
//! With checksums a leaf ends with a tail of 12 bytes, and a node of an index has one entry less.
//! Most blocks have the space for that, or get it when their records are moved together. A
//! directory with a block that has not is written anew, with more blocks.

use crate::maps::Runs;
use crate::repair::{Directory, RepairError, Round};
use extant_format::dir::{
    DirEntry, DirFormat, Dots, dot_dot, entries, fill, init_tail, seal_dir_leaf, set_rec_len,
};
use extant_format::htree::{Kind, Node, NodeMut, RootInfo, seal_htree};
use extant_format::{Corrupt, Geometry, Inode, InodeFlags, InodeNr};
use std::collections::BTreeMap;

/// The shortest record.
const MIN_RECORD: usize = 12;

/// Bytes of hashes behind the names of directories that are encrypted and ignore case.
const KEPT_HASH: usize = 8;

/// A block of a directory: its number, its content, and its kind if it is a node of an index.
type DirBlock = (u64, Vec<u8>, Option<Kind>);

fn is_keyed(inode: &Inode) -> bool {
    inode.flags.contains(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD)
}

/// Returns the blocks of a directory in their order.
fn blocks_of(round: &Round<'_>, ino: InodeNr, inode: &Inode) -> Vec<u64> {
    let runs = Runs::of(&round.survey.volume.reader, ino, inode);
    let count = inode.size >> round.geometry().block_bits;
    let blocks = runs.runs.iter().flat_map(|run| run.blocks());
    blocks.take(count as usize).collect()
}

/// Returns the nodes of a directory's index by their places in the file.
fn nodes(
    round: &Round<'_>,
    inode: &Inode,
    blocks: &[u64],
    format: &DirFormat,
) -> Result<BTreeMap<u64, Kind>, RepairError> {
    let mut nodes = BTreeMap::new();
    if !inode.flags.contains(InodeFlags::INDEX) {
        return Ok(nodes);
    }
    let Some(first) = blocks.first() else { return Ok(nodes) };
    let root = round.block(*first)?;
    let levels = RootInfo::parse(&root, format)?.levels;
    nodes.insert(0, Kind::Root);
    let mut level: Vec<u64> = children(&root, Kind::Root, format)?;
    for _ in 0..levels {
        let mut below = Vec::new();
        for logical in level {
            let block = blocks.get(logical as usize);
            let nr = block.ok_or_else(|| Corrupt::new("directory index").field("block"))?;
            nodes.insert(logical, Kind::Interior);
            below.extend(children(&round.block(*nr)?, Kind::Interior, format)?);
        }
        level = below;
    }
    Ok(nodes)
}

fn children(block: &[u8], kind: Kind, format: &DirFormat) -> Result<Vec<u64>, Corrupt> {
    Ok(Node::open(block, kind, format)?.entries().map(|(_, block)| block.into()).collect())
}

/// Gives the directories of a survey the form of a new geometry. Returns those that do not fit
/// into their blocks, which are unchanged.
pub fn convert(round: &Round<'_>, new: &Geometry) -> Result<Vec<Directory>, RepairError> {
    let formats = [DirFormat::new(round.geometry()), DirFormat::new(new)];
    let mut left = Vec::new();
    for dir in &round.survey.dirs {
        let inode = round.inode(dir.ino)?;
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            continue;
        }
        match converted(round, (dir.ino, &inode), &formats)? {
            Some(blocks) => put(round, blocks, new.metadata_csum, inode.seed(new, dir.ino))?,
            None => left.push(round.directory(dir.ino)?),
        }
    }
    Ok(left)
}

fn put(
    round: &Round<'_>,
    blocks: Vec<DirBlock>,
    with_checksum: bool,
    seed: u32,
) -> Result<(), RepairError> {
    for (nr, mut bytes, kind) in blocks {
        match kind {
            _ if !with_checksum => {}
            Some(_) => seal_htree(&mut bytes, nr, seed),
            None => seal_dir_leaf(&mut bytes, nr, seed),
        }
        round.put(nr, &bytes)?;
    }
    Ok(())
}

/// Returns the blocks of a directory in the second format; `None` if they do not hold it.
fn converted(
    round: &Round<'_>,
    (ino, inode): (InodeNr, &Inode),
    [old, new]: &[DirFormat; 2],
) -> Result<Option<Vec<DirBlock>>, RepairError> {
    let blocks = blocks_of(round, ino, inode);
    let nodes = nodes(round, inode, &blocks, old)?;
    let kept = if is_keyed(inode) { KEPT_HASH } else { 0 };
    let mut list = Vec::new();
    for (logical, nr) in (0u64..).zip(blocks) {
        let bytes = round.block(nr)?;
        let kind = nodes.get(&logical).copied();
        let bytes = match kind {
            _ if old.usable() == new.usable() => Some(bytes),
            Some(kind) => node(&bytes, kind, old, new)?,
            None => leaf(&bytes, kept, old, new)?,
        };
        let Some(bytes) = bytes else { return Ok(None) };
        list.push((nr, bytes, kind));
    }
    Ok(Some(list))
}

/// Returns a leaf in another format; `None` if its names do not fit.
fn leaf(
    bytes: &[u8],
    kept: usize,
    old: &DirFormat,
    new: &DirFormat,
) -> Result<Option<Vec<u8>>, Corrupt> {
    let records = entries(old.area(bytes), old).collect::<Result<Vec<DirEntry<'_>>, _>>()?;
    let Some(last) = records.last() else { return Ok(None) };
    let mut block = bytes.to_vec();
    block.iter_mut().skip(old.usable()).for_each(|byte| *byte = 0);
    let needed = if last.is_used() { last.needed().saturating_add(kept) } else { MIN_RECORD };
    match new.usable().checked_sub(last.offset) {
        // The record gives its place to the tail.
        Some(0) if !last.is_used() && records.len() > 1 => {}
        Some(len) if len >= needed => set_rec_len(&mut block, new, last.offset, len),
        _ => {
            let used = records.iter().filter(|record| record.is_used());
            let used = used.map(|record| (record.ino, record.file_type, record.name));
            if kept > 0 || !fill(new.area_mut(&mut block), new, used) {
                return Ok(None);
            }
        }
    }
    if new.metadata_csum {
        init_tail(&mut block);
    }
    Ok(Some(block))
}

/// Returns a node of an index in another format; `None` if its entries do not fit.
fn node(
    bytes: &[u8],
    kind: Kind,
    old: &DirFormat,
    new: &DirFormat,
) -> Result<Option<Vec<u8>>, Corrupt> {
    let list: Vec<(u32, u32)> = Node::open(bytes, kind, old)?.entries().collect();
    let mut block = vec![0; bytes.len()];
    let fits = match kind {
        Kind::Root => {
            let info = RootInfo::parse(bytes, old)?;
            NodeMut::init_root(&mut block, new, info, dots(bytes, old)?, 0).set_entries(&list)
        }
        Kind::Interior => NodeMut::init_interior(&mut block, new, 0).set_entries(&list),
    };
    Ok(fits.then_some(block))
}

/// Returns the inodes of `.` and `..` in the first block of a directory.
fn dots(bytes: &[u8], format: &DirFormat) -> Result<Dots, Corrupt> {
    let parent = dot_dot(bytes, format)?.ino;
    let first = entries(bytes, format).next().transpose()?;
    Ok(Dots { own: first.map_or(InodeNr::NONE, |entry| entry.ino), parent })
}

/// Makes all directories ones without an index: nodes become leaves without names.
pub fn remove_indexes(round: &Round<'_>) -> Result<(), RepairError> {
    let geometry = round.geometry();
    let format = DirFormat::new(geometry);
    for dir in &round.survey.dirs {
        let inode = round.inode(dir.ino)?;
        if !inode.flags.contains(InodeFlags::INDEX) {
            continue;
        }
        let blocks = blocks_of(round, dir.ino, &inode);
        let mut list = Vec::new();
        for logical in nodes(round, &inode, &blocks, &format)?.into_keys() {
            let Some(nr) = blocks.get(logical as usize).copied() else { continue };
            let mut bytes = round.block(nr)?;
            if logical == 0 {
                let dots = dots(&bytes, &format)?;
                format.init_first_block(&mut bytes, dots);
            } else {
                format.init_block(&mut bytes);
            }
            list.push((nr, bytes, None));
        }
        put(round, list, geometry.metadata_csum, inode.seed(geometry, dir.ino))?;
        round.edit_inode(dir.ino, |inode| inode.flags.remove(InodeFlags::INDEX))?;
    }
    Ok(())
}
