//! Unmaps and frees blocks.

use super::budget;
use super::indirect::{self, Removal};
use super::insert::changing;
use super::io::Writer;
use super::lookup;
use super::owner::{Kind, charge, purpose};
use super::tree;
use crate::alloc::Purpose;
use crate::error::{Errno, Error, Result};
use crate::groups::Kind as Bits;
use crate::inode::Inode;
use crate::store::Store;
use extant_format::extent::Leaf;
use extant_format::types::BlockNr;
use extant_journal::Handle;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Unmaps and frees blocks of `range` from its end towards its start as far as the handle's credits allow. Returns
/// the new end: when it equals `range.start`, all is done; else restart the handle (with [`credits`](super::credits)
/// for 1 block or more) and call again with the shorter range. An empty tree goes back to depth 0.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn remove(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, range: Range<u64>) -> Result<u64> {
    if range.start >= range.end {
        return Ok(range.start);
    }
    let mut map = inode.map.write();
    let reached = changing(h, inode, &mut map, |h| match Kind::of(inode) {
        Kind::Tree => remove_extents(st, h, inode, range.clone()),
        Kind::Indirect => remove_pointers(st, h, inode, range.clone()),
        Kind::Inline => Ok(range.start),
    })?;
    let all = reached == range.start && range.end >= tree::LOGICAL_END && Kind::of(inode) == Kind::Tree;
    map.forget(range);
    if all {
        map.put(lookup::hole(reached as u32, tree::LOGICAL_END));
    }
    Ok(reached)
}

/// Most groups that blocks are freed or allocated in at once, and most blocks.
const MOST_GROUPS: u32 = 16;
const MOST_BLOCKS: u32 = 1 << 15;

/// Blocks that a step of [`remove`] frees at most, or that are allocated or written to in one: where groups are small, a long extent
/// lies in more of them than a transaction has room for.
pub fn most_at_once(st: &Store) -> u32 {
    st.geo.blocks_per_group.saturating_mul(MOST_GROUPS).min(MOST_BLOCKS)
}

/// Most logged blocks freed at once.
const MOST_REVOKED: u64 = 1000;

/// Most extents unmapped at once.
const MOST_PARTS: usize = 64;

fn remove_extents(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, range: Range<u64>) -> Result<u64> {
    let mut end = range.end;
    let mut first = true;
    // Records of blocks that were logged cost credits, too: at least a hundred fit in a block.
    let logged = purpose(st, inode) == Purpose::Metadata;
    let revokes = if logged { MOST_REVOKED as u32 / 100 + 1 } else { 0 };
    let long = u64::from(most_at_once(st)).min(if logged { MOST_REVOKED } else { u64::MAX });
    // On bigalloc what is free depends on what is left.
    let most = if st.geo.cluster_ratio() > 1 { 1 } else { MOST_PARTS };
    let mut nodes = Writer::new(st, h, inode, st.alloc.inode_goal(inode.ino));
    while let Some(path) = tree::last_before(&nodes, end)? {
        let mut gone = tree::tail(&nodes, &path, range.start..end, most, long)?;
        let (Some(low), Some(high)) = (gone.parts.first(), gone.parts.last()) else { break };
        let (low, high) = (u64::from(low.lblk), high.end());
        let fixed = budget::edit(st, path.depth() as u32);
        let cost = |part: &Leaf| st.alloc.credits(part.len.into()) + revokes;
        let needed = gone.parts.iter().fold(fixed, |sum, part| sum.saturating_add(cost(part)));
        let (mut needed, mut low) = (needed, low);
        if !budget::may_go_on(nodes.h, needed, false)? {
            // As many as there are credits for, from the end.
            let one = fixed + gone.parts.last().map_or(0, cost);
            if !budget::may_go_on(nodes.h, one, first)? {
                return Ok(high);
            }
            gone = tree::tail(&nodes, &path, range.start..end, 1, long)?;
            (needed, low) = (one, gone.parts.first().map_or(low, |part| part.lblk.into()));
        }
        let before = nodes.h.credits_left();
        remove_parts(&mut nodes, &path, &gone)?;
        budget::assert_used(before, nodes.h, needed);
        if gone.whole {
            break;
        }
        end = low;
        first = false;
    }
    Ok(range.start)
}

/// Unmaps parts of extents and frees their blocks.
fn remove_parts(nodes: &mut Writer<'_, '_, '_>, path: &tree::Path, gone: &tree::Tail) -> Result<()> {
    let (st, inode) = (nodes.st, nodes.inode);
    let mut freed = gone.parts.iter().map(|part| freed_blocks(nodes, part)).collect::<Result<SmallVec<[_; 8]>>>()?;
    freed.retain(|(_, len)| *len > 0);
    check_bitmaps(st, nodes.h, &freed)?;
    let sum: i64 = freed.iter().map(|(_, len)| i64::from(*len)).sum();
    charge(st, nodes.h, inode, -sum)?;
    if let Err(error) = tree::remove_tail(nodes, path, gone) {
        // For lack of space, say: the tree is as it was.
        charge(st, nodes.h, inode, sum)?;
        return Err(error);
    }
    free(st, nodes.h, inode, &freed)
}

