//! `extant-lab age`: a file system is filled to 90% and then used for a long time; how many pieces
//! have files, and free space?
//!
//! The engine and the kernel's ext4 do the same (`trace`) to images made by the same call; then
//! both images are looked at by the same code (`look`). The designs of allocators play the same
//! trace, without preallocation and delayed allocation.

mod designs;
mod look;
mod trace;

use crate::side::mounted;
use crate::target::{Directory, Engine, How, Target};
use extant_engine::{Fs, OpenOptions};
use extant_measure::grid::Grid;
use extant_measure::interval::{Interval, Verdict};
use extant_measure::options::Options;
use extant_measure::scratch::{self, Scratch};
use extant_measure::sheet::{Name, Sheet};
use extant_measure::stored::{ListItem, Results};
use look::State;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Instant;
use trace::{CHUNK, DIRS, Event, Scale, Trace};

/// Arguments of `extant-lab age`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Size of the file system, in MiB.
    #[arg(long)]
    size: Option<u64>,
    /// How often as many bytes as there is room for are written after filling.
    #[arg(long)]
    churn: Option<f64>,
}

/// Used share of the initially free space after filling, in percent.
const FILL: u64 = 90;
/// Worse by less than this is the same.
const SAME: f64 = 0.97;

/// A line of the table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Row {
    name: Name,
    /// Of the trace.
    seed: u64,
    seconds: Option<f64>,
    state: State,
    /// Free space in the end; empty for designs.
    #[serde(default)]
    map: String,
}

/// Runs it and prints tables; whether the engine's is not worse than the kernel's, if that was
/// asked.
pub fn run(args: &Args) -> io::Result<bool> {
    let options = &args.options;
    options.refuse(&["threads"])?;
    let (mib, churn) = if options.quick { (256, 1.0) } else { (1024, 3.0) };
    let (bytes, churn) = (args.size.unwrap_or(mib).max(64) << 20, args.churn.unwrap_or(churn));
    let room = look::free(&Image::make(bytes)?.path)?;
    let scale = Scale { room, fill: FILL, churn };
    let mut rows = Vec::new();
    for seed in 1..=options.runs(5, 1) as u64 {
        if options.wants("sides") {
            let sides = if seed % 2 == 0 { [KERNEL, ENGINE] } else { [ENGINE, KERNEL] };
            let both = sides
                .into_iter()
                .map(|side| self::side(side, bytes, scale, seed))
                .collect::<io::Result<Vec<_>>>()?;
            rows.extend(both);
        }
        let designs = if options.wants("designs") { designs::rows(scale, seed) } else { vec![] };
        rows.extend(designs.into_iter().map(|(name, state)| {
            let (name, map) = (name.into(), String::new());
            Row { name, seed, seconds: None, state, map }
        }));
    }
    rows.report(options)
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
        scratch::mke2fs(&path, &["-m", "0"])?;
        Ok(Image { path, scratch })
    }
}

const ENGINE: &str = "Extant";
const KERNEL: &str = "Linux's ext4";

/// Runs the trace on a side, and measures the image afterwards.
fn side(name: &'static str, bytes: u64, scale: Scale, seed: u64) -> io::Result<Row> {
    eprintln!("{name}: {} MiB, used {} times over, trace {seed}", bytes >> 20, scale.churn);
    let image = Image::make(bytes)?;
    let (start, trace) = (Instant::now(), Trace::new(scale, seed));
    match name {
        ENGINE => {
            let engine = Engine::new(Fs::open(&image.path, &OpenOptions::new())?);
            play(&engine, trace)?;
            engine.unmount()?;
        }
        _ => {
            let mount = image.scratch.join("mnt");
            mounted(&image.path, &mount, None, |dir| play(&Directory::new(dir)?, trace))?;
        }
    }
    let seconds = Some(start.elapsed().as_secs_f64());
    // A corrupt image must not be compared.
    scratch::run("e2fsck", &["-fn".as_ref(), image.path.as_os_str()])?;
    let (state, map) = look::look(&image.path)?;
    Ok(Row { name: name.into(), seed, seconds, state, map })
}

fn path(id: u32) -> Vec<u8> {
    format!("d{}/f{id}", id % DIRS).into_bytes()
}

fn play(target: &dyn Target, trace: Trace) -> io::Result<()> {
    let data = vec![0x5A; CHUNK as usize];
    (0..DIRS).try_for_each(|dir| target.mkdir(format!("d{dir}").as_bytes()))?;
    for event in trace {
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

/// Returns how the engine stands to the kernel: it must not be worse.
fn judge(rows: &[Row]) -> Vec<Verdict> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| row.seed);
    let of = |name: &str, value: fn(&State) -> f64| {
        let of_side = rows.iter().filter(|row| row.name == name);
        of_side.map(|row| value(&row.state)).collect::<Vec<f64>>()
    };
    let bar = |what: &str, value: fn(&State) -> f64| {
        let found = Interval::of_pairs(&of(ENGINE, value), &of(KERNEL, value))?;
        let what = format!("{what}, times better than the kernel's");
        Some(Verdict::new(what, format!("{found} (bar {SAME})"), found.beside(SAME)))
    };
    let files = bar("pieces of a file", |state| 1.0 / state.pieces_per_file());
    let free = bar("length of a free run", State::mean_run);
    files.into_iter().chain(free).collect()
}

impl ListItem for Row {
    fn sheets(all: &[Self]) -> Vec<Sheet> {
        let head = [
            "",
            "trace",
            "seconds",
            "files",
            "pieces of a file",
            "whole files",
            "free runs",
            "mean run in blocks",
            "free space in runs of 2 MiB",
        ];
        let mut sheet = Sheet::new("fragmentation after use", head);
        all.iter().for_each(|row| sheet.row(cells(row)));
        sheet.notes = judge(all).iter().map(Verdict::line).collect();
        vec![sheet]
    }

    fn verdicts(all: &[Self]) -> Vec<Verdict> {
        judge(all)
    }

    fn maps(all: &[Self]) -> Vec<(String, String)> {
        let drawn = all.iter().filter(|row| !row.map.is_empty());
        drawn.map(|row| (format!("{}, trace {}", row.name, row.seed), row.map.clone())).collect()
    }

    fn grids(all: Vec<Self>) -> Vec<Grid> {
        let mut columns: Vec<Name> = all.iter().map(|row| row.name.clone()).collect();
        columns.sort_unstable();
        columns.dedup();
        let mut grid = Grid::new("pieces of a file", "", &columns, 0).less();
        for Row { name, seed, state, .. } in all {
            let pieces = state.pieces_per_file();
            grid.column(&name)
                .into_iter()
                .for_each(|at| grid.add(&format!("trace {seed}"), at, pieces));
        }
        vec![grid]
    }
}

fn cells(Row { name, seed, seconds, state, .. }: &Row) -> [String; 9] {
    let share =
        |part: u64, whole: u64| format!("{:.1}%", part as f64 * 100.0 / whole.max(1) as f64);
    [
        name.to_string(),
        seed.to_string(),
        seconds.map_or("-".into(), |seconds| format!("{seconds:.1}")),
        state.files.to_string(),
        format!("{:.3}", state.pieces_per_file()),
        share(state.whole, state.files),
        state.runs.to_string(),
        format!("{:.1}", state.mean_run()),
        share(state.long, state.free),
    ]
}
