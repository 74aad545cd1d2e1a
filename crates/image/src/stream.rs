//! Content that arrives once, and goes to its place in the image before the tree is known.
//!
//! Size and number of inodes determine where tables, journal and the other structures lie, and so
//! which blocks are free. Files take these in the order of their arrival, each with the nodes of
//! its map behind its data. When the tree is complete, the layout is made around them: directories
//! and attributes follow the last file. For example, with free blocks from 100 on, a file of 10
//! blocks takes 100 to 109, the next one goes to 110, and the first directory behind both.
//!
//! Content that no name leads to in the end, since a later entry has replaced it, is zeroed, and
//! its blocks are free.

use crate::error::{Error, Result};
use crate::layout::placement::{Arrived, Placement, take_file};
use crate::layout::shapes::{exceeds_map, file_blocks};
use crate::layout::space::{Cursor, FreeRuns};
use crate::options::{BuildOptions, FreeSpace, ImageSize};
use crate::plan::ImagePlan;
use crate::planner::{Placed, Planner, options_of, probe, taken};
use crate::tree::{NodeId, StoredContent, Tree};
use crate::write::Sink;
use extant_blocks::{AlignedDevice, BlockDevice};
use extant_format::{Geometry, Incompat};
use extant_mkfs::{Demand, FsLayout, MappedRun};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;

/// Maximum number of sizes that are tried to name one that is enough.
const MAX_TRIES: u32 = 20;

/// Bytes that are written without a copy, where so many arrive at once.
const DIRECT: usize = 32 << 10;

/// A place for content that is read once.
pub trait ContentSink {
    /// Begins a file of `size` bytes with data in `ranges`, ascending and disjoint. Returns the
    /// position of its content in the source of [`Tree::add_arrivals`].
    ///
    /// # Errors
    /// [`Error`] for a file that no image can hold, and those of the device.
    fn begin(&mut self, size: u64, ranges: &[Range<u64>]) -> Result<u64>;

    /// Takes the next bytes of the file's ranges.
    ///
    /// # Errors
    /// Those of the device.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// An image of a given size to which content goes as it arrives.
pub struct ContentStream<'d> {
    sink: Sink<AlignedDevice<&'d dyn BlockDevice>>,
    options: BuildOptions,
    geo: Geometry,
    free: FreeRuns,
    /// Place behind the last file.
    end: Cursor,
    /// The content exceeds the image; it is counted, but not written.
    is_full: bool,
    file: Option<Arriving>,
}

/// A file whose content arrives.
struct Arriving {
    /// Places of blocks that are not complete.
    runs: VecDeque<MappedRun>,
    /// Ranges with data that have not arrived.
    ranges: VecDeque<Range<u64>>,
    /// Byte of the file that is written next.
    at: u64,
}

/// Returns the layout that determines the free blocks.
fn first_layout(options: &BuildOptions) -> Result<FsLayout> {
    let ImageSize::Bytes(bytes) = options.size else {
        let cause = "content can only be streamed into an image of a given size";
        return Err(Error::Layout(extant_mkfs::Error::Invalid(cause.into())));
    };
    let mut mkfs = options_of(options);
    let block_size = u64::from(probe(&mkfs)?.geometry().block_size);
    let bytes = bytes - bytes % block_size;
    mkfs.size = Some(bytes);
    Ok(FsLayout::new(&mkfs, bytes, Demand::new(1, Default::default(), true))?)
}

impl<'d> ContentStream<'d> {
    /// Returns the bytes of the image if content can be streamed into it: its size and the number
    /// of its inodes are given, and no content lies in inodes.
    ///
    /// # Errors
    /// [`Error::Layout`] for invalid options.
    pub fn image_bytes(options: &BuildOptions) -> Result<Option<u64>> {
        if !matches!(options.size, ImageSize::Bytes(_)) || options.mkfs.inode_count.is_none() {
            return Ok(None);
        }
        if probe(&options_of(options))?.geometry().incompat(Incompat::INLINE_DATA) {
            return Ok(None);
        }
        match first_layout(options) {
            // The plan of the whole tree tells the size that is enough.
            Err(Error::Layout(extant_mkfs::Error::TooSmall(_))) => Ok(None),
            layout => {
                let geo = *layout?.geometry();
                Ok(Some(geo.blocks_count * u64::from(geo.block_size)))
            }
        }
    }

