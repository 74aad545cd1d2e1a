//! Processes, and those that have an image open. Users other than root see their own processes
//! only.

use crate::text::shown;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Largest number of processes in a message.
const MAX_NAMED: usize = 3;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// Its short name, escaped.
    pub command: String,
}

impl Process {
    /// Returns the process of this number.
    pub fn named(id: u32) -> Process {
        Process::of(id, &PathBuf::from(format!("/proc/{id}")))
    }

    /// Returns whether a process of this number lives. One that has ended keeps its number until
    /// its parent asks for its status, which the first process of a container may never do. One
    /// whose first thread alone has ended has its files open.
    pub fn is_alive(&self) -> bool {
        let stat = fs::read(format!("/proc/{}/stat", self.id)).unwrap_or_default();
        // The name, in parentheses, may hold any byte.
        let stat = String::from_utf8_lossy(&stat);
        let Some((_, facts)) = stat.rsplit_once(')') else { return false };
        let facts: Vec<&str> = facts.split_ascii_whitespace().collect();
        let threads = facts.get(17).and_then(|number| number.parse().ok()).unwrap_or(0);
        !matches!(facts.first(), None | Some(&"Z" | &"X")) || threads > 1
    }

    /// Returns the process of this number with its directory in `/proc`.
    pub fn of(id: u32, dir: &Path) -> Process {
        let command = fs::read(dir.join("comm")).unwrap_or_default();
        Process { id, command: shown(command.trim_ascii_end()) }
    }
}

/// Names the other processes that have the file open: ` (process 17, qemu)`; nothing if none can be
/// seen.
pub fn named(image: &Path) -> String {
    let Ok(image) = fs::canonicalize(image) else { return String::new() };
    let held = processes().filter(|(_, dir)| has_open(dir, &image)).take(MAX_NAMED + 1);
    let all: Vec<Process> = held.map(|(id, dir)| Process::of(id, &dir)).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", list(&all)) }
}

/// Formats the first processes of some: `process 17, bash, process 20, cat`.
pub fn list(all: &[Process]) -> String {
    let mut text = String::new();
    for process in all.iter().take(MAX_NAMED) {
        let begin = if text.is_empty() { "process" } else { ", process" };
        // A string takes all text.
        let _ = write!(text, "{begin} {}, {}", process.id, process.command);
    }
    if all.len() > MAX_NAMED {
        text.push_str(" and others");
    }
    text
}

/// Returns the processes other than this one, with their directories.
pub fn processes() -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path()))
    });
    numbers.filter(|(number, _)| *number != std::process::id())
}

/// Returns the links to the open files of a process.
pub fn descriptors(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Compares names alone: reaching the files of others could wait for a dead server.
fn has_open(dir: &Path, image: &Path) -> bool {
    descriptors(dir).filter_map(|link| fs::read_link(link).ok()).any(|target| target == image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_not_waited_for_has_ended() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat");
        let process = Process::named(child.id());
        assert!(process.is_alive());
        drop(child.stdin.take());
        while process.is_alive() {
            std::thread::yield_now();
        }
        assert!(Path::new(&format!("/proc/{}", process.id)).exists());
        child.wait().expect("its status");
        assert!(!process.is_alive());
    }

    #[test]
    fn a_process_whose_first_thread_alone_has_ended_lives() {
        let script = "import ctypes, threading, time\n\
                      threading.Thread(target=time.sleep, args=(1000,)).start()\n\
                      ctypes.CDLL(None).pthread_exit(None)";
        let mut child =
            std::process::Command::new("python3").args(["-c", script]).spawn().expect("python3");
        let process = Process::named(child.id());
        let is_zombie = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", process.id));
            stat.expect("a process").contains(") Z ")
        };
        while !is_zombie() {
            std::thread::yield_now();
        }
        assert!(process.is_alive());
        child.kill().and_then(|()| child.wait()).expect("its end");
        assert!(!process.is_alive());
    }

    #[test]
    fn processes_beyond_a_few_are_not_named() {
        let process = |id| Process { id, command: "sh".into() };
        let some: Vec<Process> = (1..=4).map(process).collect();
        assert_eq!(list(&some[..2]), "process 1, sh, process 2, sh");
        assert!(list(&some).ends_with("process 3, sh and others"));
    }
}
