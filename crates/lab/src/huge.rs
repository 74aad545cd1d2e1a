//! Opening a file system of 60 TiB: how long, and how much memory.
//!
//! This project's mkfs makes it on the sparse device. A process of its own makes and opens it, so
//! that memory of other measurements does not count.

use crate::side::make_sparse;
use extant_engine::{Fs, OpenOptions};
use extant_measure::sheet::say;
use extant_measure::timing::Spread;
use serde::{Deserialize, Serialize};
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of the file system.
const BYTES: u64 = 60 << 40;

/// Time and memory of opening.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Huge {
    /// Seconds until it was open.
    pub seconds: Spread,
    /// Bytes of memory by which the process grew.
    pub bytes: u64,
}

/// Opens one `runs` times, each in a process of its own.
pub fn run(runs: usize) -> io::Result<Huge> {
    let opened = (0..runs).map(|_| open_apart()).collect::<io::Result<Vec<_>>>()?;
    let seconds: Vec<f64> = opened.iter().map(|(seconds, _)| *seconds).collect();
    Ok(Huge {
        seconds: Spread::of(&seconds).ok_or_else(|| io::Error::other("no runs"))?,
        bytes: opened.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0),
    })
}

fn open_apart() -> io::Result<(f64, u64)> {
    let mut command = Command::new(std::env::current_exe()?);
    let out = command.arg("open").stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    // A failure has printed its reason, and no result.
    Ok(serde_json::from_slice(&out.stdout)?)
}

/// Makes one and opens it in this process. Prints seconds and bytes.
pub fn open() -> io::Result<()> {
    let device = Arc::new(make_sparse(BYTES, false)?);
    let before = resident()?;
    let start = Instant::now();
    let fs = Fs::open_device(device, &OpenOptions::new())?;
    let seconds = start.elapsed().as_secs_f64();
    let bytes = resident()?.saturating_sub(before);
    fs.unmount()?;
    say(&serde_json::to_string(&(seconds, bytes))?)
}

/// Returns the bytes of memory that this process has.
pub fn resident() -> io::Result<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let resident = pages.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    resident.map(|pages| pages * 4096).ok_or_else(|| io::Error::other("/proc/self/statm"))
}
