//! Insertion into a hash tree: splits of leaves and nodes, additional levels.
//!
//! For example, leaf 3 holds the hashes 0x100 to 0x8f0. Its split moves the hashes from 0x480 on to
//! the new block 9, and the parent gets the entry (0x480, 9) behind that of leaf 3.
//!
//! # Invariants
//! Each step leaves a valid tree, so that a lack of space between two steps loses nothing. Each
//! block is allocated before the changes that need it.

use super::area::{self, NamedInode, Room};
use super::blocks::Dir;
use super::hash::Hasher;
use super::htree::{self, Frame, Path};
use super::linear;
use crate::error::{Errno, Result};
use crate::inode::{Inode, Step, Tx};
use extant_blocks::Buffer;
use extant_format::dir::entries;
use extant_format::error::Corrupt;
use extant_format::htree::NodeMut;
use std::sync::Arc;

/// Inserts `new` into the leaf of its hash, or into one of its halves. Returns false, with nothing
/// changed, if the nodes above have no space for another leaf: [`make_space`] comes first then.
pub(super) fn insert(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    new: &NamedInode<'_>,
) -> Result<bool> {
    let root = htree::root(d)?;
    let path = htree::probe(d, &root, root.hasher.major(new.name))?;
    let leaf = htree::load_leaf(d, path.leaf)?;
    if linear::insert_at(d, step, &leaf, Room::Unknown, new)? || insert_packed(d, step, &leaf, new)?
    {
        return Ok(true);
    }
    match full_nodes(d, &path)? {
        0 => split_leaf(d, step, owner, (&path, &root.hasher), new).map(|()| true),
        _ => Ok(false),
    }
}

/// Splits the full nodes above the leaf of `new`, each in a step. When it returns, the lowest has
/// space for another leaf.
pub(super) fn make_space(
    d: &mut Dir<'_>,
    tx: &mut Tx<'_>,
    owner: &Arc<Inode>,
    new: &NamedInode<'_>,
) -> Result<()> {
    // Each pass makes space in one more node: first in the lowest level that has space, then in the
    // levels below. After a level is added, the same passes may follow again.
    for _ in 0..=2 * d.max_levels() {
        let root = htree::root(d)?;
        let path = htree::probe(d, &root, root.hasher.major(new.name))?;
        let nodes = path.frames.len();
        match full_nodes(d, &path)? {
            0 => return Ok(()),
            n if n < nodes => tx.step(|step| split_node(d, step, owner, &path, nodes - n))?,
            _ => tx.step(|step| add_level(d, step, owner, &path))?,
        }
    }
    Err(d.corrupt("hash tree", 0).into())
}

/// Repacks a leaf whose small gaps together have enough space. Returns false if they have not.
fn insert_packed(
    d: &Dir<'_>,
    step: &mut Step<'_>,
    leaf: &Arc<Buffer>,
    new: &NamedInode<'_>,
) -> Result<bool> {
    let old = leaf.snapshot();
    let area = d.format.area(&old);
    let used = entries(area, &d.format)
        .try_fold(0, |sum, entry| Ok::<_, Corrupt>(sum + entry?.needed()))?;
    if used + new.len() > d.format.usable() {
        return Ok(false);
    }
    let names: Vec<_> = area::names(area, &d.format).collect::<Result<_, _>>()?;
    match linear::leaf_image(d, names.into_iter().chain([*new])) {
        Some(image) => d.overwrite(step, leaf, d.leaf_seal(), &image).map(|()| true),
        None => Ok(false),
    }
}

/// Returns the number of full nodes at the end of the path.
fn full_nodes(d: &Dir<'_>, path: &Path) -> Result<usize> {
    let mut full = 0;
    for frame in path.frames.iter().rev() {
        if !frame.with(d, |node| node.is_full())? {
            break;
        }
        full += 1;
    }
    Ok(full)
}

