//! Transactions without failures.

use crate::bench::*;
use extant_blocks::{BlockDevice, Buffer, Cache, Event, RecordingDevice};
use extant_journal::{Client, Error, Freezer, Journal, Result, Seal, Tid, WriteStamp};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

#[test]
fn committed_blocks_are_home_after_shutdown() {
    for features in [PLAIN, SUMMED] {
        let device = shared(format(features));
        let bench = Bench::open(&device, features);
        for round in 0..40 {
            for nr in HOME..HOME + 5 {
                bench.set(nr, &content(nr, round));
            }
            bench.journal.sync().unwrap();
        }
        bench.journal.shutdown().unwrap();
        assert!(matches!(bench.journal.start(1), Err(Error::ShutDown)));
        for nr in HOME..HOME + 5 {
            assert_eq!(block(&*device, nr), content(nr, 39));
        }
        assert!(!log(&device).unwrap().needs_recovery());
        let stats = bench.journal.stats();
        // There are more commits if a handle had to wait for space in the log.
        assert!(stats.commits >= 40);
        assert_eq!((stats.blocks_logged, stats.overdrawn), (200, 0));
        assert!(stats.tail_moves > 2, "the log went round: {stats:?}");
    }
}

#[test]
fn a_log_goes_on_where_the_last_session_ended() {
    let device = shared(format(SUMMED));
    for session in 0..3 {
        let bench = Bench::open(&device, SUMMED);
        bench.set(HOME, &content(HOME, session));
        bench.journal.shutdown().unwrap();
        assert_eq!(block(&*device, HOME), content(HOME, session));
    }
}

#[test]
fn an_empty_sync_writes_nothing() {
    let device = shared(format(PLAIN));
    let bench = Bench::open(&device, PLAIN);
    let running = bench.journal.running_tid();
    bench.journal.sync().unwrap();
    bench.journal.wait(running).unwrap();
    assert_eq!(bench.journal.stats().log_blocks, 0);
    assert_eq!(bench.journal.running_tid(), running);
    let tid = bench.set(HOME, &content(HOME, 1));
    assert_eq!(tid, running);
    bench.journal.wait(tid).unwrap();
    assert_eq!(bench.journal.durable(), tid);
    bench.journal.wait(tid).unwrap();
    assert_eq!(bench.journal.stats().commits, 1);
}

#[test]
fn noted_data_is_flushed_once() {
    let device = shared(format(PLAIN));
    let bench = Bench::open(&device, PLAIN);
    bench.journal.barrier_flush().unwrap();
    let before = bench.journal.stats().flushes;
    bench.journal.barrier_flush().unwrap();
    assert_eq!(bench.journal.stats().flushes, before);
    bench.journal.note_data_write();
    bench.journal.barrier_flush().unwrap();
    bench.journal.barrier_flush().unwrap();
    assert_eq!(bench.journal.stats().flushes, before + 1);
}

#[test]
fn a_flush_covers_earlier_writes_and_is_not_repeated() {
    let device = shared(format(PLAIN));
    let bench = Bench::open(&device, PLAIN);
    assert!(!bench.journal.is_clean(), "earlier writes are unknown");
    bench.journal.sync().unwrap();
    assert!(bench.journal.is_clean());
    let before = bench.journal.stats();
    let own = bench.journal.note_data_write();
    assert!(!bench.journal.is_clean());
    bench.journal.flush_since(own).unwrap();
    let foreign = bench.journal.note_data_write();
    bench.journal.flush_since(own).unwrap();
    bench.journal.flush_since(WriteStamp::NONE).unwrap();
    assert_eq!(bench.journal.stats().flushes, before.flushes + 1);
    bench.journal.flush_since(foreign).unwrap();
    bench.journal.sync().unwrap();
    assert_eq!(bench.journal.stats().flushes, before.flushes + 2);
    let tid = bench.set(HOME, &content(1, 1));
    assert!(!bench.journal.is_clean());
    bench.journal.wait(tid).unwrap();
    assert!(bench.journal.is_clean());
    assert_eq!(bench.journal.stats().commits, before.commits + 1);
}

#[test]
fn timers_commit_and_checkpoint() {
    let device = shared(format(PLAIN));
    let mut config = config(&device, PLAIN);
    config.commit_interval = std::time::Duration::from_millis(5);
    config.checkpoint_interval = std::time::Duration::from_millis(5);
    let cache = Arc::clone(&config.cache);
    let journal = Journal::open(config).unwrap();
    let buffer = cache.fresh(HOME);
    let mut handle = journal.start(1).unwrap();
    handle.write(&buffer, Seal::NONE).unwrap().fill(1);
    let tid = handle.tid();
    drop(handle);
    while journal.durable() < tid || journal.stats().blocks_checkpointed == 0 {
        std::thread::yield_now();
    }
    assert_eq!(block(&*device, HOME), [1; BLOCK]);
}

