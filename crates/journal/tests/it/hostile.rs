//! Logs that no journal has written.

use crate::bench::*;
use extant_blocks::{BlockDevice, MemDevice};
use extant_format::jbd2::{BlockHeader, BlockType, JournalCompat, JournalIncompat};
use extant_journal::{FormatLog, LogExtent, format_log, recovery};
use proptest::prelude::*;
use std::sync::Arc;

/// Recovers an arbitrary log. The result does not matter, only that there is one.
fn survive(device: &Arc<dyn BlockDevice>) {
    let Ok(log) = log(device) else { return };
    if let Ok(replay) = recovery::scan(&log, BLOCKS) {
        let overlay = replay.overlay(Arc::clone(device));
        let mut all = vec![0; overlay.len() as usize];
        let _ = overlay.read_exact_at(&mut all, 0);
    }
    let _ = recover(device);
}

fn superblock(incompat: u32, start: u32, sequence: u32) -> MemDevice {
    let device = MemDevice::new(BLOCKS * BLOCK as u64);
    let mut how = FormatLog::new(BLOCK as u32, log_len());
    how.incompat = JournalIncompat::from_bits_retain(incompat);
    how.sequence = sequence;
    let mut superblock = how.superblock();
    superblock.set_start(start);
    superblock.set_compat(JournalCompat::from_bits_retain(incompat >> 7));
    device.write_all_at(&superblock.encode(), extents()[0].physical * BLOCK as u64).unwrap();
    device
}

fn put(device: &dyn BlockDevice, logical: u32, bytes: &[u8]) {
    let extent = extents().into_iter().rfind(|extent| extent.logical <= logical).unwrap();
    let nr = extent.physical + u64::from(logical - extent.logical);
    device.write_all_at(bytes, nr * BLOCK as u64).unwrap();
}

/// A block with a journal header and random contents.
fn journal_block() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        4 => Just(BlockType::Descriptor),
        3 => Just(BlockType::Commit),
        2 => Just(BlockType::Revoke),
        1 => any::<u32>().prop_map(BlockType::Other)
    ];
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), BLOCK),
        prop::collection::vec(0u8..2, BLOCK),
        any::<u8>().prop_map(|byte| vec![byte; BLOCK]),
    ];
    (kind, 5u32..8, bytes).prop_map(|(block_type, sequence, mut bytes)| {
        BlockHeader { block_type, sequence }.encode(&mut bytes);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_blocks(
        incompat in 0u32..256, start in 0u32..70,
        blocks in prop::collection::vec((1u32..56, journal_block()), 0..30),
    ) {
        let device = superblock(incompat, start, 5);
        for (logical, bytes) in blocks {
            put(&device, logical, &bytes);
        }
        survive(&shared(device));
    }

    #[test]
    fn flipped_bytes_of_a_real_log(
        checksums: bool,
        flips in prop::collection::vec((0u32..56, 0usize..BLOCK, 1u8..), 1..6),
    ) {
        let features = Features { checksums, ..SUMMED };
        let device = shared(format(features));
        let bench = Bench::open(&device, features);
        for round in 0..4 {
            for nr in 0..5 {
                bench.set(HOME + nr, &content(nr, round));
            }
            let mut handle = bench.journal.start(3).unwrap();
            handle.revoke(HOME + round, 1).unwrap();
            drop(handle);
            bench.journal.sync().unwrap();
        }
        bench.journal.crash();
        for (logical, byte, mask) in flips {
            let extent = extents().into_iter().rfind(|extent| extent.logical <= logical).unwrap();
            let block = extent.physical + u64::from(logical - extent.logical);
            let offset = block * BLOCK as u64 + byte as u64;
            let mut old = [0];
            device.read_exact_at(&mut old, offset).unwrap();
            device.write_all_at(&[old[0] ^ mask], offset).unwrap();
        }
        survive(&device);
    }

    #[test]
    fn random_superblocks(
        bytes in prop::collection::vec(any::<u8>(), 1012),
        fields in prop::collection::vec(0u32..80, 8),
    ) {
        let device = superblock(0, 1, 5);
        let mut block = FormatLog::new(BLOCK as u32, log_len()).block();
        block[12 + 80..].copy_from_slice(&bytes[80..]);
        for (index, field) in fields.iter().enumerate() {
            block[16 + 4 * index..][..4].copy_from_slice(&field.to_be_bytes());
        }
        put(&device, 0, &block);
        survive(&shared(device));
    }
}

#[test]
fn a_log_of_descriptors_alone_ends() {
    let device = superblock(0, 1, 5);
    let mut bytes = vec![0; BLOCK];
    BlockHeader { block_type: BlockType::Descriptor, sequence: 5 }.encode(&mut bytes);
    (1..log_len()).for_each(|logical| put(&device, logical, &bytes));
    let outcome = recover(&shared(device)).unwrap();
    assert_eq!((outcome.transactions, outcome.dropped), (0, Some(recovery::Dropped::Torn)));
}

#[test]
fn inconsistent_extents_are_refused() {
    let device = shared(format(PLAIN));
    for bad in [
        vec![],
        vec![LogExtent { logical: 0, physical: BLOCKS, len: 1 }],
        vec![LogExtent { logical: 0, physical: 40, len: u32::MAX }],
        vec![LogExtent { logical: 0, physical: 40, len: 20 }],
        vec![LogExtent { logical: 3, physical: 40, len: 20 }],
        // Blocks that are in the log twice, in adjacent runs and in others.
        [0, 56].map(|logical| LogExtent { logical, physical: 40, len: 56 }).to_vec(),
        vec![
            LogExtent { logical: 0, physical: 40, len: 56 },
            LogExtent { logical: 56, physical: 10, len: 5 },
            LogExtent { logical: 61, physical: 95, len: 1 },
        ],
    ] {
        let opened = extant_journal::Log::open(
            Arc::clone(&device),
            &bad,
            BLOCK as u32,
            extant_journal::LogPlace::Inside,
        );
        assert!(opened.is_err(), "{bad:?}");
    }
    assert!(format_log(&*device, &[], &FormatLog::new(1024, 10)).is_err());
}

/// The runs of an inode that maps two blocks repeatedly: the log would be longer than its device.
#[test]
fn a_log_that_maps_its_blocks_repeatedly_is_refused() {
    let device = superblock(0, 1, 5);
    let first = extents()[0].physical;
    let mut runs: Vec<LogExtent> = vec![LogExtent { logical: 0, physical: first, len: 1 }];
    runs.extend((0..100_000).map(|n| LogExtent {
        logical: 1 + n,
        physical: first + 1 + u64::from(n % 2),
        len: 1,
    }));
    let mut how = FormatLog::new(BLOCK as u32, 100_001);
    how.sequence = 5;
    let mut superblock = how.superblock();
    superblock.set_start(1);
    device.write_all_at(&superblock.encode(), first * BLOCK as u64).unwrap();
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let place = extant_journal::LogPlace::Inside;
    let error =
        extant_journal::Log::open(Arc::clone(&device), &runs, BLOCK as u32, place).unwrap_err();
    assert!(matches!(error, extant_journal::Error::Corrupt(_)), "{error}");
}
