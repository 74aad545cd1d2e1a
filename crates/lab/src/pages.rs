//! Tables of stored runs in the pages of the project.
//!
//! `docs/runs/NAME.json` is the output of a command with `--json`. A page has a line
//! `<!-- NAME -->`, the tables, and a line `<!-- end of NAME -->`. A test compares the tables with
//! their runs.

use crate::pairs::{ENGINE, EXT4, Pairs, THREADS};
use crate::reproduce;
use extant_measure::grid::Grid;
use extant_measure::interval::{Interval, judged};
use extant_measure::sheet::Sheet;
use extant_measure::stored::{Results, Run, Store};
use std::collections::BTreeMap;
use std::{fs, io};

/// Arguments of `extant-lab pages`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The root of the repository.
    #[arg(default_value = ".")]
    pub root: std::path::PathBuf,
}

/// Returns a table of a stored run, or of a work.
type Form = fn(&Store, &str) -> io::Result<String>;

/// Pages, marks of tables with `#` for the name, the names, and the form.
const TABLES: [(&str, &str, &str, Form); 4] = [
    ("README.md", "# in short", "pairs", short),
    ("docs/performance.md", "#", "pairs", pairs),
    ("docs/performance.md", "#", WHOLE, whole),
    ("docs/reproduce.md", "reproduce #", "orphan dcount sync prealloc frsp", work),
];

/// Runs all of whose tables are in the page about performance.
const WHOLE: &str = "dref prealloc preallocs inodes sync fsmark aim7 orphan space60t space-claims \
                     age scale instructions bench work requests images check codecs";

/// Takes the place of tables without a stored run.
const NOT_STORED: &str = "No run is stored yet; [bench.md](bench.md) has the command.\n";

/// Rows of the README.
const SHORT: [&str; 4] = ["create empty files", "unlink", "stat one path of depth 6", "creat_clo"];

/// Writes the tables of all stored runs into their pages.
pub fn run(args: &Args) -> io::Result<bool> {
    for (page, mark, names, form) in TABLES {
        let path = args.root.join(page);
        let about = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let mut text = fs::read_to_string(&path).map_err(about)?;
        for name in names.split(' ') {
            let (mark, table) = (mark.replace('#', name), form(&Store::of(&args.root), name)?);
            text = put(&text, &mark, &table).ok_or_else(|| {
                let why = format!("{page}: the marks of `{mark}` are missing");
                io::Error::new(io::ErrorKind::InvalidData, why)
            })?;
        }
        fs::write(&path, text).map_err(about)?;
    }
    Ok(true)
}

/// Returns `page` with `table` between the marks.
fn put(page: &str, name: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(&format!("<!-- {name} -->\n"))?;
    let end = format!("<!-- end of {name} -->\n");
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}<!-- {name} -->\n\n{table}\n{end}{after}"))
}

/// All tables of a run, below its origin.
fn whole(store: &Store, name: &str) -> io::Result<String> {
    if !store.has(name) {
        return Ok(NOT_STORED.into());
    }
    let run = reproduce::tables(store, name)?;
    Ok(format!("{}\n{}", origin(&run), joined(&run.results.0)))
}

fn joined(sheets: &[Sheet]) -> String {
    let tables: String = sheets.iter().map(Sheet::markdown).collect();
    tables.trim_end().to_owned() + "\n"
}

fn work(store: &Store, name: &str) -> io::Result<String> {
    Ok(joined(&reproduce::stored(name, store)?.sheets()))
}

fn origin<T>(Run { machine, command, .. }: &Run<T>) -> String {
    format!("`{command}`;\n{machine}.\n")
}

/// The table of `pairs`, with a column for each number of threads.
fn pairs(store: &Store, name: &str) -> io::Result<String> {
    let run: Run<Pairs> = store.read(name)?;
    let origin = origin(&run);
    let mut sheet = Sheet::new("", ["row", "1 thread", "2", "4", "16"]);
    for (name, ratios) in by_name(run.results.rates()) {
        match ratios.iter().find(|(threads, _)| !THREADS.contains(threads)) {
            Some((_, ratio)) => sheet.notes.push(format!("{name}: {ratio}")),
            None => sheet.row(line(name, &ratios, Interval::to_string)),
        }
    }
    let verdicts = judged(&run.results.verdicts());
    sheet.notes.push(verdicts.title);
    sheet.notes.extend(verdicts.notes);
    let costs = run.results.grids().into_iter().skip(1).filter(|grid| !grid.rows.is_empty());
    let costs: Vec<Sheet> = costs.flat_map(|grid| grid.sheets()).collect();
    Ok(format!("{origin}\n{}\n\n{}", sheet.lines().trim_end(), joined(&costs)))
}

/// Some rows of `pairs`, means alone.
fn short(store: &Store, name: &str) -> io::Result<String> {
    let run: Run<Pairs> = store.read(name)?;
    let mut sheet = Sheet::new("", ["operation, both in memory", "1 thread", "2", "4", "16"]);
    let all = by_name(run.results.rates());
    for (name, ratios) in all.iter().filter(|(name, _)| SHORT.contains(name)) {
        sheet.row(line(name, ratios, |ratio| format!("{:.1}", ratio.mean)));
    }
    Ok(sheet.lines().trim_end().to_owned() + "\n")
}

/// Ratios of the engine to the kernel by threads.
type Ratios = BTreeMap<usize, Interval>;

fn line(name: &str, ratios: &Ratios, show: impl Fn(&Interval) -> String) -> Vec<String> {
    let cell = |threads| ratios.get(&threads).map_or("-".into(), &show);
    [name.to_owned()].into_iter().chain(THREADS.map(cell)).collect()
}

/// Returns the ratios of each workload in the order of the run.
fn by_name(rates: &Grid) -> Vec<(&str, Ratios)> {
    let mut named: Vec<(&str, Ratios)> = Vec::new();
    for (row, work, threads) in rates.by_threads() {
        if named.last().is_none_or(|(last, _)| *last != work) {
            named.push((work, BTreeMap::new()));
        }
        let ratio = rates.gain_of(row, ENGINE, EXT4);
        named.last_mut().zip(ratio).map(|((_, ratios), ratio)| ratios.insert(threads, ratio));
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn tables_replace_the_lines_between_their_marks() {
        let page = "a\n<!-- t -->\nold\n<!-- end of t -->\nb\n";
        let new = "a\n<!-- t -->\n\nnew\n\n<!-- end of t -->\nb\n";
        assert_eq!(put(page, "t", "new\n").as_deref(), Some(new));
        assert_eq!(put(new, "t", "new\n").as_deref(), Some(new));
        assert_eq!(put(page, "other", "new\n"), None);
    }

    #[test]
    fn pages_hold_the_figures_of_the_stored_runs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (page, mark, names, form) in TABLES {
            let text = fs::read_to_string(root.join(page)).expect("a page");
            for name in names.split(' ') {
                let table = form(&Store::of(&root), name).expect("a stored run");
                let renewed = put(&text, &mark.replace('#', name), &table).expect("marks");
                assert!(renewed == text, "`make pages` renews {name} in {page}");
            }
        }
    }
}
