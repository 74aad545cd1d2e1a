//! Sides of a comparison: each makes a fresh file system and serves it in its way.
//!
//! All sides that have an ext4 image start from one made by the same `mke2fs` call, on tmpfs, so
//! that no device is waited for.

mod directory;
mod engine;
mod fuse2fs;
mod served;

use crate::target::Target;
use directory::{Kernel, Tmpfs};
use engine::InProcess;
use extant_measure::options::word;
use extant_measure::scratch::{self, Loop, MountGuard, Scratch};
use extant_measure::sheet::Name;
use fuse2fs::Fuse2fs;
use served::Served;
use std::ffi::CStr;
use std::io;
use std::path::{Path, PathBuf};

#[cfg(feature = "designs")]
pub use engine::make_device;
pub use engine::make_sparse;

/// Implementation that serves a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Side {
    /// The engine in process, over a file on tmpfs.
    Engine,
    /// The engine in process, over memory.
    #[value(name = "engine-mem")]
    EngineMemory,
    /// The kernel's ext4, on a loop device over a file on tmpfs.
    Ext4,
    /// The engine behind our FUSE server, over a file on tmpfs.
    ExtantFuse,
    /// The same, on which the kernel opens files without a request.
    ExtantFast,
    /// As `extant-fuse`, through io_uring.
    ExtantRings,
    /// e2fsprogs' fuse2fs, over a file on tmpfs.
    Fuse2fs,
    /// A FUSE server on the same transport that keeps names in memory and no data.
    Null,
    /// The same through io_uring.
    NullRings,
    /// The kernel's tmpfs.
    Tmpfs,
}

impl Side {
    /// Returns its name in tables and options.
    pub fn name(self) -> Name {
        word(self)
    }

    /// Makes a fresh file system and serves it.
    pub fn start(self) -> io::Result<Running> {
        self.start_with(&Setup::default())
    }

    /// As [`Side::start`], with a file system of another shape where that is the engine's or the
    /// kernel's. A server has the usual memory.
    pub fn start_with(self, setup: &Setup) -> io::Result<Running> {
        let mut source: Box<dyn Source> = match self {
            Side::Engine => Box::new(InProcess::over_file(setup)?),
            Side::EngineMemory => Box::new(InProcess::over_memory(setup)?),
            Side::Ext4 => Box::new(Kernel::new(setup)?),
            Side::ExtantFuse => Box::new(Served::new(Some(setup), &[])?),
            Side::ExtantFast => Box::new(Served::new(Some(setup), &["--fast"])?),
            Side::ExtantRings => Box::new(Served::new(Some(setup), &["--rings"])?),
            Side::Null => Box::new(Served::new(None, &[])?),
            Side::NullRings => Box::new(Served::new(None, &["--rings"])?),
            Side::Fuse2fs => Box::new(Fuse2fs::new()?),
            Side::Tmpfs => Box::new(Tmpfs::new()?),
        };
        Ok(Running { open: Some(source.open()?), source })
    }
}

/// Runs `work` on an image that the kernel mounts on `dir`, which it makes if need be.
pub fn mounted<R>(
    image: &Path,
    dir: &Path,
    options: Option<&CStr>,
    work: impl FnOnce(&Path) -> io::Result<R>,
) -> io::Result<R> {
    std::fs::create_dir_all(dir)?;
    let device = Loop::attach(image)?;
    let guard = MountGuard::ext4(&device.device, dir, options)?;
    let result = work(dir)?;
    guard.unmount()?;
    Ok(result)
}

/// A file system that can be opened again and again.
trait Source {
    /// Opens it, for the first time or again.
    fn open(&mut self) -> io::Result<Box<dyn Open>>;

    /// The process that serves it, if that stays when it is closed.
    fn server(&self) -> Option<u32> {
        None
    }

    /// Ends its server, if it has one.
    fn end(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}

/// An open file system.
trait Open {
    fn target(&self) -> &dyn Target;

    /// The process that serves it, if it is there for this time only.
    fn server(&self) -> Option<u32> {
        None
    }

    /// Closes it; errors of writing the last changes come out.
    fn close(self: Box<Self>) -> io::Result<()>;
}

/// A served file system. Dropped, it is gone with everything in it.
pub struct Running {
    open: Option<Box<dyn Open>>,
    source: Box<dyn Source>,
}

impl Running {
    /// Returns the target of workloads.
    pub fn target(&self) -> &dyn Target {
        // Only `cold` takes it out, and puts it back unless it fails.
        self.open.as_ref().expect("it is open").target()
    }

    /// Returns the process that serves it, if that is another one than this and the kernel.
    pub fn server(&self) -> Option<u32> {
        self.source.server().or_else(|| self.open.as_ref()?.server())
    }

    /// Unmounts and mounts again: nothing is cached afterwards.
    pub fn cold(&mut self) -> io::Result<()> {
        self.open.take().map_or(Ok(()), Open::close)?;
        self.open = Some(self.source.open()?);
        Ok(())
    }

    /// Unmounts; errors of writing the last changes come out.
    pub fn stop(mut self) -> io::Result<()> {
        self.open.take().map_or(Ok(()), Open::close)?;
        self.source.end()
    }
}

/// Least bytes of an image, which is sparse, and bytes for each inode and a block of content.
pub const IMAGE_BYTES: u64 = 6 << 30;
const BYTES_PER_INODE: u64 = 5600;

/// Differences from the usual file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// Inodes, if not as many as mke2fs thinks right.
    pub inodes: Option<u64>,
    /// Whether a server's image is a block device, by which syncs of the mount reach the server.
    pub block_device: bool,
    /// Memory of the engine in bytes, if not the usual share of the machine's.
    pub memory: Option<u64>,
    /// Shards of the engine's structures; 0 for as many as the processors need.
    pub shards: usize,
    /// No orphan file: the engine keeps the list that was before it.
    pub orphan_list: bool,
}

impl Setup {
    /// Makes a setup with space for so many files, and memory for all their inodes.
    pub fn for_inodes(files: u64) -> Setup {
        // An eighth of the engine's memory is for inodes, and one takes up to a kilobyte.
        Setup {
            inodes: Some(files + files / 8 + 4096),
            memory: Some((files + files / 4 + 8192) * 8 * 1024),
            ..Setup::default()
        }
    }
}

/// Makes a fresh image in `scratch`.
pub fn make_with(scratch: &Scratch, setup: &Setup) -> io::Result<PathBuf> {
    let path = scratch.join("image");
    let bytes = setup.inodes.map_or(0, |inodes| inodes * BYTES_PER_INODE);
    std::fs::File::create(&path)?.set_len(bytes.max(IMAGE_BYTES))?;
    let inodes = setup.inodes.map(|n| n.to_string());
    let orphans = if setup.orphan_list { "^orphan_file" } else { "orphan_file" };
    let features = format!("{orphans},metadata_csum_seed");
    let mut more = vec!["-O", &*features];
    more.extend(inodes.iter().flat_map(|n| ["-N", n]));
    scratch::mke2fs(&path, &more)?;
    Ok(path)
}
