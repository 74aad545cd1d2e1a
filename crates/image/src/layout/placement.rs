//! The places of all content in a file system of a known size.
//!
//! Content takes free blocks in this order: nodes of the root's map, blocks of extended attributes,
//! directories, values with inodes of their own, files. The blocks of an inode are its data and
//! then the nodes of its map, so that its first block determines all of them.

use super::numbers::Position;
use super::shapes::Shapes;
use super::space::{Cursor, FreeRuns, from_start};
use crate::error::{Error, Result};
use crate::tree::XattrSetId;
use extant_format::extent::{self, MAX_WRITTEN_LEN, ROOT_SIZE};
use extant_format::indirect::DIRECT;
use extant_format::xattr::REFCOUNT_MAX;
use extant_format::{Geometry, Incompat};
use extant_mkfs::{FsLayout, MappedRun, build_map};
use std::ops::Range;

/// Places of all content.
#[derive(Debug)]
pub(crate) struct Placement {
    pub free: FreeRuns,
    /// Pieces of the root, and of `lost+found` if the tree has it, by position.
    fixed: Vec<Vec<Range<u64>>>,
    /// First block of each node, by position.
    starts: Vec<u64>,
    /// First block of each value with an inode of its own.
    values: Vec<u64>,
    /// Blocks of attributes of each set.
    pub xattr_blocks: Vec<Vec<u64>>,
    /// Nodes with a block of attributes, and the block.
    users: Vec<(Position, u64)>,
    /// Place behind all content.
    pub end: Cursor,
    /// Content that was written before.
    arrived: Option<Arrived>,
}

/// Content that was written to its places before the rest of the tree was known.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// The free space that it was placed in.
    pub free: FreeRuns,
    /// Bytes written.
    pub bytes: u64,
}

/// The blocks of a node, the free space that has them, and the place of the nodes of its map.
pub(crate) struct Blocks<'a> {
    pub runs: Vec<MappedRun>,
    pub free: &'a FreeRuns,
    pub nodes: Cursor,
}

impl Placement {
    /// Places everything in the free space of a layout, but for content that has arrived. Blocks
    /// behind the end of the file system are taken if it is too small; see [`FreeRuns::missing`].
    pub(crate) fn new(
        shapes: &Shapes<'_>,
        layout: &FsLayout,
        arrived: Option<Arrived>,
    ) -> Result<Placement> {
        let (geo, free) = (layout.geometry(), FreeRuns::new(layout));
        let mut end = free.first();
        let count = shapes.numbers.len();
        let mut starts = Vec::with_capacity(count as usize);
        let mut fixed = vec![layout.root().to_vec()];
        fixed.extend(shapes.numbers.lost_found().map(|_| layout.lost_found().to_vec()));
        for (position, pieces) in (0..).zip(&fixed) {
            starts.push(end.at);
            for _ in 0..map_nodes(geo, &dense(pieces)).map_err(|e| e.at(shapes, position))? {
                free.take_one(&mut end);
            }
        }
        let mut placement = Placement {
            xattr_blocks: take_xattr_blocks(shapes, &free, &mut end),
            free,
            fixed,
            starts,
            values: Vec::new(),
            users: Vec::new(),
            end,
            arrived,
        };
        placement.assign_xattr_blocks(shapes);
        (shapes.numbers.fixed()..shapes.numbers.directories())
            .try_for_each(|n| placement.place(shapes, geo, n))?;
        placement.place_values(shapes, geo)?;
        (shapes.numbers.directories().max(1)..count)
            .try_for_each(|n| placement.place(shapes, geo, n))?;
        Ok(placement)
    }

    fn assign_xattr_blocks(&mut self, shapes: &Shapes<'_>) {
        let mut used = vec![0; self.xattr_blocks.len()];
        for position in 0..shapes.numbers.len() {
            let set = shapes.tree.node(shapes.numbers.node(position)).xattrs.0 as usize;
            let block = self.xattr_blocks[set].get(used[set] / REFCOUNT_MAX as usize);
            if let Some(block) = block {
                self.users.push((position, *block));
                used[set] += 1;
            }
        }
    }

    fn place(&mut self, shapes: &Shapes<'_>, geo: &Geometry, position: Position) -> Result<()> {
        let start = match self.arrival(shapes, position) {
            Some(start) => start,
            None => self.take(geo, &shapes.blocks(position)).map_err(|e| e.at(shapes, position))?,
        };
        self.starts.push(start);
        Ok(())
    }

    fn place_values(&mut self, shapes: &Shapes<'_>, geo: &Geometry) -> Result<()> {
        for value in &shapes.xattrs.values {
            let len = shapes.xattrs.value(shapes.tree, value).len() as u64;
            let runs = from_start(len.div_ceil(geo.block_size.into()));
            let start = self.take(geo, &runs).map_err(|e| e.at(shapes, 0))?;
            self.values.push(start);
        }
        Ok(())
    }

    /// Takes the blocks of an inode; returns the first place.
    fn take(&mut self, geo: &Geometry, runs: &[Range<u64>]) -> Result<u64, MapFailure> {
        let start = self.end.at;
        take_file(&self.free, &mut self.end, geo, runs)?;
        Ok(start)
    }

