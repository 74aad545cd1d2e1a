//! Recovery of logs with known contents.

use crate::bench::*;
use extant_blocks::{BlockDevice, MemDevice, RecordingDevice, replay};
use extant_format::jbd2::RevokeBuilder;
use extant_format::types::BlockNr;
use extant_journal::recovery::{self, Dropped};
use extant_journal::{Error, Journal};
use std::sync::Arc;

/// Makes an image with transactions that are only in the log.
fn crashed(features: Features, change: impl Fn(&Bench)) -> Arc<dyn BlockDevice> {
    let device = shared(format(features));
    let bench = Bench::open(&device, features);
    change(&bench);
    bench.journal.crash();
    device
}

fn three_transactions(bench: &Bench) {
    for round in 1..=3 {
        for nr in HOME..HOME + 2 + round {
            bench.set(nr, &content(nr, round));
        }
        bench.journal.sync().unwrap();
    }
}

#[test]
fn the_newest_copies_come_home() {
    for features in [PLAIN, SUMMED] {
        let device = crashed(features, three_transactions);
        assert!(matches!(Journal::open(config(&device, features)), Err(Error::NeedsRecovery)));
        assert_ne!(block(&*device, HOME), content(HOME, 3));
        let outcome = recover(&device).unwrap();
        assert_eq!((outcome.transactions, outcome.blocks, outcome.dropped), (3, 5, None));
        assert_eq!(outcome.end, outcome.first.wrapping_add(3));
        for nr in HOME..HOME + 5 {
            assert_eq!(block(&*device, nr), content(nr, 3));
        }
        assert_eq!(recover(&device).unwrap().transactions, 0);
        let bench = Bench::open(&device, features);
        assert!(bench.journal.running_tid().sequence().wrapping_sub(outcome.end) < 1 << 31);
        bench.journal.shutdown().unwrap();
    }
}

#[test]
fn an_overlay_shows_the_replayed_state() {
    let device = crashed(SUMMED, three_transactions);
    let before: Vec<Vec<u8>> = (0..BLOCKS).map(|nr| block(&*device, nr)).collect();
    let replay = recovery::scan(&log(&device).unwrap(), BLOCKS).unwrap();
    let overlay = replay.overlay(Arc::clone(&device));
    assert!(overlay.read_only() && overlay.write_all_at(&[0], 0).is_err());
    let mut all = vec![0; overlay.len() as usize];
    overlay.read_exact_at(&mut all, 0).unwrap();
    let mut odd = vec![0; 3000];
    overlay.read_exact_at(&mut odd, HOME * BLOCK as u64 - 700).unwrap();
    assert_eq!(odd, all[HOME as usize * BLOCK - 700..][..3000]);
    assert!(overlay.read_exact_at(&mut odd, overlay.len() - 10).is_err());
    assert!(
        (0..BLOCKS).all(|nr| block(&*device, nr) == before[nr as usize]),
        "nothing was written"
    );
    recover(&device).unwrap();
    for nr in HOME - 5..HOME + 20 {
        assert_eq!(all[nr as usize * BLOCK..][..BLOCK], block(&*device, nr));
    }
}

#[test]
fn revoked_blocks_are_left_alone() {
    for features in [PLAIN, SUMMED] {
        let device = crashed(features, |bench| {
            bench.set(HOME, &content(HOME, 1));
            bench.set(HOME + 1, &content(HOME + 1, 1));
            bench.set(HOME + 2, &content(HOME + 2, 1));
            bench.journal.sync().unwrap();
            let mut handle = bench.journal.start(5).unwrap();
            bench.set_in(&mut handle, HOME + 2, &content(HOME + 2, 2));
            handle.revoke(HOME, 3).unwrap();
            // Cancelled: metadata again in the same transaction.
            bench.cache.fresh(HOME + 1);
            bench.set_in(&mut handle, HOME + 1, &content(HOME + 1, 2));
            drop(handle);
            bench.journal.sync().unwrap();
            // Metadata again in a later one.
            bench.cache.fresh(HOME + 2);
            bench.set(HOME + 2, &content(HOME + 2, 3));
            bench.journal.sync().unwrap();
        });
        // The freed block now holds data of a file.
        device.write_all_at(&content(HOME, 77), HOME * BLOCK as u64).unwrap();
        let outcome = recover(&device).unwrap();
        assert_eq!((outcome.transactions, outcome.revoked), (3, 2));
        assert_eq!(block(&*device, HOME), content(HOME, 77));
        assert_eq!(block(&*device, HOME + 1), content(HOME + 1, 2));
        assert_eq!(block(&*device, HOME + 2), content(HOME + 2, 3));
    }
}

