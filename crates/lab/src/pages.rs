//! Tables of stored runs in the pages of the project.
//!
//! `docs/runs/NAME.json` is the output of a command with `--json`. A page has a line
//! `<!-- NAME -->`, the tables, and a line `<!-- end of NAME -->`. A test compares the tables with
//! their runs.

use crate::grid::Grid;
use crate::interval::Interval;
use crate::pairs::{Row as Pairs, THREADS};
use crate::sheet::Sheet;
use crate::space60t::SpaceResults;
use crate::stored::{Results, Run, Store};
use crate::{age, claims, instructions, prealloc, reproduce};
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

const TABLES: [Table; 16] = [
    Table { page: "README.md", name: "pairs in short", run: "pairs", form: short },
    Table::all("pairs", pairs),
    Table::all("dref", whole::<Vec<Grid>>),
    Table::all("prealloc", whole::<prealloc::Results>),
    Table::all("inodes", whole::<Vec<Grid>>),
    Table::all("sync", whole::<Vec<Grid>>),
    Table::all("orphan", whole::<Vec<Grid>>),
    Table::all("space60t", whole::<SpaceResults>),
    Table::all("space-claims", whole::<Vec<claims::Claim>>),
    Table::all("age", whole::<Vec<age::Row>>),
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
///
/// # Errors
/// Those of reading and writing; `InvalidData` if a run or the marks of a page are damaged.
pub fn run(args: &Args) -> io::Result<bool> {
    for table in &TABLES {
        let path = args.root.join(table.page);
        fs::write(&path, table.renewed(&args.root, &fs::read_to_string(&path)?)?)?;
    }
    Ok(true)
}

/// Returns the pages that do not have the tables of the stored runs.
///
/// # Errors
/// As [`run`].
pub fn stale(root: &Path) -> io::Result<Vec<&'static str>> {
    let mut stale = Vec::new();
    for table in &TABLES {
        let text = fs::read_to_string(root.join(table.page))?;
        if table.renewed(root, &text)? != text {
            stale.push(table.page);
        }
    }
    Ok(stale)
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

/// Returns the command of a run, and its machine.
fn origin<T>(Run { machine, command, .. }: &Run<T>) -> String {
    format!("`{command}`;\n{machine}.\n")
}

/// The table of `pairs`, with a column for each number of threads.
fn pairs(store: &Store, name: &str) -> io::Result<String> {
    let run: Run<Vec<Pairs>> = store.read(name)?;
    let rows = &run.results;
    let mut sheet = Sheet::new("", ["row", "1 thread", "2", "4", "16"]);
    by_name(rows).iter().for_each(|(name, cells)| sheet.row(line(name, cells, |i| i.to_string())));
    for row in rows.iter().filter(|row| !THREADS.contains(&row.threads)) {
        let ratio = row.ratio().map_or("-".into(), |ratio| ratio.to_string());
        sheet.notes.push(format!("{}: {ratio}", row.name));
    }
    for verdicts in rows.sheets() {
        sheet.notes.push(verdicts.title);
        sheet.notes.extend(verdicts.notes);
    }
    Ok(format!("{}\n{}\n", origin(&run), sheet.lines().trim_end()))
}

/// Some rows of `pairs`, means alone.
fn short(store: &Store, name: &str) -> io::Result<String> {
    let run: Run<Vec<Pairs>> = store.read(name)?;
    let mut sheet = Sheet::new("", ["operation, both in memory", "1 thread", "2", "4", "16"]);
    let all = by_name(&run.results);
    for (name, cells) in all.iter().filter(|(name, _)| SHORT.contains(name)) {
        sheet.row(line(name, cells, |ratio| format!("{:.1}", ratio.mean)));
    }
    Ok(sheet.lines().trim_end().to_owned() + "\n")
}

/// Ratios of a row by threads.
type Cells = BTreeMap<usize, Option<Interval>>;

/// Returns the cells of a row.
fn line(name: &str, cells: &Cells, show: impl Fn(Interval) -> String) -> Vec<String> {
    let cell = |threads| cells.get(&threads).copied().flatten().map_or("-".into(), &show);
    [name.to_owned()].into_iter().chain(THREADS.map(cell)).collect()
}

/// Ratios by row in the order of the run, and by threads; rows with other numbers are left out.
fn by_name(rows: &[Pairs]) -> Vec<(&str, Cells)> {
    let mut named: Vec<(&str, Cells)> = Vec::new();
    for row in rows.iter().filter(|row| THREADS.contains(&row.threads)) {
        if named.last().is_none_or(|(name, _)| *name != row.name) {
            named.push((&row.name, BTreeMap::new()));
        }
        if let Some((_, cells)) = named.last_mut() {
            cells.insert(row.threads, row.ratio());
        }
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
        assert_eq!(stale(&root).expect("pages"), [""; 0], "`make pages` renews them");
    }
}
