//! Options of a build.

use extant_mkfs::Options;

/// Options of a build.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct BuildOptions {
    /// Options of the file system. `size` is ignored: see [`BuildOptions::size`]. The block size is
    /// 4096 if unset, whatever the size. Reproducible images need `seed` or `uuid` and `hash_seed`,
    /// and `time`.
    pub mkfs: Options,
    /// Size of the image.
    pub size: ImageSize,
    /// Threads that copy content; 0 means one for each processor.
    pub threads: usize,
}

/// Size of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ImageSize {
    /// The smallest size with this free space.
    Exact {
        /// Free space.
        free: FreeSpace,
        /// Free inodes. The tables of inodes have whole blocks, so that some more may be free.
        inodes_free: u32,
    },
    /// This number of bytes. The number of inodes is that of mkfs, or the needed one if it is
    /// larger, or if content lacks the space of the others.
    Bytes(u64),
}

impl Default for ImageSize {
    fn default() -> Self {
        ImageSize::Exact { free: FreeSpace::Bytes(0), inodes_free: 0 }
    }
}

/// Free space: the length of the largest file that root can write through the kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum FreeSpace {
    /// Bytes, rounded up to blocks.
    Bytes(u64),
    /// Percent of the image, 0 to 99.
    Percent(f64),
}

/// Returns the number of threads for the value of an option, of which 0 is one for each processor.
pub(crate) fn number_of_threads(option: usize) -> usize {
    match option {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    }
}