/// Moves the upper half of the full node `path.frames[at]` to a new node behind it. The parent must
/// have space.
fn split_node(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    path: &Path,
    at: usize,
) -> Result<()> {
    let (Some(frame), Some(parent)) =
        (path.frames.get(at), at.checked_sub(1).and_then(|up| path.frames.get(up)))
    else {
        return Err(d.corrupt("hash tree path", path.leaf).into());
    };
    let entries = frame.with(d, |node| node.entries().collect::<Vec<_>>())?;
    let (lower, upper) = entries.split_at(entries.len() / 2);
    let Some(&(key, _)) = upper.first() else {
        return Err(d.corrupt("hash tree node", frame.lblk).into());
    };
    // The new node is allocated before the old node and the parent change.
    let lblk = new_node(d, step, owner, upper)?;
    set_entries(d, step, frame, lower)?;
    insert_key(d, step, parent, key, lblk)
}

/// Moves all entries of the root to a new node, which becomes the root's only child.
fn add_level(d: &mut Dir<'_>, step: &mut Step<'_>, owner: &Arc<Inode>, path: &Path) -> Result<()> {
    if path.frames.len() >= d.max_levels() {
        return Err(Errno::NoSpc.into());
    }
    let Some(root) = path.frames.first() else {
        return Err(d.corrupt("hash tree path", path.leaf).into());
    };
    let entries = root.with(d, |node| node.entries().collect::<Vec<_>>())?;
    let lblk = new_node(d, step, owner, &entries)?;
    set_entries(d, step, root, &[(0, lblk)])?;
    let mut bytes = step.write(&root.buf, d.index_seal())?;
    NodeMut::open(&mut bytes, root.kind(), &d.format)?.set_levels(path.frames.len() as u8);
    Ok(())
}

fn new_node(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    entries: &[(u32, u32)],
) -> Result<u32> {
    let (lblk, buf) = d.grow(step, owner)?;
    let mut image = vec![0; d.format.block_size as usize];
    let first = entries.first().map_or(0, |(_, child)| *child);
    if !NodeMut::init_interior(&mut image, &d.format, first).set_entries(entries) {
        return Err(d.corrupt("hash tree node", lblk).into());
    }
    d.overwrite(step, &buf, d.index_seal(), &image)?;
    Ok(lblk)
}

fn set_entries(
    d: &Dir<'_>,
    step: &mut Step<'_>,
    frame: &Frame,
    entries: &[(u32, u32)],
) -> Result<()> {
    let mut bytes = step.write(&frame.buf, d.index_seal())?;
    if NodeMut::open(&mut bytes, frame.kind(), &d.format)?.set_entries(entries) {
        Ok(())
    } else {
        Err(d.corrupt("hash tree node", frame.lblk).into())
    }
}

/// Inserts a block behind the entry that the path follows.
fn insert_key(d: &Dir<'_>, step: &mut Step<'_>, frame: &Frame, key: u32, lblk: u32) -> Result<()> {
    let mut bytes = step.write(&frame.buf, d.index_seal())?;
    if NodeMut::open(&mut bytes, frame.kind(), &d.format)?.insert(frame.at + 1, key, lblk) {
        Ok(())
    } else {
        Err(d.corrupt("hash tree node", frame.lblk).into())
    }
}

/// Moves the upper half of a full leaf to a new leaf, and inserts `new` into its half. The leaf's
/// parent must have space.
fn split_leaf(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    (path, hasher): (&Path, &Hasher),
    new: &NamedInode<'_>,
) -> Result<()> {
    let Some(node) = path.frames.last() else {
        return Err(d.corrupt("hash tree path", path.leaf).into());
    };
    let leaf = htree::load_leaf(d, path.leaf)?;
    let old = leaf.snapshot();
    let halves = Halves::of(d, &old, hasher, new)
        .map_err(|e| e.at_inode(d.inode.ino).at_block(leaf.nr()))?;
    let (Some(lower), Some(upper)) = (image(d, &halves.lower), image(d, &halves.upper)) else {
        return Err(d.corrupt("directory leaf", path.leaf).into());
    };
    // Both images exist, and the block is allocated, before the first change.
    let (lblk, buf) = d.grow(step, owner)?;
    d.overwrite(step, &buf, d.leaf_seal(), &upper)?;
    d.overwrite(step, &leaf, d.leaf_seal(), &lower)?;
    insert_key(d, step, node, halves.key, lblk)
}

