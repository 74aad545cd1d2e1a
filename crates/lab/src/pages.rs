//! Tables of stored runs in the pages of the project.
//!
//! `docs/runs/NAME.json` is the output of a command with `--json`. A page has a line
//! `<!-- NAME -->`, the table, and a line `<!-- end of NAME -->`. A test compares each table with
//! its run.

use crate::pairs::{Interval, Row as Pairs, THREADS};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

/// Arguments of `extant-lab pages`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The root of the repository.
    #[arg(default_value = ".")]
    pub root: std::path::PathBuf,
}

/// A table: its page, its marks, its run, and the form of it.
struct Table {
    page: &'static str,
    name: &'static str,
    run: &'static str,
    form: fn(&str) -> serde_json::Result<String>,
}

const TABLES: [Table; 2] = [
    Table { page: "docs/lab.md", name: "pairs", run: "docs/runs/pairs.json", form: pairs },
    Table { page: "README.md", name: "pairs in short", run: "docs/runs/pairs.json", form: short },
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
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let run = fs::read_to_string(root.join(self.run))?;
        let table = (self.form)(&run).map_err(|e| wrong(format!("{}: {e}", self.run)))?;
        put(page, self.name, &table).ok_or_else(|| {
            wrong(format!("{}: the marks of `{}` are missing", self.page, self.name))
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

#[derive(Deserialize)]
struct Stored<Row> {
    machine: crate::machine::Machine,
    rows: Vec<Row>,
}

/// The whole table of `pairs`.
fn pairs(run: &str) -> serde_json::Result<String> {
    let stored: Stored<Pairs> = serde_json::from_str(run)?;
    let verdicts = crate::pairs::judge(&stored.rows);
    let (reached, rest): (Vec<_>, Vec<_>) =
        verdicts.iter().partition(|verdict| verdict.standing == crate::pairs::Standing::Reached);
    let longest = stored.rows.iter().map(|row| row.sides[0].rate.len()).max().unwrap_or(0);
    let mut out = format!(
        "{longest} pairs of each row;\n{}. {} of\n{} bars were reached.\n\n",
        stored.machine,
        reached.len(),
        verdicts.len()
    );
    out += &head(&["row", "1 thread", "2", "4", "16"]);
    for (name, cells) in by_name(&stored.rows) {
        line(&mut out, name, THREADS.map(|threads| cells.get(&threads).copied().flatten()));
    }
    out += "\n";
    for row in stored.rows.iter().filter(|row| !THREADS.contains(&row.threads)) {
        let ratio = row.ratio().map_or("-".into(), |ratio| ratio.to_string());
        let _ = writeln!(out, "- {}: {ratio}", row.name);
    }
    for verdict in rest {
        let word = verdict.standing.word().to_lowercase();
        let _ = writeln!(out, "- {word}: {}:\n  {}", verdict.bar, verdict.found);
    }
    Ok(out)
}

/// Some rows of `pairs`, means alone.
fn short(run: &str) -> serde_json::Result<String> {
    let stored: Stored<Pairs> = serde_json::from_str(run)?;
    let mut out = head(&["operation, both in memory", "1 thread", "2", "4", "16"]);
    let all = by_name(&stored.rows);
    for (name, cells) in all.iter().filter(|(name, _)| SHORT.contains(name)) {
        let mean = |threads| cells.get(&threads).copied().flatten().map(|i: Interval| i.mean);
        line(&mut out, name, THREADS.map(|threads| mean(threads).map(|mean| format!("{mean:.1}"))));
    }
    Ok(out)
}

/// Ratios by row in the order of the run, and by threads; rows with other numbers are left out.
fn by_name(rows: &[Pairs]) -> Vec<(&str, BTreeMap<usize, Option<Interval>>)> {
    let mut named: Vec<(&str, BTreeMap<_, _>)> = Vec::new();
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

fn head(titles: &[&str]) -> String {
    format!("| {} |\n|{}\n", titles.join(" | "), " --- |".repeat(titles.len()))
}

fn line<T: std::fmt::Display>(out: &mut String, name: &str, cells: [Option<T>; THREADS.len()]) {
    let shown = cells.map(|cell| cell.map_or("-".into(), |cell| cell.to_string()));
    let _ = writeln!(out, "| {name} | {} |", shown.join(" | "));
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
