//! Synthetic logs: blocks of all kinds. The input determines the share of valid sequences, tags and
//! checksums, so that recovery reaches later blocks.

use crate::records::{self, CREATE, Record};
use extant_blocks::{BlockDevice, Cache, MemDevice};
use extant_format::jbd2::{
    BlockHeader, BlockType, CommitBlock, DescriptorBuilder, JournalCompat, JournalFormat,
    JournalIncompat, RevokeBuilder, Tag, TagFlags, escape, needs_escape,
};
use extant_format::types::{BlockNr, Timestamp};
use extant_journal::recovery::Replay;
use extant_journal::{
    Config, FormatLog, Journal, Log, LogExtent, LogFeatures, LogPlace, Seal, recovery,
};
use extant_testkit::rng::Rng;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 1024;
const BLOCKS: u64 = 200;

/// Blocks before the log that a log may write to.
const HOME: u64 = 60;

/// The log has two extents. One with an area of fast commits has a third, since such logs are never
/// short.
const EXTENTS: [LogExtent; 3] = [
    LogExtent { logical: 0, physical: 160, len: 30 },
    LogExtent { logical: 30, physical: 100, len: 34 },
    LogExtent { logical: 64, physical: BLOCKS, len: LONG_LOG - LOG },
];

const LOG: u32 = 64;

const LONG_LOG: u32 = 1060;

/// The sequence of the first transaction; small differences wrap around.
const FIRST: u32 = u32::MAX - 2;

fn place(logical: u32) -> u64 {
    let extent =
        EXTENTS.iter().rfind(|extent| extent.logical <= logical).expect("a block of the log");
    (extent.physical + u64::from(logical - extent.logical)) * BLOCK as u64
}

fn open(device: &Arc<dyn BlockDevice>) -> extant_journal::Result<Log> {
    let pieces = if device.len() > BLOCKS * BLOCK as u64 { &EXTENTS[..] } else { &EXTENTS[..2] };
    Log::open(Arc::clone(device), pieces, BLOCK as u32, LogPlace::Inside)
}

fn bytes(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_exact_at(&mut bytes, 0).expect("memory can be read");
    bytes
}

/// A log under construction.
struct Maker<'a> {
    rng: &'a mut Rng,
    device: &'a MemDevice,
    format: JournalFormat,
    at: u32,
    first: u32,
    end: u32,
    sequence: u32,
    crc: u32,
    /// Blocks of the area of fast commits, and the records to lie there.
    area: Range<u32>,
    records: Vec<Record>,
    /// Difference between the sequence of the fast commits and the valid one.
    off: u32,
}

