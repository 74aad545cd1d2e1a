//! Tables of stored runs in the pages of the project.
//!
//! `docs/runs/NAME.json` is the output of a command with `--json`. A page has a line
//! `<!-- NAME -->`, the tables, and a line `<!-- end of NAME -->`. A test compares the tables with
//! their runs.

use crate::grid::{Grid, parts};
use crate::interval::{Interval, Verdict, judged};
use crate::pairs::{ENGINE, EXT4, Pairs, THREADS, judge};
use crate::scale::Simulated;
use crate::sheet::Sheet;
use crate::space60t::SpaceResults;
use crate::stored::{Results, Run, Store};
use crate::{age, instructions, prealloc, reproduce};
use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

/// Arguments of `extant-lab pages`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The root of the repository.
    #[arg(default_value = ".")]
    pub root: std::path::PathBuf,
}

/// Tables of a run in a page.
struct Table {
    page: &'static str,
    /// The name in the marks.
    name: &'static str,
    /// Name of the run, or of the work.
    run: &'static str,
    form: fn(&Store, &str) -> io::Result<String>,
}

impl Table {
    /// All tables of the run `name`, in the page about performance.
    const fn all(name: &'static str, form: fn(&Store, &str) -> io::Result<String>) -> Table {
        Table { page: "docs/performance.md", name, run: name, form }
    }

    /// Published tables of a work beside stored runs.
    const fn work(name: &'static str, work: &'static str) -> Table {
        Table { page: "docs/reproduce.md", name, run: work, form: self::work }
    }
}

const TABLES: [Table; 20] = [
    Table { page: "README.md", name: "pairs in short", run: "pairs", form: short },
    Table::all("pairs", pairs),
    Table::all("dref", whole::<Vec<Grid>>),
    Table::all("prealloc", whole::<prealloc::Tests>),
    Table::all("preallocs", whole::<Vec<Grid>>),
    Table::all("inodes", whole::<Vec<Grid>>),
    Table::all("sync", whole::<Vec<Grid>>),
    Table::all("fsmark", whole::<Vec<Grid>>),
    Table::all("aim7", whole::<Vec<Grid>>),
    Table::all("orphan", whole::<Vec<Grid>>),
    Table::all("space60t", whole::<SpaceResults>),
    Table::all("space-claims", whole::<Vec<Verdict>>),
    Table::all("age", whole::<Vec<age::Row>>),
    Table::all("scale", whole::<Simulated>),
    Table::all("instructions", whole::<Vec<instructions::Count>>),
    Table::work("reproduce orphan", "orphan"),
    Table::work("reproduce dcount", "dcount"),
    Table::work("reproduce sync", "sync"),
    Table::work("reproduce prealloc", "prealloc"),
    Table::work("reproduce frsp", "frsp"),
];

/// Rows of the README.
const SHORT: [&str; 4] = ["create empty files", "unlink", "stat one path of depth 6", "creat_clo"];

/// Writes the tables of all stored runs into their pages.
pub fn run(args: &Args) -> io::Result<bool> {
    for table in &TABLES {
        let path = args.root.join(table.page);
        fs::write(&path, table.renewed(&args.root, &fs::read_to_string(&path)?)?)?;
    }
    Ok(true)
}

impl Table {
    /// Returns `page` with this table renewed.
    fn renewed(&self, root: &Path, page: &str) -> io::Result<String> {
        let table = (self.form)(&Store::of(root), self.run)?;
        put(page, self.name, &table).ok_or_else(|| {
            let why = format!("{}: the marks of `{}` are missing", self.page, self.name);
            io::Error::new(io::ErrorKind::InvalidData, why)
        })
    }
}

/// Returns `page` with `table` between the marks.
fn put(page: &str, name: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(&format!("<!-- {name} -->\n"))?;
    let end = format!("<!-- end of {name} -->\n");
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}<!-- {name} -->\n\n{table}\n{end}{after}"))
}

/// All tables of a run, below its origin.
fn whole<T: Results>(store: &Store, name: &str) -> io::Result<String> {
    let run = store.read::<T>(name)?;
    Ok(format!("{}\n{}", origin(&run), tables(&run.results)))
}

fn tables(results: &impl Results) -> String {
    let tables: String = results.sheets().iter().map(Sheet::markdown).collect();
    tables.trim_end().to_owned() + "\n"
}

fn work(store: &Store, name: &str) -> io::Result<String> {
    Ok(tables(&reproduce::stored(name, store)?))
}

fn origin<T>(Run { machine, command, .. }: &Run<T>) -> String {
    format!("`{command}`;\n{machine}.\n")
}

/// The table of `pairs`, with a column for each number of threads.
fn pairs(store: &Store, name: &str) -> io::Result<String> {
    let run: Run<Pairs> = store.read(name)?;
    let mut sheet = Sheet::new("", ["row", "1 thread", "2", "4", "16"]);
    for (name, ratios) in by_name(run.results.rates()) {
        match ratios.iter().find(|(threads, _)| !THREADS.contains(threads)) {
            Some((_, ratio)) => sheet.notes.push(format!("{name}: {ratio}")),
            None => sheet.row(line(name, &ratios, Interval::to_string)),
        }
    }
    let verdicts = judged(&judge(run.results.rates()));
    sheet.notes.push(verdicts.title);
    sheet.notes.extend(verdicts.notes);
    Ok(format!("{}\n{}\n", origin(&run), sheet.lines().trim_end()))
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
    for (row, (name, _)) in rates.rows.iter().enumerate() {
        let Some((work, threads)) = parts(name) else { continue };
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
        for table in &TABLES {
            let page = fs::read_to_string(root.join(table.page)).expect("a page");
            let renewed = table.renewed(&root, &page).expect("a stored run");
            assert!(renewed == page, "`make pages` renews {} in {}", table.name, table.page);
        }
    }
}
