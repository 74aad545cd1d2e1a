//! A minimal file system without files: a log, and blocks with contents known to the tests.

use extant_blocks::{BlockDevice, Cache, MemDevice};
use extant_journal::{
    Config, FormatLog, Journal, Log, LogExtent, LogFeatures, LogPlace, format_log, recovery,
};
use std::sync::Arc;
use std::time::Duration;

pub const BLOCK: usize = 1024;
pub const BLOCKS: u64 = 256;
/// The first block that tests may use.
pub const HOME: u64 = 100;

/// The log's blocks are in two extents, so that the mapping is tested.
pub fn extents() -> [LogExtent; 2] {
    [
        LogExtent { logical: 0, physical: 40, len: 21 },
        LogExtent { logical: 21, physical: 2, len: 35 },
    ]
}

/// Returns the number of blocks in the extents.
pub fn log_len() -> u32 {
    extents().iter().map(|extent| extent.len).sum()
}

/// The format of the log.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    pub checksums: bool,
    pub bit64: bool,
    /// The first sequence.
    pub sequence: u32,
}

pub const PLAIN: Features = Features { checksums: false, bit64: false, sequence: 1 };
pub const SUMMED: Features = Features { checksums: true, bit64: true, sequence: u32::MAX - 20 };

/// Makes an image with an empty log.
pub fn format(features: Features) -> MemDevice {
    let device = MemDevice::new(BLOCKS * BLOCK as u64);
    let mut how = FormatLog::new(BLOCK as u32, log_len());
    how.uuid = [7; 16];
    how.sequence = features.sequence;
    format_log(&device, &extents(), &how).unwrap();
    device
}

pub fn log(device: &Arc<dyn BlockDevice>) -> extant_journal::Result<Log> {
    Log::open(Arc::clone(device), &extents(), BLOCK as u32, LogPlace::Inside)
}

pub fn config(device: &Arc<dyn BlockDevice>, features: Features) -> Config {
    config_with(device, log(device).unwrap(), features)
}

pub fn config_with(home: &Arc<dyn BlockDevice>, log: Log, features: Features) -> Config {
    let cache = Cache::new(Arc::clone(home), BLOCK, 1 << 20);
    let mut config = Config::new(cache, Some(log));
    config.features = LogFeatures { checksums: Some(features.checksums), bit64: features.bit64 };
    config.commit_interval = Duration::from_secs(1000);
    config
}

pub struct Bench {
    pub cache: Arc<Cache>,
    pub journal: Arc<Journal>,
}

impl Bench {
    /// Opens a journal on a device whose log is empty.
    pub fn open(device: &Arc<dyn BlockDevice>, features: Features) -> Bench {
        Bench::of(config(device, features))
    }

    pub fn of(config: Config) -> Bench {
        Bench { cache: Arc::clone(&config.cache), journal: Journal::open(config).unwrap() }
    }

    /// Opens a journal without a log.
    pub fn open_without_log(device: &Arc<dyn BlockDevice>) -> Bench {
        let cache = Cache::new(Arc::clone(device), BLOCK, 1 << 20);
        let mut config = Config::new(Arc::clone(&cache), None);
        config.commit_interval = Duration::from_secs(1000);
        Bench { cache, journal: Journal::open(config).unwrap() }
    }

    /// Fills a block in a handle of its own.
    pub fn set(&self, nr: u64, bytes: &[u8]) -> extant_journal::Tid {
        let mut handle = self.journal.start(1).unwrap();
        self.set_in(&mut handle, nr, bytes);
        handle.tid()
    }

    pub fn set_in(&self, handle: &mut extant_journal::Handle<'_>, nr: u64, bytes: &[u8]) {
        let buffer = self.cache.read(nr, |_| Ok::<_, std::io::Error>(())).unwrap();
        handle.write(&buffer, extant_journal::Seal::NONE).unwrap().copy_from_slice(bytes);
    }
}

/// Returns contents that identify the block and the version. Those of every fifth version need
/// escaping.
pub fn content(nr: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![(nr ^ (version * 31)) as u8; BLOCK];
    bytes[8..16].copy_from_slice(&nr.to_le_bytes());
    bytes[16..24].copy_from_slice(&version.to_le_bytes());
    if version.is_multiple_of(5) {
        bytes[..4].copy_from_slice(&extant_format::jbd2::JBD2_MAGIC.to_be_bytes());
    }
    bytes
}

pub fn block(device: &dyn BlockDevice, nr: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    device.read_exact_at(&mut bytes, nr * BLOCK as u64).unwrap();
    bytes
}

/// Recovers an image.
pub fn recover(device: &Arc<dyn BlockDevice>) -> extant_journal::Result<recovery::Outcome> {
    recovery::recover(log(device)?, &**device, BLOCKS).map(|(_, outcome)| outcome)
}

pub fn shared(device: MemDevice) -> Arc<dyn BlockDevice> {
    Arc::new(device)
}
