//! The range of a file that a request is given space for.
//!
//! # Invariants
//! - Ends have 64 bits: a window may end at unit 2^32.
//! - A window contains the request's first unit, lies within the largest file size, and is no
//!   longer than a group. It need not contain the end of a long request.

use std::ops::Range;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Files up to 1 MiB have a window from their start, of the first of these sizes that is large
/// enough.
const SMALL: [u64; 7] = [16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB];

/// A request for space at a hole of a file.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// First unit.
    pub logical: u32,
    /// Units; not 0.
    pub len: u32,
    /// Size of the file in bytes, before or after the request.
    pub size: u64,
    /// Bytes of a block.
    pub block: u32,
    /// Bytes of a unit: a block, or a cluster of several.
    pub unit: u32,
    /// Units in a group.
    pub group: u32,
    /// The most units of a file.
    pub limit: u64,
}

impl Ask {
    /// Returns the unit behind the last requested one.
    pub fn end(&self) -> u64 {
        u64::from(self.logical) + u64::from(self.len)
    }

    /// Returns the range of the file to be given space, provided that nothing in it is mapped or
    /// preallocated yet.
    ///
    /// A file of up to 1 MiB has a window from its start. Larger windows are 2, 4 or 8 MiB, aligned
    /// to their size, depending on the sizes of the file, the request and a block. A still longer
    /// request gets exactly its own range.
    pub fn window(&self) -> Range<u64> {
        let (start, len) = self.ideal();
        let group = u64::from(self.group.max(1));
        let logical = u64::from(self.logical);
        let start = start.max(logical - logical % group);
        let end = start.saturating_add(len).min(self.limit);
        start..end.min(start + group).max(start)
    }

    /// Returns start and length in units, before any bound.
    fn ideal(&self) -> (u64, u64) {
        let unit = u64::from(self.unit.max(1));
        let size = self.size.max(self.end().saturating_mul(unit));
        if let Some(small) = SMALL.into_iter().find(|small| size <= *small) {
            return (0, small.div_ceil(unit));
        }
        let twice = 2 * u64::from(self.block);
        let request = u64::from(self.len).saturating_mul(unit);
        let bytes = if size <= 4 * MIB || twice <= 2 * KIB {
            2 * MIB
        } else if size <= 8 * MIB || twice <= 4 * KIB {
            4 * MIB
        } else if request <= 8 * MIB || twice <= 8 * KIB {
            8 * MIB
        } else {
            return (self.logical.into(), self.len.into());
        };
        let units = (bytes / unit).max(1);
        let logical = u64::from(self.logical);
        (logical - logical % units, units)
    }
}

/// Returns the logical start of `found` units that were found for the window `goal` of a request
/// and are fewer than the window. They are placed at the window's end, so that earlier data can
/// join later; or at its start, if the request is covered from there; otherwise at the request.
/// They lie within the window.
pub fn place(found: u32, goal: &Range<u64>, request: &Range<u64>) -> u64 {
    let found = u64::from(found);
    let at_end = goal.end.saturating_sub(found).max(goal.start);
    if at_end <= request.start {
        at_end
    } else if goal.start + found >= request.end {
        goal.start
    } else {
        request.start
    }
}
