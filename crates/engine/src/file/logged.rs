//! File data that go through the journal: by mount option (`data=journal`) or the inode's flag.
//!
//! Such files have no pages; their blocks live in the block cache, as metadata does. Freed blocks
//! are revoked.

use super::read::copy;
use super::times::Note;
use super::write::{fill_gap, in_chunks};
use super::{deferred, map, space, times, writeback};
use crate::error::{Error, Result};
use crate::extent::{self, ExtentState, Run};
use crate::inode::{Inode, Step};
use crate::store::{CallerStore, Store};
use extant_blocks::Buffer;
use extant_format::inode::InodeFlags;
use extant_journal::Seal;
use std::ops::Range;
use std::sync::Arc;

/// Blocks changed in one handle.
const BLOCKS_PER_HANDLE: usize = 16;

/// Blocks revoked in one handle: the smallest log grants 256 credits.
const REVOKED_PER_HANDLE: u32 = 8192;

fn block(st: &Store, pblk: u64) -> Result<Arc<Buffer>> {
    st.cache.read::<Error>(pblk, |_| Ok(()))
}

/// Reads bytes that lie within the size.
pub(super) fn read(st: &Store, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let end = offset + buf.len() as u64;
    map::runs(st, inode, map::blocks(st, offset, end), |run| {
        for i in 0..run.len {
            let first = map::byte(st, run.lblk + i);
            let start = first.max(offset);
            let stop = map::byte(st, run.lblk + i + 1).min(end);
            let part = buf
                .get_mut((start - offset) as usize..(stop - offset) as usize)
                .unwrap_or_default();
            match run.state {
                ExtentState::Written => {
                    let buffer = block(st, run.pblk.0.saturating_add(i.into()))?;
                    copy(buffer.read().get((start - first) as usize..).unwrap_or_default(), part);
                }
                ExtentState::Hole | ExtentState::Unwritten => part.fill(0),
            }
        }
        Ok(true)
    })?;
    Ok(buf.len())
}

/// Writes within handles: blocks, map, size and times of each part in one. The caller holds `rw`
/// for writing.
pub(super) fn write(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &[u8],
    note: Note,
) -> Result<usize> {
    fill_gap(st, inode, offset)?;
    let most = st.block_size() * BLOCKS_PER_HANDLE;
    in_chunks(st, offset, data, most, |at, part| {
        space::before_others(st, |waits| {
            space::with_space(st, waits, || chunk(st, inode, at, part, note))
        })
    })
}

/// Credits of writing one block.
fn block_credits(st: &Store, inode: &Inode) -> u32 {
    1 + extent::credits(st, inode, 1)
}

/// Writes as much as there is space for; ENOSPC if that is nothing.
fn chunk(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &[u8],
    note: Note,
) -> Result<usize> {
    let _work = inode.pages.work.lock();
    let end = offset + data.len() as u64;
    let blocks = map::blocks(st, offset, end);
    // As many as a small log has room for.
    let room =
        st.journal.max_credits().saturating_sub(times::CREDITS) / block_credits(st, inode).max(1);
    let count = (blocks.end - blocks.start).min(room.max(1));
    let blocks = blocks.start..blocks.start + count;
    let mut tx = st.begin(times::CREDITS + count * block_credits(st, inode))?;
    tx.touch(inode)?;
    let mut end = end.min(map::byte(st, blocks.end));
    for lblk in blocks.clone() {
        let start = map::byte(st, lblk);
        let from = offset.saturating_sub(start) as usize;
        let part =
            data.get(start.max(offset).saturating_sub(offset) as usize..).unwrap_or_default();
        let part = part.get(..part.len().min(st.block_size() - from)).unwrap_or_default();
        let written = tx.step(|step| {
            let buffer = writable_block(st, step, inode, lblk)?;
            let mut bytes = step.write(&buffer, Seal::NONE)?;
            copy(part, bytes.get_mut(from..).unwrap_or_default());
            Ok(())
        });
        match written {
            // Blocks mapped before the error are in the transaction: their content is written, and
            // the size covers them. The next call meets the error.
            Err(_) if lblk > blocks.start && st.writable().is_ok() => {
                end = start;
                break;
            }
            other => other?,
        }
    }
    tx.step(|step| {
        times::grow_disk_size(st, step, inode, end)?;
        times::stamp(st, &mut *step.edit(inode)?, note);
        inode.note_datasync(step);
        inode.pages.grow_size(end);
        Ok((end - offset) as usize)
    })
}

