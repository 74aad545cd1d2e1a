//! fallocate(2): allocating, punching, zeroing; taking out and pushing apart are in `shift`.

use crate::error::{Errno, Result};
use crate::extent::{self, ExtentState};
use crate::file::times::Note;
use crate::file::{
    inline, limits, map, shift, space, tail, times, truncate, window, writeback, zero,
};
use crate::inode::{Inode, Work};
use crate::store::{CallerStore, Store};
use extant_sync::MutexGuard;
use std::ops::Range;
use std::sync::Arc;

/// The modes of fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Falloc {
    /// Allocate; grow the size.
    Allocate,
    /// Allocate; keep the size.
    KeepSize,
    /// Make a hole.
    Punch,
    /// Zero; grow the size.
    Zero,
    /// Zero; keep the size.
    ZeroKeepSize,
    /// Take out.
    Collapse,
    /// Push apart.
    Insert,
}

impl Falloc {
    /// All that there is.
    pub const ALL: &'static [Falloc] = &[
        Falloc::Allocate,
        Falloc::KeepSize,
        Falloc::Punch,
        Falloc::Zero,
        Falloc::ZeroKeepSize,
        Falloc::Collapse,
        Falloc::Insert,
    ];
}

/// fallocate(2). The caller holds `rw` for writing. EOPNOTSUPP where the map knows no unwritten
/// blocks, but for punching. EINVAL for an empty range, or one that is not a multiple of the
/// cluster where that is needed.
pub fn fallocate(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    how: Falloc,
    offset: u64,
    len: u64,
) -> Result<()> {
    st.writable()?;
    let end = offset.checked_add(len).filter(|_| len > 0).ok_or(Errno::Inval)?;
    if how != Falloc::Punch && how != Falloc::Collapse && end > limits::max_size(st, inode) {
        return Err(Errno::FBig.into());
    }
    inline::convert(st, inode)?;
    if how != Falloc::Punch && !extent::has_unwritten(inode) {
        return Err(Errno::OpNotSupp.into());
    }
    let done = match how {
        Falloc::Allocate => allocate(st, inode, offset, end, true),
        Falloc::KeepSize => allocate(st, inode, offset, end, false),
        Falloc::Punch => punch(st, inode, offset, end),
        Falloc::Zero => zero_range(st, inode, offset, end, true),
        Falloc::ZeroKeepSize => zero_range(st, inode, offset, end, false),
        Falloc::Collapse => shift::collapse(st, inode, offset, len),
        Falloc::Insert => shift::insert(st, inode, offset, len),
    };
    space::renew_share(st, inode);
    done
}

fn allocate(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    offset: u64,
    end: u64,
    grow: bool,
) -> Result<()> {
    writeback::writeback(st, inode, offset, end)?;
    let _work = lock_work(st, inode)?;
    prepare_growth(st, inode, end, grow)?;
    fill_holes(st, inode, map::blocks(st, offset, end), grow.then_some(end))?;
    finish(st, inode, end, grow)
}

/// Locks `work` for a change of the map: discards the file's preallocations, and writes the page in
/// which the size on disk ends.
fn lock_work<'a>(st: &Store, inode: &'a Arc<Inode>) -> Result<MutexGuard<'a, Work>> {
    let mut work = inode.pages.work.lock();
    window::discard(&mut work);
    tail::settle(st, inode, &mut work)?;
    Ok(work)
}

/// Before the size grows over it, the tail of the last block becomes zero.
fn prepare_growth(st: &Store, inode: &Arc<Inode>, end: u64, grow: bool) -> Result<()> {
    let size = inode.pages.size();
    if grow && end > size { zero::within_block(st, inode, times::tail(st, size)) } else { Ok(()) }
}

/// Notes the change, and the new size. Waiting pages that would have raised the size on disk may be
/// gone, so it is raised here.
fn finish(st: &Store, inode: &Arc<Inode>, end: u64, grow: bool) -> Result<()> {
    st.begin(times::CREDITS)?.step(|step| {
        if grow {
            inode.pages.grow_size(end);
        }
        times::grow_disk_size(st, step, inode, inode.pages.size())?;
        times::stamp(st, &mut *step.edit(inode)?, Note::TIMES);
        inode.note_datasync(step);
        Ok(())
    })
}

/// Allocates unwritten blocks in the holes of a range; where the file grows to `size`, so does its
/// size on disk.
fn fill_holes(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    blocks: Range<u32>,
    size: Option<u64>,
) -> Result<()> {
    let (mut lblk, most) = (blocks.start, extent::most_at_once(st, inode));
    while lblk < blocks.end {
        let run = map::lookup(st, inode, lblk..blocks.end)?;
        let len = match run.state {
            ExtentState::Hole => space::with_space(st, space::Waits::MAX, || {
                fill(st, inode, lblk, run.len.min(most), size)
            })?,
            ExtentState::Written | ExtentState::Unwritten => run.len,
        };
        lblk = lblk.saturating_add(len.max(1));
    }
    Ok(())
}

