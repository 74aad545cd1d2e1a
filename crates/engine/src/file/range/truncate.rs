//! Cutting and extending files; freeing the blocks of inodes.
//!
//! # Invariants
//! - The size on disk shrinks before blocks are freed, in the same transaction or an earlier one.
//!   If freeing takes several transactions, an orphan record exists from the first to the last.
//! - The last block behind the end of the file is zero in memory once the operation returns. On the
//!   device, a cut zeroes it before the smaller size is durable, since other programs may extend
//!   the file later; see `tail`.

use crate::error::{Errno, Result};
use crate::extent;
use crate::file::zero::{self, CutTail};
use crate::file::{deferred, inline, limits, map, space, tail, times, window, writeback};
use crate::inode::{Inode, OrphanAt, Step, Tx, Work};
use crate::orphan::Orphans;
use crate::store::Store;
use crate::volume::SpaceRights;
use extant_format::types::FileType;
use std::ops::Range;
use std::sync::Arc;

/// Extents looked at to see whether one handle can free them.
const FEW: usize = 4;

/// Sets the size, frees the blocks behind it, and zeroes the tail of the last block. Uses an orphan
/// record over several transactions. The caller must hold `rw` for writing.
///
/// # Errors
/// EFBIG if no file can be so large; those of freeing blocks.
pub fn truncate(st: &Store, inode: &Arc<Inode>, size: u64) -> Result<()> {
    st.writable()?;
    if size > limits::max_size(st, inode) {
        return Err(Errno::FBig.into());
    }
    if size == 0 && inode.pages.size() > 0 {
        inode.pages.set_replaced();
    }
    if inline::truncate(&st.on_behalf(SpaceRights::default()), inode, size)? {
        return Ok(());
    }
    if size == 0 && inode.pages.size() == 0 && crate::file::has_no_content(inode) {
        return times::note_emptied(st, inode);
    }
    let mut work = inode.pages.work.lock();
    window::discard(&mut work);
    let result = if size > inode.pages.size() {
        grow(st, inode, &mut work, size)
    } else {
        shrink(st, inode, &mut work, size)
    };
    drop(work);
    st.dirty_files.note_clean(inode);
    result
}

/// Whether the inode has, or may have, blocks to cut.
pub fn can_truncate(inode: &Inode) -> bool {
    matches!(inode.ftype, FileType::Regular | FileType::Directory | FileType::Symlink)
}

fn grow(st: &Store, inode: &Arc<Inode>, work: &mut Work, size: u64) -> Result<()> {
    zero::within_block(st, inode, times::tail(st, inode.pages.size()))?;
    tail::settle(st, inode, work)?;
    st.begin(times::CREDITS)?.step(|step| {
        times::resize(st, step, inode, size)?;
        inode.pages.set_size(size);
        Ok(())
    })
}

fn shrink(st: &Store, inode: &Arc<Inode>, work: &mut Work, size: u64) -> Result<()> {
    let from = map::block_up(st, size);
    write_cluster(st, inode, work, from)?;
    let few = credits_of_few(st, inode, from)?;
    let tail = CutTail::find(st, inode, size)?;
    let credits = times::CREDITS + CutTail::CREDITS;
    let mut tx = st.begin(credits + few.unwrap_or_else(|| budget(st, inode) + Orphans::CREDITS))?;
    tx.touch(inode)?;
    if few.is_none() {
        tx.step(|step| st.orphans.add(step, inode))?;
    }
    let resized = tx.step(|step| {
        let zeroes = CutTail::prepare(tail, st, step, inode)?;
        cut_pages(st, inode, size);
        inode.pages.set_size(size);
        times::resize(st, step, inode, size)?;
        // While the handle is open, so that the commit finds them.
        zeroes.into_iter().for_each(|zeroes| deferred::add(inode, step.tid(), zeroes));
        Ok(())
    });
    if resized.is_err() {
        return remove_record(st, &mut tx, inode).and(resized);
    }
    match few {
        Some(0) => Ok(()),
        _ => cut_blocks(st, &mut tx, inode, from),
    }
}

/// Frees the blocks behind the size. A removal that may take several transactions has an orphan
/// record, which is removed at its end.
fn cut_blocks(st: &Store, tx: &mut Tx<'_>, inode: &Arc<Inode>, from: u32) -> Result<()> {
    if let Err(e) = cut(st, tx, inode, from) {
        // The next opening of the file system frees the blocks behind the size.
        tx.step(|step| st.orphans.add(step, inode)).inspect_err(|e| st.abort(e))?;
        return Err(e);
    }
    remove_record(st, tx, inode)
}

/// Takes the orphan record of a cut away. That of an inode without links stays: it is to be freed.
fn remove_record(st: &Store, tx: &mut Tx<'_>, inode: &Arc<Inode>) -> Result<()> {
    if inode.orphan.get() == OrphanAt::None || inode.links() == 0 {
        return Ok(());
    }
    tx.with_credits(Orphans::CREDITS)?;
    tx.step(|step| st.orphans.remove(step, inode))
}

