//! Many threads with one journal.

use crate::bench::*;
use extant_blocks::{BlockDevice, Event, MemDevice, RecordingDevice};
use extant_format::jbd2::JournalSuperblock;
use extant_journal::{Config, Journal, Seal};
use extant_testkit::rng::Rng;
use std::io;
use std::sync::{Arc, Barrier, Condvar, Mutex};

const ACCOUNTS: u64 = 12;
const THREADS: u64 = 4;

fn balance(device: &dyn BlockDevice, account: u64) -> i64 {
    i64::from_le_bytes(block(device, HOME + account)[..8].try_into().unwrap())
}

fn add(bench: &Bench, handle: &mut extant_journal::Handle<'_>, account: u64, amount: i64) {
    let buffer = bench.cache.read(HOME + account, |_| Ok::<_, std::io::Error>(())).unwrap();
    let mut bytes = handle.write(&buffer, Seal::NONE).unwrap();
    let old = i64::from_le_bytes(bytes[..8].try_into().unwrap());
    bytes[..8].copy_from_slice(&(old + amount).to_le_bytes());
}

/// Each operation transfers an amount between two blocks. At any moment, the sum is unchanged.
#[test]
fn operations_are_atomic_for_all_threads() {
    let image = format(SUMMED).to_vec();
    let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&image)));
    let device: Arc<dyn BlockDevice> = recorder.clone();
    let bench = Bench::open(&device, SUMMED);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let bench = &bench;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for round in 0..150 {
                    let amount = rng.between(1, 1000) as i64;
                    let mut handle = bench.journal.start(2).unwrap();
                    add(bench, &mut handle, rng.below(ACCOUNTS), amount);
                    add(bench, &mut handle, rng.below(ACCOUNTS), -amount);
                    let tid = handle.tid();
                    drop(handle);
                    if round % 10 == thread {
                        bench.journal.wait_and_flush(tid).unwrap();
                    }
                }
            });
        }
    });
    bench.journal.shutdown().unwrap();
    assert_eq!(bench.journal.stats().overdrawn, 0);
    let mut rng = Rng::new(1);
    let base = MemDevice::from_bytes(&image);
    let mut pending: Vec<Event> = Vec::new();
    for event in recorder.log() {
        match event {
            Event::Flush => pending.drain(..).for_each(|event| event.apply(&base).unwrap()),
            event => pending.push(event),
        }
        let cut = MemDevice::from_bytes(&base.to_vec());
        pending.iter().filter(|_| rng.one_in(2)).for_each(|event| event.apply(&cut).unwrap());
        let cut = shared(cut);
        recover(&cut).unwrap();
        assert_eq!((0..ACCOUNTS).map(|account| balance(&*cut, account)).sum::<i64>(), 0);
    }
    assert!((0..ACCOUNTS).any(|account| balance(&*device, account) != 0));
}

/// Threads that wait during a commit share the next one.
#[test]
fn fsyncs_share_commits() {
    let device = shared(format(PLAIN));
    let bench = Bench::open(&device, PLAIN);
    let (threads, barrier) = (8, Barrier::new(8));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (bench, barrier) = (&bench, &barrier);
            scope.spawn(move || {
                for round in 0..20 {
                    let tid = bench.set(HOME + thread, &content(thread, round));
                    // All are in a transaction before any of them requests a commit.
                    barrier.wait();
                    bench.journal.wait_and_flush(tid).unwrap();
                    barrier.wait();
                }
            });
        }
    });
    let stats = bench.journal.stats();
    assert!((20..=20 * threads).contains(&stats.waits), "{stats:?}");
    assert!(stats.commits <= 20 * 2, "{stats:?}");
    bench.journal.shutdown().unwrap();
}

/// A device with home writes so slow that the log fills meanwhile.
#[derive(Debug)]
struct SlowHome(Arc<RecordingDevice<MemDevice>>);

impl BlockDevice for SlowHome {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn name(&self) -> String {
        self.0.name()
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if offset >= HOME * BLOCK as u64 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.0.write_all_at(data, offset)
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }
}

/// A log that is always full: all threads wait for space, and all get it.
#[test]
fn a_crowded_log_makes_progress() {
    let recorder = Arc::new(RecordingDevice::new(format(PLAIN)));
    let device: Arc<dyn BlockDevice> = Arc::new(SlowHome(recorder.clone()));
    let bench = Bench::open(&device, PLAIN);
    let max = bench.journal.max_credits();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let bench = &bench;
            scope.spawn(move || {
                for round in 0..60 {
                    let mut handle = bench.journal.start(max - thread as u32).unwrap();
                    for nr in 0..u64::from(max) - thread {
                        bench.set_in(&mut handle, HOME + 30 * thread + nr, &content(nr, round));
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..10 {
                drop(bench.journal.lock_updates());
                bench.journal.checkpoint_all().unwrap();
            }
        });
    });
    bench.journal.shutdown().unwrap();
    for thread in 0..3 {
        assert_eq!(block(&*device, HOME + 30 * thread), content(0, 59));
    }
    let moves = space_is_freed_before_it_is_used(&recorder.log());
    assert!(moves > 20, "the tail moved {moves} times");
}

