//! Results as they are printed and stored.

use crate::grid::Grid;
use crate::interval::{Verdict, all_reached};
use crate::options::{Options, invalid};
use crate::sheet::{Sheet, say};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// Results of a command, in the form of `docs/runs/NAME.json`.
#[derive(Debug, Deserialize, Serialize)]
pub struct Run<T> {
    /// Processor, kernel, commit and day.
    pub machine: Machine,
    /// The command line.
    pub command: String,
    /// Every measured value.
    pub results: T,
}

/// Results of one kind of command.
pub trait Results: DeserializeOwned + Serialize {
    /// Returns the tables that people read.
    fn sheets(&self) -> Vec<Sheet>;

    /// Returns how they stand to their bars.
    fn verdicts(&self) -> Vec<Verdict> {
        Vec::new()
    }

    /// Returns the values that are by workload and design.
    fn grids(self) -> Vec<Grid> {
        Vec::new()
    }

    /// Returns maps of free space, with their names.
    fn maps(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Prints them. True unless `--strict` is given and a bar is not reached.
    fn report(&self, options: &Options) -> io::Result<bool> {
        let is_empty = self.sheets().iter().all(|sheet| sheet.rows.is_empty());
        if is_empty && !options.only.is_empty() {
            return Err(invalid("`--only` names nothing that this command measures"));
        }
        let verdicts = self.verdicts();
        self.print(options.json)?;
        if options.strict && verdicts.is_empty() {
            return Err(invalid("`--strict`: no row has a bar"));
        }
        Ok(!options.strict || all_reached(&verdicts))
    }

    /// Prints one JSON document, or the tables.
    fn print(&self, json: bool) -> io::Result<()> {
        if json {
            let command = command(&crate::program(), std::env::args().skip(1));
            let run = Run { machine: Machine::this(), command, results: self };
            return say(&format!("{}\n", serde_json::to_string(&run)?));
        }
        let texts: Vec<String> = self.sheets().iter().map(Sheet::text).collect();
        say(&texts.join("\n"))
    }
}

/// Parts of results that are a list.
pub trait ListItem: DeserializeOwned + Serialize {
    /// As [`Results::sheets`], of all.
    fn sheets(all: &[Self]) -> Vec<Sheet>;

    /// As [`Results::verdicts`], of all.
    fn verdicts(_all: &[Self]) -> Vec<Verdict> {
        Vec::new()
    }

    /// As [`Results::grids`], of all.
    fn grids(_all: Vec<Self>) -> Vec<Grid> {
        Vec::new()
    }

    /// As [`Results::maps`], of all.
    fn maps(_all: &[Self]) -> Vec<(String, String)> {
        Vec::new()
    }
}

impl<T: ListItem> Results for Vec<T> {
    fn sheets(&self) -> Vec<Sheet> {
        T::sheets(self)
    }

    fn verdicts(&self) -> Vec<Verdict> {
        T::verdicts(self)
    }

    fn grids(self) -> Vec<Grid> {
        T::grids(self)
    }

    fn maps(&self) -> Vec<(String, String)> {
        T::maps(self)
    }
}

impl ListItem for Grid {
    fn sheets(all: &[Self]) -> Vec<Sheet> {
        all.iter().flat_map(Grid::sheets).collect()
    }

    fn verdicts(all: &[Self]) -> Vec<Verdict> {
        all.iter().flat_map(Grid::verdicts).collect()
    }

    fn grids(all: Vec<Self>) -> Vec<Grid> {
        all
    }
}

/// A directory of runs, `NAME.json` each.
pub struct Store(pub PathBuf);

impl Store {
    /// The runs that a repository keeps.
    pub fn of(root: &Path) -> Store {
        Store(root.join("docs/runs"))
    }

    /// Returns whether a run is stored.
    pub fn has(&self, name: &str) -> bool {
        self.0.join(format!("{name}.json")).exists()
    }

    /// Reads a run.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Run<T>> {
        let path = self.0.join(format!("{name}.json"));
        let within = |kind, e: &dyn std::fmt::Display| {
            io::Error::new(kind, format!("{}: {e}", path.display()))
        };
        let text = fs::read_to_string(&path).map_err(|e| within(e.kind(), &e))?;
        serde_json::from_str(&text).map_err(|e| within(io::ErrorKind::InvalidData, &e))
    }

    /// Stores the output of a command.
    pub fn write(&self, name: &str, output: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        fs::write(self.0.join(format!("{name}.json")), output)
    }
}

/// Returns the command line of these arguments, without the form of the output.
fn command(program: &str, arguments: impl Iterator<Item = String>) -> String {
    let arguments = arguments.filter(|argument| argument != "--json");
    [program.to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}

/// A machine, and the commit that ran on it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Machine {
    /// The processor's name; empty if it is unknown.
    pub processor: String,
    /// Processors that the run may use.
    pub processors: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The commit of the sources that the program was built from, at the time of the run; empty
    /// outside a repository.
    pub commit: String,
    /// The day, as `date -I` prints it.
    pub day: String,
}

impl Machine {
    /// This one.
    pub fn this() -> Machine {
        let info = read("/proc/cpuinfo");
        let processor =
            info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Machine {
            processor: processor.map_or("", |(_, name)| name).to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            commit: printed("git", &COMMIT),
            day: printed("date", &["-I"]),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Arguments of git(1) for the commit of these sources, marked if files have changed since.
const COMMIT: [&str; 7] = [
    "-C",
    env!("CARGO_MANIFEST_DIR"),
    "describe",
    "--always",
    "--abbrev=12",
    "--exclude=*",
    "--dirty",
];

/// The output of a program; empty if it fails.
fn printed(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().ok().filter(|o| o.status.success());
    output.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { processor, processors, kernel, commit, day } = self;
        write!(f, "commit {commit}, {day}, {processors} processors ({processor}), Linux {kernel}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_command_can_be_repeated() {
        let arguments = ["pairs", "--json", "--runs", "3"].map(String::from);
        assert_eq!(command("lab", arguments.into_iter()), "lab pairs --runs 3");
    }
}
