//! Unmaps and frees blocks.

use super::MapEnv;
use super::budget;
use super::indirect::{self, Removal};
use super::lookup;
use super::map::changing;
use super::nodes::Writer;
use super::owner::{Kind, charge, charge_checked, check_charge, purpose};
use super::tree;
use crate::alloc::Purpose;
use crate::bounds::Remark;
use crate::error::{Errno, Error, Result};
use crate::inode::{Inode, Step};
use extant_format::extent::Leaf;
use extant_format::types::BlockNr;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Unmaps and frees blocks of `range` from its end towards its start as far as the handle's credits
/// allow. Returns the new end: when it equals `range.start`, all is done; else restart the handle
/// (with [`removal_credits`]) and call again with the shorter range. An empty tree goes back to
/// depth 0.
///
/// # Errors
/// `Corrupt`, `Io`, ENOSPC where the middle of an extent goes and its leaf is full. Nothing is
/// unmapped then: after an error behind the first step the new end tells how far it came, and the
/// next call meets the error.
pub fn remove(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    range: Range<u64>,
) -> Result<u64> {
    if range.start >= range.end {
        return Ok(range.start);
    }
    let mut map = inode.map.write();
    let reached = changing(step, inode, &mut map, |step| match Kind::of(inode) {
        Kind::Tree => remove_extents(env, step, inode, range.clone()),
        Kind::Indirect => remove_pointers(env, step, inode, range.clone()),
        Kind::Inline => Ok(range.start),
    })?;
    let all =
        reached == range.start && range.end >= tree::LOGICAL_END && Kind::of(inode) == Kind::Tree;
    map.forget(range);
    if all {
        map.put(lookup::hole(reached as u32, tree::LOGICAL_END));
    }
    Ok(reached)
}

/// The most groups in which blocks are freed or allocated at once, and the most blocks.
const MAX_GROUPS: u32 = 16;
const MAX_BLOCKS: u32 = 1 << 15;

/// Credits that callers need besides those of runs: for the inode, and for the superblock of the
/// first large file, twice.
const BESIDE_RUNS: u32 = 4;

/// Returns the most blocks of a run whose groups fit into one transaction.
fn in_few_groups(env: &MapEnv) -> u32 {
    env.geo.blocks_per_group.saturating_mul(MAX_GROUPS).min(MAX_BLOCKS)
}

/// Blocks that are allocated or written to at most in one handle: where groups are small a long
/// extent lies in more of them than a transaction has room for, and a long run of pointers needs
/// more pointer blocks than a small log holds. A handle has credits for two such runs, and
/// [`BESIDE_RUNS`] more.
pub fn most_at_once(env: &MapEnv, inode: &Inode) -> u32 {
    let (mut most, bound) =
        (in_few_groups(env), env.journal.max_credits().saturating_sub(BESIDE_RUNS) / 2);
    while most > 1 && budget::credits(env, inode, most) > bound {
        most /= 2;
    }
    most
}

/// The most logged blocks freed at once.
const MAX_REVOKED: u32 = 1000;

/// The most extents unmapped at once.
const MAX_PARTS: usize = 64;

/// Returns the credits of the revoke records of `blocks` blocks, of which at least a hundred fit
/// into a block of the log.
fn revoke_credits(env: &MapEnv, inode: &Inode, blocks: u32) -> u32 {
    if purpose(env, inode) == Purpose::Metadata { blocks / 100 + 1 } else { 0 }
}

/// Returns the most blocks of one extent, or of one array of pointers, that a step unmaps.
fn longest(env: &MapEnv, inode: &Inode) -> u32 {
    let logged = purpose(env, inode) == Purpose::Metadata;
    in_few_groups(env).min(if logged { MAX_REVOKED } else { u32::MAX })
}

/// Returns credits with which each call of [`remove`] makes progress on any map.
pub fn removal_credits(env: &MapEnv, inode: &Inode) -> u32 {
    let most = longest(env, inode);
    let map = match Kind::of(inode) {
        Kind::Tree | Kind::Inline => budget::edit(env, budget::depth(inode) + 1),
        Kind::Indirect => budget::pointer_run(env),
    };
    map + env.alloc.credits(most) + revoke_credits(env, inode, most)
}

/// Unmaps extents from the end of a range towards its start. An error after the first step ends the
/// call; its progress is returned.
fn remove_extents(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    range: Range<u64>,
) -> Result<u64> {
    let mut end = range.end;
    let mut nodes = Writer::new(env, step, inode, env.alloc.inode_goal(inode.ino));
    loop {
        match remove_last(&mut nodes, range.start..end, end == range.end) {
            Ok(Removed::All) => return Ok(range.start),
            Ok(Removed::From(low)) => end = low,
            Ok(Removed::Nothing(high)) => return Ok(high.min(end)),
            Err(e) if end == range.end => return Err(e),
            Err(_) => return Ok(end),
        }
    }
}

/// How a step of a removal ended.
enum Removed {
    /// Nothing of the range is mapped any more.
    All,
    /// Nothing is mapped from this block on.
    From(u64),
    /// Nothing was unmapped, for lack of credits; nothing is mapped from this block on.
    Nothing(u64),
}

