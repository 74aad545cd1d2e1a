//! Files whose content is in the inode: the first 60 bytes in the place of the map, the rest in an
//! extended attribute.
//!
//! # Invariants
//! - Every change of inline content is within one handle, so each commit has the old or the new
//!   content.
//! - Content that outgrows the inode is written to a claimed block first. The handle that removes
//!   it from the inode maps that block.

use super::read::copy;
use super::times::Note;
use super::{map, space, times};
use crate::error::Result;
use crate::extent::{self, FirstBlock};
use crate::inode::{Inode, Step};
use crate::store::{CallerStore, Store};
use crate::xattr;
use extant_format::error::Corrupt;
use extant_format::features::Incompat;
use extant_format::inode::{I_BLOCK_SIZE, InodeFlags};
use extant_format::types::{BlockNr, FileType};
use extant_journal::Seal;
use std::sync::Arc;

/// Whether `size` bytes fit in the inode, and the file system has the feature.
pub(super) fn fits(st: &Store, inode: &Inode, size: u64) -> bool {
    let first = I_BLOCK_SIZE as u64;
    st.geo.incompat(Incompat::INLINE_DATA) && size <= first + xattr::inline_room(st, inode) as u64
}

/// The whole content.
pub(super) fn content(st: &Store, inode: &Inode) -> Result<Vec<u8>> {
    let rest = xattr::inline_get(st, inode)?;
    let (mut bytes, size) = {
        let body = inode.body();
        (body.i_block.to_vec(), body.size)
    };
    bytes.extend_from_slice(&rest);
    let len = usize::try_from(size).ok().filter(|len| *len <= bytes.len());
    let len = len.ok_or_else(|| {
        Corrupt::new("inline data")
            .field("size")
            .at_inode(inode.ino)
            .found(size)
            .expected(bytes.len() as u64)
    })?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Makes `bytes` the content within `step`. ENOSPC, with nothing changed, if the attribute does not
/// fit.
pub(super) fn store(
    st: &Store,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    bytes: &[u8],
) -> Result<()> {
    let (first, rest) = bytes.split_at(bytes.len().min(I_BLOCK_SIZE));
    xattr::inline_set(st, step, inode, Some(rest))?;
    let mut body = step.edit(inode)?;
    body.flags.remove(InodeFlags::EXTENTS);
    body.flags.insert(InodeFlags::INLINE_DATA);
    body.i_block.fill(0);
    copy(first, &mut body.i_block);
    body.size = bytes.len() as u64;
    drop(body);
    inode.note_datasync(step);
    Ok(())
}

fn credits(st: &Store) -> u32 {
    times::CREDITS + xattr::credits(st, st.geo.inode_size.into())
}

/// Reads bytes that lie within the size.
pub(super) fn read(st: &Store, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let bytes = content(st, inode)?;
    let from = usize::try_from(offset).ok().and_then(|from| bytes.get(from..)).unwrap_or_default();
    Ok(copy(from, buf))
}

/// Writes into the inode if the file is, or may become, inline and the result fits. `None`: the
/// file has a map of blocks now, and the caller goes on. The caller holds `rw` for writing.
pub(super) fn write(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &[u8],
    note: Note,
) -> Result<Option<usize>> {
    let inline = map::is_inline(inode);
    if !inline && !may_start(st, inode) {
        return Ok(None);
    }
    let end = offset.saturating_add(data.len() as u64);
    if fits(st, inode, end) && put(st, inode, offset, data, note)? {
        return Ok(Some(data.len()));
    }
    if inline {
        convert(st, inode)?;
    }
    Ok(None)
}

/// An empty file without blocks may start inline.
fn may_start(st: &Store, inode: &Inode) -> bool {
    if !st.geo.incompat(Incompat::INLINE_DATA)
        || inode.ftype != FileType::Regular
        || inode.pages.size() > 0
        || inode.pages.busy()
    {
        return false;
    }
    let body = inode.body();
    let acl = if body.file_acl == 0 {
        0
    } else {
        u64::from(st.geo.cluster_ratio()) * u64::from(st.geo.sectors_per_block())
    };
    body.size == 0 && body.blocks <= acl && !body.flags.contains(InodeFlags::EA_INODE)
}

/// Puts bytes into the inode; false if the attribute does not fit after all.
fn put(st: &Store, inode: &Arc<Inode>, offset: u64, data: &[u8], note: Note) -> Result<bool> {
    let mut bytes = if map::is_inline(inode) { content(st, inode)? } else { Vec::new() };
    let (from, end) = (offset as usize, offset as usize + data.len());
    bytes.resize(bytes.len().max(end), 0);
    copy(data, bytes.get_mut(from..).unwrap_or_default());
    let stored = st.begin(credits(st))?.step(|step| {
        store(st, step, inode, &bytes)?;
        times::stamp(st, &mut *step.edit(inode)?, note);
        inode.pages.set_size(bytes.len() as u64);
        Ok(true)
    });
    match stored {
        Err(e) if space::no_space(&e) => Ok(false),
        stored => stored,
    }
}

/// Changes the size of an inline file; false if it has a map of blocks now, or had one.
pub(super) fn truncate(st: &CallerStore<'_>, inode: &Arc<Inode>, size: u64) -> Result<bool> {
    if !map::is_inline(inode) {
        return Ok(false);
    }
    if !fits(st, inode, size) {
        convert(st, inode)?;
        return Ok(false);
    }
    let mut bytes = content(st, inode)?;
    bytes.resize(size as usize, 0);
    st.begin(credits(st))?.step(|step| {
        store(st, step, inode, &bytes)?;
        times::stamp(st, &mut *step.edit(inode)?, Note::TIMES);
        inode.pages.set_size(size);
        Ok(true)
    })
}

/// Moves the content out of the inode into a block. The caller holds `rw` for writing.
pub(super) fn convert(st: &CallerStore<'_>, inode: &Arc<Inode>) -> Result<()> {
    if !map::is_inline(inode) {
        return Ok(());
    }
    let mut bytes = content(st, inode)?;
    let empty = bytes.is_empty();
    bytes.resize(st.block_size().max(bytes.len()), 0);
    let _work = inode.pages.work.lock();
    let converted = match (empty, inode.logs_data(st)) {
        (true, _) => st.begin(credits(st))?.step(|step| take_out(st, step, inode)),
        (false, true) => convert_logged(st, inode, &bytes),
        (false, false) => convert_ordered(st, inode, &bytes),
    };
    converted.inspect_err(|_| st.quota.release_reservation(inode, u64::MAX))
}

/// Removes the content from the inode and gives it an empty map.
fn take_out(st: &Store, step: &mut Step<'_>, inode: &Arc<Inode>) -> Result<()> {
    xattr::inline_set(st, step, inode, None)?;
    let mut body = step.edit(inode)?;
    body.flags.remove(InodeFlags::INLINE_DATA);
    body.i_block.fill(0);
    drop(body);
    extent::init(st, step, inode)?;
    inode.note_datasync(step);
    Ok(())
}

fn convert_ordered(st: &CallerStore<'_>, inode: &Arc<Inode>, block: &[u8]) -> Result<()> {
    let first = FirstBlock::new(st, inode, space::claim_first(st, inode)?)?;
    st.dev.write_all_at(block, map::at(st, first.start().0))?;
    inode.pages.note_written(st.journal.note_data_write());
    let mut tx = st.begin(credits(st) + extent::credits(st, inode, 1))?;
    tx.touch(inode)?;
    tx.step(|step| move_out(st, step, inode, first).map(drop))
}

/// Maps a claimed block in place of the content.
fn move_out(
    st: &Store,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    first: FirstBlock,
) -> Result<BlockNr> {
    take_out(st, step, inode)?;
    extent::map_first(st, step, inode, first)
}

fn convert_logged(st: &CallerStore<'_>, inode: &Arc<Inode>, block: &[u8]) -> Result<()> {
    let first = FirstBlock::new(st, inode, space::claim_first(st, inode)?)?;
    let mut tx = st.begin(credits(st) + 1 + extent::credits(st, inode, 1))?;
    tx.touch(inode)?;
    tx.step(|step| {
        let place = move_out(st, step, inode, first)?;
        let buf = st.cache.fresh(place.0);
        let mut bytes = step.write(&buf, Seal::NONE)?;
        copy(block, &mut bytes);
        Ok(())
    })
}
