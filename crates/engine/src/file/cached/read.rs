//! Reading through the page cache.

use crate::error::Result;
use crate::file::map::Kind;
use crate::file::{fill, inline, logged, map};
use crate::inode::Inode;
use crate::store::Store;
use std::sync::Arc;

/// Reads through the page cache; returns bytes read (short at the end of the file). The caller
/// holds `rw`.
pub fn read(st: &Store, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let len = readable(st, inode, offset, buf.len());
    let Some(buf) = buf.get_mut(..len).filter(|b| !b.is_empty()) else { return Ok(0) };
    match map::kind(st, inode) {
        Kind::Inline => return inline::read(st, inode, offset, buf),
        Kind::Logged => return logged::read(st, inode, offset, buf),
        Kind::Blocks | Kind::Verified => {}
    }
    let end = map::block_up(st, offset + len as u64);
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        done += cached(st, inode, at, buf.get_mut(done..).unwrap_or_default());
        if done < len {
            let at = offset + done as u64;
            let stretch = fill::ahead(st, inode, map::block_of(st, at)..end)?;
            let from = (at - map::byte(st, stretch.lblk)) as usize;
            done += copy(
                stretch.bytes.get(from..).unwrap_or_default(),
                buf.get_mut(done..).unwrap_or_default(),
            );
        }
    }
    Ok(len)
}

/// How many of `len` bytes at `offset` the file has.
pub(in crate::file) fn readable(st: &Store, inode: &Inode, offset: u64, len: usize) -> usize {
    let rest = map::visible(st, inode).saturating_sub(offset);
    usize::try_from(rest).map_or(len, |rest| rest.min(len))
}

/// Copies from pages up to the first byte that is not cached.
fn cached(st: &Store, inode: &Inode, offset: u64, buf: &mut [u8]) -> usize {
    let pages = inode.pages.read();
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = offset + done as u64;
        let lblk = map::block_of(st, at);
        let Some(page) = pages.get(lblk) else { break };
        let from = (at - map::byte(st, lblk)) as usize;
        done += page.copy_to(from, rest);
    }
    done
}

/// Copies as much as both have.
pub(in crate::file) fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let len = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..len), to.get_mut(..len)) {
        to.copy_from_slice(from);
    }
    len
}
