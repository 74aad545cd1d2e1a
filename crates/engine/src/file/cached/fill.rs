//! Blocks from the device into pages, a stretch at a time.

use crate::error::Result;
use crate::extent::ExtentState;
use crate::file::{map, verity};
use crate::inode::Inode;
use crate::store::Store;
use std::ops::Range;
use std::sync::Arc;

/// Most bytes read ahead of a sequential reader.
const MAX_AHEAD: usize = 1 << 20;

/// Whole blocks that were read, from `lblk` on. Bytes behind the end of the file are zero.
#[derive(Debug)]
pub(in crate::file) struct Stretch {
    pub lblk: u32,
    pub bytes: Vec<u8>,
}

/// Reads the uncached block `wanted.start` and the following ones: uncached blocks of `wanted`, and
/// more for a sequential reader. Caches blocks from the device as pages. The caller must hold `rw`.
pub(in crate::file) fn ahead(
    st: &Store,
    inode: &Arc<Inode>,
    wanted: Range<u32>,
) -> Result<Stretch> {
    let max = (MAX_AHEAD / st.block_size()).max(1) as u32;
    let len = inode.pages.ahead.miss(wanted.start, (wanted.end - wanted.start).min(4 * max), max);
    let last = map::block_up(st, map::visible(st, inode));
    let end = wanted.start.saturating_add(len).min(last).max(wanted.start + 1);
    stretch(st, inode, wanted.start..end)
}

/// Reads uncached blocks: from the start of `blocks` up to the first that is cached.
pub(in crate::file) fn stretch(
    st: &Store,
    inode: &Arc<Inode>,
    blocks: Range<u32>,
) -> Result<Stretch> {
    let (generation, end) = {
        let pages = inode.pages.read();
        (
            pages.generation(),
            pages.first_in(blocks.clone()).unwrap_or(blocks.end).max(blocks.start + 1),
        )
    };
    let size = st.block_size();
    let mut bytes = vec![0; (end - blocks.start) as usize * size];
    let mut kept = Vec::new();
    map::runs(st, inode, blocks.start..end, |run| {
        if run.state == ExtentState::Written {
            let from = (run.lblk - blocks.start) as usize * size;
            if let Some(part) = bytes.get_mut(from..from + run.len as usize * size) {
                st.dev.read_exact_at(part, map::at(st, run.pblk.0))?;
                kept.push(run.lblk..run.lblk + run.len);
            }
        }
        Ok(true)
    })?;
    let last = map::block_of(st, inode.pages.size());
    if zero_behind(st, inode, blocks.start, &mut bytes) {
        // Not cached: a page would hide that the device has other bytes behind the end. An
        // operation that extends the file reads the device then.
        kept.iter_mut().for_each(|run| run.end = run.end.min(last.max(run.start)));
    }
    if verity::applies(inode) {
        verity::check(st, inode, blocks.start, &bytes)?;
    }
    let stretch = Stretch { lblk: blocks.start, bytes };
    keep(st, inode, &stretch, &kept, generation);
    Ok(stretch)
}

/// Zeroes the bytes behind the end of the file. Returns true if they were not zero.
fn zero_behind(st: &Store, inode: &Inode, lblk: u32, bytes: &mut [u8]) -> bool {
    let valid = inode.pages.size().saturating_sub(map::byte(st, lblk));
    let Some(behind) = usize::try_from(valid).ok().and_then(|valid| bytes.get_mut(valid..)) else {
        return false;
    };
    let dirty = behind.iter().any(|byte| *byte != 0);
    behind.fill(0);
    dirty
}

/// Caches the blocks `kept` of a stretch, unless content has changed since `generation`.
fn keep(st: &Store, inode: &Arc<Inode>, stretch: &Stretch, kept: &[Range<u32>], generation: u64) {
    if kept.is_empty() {
        return;
    }
    let size = st.block_size();
    let block = |l: u32| {
        let from = (l - stretch.lblk) as usize * size;
        stretch.bytes.get(from..from + size).map(Arc::<[u8]>::from)
    };
    let pages: Vec<(u32, Arc<[u8]>)> =
        kept.iter().cloned().flatten().filter_map(|l| Some((l, block(l)?))).collect();
    inode.pages.change(&st.pages, |map| {
        pages.into_iter().for_each(|(l, b)| map.add_read(l, b, generation))
    });
    st.pages.note(inode);
    st.pages.shrink();
}
