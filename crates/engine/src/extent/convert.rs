//! Conversion of unwritten blocks into written ones, and back.

use super::budget;
use super::map::changing;
use super::nodes::Writer;
use super::owner::Kind;
use super::tree;
use super::{ExtentState, MapEnv};
use crate::error::{Errno, Result};
use crate::inode::{Inode, Step};
use std::ops::Range;
use std::sync::Arc;

/// Gives the mapped blocks of the range the state `to`, written or unwritten, from its start as far
/// as the handle's credits allow. Returns the end of the converted part: if that is not
/// `range.end`, restart the handle and call again from there. A range within one run is converted
/// at once if the handle was started with [`credits`](super::credits) for it.
///
/// # Errors
/// EOPNOTSUPP for unwritten blocks in a map without them (see [`has_unwritten`]), ENOSPC where a
/// split needs a block, `Corrupt`, `Io`. Nothing has changed then: after an error behind the first
/// run the call returns where it stopped, and the next one meets the error.
pub fn convert(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    range: Range<u32>,
    to: ExtentState,
) -> Result<u32> {
    let unwritten = to == ExtentState::Unwritten;
    if !has_unwritten(inode) {
        return if unwritten { Err(Errno::OpNotSupp.into()) } else { Ok(range.end) };
    }
    if range.is_empty() {
        return Ok(range.end);
    }
    let mut map = inode.map.write();
    let reached = changing(step, inode, &mut map, |step| {
        convert_runs(env, step, inode, range.clone(), unwritten)
    })?;
    map.forget(range.start.into()..reached.into());
    Ok(reached)
}

/// Returns whether the inode's kind of map has unwritten blocks: extent trees have, indirect blocks
/// have not.
pub fn has_unwritten(inode: &Inode) -> bool {
    Kind::of(inode) == Kind::Tree
}

fn convert_runs(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    range: Range<u32>,
    unwritten: bool,
) -> Result<u32> {
    let mut at = range.start;
    let mut nodes = Writer::new(env, step, inode, env.alloc.inode_goal(inode.ino));
    while at < range.end {
        let needed = budget::edit(env, budget::depth(inode));
        if !budget::may_go_on(nodes.step, needed, at == range.start)? {
            break;
        }
        let before = nodes.step.credits_left();
        let next = match tree::convert(&mut nodes, at..range.end, unwritten) {
            // The progress before an error counts.
            Err(_) if at > range.start => break,
            next => next?,
        };
        budget::assert_used(before, nodes.step, needed);
        at = u32::try_from(next).unwrap_or(range.end).clamp(at + 1, range.end);
    }
    Ok(at)
}
