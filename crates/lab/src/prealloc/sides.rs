//! The engine and the kernel over the same kind of image, with delayed and with immediate
//! allocation.

use super::trials::{FILE, Outcome};
use crate::side::{Side, mounted};
use crate::target::{Directory, Engine, Target};
use extant_engine::{Fs, OpenOptions};
use extant_measure::scratch::{self, Scratch};
use extant_measure::timing::in_threads;
use parking_lot::Mutex;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io};

/// Bytes of the disk.
const IMAGE_BYTES: u64 = 4 << 30;

/// More than either side caches in any test.
const CACHE_BYTES: u64 = 3 << 30;

/// When blocks are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// When pages are written back.
    Delayed,
    /// By each write.
    Immediate,
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
        work: impl FnOnce(&dyn Target) -> io::Result<Outcome>,
    ) -> io::Result<Outcome> {
        scratch::mke2fs(&self.image, &[])?;
        touch_memory()?;
        let dir = self.scratch.join("mnt");
        let options = (mode == Mode::Immediate).then_some(c"nodelalloc");
        let mut outcome = match side {
            Side::Ext4 => mounted(&self.image, &dir, options, |root| work(&Directory::new(root)?))?,
            _ => engine(&self.image, mode, work)?,
        };
        outcome.pieces = mounted(&self.image, &dir, None, pieces)?;
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
        let kept = Mutex::new(Vec::new());
        in_threads(threads as usize, |i| {
            let part = keep_and_write(&self.file, i as u64 * share, share as usize)?;
            kept.lock().push(part);
            Ok(())
        })?;
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
    work: impl FnOnce(&dyn Target) -> io::Result<Outcome>,
) -> io::Result<Outcome> {
    let fs = Fs::open(image, &OpenOptions::new())?;
    let engine = if mode == Mode::Immediate { Engine::direct(fs) } else { Engine::new(fs) };
    let mut outcome = work(&engine)?;
    outcome.prealloc = Some(engine.fs().stats().prealloc);
    engine.unmount()?;
    Ok(outcome)
}

/// Returns the number of physically discontiguous pieces of the files, as `filefrag` counts them.
fn pieces(root: &Path) -> io::Result<Option<u64>> {
    let entries = fs::read_dir(root)?.collect::<io::Result<Vec<_>>>()?;
    let counted = |entry: &&fs::DirEntry| entry.file_name().to_string_lossy().starts_with(FILE);
    let files: Vec<PathBuf> = entries.iter().filter(counted).map(fs::DirEntry::path).collect();
    if files.is_empty() {
        return Ok(None);
    }
    let printed = scratch::run("filefrag", &files)?;
    let count = |line: &str| line.rsplit(": ").next()?.split(' ').next()?.parse::<u64>().ok();
    let wrong = |line: &str| io::Error::other(format!("filefrag said `{line}`"));
    let counts = printed.lines().map(|line| count(line).ok_or_else(|| wrong(line)));
    counts.sum::<io::Result<u64>>().map(Some)
}