    /// Begins an image on a device that reads as zeroes, and has the bytes of the image.
    ///
    /// # Errors
    /// [`Error::Layout`] for invalid options, or a size that is too small for any content.
    pub fn new(device: &'d dyn BlockDevice, options: &BuildOptions) -> Result<ContentStream<'d>> {
        let layout = first_layout(options)?;
        let free = FreeRuns::new(&layout);
        let end = free.first();
        Ok(ContentStream {
            sink: Sink::new(AlignedDevice::new(device)),
            options: options.clone(),
            geo: *layout.geometry(),
            free,
            end,
            is_full: false,
            file: None,
        })
    }

    /// Plans the image of a tree that refers to the content. `options` must be those of
    /// [`ContentStream::new`], but for the identity and the time.
    ///
    /// # Errors
    /// Those of [`plan`](crate::plan), and those of the device.
    pub fn plan<'t>(mut self, tree: &'t Tree, options: &BuildOptions) -> Result<ImagePlan<'t>> {
        self.end_file()?;
        self.sink.flush()?;
        let mut options = options.clone();
        // The content is on the device.
        options.mkfs.discard = false;
        let mut planner = Planner::new(tree, &options)?;
        let (layout, placement) = self.place(&mut planner)?;
        Ok(ImagePlan::of(planner, layout, placement, options.threads))
    }

    fn place(mut self, planner: &mut Planner<'_>) -> Result<Placed> {
        let blocks = self.geo.blocks_count;
        let asked = blocks * planner.block_size;
        let kept = if self.is_full { None } else { Some(self.keep(planner.shapes.tree)?) };
        let arrived = Arrived { free: self.free, bytes: self.sink.written };
        let fits = match kept {
            None => None,
            Some(kept) => place_around(planner, blocks, (kept, arrived))?,
        };
        planner.demand.kept.clear();
        match fits {
            Some(placed) => Ok(placed),
            None => Err(Error::TooSmall { asked, needed: enough(planner, &self.options, asked)? }),
        }
    }

    /// Returns the blocks of content that names lead to, and zeroes those of the rest.
    fn keep(&mut self, tree: &Tree) -> Result<Vec<Range<u64>>> {
        let kept = kept(tree, &self.geo, &self.free)?;
        let size = u64::from(self.geo.block_size);
        let mut next = kept.iter().peekable();
        for run in self.free.between(self.free.first().at, self.end) {
            let mut at = run.start;
            while at < run.end {
                let kept = next.peek().filter(|kept| kept.start < run.end);
                let stop = kept.map_or(run.end, |kept| kept.start);
                if at < stop {
                    self.sink.zero(at * size..stop * size)?;
                }
                at = kept.map_or(run.end, |kept| kept.end);
                if kept.is_some() {
                    next.next();
                }
            }
        }
        Ok(kept)
    }

    /// Fills the last block of the file that arrived last.
    fn end_file(&mut self) -> io::Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let size = u64::from(self.geo.block_size);
        let end = file.runs.back().map_or(0, |(first, run)| (first + (run.end - run.start)) * size);
        file.advance(&mut self.sink, size, end, None)
    }
}

impl ContentSink for ContentStream<'_> {
    fn begin(&mut self, size: u64, ranges: &[Range<u64>]) -> Result<u64> {
        self.end_file()?;
        if let Some(cause) = exceeds_map(&self.geo, size) {
            return Err(Error::entry(b"", cause));
        }
        let start = self.end.at;
        if self.is_full {
            return Ok(start);
        }
        let runs = blocks_of(&self.geo, size, ranges.iter().cloned());
        let mapped = take_file(&self.free, &mut self.end, &self.geo, &runs);
        let mapped = mapped.map_err(|failure| Error::entry(b"", failure.cause()))?;
        self.is_full = self.free.missing(self.end) > 0;
        let ranges = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
        let file = Arriving { runs: mapped.into(), ranges, at: 0 };
        self.file = Some(file).filter(|_| !self.is_full);
        Ok(start)
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let size = self.geo.block_size.into();
        while !bytes.is_empty() {
            let Some(range) = file.ranges.pop_front() else {
                let cause = "more content than the ranges of the file have";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
            };
            let len = (range.end - range.start).min(bytes.len() as u64);
            let (part, rest) = bytes.split_at(len as usize);
            file.advance(&mut self.sink, size, range.start, None)?;
            file.advance(&mut self.sink, size, range.start + len, Some(part))?;
            bytes = rest;
            if range.start + len < range.end {
                file.ranges.push_front(range.start + len..range.end);
            }
        }
        Ok(())
    }
}

