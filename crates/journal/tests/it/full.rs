//! Devices without space: writes fail with `ENOSPC` until there is some.

use crate::bench::*;
use extant_blocks::{BlockDevice, Failure, Fault, FaultDevice, MemDevice, Op};
use extant_journal::{Client, Error, Freezer, Result, Tid};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const ENOSPC: i32 = 28;

fn faulty() -> (Arc<FaultDevice<MemDevice>>, Arc<dyn BlockDevice>) {
    let device = Arc::new(FaultDevice::new(format(SUMMED)));
    (device.clone(), device)
}

fn log_range() -> Range<u64> {
    2 * BLOCK as u64..(40 + 21) * BLOCK as u64
}

fn homes() -> Range<u64> {
    HOME * BLOCK as u64..BLOCKS * BLOCK as u64
}

/// A fault of all writes to a range from the `nth` one on.
fn full(range: Range<u64>, nth: u64, failure: Failure) -> Fault {
    Fault::new(Op::Write, nth).from_then_on().within(range).with(failure)
}

#[track_caller]
fn assert_no_space(done: Result<()>) {
    match done {
        Err(error @ Error::NoSpace(_)) => assert_eq!(error.errno(), ENOSPC),
        other => panic!("{other:?}"),
    }
}

/// The superblock of the log, the copies or the commit record lack space, with a part of their
/// bytes on the device or without.
#[test]
fn a_full_log_costs_the_wait_alone() {
    for nth in 0..3 {
        for failure in [Failure::Error(ENOSPC), Failure::Short(512, ENOSPC)] {
            let (faults, device) = faulty();
            let bench = Bench::open(&device, SUMMED);
            faults.inject(full(log_range(), nth, failure));
            let first = bench.set(HOME, &content(HOME, 1));
            for _ in 0..3 {
                assert_no_space(bench.journal.wait(first));
                assert_no_space(bench.journal.sync());
            }
            assert!(bench.journal.durable() < first && !bench.journal.is_aborted());
            // Changes go on in the next transaction.
            let second = bench.set(HOME, &content(HOME, 2));
            assert_no_space(bench.journal.wait(second));
            faults.heal();
            bench.journal.wait(second).unwrap();
            bench.journal.crash();
            drop(bench);
            assert_eq!(log(&device).unwrap().errno(), 0);
            assert_eq!(recover(&device).unwrap().transactions, 2, "{nth} {failure:?}");
            assert_eq!(block(&*device, HOME), content(HOME, 2));
        }
    }
}

#[test]
fn a_crash_before_there_is_space_leaves_what_was_durable() {
    for nth in 0..2 {
        let (faults, device) = faulty();
        let bench = Bench::open(&device, SUMMED);
        bench.set(HOME, &content(HOME, 1));
        bench.journal.sync().unwrap();
        faults.inject(full(log_range(), nth, Failure::Error(ENOSPC)));
        let tid = bench.set(HOME, &content(HOME, 2));
        assert_no_space(bench.journal.wait(tid));
        assert_no_space(bench.journal.shutdown());
        drop(bench);
        faults.heal();
        assert_eq!(recover(&device).unwrap().transactions, 1);
        assert_eq!(block(&*device, HOME), content(HOME, 1));
    }
}

#[test]
fn copies_stay_in_the_log_while_their_homes_lack_space() {
    let (faults, device) = faulty();
    let bench = Bench::open(&device, SUMMED);
    bench.set(HOME, &content(HOME, 1));
    bench.journal.sync().unwrap();
    faults.inject(full(homes(), 0, Failure::Error(ENOSPC)));
    assert_no_space(bench.journal.checkpoint_all());
    assert!(!bench.journal.is_aborted());
    // Commits go on as long as the log has space.
    let tid = bench.set(HOME, &content(HOME, 2));
    bench.journal.wait(tid).unwrap();
    assert_no_space(bench.journal.checkpoint_all());
    faults.heal();
    bench.journal.checkpoint_all().unwrap();
    assert_eq!(block(&*device, HOME), content(HOME, 2));
    bench.journal.shutdown().unwrap();
    drop(bench);
    assert_eq!(recover(&device).unwrap().transactions, 0);
}