/// Unmaps the last extents of a range that lie in one leaf.
fn remove_last(nodes: &mut Writer<'_, '_, '_>, range: Range<u64>, first: bool) -> Result<Removed> {
    let (env, inode) = (nodes.env, nodes.inode);
    let Some(path) = tree::last_before(nodes, range.end)? else { return Ok(Removed::All) };
    let long = longest(env, inode).into();
    // With bigalloc the freed clusters depend on the extents that remain.
    let most = if env.geo.cluster_ratio() > 1 { 1 } else { MAX_PARTS };
    let mut gone = tree::tail(nodes, &path, range.clone(), most, long)?;
    let (Some(low), Some(high)) = (gone.parts.first(), gone.parts.last().copied()) else {
        return Ok(Removed::All);
    };
    let mut low = u64::from(low.lblk);
    let fixed = budget::edit(env, path.depth() as u32);
    let cost = |part: &Leaf| {
        env.alloc.credits(part.len.into()) + revoke_credits(env, inode, part.len.into())
    };
    let mut needed = gone.parts.iter().fold(fixed, |sum, part| sum.saturating_add(cost(part)));
    if !budget::may_go_on(nodes.step, needed, false)? {
        // The credits do not suffice for all extents: only the last one is unmapped.
        needed = fixed + cost(&high);
        if !budget::may_go_on(nodes.step, needed, first)? {
            return Ok(Removed::Nothing(high.end()));
        }
        gone = tree::tail(nodes, &path, range, 1, long)?;
        low = gone.parts.first().map_or(low, |part| part.lblk.into());
    }
    let before = nodes.step.credits_left();
    remove_parts(nodes, path, &gone)?;
    budget::assert_used(before, nodes.step, needed);
    Ok(if gone.whole { Removed::All } else { Removed::From(low) })
}

/// Unmaps parts of extents and frees their blocks, in one step.
fn remove_parts(nodes: &mut Writer<'_, '_, '_>, path: tree::Path, gone: &tree::Tail) -> Result<()> {
    let (env, inode) = (nodes.env, nodes.inode);
    let mut freed = gone
        .parts
        .iter()
        .map(|part| freed_blocks(nodes, part))
        .collect::<Result<SmallVec<[_; 8]>>>()?;
    freed.retain(|(_, len)| *len > 0);
    freed.iter().try_for_each(|(start, len)| nodes.hold_bitmaps(*start, *len))?;
    let sum: i64 = freed.iter().map(|(_, len)| i64::from(*len)).sum();
    check_charge(env, inode, -sum)?;
    let prepared = tree::prepare_removal(nodes, path, gone)?;
    nodes.in_step(|nodes| {
        tree::remove_tail(nodes, &prepared, gone)?;
        charge_checked(env, nodes.step, inode, -sum)?;
        free(env, nodes.step, inode, &freed)
    })
}

/// Frees unmapped blocks. Blocks of a damaged bitmap stay marked as used, and the damage is
/// recorded.
fn free(env: &MapEnv, step: &mut Step<'_>, inode: &Inode, runs: &[(BlockNr, u32)]) -> Result<()> {
    let freed = match purpose(env, inode) {
        Purpose::Data => env.alloc.free_data(step.handle(), runs),
        purpose => env.alloc.free_all(step.handle(), runs, purpose),
    };
    match freed {
        Err(e @ Error::Corrupt(_)) => {
            if env.remarks.tells(Remark::Damage) {
                tracing::error!(ino = inode.ino.0, "freed blocks stay marked as used: {e}");
            }
            env.note_damage(&e);
            Ok(())
        }
        freed => freed,
    }
}

/// Returns the blocks that become free when `part` is unmapped: whole clusters without another
/// mapped block.
fn freed_blocks(nodes: &Writer<'_, '_, '_>, part: &Leaf) -> Result<(BlockNr, u32)> {
    let ratio = u64::from(nodes.env.geo.cluster_ratio());
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

/// Returns whether a block of the range is mapped.
fn is_mapped(nodes: &Writer<'_, '_, '_>, range: Range<u64>) -> Result<bool> {
    if range.is_empty() || range.start >= tree::LOGICAL_END {
        return Ok(false);
    }
    let found = tree::first_from(nodes, range.start as u32)?;
    Ok(found.is_some_and(|e| u64::from(e.lblk) < range.end))
}

fn remove_pointers(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    range: Range<u64>,
) -> Result<u64> {
    if env.geo.cluster_ratio() > 1 {
        return Err(Errno::OpNotSupp.into());
    }
    let mut nodes = Writer::new(env, step, inode, env.alloc.inode_goal(inode.ino));
    let end = range.end;
    let mut freeing = Freeing { first: true, reached: end };
    let removed = indirect::remove(&mut nodes, range, &mut freeing);
    match removed {
        // The progress before an error counts.
        Err(_) if freeing.reached < end => Ok(freeing.reached),
        removed => removed,
    }
}

/// Frees runs of an indirect map as long as the handle has credits.
struct Freeing {
    first: bool,
    /// All blocks from this one on are unmapped.
    reached: u64,
}

impl Removal<Writer<'_, '_, '_>> for Freeing {
    fn may_free(&mut self, nodes: &mut Writer<'_, '_, '_>, first: u32, len: u32) -> Result<bool> {
        let revokes = revoke_credits(nodes.env, nodes.inode, len);
        let needed = budget::pointer_run(nodes.env) + nodes.env.alloc.credits(len) + revokes;
        let goes_on = budget::may_go_on(nodes.step, needed, self.first)?;
        self.first = false;
        if goes_on {
            nodes.hold_bitmaps(BlockNr(first.into()), len)?;
        }
        Ok(goes_on)
    }

    fn uncharge(&mut self, nodes: &mut Writer<'_, '_, '_>, len: u32) -> Result<()> {
        charge(nodes.env, nodes.step, nodes.inode, -i64::from(len))
    }

    fn free(&mut self, nodes: &mut Writer<'_, '_, '_>, first: u32, len: u32) -> Result<()> {
        free(nodes.env, nodes.step, nodes.inode, &[(BlockNr(first.into()), len)])
    }

    fn reached(&mut self, lblk: u64) {
        self.reached = lblk;
    }
}
