//! Plans: the size of an image and the places of all content, before anything is written.
//!
//! # The exact size
//! Let the gap be the number of blocks that a file system of `n` blocks lacks for its content and
//! the free space. One more block reduces the gap by one at most: it is free at best. So if `n`
//! blocks have a gap of `g > 0`, no size below `n + g` is enough, and the steps from a size that is
//! too small, each by its gap, end at the smallest one. For example, 1000 blocks with a gap of 30
//! are followed by 1030; with these, a second group begins, with a gap of 5; 1035 are enough.

use crate::error::{Error, Result};
use crate::layout::placement::Placement;
use crate::layout::shapes::Shapes;
use crate::options::{BuildOptions, FreeSpace, ImageSize, number_of_threads};
use crate::tree::Tree;
use crate::write::Image;
use extant_blocks::BlockDevice;
use extant_format::{Geometry, Incompat};
use extant_mkfs::{Demand, FsLayout, Options};

/// Block size unless options have another, in bytes.
const BLOCK_SIZE: u32 = 4096;

/// Size of a file system that has room for everything, to check options and to learn the facts that
/// do not depend on the size. In bytes.
const PROBE: u64 = 64 << 30;

/// Size up to which a valid file system is searched, in bytes.
const MAX_SEARCH: u64 = 1 << 44;

/// Maximum number of steps to the exact size; a few are enough.
const MAX_STEPS: u32 = 10_000;

/// Maximum number of owners that a new quota file holds.
const MAX_OWNERS: usize = extant_format::quota::RECORDS;

/// Part of the blocks, and number of them at most, that the kernel keeps for its own metadata where
/// files have extents.
const KERNEL_RESERVE: (u64, u64) = (50, 4096);

/// The facts of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageFacts {
    /// Bytes of the image.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Inodes of the file system.
    pub inodes: u32,
    /// Inodes that are free.
    pub free_inodes: u32,
    /// UUID.
    pub uuid: [u8; 16],
}

/// A planned image. The same tree and options make the same plan, and the same bytes.
#[derive(Debug)]
pub struct ImagePlan<'t> {
    shapes: Shapes<'t>,
    layout: FsLayout,
    placement: Placement,
    threads: usize,
}

/// Returns the options of the file system that hold for all sizes.
pub(crate) fn options_of(build: &BuildOptions) -> Options {
    let mut options = build.mkfs.clone();
    options.block_size = options.block_size.or(Some(BLOCK_SIZE));
    options.size = None;
    options
}

/// Returns the facts of a file system that do not depend on its size.
pub(crate) fn probe(options: &Options) -> Result<FsLayout> {
    Ok(FsLayout::new(options, PROBE, Demand::new(1, Default::default(), true))?)
}

/// Plans the image of a tree. Nothing is read but the tree.
///
/// # Errors
/// [`Error::Layout`] for invalid options, [`Error::TooSmall`] if the tree does not fit into the
/// requested size, [`Error::Entry`] for a node that this file system cannot hold.
pub fn plan<'t>(tree: &'t Tree, options: &BuildOptions) -> Result<ImagePlan<'t>> {
    let planner = Planner::new(tree, options)?;
    let (layout, placement) = match options.size {
        ImageSize::Exact { free, inodes_free } => planner.exact(free, inodes_free)?,
        ImageSize::Bytes(bytes) => planner.fixed(bytes)?,
    };
    Ok(planner.finish(layout, placement, options.threads))
}

impl ImagePlan<'_> {
    /// Returns the facts of the image.
    pub fn facts(&self) -> ImageFacts {
        let geo = self.layout.geometry();
        let last = self.layout.first_inode().0 - 1 + self.inodes();
        ImageFacts {
            bytes: geo.blocks_count * u64::from(geo.block_size),
            block_size: geo.block_size,
            blocks: geo.blocks_count,
            free_blocks: self.layout.free_blocks(),
            inodes: geo.inodes_count,
            free_inodes: geo.inodes_count - last,
            uuid: geo.uuid,
        }
    }

    /// Returns the bytes of content in whole blocks, and the number of files, that
    /// [`ImagePlan::write_with`] tells in sum.
    pub fn content(&self) -> (u64, u64) {
        let size = u64::from(self.layout.geometry().block_size);
        let files = (0..self.shapes.numbers.len()).filter(|n| self.shapes.is_file(*n));
        files.fold((0, 0), |(bytes, files), position| {
            let runs = self.shapes.blocks(position);
            let blocks: u64 = runs.iter().map(|run| run.end - run.start).sum();
            let arrived = self.placement.arrival(&self.shapes, position).is_some();
            (bytes + if arrived { 0 } else { blocks * size }, files + 1)
        })
    }

    fn inodes(&self) -> u32 {
        self.shapes.inodes()
    }

    /// Writes the image to a device with at least the planned bytes, whose content is lost.
    ///
    /// # Errors
    /// Those of the device; [`Error::Content`] if content cannot be read or has changed. The device
    /// has no file system then.
    pub fn write_to(&self, device: &dyn BlockDevice) -> Result<ImageFacts> {
        self.write_with(device, &|_, _| {})
    }

    /// Writes as [`ImagePlan::write_to`] does, and tells how it goes on: `progress` gets the bytes
    /// of content and the files that were written since the last call, from any thread.
    ///
    /// # Errors
    /// Those of [`ImagePlan::write_to`].
    pub fn write_with(
        &self,
        device: &dyn BlockDevice,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<ImageFacts> {
        let image = Image {
            progress,
            tree: self.shapes.tree,
            shapes: &self.shapes,
            placement: &self.placement,
            geo: *self.layout.geometry(),
            time: self.layout.time(),
            first: self.layout.first_inode(),
            threads: self.threads,
        };
        self.layout.clone().write(device, &image)?;
        Ok(self.facts())
    }
}

