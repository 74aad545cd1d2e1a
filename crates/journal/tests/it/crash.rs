//! Power cuts at every write, with any subset of the unflushed writes.

use crate::bench::*;
use extant_blocks::{BlockDevice, Event, MemDevice, RecordingDevice};
use extant_journal::{
    Error, FormatLog, Handle, Log, LogExtent, LogPlace, Seal, Tid, format_log, recovery,
};
use extant_testkit::rng::Rng;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Blocks that transactions change.
const HOMES: u64 = 24;

/// Blocks of an external log. Two precede its superblock.
const OWN_LOG: u32 = 58;

/// The file system's part of the medium in bytes. An external log is behind it.
const HOME_BYTES: u64 = BLOCKS * BLOCK as u64;

/// A part of a medium as a device: its flushes make only the writes to that part durable.
#[derive(Debug)]
struct Part {
    whole: Arc<dyn BlockDevice>,
    start: u64,
    len: u64,
    /// Records the flushes.
    recorder: Option<Arc<RecordingDevice<MemDevice>>>,
}

impl BlockDevice for Part {
    fn len(&self) -> u64 {
        self.len
    }

    fn name(&self) -> String {
        format!("the part from {} on", self.start)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.whole.read_exact_at(buf, self.start + offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        assert!(offset + data.len() as u64 <= self.len, "a write beyond the end");
        self.whole.write_all_at(data, self.start + offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.recorder.iter().for_each(|recorder| recorder.mark(format!("{FLUSH}{}", self.start)));
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A host that lacks space for many writes: they fail with `ENOSPC`, with a part of their bytes on
/// the medium. The superblock of the log has its space.
#[derive(Debug)]
struct Tight {
    medium: Arc<RecordingDevice<MemDevice>>,
    rng: Mutex<Rng>,
    failed: AtomicU32,
}

impl BlockDevice for Tight {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn name(&self) -> String {
        "a tight host".into()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.medium.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let place = extents()[0].physical * BLOCK as u64;
        let part = {
            let mut rng = self.rng.lock().unwrap();
            let lacks = offset != place && rng.one_in(4);
            lacks.then(|| rng.below(data.len() as u64 / 512 + 1) as usize * 512)
        };
        let Some(part) = part else { return self.medium.write_all_at(data, offset) };
        self.failed.fetch_add(1, Ordering::SeqCst);
        if part > 0 {
            self.medium.write_all_at(&data[..part.min(data.len())], offset)?;
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&self) -> io::Result<()> {
        self.medium.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.medium.discard(offset, len)
    }
}

/// Repeats an action until its device has space.
fn with_space<T>(mut action: impl FnMut() -> extant_journal::Result<T>) -> T {
    loop {
        match action() {
            Err(Error::NoSpace(_)) => {}
            done => return done.unwrap(),
        }
    }
}

/// The prefix of the marks of a part's flushes.
const FLUSH: &str = "flush ";

/// The location of the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Inside,
    /// On its own device, which loses unflushed writes independently of the file system's.
    Outside,
}

/// The devices of a file system and of its log, which may be the same.
struct Devices {
    place: Place,
    home: Arc<dyn BlockDevice>,
    log: Arc<dyn BlockDevice>,
}

impl Devices {
    fn of(
        medium: Arc<dyn BlockDevice>,
        place: Place,
        recorder: Option<&Arc<RecordingDevice<MemDevice>>>,
    ) -> Devices {
        if place == Place::Inside {
            return Devices { place, home: medium.clone(), log: medium };
        }
        let part = |start: u64, end: u64| -> Arc<dyn BlockDevice> {
            Arc::new(Part {
                whole: medium.clone(),
                start,
                len: end - start,
                recorder: recorder.cloned(),
            })
        };
        Devices { place, home: part(0, HOME_BYTES), log: part(HOME_BYTES, medium.len()) }
    }

    /// Makes a medium with an empty log.
    fn format(features: Features, place: Place) -> MemDevice {
        if place == Place::Inside {
            return format(features);
        }
        let medium = Arc::new(MemDevice::new(HOME_BYTES + u64::from(OWN_LOG) * BLOCK as u64));
        let mut how = FormatLog::new(BLOCK as u32, OWN_LOG);
        (how.uuid, how.sequence, how.place) = ([7; 16], features.sequence, LogPlace::External);
        let devices = Devices::of(medium.clone(), place, None);
        format_log(&*devices.log, &devices.extents(), &how).unwrap();
        MemDevice::from_bytes(&medium.to_vec())
    }

    fn extents(&self) -> Vec<LogExtent> {
        match self.place {
            Place::Inside => extents().to_vec(),
            Place::Outside => vec![LogExtent { logical: 0, physical: 0, len: OWN_LOG }],
        }
    }

    fn log(&self) -> extant_journal::Result<Log> {
        let place = if self.place == Place::Inside { LogPlace::Inside } else { LogPlace::External };
        Log::open(self.log.clone(), &self.extents(), BLOCK as u32, place)
    }

    fn bench(&self, features: Features) -> Bench {
        Bench::of(config_with(&self.home, self.log().unwrap(), features))
    }

    fn recover(&self) -> extant_journal::Result<recovery::Outcome> {
        recovery::recover(self.log()?, &*self.home, BLOCKS).map(|(_, outcome)| outcome)
    }
}

/// The required contents of a block after recovery.
#[derive(Clone, Debug, PartialEq)]
enum Expected {
    Bytes(Vec<u8>),
    /// Free: any contents.
    Free,
}

type State = Vec<Expected>;

/// Transactions on a recorded device, and the required contents of the blocks after each of them.
struct Story {
    recorder: Arc<RecordingDevice<MemDevice>>,
    place: Place,
    bench: Bench,
    rng: Rng,
    now: State,
    /// Blocks freed by transactions that are not durable yet.
    freed: Vec<(Tid, usize)>,
    /// Free blocks that may be reused.
    free: Vec<usize>,
    states: BTreeMap<Tid, State>,
    version: u64,
}

impl Story {
    fn new(features: Features, place: Place, seed: u64) -> (Story, Vec<u8>) {
        let image = Devices::format(features, place).to_vec();
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&image)));
        let devices = Devices::of(recorder.clone(), place, Some(&recorder));
        (Story::on(recorder, &devices, features, seed), image)
    }

    fn on(
        recorder: Arc<RecordingDevice<MemDevice>>,
        devices: &Devices,
        features: Features,
        seed: u64,
    ) -> Story {
        let (place, bench) = (devices.place, devices.bench(features));
        let now = vec![Expected::Bytes(vec![0; BLOCK]); HOMES as usize];
        let states = BTreeMap::from([(bench.journal.durable(), now.clone())]);
        let (freed, free, version) = (Vec::new(), Vec::new(), 0);
        let rng = Rng::new(seed);
        Story { recorder, place, bench, rng, now, freed, free, states, version }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.operation();
            match self.rng.below(6) {
                0 => self.bench.journal.commit(self.bench.journal.running_tid()),
                1 => self.sync(),
                2 if self.rng.one_in(3) => with_space(|| self.bench.journal.checkpoint_all()),
                _ => {}
            }
        }
        self.sync();
    }