/// Returns the offset of the log's block `logical` on the device.
fn log_offset(logical: u32) -> u64 {
    let extent = extents().into_iter().rfind(|extent| extent.logical <= logical).unwrap();
    (extent.physical + u64::from(logical - extent.logical)) * BLOCK as u64
}

fn flip(device: &dyn BlockDevice, logical: u32, byte: u64) {
    let mut bytes = [0];
    device.read_exact_at(&mut bytes, log_offset(logical) + byte).unwrap();
    device.write_all_at(&[bytes[0] ^ 0x10], log_offset(logical) + byte).unwrap();
}

/// The log of `three_transactions` has descriptor 1, copies 2 to 4, commit 5; 6, 7 to 10, 11; 12,
/// 13 to 17, 18.
#[test]
fn damage_is_found_before_anything_is_written() {
    type Expected = Result<(u32, Option<Dropped>), ()>;
    let cases: [(u32, u64, Expected); 5] = [
        (6, 900, Err(())), // a descriptor, its commit record whole
        (8, 500, Err(())), // a copy
        (18, 700, Ok((2, Some(Dropped::CommitChecksum)))), // a commit record
        (11, 0, Ok((1, Some(Dropped::Torn)))), // a commit record's magic
        (6, 3, Ok((1, None))), // a descriptor's magic
    ];
    for (logical, byte, expected) in cases {
        let device = crashed(SUMMED, three_transactions);
        flip(&*device, logical, byte);
        let old = block(&*device, HOME);
        let found = recover(&device).map(|outcome| (outcome.transactions, outcome.dropped));
        assert_eq!(
            found.as_ref().map_err(|_| ()),
            expected.as_ref().map_err(|_| ()),
            "block {logical}: {found:?}"
        );
        if let Err(error) = found {
            assert!(matches!(error, Error::Corrupt(_)), "{error}");
            assert_eq!(block(&*device, HOME), old);
        }
    }
}

#[test]
fn tags_must_name_blocks_of_the_file_system() {
    let device = crashed(SUMMED, three_transactions);
    let scan = |blocks| recovery::scan(&log(&device).unwrap(), blocks);
    assert!(matches!(scan(HOME + 3), Err(Error::Corrupt(_))));
    assert!(scan(HOME + 5).is_ok());
    let device = crashed(SUMMED, |bench| {
        bench.set(41, &content(41, 1));
        bench.journal.sync().unwrap();
    });
    let error = recover(&device).unwrap_err();
    assert!(error.to_string().contains("block of the log"), "{error}");
}

/// No known program writes a copy and a revoke of one block in one transaction, since writing
/// cancels the revoke. Together they mean that the block was freed last.
#[test]
fn a_revoke_counts_for_its_own_transaction() {
    let device = shared(format(PLAIN));
    let bench = Bench::open(&device, PLAIN);
    bench.set(HOME, &content(HOME, 1));
    let mut handle = bench.journal.start(2).unwrap();
    bench.set_in(&mut handle, HOME + 1, &content(HOME + 1, 1));
    handle.revoke(HOME + 1, 1).unwrap();
    drop(handle);
    bench.journal.sync().unwrap();
    bench.journal.crash();
    // The revoke block is first in the log. Its only record is replaced by one for the logged
    // block.
    let log = log(&device).unwrap();
    let mut revoke = vec![0; BLOCK];
    let sequence = log.superblock().sequence();
    let mut builder = RevokeBuilder::new(&mut revoke, &log.superblock().format(), sequence);
    assert!(builder.push(BlockNr(HOME)));
    builder.finish();
    device.write_all_at(&revoke, log_offset(1)).unwrap();
    assert_eq!(recover(&device).unwrap().revoked, 1);
    assert_ne!(block(&*device, HOME), content(HOME, 1));
}

#[test]
fn recovery_can_be_interrupted_anywhere() {
    let device = crashed(SUMMED, three_transactions);
    let image: Vec<u8> = (0..BLOCKS).flat_map(|nr| block(&*device, nr)).collect();
    let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&image)));
    let recorded: Arc<dyn BlockDevice> = recorder.clone();
    recover(&recorded).unwrap();
    let events = recorder.log();
    assert!(events.len() >= 4);
    let whole = recorder.inner().to_vec();
    for cut in 0..=events.len() {
        let partly = MemDevice::from_bytes(&image);
        replay(&events[..cut], &partly).unwrap();
        let partly = shared(partly);
        recover(&partly).unwrap();
        let again: Vec<u8> = (0..BLOCKS).flat_map(|nr| block(&*partly, nr)).collect();
        assert!(again == whole, "cut after {cut} events");
    }
}