/// The tree, and options that hold for all sizes.
pub(crate) struct Planner<'t> {
    pub shapes: Shapes<'t>,
    options: Options,
    pub demand: Demand,
    pub block_size: u64,
    /// Blocks of a cluster.
    cluster_ratio: u64,
}

/// A layout with everything in it.
pub(crate) type Placed = (FsLayout, Placement);

impl<'t> Planner<'t> {
    pub(crate) fn new(tree: &'t Tree, build: &BuildOptions) -> Result<Planner<'t>> {
        let probe = probe(&options_of(build))?;
        let geo = *probe.geometry();
        // All attempts must have the same identity.
        let options = probe.options().clone();
        let shapes = Shapes::new(tree, &geo)?;
        let demand = Demand::new(shapes.root_blocks(), shapes.owners(&geo), true);
        if demand.owners.iter().any(|owners| owners.len() > MAX_OWNERS) {
            let cause = format!("quota files of more than {MAX_OWNERS} owners");
            return Err(Error::Layout(extant_mkfs::Error::Unsupported(cause)));
        }
        let (block_size, cluster_ratio) = (geo.block_size.into(), geo.cluster_ratio().into());
        Ok(Planner { shapes, options, demand, block_size, cluster_ratio })
    }

    pub(crate) fn finish(
        self,
        layout: FsLayout,
        placement: Placement,
        threads: usize,
    ) -> ImagePlan<'t> {
        ImagePlan { shapes: self.shapes, layout, placement, threads: number_of_threads(threads) }
    }

    pub(crate) fn layout(&self, blocks: u64, inodes: Option<u64>) -> Result<FsLayout> {
        let bytes = blocks.saturating_mul(self.block_size);
        let mut options = self.options.clone();
        options.size = Some(bytes);
        options.inode_count = inodes.or(options.inode_count);
        let mut layout = FsLayout::new(&options, bytes, self.demand.clone())?;
        if self.shapes.has_large_files() {
            layout.require_large_files();
        }
        Ok(layout)
    }

    /// Returns the number of inodes that a layout must have, with `free` free ones.
    pub(crate) fn inodes(&self, layout: &FsLayout, free: u32) -> u64 {
        let own = u64::from(layout.first_inode().0) - 1;
        own + u64::from(self.shapes.inodes()) + u64::from(free)
    }

    /// Places everything in a file system of a number of blocks.
    fn fixed(&self, bytes: u64) -> Result<Placed> {
        let too_small = |error: Error| match (error, self.exact(FreeSpace::Bytes(0), 0)) {
            (Error::Layout(extant_mkfs::Error::TooSmall(_)), Ok((layout, _))) => {
                self.too_small(bytes, &layout)
            }
            (error, _) => error,
        };
        let blocks = bytes / self.block_size;
        let mut layout = self.layout(blocks, None).map_err(too_small)?;
        let needed = self.inodes(&layout, 0);
        if u64::from(layout.geometry().inodes_count) < needed {
            layout = self.with_inodes(&layout, blocks, needed).map_err(too_small)?;
        }
        let placement = Placement::new(&self.shapes, &layout, None)?;
        if placement.free.missing(placement.end) > 0 {
            let (exact, _) = self.exact(FreeSpace::Bytes(0), 0)?;
            return Err(self.too_small(bytes, &exact));
        }
        Ok(taken(layout, placement))
    }

    fn too_small(&self, asked: u64, exact: &FsLayout) -> Error {
        let needed = Some(exact.geometry().blocks_count * self.block_size);
        Error::TooSmall { asked, needed }
    }