/// The block of the file, mapped and written; zero if it was not.
fn writable_block(
    st: &Store,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    lblk: u32,
) -> Result<Arc<Buffer>> {
    let run = map::lookup(st, inode, lblk..lblk.saturating_add(1))?;
    let pblk = match run.state {
        ExtentState::Written => return block(st, run.pblk.0),
        ExtentState::Unwritten => {
            extent::convert(st, step, inode, lblk..lblk + 1, ExtentState::Written)?;
            run.pblk
        }
        ExtentState::Hole => {
            extent::allocate(st, step, inode, lblk..lblk + 1, ExtentState::Written)?.pblk
        }
    };
    let buffer = st.cache.fresh(pblk.0);
    drop(step.write(&buffer, Seal::NONE)?);
    Ok(buffer)
}

/// Zeroes bytes of one block.
pub(super) fn zero(st: &Store, inode: &Arc<Inode>, pblk: u64, within: Range<usize>) -> Result<()> {
    st.begin(times::CREDITS + 1)?.step(|step| zero_in(st, step, inode, pblk, within))
}

/// Zeroes bytes of one block within a handle. Costs a credit, and one for the inode.
pub(super) fn zero_in(
    st: &Store,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    pblk: u64,
    within: Range<usize>,
) -> Result<()> {
    // Before anything is changed: both can be read.
    let buffer = block(st, pblk)?;
    step.touch(inode)?;
    if let Some(bytes) = step.write(&buffer, Seal::NONE)?.get_mut(within) {
        bytes.fill(0);
    }
    inode.note_datasync(step);
    Ok(())
}

/// Sets or clears the flag that sends the file's data through the journal. The caller holds `rw`
/// for writing.
pub fn log_data(st: &Store, inode: &Arc<Inode>, on: bool) -> Result<()> {
    if inode.flags().contains(InodeFlags::JOURNAL_DATA) == on {
        return Ok(());
    }
    writeback::writeback(st, inode, 0, u64::MAX)?;
    let _work = inode.pages.work.lock();
    deferred::settle(st, inode)?;
    let was = inode.logs_data(st);
    inode.pages.change(&st.pages, |pages| pages.invalidate(0..map::END));
    if was && !on && !st.policy.log_data {
        forget_logged(st, inode)?;
    }
    st.begin(times::CREDITS)?.step(|step| {
        let mut body = step.edit(inode)?;
        body.flags.set(InodeFlags::JOURNAL_DATA, on);
        body.ctime = st.now();
        Ok(())
    })
}

/// Brings all blocks of the file home and revokes their copies in the log, so that writes past the
/// journal are not undone by a replay.
fn forget_logged(st: &Store, inode: &Arc<Inode>) -> Result<()> {
    st.journal.checkpoint_all()?;
    if map::is_inline(inode) {
        return Ok(());
    }
    let mut runs: Vec<Run> = Vec::new();
    let end = map::block_up(st, inode.pages.size());
    map::runs(st, inode, 0..end, |run| {
        if run.state == ExtentState::Written {
            runs.push(run);
        }
        Ok(true)
    })?;
    for run in runs {
        for first in (0..run.len).step_by(REVOKED_PER_HANDLE as usize) {
            let len = (run.len - first).min(REVOKED_PER_HANDLE);
            // A record's credits depend on the block size: one block of records holds at least a
            // hundred.
            let first = run.pblk.0.saturating_add(first.into());
            st.begin(2 + len / 100)?.step(|step| Ok(step.handle().revoke(first, len.into())?))?;
        }
    }
    Ok(())
}
