//! Access without the page cache, for callers that have a cache of their own.
//!
//! Writes within the size, or adjacent to its end, run in parallel: each locks the range of its
//! blocks exclusively and shares everything else.
//!
//! # Invariants
//! - Pages of the blocks are written back before the write, and dropped after the device has the
//!   new bytes. The generation of the pages keeps readers from caching bytes that they read before.

use super::map::Kind;
use super::plan::{self, After, MapAction, Piece, PlanRequest};
use super::times::Note;
use super::window::Growth;
use super::{deferred, inline, limits, logged, map, read, space, times, write, writeback};
use crate::error::{Error, Result};
use crate::extent::ExtentState;
use crate::inode::Inode;
use crate::store::{CallerStore, Store};
use extant_blocks::Plug;
use extant_format::features::Incompat;
use std::ops::Range;
use std::sync::Arc;

/// Most bytes planned at once.
const CHUNK: usize = 8 << 20;

/// The content of the unwritten rest of a new block.
static ZEROES: [u8; 4096] = [0; 4096];

/// Reads past the page cache; dirty pages of the range are written back first. Takes `rw` for
/// reading.
pub fn read_direct(st: &Store, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let _lock = inode.read_lock()?;
    let len = read::readable(st, inode, offset, buf.len());
    let Some(buf) = buf.get_mut(..len).filter(|b| !b.is_empty()) else { return Ok(0) };
    if map::kind(st, inode) != Kind::Blocks {
        return read::read(st, inode, offset, buf);
    }
    let end = offset + len as u64;
    // Cached content that is newer than the device reaches it first.
    if inode.pages.busy() {
        writeback::writeback(st, inode, offset, end)?;
    }
    map::runs(st, inode, map::blocks(st, offset, end), |run| {
        let start = map::byte(st, run.lblk).max(offset);
        let stop = map::byte(st, run.lblk + run.len).min(end);
        let part =
            buf.get_mut((start - offset) as usize..(stop - offset) as usize).unwrap_or_default();
        match run.state {
            ExtentState::Written => st.dev.read_exact_at(
                part,
                map::at(st, run.pblk.0).saturating_add(start - map::byte(st, run.lblk)),
            )?,
            ExtentState::Hole | ExtentState::Unwritten => part.fill(0),
        }
        Ok(true)
    })?;
    Ok(len)
}

/// Writes past the page cache: claims, writes, maps. When it returns the data are on the device
/// (not flushed), and the map and the size are in the running transaction. Takes `rw`, for reading
/// where others may write too. Returns bytes written, fewer than asked for if space ends; ENOSPC,
/// EFBIG if none.
pub fn write_direct(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &[u8],
    note: Note,
) -> Result<usize> {
    st.writable()?;
    let len = limits::writable_len(st, inode, offset, data.len())?;
    let Some(data) = data.get(..len).filter(|d| !d.is_empty()) else { return Ok(0) };
    // Shared writers need no more than blocks of their own, which the range lock orders. Changes of
    // the file's form, and of its size over a gap, exclude them.
    let shared = inode.read_lock()?;
    if shares(st, inode, offset) {
        return in_blocks(st, inode, offset, data, note);
    }
    drop(shared);
    let _lock = inode.write_lock()?;
    if let Some(done) = inline::write(st, inode, offset, data, note)? {
        return Ok(done);
    }
    if inode.logs_data(st) {
        return logged::write(st, inode, offset, data, note);
    }
    write::fill_gap(st, inode, offset)?;
    in_blocks(st, inode, offset, data, note)
}

/// Whether a write at `offset` needs no more than blocks of its own.
fn shares(st: &Store, inode: &Inode, offset: u64) -> bool {
    let size = inode.pages.size();
    let may_start_inline = size == 0 && st.geo.incompat(Incompat::INLINE_DATA);
    offset <= size && !may_start_inline && map::kind(st, inode) == Kind::Blocks
}

fn in_blocks(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &[u8],
    note: Note,
) -> Result<usize> {
    write::in_chunks(st, offset, data, CHUNK, |at, part| chunk(st, inode, at, part, note))
}

