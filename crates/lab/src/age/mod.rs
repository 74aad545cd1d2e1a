//! `extant-lab age`: a file system is filled to 90% and then used for a long time; how many pieces have files, and free space?
//!
//! The engine and the kernel's ext4 do the same (`trace`) to images made by the same call; then both images are looked at by the same
//! code (`look`). The designs of allocators play the same trace, without preallocation and delayed allocation.

mod designs;
mod look;
mod trace;

use crate::report::say;
use crate::scratch::{self, Loop, MountGuard, Scratch};
use crate::target::{Directory, Engine, How, Target, io_error};
use crate::tool;
use clap::Args as ClapArgs;
use extant::{Fs, OpenOptions};
use look::State;
use nix::mount::{MsFlags, mount};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;
use trace::{CHUNK, DIRS, Event, Scale, Trace};

/// What `extant-lab age` takes.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// A smaller file system and less use.
    #[arg(long)]
    quick: bool,
    /// Only the designs; needs no privileges.
    #[arg(long)]
    designs: bool,
    /// One JSON document in place of a table.
    #[arg(long)]
    json: bool,
    /// Size of the file system, in MiB.
    #[arg(long)]
    size: Option<u64>,
    /// How often as many bytes as there is room for are written after filling.
    #[arg(long)]
    churn: Option<f64>,
    /// End with 1 if the engine's is worse.
    #[arg(long)]
    strict: bool,
}

/// Percent of what is free at first that is used after filling.
const FILL: u64 = 90;
/// Worse by less than this is the same.
const TOLERANCE: f64 = 1.02;

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    name: &'static str,
    seconds: Option<f64>,
    state: State,
}

/// Runs it and prints a table; whether the engine's is not worse than the kernel's, if both were wanted.
pub fn run(args: &Args) -> io::Result<bool> {
    let (mib, churn) = if args.quick { (256, 1.0) } else { (2048, 8.0) };
    let (bytes, churn) = (args.size.unwrap_or(mib).max(64) << 20, args.churn.unwrap_or(churn));
    scratch::catch_signals()?;
    let room = look::free(Image::make(bytes)?.path())?;
    let scale = Scale { room, fill: FILL, churn };
    let mut rows = Vec::new();
    if !args.designs {
        rows.push(side("Extant", bytes, scale, |image, _| engine(image, scale))?);
        rows.push(side("Linux's ext4", bytes, scale, |image, dir| kernel(image, dir, scale))?);
    }
    let designs = designs::rows(scale);
    rows.extend(designs.into_iter().map(|(name, state)| Row { name, seconds: None, state }));
    let reached = args.designs || judge(&rows[0].state, &rows[1].state).iter().all(|(_, reached)| *reached);
    match args.json {
        true => println!("{}", serde_json::to_string(&rows)?),
        false => say(&text(&rows, args.designs))?,
    }
    Ok(!args.strict || reached)
}

/// A fresh image, the same for all sides.
struct Image {
    path: PathBuf,
    scratch: Scratch,
}

impl Image {
    fn make(bytes: u64) -> io::Result<Image> {
        let scratch = Scratch::new()?;
        let path = scratch.join("image");
        std::fs::File::create(&path)?.set_len(bytes)?;
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let arguments = ["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-E", options, &path.to_string_lossy()];
        tool::run("mke2fs", &arguments)?;
        Ok(Image { path, scratch })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// Lets a side use an image for a long time, and looks at what has become of it.
fn side(
    name: &'static str,
    bytes: u64,
    scale: Scale,
    work: impl FnOnce(&Path, PathBuf) -> io::Result<()>,
) -> io::Result<Row> {
    eprintln!("{name}: {} MiB, used {} times over", bytes >> 20, scale.churn);
    let image = Image::make(bytes)?;
    let start = Instant::now();
    work(image.path(), image.scratch.dir("mnt")?)?;
    let seconds = Some(start.elapsed().as_secs_f64());
    // What is broken cannot be compared.
    tool::run("e2fsck", &["-fn".as_ref(), image.path().as_os_str()])?;
    Ok(Row { name, seconds, state: look::look(image.path())? })
}

fn engine(image: &Path, scale: Scale) -> io::Result<()> {
    let engine = Engine::new(Fs::open(image, &OpenOptions::new()).map_err(io_error)?);
    play(&engine, scale)?;
    engine.unmount()
}

fn kernel(image: &Path, dir: PathBuf, scale: Scale) -> io::Result<()> {
    let device = Loop::attach(image)?;
    let guard = MountGuard::new(&dir);
    mount(Some(device.device()), &dir, Some("ext4"), MsFlags::empty(), None::<&str>)
        .map_err(|e| io::Error::other(format!("mounting ext4 (which needs root): {e}")))?;
    let directory = Directory::new(&dir)?;
    play(&directory, scale)?;
    drop(directory);
    guard.unmount()
}

fn path(id: u32) -> Vec<u8> {
    format!("d{}/f{id}", id % DIRS).into_bytes()
}

fn play(target: &dyn Target, scale: Scale) -> io::Result<()> {
    let data = vec![0x5A; CHUNK as usize];
    (0..DIRS).try_for_each(|dir| target.mkdir(format!("d{dir}").as_bytes()))?;
    for event in Trace::new(scale) {
        match event {
            Event::Create(id) => target.create(&path(id))?,
            Event::Append(id, bytes) => {
                target.open(&path(id), How::Append)?.write_at(0, &data[..bytes as usize])?;
            }
            Event::Empty(id) => target.creat(&path(id))?,
            Event::Remove(id) => target.unlink(&path(id))?,
            Event::Sync => target.sync()?,
        }
    }
    target.sync()
}

/// The bars: not worse than the kernel's.
fn judge(engine: &State, kernel: &State) -> [(&'static str, bool); 2] {
    [
        ("pieces of a file", engine.pieces_per_file() <= kernel.pieces_per_file() * TOLERANCE),
        ("length of a free run", engine.mean_run() * TOLERANCE >= kernel.mean_run()),
    ]
}

fn text(rows: &[Row], designs_only: bool) -> String {
    let mut text = format!(
        "{:<16} {:>8} {:>8} {:>12} {:>9} {:>10} {:>13} {:>12}\n",
        "", "seconds", "files", "pieces/file", "whole", "free runs", "mean, blocks", "in 2 MiB"
    );
    for Row { name, seconds, state } in rows {
        let seconds = seconds.map_or(String::new(), |seconds| format!("{seconds:.1}"));
        let share = |part: u64, whole: u64| format!("{:.1}%", part as f64 * 100.0 / whole.max(1) as f64);
        text += &format!(
            "{name:<16} {seconds:>8} {:>8} {:>12.3} {:>9} {:>10} {:>13.1} {:>12}\n",
            state.files,
            state.pieces_per_file(),
            share(state.whole, state.files),
            state.runs,
            state.mean_run(),
            share(state.long, state.free),
        );
    }
    if let ([engine, kernel, ..], false) = (rows, designs_only) {
        for (what, reached) in judge(&engine.state, &kernel.state) {
            text += &format!("{what}: not worse than the kernel's: {}\n", if reached { "reached" } else { "MISSED" });
        }
    }
    text
}
