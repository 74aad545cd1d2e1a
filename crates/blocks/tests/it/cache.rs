//! The cache: loads, eviction, and many threads at once.

use extant_blocks::{BlockDevice, Buffer, Cache, Failure, Fault, FaultDevice, MemDevice, Op};
use extant_testkit::rng::Rng;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

const BLOCK: usize = 1024;

/// Makes a device whose blocks each hold their number in every eight bytes.
fn numbered(blocks: u64) -> Arc<FaultDevice<MemDevice>> {
    let bytes: Vec<u8> = (0..blocks).flat_map(|nr| nr.to_le_bytes().repeat(BLOCK / 8)).collect();
    Arc::new(FaultDevice::new(MemDevice::from_bytes(&bytes)))
}

fn cache(device: &Arc<FaultDevice<MemDevice>>, capacity: usize) -> Arc<Cache> {
    Cache::new(device.clone(), BLOCK, capacity)
}

fn read(cache: &Cache, nr: u64) -> Arc<Buffer> {
    cache.read(nr, |_| Ok::<_, io::Error>(())).unwrap()
}

fn number(buffer: &Buffer) -> u64 {
    u64::from_le_bytes(buffer.read()[..8].try_into().unwrap())
}

#[test]
fn a_block_is_read_and_checked_once() {
    let device = numbered(10);
    let cache = cache(&device, 1 << 20);
    let mut checks = 0;
    for _ in 0..3 {
        let check = |bytes: &[u8]| {
            checks += 1;
            assert_eq!(bytes[..8], 7u64.to_le_bytes());
            Ok::<_, io::Error>(())
        };
        assert_eq!(number(&cache.read(7, check).unwrap()), 7);
    }
    assert_eq!((checks, device.count(Op::Read)), (1, 1));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.blocks, stats.bytes), (2, 1, 1, BLOCK as u64));
    assert!(cache.peek(7).is_some() && cache.peek(8).is_none());
}

