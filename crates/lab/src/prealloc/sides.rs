//! The engine and the kernel over the same kind of image, with delayed and with immediate
//! allocation.

use super::trials::Outcome;
use crate::scratch::{Loop, MountGuard, Scratch};
use crate::target::{OpenFile, io_error};
use crate::tool;
use extant_engine::{Falloc, File, Fs, NodeKind, OpenFlags, OpenOptions};
use rustix::fs::FallocateFlags;
use rustix::mount::{MountFlags, mount};
use std::fs::{self, OpenOptions as Options};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes of the disk.
const IMAGE_BYTES: u64 = 4 << 30;

/// More than either side caches in any test.
const CACHE_BYTES: u64 = 3 << 30;

/// Implementation that serves the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The engine in process.
    Engine,
    /// The kernel's ext4 on a loop device.
    Ext4,
}

/// When blocks are allocated.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize, serde::Serialize,
)]
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
    fn make(&self, path: &str, what: NodeKind<'_>) -> extant_engine::Result<extant_engine::Node> {
        let (dir, name) = self.fs.resolve_parent(path.as_bytes())?;
        let mode = if matches!(what, NodeKind::Dir) { 0o755 } else { 0o644 };
        self.fs.create(&dir, name, mode, what)
    }

    fn open(&self, path: &str) -> extant_engine::Result<File> {
        let node = self.make(path, NodeKind::File)?;
        self.fs
            .open_file(&node, OpenFlags { write: true, direct: self.direct, ..Default::default() })
    }
}

impl Files for Engine {
    fn mkdir(&self, name: &str) -> io::Result<()> {
        self.make(name, NodeKind::Dir).map(drop).map_err(io_error)
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
        Ok(rustix::fs::fallocate(&self.0, FallocateFlags::empty(), offset, len)?)
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
        Ok(rustix::fs::syncfs(fs::File::open(&self.root)?)?)
    }
}

/// A file on tmpfs that file systems are made on. Each of its bytes was written before, so that no
/// write has to get memory from the system, as none to a disk has.
pub struct Disk {
    scratch: Scratch,
    image: PathBuf,
    file: fs::File,
}

impl Disk {
    /// Makes a disk that holds nothing.
    pub fn new() -> io::Result<Disk> {
        let scratch = Scratch::new()?;
        let image = scratch.join("image");
        let file = fs::File::create(&image)?;
        write_plainly(&file, IMAGE_BYTES)?;
        Ok(Disk { scratch, image, file })
    }

    /// Runs `work` on a fresh file system; the files `pieces*`, if it made some, are looked at
    /// afterwards.
    pub fn measure(
        &self,
        side: Side,
        mode: Mode,
        work: impl FnOnce(&dyn Files) -> io::Result<Outcome>,
    ) -> io::Result<Outcome> {
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        tool::run(
            "mke2fs",
            &["-q", "-F", "-t", "ext4", "-b", "4096", "-E", options, &self.image.to_string_lossy()],
        )?;
        touch_memory()?;
        let mut outcome = match side {
            Side::Engine => engine(&self.image, mode, work)?,
            Side::Ext4 => mounted(&self.image, &self.scratch.join("mnt"), mode, |root| {
                work(&Ext4 { root: root.into() })
            })?,
        };
        outcome.pieces = mounted(&self.image, &self.scratch.join("look"), Mode::Delayed, pieces)?;
        Ok(outcome)
    }

    /// Returns the seconds that so many bytes take if they are written one after the other.
    pub fn plainly(&self, bytes: u64) -> io::Result<f64> {
        let start = Instant::now();
        write_plainly(&self.file, bytes.min(IMAGE_BYTES))?;
        Ok(start.elapsed().as_secs_f64() * (bytes as f64 / bytes.clamp(1, IMAGE_BYTES) as f64))
    }

    /// Returns the seconds that `threads` take to copy so many bytes into memory that the system
    /// has to provide, and then to write them from there: the lower bound for a file system that
    /// keeps writes until a sync.
    pub fn copied(&self, bytes: u64, threads: u64) -> io::Result<f64> {
        touch_memory()?;
        let all = bytes.min(CACHE_BYTES);
        let share = all / threads;
        let start = Instant::now();
        let keep = |i: u64| keep_and_write(&self.file, i * share, share as usize);
        let kept: Vec<Vec<u8>> = super::trials::in_threads(threads, keep)?;
        let seconds = start.elapsed().as_secs_f64();
        drop(kept);
        Ok(seconds * (bytes as f64 / all.max(1) as f64))
    }
}

fn keep_and_write(file: &fs::File, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let page = [5; 4096];
    let mut kept = Vec::with_capacity(len);
    while kept.len() < len {
        kept.extend_from_slice(page.get(..len - kept.len()).unwrap_or(&page));
    }
    let parts = kept.chunks(1 << 20).zip((at..).step_by(1 << 20));
    parts.into_iter().try_for_each(|(part, at)| file.write_all_at(part, at))?;
    Ok(kept)
}

fn write_plainly(file: &fs::File, bytes: u64) -> io::Result<()> {
    let part = vec![1; 1 << 20];
    (0..bytes.div_ceil(1 << 20)).try_for_each(|i| file.write_all_at(&part, i << 20))
}

/// Makes the system hold free memory for later caches. A virtual machine returns memory to its host
/// that was free for some seconds, and gets it back page by page, which takes several times as long
/// as writing the page.
fn touch_memory() -> io::Result<()> {
    let scratch = Scratch::new()?;
    write_plainly(&fs::File::create(scratch.join("memory"))?, CACHE_BYTES)
}

fn engine(
    image: &Path,
    mode: Mode,
    work: impl FnOnce(&dyn Files) -> io::Result<Outcome>,
) -> io::Result<Outcome> {
    let fs = Fs::open(image, &OpenOptions::new()).map_err(io_error)?;
    let engine = Engine { fs, direct: mode == Mode::Immediate };
    let mut outcome = work(&engine)?;
    outcome.prealloc = Some(engine.fs.stats().prealloc.into());
    engine.fs.unmount().map_err(io_error)?;
    Ok(outcome)
}

/// Runs `work` on the image mounted by the kernel.
fn mounted<R>(
    image: &Path,
    dir: &Path,
    mode: Mode,
    work: impl FnOnce(&Path) -> io::Result<R>,
) -> io::Result<R> {
    fs::create_dir_all(dir)?;
    let device = Loop::attach(image)?;
    let guard = MountGuard::new(dir);
    let options = (mode == Mode::Immediate).then_some(c"nodelalloc");
    mount(device.device(), dir, "ext4", MountFlags::empty(), options)
        .map_err(|e| io::Error::other(format!("mounting ext4 (which needs root): {e}")))?;
    let result = work(dir)?;
    guard.unmount()?;
    Ok(result)
}

/// Returns the number of physically discontiguous pieces of the files, as `filefrag` counts them.
fn pieces(root: &Path) -> io::Result<Option<u64>> {
    let mut sum = None;
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(super::trials::FILE) {
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
