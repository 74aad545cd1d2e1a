//! Runs that small files share. Each file takes its blocks from the front of a chunk near its goal,
//! so files that are created together lie together.
//!
//! # Invariants
//! - A chunk is on the list of the power of two of its remaining units (the last list has the
//!   larger ones, too).
//! - A list of more than [`MAX_LIST`] chunks is cut at the next addition.

use std::ops::Range;

const ORDERS: usize = 10;
/// A list longer than this is cut to [`CUT_LIST`] chunks, the oldest first.
const MAX_LIST: usize = 8;
const CUT_LIST: usize = 5;
/// Units of a new chunk.
const CHUNK: u32 = 512;

/// Contiguous units of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The first unit.
    pub physical: u64,
    /// Number of units.
    pub len: u32,
}

/// The shared runs of one processor.
#[derive(Debug, Default)]
pub struct Locality {
    lists: [Vec<Chunk>; ORDERS],
}

fn order(len: u32) -> usize {
    (len.checked_ilog2().unwrap_or(0) as usize).min(ORDERS - 1)
}

impl Locality {
    /// Returns the units to request when no chunk fits: a multiple of the stripe, if there is one.
    pub fn goal_len(stripe: u32) -> u32 {
        CHUNK.checked_next_multiple_of(stripe.max(1)).unwrap_or(CHUNK)
    }

    /// Takes `len` units (not 0) from the front of the chunk nearest to `goal` that has them and
    /// begins within `reach`.
    pub fn take(&mut self, goal: u64, len: u32, reach: &Range<u64>) -> Option<Chunk> {
        let fits = |chunk: &Chunk| chunk.len >= len && reach.contains(&chunk.physical);
        let lists = self.lists.iter().enumerate().skip(order(len));
        let all = lists.flat_map(|(list, chunks)| {
            chunks.iter().enumerate().map(move |(at, chunk)| (list, at, *chunk))
        });
        let (list, at, chunk) = all
            .filter(|(_, _, chunk)| fits(chunk))
            .min_by_key(|(_, _, chunk)| chunk.physical.abs_diff(goal))?;
        self.lists.get_mut(list)?.remove(at);
        let rest = Chunk { physical: chunk.physical + u64::from(len), len: chunk.len - len };
        if let (true, Some(list)) = (rest.len > 0, self.lists.get_mut(order(rest.len))) {
            list.push(rest);
        }
        Some(Chunk { len, ..chunk })
    }

    /// Adds a chunk. Returns the excess chunks, which the caller must free.
    pub fn add(&mut self, chunk: Chunk) -> Vec<Chunk> {
        if let (true, Some(list)) = (chunk.len > 0, self.lists.get_mut(order(chunk.len))) {
            list.push(chunk);
        }
        let too_long = self.lists.iter_mut().filter(|list| list.len() > MAX_LIST);
        too_long.flat_map(|list| list.drain(..list.len() - CUT_LIST)).collect()
    }

    /// Removes and returns all chunks.
    pub fn drain(&mut self) -> Vec<Chunk> {
        self.lists.iter_mut().flat_map(std::mem::take).collect()
    }

    /// Returns the units of all chunks.
    pub fn free(&self) -> u64 {
        self.lists.iter().flatten().map(|chunk| u64::from(chunk.len)).sum()
    }

    /// Returns the number of chunks.
    pub fn len(&self) -> usize {
        self.lists.iter().map(Vec::len).sum()
    }

    /// Returns whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.lists.iter().all(Vec::is_empty)
    }
}
