//! `extant-lab space-claims`: the claims in the postings of free-space trees besides their table.
//!
//! - A disk of 100 GB that is nearly new needs about 10 KB of trees, and less than buddies do.
//! - Writing in parallel to a new disk is as fast as with buddies.
//! - With a limit of memory it is still faster than buddies on the fragmented disk.

use crate::allocators::{Buddy, Cost, Defects, Lists, Map, Policy, Posted, Reading, Shape, Want};
use crate::side::{Running, Side, make_sparse};
use crate::space60t;
use crate::target::{How, write_all};
use extant_engine::{Fs, FsStats, NodeKind, OpenFlags, OpenOptions};
use extant_measure::grid::Grid;
use extant_measure::interval::{Standing, Verdict};
use extant_measure::options::Options;
use extant_measure::sheet::Sheet;
use extant_measure::stored::Results;
use extant_measure::timing::{in_threads, median};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;

pub fn run(options: &Options) -> io::Result<bool> {
    options.refuse(&["threads"])?;
    type Judge = fn(&Options) -> io::Result<Verdict>;
    let claims: [(&str, Judge); 3] =
        [("memory", memory), ("limited", limited), ("parallel", parallel)];
    let wanted = claims.iter().filter(|(name, _)| options.wants(name));
    let claims = wanted.map(|(_, claim)| claim(options)).collect::<io::Result<_>>()?;
    Claims(claims).report(options)
}

/// Results of `extant-lab space-claims`.
#[derive(Debug, Deserialize, Serialize)]
pub struct Claims(Vec<Verdict>);

impl Results for Claims {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheet = Sheet::new("claims of the postings", ["claim", "found", ""]);
        for Verdict { what, found, standing } in &self.0 {
            let word = match standing {
                Standing::Reached => "holds",
                Standing::Open => "open: more runs, or a quieter machine, decide",
                Standing::Missed => "DOES NOT HOLD",
            };
            sheet.row([what, found.as_str(), word]);
        }
        vec![sheet]
    }

    fn verdicts(&self) -> Vec<Verdict> {
        self.0.clone()
    }
}

/// Disk of the first claim in bytes, and the memory that the postings name for it.
const NEW_DISK: u64 = 100_000_000_000;
const LITTLE: u64 = 10_000;
/// Files on it, and bytes of each.
const FILES: u32 = 64;
const FILE_BYTES: usize = 1 << 20;

fn memory(_: &Options) -> io::Result<Verdict> {
    let device = Arc::new(make_sparse(NEW_DISK, true)?);
    let fs = Fs::open_device(device, &OpenOptions::new())?;
    write_files(&fs)?;
    let space = FsStats::of(&fs).space;
    fs.unmount()?;
    let shape = Shape { group_len: 32_768, groups: (NEW_DISK >> 27) as u32, flex_bits: 4 };
    let map = Map::empty(shape, 8192);
    let buddy = cost(Buddy::new(&map, Lists::None, Reading::Single, false), shape, false);
    let prefetched = cost(Buddy::new(&map, Lists::Arrays, Reading::Ahead, false), shape, true);
    let posted = cost(Posted::new(&map, 1, 0, Defects::default(), false), shape, false);
    let kilobytes = |bytes: u64| format!("{:.1} KB", bytes as f64 / 1e3);
    let found = format!(
        "trees {} and the index {}; posted {}; buddies {}, and {} when all are read",
        kilobytes(space.frsp_tree_usage),
        kilobytes(space.index_bytes),
        kilobytes(posted.bytes),
        kilobytes(buddy.bytes),
        kilobytes(prefetched.bytes),
    );
    let holds =
        space.frsp_tree_usage <= LITTLE && space.frsp_tree_usage + space.index_bytes < buddy.bytes;
    Ok(Verdict::new("memory for a disk of 100 GB that is nearly new", found, holds))
}

fn write_files(fs: &Fs) -> extant_engine::Result<()> {
    let data = vec![0; FILE_BYTES];
    for file in 0..FILES {
        let node = fs.create(&fs.root()?, format!("d{file}").as_bytes(), 0o755, NodeKind::Dir)?;
        let node = fs.create(&node, b"f", 0o644, NodeKind::File)?;
        let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() })?;
        write_all(&file, 0, &data)?;
    }
    fs.sync()
}

/// The same files by a design, each in a group of its own as far as there are such.
fn cost(mut policy: impl Policy, shape: Shape, prefetch: bool) -> Cost {
    if prefetch {
        policy.prefetch();
    }
    for file in 0..FILES {
        let goal = shape.block(file * 11 % shape.groups, 0);
        policy.allocate(&Want { goal, len: (FILE_BYTES >> 12) as u32, file });
    }
    policy.cost()
}

fn limited(options: &Options) -> io::Result<Verdict> {
    let [engine, ahead, single] = space60t::limited(options.quick)?;
    let found = format!("{engine:.1} s, buddies {single:.1} s, and {ahead:.1} s reading ahead");
    let what = "two writes on the fragmented disk with the least memory";
    Ok(Verdict::new(what, found, engine < ahead.min(single)))
}

/// Threads that write, and bytes of each write.
const WRITERS: usize = 16;
const WRITE: usize = 1 << 20;

fn parallel(options: &Options) -> io::Result<Verdict> {
    let writes = if options.quick { 4 } else { 16 };
    let sides = [Side::Engine, Side::Ext4];
    let running = sides.iter().map(|side| side.start()).collect::<io::Result<Vec<Running>>>()?;
    let mut rates = Grid::new("rates", "MB/s", &sides.map(Side::name), 0);
    options.fill(&mut rates, &[(String::new(), ())], |(), side| writers(&running[side], writes))?;
    running.into_iter().try_for_each(|side| side.stop())?;
    let ratio = rates.gain(0, 1).ok_or_else(|| io::Error::other("no pairs"))?;
    let [ours, theirs] = [0, 1].map(|side| median(&rates.rows[0].1[side]).unwrap_or(0.0) / 1e6);
    let found = format!("{ours:.0} MB/s, the kernel's ext4 {theirs:.0}, ratio {ratio}");
    let what = "16 threads that write to a new disk, to the end of fsync";
    Ok(Verdict::new(what, found, ratio.beside(1.0)))
}

/// Returns the bytes per second of threads that each write a new file, and removes the files.
fn writers(side: &Running, writes: u64) -> io::Result<f64> {
    let data = vec![7; WRITE];
    let target = side.target();
    let name = |thread: usize| format!("w{thread}").into_bytes();
    (0..WRITERS).try_for_each(|thread| target.create(&name(thread)))?;
    let done = in_threads(WRITERS, |thread| {
        let file = target.open(&name(thread), How::Write)?;
        (0..writes).try_for_each(|write| file.write_at(write * WRITE as u64, &data))?;
        file.fsync()
    })?;
    (0..WRITERS).try_for_each(|thread| target.unlink(&name(thread)))?;
    target.sync()?;
    Ok(WRITERS as f64 * writes as f64 * WRITE as f64 / done.elapsed.as_secs_f64())
}