fn chunk(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &[u8],
    note: Note,
) -> Result<usize> {
    let end = offset + data.len() as u64;
    let blocks = map::blocks(st, offset, end);
    let guarded = map::clusters(st, blocks.clone());
    let _range = inode.pages.ranges.lock(guarded.clone());
    if inode.pages.busy() {
        writeback::writeback(st, inode, map::byte(st, guarded.start), map::byte(st, guarded.end))?;
    }
    // No cut comes before the end of the write: that takes `rw` for writing.
    deferred::settle(st, inode)?;
    let size = inode.pages.size();
    let growth = Growth { size: size.max(end), grows: end > size };
    let pieces = space::before_others(st, |waits| {
        let mut work = inode.pages.work.lock();
        plan::make(
            st,
            inode,
            &mut work,
            PlanRequest {
                blocks: blocks.clone(),
                reserved: &mut 0,
                growth,
                pack: None,
                waits,
                rights: Some(st.rights),
            },
        )
    })?;
    let covered = pieces.last().map_or(offset, |p| map::byte(st, p.end())).min(end);
    let data = data.get(..(covered - offset) as usize).unwrap_or(data);
    // Quota reserved for blocks that are not written is not charged. Other writers keep theirs.
    let promised = pieces.iter().map(Piece::claimed).sum();
    let release_reservation = |_: &Error| st.quota.release_reservation(inode, promised);
    // Also after a failure: a part may be written.
    let outdate = || inode.pages.change(&st.pages, |pages| pages.invalidate(blocks.clone()));
    write_data(st, inode, &pieces, offset, data)
        .inspect_err(release_reservation)
        .inspect_err(|_| outdate())?;
    let stamp = times::due(st, inode, note).then_some(note);
    let mut after = After::new(covered, stamp);
    let applied = {
        let _work = inode.pages.work.lock();
        plan::apply(st, inode, &mut pieces.into(), &mut after).inspect_err(release_reservation)
    };
    let done = match applied {
        Ok(()) => covered,
        // Mapped blocks are written, as far as any change can become durable.
        Err(e) => Some(map::byte(st, after.reached).min(covered))
            .filter(|end| *end > offset && st.writable().is_ok())
            .ok_or(e)
            .inspect_err(|_| outdate())?,
    };
    space::renew_share(st, inode);
    inode.pages.grow_size(done);
    outdate();
    Ok((done - offset) as usize)
}

/// Writes the bytes to their places; of blocks that were not written before, the rest becomes zero.
fn write_data(st: &Store, inode: &Inode, pieces: &[Piece], offset: u64, data: &[u8]) -> Result<()> {
    let end = offset + data.len() as u64;
    let mut plug = Plug::new(&*st.dev);
    for piece in pieces {
        let bytes = map::byte(st, piece.lblk)..map::byte(st, piece.end());
        let at = map::at(st, piece.pblk.0);
        let own = bytes.start.max(offset)..bytes.end.min(end);
        if !matches!(piece.how, MapAction::InPlace) {
            add_zeroes(&mut plug, at, &bytes, bytes.start..own.start);
            add_zeroes(&mut plug, at, &bytes, own.end..bytes.end);
        }
        let part = data
            .get((own.start - offset) as usize..(own.end - offset) as usize)
            .unwrap_or_default();
        plug.add(at.saturating_add(own.start - bytes.start), part);
    }
    let written = plug.finish();
    // Also after a failure.
    inode.pages.note_written(st.journal.note_data_write());
    st.dirty_files.plugs.add(&written?, 1);
    Ok(())
}

fn add_zeroes(plug: &mut Plug<'_>, at: u64, piece: &Range<u64>, part: Range<u64>) {
    let at = at.saturating_add(part.start.saturating_sub(piece.start));
    let len = part.end.saturating_sub(part.start) as usize;
    match ZEROES.get(..len) {
        Some(zeroes) => plug.add(at, zeroes),
        None => plug.add(at, vec![0; len]),
    }
}
