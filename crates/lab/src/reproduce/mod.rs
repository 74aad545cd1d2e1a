//! `extant-lab reproduce`: the published tables of five works on ext4 and the VFS beside the same
//! experiments here.
//!
//! Effects are compared, not rates: the gain from the design before a work to the design after it,
//! as published and as measured. The values come from runs of the lab's other commands: stored ones
//! (`docs/runs`), or quick ones that this command makes by running the program again.

mod page;
mod plot;

use crate::published::{Found, Here, Work, works};
use crate::scale::Simulated;
use crate::tables::DESIGNS;
use crate::{age, claims, instructions, prealloc, space60t};
use extant_measure::costs::Costs;
use extant_measure::grid::Grid;
use extant_measure::scratch::contained;
use extant_measure::sheet::Sheet;
use extant_measure::stored::{Results, Run, Store};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Arguments of `extant-lab reproduce`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Works.
    #[arg(default_value = "all", value_parser = WORKS)]
    works: Vec<String>,
    /// Print the stored runs of the repository, and measure nothing.
    #[arg(long)]
    stored: bool,
    /// The root of the repository.
    #[arg(long, default_value = ".")]
    root: PathBuf,
    /// Where quick runs are stored.
    #[arg(long, default_value = "target/lab")]
    runs: PathBuf,
    /// The program that has other designs under the engine: `make designs`.
    #[arg(long, default_value = "target/designs/release/extant-lab")]
    designs: PathBuf,
    /// Write a page with plots of the repository's stored runs, beside quick ones if they are
    /// measured, in place of tables.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// One JSON document with published and measured values, in place of tables.
    #[arg(long)]
    json: bool,
}

/// Rows of `pairs` that stand beside a published table.
const PAIRS: [&str; 7] = ["orphan", "creat", "unlink", "stat one", "open", "walk", "syncs"];

const WORKS: [&str; 6] = ["orphan", "dcount", "sync", "prealloc", "frsp", "all"];

/// The command that simulates.
const SCALE: &str = "scale";

pub fn run(args: &Args) -> io::Result<bool> {
    let mut works = works()?;
    works.retain(|work| args.works.iter().any(|name| name == "all" || *name == work.name));
    let (kept, quick) = (Store::of(&args.root), Store(args.runs.clone()));
    if (args.stored || args.page.is_some()) && !kept.0.is_dir() {
        let why = format!("{} is missing: name the repository by `--root`", kept.0.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    if !args.stored {
        measure(&works, &quick, &args.designs)?;
    }
    let shown = filled(&works, if args.stored { &kept } else { &quick })?;
    match &args.page {
        Some(path) => {
            let page = page::page(&filled(&works, &kept)?, if args.stored { &[] } else { &shown })?;
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(path, page)?;
            eprintln!("{}", path.display());
        }
        None => shown.print(args.json)?,
    }
    Ok(true)
}

/// Returns the tables of a work from stored runs.
pub fn stored(name: &str, store: &Store) -> io::Result<Vec<Work>> {
    let mut works = works()?;
    works.retain(|work| work.name == name);
    filled(&works, store)
}

/// Returns works with the values of runs.
fn filled(works: &[Work], store: &Store) -> io::Result<Vec<Work>> {
    let mut works = works.to_vec();
    works.iter_mut().try_for_each(|work| work.fill(store))?;
    Ok(works)
}

/// Runs each experiment of the works once, quickly, and stores its results.
fn measure(works: &[Work], store: &Store, designs: &Path) -> io::Result<()> {
    let mut named: BTreeSet<&str> =
        works.iter().flat_map(Work::here).map(|here| &*here.run).collect();
    // It needs the counting program.
    named.remove(SCALE);
    if named.iter().any(|name| DESIGNS.contains(name)) && !designs.exists() {
        let why = format!("{} is missing; `make designs` builds it", designs.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    for name in &named {
        eprintln!("extant-lab {name} --quick");
        let this = std::env::current_exe()?;
        let program = if DESIGNS.contains(name) { designs } else { &this };
        let mut command = Command::new(program);
        command.args([name, "--quick", "--json"]);
        if *name == "pairs" {
            command.args(PAIRS.iter().flat_map(|row| ["--only", row]));
        }
        // A signal has it clean up as well.
        let done = contained(command.stdin(Stdio::null()), Signal::TERM)?;
        // A command may end with 1 for a bar that is not reached.
        if done.stdout.is_empty() {
            return Err(io::Error::other(format!(
                "`extant-lab {name}` failed (its message is above)"
            )));
        }
        store.write(name, &done.stdout)?;
    }
    Ok(())
}

/// A run's tables for people, its values by workload and design, and its maps of free space.
pub type Tables = Run<(Vec<Sheet>, Vec<Grid>, Vec<(String, String)>)>;

/// Reads a run of any command.
pub fn tables(store: &Store, name: &str) -> io::Result<Tables> {
    match name {
        "check" | "images" => tables_of::<Costs>(store, name),
        "age" => tables_of::<Vec<age::Row>>(store, name),
        "bench" => tables_of::<crate::bench::Bench>(store, name),
        "instructions" => tables_of::<Vec<instructions::Count>>(store, name),
        "prealloc" => tables_of::<prealloc::Tests>(store, name),
        SCALE => tables_of::<Simulated>(store, name),
        "space-claims" => tables_of::<claims::Claims>(store, name),
        "work" => tables_of::<crate::work::Work>(store, name),
        "space60t" => tables_of::<space60t::SpaceResults>(store, name),
        _ => tables_of::<Vec<Grid>>(store, name),
    }
}

fn tables_of<T: Results>(store: &Store, name: &str) -> io::Result<Tables> {
    let Run { machine, command, results } = store.read::<T>(name)?;
    let (sheets, maps) = (results.sheets(), results.maps());
    Ok(Run { machine, command, results: (sheets, results.grids(), maps) })
}

impl Work {
    fn here(&self) -> impl Iterator<Item = &Here> {
        self.tables.iter().flat_map(|table| &table.here)
    }

    fn fill(&mut self, store: &Store) -> io::Result<()> {
        for here in self.tables.iter_mut().flat_map(|table| &mut table.here) {
            // Quick runs leave it out.
            if here.run == SCALE && !store.has(SCALE) {
                continue;
            }
            here.found = Some(here.find(store)?);
        }
        Ok(())
    }
}

impl Here {
    fn find(&self, store: &Store) -> io::Result<Found> {
        let Run { machine, command, results: (sheets, grids, maps) } = tables(store, &self.run)?;
        let (mut grid, mut notes) = (Grid::new("", "", &[""; 0], 0), Vec::new());
        if self.grid.is_empty() {
            let rows = sheets.into_iter().flat_map(|sheet| sheet.rows);
            notes.extend(rows.map(|cells| cells.join(": ")));
        } else {
            let why = format!("the run `{}` has no table `{}`", self.run, self.grid);
            let named = grids.into_iter().find(|grid| grid.title == self.grid);
            grid = named.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, why))?;
        }
        grid.rows.retain(|(name, _)| self.key(name).is_some());
        Ok(Found { machine, command, grid, notes, maps })
    }
}
