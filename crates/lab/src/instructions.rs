//! `extant-lab instructions`: instructions of the engine's hot operations, beside stored counts.
//!
//! Each operation runs in a process of its own under callgrind, which counts the instructions of
//! one thread between the start and the end of the measured loop: neither the preparation nor the
//! engine's background threads. So a count depends on the program alone, not on the machine's load,
//! and a small change of cost shows that no rate would.
//!
//! Counts still vary: hash tables have random seeds, and a split of a directory block or a commit
//! falls on one operation or another. All of that adds, so the least of [`RUNS`] counts, and each
//! operation has a tolerance above the rest.

use crate::jobs::{Kind, Size};
use crate::side::{Running, Side};
use crate::target::How;
use extant_measure::options::{Options, invalid};
use extant_measure::sheet::{Name, Sheet};
use extant_measure::stored::{ListItem, Results, Store};
use extant_measure::timing::{Limit, run_threads};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `extant-lab instructions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The root of the repository, whose stored counts are compared.
    #[arg(long, default_value = ".")]
    root: PathBuf,
    #[command(flatten)]
    options: Options,
    /// Runs one operation so many times in this process.
    #[arg(long, hide = true)]
    play: Option<String>,
}

/// Counts of each operation, the least of which is taken.
const RUNS: usize = 3;

/// Greatest change against the stored count: the least counts of equal programs differ by 1%.
const TOLERANCE: f64 = 0.05;

/// The same for syncs, single counts of which differ by up to a half: their share of the writes of
/// pages and of checkpoints depends on the background threads.
const SYNC_TOLERANCE: f64 = 0.3;

/// The measured loop of a thread, as callgrind names it.
const LOOP: &str = "*extant_measure*timing*until_limit*";

/// Name, workload and number of the operations. The last is a write of 4 KiB and a sync.
const OPERATIONS: [(&str, &str, u64); 8] = [
    ("stat of a path of depth 6", "stat-path", 20_000),
    ("stat of that path as a user", "stat-path-as", 20_000),
    ("create", "create", 2_000),
    ("unlink", "unlink", 2_000),
    ("creat_clo", "creat-clo", 5_000),
    ("write 4 KiB", "write", 10_000),
    ("walk of a directory of 32 files", "walk", 500),
    ("write 4 KiB and sync", SYNC, 500),
];
const SYNC: &str = "sync";

/// The count of an operation.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Count {
    operation: Name,
    /// Operations of the run.
    times: u64,
    /// Instructions of one.
    each: f64,
}

impl ListItem for Count {
    fn sheets(all: &[Self]) -> Vec<Sheet> {
        let mut sheet =
            Sheet::new("instructions of an operation", ["", "instructions", "operations"]);
        for Count { operation, times, each } in all {
            sheet.row([operation.to_string(), format!("{each:.0}"), times.to_string()]);
        }
        vec![sheet]
    }
}

pub fn run(args: &Args) -> io::Result<bool> {
    if let Some(word) = &args.play {
        return play(word).map(|()| true);
    }
    args.options.refuse(&["runs", "quick", "threads", "strict"])?;
    let chosen = OPERATIONS.iter().filter(|(name, ..)| args.options.wants(name));
    let counts = chosen
        .map(|(name, word, times)| count(name, word, *times))
        .collect::<io::Result<Vec<_>>>()?;
    if counts.is_empty() {
        return Err(invalid("`--only` names no operation"));
    }
    if args.options.json {
        return counts.print(true).map(|()| true);
    }
    compared(&counts, &Store::of(&args.root).read::<Vec<Count>>("instructions")?.results)
}

/// Prints counts beside stored ones.
fn compared(counts: &[Count], stored: &[Count]) -> io::Result<bool> {
    let mut sheet = Sheet::new("instructions of an operation", ["", "now", "stored", "change", ""]);
    let mut kept = true;
    for Count { operation, each, .. } in counts {
        let before = stored.iter().find(|count| count.operation == *operation);
        let change = before.map(|before| each / before.each - 1.0);
        let tolerance = if operation.contains(SYNC) { SYNC_TOLERANCE } else { TOLERANCE };
        let word = match change {
            Some(change) if change.abs() <= tolerance => "",
            Some(change) if change < 0.0 => "FEWER: store the new counts",
            Some(_) => "MORE",
            None => "NOT STORED",
        };
        kept &= word.is_empty();
        let [before, change] = [
            before.map(|b| format!("{:.0}", b.each)),
            change.map(|c| format!("{:+.1}%", c * 100.0)),
        ]
        .map(|cell| cell.unwrap_or_else(|| "-".into()));
        sheet.row([operation.to_string(), format!("{each:.0}"), before, change, word.into()]);
    }
    extant_measure::sheet::say(&sheet.text()).map(|()| kept)
}

/// Counts an operation in processes of its own.
fn count(name: &'static str, word: &str, times: u64) -> io::Result<Count> {
    eprintln!("{name}");
    let counts = (0..RUNS).map(|_| counted(word)).collect::<io::Result<Vec<f64>>>()?;
    let least = counts.into_iter().fold(f64::INFINITY, f64::min);
    Ok(Count { operation: name.into(), times, each: least / times as f64 })
}

/// Returns the instructions of the measured loop.
fn counted(word: &str) -> io::Result<f64> {
    let program = std::env::current_exe()?;
    let arguments = [
        "--tool=callgrind",
        // Messages go to standard output.
        "--log-fd=1",
        "--callgrind-out-file=/dev/null",
        &format!("--toggle-collect={LOOP}"),
        &program.to_string_lossy(),
        "instructions",
        "--play",
        word,
    ];
    let printed = extant_measure::scratch::run("valgrind", &arguments)?;
    let found = |line: &str| line.split_once("Collected : ")?.1.trim().parse::<f64>().ok();
    let nothing = || {
        let cause = "callgrind counted nothing: the program has no symbols";
        io::Error::other(format!("{cause}; `make instructions` builds one that has them"))
    };
    printed.lines().find_map(found).filter(|count| *count > 0.0).ok_or_else(nothing)
}

/// Runs an operation on a file system in memory.
fn play(word: &str) -> io::Result<()> {
    let operation = OPERATIONS.iter().find(|(_, known, _)| *known == word);
    let Some((.., times)) = operation else { return Err(io::Error::other("no such operation")) };
    let side = Side::EngineMemory.start()?;
    let size =
        Size { files: 4_000, rounds: *times, window: Duration::from_secs(3600), ..Size::FULL };
    match Kind::named(word) {
        Ok(kind) => kind.play(side.target(), (1, *times), &size, &()).map(drop)?,
        Err(_) => syncs(&side, *times)?,
    }
    side.stop()
}

fn syncs(side: &Running, times: u64) -> io::Result<()> {
    let target = side.target();
    target.create(b"file")?;
    let file = target.open(b"file", How::Write)?;
    let limit = Limit { ops: times, time: Duration::MAX };
    run_threads(1, limit, |_, n| {
        file.write_at(n % 64 * 4096, &[7; 4096])?;
        target.sync()
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_beyond_the_tolerance_are_told() {
        let count = |each| vec![Count { operation: "o".into(), times: 1, each }];
        for (now, kept) in [(100.0, true), (104.0, true), (106.0, false), (94.0, false)] {
            assert_eq!(compared(&count(now), &count(100.0)).expect("output"), kept, "{now}");
        }
        assert!(
            !compared(&count(1.0), &[]).expect("output"),
            "an operation without a stored count"
        );
    }

    #[test]
    fn every_operation_is_a_workload() {
        for (name, word, _) in OPERATIONS {
            assert!(word == SYNC || Kind::named(word).is_ok(), "{name}");
        }
    }
}