fn fill(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    lblk: u32,
    len: u32,
    size: Option<u64>,
) -> Result<u32> {
    st.begin(times::CREDITS + extent::credits(st, inode, len))?.step(|step| {
        let run = extent::allocate(st, step, inode, lblk..lblk + len, ExtentState::Unwritten)?;
        if let Some(size) = size {
            let size = map::byte(st, lblk + run.len).min(size);
            times::grow_disk_size(st, step, inode, size)?;
            inode.pages.grow_size(size);
        }
        Ok(run.len)
    })
}

/// Zeroes the parts of a range's first and last block that it does not cover whole.
fn zero_edges(st: &Store, inode: &Arc<Inode>, offset: u64, end: u64) -> Result<()> {
    let whole = map::whole_blocks(st, offset, end);
    let (first, last) =
        (map::byte(st, map::block_up(st, offset)), map::byte(st, map::block_of(st, end)));
    if whole.is_empty() && first > last {
        return zero::within_block(st, inode, offset..end);
    }
    zero::within_block(st, inode, offset..first)?;
    zero::within_block(st, inode, last..end)
}

/// Drops the pages of blocks whose content is removed.
pub(in crate::file) fn drop_pages(
    st: &Store,
    inode: &Arc<Inode>,
    work: &mut Work,
    blocks: Range<u32>,
) -> Result<()> {
    write_neighbours(st, inode, work, &blocks)?;
    forget_pages(st, inode, blocks);
    Ok(())
}

/// On bigalloc the pages beside blocks that go, in clusters partly covered, may rely on a cluster
/// that goes: they are written first.
fn write_neighbours(
    st: &Store,
    inode: &Arc<Inode>,
    work: &mut Work,
    blocks: &Range<u32>,
) -> Result<()> {
    if st.geo.cluster_bits > 0 && !blocks.is_empty() {
        let whole = map::clusters(st, blocks.clone());
        writeback::within(st, inode, work, whole.start..blocks.start)?;
        writeback::within(st, inode, work, blocks.end..whole.end)?;
    }
    Ok(())
}

fn forget_pages(st: &Store, inode: &Arc<Inode>, blocks: Range<u32>) {
    let removed = inode.pages.change(&st.pages, |pages| pages.remove(blocks, st.geo.cluster_bits));
    space::unreserve(st, inode, removed.reserved);
    space::release_share(st, inode);
}

fn punch(st: &Store, inode: &Arc<Inode>, offset: u64, end: u64) -> Result<()> {
    let size = inode.pages.size();
    // The block in which the file ends is punched whole if all of its content is.
    let end = if end >= size { end.max(times::tail(st, size).end) } else { end };
    let mut work = lock_work(st, inode)?;
    zero_edges(st, inode, offset, end)?;
    let whole = map::whole_blocks(st, offset, end);
    write_neighbours(st, inode, &mut work, &whole)?;
    punch_blocks(st, inode, whole)?;
    finish(st, inode, 0, false)?;
    drop(work);
    st.dirty_files.note_clean(inode);
    Ok(())
}

/// Unmaps whole blocks and drops their pages, from the last to the first. If a step fails, for
/// example for lack of space, the blocks before it keep their content.
fn punch_blocks(st: &Store, inode: &Arc<Inode>, blocks: Range<u32>) -> Result<()> {
    let (start, mut end) = (u64::from(blocks.start), u64::from(blocks.end));
    while end > start {
        let next = truncate::begin_removal(st, inode)?
            .step(|step| extent::remove(st, step, inode, start..end))?;
        forget_pages(st, inode, next.max(start) as u32..end as u32);
        end = next;
    }
    Ok(())
}

fn zero_range(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    offset: u64,
    end: u64,
    grow: bool,
) -> Result<()> {
    writeback::writeback(st, inode, offset, end)?;
    let mut work = lock_work(st, inode)?;
    prepare_growth(st, inode, end, grow)?;
    zero_edges(st, inode, offset, end)?;
    let whole = map::whole_blocks(st, offset, end);
    drop_pages(st, inode, &mut work, whole.clone())?;
    if inode.logs_data(st) {
        // Logged copies must be revoked: a recovery would write them over data that later reach the
        // blocks without the journal.
        let mut tx = truncate::begin_removal(st, inode)?;
        truncate::remove(st, &mut tx, inode, whole.start, whole.end.into())?;
    } else {
        unwrite(st, inode, whole)?;
    }
    fill_holes(st, inode, map::blocks(st, offset, end), grow.then_some(end))?;
    finish(st, inode, end, grow)
}

/// Written blocks of a range become unwritten.
fn unwrite(st: &Store, inode: &Arc<Inode>, blocks: Range<u32>) -> Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    let credits = times::CREDITS + 2 * extent::credits(st, inode, extent::most_at_once(st, inode));
    let mut tx = st.begin(credits)?;
    let mut at = blocks.start;
    loop {
        at = tx.step(|step| {
            extent::convert(st, step, inode, at..blocks.end, ExtentState::Unwritten)
        })?;
        if at >= blocks.end {
            return Ok(());
        }
        tx.restart(credits)?;
    }
}