impl Arriving {
    /// Writes up to byte `to` of the file: `bytes`, or zeroes in blocks that have data elsewhere.
    fn advance(
        &mut self,
        sink: &mut Sink<impl BlockDevice>,
        block_size: u64,
        to: u64,
        mut bytes: Option<&[u8]>,
    ) -> io::Result<()> {
        while self.at < to {
            let Some((first, run)) = self.runs.front().cloned() else { break };
            let start = first * block_size;
            let end = start + (run.end - run.start) * block_size;
            if self.at < start {
                // A hole.
                self.at = start.min(to);
                continue;
            }
            let len = end.min(to).saturating_sub(self.at);
            let direct = bytes.and_then(|all| all.get(..len as usize));
            if let Some(direct) = direct.filter(|direct| direct.len() >= DIRECT) {
                sink.write(run.start * block_size + (self.at - start), direct)?;
                bytes = bytes.and_then(|all| all.get(direct.len()..));
                self.at += len;
            } else if len > 0 {
                let part = sink.reserve(run.start * block_size + (self.at - start), len)?;
                let len = part.len();
                let all = bytes.unwrap_or_default();
                let (head, rest) = all.split_at(len.min(all.len()));
                let (data, zeroes) = part.split_at_mut(head.len());
                data.copy_from_slice(head);
                zeroes.fill(0);
                bytes = bytes.map(|_| rest);
                self.at += len as u64;
            }
            // The last run stays until the end of the file is known.
            if self.at >= end && self.runs.len() > 1 {
                self.runs.pop_front();
            } else if self.at >= end {
                break;
            }
        }
        self.at = self.at.max(to);
        Ok(())
    }
}

fn blocks_of(
    geo: &Geometry,
    size: u64,
    ranges: impl Iterator<Item = Range<u64>>,
) -> Vec<Range<u64>> {
    let unit = (geo.block_size.into(), geo.cluster_ratio().into());
    file_blocks(unit, size, ranges.filter(|range| !range.is_empty()))
}

/// Returns the logical blocks of a file that has arrived.
fn arrived_blocks(tree: &Tree, geo: &Geometry, node: NodeId) -> Option<Vec<Range<u64>>> {
    tree.arrival(node)?;
    let (size, content) = tree.file_content(node)?;
    Some(match content {
        StoredContent::Sparse { index, .. } => {
            blocks_of(geo, size, tree.ranges(index).iter().map(|range| range.start..range.end()))
        }
        _ => blocks_of(geo, size, std::iter::once(0..size)),
    })
}

/// Returns the blocks of files with names, and of the nodes of their maps, ascending.
fn kept(tree: &Tree, geo: &Geometry, free: &FreeRuns) -> Result<Vec<Range<u64>>> {
    let mut places = Vec::new();
    for node in (0..tree.node_count()).filter_map(|number| tree.node_at(number)) {
        let start = tree.arrival(node).filter(|_| tree.node(node).links > 0);
        let (Some(start), Some(runs)) = (start, arrived_blocks(tree, geo, node)) else { continue };
        let mut end = free.cursor(start);
        let taken = take_file(free, &mut end, geo, &runs);
        taken.map_err(|failure| Error::entry(&tree.path_of(node), failure.cause()))?;
        places.push((start, end));
    }
    places.sort_unstable_by_key(|(start, _)| *start);
    let mut kept: Vec<Range<u64>> = Vec::new();
    for range in places.into_iter().flat_map(|(start, end)| free.between(start, end)) {
        match kept.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => kept.push(range),
        }
    }
    Ok(kept)
}