    fn sync(&mut self) {
        let tid = self.bench.journal.running_tid();
        with_space(|| self.bench.journal.sync());
        if self.bench.journal.durable() >= tid {
            self.recorder.mark(tid.0.to_string());
        }
        let durable = self.bench.journal.durable();
        let (free, freed) = self.freed.drain(..).partition(|(tid, _)| *tid <= durable);
        self.freed = freed;
        self.free.extend(free.into_iter().map(|(_, index): (Tid, usize)| index));
    }

    /// Changes, frees and reuses some blocks in one handle.
    fn operation(&mut self) {
        self.write_data();
        let bench = Bench { cache: self.bench.cache.clone(), journal: self.bench.journal.clone() };
        let mut handle = with_space(|| bench.journal.start(6));
        for _ in 0..self.rng.between(1, 5) {
            let index = self.rng.below(HOMES) as usize;
            if self.now[index] == Expected::Free {
                continue;
            }
            match self.rng.below(5) {
                0 => self.revoke(&mut handle, index),
                _ => self.change(&mut handle, index),
            }
        }
        if let Some(index) = self.free.pop() {
            bench.cache.fresh(HOME + index as u64);
            self.change(&mut handle, index);
        }
        self.states.insert(handle.tid(), self.now.clone());
    }

    fn change(&mut self, handle: &mut Handle<'_>, index: usize) {
        self.version += 1;
        let nr = HOME + index as u64;
        let bytes = content(nr, self.version);
        let buffer = self.bench.cache.read(nr, |_| Ok::<_, std::io::Error>(())).unwrap();
        handle.write(&buffer, Seal::NONE).unwrap().copy_from_slice(&bytes);
        self.now[index] = Expected::Bytes(bytes);
    }

