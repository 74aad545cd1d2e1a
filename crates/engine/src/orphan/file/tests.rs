//! The orphan file over a journal without a log, on a device of orphan blocks only.

use super::*;
use extant_blocks::{BlockDevice, Cache, MemDevice};
use extant_journal::{Client, Config, Error as JournalError, Journal, Tid};
use extant_sync::{shard_count, with_shards};
use std::sync::mpsc::channel;

const BLOCK: usize = 1024;
const SLOTS: u32 = 254;
const SEED: u32 = 77;

/// An orphan file, its journal, and the device below.
struct Room {
    dev: Arc<MemDevice>,
    journal: Arc<Journal>,
    file: Arc<OrphanFile>,
    _client: Arc<Freezes>,
}

struct Freezes(Arc<OrphanFile>);

impl Client for Freezes {
    fn freeze(&self, _: Tid, out: &mut Freezer<'_>) -> std::result::Result<(), JournalError> {
        self.0
            .freeze(out)
            .map_err(|error| JournalError::Client { errno: 5, message: error.to_string() })
    }

    fn committed(&self, _: Tid) {}

    fn aborted(&self, why: &JournalError) {
        panic!("aborted: {why}");
    }
}

fn device(blocks: u64) -> Arc<MemDevice> {
    let dev = MemDevice::new(blocks * BLOCK as u64);
    for nr in 0..blocks {
        let mut block = vec![0; BLOCK];
        orphan::init(&mut block);
        orphan::seal_orphan_block(&mut block, nr, SEED);
        dev.write_all_at(&block, nr * BLOCK as u64).unwrap();
    }
    Arc::new(dev)
}

fn place(dev: &Arc<MemDevice>) -> OrphanBlocks {
    let cache = Cache::new(dev.clone(), BLOCK, 1 << 20);
    let blocks = (0..dev.len() / BLOCK as u64).collect();
    OrphanBlocks { ino: InodeNr(12), cache, blocks, seed: SEED, metadata_csum: true, spread: true }
}

impl Room {
    fn on(dev: Arc<MemDevice>, read: bool, max_credits: Option<u32>) -> Result<Room> {
        let place = place(&dev);
        let mut config = Config::new(place.cache.clone(), None);
        config.max_credits = max_credits;
        let journal = Journal::open(config).unwrap();
        let file = Arc::new(OrphanFile::open(place, read)?);
        let client = Arc::new(Freezes(file.clone()));
        let weak: std::sync::Weak<Freezes> = Arc::downgrade(&client);
        journal.set_client(weak);
        Ok(Room { dev, journal, file, _client: client })
    }

    fn new(blocks: u64) -> Room {
        Room::on(device(blocks), false, None).unwrap()
    }

    fn add(&self, ino: u32) -> Option<SlotAt> {
        let mut h = self.journal.start(1).unwrap();
        self.file.add(&mut h, InodeNr(ino)).unwrap()
    }

    fn clear(&self, at: SlotAt) {
        let mut h = self.journal.start(1).unwrap();
        self.file.clear(&mut h, at).unwrap();
    }

    fn loaded(&self) -> usize {
        self.file.loaded.load(Ordering::Relaxed)
    }

    /// The numbers that the device has, after a commit; each block is verified.
    fn on_device(&self) -> Vec<u32> {
        self.journal.sync().unwrap();
        let again = OrphanFile::open(place(&self.dev), true).unwrap();
        let mut numbers: Vec<u32> =
            again.records().unwrap().into_iter().map(|(ino, _)| ino.0).collect();
        numbers.sort_unstable();
        numbers
    }
}

#[test]
fn records_are_on_the_device_after_a_commit() {
    let room = Room::new(3);
    let places: Vec<SlotAt> = (1..=5).map(|ino| room.add(ino).unwrap()).collect();
    assert!(!room.file.is_empty());
    assert_eq!(room.on_device(), [1, 2, 3, 4, 5]);
    room.clear(places[1]);
    room.clear(places[3]);
    assert_eq!(room.on_device(), [1, 3, 5]);
    for at in [places[0], places[2], places[4]] {
        room.clear(at);
    }
    assert!(room.file.is_empty());
    assert_eq!(room.on_device(), [0; 0]);
}

#[test]
fn blocks_are_read_when_used_and_dropped_when_idle() {
    let blocks = 4 * KEPT * shard_count();
    let room = Room::new(blocks as u64);
    assert_eq!(room.loaded(), 0);
    let first = room.add(1).unwrap();
    assert_eq!(room.loaded(), 1);
    let places: Vec<SlotAt> =
        (2..=SLOTS * blocks as u32).map(|ino| room.add(ino).unwrap()).collect();
    assert_eq!((room.loaded(), room.add(9)), (blocks, None), "it is full");
    room.journal.sync().unwrap();
    places.into_iter().for_each(|at| room.clear(at));
    room.journal.sync().unwrap();
    room.clear(first);
    let last = room.add(7).unwrap();
    // Blocks that this transaction changed stay until the next one.
    assert_eq!(room.on_device(), [7]);
    room.clear(last);
    room.journal.sync().unwrap();
    assert!(room.loaded() <= 1, "{} blocks in memory", room.loaded());
    assert!(room.file.is_empty());
    let all: Vec<SlotAt> = (1..=SLOTS * blocks as u32).map(|ino| room.add(ino).unwrap()).collect();
    assert_eq!(all.len(), room.on_device().len());
}

