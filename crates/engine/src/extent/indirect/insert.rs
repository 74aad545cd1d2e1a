//! Maps a run.

use super::{PointersMut, array};
use crate::error::{Errno, Result};
use crate::extent::tree::At;
use extant_format::error::Corrupt;
use extant_format::indirect::{Path, pointer, put_pointer};

/// Obtains everything that [`insert`] needs for the first of `len` blocks from `lblk` on, which are
/// to be mapped to `pblk` and following. Changes nothing on disk. Returns the number of blocks that
/// one call maps: those with pointers in one array.
///
/// # Errors
/// EFBIG beyond the last block of a map or of a pointer, `Corrupt` if a block is mapped, ENOSPC,
/// `Io`.
pub(in crate::extent) fn prepare_insert(
    nodes: &mut impl PointersMut,
    lblk: u32,
    pblk: u64,
    len: u32,
) -> Result<u32> {
    let path = Path::new(lblk, nodes.block_size()).ok_or(Errno::FBig)?;
    let (first, end) = array(nodes, &path);
    let len = len.min((end - first) as u32);
    if u32::try_from(pblk).ok().and_then(|pblk| pblk.checked_add(len)).is_none() {
        return Err(Errno::FBig.into());
    }
    let (at, level) = existing(nodes, &path)?;
    if level == path.levels()
        && !nodes.view(at, |bytes| (first..first + len as usize).all(|n| pointer(bytes, n) == 0))?
    {
        return Err(Corrupt::new("block map").field("block mapped twice").found(lblk).into());
    }
    nodes.hold(at)?;
    nodes.prepare(path.levels() - level)?;
    Ok(len)
}

/// Maps `len` blocks from `lblk` on to `pblk` and following, in one step that was
/// [prepared](prepare_insert).
pub(in crate::extent) fn insert(
    nodes: &mut impl PointersMut,
    lblk: u32,
    pblk: u64,
    len: u32,
) -> Result<()> {
    let path = Path::new(lblk, nodes.block_size()).ok_or(Errno::FBig)?;
    let (first, _) = array(nodes, &path);
    let pblk = u32::try_from(pblk).map_err(|_| Errno::FBig)?;
    let (at, level) = existing(nodes, &path)?;
    nodes.step(|nodes| {
        let at = make_way(nodes, &path, at, level)?;
        nodes.change(at, |bytes| {
            (0..len).for_each(|n| put_pointer(bytes, first + n as usize, pblk.saturating_add(n)))
        })
    })
}

/// Returns the last existing array of a path, and its level.
fn existing(nodes: &impl PointersMut, path: &Path) -> Result<(At, usize)> {
    let mut at = At::Root;
    for (level, &offset) in path.offsets()[..path.levels()].iter().enumerate() {
        match nodes.view(at, |bytes| pointer(bytes, offset as usize))? {
            0 => return Ok((at, level)),
            child => at = At::Block(child.into()),
        }
    }
    Ok((at, path.levels()))
}

/// Creates the missing pointer blocks of a path below an array at `level`. Returns the last array
/// of the path.
fn make_way(nodes: &mut impl PointersMut, path: &Path, from: At, level: usize) -> Result<At> {
    let mut at = from;
    for &offset in &path.offsets()[level..path.levels()] {
        let child = nodes.create()?;
        nodes.change(at, |bytes| put_pointer(bytes, offset as usize, child))?;
        at = At::Block(child.into());
    }
    Ok(at)
}