impl Maker<'_> {
    fn put(&mut self, block: &[u8]) {
        self.device.write_all_at(block, place(self.at)).expect("memory takes writes");
        self.at = if self.at + 1 >= self.end { self.first } else { self.at + 1 };
    }

    /// Returns the transaction's sequence, or one nearby.
    fn some_sequence(&mut self) -> u32 {
        match self.rng.below(16) {
            0 => self.sequence.wrapping_add(1),
            1 => self.sequence.wrapping_sub(1),
            2 => self.rng.next_u64() as u32,
            _ => self.sequence,
        }
    }

    fn some_block(&mut self) -> u64 {
        match self.rng.below(16) {
            0 => self.rng.below(BLOCKS + 10),
            1 => self.rng.next_u64(),
            _ => self.rng.below(HOME),
        }
    }

    /// Decides whether to seal a block: sometimes a checksum is left out.
    fn seals(&mut self) -> bool {
        self.rng.below(16) != 0
    }

    fn descriptor(&mut self) {
        let sequence = self.some_sequence();
        let mut block = vec![0; BLOCK];
        let mut copies = Vec::new();
        let format = self.format;
        let mut builder = DescriptorBuilder::new(&mut block, &format, sequence);
        for _ in 0..self.rng.below(6) {
            let mut copy = vec![self.rng.below(256) as u8; BLOCK];
            if self.rng.below(8) == 0 {
                copy[..4].copy_from_slice(&extant_format::jbd2::JBD2_MAGIC.to_be_bytes());
            }
            let escaped = needs_escape(&copy) && self.rng.below(8) != 0;
            if escaped {
                escape(&mut copy);
            }
            let checksum = if self.seals() { format.tag_checksum(sequence, &copy) } else { 5 };
            let mut flags = if escaped { TagFlags::ESCAPE } else { TagFlags::empty() };
            if self.rng.below(32) == 0 {
                flags |= TagFlags::from_bits_retain(self.rng.below(65_536) as u16);
            }
            if !builder.push(Tag { block: BlockNr(self.some_block()), flags, checksum }) {
                break;
            }
            copies.push(copy);
        }
        builder.finish();
        self.spoil(&mut block);
        self.crc = extant_format::checksum::crc32_be(self.crc, &block);
        self.put(&block);
        for copy in copies {
            self.crc = extant_format::checksum::crc32_be(self.crc, &copy);
            self.put(&copy);
        }
    }

    fn revoke(&mut self) {
        let sequence = self.some_sequence();
        let mut block = vec![0; BLOCK];
        let format = self.format;
        let mut builder = RevokeBuilder::new(&mut block, &format, sequence);
        for _ in 0..self.rng.below(8) {
            if !builder.push(BlockNr(self.some_block())) {
                break;
            }
        }
        builder.finish();
        self.spoil(&mut block);
        self.put(&block);
    }

    fn commit(&mut self) {
        let sequence = self.some_sequence();
        let mut block = vec![0; BLOCK];
        let time = Timestamp::new(1000 + self.rng.below(4) as i64, 0);
        let crc = if self.seals() { self.crc } else { 1 };
        CommitBlock { sequence, time }.encode(&mut block, &self.format, crc);
        self.spoil(&mut block);
        self.put(&block);
        self.crc = u32::MAX;
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Writes a log block with random fields.
    fn nonsense(&mut self) {
        let kinds =
            [BlockType::Descriptor, BlockType::Commit, BlockType::Revoke, BlockType::Other(9)];
        let block_type = *self.rng.pick(&kinds);
        let sequence = self.some_sequence();
        let fill = self.rng.below(256) as u8;
        let mut block = vec![fill; BLOCK];
        for _ in 0..self.rng.below(16) {
            let at = self.rng.below(64) as usize * 4;
            let word = self.rng.next_u64() as u32;
            block[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        BlockHeader { block_type, sequence }.encode(&mut block);
        if self.seals() {
            self.format.seal_tail(&mut block);
        }
        self.put(&block);
    }

    /// Adds a record of fast commits with a kind, a length and bytes. Only the file system
    /// interprets its content.
    fn fast_record(&mut self) {
        if self.records.is_empty() {
            self.off = [1, u32::MAX].get(self.rng.below(16) as usize).copied().unwrap_or(0);
        }
        let ino = self.rng.below(20) as u32;
        let record = match self.rng.below(8) {
            0..3 => Record::tail(),
            3 => Record::head(self.some_sequence()),
            4 => Record::name(CREATE, 2, ino, &"n".repeat(self.rng.below(300) as usize)),
            5 => Record::inode(ino, &vec![ino as u8; 100 + 4 * self.rng.below(256) as usize]),
            6 => Record::del_range(ino, 3..9),
            _ => {
                let kind = self.rng.below(12) as u16;
                let len = self.rng.below(40) as usize;
                Record { kind, value: self.rng.bytes(len) }
            }
        };
        self.records.push(record);
    }

    /// Writes the records after a head, mostly for the next transaction.
    fn fast_commits(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let tid = self.sequence.wrapping_add(self.off);
        let whole: Vec<Record> =
            [Record::head(tid)].into_iter().chain(std::mem::take(&mut self.records)).collect();
        let mut blocks = vec![vec![0; BLOCK]; self.area.len()];
        records::write(&whole, tid, blocks.iter_mut().map(|block| &mut block[..]));
        for (at, mut block) in self.area.clone().zip(blocks) {
            if self.rng.left() > 0 {
                self.spoil(&mut block);
            }
            self.device.write_all_at(&block, place(at)).expect("memory takes writes");
        }
    }

    /// Changes a few bytes of a block, and mostly recomputes its checksum afterwards.
    fn spoil(&mut self, block: &mut [u8]) {
        if self.rng.below(8) != 0 {
            return;
        }
        for _ in 0..self.rng.below(4) + 1 {
            let at = self.rng.below(128) as usize;
            block[at] = self.rng.below(256) as u8;
        }
        if self.seals() {
            self.format.seal_tail(block);
        }
    }

    fn superblock(&mut self) {
        let mut how = FormatLog::new(BLOCK as u32, LOG);
        how.uuid = [7; 16];
        how.incompat = JournalIncompat::from_bits_retain(self.rng.below(64) as u32);
        how.sequence = FIRST;
        how.fast_commit_blocks = if self.rng.below(4) == 0 { self.rng.below(20) as u32 } else { 0 };
        if how.fast_commit_blocks > 0 && how.incompat.contains(JournalIncompat::FAST_COMMIT) {
            how.blocks = LONG_LOG;
            self.device
                .set_len((BLOCKS + u64::from(LONG_LOG - LOG)) * BLOCK as u64)
                .expect("memory grows");
        }
        let mut sb = how.superblock();
        sb.set_start(if self.rng.below(16) == 0 {
            self.rng.below(80) as u32
        } else {
            1 + self.rng.below(63) as u32
        });
        sb.set_compat(JournalCompat::from_bits_retain(self.rng.below(2) as u32));
        self.format = sb.format();
        (self.at, self.first, self.end) = (sb.start(), sb.first(), sb.log_end());
        self.area = sb.fast_commit_area().filter(|area| area.end <= LONG_LOG).unwrap_or(0..0);
        let mut block = vec![0; BLOCK];
        let sealed = sb.seal();
        block[..sealed.len()].copy_from_slice(&sealed);
        if self.rng.below(16) == 0 {
            let at = self.rng.below(80) as usize * 4;
            let word = self.rng.next_u64() as u32;
            block[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        self.device.write_all_at(&block, place(0)).expect("memory takes writes");
        let inside = (self.first..self.end).contains(&self.at) && self.end <= how.blocks;
        if !inside {
            (self.at, self.first, self.end) = (1, 1, LOG);
        }
    }
}

fn make(input: &[u8]) -> MemDevice {
    let device = MemDevice::new(BLOCKS * BLOCK as u64);
    let mut rng = Rng::laid_down(input);
    let format = FormatLog::new(BLOCK as u32, LOG).superblock().format();
    let (rng, device_of) = (&mut rng, &device);
    let mut maker = Maker {
        rng,
        device: device_of,
        format,
        at: 1,
        first: 1,
        end: LOG,
        sequence: FIRST,
        crc: u32::MAX,
        area: 0..0,
        records: Vec::new(),
        off: 0,
    };
    maker.superblock();
    for _ in 0..LOG {
        if maker.rng.left() == 0 {
            break;
        }
        // The last choices are records, if the log has an area for fast commits.
        let choice = maker.rng.below(256);
        match choice % 16 {
            _ if choice >= 192 && !maker.area.is_empty() => maker.fast_record(),
            0..7 => maker.descriptor(),
            7..10 => maker.revoke(),
            10..15 => maker.commit(),
            _ => maker.nonsense(),
        }
    }
    maker.fast_commits();
    device
}

/// Bytes outside the log.
fn homes(bytes: &[u8]) -> Vec<&[u8]> {
    let of_log =
        |nr: u64| EXTENTS.iter().any(|e| (e.physical..e.physical + u64::from(e.len)).contains(&nr));
    bytes
        .chunks(BLOCK)
        .enumerate()
        .filter(|(nr, _)| !of_log(*nr as u64))
        .map(|(_, block)| block)
        .collect()
}

/// Commits to a recovered log, and checks that another recovery replays the commits.
fn go_on(device: &Arc<dyn BlockDevice>, log: Log) {
    let cache = Cache::new(Arc::clone(device), BLOCK, 1 << 20);
    let mut config = Config::new(Arc::clone(&cache), Some(log));
    config.features = LogFeatures { checksums: Some(true), bit64: true };
    config.commit_interval = Duration::from_secs(1000);
    let Ok(journal) = Journal::open(config) else { return };
    for round in 0..3 {
        let Ok(mut handle) = journal.start(2) else { return };
        for nr in [1, 2 + round] {
            let buffer =
                cache.read(nr, |_| Ok::<_, std::io::Error>(())).expect("memory can be read");
            handle.write(&buffer, Seal::NONE).expect("credits are enough").fill(200 + round as u8);
        }
        drop(handle);
        if journal.sync().is_err() {
            return;
        }
    }
    journal.crash();
    let again = open(device).expect("a log that a journal wrote");
    // Blocks of the input after the log's end may look like the next transaction, damaged or not.
    let Ok((_, outcome)) = recovery::recover(again, &**device, BLOCKS) else { return };
    if outcome.transactions > 3 {
        return;
    }
    let after = bytes(&**device);
    assert_eq!(
        [1, 2, 3, 4].map(|nr| after[nr * BLOCK + 9]),
        [202, 200, 201, 202],
        "the committed blocks are there"
    );
}

fn fast_records(replay: &Replay) -> String {
    let count = replay.fast_commits().iter().count();
    assert_eq!((count, count as u64), (replay.fast_commits().len(), replay.outcome().fast_records));
    replay.fast_commits().iter().map(|record| format!("{record:?}\n")).collect()
}

/// Checks that fast commits survive the checkpoint of full ones, also after a power cut, until a
/// full commit replaces them.
fn commit_fast(device: &Arc<dyn BlockDevice>, replay: Replay) {
    let before = fast_records(&replay);
    if replay.apply_full(&**device).is_err() {
        return;
    }
    let again = recovery::scan(&open(device).expect("a log with fast commits"), BLOCKS)
        .expect("fast commits alone");
    assert_eq!(
        (again.outcome().transactions, fast_records(&again)),
        (0, before),
        "fast commits stay"
    );
    let blocks: [(u64, Arc<[u8]>); 2] = [5, 6].map(|nr| (nr, vec![nr as u8; BLOCK].into()));
    let Ok(log) = again.append(&blocks, Timestamp::new(1, 0)) else { return };
    // Blocks of the input after the log's end may look like the next transaction, and may be
    // damaged.
    let Ok(replay) = recovery::scan(&log, BLOCKS) else { return };
    assert!(
        replay.outcome().transactions > 0 && replay.fast_commits().is_empty(),
        "a full commit takes their place"
    );
    let Ok((log, outcome)) = recovery::recover(log, &**device, BLOCKS) else { return };
    let after = bytes(&**device);
    assert!(
        outcome.transactions > 1 || [5, 6].map(|nr| after[nr * BLOCK + 9]) == [5, 6],
        "the committed blocks are there"
    );
    go_on(device, log);
}

/// Builds a log from the input and recovers it, read-only and on the device. Both must give the
/// same home blocks, and a second recovery must have nothing to do.
///
/// # Panics
/// If recovery panics, or its results contradict each other.
pub fn run(input: &[u8]) {
    let made = make(input);
    let before = bytes(&made);
    let device: Arc<dyn BlockDevice> = Arc::new(made);
    let Ok(log) = open(&device) else { return };
    let Ok(replay) = recovery::scan(&log, BLOCKS) else { return };
    let has_fast = !fast_records(&replay).is_empty();
    let readers = bytes(&*replay.overlay(Arc::clone(&device)));
    assert_eq!(bytes(&*device), before, "readers write nothing");
    if has_fast {
        let refused = recovery::recover(log.clone(), &*device, BLOCKS);
        assert!(
            refused.is_err() && bytes(&*device) == before,
            "fast commits are their file system's to replay"
        );
        let Ok(replay) = recovery::scan(&log, BLOCKS) else { return };
        return commit_fast(&device, replay);
    }
    let Ok((log, outcome)) = recovery::recover(log, &*device, BLOCKS) else { return };
    let writers = bytes(&*device);
    if !outcome.fast_commit {
        assert!(
            homes(&readers) == homes(&writers),
            "readers and writers see the same: {outcome:?}"
        );
    }
    let again = open(&device).expect("a recovered log");
    let (_, second) = recovery::recover(again, &*device, BLOCKS).expect("a recovered log");
    assert_eq!(second.blocks, 0, "a recovered log is empty: {second:?}");
    assert!(homes(&bytes(&*device)) == homes(&writers), "the second recovery changes nothing");
    go_on(&device, log);
}