fn image(d: &Dir<'_>, entries: &[(u32, NamedInode<'_>)]) -> Option<Vec<u8>> {
    linear::leaf_image(d, entries.iter().map(|(_, new)| *new))
}

/// The entries of a leaf and the new one, split by hash.
struct Halves<'a> {
    lower: Vec<(u32, NamedInode<'a>)>,
    upper: Vec<(u32, NamedInode<'a>)>,
    /// Key of the upper half: its lowest hash, with bit 0 set if the lower half has that hash, too.
    key: u32,
}

impl<'a> Halves<'a> {
    fn of(
        d: &Dir<'_>,
        leaf: &'a [u8],
        hasher: &Hasher,
        new: &NamedInode<'a>,
    ) -> Result<Halves<'a>, Corrupt> {
        let mut entries = Vec::new();
        for entry in area::names(d.format.area(leaf), &d.format) {
            let entry = entry?;
            entries.push((hasher.major(entry.name), entry));
        }
        entries.push((hasher.major(new.name), *new));
        entries.sort_by_key(|(hash, _)| *hash);
        Ok(Self::part(entries))
    }

    /// Splits sorted entries into halves of about the same size, between two hashes if possible
    /// nearby.
    fn part(mut entries: Vec<(u32, NamedInode<'a>)>) -> Halves<'a> {
        let at = median(&entries);
        let upper = entries.split_off(at);
        let key = match (entries.last(), upper.first()) {
            (Some((before, _)), Some((hash, _))) if before == hash => hash | 1,
            (_, Some((hash, _))) => *hash,
            _ => 0,
        };
        Halves { lower: entries, upper, key }
    }
}

/// Returns the index of the first entry of the upper half. Both halves get an entry, and neither
/// gets more than half of the bytes and half an entry.
fn median(entries: &[(u32, NamedInode<'_>)]) -> usize {
    let total: usize = entries.iter().map(|(_, new)| new.len()).sum();
    let mut below = 0;
    for (i, (_, new)) in entries.iter().enumerate() {
        if 2 * below + new.len() >= total {
            return i.max(1).min(entries.len() - 1);
        }
        below += new.len();
    }
    entries.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::types::{FileType, InodeNr};
    use proptest::prelude::*;

    fn entry(hash: u32, name: &[u8]) -> (u32, NamedInode<'_>) {
        (hash, NamedInode { name, ino: InodeNr(12), ftype: FileType::Regular })
    }

    fn bytes(entries: &[(u32, NamedInode<'_>)]) -> usize {
        entries.iter().map(|(_, new)| new.len()).sum()
    }

    #[test]
    fn a_hash_in_both_halves_is_marked() {
        let part =
            |hashes: [u32; 4]| Halves::part(hashes.map(|hash| entry(hash, b"name")).to_vec());
        let apart = part([2, 4, 6, 8]);
        assert_eq!((apart.lower.len(), apart.upper.len(), apart.key), (2, 2, 6));
        assert_eq!(part([2, 4, 4, 8]).key, 5);
        assert_eq!(part([4, 4, 4, 4]).key, 5);
    }

    proptest! {
        #[test]
        fn halves_fit_where_the_whole_did(lens in prop::collection::vec(1usize..=255, 2..60)) {
            let name = [b'x'; 255];
            let named = |(n, len): (usize, &usize)| entry(2 * n as u32, &name[..*len]);
            let entries: Vec<_> = lens.iter().enumerate().map(named).collect();
            let longest = entries.iter().map(|(_, new)| new.len()).max().unwrap();
            let total = bytes(&entries);
            let halves = Halves::part(entries);
            prop_assert!(!halves.lower.is_empty() && !halves.upper.is_empty());
            prop_assert_eq!(bytes(&halves.lower) + bytes(&halves.upper), total);
            for half in [&halves.lower, &halves.upper] {
                prop_assert!(bytes(half) <= total / 2 + longest);
            }
            prop_assert!(halves.lower.iter().all(|(hash, _)| *hash < halves.key));
            prop_assert!(halves.upper.iter().all(|(hash, _)| *hash >= halves.key));
        }
    }
}
