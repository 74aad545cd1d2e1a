//! The machine and the program of a run.

use serde::{Deserialize, Serialize};
use std::fs;
use std::process::Command;

/// A machine, and the commit that ran on it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Machine {
    /// The processor's name; empty if it is unknown.
    pub processor: String,
    /// Processors that the run may use.
    pub processors: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The commit of the directory that the program ran in; empty outside a repository.
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
            commit: printed("git", &["rev-parse", "--short=12", "HEAD"]),
            day: printed("date", &["-I"]),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

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
