//! `extant-lab prealloc`: preallocation against the designs before it, and against the kernel's
//! ext4.
//!
//! The four tests are those that the kernel's tree of preallocations was published with: sparse
//! random writes of 1 KiB; filling a file by random writes of 1 KiB; the same with four sequential
//! writes before each jump; making files of 2 KiB by 64 threads. Each runs with delayed and with
//! immediate allocation: for the kernel that is a mount option, for the engine whether writes go
//! past its pages. Both sides are in one run over the same kind of image on tmpfs, and the pieces
//! of the files are counted by the same program on both, `filefrag`.

mod designs;
mod race;
mod sides;
mod trials;

use crate::scratch;
use clap::Args as ClapArgs;
use sides::{Disk, Mode, Side};
use std::io;
use trials::{Outcome, Scale, TESTS};

/// Arguments of `extant-lab prealloc`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Less work of each kind, for a quick look.
    #[arg(long)]
    quick: bool,
    /// Only the comparison of designs, without file systems; needs no privileges.
    #[arg(long)]
    designs: bool,
    /// Only the tests of these names (T1 to T6), divided by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only the engine: for profiles, not for ratios.
    #[arg(long)]
    engine: bool,
    /// Only this mode, delayed or immediate.
    #[arg(long)]
    mode: Option<Mode>,
    /// Size of the sparse file of T1, in GiB.
    #[arg(long)]
    sparse: Option<u64>,
}

/// Runs it and prints tables; true if every bar is reached.
pub fn run(args: &Args) -> io::Result<bool> {
    scratch::catch_signals()?;
    let mut scale = if args.quick { Scale::QUICK } else { Scale::FULL };
    if let Some(gib) = args.sparse {
        scale.sparse_bytes = gib.max(1) << 30;
    }
    if args.only.is_empty() {
        race::run(args.quick);
    }
    if args.designs {
        return Ok(true);
    }
    println!(
        "\n{:<34} {:>9} {:>12} {:>12} {:>7} {:>9} {:>9}",
        "", "mode", "engine", "ext4", "ratio", "pieces", "ext4"
    );
    let (disk, mut reached) = (Disk::new()?, true);
    for test in TESTS
        .iter()
        .filter(|test| args.only.is_empty() || args.only.iter().any(|name| name == test.name))
    {
        for mode in [Mode::Delayed, Mode::Immediate]
            .into_iter()
            .filter(|mode| args.mode.is_none_or(|m| m == *mode))
        {
            let kernel = if args.engine {
                None
            } else {
                Some(disk.measure(Side::Ext4, mode, |side| (test.run)(side, &scale))?)
            };
            let engine = disk.measure(Side::Engine, mode, |side| (test.run)(side, &scale))?;
            reached &= print_row(test, mode, &engine, kernel.as_ref());
            print_parts(&disk, test, &engine, kernel.as_ref())?;
        }
    }
    Ok(reached)
}

/// Prints the parts of the time, and two bounds: the time to write the blocks alone, and the time
/// to keep them in memory and then to write them.
fn print_parts(
    disk: &Disk,
    test: &trials::Test,
    engine: &Outcome,
    kernel: Option<&Outcome>,
) -> io::Result<()> {
    let percent = |outcome: &Outcome| format!("{:.0}%", outcome.in_calls * 100.0);
    let kernel = kernel.map_or(String::new(), |kernel| format!(" (ext4: {})", percent(kernel)));
    let device = match engine.device_bytes {
        0 => String::new(),
        bytes => {
            let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
            let alone = engine.done / disk.plainly(bytes)?;
            let copied = engine.done / disk.copied(bytes, threads)?;
            let unit = test.unit;
            format!(
                "; writing its blocks alone: {alone:.0} {unit}; copying and writing them by \
                {threads} threads: {copied:.0} {unit}"
            )
        }
    };
    println!("    {} of the time before the sync{kernel}{device}", percent(engine));
    Ok(())
}

fn print_row(test: &trials::Test, mode: Mode, engine: &Outcome, kernel: Option<&Outcome>) -> bool {
    let rate = kernel.map_or(f64::NAN, |kernel| kernel.rate);
    let ratio = engine.rate / rate;
    let pieces = |n: Option<u64>| n.map_or_else(|| "-".into(), |n| n.to_string());
    let kernel_pieces = kernel.and_then(|kernel| kernel.pieces);
    let (own, others) = (pieces(engine.pieces), pieces(kernel_pieces));
    let fewer = match (engine.pieces, kernel_pieces, test.pieces_bar) {
        (Some(own), Some(others), Some(bar)) => own as f64 <= others as f64 / bar,
        _ => true,
    };
    let reached = mode == Mode::Immediate || kernel.is_none() || (ratio >= test.rate_bar && fewer);
    let verdict = match (mode, reached) {
        _ if kernel.is_none() => String::new(),
        (Mode::Immediate, _) => String::new(),
        (_, true) => format!("  reached ({}x)", test.rate_bar),
        (_, false) => format!("  MISSED ({}x)", test.rate_bar),
    };
    let name = format!("{} {}", test.name, test.what);
    let unit = test.unit;
    println!(
        "{name:<34} {:>9} {:>7.1} {unit:<4} {:>7.1} {unit:<4} {ratio:>7.2} {own:>9} \
        {others:>9}{verdict}",
        mode.name(),
        engine.rate,
        rate,
    );
    if let Some(stats) = engine.prealloc {
        let per = |n: u64| n as f64 / stats.searches.max(1) as f64;
        println!(
            "    preallocations: {} made, {} given back, {} searches, {:.2} looked at for each; \
            shared runs had {} of {} claims",
            stats.created,
            stats.discarded,
            stats.searches,
            per(stats.visited),
            stats.small_hits,
            stats.small_hits + stats.small_misses,
        );
    }
    reached
}
