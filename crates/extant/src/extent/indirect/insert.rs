//! Maps a run.

use super::{PointersMut, array};
use crate::error::{Errno, Result};
use crate::extent::tree::At;
use extant_format::error::Corrupt;
use extant_format::indirect::{Path, pointer, put_pointer};

/// Maps `len` blocks from `lblk` on to `pblk` and following. Returns how many were mapped, and why not all if so.
pub(in crate::extent) fn insert(nodes: &mut impl PointersMut, lblk: u32, pblk: u64, len: u32) -> (u32, Result<()>) {
    let mut done = 0;
    while done < len {
        match insert_part(nodes, lblk.saturating_add(done), pblk + u64::from(done), len - done) {
            Ok(mapped) => done += mapped,
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}

/// Maps as many blocks as lie in one array of pointers.
fn insert_part(nodes: &mut impl PointersMut, lblk: u32, pblk: u64, len: u32) -> Result<u32> {
    let path = Path::new(lblk, nodes.block_size()).ok_or(Errno::FBig)?;
    let (first, end) = array(nodes, &path);
    let len = len.min((end - first) as u32);
    let pblk = u32::try_from(pblk).ok().filter(|p| p.checked_add(len).is_some()).ok_or(Errno::FBig)?;
    let at = make_way(nodes, &path)?;
    let free = nodes.view(at, |bytes| (first..first + len as usize).all(|n| pointer(bytes, n) == 0))?;
    if !free {
        return Err(Corrupt::new("block map").field("block mapped twice").found(lblk).into());
    }
    nodes.change(at, |bytes| (0..len).for_each(|n| put_pointer(bytes, first + n as usize, pblk + n)))?;
    Ok(len)
}

/// The last array on the way; pointer blocks that are missing are made.
fn make_way(nodes: &mut impl PointersMut, path: &Path) -> Result<At> {
    let mut at = At::Root;
    for (level, &offset) in path.offsets()[..path.levels()].iter().enumerate() {
        let mut child = nodes.view(at, |bytes| pointer(bytes, offset as usize))?;
        if child == 0 {
            nodes.prepare(path.levels() - level)?;
            child = nodes.create()?;
            nodes.change(at, |bytes| put_pointer(bytes, offset as usize, child))?;
        }
        at = At::Block(child.into());
    }
    Ok(at)
}