#[test]
fn without_a_log_a_commit_writes_home() {
    let device = shared(format(PLAIN));
    let bench = Bench::open_without_log(&device);
    let tid = bench.set(HOME, &content(HOME, 1));
    let mut handle = bench.journal.start(3).unwrap();
    bench.set_in(&mut handle, HOME + 1, &content(HOME + 1, 1));
    handle.revoke(HOME + 1, 1).unwrap();
    drop(handle);
    assert_ne!(block(&*device, HOME), content(HOME, 1));
    bench.journal.wait(tid).unwrap();
    assert_eq!(block(&*device, HOME), content(HOME, 1));
    assert_ne!(block(&*device, HOME + 1), content(HOME + 1, 1), "freed blocks are not written");
    bench.set(HOME, &content(HOME, 2));
    bench.journal.shutdown().unwrap();
    assert_eq!(block(&*device, HOME), content(HOME, 2));
}

#[test]
fn credits_are_counted_by_block_and_transaction() {
    let device = shared(format(PLAIN));
    let bench = Bench::open(&device, PLAIN);
    let max = bench.journal.max_credits();
    assert!(matches!(bench.journal.start(max + 1), Err(Error::NoCredits { .. })));
    let mut handle = bench.journal.start(2).unwrap();
    let (a, b) = (bench.cache.fresh(HOME), bench.cache.fresh(HOME + 1));
    handle.join(&a).unwrap();
    drop(handle.write(&a, Seal::NONE).unwrap());
    assert_eq!(handle.credits_left(), 1);
    handle.join(&b).unwrap();
    assert_eq!(handle.credits_left(), 0);
    handle.revoke(HOME, 1).unwrap();
    assert_eq!(
        handle.credits_left(),
        1,
        "the freed block's credit; one was overdrawn for the record"
    );
    assert_eq!(bench.journal.stats().overdrawn, 1);
    assert!(handle.extend(2).unwrap());
    assert!(!handle.extend(max).unwrap());
    let before = handle.tid();
    bench.journal.commit(before);
    handle.restart(max).unwrap();
    assert_eq!(handle.tid(), before.next());
    drop(handle);
    bench.journal.shutdown().unwrap();
}

#[test]
fn updates_can_be_held() {
    let device = shared(format(PLAIN));
    let bench = Bench::open(&device, PLAIN);
    bench.set(HOME, &content(HOME, 1));
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let lock = bench.journal.lock_updates();
        scope.spawn(|| {
            bench.set(HOME, &content(HOME, 2));
            done.store(1, Ordering::SeqCst);
        });
        bench.journal.checkpoint_all().unwrap();
        assert!(!log(&device).unwrap().needs_recovery(), "frozen means empty");
        assert_eq!(block(&*device, HOME), content(HOME, 1));
        assert_eq!(done.load(Ordering::SeqCst), 0);
        drop(lock);
    });
    bench.journal.shutdown().unwrap();
    assert_eq!(block(&*device, HOME), content(HOME, 2));
}

/// In-memory objects that are written into their blocks when a transaction freezes.
struct Objects {
    blocks: Vec<Arc<Buffer>>,
    value: Mutex<u64>,
    frozen: Mutex<Vec<Tid>>,
    committed: Mutex<Vec<Tid>>,
}

fn seal(block: &mut [u8], nr: u64, seed: u32) {
    block[BLOCK - 8..].copy_from_slice(&(nr + u64::from(seed)).to_le_bytes());
}

impl Objects {
    fn new(cache: &Cache) -> Arc<Objects> {
        let blocks = (HOME..HOME + 3).map(|nr| cache.fresh(nr)).collect();
        Arc::new(Objects {
            blocks,
            value: Mutex::default(),
            frozen: Mutex::default(),
            committed: Mutex::default(),
        })
    }
}

impl Client for Objects {
    fn freeze(&self, tid: Tid, out: &mut Freezer<'_>) -> Result<()> {
        let value = self.value.lock().unwrap().to_le_bytes();
        out.write(&self.blocks[0], Seal { f: seal, seed: 5 })?[..8].copy_from_slice(&value);
        // No handle has joined it before.
        out.write(&self.blocks[1], Seal::NONE)?[..8].copy_from_slice(&value);
        self.frozen.lock().unwrap().push(tid);
        Ok(())
    }

