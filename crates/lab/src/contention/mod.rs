//! Effects of each operation on memory that threads share: locks taken, writes to cache lines that
//! several threads write.
//!
//! The figures come from the counting types of `extant_sync`, which the feature `contention`
//! substitutes for the usual ones. They show how often and where, not how fast: the counting
//! program is much slower.

#[cfg(feature = "contention")]
mod count;
#[cfg(all(feature = "contention", feature = "designs"))]
pub use count::Counter;

use crate::jobs::KINDS;
use extant_measure::options::at_least_one;
use extant_measure::sheet::say;
use std::io;

/// Arguments of `extant-lab contention`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Workloads; `all` for all. Without any, their names are printed.
    pub workloads: Vec<String>,
    /// Threads.
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    pub threads: usize,
    /// The most operations of each thread.
    #[arg(long, default_value_t = 2000)]
    pub ops: u64,
    /// End with 1 if a workload writes forbidden shared lines.
    #[arg(long)]
    pub strict: bool,
    /// Shards of the engine's structures; 0 for as many as the processors need.
    #[arg(long, default_value_t = 0)]
    pub shards: usize,
    /// Keep orphans in the list that was before the orphan file.
    #[arg(long)]
    pub orphan_list: bool,
    /// One line of JSON for each workload, which `scale` reads, in place of tables.
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> io::Result<bool> {
    if args.workloads.is_empty() {
        let names = KINDS.iter().map(|kind| format!("{:<22} {}\n", kind.word, kind.name));
        return say(&names.collect::<String>()).map(|()| true);
    }
    counted(args)
}

#[cfg(feature = "contention")]
fn counted(args: &Args) -> io::Result<bool> {
    let all = args.workloads.iter().any(|word| word == "all");
    let kinds: Vec<_> = if all {
        KINDS.iter().collect()
    } else {
        args.workloads
            .iter()
            .map(|word| crate::jobs::Kind::named(word))
            .collect::<io::Result<_>>()?
    };
    let mut passed = true;
    for counted in count::count(&kinds, args)? {
        let text = if args.json { counted.json()? } else { count::text(&counted) };
        say(&text)?;
        passed &= extant_measure::interval::all_reached(&counted.verdicts());
    }
    Ok(passed || !args.strict)
}

#[cfg(not(feature = "contention"))]
fn counted(_args: &Args) -> io::Result<bool> {
    let message =
        "this program was built without counting; `make contention` builds one that counts";
    Err(io::Error::new(io::ErrorKind::Unsupported, message))
}