#[test]
fn without_a_log_blocks_wait_for_space_too() {
    let (faults, device) = faulty();
    let bench = Bench::open_without_log(&device);
    faults.inject(full(homes(), 0, Failure::Error(ENOSPC)));
    let tid = bench.set(HOME, &content(HOME, 1));
    assert_no_space(bench.journal.wait(tid));
    faults.heal();
    bench.journal.sync().unwrap();
    assert_eq!(block(&*device, HOME), content(HOME, 1));
    bench.journal.shutdown().unwrap();
}

/// Handles start until the transaction is full, and again once there is space.
#[test]
fn handles_fail_where_they_would_wait_for_space() {
    for range in [log_range(), homes()] {
        let (faults, device) = faulty();
        let bench = Bench::open(&device, SUMMED);
        faults.inject(full(range, 0, Failure::Error(ENOSPC)));
        let mut version = 0;
        let error = loop {
            version += 1;
            let nr = HOME + version % 100;
            match bench.journal.start(1) {
                Ok(mut handle) => bench.set_in(&mut handle, nr, &content(nr, version)),
                Err(error) => break error,
            }
            // An error comes for this one alone.
            let _ = bench.journal.sync();
            assert!(version < 10_000);
        };
        assert_no_space(Err(error));
        assert!(!bench.journal.is_aborted());
        faults.heal();
        bench.journal.checkpoint_all().unwrap();
        let last = bench.set(HOME, &content(HOME, 1));
        bench.journal.wait(last).unwrap();
        bench.journal.shutdown().unwrap();
        assert_eq!(block(&*device, HOME), content(HOME, 1));
        for nr in (HOME + 1..HOME + 100).filter(|nr| *nr < HOME + version.min(100)) {
            let newest = (1..version).rev().find(|version| HOME + version % 100 == nr).unwrap();
            assert_eq!(block(&*device, nr), content(nr, newest), "{nr}");
        }
    }
}

/// Without a thread that waits, the tasks try again.
#[test]
fn changes_become_durable_by_themselves_once_there_is_space() {
    let (faults, device) = faulty();
    let mut config = config(&device, SUMMED);
    config.commit_interval = Duration::from_millis(10);
    let bench = Bench::of(config);
    faults.inject(full(log_range(), 0, Failure::Error(ENOSPC)));
    let first = bench.set(HOME, &content(HOME, 1));
    assert_no_space(bench.journal.wait(first));
    let second = bench.set(HOME, &content(HOME, 2));
    faults.heal();
    while bench.journal.durable() < second {
        std::thread::sleep(Duration::from_millis(10));
    }
    bench.journal.shutdown().unwrap();
}

/// A client whose data lack space the first time.
#[derive(Default)]
struct Ordered {
    calls: AtomicU32,
    aborts: AtomicU32,
}

impl Client for Ordered {
    fn freeze(&self, _tid: Tid, _out: &mut Freezer<'_>) -> Result<()> {
        Ok(())
    }
    fn write_ordered(&self, _tid: Tid) -> Result<()> {
        match self.calls.fetch_add(1, Ordering::SeqCst) {
            0 => Err(Error::NoSpace(Arc::new(io::Error::from_raw_os_error(ENOSPC)))),
            _ => Ok(()),
        }
    }
    fn committed(&self, _tid: Tid) {}
    fn aborted(&self, _why: &Error) {
        self.aborts.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn ordered_data_are_written_again() {
    let (_, device) = faulty();
    let bench = Bench::open(&device, SUMMED);
    let client = Arc::new(Ordered::default());
    let held: Arc<dyn Client> = client.clone();
    bench.journal.set_client(Arc::downgrade(&held));
    let tid = bench.set(HOME, &content(HOME, 1));
    assert_no_space(bench.journal.wait(tid));
    bench.journal.wait(tid).unwrap();
    let count = |count: &AtomicU32| count.load(Ordering::SeqCst);
    assert_eq!((count(&client.calls), count(&client.aborts)), (2, 0));
    bench.journal.shutdown().unwrap();
}

/// A flush tells of writes that are lost, so its lack of space is an error as any other.
#[test]
fn a_flush_without_space_aborts() {
    let (faults, device) = faulty();
    let bench = Bench::open(&device, SUMMED);
    faults.inject(Fault::new(Op::Flush, 0).with(Failure::Error(ENOSPC)));
    let tid = bench.set(HOME, &content(HOME, 1));
    assert!(matches!(bench.journal.wait(tid), Err(Error::Aborted(ENOSPC))));
    assert!(bench.journal.is_aborted());
}