    /// Finds the smallest file system with room for everything and the free space.
    pub(crate) fn exact(&self, free: FreeSpace, inodes_free: u32) -> Result<Placed> {
        let mut blocks = self.smallest(inodes_free)?;
        for _ in 0..MAX_STEPS {
            // No content goes to a part of a cluster.
            blocks = blocks.next_multiple_of(self.cluster_ratio);
            let layout = match self.exact_layout(blocks, inodes_free) {
                Ok(layout) => layout,
                // The last group has no room for its tables.
                Err(Error::Layout(extant_mkfs::Error::TooSmall(_))) => {
                    blocks += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let placement = Placement::new(&self.shapes, &layout, None)?;
            let Some(next) = self.next_size(&layout, &placement, free, blocks)? else {
                return Ok(taken(layout, placement));
            };
            let effective = layout.geometry().blocks_count;
            blocks =
                if next > blocks { next } else { self.beyond(effective, blocks, inodes_free)? };
        }
        Err(Error::Layout(extant_mkfs::Error::Invalid("no size has this free space".into())))
    }

    /// Returns a layout with exactly the inodes that are needed, rounded up to whole tables.
    fn exact_layout(&self, blocks: u64, inodes_free: u32) -> Result<FsLayout> {
        if self.options.inode_count.is_some() || self.options.inode_ratio.is_some() {
            let layout = self.layout(blocks, None)?;
            let needed = self.inodes(&layout, inodes_free);
            if u64::from(layout.geometry().inodes_count) >= needed {
                return Ok(layout);
            }
        }
        // The number of the file system's own inodes depends on features that small ones lack.
        let most = u64::from(extant_format::InodeNr::FIRST_ORDINARY.0) + 2;
        let guess = self.layout(blocks, Some(most + u64::from(self.shapes.inodes())))?;
        self.with_inodes(&guess, blocks, self.inodes(&guess, inodes_free))
    }

    /// Returns a layout with at least `needed` inodes, and no table block more than that takes.
    fn with_inodes(&self, guess: &FsLayout, blocks: u64, needed: u64) -> Result<FsLayout> {
        let geo = guess.geometry();
        // mkfs rounds the inodes of a group down to bytes of its bitmap, and to blocks of its
        // table.
        let unit = u64::from(geo.inodes_per_block().max(8));
        let groups = u64::from(geo.groups_count);
        let count = needed.div_ceil(groups).next_multiple_of(unit) * groups;
        let layout = self.layout(blocks, Some(count))?;
        if u64::from(layout.geometry().inodes_count) < needed {
            let cause = format!("{needed} inodes have no room");
            return Err(Error::Layout(extant_mkfs::Error::TooSmall(cause)));
        }
        Ok(layout)
    }

    /// Returns the smallest number of blocks for which options are valid and that hold the file
    /// system's own structures.
    fn smallest(&self, inodes_free: u32) -> Result<u64> {
        let valid = |blocks| self.exact_layout(blocks, inodes_free);
        let (mut low, mut high) = (0, 64);
        loop {
            match valid(high) {
                Ok(_) => break,
                Err(error) if high * self.block_size >= MAX_SEARCH => return Err(error),
                Err(_) => (low, high) = (high, high * 2),
            }
        }
        while low + 1 < high {
            let middle = low.midpoint(high);
            if valid(middle).is_ok() { high = middle } else { low = middle }
        }
        Ok(high)
    }

    /// Returns a lower bound of the size that is enough, in blocks; `None` if this one is, of
    /// `blocks` blocks.
    fn next_size(
        &self,
        layout: &FsLayout,
        placement: &Placement,
        free: FreeSpace,
        blocks: u64,
    ) -> Result<Option<u64>> {
        let geo = layout.geometry();
        let asked = match free {
            FreeSpace::Bytes(bytes) => bytes.div_ceil(self.block_size),
            FreeSpace::Percent(percent) => {
                (blocks as f64 * percent.clamp(0.0, 99.0) / 100.0) as u64
            }
        };
        let asked = asked.next_multiple_of(geo.cluster_ratio().into());
        let beside =
            if asked > 0 { placement.map_of_free(geo, asked)? + kernel_reserve(geo) } else { 0 };
        let needed = placement.free.missing(placement.end) + asked + beside;
        let gap = needed.saturating_sub(placement.free.left(placement.end));
        Ok((gap > 0).then(|| placement.free.end() + gap))
    }

    /// Returns the smallest size above `blocks` that gives the file system more than `effective`
    /// blocks: those at the end are left out if they are too few for a group.
    fn beyond(&self, effective: u64, blocks: u64, inodes_free: u32) -> Result<u64> {
        let more = |blocks| -> Result<bool> {
            Ok(self.exact_layout(blocks, inodes_free)?.geometry().blocks_count > effective)
        };
        let (mut low, mut step) = (blocks, 1);
        while !more(low + step).unwrap_or(false) {
            if step > blocks {
                return Ok(blocks + 1);
            }
            (low, step) = (low + step, step * 2);
        }
        let mut high = low + step;
        while low + 1 < high {
            let middle = low.midpoint(high);
            if more(middle).unwrap_or(false) { high = middle } else { low = middle }
        }
        Ok(high)
    }
}

/// Returns the number of blocks that the kernel keeps for its own metadata.
fn kernel_reserve(geo: &Geometry) -> u64 {
    if !geo.incompat(Incompat::EXTENTS) {
        return 0;
    }
    let clusters = geo.blocks_count.div_ceil(geo.cluster_ratio().into());
    (clusters / KERNEL_RESERVE.0).min(KERNEL_RESERVE.1) << geo.cluster_bits
}

/// Takes the blocks of all content out of the free space.
pub(crate) fn taken(mut layout: FsLayout, placement: Placement) -> Placed {
    let first = u64::from(layout.geometry().first_data_block);
    let end = placement.end.at.min(layout.geometry().blocks_count);
    layout.take(first..end);
    (layout, placement)
}
