//! Opening a file system of 60 TiB: how long, and how much memory.
//!
//! This project's mkfs makes it on the sparse device. The written parts of the device are then
//! copied into a sparse file on tmpfs, which a process of its own opens: so the measured memory is
//! that of opening alone.

use crate::measure::Spread;
use crate::scratch::Scratch;
use crate::target::io_error;
use extant_blocks::{BlockDevice, SparseDevice};
use extant_engine::mkfs::{self, Zeroing};
use extant_engine::{Fs, OpenOptions};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of the file system.
const BYTES: u64 = 60 << 40;

/// Bytes copied at a time.
const CHUNK: u64 = 1 << 20;

/// Time and memory of opening.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Huge {
    /// Seconds until it was open, in a process of its own.
    pub seconds: Spread,
    /// The most memory that the process ever had, in bytes.
    pub process_bytes: u64,
    /// Seconds until it was open on the sparse device, in this process.
    pub sparse_seconds: f64,
}

/// Result of a process that opened an image.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// Seconds.
    pub seconds: f64,
    /// The most memory that the process ever had, in bytes.
    pub process_bytes: u64,
}

/// Makes one and opens it `runs` times.
pub fn run(runs: usize) -> io::Result<Huge> {
    let device = make()?;
    let scratch = Scratch::new()?;
    let image = scratch.join("huge");
    copy(&device, &image)?;
    let opened = (0..runs).map(|_| open_apart(&image)).collect::<io::Result<Vec<Opened>>>()?;
    let seconds: Vec<f64> = opened.iter().map(|o| o.seconds).collect();
    let sparse_seconds = open_here(device)?;
    Ok(Huge {
        seconds: Spread::of(&seconds).ok_or_else(|| io::Error::other("no runs"))?,
        process_bytes: opened.iter().map(|o| o.process_bytes).max().unwrap_or(0),
        sparse_seconds,
    })
}

fn make() -> io::Result<SparseDevice> {
    let device = SparseDevice::new(BYTES);
    let options =
        mkfs::Options { zeroing: Zeroing::Known, write_backups: false, ..Default::default() };
    mkfs::make(&device, &options).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(device)
}

fn copy(device: &SparseDevice, path: &Path) -> io::Result<()> {
    let file = File::create(path)?;
    file.set_len(BYTES)?;
    let mut buf = vec![0; CHUNK as usize];
    let mut at = 0;
    while let Some(data) = device.next_data(at)? {
        let end = data.end.min(data.start + CHUNK);
        let part = &mut buf[..(end - data.start) as usize];
        device.read_exact_at(part, data.start)?;
        file.write_all_at(part, data.start)?;
        at = end;
    }
    Ok(())
}

/// Does not return the memory: it would include memory of the creation.
fn open_here(device: SparseDevice) -> io::Result<f64> {
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let start = Instant::now();
    let fs = Fs::open_device(device, &OpenOptions::new()).map_err(io_error)?;
    let seconds = start.elapsed().as_secs_f64();
    fs.unmount().map_err(io_error)?;
    Ok(seconds)
}

fn open_apart(image: &Path) -> io::Result<Opened> {
    let mut command = Command::new(std::env::current_exe()?);
    let out =
        command.arg("open").arg(image).stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !out.status.success() {
        return Err(io::Error::other(
            "opening the large file system failed (the message is above)",
        ));
    }
    Ok(serde_json::from_slice(&out.stdout)?)
}

/// Opens an image in this process, closes it, and returns time and memory.
pub fn open(image: &Path) -> io::Result<Opened> {
    let start = Instant::now();
    let fs = Fs::open(image, &OpenOptions::new()).map_err(io_error)?;
    let seconds = start.elapsed().as_secs_f64();
    let process_bytes = memory("VmHWM")?;
    fs.unmount().map_err(io_error)?;
    Ok(Opened { seconds, process_bytes })
}

/// Returns a line of `/proc/self/status`, in bytes.
fn memory(line: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let found = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(':'));
    let kib = found.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| io::Error::other(format!("/proc/self/status does not tell {line}")))
}
