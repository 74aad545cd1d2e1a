//! Results as they are printed and stored.

use crate::machine::Machine;
use crate::report::say;
use crate::sheet::Sheet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
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

    /// Prints one JSON document, or the tables.
    ///
    /// # Errors
    /// Those of standard output.
    fn print(&self, json: bool) -> io::Result<()> {
        if json {
            let command = command(std::env::args().skip(1));
            let run = Run { machine: Machine::this(), command, results: self };
            return say(&format!("{}\n", serde_json::to_string(&run)?));
        }
        let texts: Vec<String> = self.sheets().iter().map(Sheet::text).collect();
        say(&texts.join("\n"))
    }
}

/// A directory of runs, `NAME.json` each.
pub struct Store(pub PathBuf);

impl Store {
    /// The runs that a repository keeps.
    pub fn of(root: &Path) -> Store {
        Store(root.join("docs/runs"))
    }

    /// Reads a run.
    ///
    /// # Errors
    /// Those of reading, with the path; `InvalidData` if it is no such run.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Run<T>> {
        let path = self.0.join(format!("{name}.json"));
        let within = |kind, e: &dyn std::fmt::Display| {
            io::Error::new(kind, format!("{}: {e}", path.display()))
        };
        let text = fs::read_to_string(&path).map_err(|e| within(e.kind(), &e))?;
        serde_json::from_str(&text).map_err(|e| within(io::ErrorKind::InvalidData, &e))
    }

    /// Stores the output of a command.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&self, name: &str, output: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        fs::write(self.0.join(format!("{name}.json")), output)
    }
}

/// Returns the command line of these arguments, without the form of the output.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let arguments = arguments.filter(|argument| argument != "--json");
    ["extant-lab".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_command_can_be_repeated() {
        let arguments = ["pairs", "--json", "--runs", "3"].map(String::from);
        assert_eq!(command(arguments.into_iter()), "extant-lab pairs --runs 3");
    }
}
