//! Failing devices.

use crate::bench::*;
use extant_blocks::{BlockDevice, Fault, FaultDevice, MemDevice, Op};
use extant_journal::{Client, Error, Freezer, Result, Tid};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const EIO: i32 = 5;

fn faulty() -> (Arc<FaultDevice<MemDevice>>, Arc<dyn BlockDevice>) {
    let device = Arc::new(FaultDevice::new(format(SUMMED)));
    (device.clone(), device)
}

fn log_range() -> std::ops::Range<u64> {
    2 * BLOCK as u64..(40 + 21) * BLOCK as u64
}

#[derive(Default)]
struct Aborts(AtomicU32);

impl Client for Aborts {
    fn freeze(&self, _tid: Tid, _out: &mut Freezer<'_>) -> Result<()> {
        Ok(())
    }
    fn committed(&self, _tid: Tid) {}
    fn aborted(&self, _why: &Error) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Lets the next operation fail, and checks that the journal aborts once, with the earlier
/// transactions intact. Returns the number of flushes requested from the device from then on.
fn fails(fault: Fault) -> u64 {
    let (faults, device) = faulty();
    let bench = Bench::open(&device, SUMMED);
    let aborts = Arc::new(Aborts::default());
    let client: Arc<dyn Client> = aborts.clone();
    bench.journal.set_client(Arc::downgrade(&client));
    bench.set(HOME, &content(HOME, 1));
    bench.journal.sync().unwrap();
    faults.inject(fault);
    let flushes = faults.count(Op::Flush);
    let tid = bench.set(HOME, &content(HOME, 2));
    assert!(matches!(bench.journal.wait(tid), Err(Error::Aborted(EIO))));
    faults.heal();
    assert!(matches!(bench.journal.start(1), Err(Error::Aborted(EIO))));
    assert!(matches!(bench.journal.sync(), Err(Error::Aborted(EIO))));
    assert!(bench.journal.is_aborted());
    // Later failures are reported as the first abort.
    bench.journal.abort(117);
    assert!(matches!(bench.journal.start(1), Err(Error::Aborted(EIO))));
    assert!(bench.journal.shutdown().is_err());
    assert_eq!(aborts.0.load(Ordering::SeqCst), 1);
    drop(bench);
    let flushes = faults.count(Op::Flush) - flushes;
    assert_eq!(log(&device).unwrap().errno(), EIO);
    let outcome = recover(&device).unwrap();
    assert_eq!(block(&*device, HOME), content(HOME, if outcome.transactions == 1 { 1 } else { 2 }));
    flushes
}

#[test]
fn a_failed_log_write_aborts() {
    fails(Fault::new(Op::Write, 0).within(log_range()));
}

#[test]
fn a_failed_commit_record_aborts() {
    fails(Fault::new(Op::Write, 1).within(log_range()));
}

#[test]
fn a_failed_flush_aborts_and_is_not_tried_again() {
    assert_eq!(fails(Fault::new(Op::Flush, 0)), 1);
    assert_eq!(fails(Fault::new(Op::Flush, 1)), 2);
}

#[test]
fn a_failed_home_write_leaves_the_copy_in_the_log() {
    let (faults, device) = faulty();
    let bench = Bench::open(&device, SUMMED);
    bench.set(HOME, &content(HOME, 1));
    bench.journal.sync().unwrap();
    faults.inject(Fault::new(Op::Write, 0).within(HOME * BLOCK as u64..(HOME + 1) * BLOCK as u64));
    assert!(matches!(bench.journal.checkpoint_all(), Err(Error::Aborted(EIO))));
    faults.heal();
    drop(bench);
    assert_eq!(log(&device).unwrap().errno(), EIO);
    assert_eq!(recover(&device).unwrap().errno, EIO);
    assert_eq!(block(&*device, HOME), content(HOME, 1));
    let bench = Bench::open(&device, SUMMED);
    bench.journal.clear_errno().unwrap();
    bench.journal.shutdown().unwrap();
    assert_eq!(log(&device).unwrap().errno(), 0);
}

#[test]
fn an_abort_from_above_stops_everything() {
    let (_, device) = faulty();
    let bench = Bench::open(&device, SUMMED);
    let tid = bench.set(HOME, &content(HOME, 1));
    bench.journal.abort(117);
    assert!(matches!(bench.journal.wait(tid), Err(Error::Aborted(117))));
    assert!(matches!(bench.journal.checkpoint_all(), Err(Error::Aborted(117))));
    assert_eq!(log(&device).unwrap().errno(), 117);
}

#[test]
fn a_failed_recovery_can_be_repeated() {
    let (faults, device) = faulty();
    let bench = Bench::open(&device, SUMMED);
    bench.set(HOME, &content(HOME, 1));
    bench.journal.sync().unwrap();
    bench.journal.crash();
    let faults_of_all_kinds = [(Op::Read, 1), (Op::Write, 0), (Op::Flush, 0), (Op::Write, 1)];
    for fault in faults_of_all_kinds.map(|(op, nth)| Fault::new(op, nth)) {
        faults.inject(fault);
        assert!(matches!(recover(&device), Err(Error::Io(_))));
        faults.heal();
    }
    assert_eq!(recover(&device).unwrap().transactions, 1);
    assert_eq!(block(&*device, HOME), content(HOME, 1));
}

struct Panics;

impl Client for Panics {
    fn freeze(&self, _tid: Tid, _out: &mut Freezer<'_>) -> Result<()> {
        panic!("as this test wants it");
    }
    fn committed(&self, _tid: Tid) {}
    fn aborted(&self, _why: &Error) {}
}

#[test]
fn waits_for_a_panicked_thread_end() {
    let (_, device) = faulty();
    let bench = Bench::open(&device, SUMMED);
    let client: Arc<dyn Client> = Arc::new(Panics);
    bench.journal.set_client(Arc::downgrade(&client));
    let tid = bench.set(HOME, &content(HOME, 1));
    assert!(matches!(bench.journal.wait(tid), Err(Error::Aborted(EIO))));
    assert!(matches!(bench.journal.start(1), Err(Error::Aborted(EIO))));
    assert!(bench.journal.shutdown().is_err());
}

struct Refused;

impl Client for Refused {
    fn freeze(&self, _tid: Tid, _out: &mut Freezer<'_>) -> Result<()> {
        Ok(())
    }
    fn write_ordered(&self, _tid: Tid) -> Result<()> {
        Err(Error::Client { errno: EIO, message: "as this test wants it".into() })
    }
    fn committed(&self, _tid: Tid) {}
    fn aborted(&self, _why: &Error) {}
}

#[test]
fn a_transaction_without_its_ordered_data_is_not_committed() {
    let (_, device) = faulty();
    let bench = Bench::open(&device, SUMMED);
    let client: Arc<dyn Client> = Arc::new(Refused);
    bench.journal.set_client(Arc::downgrade(&client));
    let tid = bench.set(HOME, &content(HOME, 1));
    assert!(matches!(bench.journal.wait(tid), Err(Error::Aborted(EIO))));
    assert!(bench.journal.shutdown().is_err());
    drop(bench);
    assert_eq!(recover(&device).unwrap().transactions, 0);
}
