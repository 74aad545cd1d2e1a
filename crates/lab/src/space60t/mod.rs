//! Writes to a fragmented file system of 60 TiB: delay after the mount, speed, number of pieces.
//!
//! The disk is that of the free-space-tree postings of 2020: 491,520 groups, 30,720 flexible
//! groups. Its bitmaps are generated as they are read (`disk`). The engine mounts it and writes
//! twice; the older designs run on the same free runs. Times are processor time plus the virtual
//! time of a slow disk for the first read of a bitmap, charged to the reading thread.

mod designs;
mod disk;
mod engine;

use disk::{Disk, Profile};
use extant_measure::grid::Grid;
use extant_measure::options::{Options, invalid};
use extant_measure::sheet::{Name, Sheet};
use extant_measure::stored::Results;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;

/// Arguments of `extant-lab space60t`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Leave out the older designs.
    #[arg(long)]
    engine_only: bool,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Write {
    /// Seconds until it was durable (designs: until it was allocated).
    pub seconds: f64,
    /// The same of all runs, of which this one has the median; nothing of designs.
    #[serde(default)]
    pub runs: Vec<f64>,
    /// Of these, waiting for the disk.
    pub waited: f64,
    /// Physically discontiguous pieces of the file.
    pub pieces: u64,
    /// Bytes of groups in memory: trees, or bitmaps with their buddies.
    pub tree_bytes: u64,
    /// The index over all groups.
    pub index_bytes: u64,
    /// Trees (or groups) in memory; posted: trees that ever were.
    pub trees: u64,
    /// Bitmaps read by then.
    pub bitmaps: u64,
    /// Groups or trees looked at by then; of the engine, searches in the order of all trees.
    pub looked: u64,
    /// Claims by where they found their place: goal, stream, criteria 0 to 2, anywhere.
    pub claims: [u64; 6],
}

/// Results of `extant-lab space60t`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SpaceResults {
    /// Bytes of the two writes.
    pub sizes: Sizes,
    /// Allocators on each profile.
    pub rows: Vec<Row>,
}

/// A line of the table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    /// The disk's profile.
    pub profile: Name,
    /// Name of the allocator.
    pub name: Name,
    /// A design that only allocates, not a whole file system.
    pub plays: bool,
    /// Seconds until it was mounted.
    pub mount: Option<f64>,
    /// Seconds from the mount until all groups were known.
    pub known: Option<f64>,
    /// The two writes.
    pub writes: [Write; 2],
}

/// Bytes of the two writes.
type Sizes = [u64; 2];

/// Bytes that are written to the whole disk, and to the small one.
const SIZES: Sizes = [10 << 20, 100 << 20];
const QUICK_SIZES: Sizes = [1 << 20, 10 << 20];

/// Bytes of the disk.
const BYTES: u64 = 60 << 40;
const QUICK_BYTES: u64 = BYTES / 20;

/// Runs everything and prints the table.
pub fn run(args: &Args) -> io::Result<bool> {
    args.options.refuse(&["runs", "threads"])?;
    let (bytes, sizes) =
        if args.options.quick { (QUICK_BYTES, QUICK_SIZES) } else { (BYTES, SIZES) };
    let wanted = |profile: &Profile| args.options.wants(profile.name);
    let mut rows = Vec::new();
    for profile in [Profile::HARSH, Profile::POSTED].into_iter().filter(wanted) {
        let disk = Arc::new(Disk::new(&profile, bytes)?);
        eprintln!(
            "{}: {} free runs, mean {:.1} blocks",
            profile.name,
            disk.runs(),
            disk.mean_run()
        );
        if !args.engine_only {
            rows.extend(designs::rows(profile.name, &disk, sizes));
        }
        rows.extend(engine::rows(&profile, &disk, sizes)?);
    }
    if rows.is_empty() {
        return Err(invalid("there are the profiles harsh and posted"));
    }
    SpaceResults { sizes, rows }.report(&args.options)
}

