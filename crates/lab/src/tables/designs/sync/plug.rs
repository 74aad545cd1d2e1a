//! The engine writing back many files of one block: each file's write by itself, or those of many
//! kept together, sorted and merged.

use crate::side::{Setup, make_device};
use crate::tables::designs::{Chosen, Grid};
use crate::target::{Engine, How, Target};
use extant_blocks::{Latency, LatencyDevice, RecordingDevice, SparseDevice};
use extant_engine::design::{PLUG, Plugged};
use extant_engine::{Fs, OpenOptions};
use extant_measure::options::Options;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

/// Files written back at a time, and how many of them are in a directory.
const FILES: usize = 4000;
const IN_DIRECTORY: usize = 500;

/// Least time of a write request; the operating system's timers add to it.
const REQUEST: Duration = Duration::from_micros(20);

/// Nothing is written but by a sync.
const NEVER: Duration = Duration::from_secs(3600);

const POLICIES: [Plugged; 2] = [Plugged::PerInode, Plugged::Batch];

/// How many times fewer requests there have to be.
const FEWER: f64 = 10.0;

type Device = RecordingDevice<LatencyDevice<SparseDevice>>;

/// Requests, then time.
pub fn grids(options: &Options) -> io::Result<Vec<Grid>> {
    let _chosen = Chosen::hold();
    let columns = ["plug per inode", "plug per batch"];
    let mut requests = Grid::new("the engine writes back files of 4 KiB", "requests", &columns, 1);
    requests = Grid { bar: Some((0, FEWER)), ..requests.less() };
    let mut times = Grid::new("the same", "s", &columns, 1).less();
    let files = if options.quick { FILES / 20 } else { FILES };
    let row = format!("{files} new files, 20 us a request");
    let base = make_device(&Setup::default())?;
    options.fill(&mut requests, &[(row.clone(), ())], |(), column| {
        let latency = Latency { write: REQUEST, ..Latency::default() };
        let device = Arc::new(RecordingDevice::new(LatencyDevice::new(base.fork(), latency)));
        PLUG.set(POLICIES[column]);
        let (count, time) = write_back(device, files)?;
        times.add(&row, column, time.as_secs_f64());
        Ok(count as f64)
    })?;
    Ok(vec![requests, times])
}

/// Requests and time of a sync after so many files were written.
fn write_back(device: Arc<Device>, files: usize) -> io::Result<(usize, Duration)> {
    let options = OpenOptions::new().commit_interval(NEVER);
    let engine = Engine::new(Fs::open_device(device.clone(), &options)?);
    (0..files.div_ceil(IN_DIRECTORY)).try_for_each(|d| engine.mkdir(format!("d{d}").as_bytes()))?;
    let name = |n: usize| format!("d{}/f{n}", n / IN_DIRECTORY).into_bytes();
    (0..files).try_for_each(|n| engine.create(&name(n)))?;
    engine.sync()?;
    (0..files).try_for_each(|n| engine.open(&name(n), How::Write)?.write_at(0, &[0x77; BLOCK]))?;
    device.take_log();
    let start = Instant::now();
    engine.sync()?;
    let time = start.elapsed();
    let requests = device.log().iter().filter(|event| event.changes()).count();
    engine.unmount()?;
    Ok((requests, time))
}
