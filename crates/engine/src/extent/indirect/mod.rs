//! Maps of block pointers: 12 direct blocks, then one, two and three levels of pointer blocks.
//!
//! # Invariants
//! - A pointer block that an operation leaves without pointers is freed.
//! - Three levels bound every walk of any image.

mod insert;
mod nodes;
mod remove;
#[cfg(test)]
mod tests;

pub(super) use insert::{insert, prepare_insert};
pub(super) use nodes::{Pointers, PointersMut};
pub(super) use remove::{Removal, remove};

use super::tree::At;
use crate::error::Result;
use extant_format::indirect::{DIRECT, Path, pointer};
use std::ops::Range;

/// Logical blocks with one answer: the first physical block, `None` for a hole, and how many they
/// are (at least 1).
pub(super) type Found = (Option<u32>, u64);

/// Returns the run at `lblk`, as far as one array of pointers shows it, at most `max` blocks.
pub(super) fn lookup(nodes: &impl Pointers, lblk: u32, max: u64) -> Result<Found> {
    let Some(path) = Path::new(lblk, nodes.block_size()) else { return Ok((None, max)) };
    let mut at = At::Root;
    for (level, &offset) in path.offsets()[..path.levels()].iter().enumerate() {
        match nodes.view(at, |bytes| pointer(bytes, offset as usize))? {
            0 => return Ok((None, rest_of_hole(nodes, &path, level).min(max))),
            child => {
                nodes.place(child, lblk - inside(nodes, &path, level) as u32, level as u8)?;
                at = At::Block(child.into());
            }
        }
    }
    let (first, end) = array(nodes, &path);
    nodes.view(at, |bytes| run(bytes, first..end, max))
}

/// Returns the wanted offset in the last array of a path, and the end of the array.
fn array(nodes: &impl Pointers, path: &Path) -> (usize, usize) {
    let offset = path.offsets().last().copied().unwrap_or(0) as usize;
    match path.levels() {
        0 => (offset, DIRECT),
        _ => (offset, nodes.per_block() as usize),
    }
}

/// Returns the number of blocks from the wanted one to the end of the hole that a missing pointer
/// at `level` makes.
fn rest_of_hole(nodes: &impl Pointers, path: &Path, level: usize) -> u64 {
    let below = path.offsets()[level + 1..].len();
    u64::from(nodes.per_block()).pow(below as u32) - inside(nodes, path, level)
}

/// Returns the number of blocks between the first one below the pointer at `level` and the wanted
/// one.
fn inside(nodes: &impl Pointers, path: &Path, level: usize) -> u64 {
    let per_block = u64::from(nodes.per_block());
    path.offsets()[level + 1..].iter().fold(0, |sum, &offset| sum * per_block + u64::from(offset))
}

/// Returns the run of pointers from the range's start on: all zero, or ascending by one.
fn run(bytes: &[u8], range: Range<usize>, max: u64) -> Found {
    let start = range.start;
    let first = pointer(bytes, start);
    let fits = |n: usize| match first {
        0 => pointer(bytes, n) == 0,
        _ => first.checked_add((n - start) as u32) == Some(pointer(bytes, n)),
    };
    let len = range.take_while(|n| fits(*n)).count() as u64;
    ((first != 0).then_some(first), len.clamp(1, max.max(1)))
}