#[test]
fn a_full_file_has_room_again_after_one_release() {
    let room = Room::new(2);
    let places: Vec<SlotAt> = (1..=2 * SLOTS).map(|ino| room.add(ino).unwrap()).collect();
    for at in places.iter().step_by(50) {
        assert_eq!(room.add(5000), None);
        room.clear(*at);
        assert_eq!(room.add(5000), Some(*at));
    }
}

#[test]
fn a_slot_comes_back_if_its_block_cannot_join() {
    let room = Room::on(device(1), false, Some(4)).unwrap();
    let (all_taken, taken) = channel();
    let (finish, finished) = channel::<()>();
    std::thread::scope(|scope| {
        let journal = &room.journal;
        scope.spawn(move || {
            let _h = journal.start(4).unwrap();
            all_taken.send(()).unwrap();
            finished.recv().unwrap_err();
        });
        taken.recv().unwrap();
        let mut h = room.journal.start(0).unwrap();
        assert!(room.file.add(&mut h, InodeNr(1)).is_err());
        drop(finish);
    });
    assert!(room.file.is_empty());
    assert_eq!(room.file.blocks[0].memory.load().get().unwrap().slots.free(), SLOTS);
    (1..=SLOTS).for_each(|ino| assert!(room.add(ino).is_some()));
}

#[test]
fn a_bad_block_is_not_used_and_after_a_crash_refused() {
    let dev = device(2);
    dev.write_all_at(&[1], 5).unwrap();
    assert!(Room::on(dev.clone(), true, None).is_err());
    let room = Room::on(dev, false, None).unwrap();
    for ino in 1..=SLOTS {
        assert_eq!(room.add(ino).unwrap().block, 1);
    }
    assert_eq!(room.add(1000), None);
    room.clear(SlotAt { block: 1, slot: 3 });
    assert_eq!(room.add(1000), Some(SlotAt { block: 1, slot: 3 }));
}

const SHARDS: usize = 8;

/// Returns the slot of the first record of a thread of each shard, in a file of so many blocks.
fn first_slots(blocks: usize) -> std::collections::BTreeMap<usize, SlotAt> {
    let room = &with_shards(SHARDS, || Room::new(blocks as u64));
    let mut slots = std::collections::BTreeMap::new();
    // Threads of other tests take shards, too.
    for ino in 1..=SLOTS / 2 {
        let add = || (room.file.shard(), room.add(ino).expect("an empty slot"));
        let (shard, at) = std::thread::scope(|scope| scope.spawn(add).join().expect("a record"));
        slots.entry(shard).or_insert(at);
        if slots.len() == SHARDS {
            return slots;
        }
    }
    panic!("no thread of some shard: {slots:?}");
}

#[test]
fn threads_record_in_blocks_that_divide_the_file_evenly() {
    for blocks in [SHARDS, 2 * SHARDS + 1, 7 * SHARDS - 1] {
        let slots = first_slots(blocks);
        let starts: Vec<usize> = slots.values().map(|at| at.block as usize).collect();
        let ends = starts.iter().skip(1).copied().chain([blocks]);
        let parts: Vec<usize> = starts.iter().zip(ends).map(|(start, end)| end - start).collect();
        let even = blocks / SHARDS..=blocks.div_ceil(SHARDS);
        assert!(parts.iter().all(|part| even.contains(part)), "{blocks} blocks: {starts:?}");
    }
}

#[test]
fn threads_that_share_a_block_record_on_lines_apart() {
    // Slots of many shards wrap around the block.
    let most = SLOTS as usize / SPREAD;
    let slots: Vec<u32> = first_slots(1).values().take(most).map(|at| at.slot).collect();
    let apart = |pair: &[u32]| pair[1] >= pair[0] + SPREAD as u32;
    assert!(slots.windows(2).all(apart), "{slots:?}");
}

#[test]
fn many_threads_add_and_clear_while_transactions_commit() {
    let room = Room::new(3);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let room = &room;
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..400 {
                    held.push(room.add(1 + thread * 1000 + round).expect("room"));
                    if round % 3 == 0 {
                        held.drain(..).for_each(|at| room.clear(at));
                    }
                    if round % 100 == thread {
                        room.journal.sync().unwrap();
                    }
                }
                held.into_iter().for_each(|at| room.clear(at));
            });
        }
    });
    assert!(room.file.is_empty());
    assert_eq!(room.on_device(), [0; 0]);
}
