//! Plans of images, and their writing.

use crate::error::Result;
use crate::layout::placement::Placement;
use crate::layout::shapes::Shapes;
use crate::options::{BuildOptions, ImageSize, number_of_threads};
use crate::planner::Planner;
use crate::tree::Tree;
use crate::write::Image;
use extant_blocks::BlockDevice;
use extant_mkfs::FsLayout;

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

/// Plans the image of a tree. Nothing is read but the tree.
///
/// # Errors
/// [`Layout`](crate::Error::Layout) for invalid options, [`TooSmall`](crate::Error::TooSmall) if
/// the tree does not fit into the requested size, [`Entry`](crate::Error::Entry) for a node that
/// this file system cannot hold.
pub fn plan<'t>(tree: &'t Tree, options: &BuildOptions) -> Result<ImagePlan<'t>> {
    let planner = Planner::new(tree, options)?;
    let (layout, placement) = match options.size {
        ImageSize::Exact { free, inodes_free } => planner.exact(free, inodes_free)?,
        ImageSize::Bytes(bytes) => planner.fixed(bytes)?,
    };
    Ok(ImagePlan::of(planner, layout, placement, options.threads))
}

impl<'t> ImagePlan<'t> {
    /// Returns the plan with these places of content.
    pub(crate) fn of(
        planner: Planner<'t>,
        layout: FsLayout,
        placement: Placement,
        threads: usize,
    ) -> ImagePlan<'t> {
        let threads = number_of_threads(threads);
        ImagePlan { shapes: planner.shapes, layout, placement, threads }
    }

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
    /// Those of the device; [`Content`](crate::Error::Content) if content cannot be read or has
    /// changed. The device has no file system then.
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
