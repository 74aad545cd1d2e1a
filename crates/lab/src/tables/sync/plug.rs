//! Writing back many files of one block: each file's write by itself, or a batch's kept together, sorted and merged.

use crate::tables::{Common, Grid, turn};
use extant_blocks::{Latency, LatencyDevice, MemDevice, Plug};
use std::io;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

/// Files written back at a time.
const FILES: usize = 2000;

/// What a request costs at least.
const REQUEST: Duration = Duration::from_micros(20);

/// Requests, then time.
pub fn grids(common: &Common) -> io::Result<Vec<Grid>> {
    let columns = ["plug per inode", "plug per batch"];
    let mut requests = Grid::new("writing back files of 4 KiB", "requests", &columns, 1).less();
    let mut times = Grid::new("the same, 20 us a request", "s", &columns, 1).less();
    let latency = Latency { write: REQUEST, ..Latency::default() };
    let device = LatencyDevice::new(MemDevice::new((FILES * BLOCK) as u64), latency);
    let files = if common.quick { FILES / 4 } else { FILES };
    let row = format!("{files} files side by side, written in any order");
    for run in 0..common.runs() {
        for column in turn(run, columns.len()) {
            let start = Instant::now();
            let count = write_back(&device, files, if column == 0 { 1 } else { files })?;
            times.add(&row, column, start.elapsed().as_secs_f64());
            requests.add(&row, column, count as f64);
        }
    }
    Ok(vec![requests, times])
}

/// Writes files, so many with one plug; the requests that took.
fn write_back(device: &LatencyDevice<MemDevice>, files: usize, batch: usize) -> io::Result<u64> {
    let bytes = vec![0x77; BLOCK];
    // As a list of dirty inodes that threads filled: not in the order of blocks. 7919 is a prime and reaches all.
    let order: Vec<usize> = (0..files).map(|n| n * 7919 % files).collect();
    let mut requests = 0;
    for part in order.chunks(batch) {
        let mut plug = Plug::new(device);
        part.iter().for_each(|file| plug.add((file * BLOCK) as u64, bytes.as_slice()));
        requests += plug.finish()?.requests;
    }
    Ok(requests)
}
