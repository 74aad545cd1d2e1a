//! The size of an image.
//!
//! # The exact size
//! Let the gap be the number of blocks that a file system of `n` blocks lacks for its content and
//! the free space. As long as the number of groups is the same, one more block reduces the gap by
//! one at most: it is free at best. More groups may have tables of inodes with fewer blocks in all,
//! since each group has whole ones: up to `r` blocks fewer. So if `n` blocks have a gap of `g > 0`,
//! no size below `n + g` is enough with as many groups, and none below `n + g - r` with more. The
//! steps from a size that is too small, each to the least size that can be enough, end at the
//! smallest one. For example, 1000 blocks with a gap of 30 are followed by 1030; with these, a
//! second group begins, with a gap of 5; 1035 are enough.
//!
//! # A given size
//! Inodes are those that mkfs makes for the size. If content lacks the space of their tables, the
//! inodes that are needed are made. If it does not fit then either, the steps from this size on end
//! at the next one that is enough.

use crate::error::{Error, Result};
use crate::layout::placement::Placement;
use crate::layout::shapes::Shapes;
use crate::options::{BuildOptions, FreeSpace};
use crate::tree::Tree;
use extant_format::{Compat, Features, Geometry, Incompat, RoCompat};
use extant_mkfs::{Demand, FsLayout, Options};

/// Block size unless options have another, in bytes.
const BLOCK_SIZE: u32 = 4096;

/// Size of a file system that has room for everything, to check options and to learn the facts that
/// do not depend on the size. Options that are valid for smaller ones alone, such as groups with
/// few blocks for descriptors, are checked at half of it, and so on. In bytes.
const PROBE: u64 = 64 << 30;

/// Smallest size at which options are checked, in bytes.
const SMALLEST_PROBE: u64 = 64 << 10;

/// Size up to which a valid file system is searched, in bytes.
const MAX_SEARCH: u64 = 1 << 44;

/// Maximum number of steps to the exact size; a few are enough.
const MAX_STEPS: u32 = 10_000;

/// Maximum number of owners that a new quota file holds.
const MAX_OWNERS: usize = extant_format::quota::RECORDS;

/// Part of the blocks, and number of them at most, that the kernel keeps for its own metadata where
/// files have extents.
const KERNEL_RESERVE: (u64, u64) = (50, 4096);

/// Returns the options of the file system that hold for all sizes.
pub(crate) fn options_of(build: &BuildOptions) -> Options {
    let mut options = build.mkfs.clone();
    options.block_size = options.block_size.or(Some(BLOCK_SIZE));
    options.size = None;
    options
}

/// Returns the facts of a file system that do not depend on its size: those of the largest one of
/// the probed sizes for which options are valid.
///
/// # Errors
/// That of the largest size, if options are valid for none.
pub(crate) fn probe(options: &Options) -> Result<FsLayout> {
    let at = |bytes| FsLayout::new(options, bytes, Demand::new(1, Default::default(), true));
    let refused = match at(PROBE) {
        Ok(layout) => return Ok(layout),
        Err(error) => error,
    };
    let smaller = std::iter::successors(Some(PROBE / 2), |bytes| Some(bytes / 2));
    let mut smaller = smaller.take_while(|bytes| *bytes >= SMALLEST_PROBE);
    smaller.find_map(|bytes| at(bytes).ok()).ok_or_else(|| refused.into())
}

/// The tree, and options that hold for all sizes.
pub(crate) struct Planner<'t> {
    pub shapes: Shapes<'t>,
    options: Options,
    /// Features that the content needs.
    required: Features,
    pub demand: Demand,
    pub block_size: u64,
    /// Blocks of a cluster.
    cluster_ratio: u64,
}

