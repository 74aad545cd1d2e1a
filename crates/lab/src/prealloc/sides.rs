//! The engine and the kernel over the same kind of image, with delayed and with immediate allocation.

use super::tests::Outcome;
use crate::scratch::{Loop, MountGuard, Scratch};
use crate::target::{OpenFile, io_error};
use crate::tool;
use extant::{Caller, Falloc, File, Fs, New, OpenFlags, OpenOptions};
use nix::fcntl::FallocateFlags;
use nix::mount::{MsFlags, mount};
use std::fs::{self, OpenOptions as Options};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes of an image; it is sparse.
const IMAGE_BYTES: u64 = 8 << 30;

/// Who serves the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The engine in process.
    Engine,
    /// The kernel's ext4 on a loop device.
    Ext4,
}

/// When blocks are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// When pages are written back.
    Delayed,
    /// By each write.
    Immediate,
}

impl Mode {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Delayed => "delayed",
            Mode::Immediate => "immediate",
        }
    }
}

/// A file that can be given space before it is written.
pub trait Container: OpenFile {
    /// fallocate(2).
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
}

impl Container for File {
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        File::allocate(self, Falloc::Allocate, offset, len).map_err(io_error)
    }
}

/// Files that a test makes.
pub trait Files: Sync {
    /// Makes a directory at the root.
    fn mkdir(&self, name: &str) -> io::Result<()>;
    /// Makes a file and opens it for writing.
    fn create(&self, path: &str) -> io::Result<Box<dyn Container>>;
    /// Everything is on the device.
    fn sync(&self) -> io::Result<()>;
}

struct Engine {
    fs: Fs,
    direct: bool,
}

impl Engine {
    fn make(&self, path: &str, what: New<'_>) -> extant::Result<extant::Node> {
        let (dir, name) = self.fs.resolve_parent(path.as_bytes())?;
        let mode = if matches!(what, New::Dir) { 0o755 } else { 0o644 };
        self.fs.create(&Caller::default(), &dir, name, mode, what)
    }

    fn open(&self, path: &str) -> extant::Result<File> {
        let node = self.make(path, New::File)?;
        self.fs.open_file(&node, OpenFlags { write: true, direct: self.direct, ..Default::default() })
    }
}

impl Files for Engine {
    fn mkdir(&self, name: &str) -> io::Result<()> {
        self.make(name, New::Dir).map(drop).map_err(io_error)
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn Container>> {
        Ok(Box::new(self.open(path).map_err(io_error)?))
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.sync().map_err(io_error)
    }
}

struct Ext4 {
    root: PathBuf,
}

struct KernelFile(fs::File);

impl OpenFile for KernelFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn fsync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}

impl Container for KernelFile {
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let signed = |n: u64| i64::try_from(n).map_err(io::Error::other);
        Ok(nix::fcntl::fallocate(&self.0, FallocateFlags::empty(), signed(offset)?, signed(len)?)?)
    }
}

impl Files for Ext4 {
    fn mkdir(&self, name: &str) -> io::Result<()> {
        fs::create_dir(self.root.join(name))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn Container>> {
        let file = Options::new().write(true).create_new(true).open(self.root.join(path))?;
        Ok(Box::new(KernelFile(file)))
    }

    fn sync(&self) -> io::Result<()> {
        nix::unistd::syncfs(fs::File::open(&self.root)?).map_err(io::Error::from)
    }
}

/// Runs `work` on a fresh file system; the files `pieces*`, if it made some, are looked at afterwards.
pub fn measure(side: Side, mode: Mode, work: impl FnOnce(&dyn Files) -> io::Result<Outcome>) -> io::Result<Outcome> {
    let scratch = Scratch::new()?;
    let image = scratch.join("image");
    fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
    let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    tool::run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-E", options, &image.to_string_lossy()])?;
    let mut outcome = match side {
        Side::Engine => engine(&image, mode, work)?,
        Side::Ext4 => mounted(&image, &scratch.dir("mnt")?, mode, |root| work(&Ext4 { root: root.into() }))?,
    };
    outcome.pieces = mounted(&image, &scratch.dir("look")?, Mode::Delayed, pieces)?;
    Ok(outcome)
}

/// Seconds that so many bytes take if they are written one after the other into a fresh file, where the images are.
pub fn plainly(bytes: u64) -> io::Result<f64> {
    let scratch = Scratch::new()?;
    let (file, part) = (fs::File::create(scratch.join("plain"))?, vec![1; 1 << 20]);
    let start = Instant::now();
    (0..bytes.div_ceil(1 << 20)).try_for_each(|i| file.write_all_at(&part, i << 20))?;
    Ok(start.elapsed().as_secs_f64())
}

fn engine(image: &Path, mode: Mode, work: impl FnOnce(&dyn Files) -> io::Result<Outcome>) -> io::Result<Outcome> {
    let fs = Fs::open(image, &OpenOptions::new()).map_err(io_error)?;
    let engine = Engine { fs, direct: mode == Mode::Immediate };
    let mut outcome = work(&engine)?;
    outcome.prealloc = Some(engine.fs.stats().prealloc);
    engine.fs.unmount().map_err(io_error)?;
    Ok(outcome)
}

/// Runs `work` on the image mounted by the kernel.
fn mounted<R>(image: &Path, dir: &Path, mode: Mode, work: impl FnOnce(&Path) -> io::Result<R>) -> io::Result<R> {
    let device = Loop::attach(image)?;
    let guard = MountGuard::new(dir);
    let options = (mode == Mode::Immediate).then_some("nodelalloc");
    mount(Some(device.device()), dir, Some("ext4"), MsFlags::empty(), options)
        .map_err(|e| io::Error::other(format!("mounting ext4 (which needs root): {e}")))?;
    let result = work(dir)?;
    guard.unmount()?;
    Ok(result)
}

/// Physically discontiguous pieces of the files, as `filefrag` counts them.
fn pieces(root: &Path) -> io::Result<Option<u64>> {
    let mut sum = None;
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(super::tests::FILE) {
            sum = Some(sum.unwrap_or(0) + pieces_of(&entry.path())?);
        }
    }
    Ok(sum)
}

fn pieces_of(file: &Path) -> io::Result<u64> {
    let printed = tool::run("filefrag", &[file.as_os_str()])?;
    let count = printed.rsplit(": ").next().and_then(|rest| rest.split(' ').next()?.parse().ok());
    count.ok_or_else(|| io::Error::other(format!("filefrag said `{}`", printed.trim())))
}