/// Places the rest of a tree around content. `None` if the image is too small.
fn place_around(
    planner: &mut Planner<'_>,
    blocks: u64,
    (kept, arrived): (Vec<Range<u64>>, Arrived),
) -> Result<Option<Placed>> {
    planner.demand.kept = kept;
    let layout = match planner.layout(blocks, None) {
        Err(Error::Layout(extant_mkfs::Error::TooSmall(_))) => return Ok(None),
        layout => layout?,
    };
    let (needed, inodes) = (planner.inodes(&layout, 0), layout.geometry().inodes_count);
    if u64::from(inodes) < needed {
        let cause = format!("{needed} inodes are needed, and {inodes} were asked for");
        return Err(Error::Layout(extant_mkfs::Error::TooSmall(cause)));
    }
    let placement = Placement::new(&planner.shapes, &layout, Some(arrived))?;
    let fits = placement.free.missing(placement.end) == 0;
    Ok(fits.then(|| taken(layout, placement)))
}

/// Returns a size, at least `asked`, that is enough for content in the order of its arrival; `None`
/// if no size that was tried is.
fn enough(planner: &mut Planner<'_>, options: &BuildOptions, asked: u64) -> Result<Option<u64>> {
    let (exact, _) = planner.exact(FreeSpace::Bytes(0), 0)?;
    let geo = exact.geometry();
    // Replaced content has arrived, too.
    let blocks = geo.blocks_count + nameless_blocks(planner.shapes.tree, geo);
    let mut bytes = (blocks * planner.block_size).max(asked);
    let mut step = planner.block_size;
    for _ in 0..MAX_TRIES {
        let found = arrives(planner, options, bytes)?;
        if found.is_some() {
            return Ok(found);
        }
        (bytes, step) = (bytes + step, step * 2);
    }
    Ok(None)
}

/// Returns the number of blocks of content that has arrived and that no name leads to.
fn nameless_blocks(tree: &Tree, geo: &Geometry) -> u64 {
    let nodes = (0..tree.node_count()).filter_map(|number| tree.node_at(number));
    let nameless = nodes.filter(|node| tree.node(*node).links == 0);
    let runs = nameless.filter_map(|node| arrived_blocks(tree, geo, node)).flatten();
    runs.map(|run| run.end - run.start).sum()
}

/// Returns the bytes of an image of this size if everything fits in the order of its arrival.
fn arrives(planner: &mut Planner<'_>, options: &BuildOptions, bytes: u64) -> Result<Option<u64>> {
    let options = BuildOptions { size: ImageSize::Bytes(bytes), ..options.clone() };
    let layout = match first_layout(&options) {
        Err(Error::Layout(extant_mkfs::Error::TooSmall(_))) => return Ok(None),
        layout => layout?,
    };
    let (geo, free) = (*layout.geometry(), FreeRuns::new(&layout));
    let (begin, mut end) = (free.first(), free.first());
    let tree = planner.shapes.tree;
    for node in (0..tree.node_count()).filter_map(|number| tree.node_at(number)) {
        let Some(runs) = arrived_blocks(tree, &geo, node) else { continue };
        let taken = take_file(&free, &mut end, &geo, &runs);
        taken.map_err(|failure| Error::entry(&tree.path_of(node), failure.cause()))?;
    }
    if free.missing(end) > 0 {
        return Ok(None);
    }
    // As if names led to all of it.
    let kept = free.between(begin.at, end).collect();
    planner.demand.kept = kept;
    let placed = planner.layout(geo.blocks_count, None);
    planner.demand.kept.clear();
    let layout = match placed {
        Err(Error::Layout(extant_mkfs::Error::TooSmall(_))) => return Ok(None),
        layout => layout?,
    };
    let arrived = Arrived { free, bytes: 0 };
    let placement = Placement::new(&planner.shapes, &layout, Some(arrived))?;
    let fits = placement.free.missing(placement.end) == 0;
    Ok(fits.then_some(geo.blocks_count * planner.block_size))
}