/// Checks that log blocks that the superblock freed are not written before a flush. Returns how
/// often the tail moved.
fn space_is_freed_before_it_is_used(events: &[Event]) -> usize {
    let (mut start, mut freed, mut moves) = (0, Vec::new(), 0);
    for event in events {
        match event {
            Event::Flush => freed.clear(),
            Event::Write { offset, data } => {
                let written = *offset / BLOCK as u64..(offset + data.len() as u64) / BLOCK as u64;
                let logical: Vec<u32> = written.filter_map(log_block).collect();
                if logical == [0] {
                    let next = JournalSuperblock::parse(data).unwrap().start();
                    moves += usize::from(start != 0 && next != start);
                    freed.extend(between(start, next));
                    start = next;
                } else {
                    assert!(
                        logical.iter().all(|block| !freed.contains(block)),
                        "{logical:?} of {freed:?}"
                    );
                }
            }
            _ => {}
        }
    }
    moves
}

fn log_block(nr: u64) -> Option<u32> {
    let extent = extents()
        .into_iter()
        .find(|extent| (extent.physical..extent.physical + u64::from(extent.len)).contains(&nr))?;
    Some(extent.logical + (nr - extent.physical) as u32)
}

/// Returns the log's blocks from `start` to before `next`, around its end; none if either marks the
/// log as empty.
fn between(start: u32, next: u32) -> Vec<u32> {
    let all = 1..log_len();
    match (start, next) {
        (0, _) | (_, 0) => Vec::new(),
        _ if start <= next => (start..next).collect(),
        _ => all.filter(|block| *block >= start || *block < next).collect(),
    }
}

/// Starting, committing, aborting and stopping at once: no thread hangs.
#[test]
fn an_abort_releases_all_threads() {
    for round in 0..10 {
        let device = shared(format(PLAIN));
        let bench = Bench::open(&device, PLAIN);
        let errors = Mutex::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (bench, errors) = (&bench, &errors);
                scope.spawn(move || {
                    let buffer = bench.cache.fresh(HOME + thread);
                    while let Ok(mut handle) = bench.journal.start(3) {
                        handle.write(&buffer, Seal::NONE).unwrap().fill(1);
                        let tid = handle.tid();
                        drop(handle);
                        let _ = bench.journal.wait(tid);
                    }
                    *errors.lock().unwrap() += 1;
                });
            }
            scope.spawn(|| {
                (0..round * 50).for_each(|_| std::thread::yield_now());
                if round % 2 == 0 { bench.journal.abort(5) } else { bench.journal.crash() }
            });
        });
        assert_eq!(*errors.lock().unwrap(), 4);
    }
}

/// A device that blocks writers of home blocks while it is held.
#[derive(Debug)]
struct Held {
    inner: MemDevice,
    held: Mutex<bool>,
    released: Condvar,
}

impl BlockDevice for Held {
    extant_blocks::forward_device!(self => self.inner; len, name, read_exact_at, flush, discard);

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if offset >= HOME * BLOCK as u64 {
            drop(self.released.wait_while(self.held.lock().unwrap(), |held| *held).unwrap());
        }
        self.inner.write_all_at(data, offset)
    }
}

/// The log has space for a dozen transactions of one block; their copies may use less memory.
#[test]
fn copies_that_are_not_home_are_bounded() {
    const MOST: usize = 2;
    const COMMITS: u64 = 10;
    let held = Held { inner: format(PLAIN), held: Mutex::new(true), released: Condvar::new() };
    let held = Arc::new(held);
    let device: Arc<dyn BlockDevice> = held.clone();
    let config = Config { max_pending_blocks: MOST, ..config(&device, PLAIN) };
    let cache = Arc::clone(&config.cache);
    let bench = Bench { cache: Arc::clone(&cache), journal: Journal::open(config).unwrap() };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for nr in HOME..HOME + COMMITS {
                let tid = bench.set(nr, &content(nr, 1));
                bench.journal.wait(tid).unwrap();
            }
        });
        while bench.journal.stats().commits <= 2 * MOST as u64 && !writer.is_finished() {
            std::thread::yield_now();
        }
        // The next commit waits, so the copies of the earlier ones are kept, and the block of the
        // waiting one.
        while cache.stats().pinned <= 2 * MOST as u64 + 1 && !writer.is_finished() {
            std::thread::yield_now();
        }
        assert!(!writer.is_finished(), "nothing came home, and all was committed");
        assert_eq!(bench.journal.stats().commits, 2 * MOST as u64 + 1);
        *held.held.lock().unwrap() = false;
        held.released.notify_all();
    });
    assert!(bench.journal.stats().room_waits > 0);
    bench.journal.shutdown().unwrap();
    (HOME..HOME + COMMITS).for_each(|nr| assert_eq!(block(&*device, nr), content(nr, 1)));
}