    fn revoke(&mut self, handle: &mut Handle<'_>, index: usize) {
        handle.revoke(HOME + index as u64, 1).unwrap();
        self.now[index] = Expected::Free;
        self.freed.push((handle.tid(), index));
    }

    /// Turns a free block into a file's: its data is written to the device before a transaction
    /// maps it.
    fn write_data(&mut self) {
        if self.free.is_empty() || !self.rng.one_in(2) {
            return;
        }
        let index = self.free.remove(0);
        self.version += 1;
        let nr = HOME + index as u64;
        let bytes = content(nr, self.version);
        self.recorder.write_all_at(&bytes, nr * BLOCK as u64).unwrap();
        self.bench.journal.note_data_write();
        let mut handle = with_space(|| self.bench.journal.start(1));
        self.now[index] = Expected::Bytes(bytes);
        // The mapping. Without a change, the transaction might be empty and commit nothing.
        let map = HOME + HOMES;
        let buffer = self.bench.cache.read(map, |_| Ok::<_, std::io::Error>(())).unwrap();
        handle.write(&buffer, Seal::NONE).unwrap()[..8]
            .copy_from_slice(&self.version.to_le_bytes());
        self.states.insert(handle.tid(), self.now.clone());
    }
}

fn matches(device: &dyn BlockDevice, state: &State) -> bool {
    state.iter().enumerate().all(|(index, expected)| match expected {
        Expected::Free => true,
        Expected::Bytes(bytes) => block(device, HOME + index as u64) == *bytes,
    })
}

/// The states that a cut after the first `cut` events may leave, or a few of them.
struct Cuts<'a> {
    /// The durable contents.
    base: MemDevice,
    pending: Vec<&'a Event>,
    /// The newest transaction that was reported as durable.
    durable: Tid,
}

impl<'a> Cuts<'a> {
    fn step(&mut self, event: &'a Event) {
        match event {
            Event::Flush => {
                self.pending.drain(..).for_each(|event| event.apply(&self.base).unwrap())
            }
            Event::Mark(mark) => match mark.strip_prefix(FLUSH) {
                Some(start) => self.flush_part(start == "0"),
                None => self.durable = Tid(mark.parse().unwrap()),
            },
            _ => self.pending.push(event),
        }
    }

    /// Makes the writes to the file system's part, or to the log's, durable.
    fn flush_part(&mut self, home: bool) {
        let of_part = |event: &mut &Event| {
            matches!(
                event,
                Event::Write { offset, .. } if (*offset < HOME_BYTES) == home,
            )
        };
        self.pending.extract_if(.., of_part).for_each(|event| event.apply(&self.base).unwrap());
    }