    fn committed(&self, tid: Tid) {
        self.committed.lock().unwrap().push(tid);
    }

    fn aborted(&self, _why: &Error) {}
}

#[test]
fn the_client_fills_and_seals_blocks_at_freeze() {
    let device = shared(format(SUMMED));
    let bench = Bench::open(&device, SUMMED);
    let objects = Objects::new(&bench.cache);
    let client: Arc<dyn Client> = objects.clone();
    bench.journal.set_client(Arc::downgrade(&client));
    let mut tids = Vec::new();
    for value in 1..=3 {
        let mut handle = bench.journal.start(1).unwrap();
        handle.join(&objects.blocks[0]).unwrap();
        *objects.value.lock().unwrap() = value;
        tids.push(handle.tid());
        drop(handle);
        bench.journal.sync().unwrap();
    }
    assert_eq!(*objects.committed.lock().unwrap(), tids);
    bench.journal.shutdown().unwrap();
    let first = block(&*device, HOME);
    assert_eq!(first[..8], 3u64.to_le_bytes());
    assert_eq!(first[BLOCK - 8..], (HOME + 5).to_le_bytes());
    assert_eq!(block(&*device, HOME + 1)[..8], 3u64.to_le_bytes());
}

/// A client with data that go before the commit record.
struct Ordered {
    device: Arc<RecordingDevice<Arc<dyn BlockDevice>>>,
    journal: OnceLock<Weak<Journal>>,
}

/// A block that no transaction contains.
const DATA: u64 = HOME + 7;

impl Client for Ordered {
    fn freeze(&self, tid: Tid, _out: &mut Freezer<'_>) -> Result<()> {
        self.device.mark(format!("{tid} freezes"));
        Ok(())
    }

    fn write_ordered(&self, tid: Tid) -> Result<()> {
        let journal = self.journal.get().and_then(Weak::upgrade).expect("the journal is open");
        assert_eq!(journal.running_tid(), tid.next(), "handles do not wait for the writes");
        self.device.write_all_at(&content(DATA, tid.0), DATA * BLOCK as u64)?;
        journal.note_data_write();
        Ok(())
    }

    fn committed(&self, tid: Tid) {
        self.device.mark(format!("{tid} is durable"));
    }

    fn aborted(&self, _why: &Error) {}
}

#[test]
fn ordered_data_are_flushed_before_the_commit_record() {
    let device = Arc::new(RecordingDevice::new(shared(format(SUMMED))));
    let shared: Arc<dyn BlockDevice> = device.clone();
    let bench = Bench::open(&shared, SUMMED);
    let client = Arc::new(Ordered { device: device.clone(), journal: OnceLock::new() });
    client.journal.set(Arc::downgrade(&bench.journal)).expect("set once");
    let weak: Arc<dyn Client> = client.clone();
    bench.journal.set_client(Arc::downgrade(&weak));
    for round in 0..3 {
        let tid = bench.set(HOME, &content(HOME, round));
        bench.journal.wait(tid).unwrap();
        let events = device.take_log();
        let mark = |what: &str| Event::Mark(format!("{tid} {what}"));
        let at = |wanted: &Event| events.iter().position(|event| event == wanted).unwrap();
        let (frozen, durable) = (at(&mark("freezes")), at(&mark("is durable")));
        let data = Event::Write { offset: DATA * BLOCK as u64, data: content(DATA, tid.0).into() };
        assert!(frozen < at(&data));
        // Two flushes follow: the commit record is between them.
        let behind = &events[at(&data)..durable];
        let flushes: Vec<usize> =
            (0..behind.len()).filter(|n| behind[*n] == Event::Flush).collect();
        assert_eq!(flushes.len(), 2, "{behind:?}");
        assert_eq!(flushes[1] - flushes[0], 2, "{behind:?}");
    }
    bench.journal.shutdown().unwrap();
}

#[test]
fn a_journal_without_its_client_commits_nothing() {
    let device = shared(format(SUMMED));
    let bench = Bench::open(&device, SUMMED);
    let client: Arc<dyn Client> = Objects::new(&bench.cache);
    let weak: Weak<dyn Client> = Arc::downgrade(&client);
    bench.journal.set_client(weak);
    drop(client);
    let tid = bench.set(HOME + 7, &content(HOME, 1));
    assert!(matches!(bench.journal.wait(tid), Err(Error::ShutDown)));
    drop(bench);
    assert!(!log(&device).unwrap().needs_recovery());
}
