//! Maps a run.

use super::{PointersMut, array};
use crate::error::{Errno, Result};
use crate::extent::tree::At;
use extant_format::error::Corrupt;
use extant_format::indirect::{Path, pointer, put_pointer};

/// Makes sure that [`insert`] at `lblk` will not lack space for the pointer blocks of the first
/// array. Changes nothing on disk.
pub(in crate::extent) fn prepare_insert(nodes: &mut impl PointersMut, lblk: u32) -> Result<()> {
    let path = Path::new(lblk, nodes.block_size()).ok_or(Errno::FBig)?;
    let (_, level) = existing(nodes, &path)?;
    nodes.prepare(path.levels() - level)
}

/// Maps `len` blocks from `lblk` on to `pblk` and following. Returns how many were mapped, and why
/// not all if so.
pub(in crate::extent) fn insert(
    nodes: &mut impl PointersMut,
    lblk: u32,
    pblk: u64,
    len: u32,
) -> (u32, Result<()>) {
    let mut done = 0;
    while done < len {
        match insert_part(nodes, lblk.saturating_add(done), pblk + u64::from(done), len - done) {
            Ok(mapped) => done += mapped,
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}

/// Maps as many blocks as lie in one array of pointers, in one step: after an error nothing has
/// changed.
fn insert_part(nodes: &mut impl PointersMut, lblk: u32, pblk: u64, len: u32) -> Result<u32> {
    let path = Path::new(lblk, nodes.block_size()).ok_or(Errno::FBig)?;
    let (first, end) = array(nodes, &path);
    let len = len.min((end - first) as u32);
    let pblk =
        u32::try_from(pblk).ok().filter(|p| p.checked_add(len).is_some()).ok_or(Errno::FBig)?;
    let (at, level) = existing(nodes, &path)?;
    if level == path.levels()
        && !nodes.view(at, |bytes| (first..first + len as usize).all(|n| pointer(bytes, n) == 0))?
    {
        return Err(Corrupt::new("block map").field("block mapped twice").found(lblk).into());
    }
    nodes.hold(at)?;
    nodes.prepare(path.levels() - level)?;
    nodes.step(|nodes| {
        let at = make_way(nodes, &path, at, level)?;
        nodes.change(at, |bytes| {
            (0..len).for_each(|n| put_pointer(bytes, first + n as usize, pblk + n))
        })
    })?;
    Ok(len)
}

/// The last array on the way that exists, and its level.
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

/// Makes the pointer blocks that are missing below an array at `level`. Gives the last array on the
/// way.
fn make_way(nodes: &mut impl PointersMut, path: &Path, from: At, level: usize) -> Result<At> {
    let mut at = from;
    for &offset in &path.offsets()[level..path.levels()] {
        let child = nodes.create()?;
        nodes.change(at, |bytes| put_pointer(bytes, offset as usize, child))?;
        at = At::Block(child.into());
    }
    Ok(at)
}
