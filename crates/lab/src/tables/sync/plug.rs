//! The engine writing back many files of one block: each file's write by itself, or those of many
//! kept together, sorted and merged.

use crate::options::Options;
use crate::side::{Setup, make_device};
use crate::tables::Grid;
use crate::target::{Engine, How, Target, io_error};
use extant_blocks::{BlockDevice, Latency, LatencyDevice};
use extant_engine::design::PlugPolicy;
use extant_engine::{Fs, OpenOptions};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

/// Files written back at a time, and how many of them are in a directory.
const FILES: usize = 4000;
const IN_DIRECTORY: usize = 500;

/// Least time of a write request; the operating system's timers add to it.
const REQUEST: Duration = Duration::from_micros(20);

/// Nothing is written but by a sync.
const NEVER: Duration = Duration::from_secs(3600);

const POLICIES: [PlugPolicy; 2] = [PlugPolicy::PerInode, PlugPolicy::Batch];

/// How many times fewer requests there have to be.
const FEWER: f64 = 10.0;

type Device = Counting<LatencyDevice<extant_blocks::SparseDevice>>;

/// Requests, then time.
pub fn grids(options: &Options) -> io::Result<Vec<Grid>> {
    let columns = ["plug per inode", "plug per batch"];
    let mut requests = Grid::new("the engine writes back files of 4 KiB", "requests", &columns, 1);
    requests = Grid { bar: Some((0, FEWER)), ..requests.less() };
    let mut times = Grid::new("the same", "s", &columns, 1).less();
    let files = if options.quick { FILES / 20 } else { FILES };
    let row = format!("{files} new files, 20 us a request");
    let base = make_device(&Setup::default())?;
    options.fill(&mut requests, &[(row.clone(), ())], |(), column| {
        let latency = Latency { write: REQUEST, ..Latency::default() };
        let device = Arc::new(Counting::new(LatencyDevice::new(base.fork(), latency)));
        let (count, time) = write_back(device, POLICIES[column], files)?;
        times.add(&row, column, time.as_secs_f64());
        Ok(count as f64)
    })?;
    Ok(vec![requests, times])
}

/// Requests and time of a sync after so many files were written.
fn write_back(
    device: Arc<Device>,
    policy: PlugPolicy,
    files: usize,
) -> io::Result<(u64, Duration)> {
    let options = OpenOptions::new().plug(policy).commit_interval(NEVER);
    let engine = Engine::new(Fs::open_device(device.clone(), &options).map_err(io_error)?);
    (0..files.div_ceil(IN_DIRECTORY)).try_for_each(|d| engine.mkdir(format!("d{d}").as_bytes()))?;
    let name = |n: usize| format!("d{}/f{n}", n / IN_DIRECTORY).into_bytes();
    (0..files).try_for_each(|n| engine.create(&name(n)))?;
    engine.sync()?;
    (0..files).try_for_each(|n| engine.open(&name(n), How::Write)?.write_at(0, &[0x77; BLOCK]))?;
    let (before, start) = (device.writes(), Instant::now());
    engine.sync()?;
    let outcome = (device.writes() - before, start.elapsed());
    engine.unmount()?;
    Ok(outcome)
}

/// Counts the writes that another device sees, however long.
#[derive(Debug)]
pub struct Counting<D> {
    inner: D,
    writes: AtomicU64,
}

impl<D> Counting<D> {
    /// Around `inner`.
    pub fn new(inner: D) -> Self {
        Counting { inner, writes: AtomicU64::new(0) }
    }

    /// Requests to write so far.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }
}

impl<D: BlockDevice> BlockDevice for Counting<D> {
    extant_blocks::forward_device!(self => self.inner;
        len, name, alignment, read_only, read_exact_at, read_vectored_at, flush, discard,
        next_data, claim);

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.count();
        self.inner.write_all_at(data, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.count();
        self.inner.write_vectored_at(bufs, offset)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.count();
        self.inner.write_zeroes(offset, len)
    }
}
