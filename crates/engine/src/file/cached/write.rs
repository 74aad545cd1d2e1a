//! Writing into the page cache, with delayed allocation.
//!
//! # Invariants
//! - Space for every page that gets no block at once is set aside before the page is changed:
//!   ENOSPC is told by the write.
//! - The visible size is raised before the pages behind it can be written back, under the same
//!   lock.

use crate::error::{Errno, Result};
use crate::extent::{self, ExtentState};
use crate::file::times::Note;
use crate::file::{batch, inline, limits, logged, map, space, times, zero};
use crate::inode::{Content, Cover, Inode, Place};
use crate::store::{CallerStore, Store};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Most bytes that one turn takes.
const CHUNK: usize = 1 << 20;

/// Writes into the page cache, reserves space, extends the size in memory (on disk with the
/// writeback). Renews mtime and ctime no more than once a clock tick; clears set-user-ID and
/// set-group-ID if `note` says so. The caller holds `rw` for writing. Returns bytes written, fewer
/// than asked for if space ends; ENOSPC, EFBIG if none.
pub fn write(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &[u8],
    note: Note,
) -> Result<usize> {
    st.writable()?;
    let len = limits::writable_len(st, inode, offset, data.len())?;
    let Some(data) = data.get(..len).filter(|d| !d.is_empty()) else { return Ok(0) };
    if let Some(done) = inline::write(st, inode, offset, data, note)? {
        return Ok(done);
    }
    if inode.logs_data(st) {
        return logged::write(st, inode, offset, data, note);
    }
    times::note_change(st, inode, note)?;
    fill_gap(st, inode, offset)?;
    in_chunks(st, offset, data, CHUNK, |at, part| {
        let done = match beside_others(st, inode, at, part) {
            Err(e) if e.is(Errno::NoSpc) => scarce(st, inode, at, part)?,
            Err(e) if space::no_space(&e) => {
                let _share = st.dirty_files.set_aside.share();
                fitting(st, inode, at, part)?
            }
            done => done?,
        };
        batch::throttle(st);
        Ok(done)
    })
}

/// Writes a chunk while other threads write theirs.
fn beside_others(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &[u8],
) -> Result<usize> {
    if page_of(st, offset, data).is_some_and(|lblk| overwrite(st, inode, lblk, offset, data)) {
        // Sets no space aside.
        return Ok(data.len());
    }
    let _share = st.dirty_files.set_aside.share();
    chunk(st, inode, offset, data)
}

/// Writes as much of a chunk as there is space for. Maps of pages that wait need less than was set
/// aside for them, and written pages need nothing: first those are written that no thread works on,
/// and if that gives too little, all.
fn scarce(st: &CallerStore<'_>, inode: &Arc<Inode>, offset: u64, data: &[u8]) -> Result<usize> {
    batch::clean(st);
    match beside_others(st, inode, offset, data) {
        Err(e) if space::no_space(&e) => {}
        done => return done,
    }
    let _alone = space::alone(st);
    fitting(st, inode, offset, data)
}

/// Writes as much as there is space for: all of it, or the first half, and so on. The caller must
/// hold `set_aside`, shared or alone.
fn fitting(st: &CallerStore<'_>, inode: &Arc<Inode>, offset: u64, data: &[u8]) -> Result<usize> {
    let blocks = map::blocks(st, offset, offset + data.len() as u64);
    let half = blocks.start + (blocks.end - blocks.start) / 2;
    let fits = map::byte(st, half).saturating_sub(offset) as usize;
    match (
        chunk(st, inode, offset, data),
        data.get(..fits).filter(|part| !part.is_empty() && half > blocks.start),
    ) {
        (Err(e), Some(part)) if space::no_space(&e) => fitting(st, inode, offset, part),
        (done, _) => done,
    }
}