/// On bigalloc pages that stay may rely on a cluster that goes: they are written first.
fn write_cluster(st: &Store, inode: &Arc<Inode>, work: &mut Work, from: u32) -> Result<()> {
    if st.geo.cluster_bits == 0 {
        return Ok(());
    }
    let cluster = map::clusters(st, from.saturating_sub(1)..from);
    writeback::within(st, inode, work, cluster.start..from)
}

/// Drops the pages behind `size`, returns their reservations, and zeroes the last remaining page
/// behind `size`. The device has zeroes there already, or gets the page.
fn cut_pages(st: &Store, inode: &Arc<Inode>, size: u64) {
    if inode.pages.never_used() {
        return;
    }
    let (from, bits) = (map::block_up(st, size), st.geo.cluster_bits);
    // Behind the old end pages have zeroes already.
    let (last, old) = (times::tail(st, size), inode.pages.size());
    let first = size - map::byte(st, map::block_of(st, size)).min(size);
    let within = first as usize..(first + last.end.min(old).saturating_sub(last.start)) as usize;
    let removed = inode.pages.change(&st.pages, |pages| {
        let removed = pages.remove(from..map::END, bits);
        if !last.is_empty() {
            pages.amend(map::block_of(st, size), |page| page.clear(&st.pages.frames, within));
        }
        removed
    });
    space::unreserve(st, inode, removed.reserved);
    space::release_share(st, inode);
}

/// Credits to free everything from block `from` on, if those are a few extents that one handle can
/// free.
fn credits_of_few(st: &Store, inode: &Inode, from: u32) -> Result<Option<u32>> {
    if inode.logs_data(st) {
        // Each block is revoked.
        return Ok(None);
    }
    let pieces = extent::pieces(st, inode, from, FEW + 1)?;
    if pieces.len() > FEW {
        return Ok(None);
    }
    let credits = pieces
        .iter()
        .fold(0u32, |sum, piece| sum.saturating_add(extent::credits(st, inode, piece.len)));
    Ok((credits <= st.journal.max_credits() / 4).then_some(credits))
}

/// Credits for freeing part of a file.
fn budget(st: &Store, inode: &Inode) -> u32 {
    // More than one step takes, where the log has room, so that fewer transactions do.
    extent::removal_credits(st, inode).max((st.journal.max_credits() / 4).min(256))
}

/// Unmaps and frees all blocks from `from` on, over as many transactions as it takes. If it takes
/// more than one, there is an orphan record.
pub(in crate::file) fn cut(
    st: &Store,
    tx: &mut Tx<'_>,
    inode: &Arc<Inode>,
    from: u32,
) -> Result<()> {
    let end = u64::from(from).max(extent::max_blocks(st, inode));
    remove_by(st, tx, inode, from.into()..end, |step| st.orphans.add(step, inode))
}

/// Unmaps and frees the blocks `[from, end)`, over as many transactions as it takes.
pub(in crate::file) fn remove(
    st: &Store,
    tx: &mut Tx<'_>,
    inode: &Arc<Inode>,
    from: u32,
    end: u64,
) -> Result<()> {
    remove_by(st, tx, inode, from.into()..end, |_| Ok(()))
}

/// Unmaps and frees a range of blocks. At the end of each transaction but the last comes the step
/// `pause`.
fn remove_by<'a>(
    st: &Store,
    tx: &mut Tx<'a>,
    inode: &Arc<Inode>,
    blocks: Range<u64>,
    mut pause: impl FnMut(&mut Step<'a>) -> Result<()>,
) -> Result<()> {
    let mut end = blocks.end;
    loop {
        end = tx.step(|step| extent::remove(st, step, inode, blocks.start..end))?;
        if end <= blocks.start {
            return Ok(());
        }
        tx.step(&mut pause)?;
        tx.restart(budget(st, inode))?;
    }
}

/// Opens a handle that can free a part of the file at a time.
pub(in crate::file) fn begin_removal<'a>(st: &'a Store, inode: &Inode) -> Result<Tx<'a>> {
    st.begin(times::CREDITS + budget(st, inode))
}

/// Frees all blocks behind byte `from` of an inode of any type: those behind the size (an orphan
/// with links), or all (an orphan without). The caller removes the orphan record. No other thread
/// may reach the inode.
pub fn free_blocks(st: &Store, inode: &Arc<Inode>, from: u64) -> Result<()> {
    let mut work = inode.pages.work.lock();
    window::discard(&mut work);
    deferred::settle(st, inode)?;
    if inode.ftype == FileType::Regular {
        write_cluster(st, inode, &mut work, map::block_up(st, from))?;
        cut_pages(st, inode, from);
    }
    if map::has_map(st, inode) {
        cut(st, &mut begin_removal(st, inode)?, inode, map::block_up(st, from))?;
        if inode.ftype == FileType::Regular {
            zero::within_block(st, inode, times::tail(st, from))?;
        }
    }
    drop(work);
    st.dirty_files.note_clean(inode);
    Ok(())
}