/// Frees blocks that are unmapped already. What a damaged bitmap does not take stays marked as used; but a device that
/// fails must not leave blocks that nobody owns.
fn free(st: &Store, h: &mut Handle<'_>, inode: &Inode, runs: &[(BlockNr, u32)]) -> Result<()> {
    let freed = match purpose(st, inode) {
        Purpose::Data => st.alloc.free_data(h, runs),
        purpose => st.alloc.free_all(h, runs, purpose),
    };
    if let Err(e @ Error::Io(_)) = &freed {
        st.give_up(e);
    }
    freed
}

/// Before blocks are unmapped: the bitmaps that they are to be freed in can be read.
fn check_bitmaps(st: &Store, h: &Handle<'_>, runs: &[(BlockNr, u32)]) -> Result<()> {
    let mut seen = None;
    for (start, len) in runs {
        let (mut at, end) = (*start, start.0.saturating_add((*len).into()));
        while at.0 < end
            && let Some(g) = st.geo.group_of_block(at)
        {
            if seen.replace(g) != Some(g) && !st.alloc.frees_in(h.tid(), g) {
                st.groups.bitmap(g, Bits::Blocks)?;
            }
            at = BlockNr(st.geo.first_block_of_group(g).0.saturating_add(st.geo.blocks_in_group(g).into()));
        }
    }
    Ok(())
}

/// The blocks that are free when `part` is unmapped: whole clusters of which no other block is mapped.
fn freed_blocks(nodes: &Writer<'_, '_, '_>, part: &Leaf) -> Result<(BlockNr, u32)> {
    let ratio = u64::from(nodes.st.geo.cluster_ratio());
    if ratio == 1 {
        return Ok((BlockNr(part.pblk), part.len.into()));
    }
    let (start, end) = (u64::from(part.lblk), part.end());
    let mut first = start - start % ratio;
    let mut last = end.next_multiple_of(ratio);
    let head_used = is_mapped(nodes, first..start)?;
    let tail_used = is_mapped(nodes, end..last)?;
    if head_used {
        first += ratio;
    }
    if tail_used {
        last -= ratio;
    }
    let shift = part.pblk.saturating_sub(start % ratio);
    let skipped = if head_used { ratio } else { 0 };
    Ok((BlockNr(shift + skipped), last.saturating_sub(first) as u32))
}

/// Whether a block of the range is mapped.
fn is_mapped(nodes: &Writer<'_, '_, '_>, range: Range<u64>) -> Result<bool> {
    if range.is_empty() || range.start >= tree::LOGICAL_END {
        return Ok(false);
    }
    let found = tree::first_from(nodes, range.start as u32)?;
    Ok(found.is_some_and(|e| u64::from(e.lblk) < range.end))
}

fn remove_pointers(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, range: Range<u64>) -> Result<u64> {
    if st.geo.cluster_ratio() > 1 {
        return Err(Errno::OpNotSupp.into());
    }
    let mut nodes = Writer::new(st, h, inode, st.alloc.inode_goal(inode.ino));
    indirect::remove(&mut nodes, range, &mut Freeing { first: true })
}

/// Frees the runs of an indirect map as long as the handle has credits.
struct Freeing {
    first: bool,
}

impl Removal<Writer<'_, '_, '_>> for Freeing {
    fn may_free(&mut self, nodes: &mut Writer<'_, '_, '_>, first: u32, len: u32) -> Result<bool> {
        let logged = purpose(nodes.st, nodes.inode) == Purpose::Metadata;
        let revokes = if logged { len / 100 + 1 } else { 0 };
        let needed = budget::pointer_run(nodes.st) + nodes.st.alloc.credits(len) + revokes;
        let goes_on = budget::may_go_on(nodes.h, needed, self.first)?;
        self.first = false;
        if goes_on {
            check_bitmaps(nodes.st, nodes.h, &[(BlockNr(first.into()), len)])?;
        }
        Ok(goes_on)
    }

    fn free(&mut self, nodes: &mut Writer<'_, '_, '_>, first: u32, len: u32) -> Result<()> {
        charge(nodes.st, nodes.h, nodes.inode, -i64::from(len))?;
        free(nodes.st, nodes.h, nodes.inode, &[(BlockNr(first.into()), len)])
    }
}