/// Writes `data` in parts that end at multiples of `most`. A lack of space ends it early; it is an
/// error if nothing was written.
pub(in crate::file) fn in_chunks(
    st: &Store,
    offset: u64,
    data: &[u8],
    most: usize,
    mut part: impl FnMut(u64, &[u8]) -> Result<usize>,
) -> Result<usize> {
    let most = most.max(st.block_size());
    let mut done = 0;
    while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
        let at = offset + done as u64;
        let len = (most - (at % most as u64) as usize).min(rest.len());
        match part(at, rest.get(..len).unwrap_or(rest)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if done > 0 && space::no_space(&e) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Zeroes the last block behind the end of the file, before a write beyond it.
pub(in crate::file) fn fill_gap(st: &Store, inode: &Arc<Inode>, offset: u64) -> Result<()> {
    let tail = times::tail(st, inode.pages.size());
    if offset <= tail.start || tail.is_empty() {
        return Ok(());
    }
    let _work = inode.pages.work.lock();
    zero::within_block(st, inode, tail)
}

/// A block that is not ready for its new bytes.
#[derive(Debug)]
struct Missing {
    lblk: u32,
    /// The block's content; `None` if it is zeroes, or if the page is cached or overwritten whole.
    old: Option<Arc<[u8]>>,
    /// Where its block is.
    place: Place,
}

/// The page of a write within one page, where clusters are single blocks.
fn page_of(st: &Store, offset: u64, data: &[u8]) -> Option<u32> {
    let blocks = map::blocks(st, offset, offset + data.len() as u64);
    (blocks.end - blocks.start == 1 && st.geo.cluster_bits == 0).then_some(blocks.start)
}

fn chunk(st: &CallerStore<'_>, inode: &Arc<Inode>, offset: u64, data: &[u8]) -> Result<usize> {
    if let Some(lblk) = page_of(st, offset, data)
        && add_page(st, inode, lblk, offset, data)?
    {
        return Ok(data.len());
    }
    let blocks = map::blocks(st, offset, offset + data.len() as u64);
    // On bigalloc no writeback may take a cluster's reservation while its pages are counted.
    let work = (st.geo.cluster_bits > 0).then(|| inode.pages.work.lock());
    inode.pages.write().pin(blocks.clone());
    let ready = prepare(st, inode, offset, data, blocks.clone());
    match ready {
        Ok(missing) => {
            copy_in(st, inode, offset, data, missing);
            st.note_dirty(inode);
            Ok(data.len())
        }
        Err(e) => {
            let _work = work.unwrap_or_else(|| inode.pages.work.lock());
            unpin(st, inode);
            Err(e)
        }
    }
}

/// Lets go of pages that do not become dirty, and of the space that was set aside for them. The
/// caller must hold `work`.
fn unpin(st: &Store, inode: &Inode) {
    inode.pages.write().pin(0..0);
    space::release_share(st, inode);
}

/// Writes into a page that is cached and has space; false if it is not, or has none.
fn overwrite(st: &Store, inode: &Arc<Inode>, lblk: u32, offset: u64, data: &[u8]) -> bool {
    let from = (offset - map::byte(st, lblk)) as usize;
    let done = inode.pages.change(&st.pages, |pages| {
        let done = pages.overwrite(&st.pages.frames, lblk, from, data);
        if done {
            inode.pages.grow_size(offset + data.len() as u64);
        }
        done
    });
    if done {
        st.note_dirty(inode);
    }
    done
}

/// Writes into a block that is not cached, in one page; false if it is.
fn add_page(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    lblk: u32,
    offset: u64,
    data: &[u8],
) -> Result<bool> {
    let crowded = {
        let mut pages = inode.pages.write();
        if pages.has(lblk) {
            return Ok(false);
        }
        pages.pin(lblk..lblk.saturating_add(1));
        pages.is_crowded(lblk)
    };
    let added = add_pinned(st, inode, (lblk, crowded), offset, data);
    if added.is_err() {
        let _work = inode.pages.work.lock();
        unpin(st, inode);
    }
    added.map(|()| true)
}

/// Adds a page that is pinned and not cached.
fn add_pinned(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    (lblk, crowded): (u32, bool),
    offset: u64,
    data: &[u8],
) -> Result<()> {
    let run = map::lookup(st, inode, lblk..lblk.saturating_add(1))?;
    let whole = data.len() == st.block_size();
    let old = match run.state {
        ExtentState::Written if !whole => old_bytes(st, inode, lblk, run.pblk.0)?,
        ExtentState::Written | ExtentState::Unwritten | ExtentState::Hole => None,
    };
    let place = place_in(run.state);
    if place != Place::Written {
        space::reserve(st, inode, u32::from(place == Place::Reserved))?;
    }
    let page = new_page(st, old, (offset - map::byte(st, lblk)) as usize, data, crowded);
    // No other thread adds pages: that takes `rw`.
    inode.pages.change(&st.pages, |pages| {
        inode.pages.grow_size(offset + data.len() as u64);
        pages.add_dirty(lblk, page, place, 0);
        pages.pin(0..0);
    });
    st.note_dirty(inode);
    Ok(())
}

/// Where a page has its block if the map says so of the block, and clusters are single blocks.
fn place_in(state: ExtentState) -> Place {
    match state {
        ExtentState::Written => Place::Written,
        ExtentState::Unwritten => Place::Owned,
        ExtentState::Hole => Place::Reserved,
    }
}

/// Reads pages that are not cached, and reserves space for blocks without any.
fn prepare(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &[u8],
    blocks: Range<u32>,
) -> Result<Vec<Missing>> {
    let bits = st.geo.cluster_bits;
    let open: Vec<(u32, Cover)> = {
        let pages = inode.pages.read();
        let covers = blocks.clone().map(|lblk| (lblk, pages.cover(lblk, bits)));
        covers.filter(|(_, cover)| *cover != Cover::Covered).collect()
    };
    let (Some(first), Some(last)) = (open.first(), open.last()) else { return Ok(Vec::new()) };
    let mut missing = Vec::with_capacity(open.len());
    let mut holes = Vec::new();
    let mut open_blocks = open.iter().peekable();
    map::runs(st, inode, first.0..last.0 + 1, |run| {
        while let Some((lblk, cover)) = open_blocks.next_if(|(lblk, _)| *lblk - run.lblk < run.len)
        {
            let partial = !covers_block(st, offset, data.len(), *lblk);
            let old = if *cover == Cover::Absent && partial && run.state == ExtentState::Written {
                old_bytes(st, inode, *lblk, run.pblk.0 + u64::from(lblk - run.lblk))?
            } else {
                None
            };
            let place = place_in(run.state);
            if place == Place::Reserved {
                holes.push(*lblk);
            }
            missing.push(Missing { lblk: *lblk, old, place });
        }
        Ok(true)
    })?;
    reserve_holes(st, inode, &holes, &mut missing)?;
    Ok(missing)
}

/// Whether a write overwrites the block whole.
fn covers_block(st: &Store, offset: u64, len: usize, lblk: u32) -> bool {
    let start = map::byte(st, lblk);
    offset <= start && offset + len as u64 >= start + u64::from(st.geo.block_size)
}

/// The bytes of a written block before a write to a part of it. `None` if they all lie behind the
/// end of the file, and count as zero.
fn old_bytes(st: &Store, inode: &Inode, lblk: u32, pblk: u64) -> Result<Option<Arc<[u8]>>> {
    let valid = inode.pages.size().saturating_sub(map::byte(st, lblk));
    if valid == 0 {
        return Ok(None);
    }
    let mut shared: Arc<[u8]> = std::iter::repeat_n(0, st.block_size()).collect();
    let bytes = Arc::make_mut(&mut shared);
    st.dev.read_exact_at(bytes, map::at(st, pblk))?;
    let valid = usize::try_from(valid).unwrap_or(usize::MAX);
    bytes.get_mut(valid..).unwrap_or_default().fill(0);
    Ok(Some(shared))
}

/// Reserves space for the map and for the clusters of `holes`, except those that the file owns.
fn reserve_holes(
    st: &CallerStore<'_>,
    inode: &Arc<Inode>,
    holes: &[u32],
    missing: &mut [Missing],
) -> Result<()> {
    let bits = st.geo.cluster_bits;
    if missing.iter().all(|m| m.place == Place::Written) {
        return Ok(());
    }
    // A cluster is reserved with the first of its pages. Its other pages find it reserved, or owned
    // by the file.
    if bits == 0 {
        return space::reserve(st, inode, holes.len() as u32);
    }
    let (mut fresh, mut owned) = (BTreeSet::new(), BTreeSet::new());
    for lblk in holes {
        let cluster = lblk >> bits;
        let known = fresh.contains(&cluster)
            || owned.contains(&cluster)
            || inode.pages.read().cluster_reserved(*lblk, bits);
        if !known {
            let set =
                if extent::implied(st, inode, *lblk)?.is_some() { &mut owned } else { &mut fresh };
            set.insert(cluster);
        }
    }
    missing
        .iter_mut()
        .filter(|m| owned.contains(&(m.lblk >> bits)) && m.place == Place::Reserved)
        .for_each(|m| m.place = Place::Owned);
    space::reserve(st, inode, (fresh.len() as u32) << bits)
}

/// Everything is ready: the bytes go into the pages.
fn copy_in(st: &Store, inode: &Arc<Inode>, offset: u64, data: &[u8], missing: Vec<Missing>) {
    let size = st.block_size();
    let bits = st.geo.cluster_bits;
    let end = offset + data.len() as u64;
    inode.pages.change(&st.pages, |pages| {
        inode.pages.grow_size(end);
        let mut missing = missing.into_iter().peekable();
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            let lblk = map::block_of(st, at);
            let from = (at - map::byte(st, lblk)) as usize;
            let part = rest.get(..rest.len().min(size - from)).unwrap_or(rest);
            let new = missing.next_if(|m| m.lblk == lblk);
            match (pages.has(lblk), new) {
                (false, Some(Missing { old, place, .. })) => {
                    pages.add_dirty(lblk, new_page(st, old, from, part, false), place, bits);
                }
                (cached, new) => {
                    if !cached {
                        // Pinned pages do not go; if one did, the rest of its block would be zero.
                        pages.add(lblk, Content::part(&st.pages.frames, 0, &[], size, true), false);
                    }
                    if let Some(m) = new {
                        pages.set_place(lblk, m.place, bits);
                    }
                    pages.dirty(lblk, |page| page.write(&st.pages.frames, from, part));
                }
            }
            done += part.len();
        }
        pages.pin(0..0);
    });
}

/// A page of old bytes, or zeroes, with new ones in their place; perhaps `more` will come.
fn new_page(st: &Store, old: Option<Arc<[u8]>>, from: usize, part: &[u8], more: bool) -> Content {
    match old {
        None => Content::part(&st.pages.frames, from, part, st.block_size(), more),
        Some(old) => {
            let mut page = Content::whole(old);
            page.write(&st.pages.frames, from, part);
            page
        }
    }
}