    fn image(&self, mut keep: impl FnMut() -> bool, sector: u64) -> MemDevice {
        let image = MemDevice::from_bytes(&self.base.to_vec());
        for event in &self.pending {
            event
                .split(sector)
                .iter()
                .filter(|_| keep())
                .for_each(|piece| piece.apply(&image).unwrap());
        }
        image
    }
}

fn check(story: &Story, image: Vec<u8>, features: Features, seed: u64) {
    let mut rng = Rng::new(seed);
    let events = story.recorder.log();
    let first = *story.states.keys().next().unwrap();
    let mut cuts =
        Cuts { base: MemDevice::from_bytes(&image), pending: Vec::new(), durable: first };
    for (count, event) in events.iter().enumerate() {
        cuts.step(event);
        let all = cuts.image(|| true, 1 << 20);
        let some =
            cuts.image(|| rng.one_in(2), if features.checksums { 512 } else { BLOCK as u64 });
        let few = cuts.image(|| rng.one_in(5), BLOCK as u64);
        for image in [all, some, few] {
            let devices = Devices::of(Arc::new(image), story.place, None);
            let outcome =
                devices.recover().unwrap_or_else(|error| panic!("after {count} events: {error}"));
            let fits = story
                .states
                .range(cuts.durable..)
                .find(|(_, state)| matches(&*devices.home, state));
            let context = || {
                format!("seed {seed}, after {count} events, durable {}, {outcome:?}", cuts.durable)
            };
            assert!(fits.is_some(), "{}", context());
            if count % 16 == 0 {
                go_on(&devices, features, &context());
            }
        }
    }
}

/// Checks that the recovered image supports another session, a crash and a recovery.
fn go_on(devices: &Devices, features: Features, context: &str) {
    let bench = devices.bench(features);
    bench.set(HOME + 3, &content(1, 2));
    bench.journal.sync().unwrap();
    bench.journal.crash();
    let outcome = devices.recover().unwrap();
    assert_eq!((outcome.transactions, outcome.dropped), (1, None), "{context}");
    assert_eq!(block(&*devices.home, HOME + 3), content(1, 2), "{context}");
}

fn power_cuts(features: Features, place: Place, seed: u64) {
    let (mut story, image) = Story::new(features, place, seed);
    story.run(60);
    let stats = story.bench.journal.stats();
    assert!(stats.tail_moves > 1 && stats.revokes > 5 && stats.escapes > 5, "{stats:?}");
    check(&story, image, features, seed);
}

#[test]
fn without_checksums() {
    power_cuts(PLAIN, Place::Inside, 1);
    power_cuts(PLAIN, Place::Inside, 2);
}

#[test]
fn with_checksums() {
    power_cuts(SUMMED, Place::Inside, 3);
    power_cuts(SUMMED, Place::Inside, 4);
}

/// Transactions are written anew until their device has space for them.
#[test]
fn on_a_host_that_lacks_space_at_times() {
    for (features, seed) in [(PLAIN, 7), (SUMMED, 8), (SUMMED, 9)] {
        let image = Devices::format(features, Place::Inside).to_vec();
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&image)));
        let (rng, failed) = (Mutex::new(Rng::new(seed)), AtomicU32::new(0));
        let tight = Arc::new(Tight { medium: recorder.clone(), rng, failed });
        let devices = Devices::of(tight.clone(), Place::Inside, None);
        let mut story = Story::on(recorder, &devices, features, seed);
        story.run(60);
        assert!(tight.failed.load(Ordering::SeqCst) > 20);
        check(&story, image, features, seed);
    }
}

/// Data is flushed on its device before a commit record on another device refers to it, and copies
/// are flushed before the log drops them.
#[test]
fn with_a_log_on_a_device_of_its_own() {
    power_cuts(PLAIN, Place::Outside, 5);
    power_cuts(SUMMED, Place::Outside, 6);
}