    /// Returns the number of blocks that the map of a file of `blocks` blocks takes, if the file
    /// lies behind all content.
    pub(crate) fn map_of_free(&self, geo: &Geometry, blocks: u64) -> Result<u64> {
        let mut cursor = self.end;
        let mapped = self.free.take(&mut cursor, &from_start(blocks));
        let nodes = map_nodes(geo, &mapped).map_err(|MapFailure(error)| error)?;
        // The kernel may divide a file into more extents than there are free runs, into one for
        // each block at worst.
        let in_inode = u64::from(extent::capacity(ROOT_SIZE));
        let divided = geo.incompat(Incompat::EXTENTS) && blocks > in_inode << geo.cluster_bits;
        Ok(nodes.max(divided.into()) << geo.cluster_bits)
    }

    /// Returns the blocks of a node, and the place of the nodes of its map.
    pub(crate) fn blocks(&self, shapes: &Shapes<'_>, position: Position) -> Blocks<'_> {
        let arrived = self.arrived.as_ref().filter(|_| self.arrival(shapes, position).is_some());
        let free = arrived.map_or(&self.free, |arrived| &arrived.free);
        let mut nodes = free.cursor(self.starts[position as usize]);
        let runs = match self.fixed.get(position as usize) {
            Some(pieces) => dense(pieces),
            None => free.take(&mut nodes, &shapes.blocks(position)),
        };
        Blocks { runs, free, nodes }
    }

    /// Returns the first block of a node whose content was written before.
    pub(crate) fn arrival(&self, shapes: &Shapes<'_>, position: Position) -> Option<u64> {
        self.arrived.as_ref().and_then(|_| shapes.tree.arrival(shapes.numbers.node(position)))
    }

    /// Returns the number of bytes that were written before.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        self.arrived.as_ref().map_or(0, |arrived| arrived.bytes)
    }

    /// Returns the blocks of a value of `blocks` blocks, and the place of the nodes of its map.
    pub(crate) fn value_blocks(&self, value: usize, blocks: u64) -> (Vec<MappedRun>, Cursor) {
        let mut cursor = self.free.cursor(self.values[value]);
        let mapped = self.free.take(&mut cursor, &from_start(blocks));
        (mapped, cursor)
    }

    /// Returns the block of a node's attributes; 0 for none.
    pub(crate) fn xattr_block(&self, position: Position) -> u64 {
        let at = self.users.binary_search_by_key(&position, |(position, _)| *position);
        at.ok().and_then(|at| self.users.get(at)).map_or(0, |(_, block)| *block)
    }

    /// Returns the number of nodes with attributes in a block of a set.
    pub(crate) fn references(&self, shapes: &Shapes<'_>, set: XattrSetId, block: usize) -> u32 {
        let users = shapes.users[set.0 as usize] - block as u64 * u64::from(REFCOUNT_MAX);
        users.min(REFCOUNT_MAX.into()) as u32
    }
}

fn take_xattr_blocks(shapes: &Shapes<'_>, free: &FreeRuns, end: &mut Cursor) -> Vec<Vec<u64>> {
    let sets = (0..).zip(&shapes.users);
    let blocks = |(set, users): (u32, &u64)| {
        let has = shapes.xattrs.set(XattrSetId(set)).has_block();
        if has { users.div_ceil(REFCOUNT_MAX.into()) } else { 0 }
    };
    sets.map(blocks).map(|count| (0..count).map(|_| free.take_one(end)).collect()).collect()
}

/// Takes the blocks of an inode, and behind them those of the nodes of its map. Returns the former.
pub(crate) fn take_file(
    free: &FreeRuns,
    end: &mut Cursor,
    geo: &Geometry,
    runs: &[Range<u64>],
) -> Result<Vec<MappedRun>, MapFailure> {
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let mapped = free.take(end, runs);
    for _ in 0..map_nodes(geo, &mapped)? {
        free.take_one(end);
    }
    Ok(mapped)
}

/// Returns the runs of a file without holes, whose blocks are `pieces`.
fn dense(pieces: &[Range<u64>]) -> Vec<MappedRun> {
    let mut logical = 0;
    let run = |piece: &Range<u64>| {
        let first = logical;
        logical += piece.end - piece.start;
        (first, piece.clone())
    };
    pieces.iter().map(run).collect()
}

/// A file that its inode cannot map.
pub(crate) struct MapFailure(extant_mkfs::Error);

impl MapFailure {
    /// Returns the cause.
    pub(crate) fn cause(self) -> extant_mkfs::Error {
        self.0
    }

    fn at(self, shapes: &Shapes<'_>, position: Position) -> Error {
        Error::entry(&shapes.tree.path_of(shapes.numbers.node(position)), self.0)
    }
}

/// Returns the number of nodes that a map has beside the inode.
fn map_nodes(geo: &Geometry, runs: &[MappedRun]) -> Result<u64, MapFailure> {
    let small = if geo.incompat(Incompat::EXTENTS) {
        let leaves =
            runs.iter().map(|(_, run)| (run.end - run.start).div_ceil(MAX_WRITTEN_LEN.into()));
        leaves.sum::<u64>() <= extent::capacity(ROOT_SIZE).into()
    } else {
        runs.last().is_none_or(|(first, run)| first + (run.end - run.start) <= DIRECT as u64)
    };
    if small {
        return Ok(0);
    }
    // The places of blocks do not count, and those behind the end exceed the range of maps.
    let runs: Vec<MappedRun> = runs.iter().map(|(first, run)| (*first, low(run))).collect();
    let map = build_map(geo, 0, &runs, &mut || Ok(1)).map_err(MapFailure)?;
    Ok(map.nodes.len() as u64)
}

/// Returns a run of the same length at a low place.
fn low(run: &Range<u64>) -> Range<u64> {
    1..1 + (run.end - run.start)
}
