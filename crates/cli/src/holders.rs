//! Processes that have an image open.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::text::shown;

/// Largest number of processes in a message.
const MAX_NAMED: usize = 3;

/// Names the other processes that have the file open: ` (process 17, qemu)`; nothing if none can be
/// seen. Users other than root see their own processes only.
pub fn named(image: &Path) -> String {
    let Ok(image) = fs::canonicalize(image) else { return String::new() };
    let held = processes().filter(|(_, dir)| has_open(dir, &image)).take(MAX_NAMED);
    let mut text = String::new();
    for (number, dir) in held {
        let begin = if text.is_empty() { "process" } else { ", process" };
        let command = fs::read(dir.join("comm")).unwrap_or_default();
        let command = shown(command.trim_ascii_end());
        // A string takes all text.
        let _ = write!(text, "{begin} {number}, {command}");
    }
    if text.is_empty() { text } else { format!(" ({text})") }
}

/// The processes other than this one, with their directories.
fn processes() -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path()))
    });
    numbers.filter(|(number, _)| *number != std::process::id())
}

/// Compares names alone: reaching the files of others could wait for a dead server.
fn has_open(dir: &Path, image: &Path) -> bool {
    let descriptors = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| target == image)
}