/// Returns the seconds of both writes on a slow fragmented disk: of the engine with the least
/// memory, and of buddies that read ahead and that do not.
pub(crate) fn limited(quick: bool) -> io::Result<[f64; 3]> {
    let (bytes, sizes) = if quick { (QUICK_BYTES, QUICK_SIZES) } else { (BYTES, SIZES) };
    let disk = Arc::new(Disk::new(&Profile::POSTED, bytes)?);
    let sum = |row: Row| row.writes.iter().map(|write| write.seconds).sum();
    let map = disk.map();
    let buddies = designs::BUDDIES.map(|name| designs::row("posted", name, false, &map, sizes));
    let [Some(single), Some(ahead)] = buddies.map(|row| row.map(sum)) else {
        return Err(io::Error::other("a design of buddies is missing"));
    };
    Ok([sum(engine::limited(&Profile::POSTED, &disk, sizes)?), ahead, single])
}

const HEAD: [&str; 9] =
    ["", "processor", "with disk", "rate", "memory", "loaded", "bitmaps", "pieces", "looks"];

fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}

fn short(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

fn fields(row: &Row, write: &Write, bytes: u64) -> [String; 9] {
    [
        row.name.to_string(),
        short(write.seconds - write.waited),
        short(write.seconds),
        megabytes(bytes as f64 / write.seconds) + "/s",
        megabytes((write.tree_bytes + write.index_bytes) as f64),
        write.trees.to_string(),
        write.bitmaps.to_string(),
        write.pieces.to_string(),
        write.looked.to_string(),
    ]
}

/// One table for each profile and each write.
impl Results for SpaceResults {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheets = Vec::new();
        for rows in self.rows.chunk_by(|a, b| a.profile == b.profile) {
            sheets.extend([0, 1].map(|write| self.sheet(rows, write)));
            if let Some(last) = sheets.last_mut() {
                let whole = rows.iter().filter(|row| !row.plays || row.known.is_some());
                last.notes.extend(whole.map(mounts));
            }
        }
        sheets
    }

    /// Seconds, trees or groups that ever were in memory, bitmaps read, and memory.
    fn grids(self) -> Vec<Grid> {
        let mut grids = Vec::new();
        for rows in self.rows.chunk_by(|a, b| a.profile == b.profile) {
            for (at, write) in ["first write", "second write"].into_iter().enumerate() {
                let name = |what| format!("{}, {write}: {what}", rows[0].profile);
                let columns: Vec<Name> = rows.iter().map(|row| row.name.clone()).collect();
                let mut seconds = Grid::new(name("seconds"), "s", &columns, 0).less();
                let [mut loaded, mut bitmaps] = ["trees or groups loaded", "bitmaps read"]
                    .map(|what| Grid::new(name(what), "", &columns, 0).less());
                let mut memory = Grid::new(name("memory"), "MB", &columns, 0).less();
                for (column, row) in rows.iter().enumerate() {
                    let Write { seconds: one, runs, .. } = &row.writes[at];
                    let all = if runs.is_empty() { std::slice::from_ref(one) } else { runs };
                    all.iter().for_each(|time| seconds.add(write, column, *time));
                    let bytes = row.writes[at].tree_bytes + row.writes[at].index_bytes;
                    memory.add(write, column, bytes as f64 / 1e6);
                    loaded.add(write, column, row.writes[at].trees as f64);
                    bitmaps.add(write, column, row.writes[at].bitmaps as f64);
                }
                grids.extend([seconds, loaded, bitmaps, memory]);
            }
        }
        grids
    }
}

impl SpaceResults {
    /// Returns the table of the write with this index on the profile of `rows`.
    fn sheet(&self, rows: &[Row], write: usize) -> Sheet {
        let (bytes, order) = (self.sizes[write], ["first", "next"][write]);
        let title = format!("{}: {order} {} MB", rows[0].profile, bytes >> 20);
        let mut sheet = Sheet::new(title, HEAD);
        rows.iter().for_each(|row| sheet.row(fields(row, &row.writes[write], bytes)));
        sheet
    }
}

fn mounts(row: &Row) -> String {
    let seconds = |time: Option<f64>| time.map_or(String::from("-"), short);
    format!(
        "{}: mount {}, all known {}, claims {:?}",
        row.name,
        seconds(row.mount),
        seconds(row.known),
        row.writes[1].claims
    )
}
