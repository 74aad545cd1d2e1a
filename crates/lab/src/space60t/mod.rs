//! Writing to a fragmented file system of 60 TiB: how soon after the mount, how fast, into how many pieces.
//!
//! The disk is that of the free-space-tree postings of 2020: 491,520 groups, 30,720 flexible groups. Its bitmaps are made up as
//! they are read (`disk`). The engine mounts it and writes twice; the posted allocator (`posted`) is played on the same
//! bitmaps. Times are those of the processor, plus 38 ms for the first look at each flexible group's bitmaps where the disk is to
//! be slow: virtual time, on the account of the thread that reads.

mod disk;
mod engine;
mod posted;

use clap::Args as ClapArgs;
use disk::{Disk, Profile};
use serde::Serialize;
use std::io;
use std::sync::Arc;

/// What to measure.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// One JSON document in place of a table.
    #[arg(long)]
    json: bool,
    /// Leave out the posted allocator, whose higher levels read the whole disk.
    #[arg(long)]
    engine_only: bool,
}

/// One write.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Write {
    /// Seconds until it was durable (posted: until it was allocated).
    pub seconds: f64,
    /// Of these, waiting for the disk.
    pub waited: f64,
    /// Physically discontiguous pieces of the file.
    pub pieces: u64,
    /// Bytes of free-space trees in memory, and of what is known of the rest.
    pub tree_bytes: u64,
    /// The index over all groups.
    pub index_bytes: u64,
    /// Trees in memory; posted: trees that ever were.
    pub trees: u64,
    /// Bitmaps read by then.
    pub bitmaps: u64,
    /// Claims by where they found their place: goal, stream, criteria 0 to 2, anywhere.
    pub claims: [u64; 6],
}

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The disk's profile.
    pub profile: &'static str,
    /// Who allocates.
    pub name: String,
    /// Seconds until it was mounted.
    pub mount: Option<f64>,
    /// Seconds from the mount until all groups were known.
    pub known: Option<f64>,
    /// 10 MB, then 100 MB.
    pub writes: [Write; 2],
}

/// Bytes of the two writes.
const WRITES: [u64; 2] = [10 << 20, 100 << 20];

/// Runs everything and prints the table.
pub fn run(args: &Args) -> io::Result<bool> {
    let mut rows = Vec::new();
    for profile in [Profile::HARSH, Profile::POSTED] {
        let disk = Arc::new(Disk::new(&profile)?);
        eprintln!("{}: {} free runs, mean {:.1} blocks", profile.name, disk.runs(), disk.mean_run());
        rows.extend(engine::rows(&profile, &disk)?);
        if !args.engine_only {
            rows.extend(posted::rows(&profile, &disk));
        }
    }
    if args.json {
        println!("{}", serde_json::to_string(&rows)?);
    } else {
        rows.iter().for_each(print);
    }
    Ok(true)
}

fn print(row: &Row) {
    let seconds = |time: Option<f64>| time.map_or(String::from("-"), |time| format!("{time:.3} s"));
    println!("{}, {}: mount {}, all known {}", row.profile, row.name, seconds(row.mount), seconds(row.known));
    for (write, bytes) in row.writes.iter().zip(WRITES) {
        println!(
            "  {:>4} MB: {:>9.4} s (waited {:>8.3}), {:>11.1} MB/s, {:>5} pieces, trees {:>7.1} MB + {:.1} MB ({} trees), {} bitmaps, claims {:?}",
            bytes >> 20,
            write.seconds,
            write.waited,
            bytes as f64 / 1e6 / write.seconds,
            write.pieces,
            write.tree_bytes as f64 / 1e6,
            write.index_bytes as f64 / 1e6,
            write.trees,
            write.bitmaps,
            write.claims,
        );
    }
}