#[test]
fn failures_leave_nothing_behind() {
    let device = numbered(10);
    let cache = cache(&device, 1 << 20);
    device.inject(Fault::new(Op::Read, 0).with(Failure::Error(5)));
    assert!(cache.read(3, |_| Ok::<_, io::Error>(())).is_err());
    let refuse = |_: &[u8]| Err(io::Error::other("bad"));
    assert_eq!(cache.read(3, refuse).unwrap_err().to_string(), "bad");
    let panics =
        std::panic::AssertUnwindSafe(|| cache.read(3, |_| -> io::Result<()> { panic!("check") }));
    assert!(std::panic::catch_unwind(panics).is_err());
    assert!(cache.peek(3).is_none());
    assert_eq!(cache.stats().blocks, 0);
    assert_eq!(number(&read(&cache, 3)), 3);
    assert_eq!(
        cache.read(10, |_| Ok::<_, io::Error>(())).unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
    assert_eq!(
        cache.read(u64::MAX, |_| Ok::<_, io::Error>(())).unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
}

#[test]
fn fresh_blocks_are_zero_and_not_read() {
    let device = numbered(10);
    let cache = cache(&device, 1 << 20);
    assert!(cache.fresh(2).read().iter().all(|byte| *byte == 0));
    assert_eq!(device.count(Op::Read), 0);
    // A block in use keeps its buffer; its snapshot keeps the old bytes.
    let held = read(&cache, 4);
    let old = held.snapshot();
    let fresh = cache.fresh(4);
    assert!(Arc::ptr_eq(&held, &fresh));
    assert!(held.read().iter().all(|byte| *byte == 0));
    assert_eq!(old[..8], 4u64.to_le_bytes());
}

#[test]
fn snapshots_are_frozen() {
    let device = numbered(10);
    let cache = cache(&device, 1 << 20);
    let buffer = read(&cache, 1);
    let before = buffer.snapshot();
    let mut bytes = buffer.write_unlogged();
    bytes[0] = 9;
    let between = bytes.snapshot();
    bytes[0] = 10;
    drop(bytes);
    assert_eq!((before[0], between[0], buffer.read()[0]), (1, 9, 10));
}

#[test]
fn pinned_and_referenced_blocks_stay() {
    let device = numbered(2000);
    let cache = cache(&device, 64 * BLOCK);
    let pinned = read(&cache, 0);
    pinned.pin();
    pinned.write_unlogged()[0] = 77;
    drop(pinned);
    let held = read(&cache, 1);
    for nr in 2..2000 {
        read(&cache, nr);
    }
    let stats = cache.stats();
    assert!(stats.blocks <= 64 + 2, "{stats:?}");
    assert!(stats.evictions > 1900 && stats.pinned == 1, "{stats:?}");
    assert!(Arc::ptr_eq(&held, &read(&cache, 1)));
    let pinned = cache.peek(0).unwrap();
    assert_eq!(pinned.read()[0], 77);
    pinned.unpin();
    drop((pinned, held));
    assert!(cache.shrink(0) > 0);
    assert_eq!(cache.stats().blocks, 0);
}

#[test]
fn recently_used_blocks_survive_a_scan() {
    let device = numbered(4000);
    let cache = cache(&device, 512 * BLOCK);
    for nr in 0..4000 {
        read(&cache, nr);
        (0..4).for_each(|hot| drop(read(&cache, hot)));
    }
    assert!((0..4).all(|hot| cache.peek(hot).is_some()));
}

#[test]
fn forgotten_blocks_are_read_again() {
    let device = numbered(10);
    let cache = cache(&device, 1 << 20);
    let old = read(&cache, 5);
    old.pin();
    old.write_unlogged()[0] = 99;
    cache.forget(4, 3);
    let new = read(&cache, 5);
    assert!(!Arc::ptr_eq(&old, &new));
    assert_eq!(number(&new), 5);
    cache.forget(0, u64::MAX);
    assert_eq!(cache.stats().blocks, 0);
    assert_eq!(old.read()[0], 99);
}

#[test]
fn a_load_does_not_cache_a_block_forgotten_meanwhile() {
    let device = numbered(10);
    let cache = cache(&device, 1 << 20);
    let forgotten = |_: &[u8]| {
        cache.forget(5, 1);
        Ok::<_, io::Error>(())
    };
    assert_eq!(number(&cache.read(5, forgotten).unwrap()), 5);
    assert!(cache.peek(5).is_none());
    let replaced = |_: &[u8]| {
        cache.fresh(6).write_unlogged()[0] = 66;
        Ok::<_, io::Error>(())
    };
    assert_eq!(number(&cache.read(6, replaced).unwrap()), 66);
    let replaced_and_gone = |_: &[u8]| {
        drop(cache.fresh(7));
        cache.forget_unused();
        Ok::<_, io::Error>(())
    };
    cache.read(7, replaced_and_gone).unwrap();
    assert!(cache.peek(7).is_none());
}

#[test]
fn blocks_read_ahead_are_checked_by_their_first_reader() {
    let device = numbered(100);
    let cache = cache(&device, 1 << 20);
    read(&cache, 12);
    cache.read_ahead(10, 6);
    assert_eq!(device.count(Op::Read), 1 + 2);
    assert!(cache.peek(10).is_none(), "not checked yet");
    assert!(cache.read(10, |_| Err(io::Error::other("bad"))).is_err());
    let mut checked = false;
    let check = |_: &[u8]| {
        checked = true;
        Ok::<_, io::Error>(())
    };
    assert_eq!(number(&cache.read(11, check).unwrap()), 11);
    assert!(checked && cache.peek(11).is_some());
    assert_eq!(device.count(Op::Read), 3);
    // A block that failed its check is read again; blocks beyond the end are omitted; errors are
    // left to readers.
    assert_eq!(number(&read(&cache, 10)), 10);
    cache.read_ahead(98, 1000);
    cache.read_ahead(u64::MAX, 10);
    assert_eq!(number(&read(&cache, 99)), 99);
    device.inject(Fault::new(Op::Read, 0));
    cache.read_ahead(50, 4);
    assert_eq!(number(&read(&cache, 50)), 50);
}

#[test]
fn concurrent_readers_of_an_absent_block_read_it_once() {
    let device = numbered(200);
    let cache = cache(&device, 1 << 20);
    let barrier = Barrier::new(4);
    let checks = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for nr in 0..200 {
                    barrier.wait();
                    let check = |_: &[u8]| {
                        checks.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        Ok::<_, io::Error>(())
                    };
                    assert_eq!(number(&cache.read(nr, check).unwrap()), nr);
                }
            });
        }
    });
    assert_eq!((checks.load(Ordering::Relaxed), device.count(Op::Read)), (200, 200));
}

/// Each block counts the changes made to it; a lost or doubled buffer would lose some. Blocks with
/// changes that are not written home are pinned, as a journal does, and are written home and
/// unpinned at intervals.
#[test]
fn no_change_is_lost_under_eviction() {
    const BLOCKS: u64 = 300;
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 4000;
    let device = Arc::new(FaultDevice::new(MemDevice::new(BLOCKS * BLOCK as u64)));
    let cache = cache(&device, 40 * BLOCK);
    let changes: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, device, changes) = (&cache, &device, &changes);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for round in 0..ROUNDS {
                    let nr = rng.below(BLOCKS);
                    match round % 16 {
                        0 => cache.read_ahead(nr, 8),
                        1 => drop(cache.shrink(20 * BLOCK)),
                        _ => change(cache, device, nr, &changes[nr as usize]),
                    }
                }
            });
        }
    });
    assert!(cache.stats().evictions > 1000);
    assert_eq!(cache.stats().pinned, 0);
    for (nr, changes) in changes.iter().enumerate() {
        assert_eq!(number(&read(&cache, nr as u64)), changes.load(Ordering::Relaxed), "block {nr}");
    }
}

/// Increments a block's count and writes it home, atomically under the block's lock.
fn change(cache: &Cache, device: &dyn BlockDevice, nr: u64, changes: &AtomicU64) {
    let buffer = read(cache, nr);
    buffer.pin();
    let mut bytes = buffer.write_unlogged();
    let count = u64::from_le_bytes(bytes[..8].try_into().unwrap()) + 1;
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    changes.fetch_add(1, Ordering::Relaxed);
    device.write_all_at(&bytes, nr * BLOCK as u64).unwrap();
    buffer.unpin();
}