/// Returns the features that content needs.
fn required(shapes: &Shapes<'_>) -> Features {
    let mut features = Features::default();
    features.ro_compat.set(RoCompat::LARGE_FILE, shapes.has_large_files());
    features.compat.set(Compat::EXT_ATTR, shapes.has_xattrs());
    features
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
        let required = required(&shapes);
        if options.revision == 0 && required != Features::default() {
            let cause = "a file system of revision 0 has no features, which attributes and files \
                         of 2 GiB need: leave them out (-E no_copy_xattrs), or take revision 1";
            return Err(Error::Layout(extant_mkfs::Error::Unsupported(cause.into())));
        }
        let mut demand = Demand::new(shapes.root_blocks(), shapes.owners(&geo), true);
        demand.lost_found = shapes.lost_found_blocks();
        if demand.owners.iter().any(|owners| owners.len() > MAX_OWNERS) {
            let cause = format!("quota files of more than {MAX_OWNERS} owners");
            return Err(Error::Layout(extant_mkfs::Error::Unsupported(cause)));
        }
        let (block_size, cluster_ratio) = (geo.block_size.into(), geo.cluster_ratio().into());
        Ok(Planner { shapes, options, required, demand, block_size, cluster_ratio })
    }

    pub(crate) fn layout(&self, blocks: u64, inodes: Option<u64>) -> Result<FsLayout> {
        let bytes = blocks.saturating_mul(self.block_size);
        let mut options = self.options.clone();
        options.size = Some(bytes);
        options.inode_count = inodes.or(options.inode_count);
        let mut layout = FsLayout::new(&options, bytes, self.demand.clone())?;
        layout.require(self.required);
        Ok(layout)
    }

    /// Returns the number of inodes that a layout must have, with `free` free ones.
    pub(crate) fn inodes(&self, layout: &FsLayout, free: u32) -> u64 {
        let own = u64::from(layout.first_inode().0) - 1;
        own + u64::from(self.shapes.inodes()) + u64::from(free)
    }

    /// Places everything in a file system of a number of bytes: with as many inodes as mkfs makes,
    /// or if content lacks their space, with those that are needed.
    pub(crate) fn fixed(&self, bytes: u64) -> Result<Placed> {
        let blocks = bytes / self.block_size;
        let layouts: [fn(&Self, u64) -> Result<FsLayout>; 2] =
            [Self::default_layout, |planner, blocks| planner.exact_layout(blocks, 0)];
        let mut refused = Error::TooSmall { asked: bytes, needed: None };
        for layout in layouts {
            match layout(self, blocks).and_then(|layout| self.placed(layout)) {
                Ok(Some(placed)) => return Ok(placed),
                Ok(None) => {}
                Err(error @ Error::Layout(extant_mkfs::Error::TooSmall(_))) => refused = error,
                Err(error) => return Err(error),
            }
        }
        // Sizes below can be enough: a larger file system has a longer journal by default.
        let smallest = self.smallest(0).map_err(|_| refused)?;
        let (next, _) = self.search(smallest.max(blocks), FreeSpace::Bytes(0), 0)?;
        let needed = Some(next.geometry().blocks_count * self.block_size);
        Err(Error::TooSmall { asked: bytes, needed })
    }

    /// Places everything in a layout. `None` if it is too small.
    fn placed(&self, layout: FsLayout) -> Result<Option<Placed>> {
        let placement = Placement::new(&self.shapes, &layout, None)?;
        let fits = placement.free.missing(placement.end) == 0;
        Ok(fits.then(|| taken(layout, placement)))
    }

    /// Finds the smallest file system with room for everything and the free space.
    pub(crate) fn exact(&self, free: FreeSpace, inodes_free: u32) -> Result<Placed> {
        // The promised bytes go to a new file.
        let needs_file = !matches!(free, FreeSpace::Bytes(0) | FreeSpace::Percent(0.0));
        let inodes_free = inodes_free.max(needs_file.into());
        self.search(self.smallest(inodes_free)?, free, inodes_free)
    }

    /// Finds the smallest file system of `blocks` blocks or more with room for everything and the
    /// free space.
    fn search(&self, mut blocks: u64, free: FreeSpace, inodes_free: u32) -> Result<Placed> {
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
            let gap = self.gap(&layout, &placement, free, blocks)?;
            if gap == 0 {
                return Ok(taken(layout, placement));
            }
            let target = placement.free.end() + gap;
            blocks = self.next_size(layout.geometry(), target, blocks, inodes_free)?;
        }
        Err(Error::Layout(extant_mkfs::Error::Invalid("no size has this free space".into())))
    }

    /// Returns a layout with the inodes that mkfs makes, or those that are needed if these are
    /// more.
    fn default_layout(&self, blocks: u64) -> Result<FsLayout> {
        let layout = self.layout(blocks, None)?;
        let needed = self.inodes(&layout, 0);
        if u64::from(layout.geometry().inodes_count) >= needed {
            return Ok(layout);
        }
        self.with_inodes(&layout, blocks, needed)
    }

    /// Returns a layout with exactly the inodes that are needed, rounded up to whole tables. A
    /// requested number of inodes is kept if it is enough.
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
        let guess = self.with_count(blocks, most + u64::from(self.shapes.inodes()))?;
        self.with_inodes(&guess, blocks, self.inodes(&guess, inodes_free))
    }

    /// Returns a layout with at least `needed` inodes, and no table block more than that takes.
    fn with_inodes(&self, guess: &FsLayout, blocks: u64, needed: u64) -> Result<FsLayout> {
        let geo = guess.geometry();
        let groups = u64::from(geo.groups_count);
        let count = needed.div_ceil(groups).next_multiple_of(inode_unit(geo)) * groups;
        let layout = self.with_count(blocks, count)?;
        if u64::from(layout.geometry().inodes_count) < needed {
            return Err(lacks_inodes(needed));
        }
        Ok(layout)
    }

    /// Returns a layout with this number of inodes, as mkfs rounds it.
    fn with_count(&self, blocks: u64, count: u64) -> Result<FsLayout> {
        match self.layout(blocks, Some(count)) {
            // mkfs refuses a count that its groups cannot have. Other contradictions remain without
            // it.
            Err(Error::Layout(extant_mkfs::Error::Invalid(_)))
                if self.layout(blocks, None).is_ok() =>
            {
                Err(lacks_inodes(count))
            }
            layout => layout,
        }
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

    /// Returns the number of blocks that a layout of `blocks` blocks lacks.
    fn gap(
        &self,
        layout: &FsLayout,
        placement: &Placement,
        free: FreeSpace,
        blocks: u64,
    ) -> Result<u64> {
        let geo = layout.geometry();
        let asked = match free {
            FreeSpace::Bytes(bytes) => bytes.div_ceil(self.block_size),
            FreeSpace::Percent(percent) => {
                (blocks as f64 * percent.clamp(0.0, 99.0) / 100.0).ceil() as u64
            }
        };
        let asked = asked.next_multiple_of(geo.cluster_ratio().into());
        let beside = if asked > 0 {
            let growth = self.shapes.root_growth << geo.cluster_bits;
            placement.map_of_free(geo, asked)? + growth + kernel_reserve(geo)
        } else {
            0
        };
        let needed = placement.free.missing(placement.end) + asked + beside;
        Ok(needed.saturating_sub(placement.free.left(placement.end)))
    }

    /// Returns a size above `blocks`, below which none is enough. `target` would be enough if more
    /// groups changed nothing; the layout of `blocks` blocks has these facts.
    fn next_size(&self, geo: &Geometry, target: u64, blocks: u64, inodes_free: u32) -> Result<u64> {
        let group = u64::from(geo.blocks_per_group);
        let border = u64::from(geo.first_data_block) + u64::from(geo.groups_count) * group;
        if target <= border {
            return Ok(target.max(blocks + 1));
        }
        let least = target.saturating_sub(rounded_inodes(geo));
        if least > border + group {
            return Ok(least.max(blocks + 1));
        }
        // No size with as many groups is enough.
        Ok(self.beyond(border, blocks.max(border), inodes_free)?.max(least))
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

/// Returns the unit to which mkfs rounds the inodes of a group: bytes of its bitmap, and blocks of
/// its table.
fn inode_unit(geo: &Geometry) -> u64 {
    u64::from(geo.inodes_per_block().max(8))
}

/// Returns the most blocks that tables of inodes can have too many because each group has whole
/// ones. A file system with more groups may lack fewer blocks by that.
fn rounded_inodes(geo: &Geometry) -> u64 {
    let unit = inode_unit(geo).div_ceil(geo.inodes_per_block().into());
    u64::from(geo.groups_count) * unit.next_multiple_of(geo.cluster_ratio().into())
}

fn lacks_inodes(needed: u64) -> Error {
    Error::Layout(extant_mkfs::Error::TooSmall(format!("{needed} inodes have no room")))
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
