//! Verification of content that is read from files with a hash tree (fs-verity).
//!
//! Such a file is never written again. It is read through pages, which are verified when they come
//! from the device; holes are verified as zeroes. The tree is read without pages, and its verified
//! blocks are kept with the inode. Signatures of descriptors are not checked.

use super::map;
use crate::bounds::Remark;
use crate::error::{Error, Result};
use crate::extent;
use crate::inode::{ExtentState, Inode, Verity};
use crate::store::Store;
use extant_format::error::Corrupt;
use extant_format::inode::InodeFlags;
use extant_format::verity::{self, Algorithm, Descriptor, METADATA_ALIGN, Tree};
use sha2::{Digest, Sha256, Sha512};
use std::sync::Arc;

/// Whether the file has a hash tree.
pub fn applies(inode: &Inode) -> bool {
    inode.stat().flags.contains(InodeFlags::VERITY)
}

/// The measure of a file (the hash of its descriptor) and the number of the algorithm.
///
/// # Errors
/// `Corrupt` for a descriptor that cannot be; `Io`.
pub fn measure(st: &Store, inode: &Inode) -> Result<(u8, Vec<u8>)> {
    let desc = &of(st, inode)?.desc;
    Ok((desc.algorithm.number(), hash(desc.algorithm, &[&desc.measured])))
}

/// Verifies bytes that were read from block `lblk` of the file system on, zeroes behind the end of
/// the file.
///
/// # Errors
/// `Io` (EIO) for bytes with a wrong hash; `Corrupt` for an invalid descriptor.
pub(super) fn check(st: &Store, inode: &Inode, lblk: u32, bytes: &[u8]) -> Result<()> {
    let verity = of(st, inode)?;
    let first = map::byte(st, lblk) >> verity.desc.block_bits;
    let count = verity.desc.data_size.div_ceil(verity.desc.block_size() as u64);
    for (index, block) in (first..count).zip(bytes.chunks(verity.desc.block_size())) {
        if block_hash(&verity.desc, block) != expected(st, inode, verity, 0, index)? {
            return Err(mismatch(st, inode, "block", index));
        }
    }
    Ok(())
}

/// The hash that block `below` has to have: one of those in a block of `level`, or the root.
fn expected(
    st: &Store,
    inode: &Inode,
    verity: &Verity,
    level: usize,
    below: u64,
) -> Result<Vec<u8>> {
    if level == verity.tree.levels() {
        return Ok(verity.desc.root.clone());
    }
    let (index, nth) = verity.tree.parent(below);
    let len = verity.desc.algorithm.digest_len();
    let block = tree_block(st, inode, verity, level, index)?;
    let hash = block.get(nth * len..(nth + 1) * len);
    Ok(hash.unwrap_or_default().to_vec())
}

/// A verified block of the tree.
fn tree_block(
    st: &Store,
    inode: &Inode,
    verity: &Verity,
    level: usize,
    index: u64,
) -> Result<Arc<[u8]>> {
    if let Some(block) = verity.verified(level, index) {
        return Ok(block);
    }
    let place = verity.tree.place(level, index).unwrap_or(u64::MAX);
    let at = place.saturating_mul(verity.desc.block_size() as u64).saturating_add(verity.start);
    let block: Arc<[u8]> = read(st, inode, at, verity.desc.block_size())?.into();
    if block_hash(&verity.desc, &block) != expected(st, inode, verity, level + 1, index)? {
        return Err(mismatch(st, inode, "block of the hash tree", place));
    }
    verity.keep(level, index, &block);
    Ok(block)
}

fn mismatch(st: &Store, inode: &Inode, what: &str, number: u64) -> Error {
    let ino = inode.ino;
    if st.remarks.tells(Remark::Verity) {
        tracing::error!(%ino, number, "{what} does not have the hash that it should have");
    }
    Error::Io(std::io::Error::other(format!(
        "inode {ino}: {what} {number} does not have the hash that it should have"
    )))
}

fn block_hash(desc: &Descriptor, block: &[u8]) -> Vec<u8> {
    let filled = desc.salt.len().next_multiple_of(desc.algorithm.input_len()) - desc.salt.len();
    let zeroes = [0; 128];
    hash(desc.algorithm, &[&desc.salt, zeroes.get(..filled).unwrap_or_default(), block])
}

fn hash(algorithm: Algorithm, parts: &[&[u8]]) -> Vec<u8> {
    fn all<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
        parts.iter().fold(D::new(), |hasher, part| hasher.chain_update(part)).finalize().to_vec()
    }
    match algorithm {
        Algorithm::Sha256 => all::<Sha256>(parts),
        Algorithm::Sha512 => all::<Sha512>(parts),
    }
}

/// The file's descriptor and tree, read when they are first asked for.
fn of<'a>(st: &Store, inode: &'a Inode) -> Result<&'a Verity> {
    inode.verity.get_or_try_make(|| load(st, inode))
}

fn load(st: &Store, inode: &Inode) -> Result<Verity> {
    let wrong = |field, found: u64| {
        Corrupt::new("verity file").field(field).found(found).at_inode(inode.ino)
    };
    let stat = inode.stat();
    if !stat.flags.contains(InodeFlags::EXTENTS) || map::is_inline(inode) {
        return Err(wrong("flags", stat.flags.bits().into()).into());
    }
    let size = stat.size;
    let last = extent::around(st, inode, map::END - 1)?.left.map_or(0, |(end, _)| end);
    let end = last << st.geo.block_bits;
    let start = size.checked_next_multiple_of(METADATA_ALIGN).filter(|start| *start < end);
    let start = start.ok_or_else(|| wrong("end of the map", end).expected(size))?;
    let word_at = end - verity::LENGTH_SIZE as u64;
    let word = read(st, inode, word_at, verity::LENGTH_SIZE)?;
    let len = verity::descriptor_len(word.try_into().unwrap_or_default())
        .map_err(|e| e.at_inode(inode.ino))?;
    let at = word_at.checked_sub(len.into()).map(|at| at >> st.geo.block_bits << st.geo.block_bits);
    let at = at
        .filter(|at| *at >= start)
        .ok_or_else(|| wrong("length of the descriptor", len.into()))?;
    let bytes = read(st, inode, at, len as usize)?;
    let desc =
        Descriptor::parse(&bytes, size, st.geo.block_bits).map_err(|e| e.at_inode(inode.ino))?;
    let tree = Tree::of(&desc).map_err(|e| e.at_inode(inode.ino))?;
    if tree.blocks() > (at - start) >> desc.block_bits {
        return Err(wrong("blocks of the hash tree", tree.blocks())
            .expected((at - start) >> desc.block_bits)
            .into());
    }
    Ok(Verity::new(desc, tree, start))
}

/// Reads bytes behind the end of the file. Holes read as zeroes, which match no hash.
fn read(st: &Store, inode: &Inode, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let end = offset.saturating_add(len as u64);
    map::runs(st, inode, map::blocks(st, offset, end), |run| {
        let start = map::byte(st, run.lblk).max(offset);
        let stop = map::byte(st, run.lblk + run.len).min(end);
        let part =
            bytes.get_mut((start - offset) as usize..(stop - offset) as usize).unwrap_or_default();
        if run.state == ExtentState::Written {
            st.dev.read_exact_at(
                part,
                map::at(st, run.pblk.0).saturating_add(start - map::byte(st, run.lblk)),
            )?;
        }
        Ok(true)
    })?;
    Ok(bytes)
}
