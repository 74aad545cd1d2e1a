//! Changes that take several transactions: found impossible before the first, and told halfway.

use crate::oracle::complaints;
use crate::switching::superblock;
use extant_blocks::{Fault, FaultDevice, MemDevice, Op};
use extant_check::tune::{JournalSize, Tune, TuneChanges, TuneError};
use extant_format::{Compat, RoCompat};
use extant_testkit::Image;
use extant_testkit::kernel::Mount;
use std::fs;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn changes(features: &str, journal: Option<u64>) -> TuneChanges {
    let journal_size = journal.map(JournalSize::Bytes);
    TuneChanges { features: Some(features.into()), journal_size, ..TuneChanges::default() }
}

/// The journal fits into the free blocks, the orphan file behind it does not.
#[test]
fn a_second_step_without_space_prevents_the_first() {
    let kind = ["-t", "ext4", "-b", "1024", "-m", "0", "-O", "^has_journal"];
    let image = Image::mke2fs(16 * MIB, &kind);
    let free = superblock(&image.bytes()).free_blocks_count();
    let mount = Mount::new(image.path(), "");
    fs::write(mount.join("file"), vec![1; (free as usize - 1024 - 24) << 10]).expect("space");
    mount.unmount();
    let before = image.bytes();
    let device = Arc::new(MemDevice::from_bytes(&before));
    Tune::new(device.clone()).apply(&changes("has_journal", Some(MIB))).expect("space");
    assert!(superblock(&device.to_vec()).free_blocks_count() < 24);
    let device = Arc::new(MemDevice::from_bytes(&before));
    let error = Tune::new(device.clone()).apply(&changes("has_journal,orphan_file", Some(MIB)));
    let error = error.expect_err("a lack of space");
    assert!(matches!(error, TuneError::NoSpace), "{error}");
    assert!(device.to_vec() == before, "refused, but written");
}

/// The device fails at each write: the error names the made part and the missing one.
#[test]
fn a_failure_between_two_steps_names_both() {
    type Kind = &'static [&'static str];
    const JOURNAL: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1"];
    const NONE: Kind = &["-t", "ext4", "-b", "1024", "-O", "^has_journal"];
    let cases = [
        (NONE, changes("has_journal,quota", Some(MIB)), "the new journal is made"),
        (JOURNAL, changes("quota", Some(2 * MIB)), "another length of the journal is made"),
        (JOURNAL, changes("quota,^has_journal", None), "features and values is made"),
    ];
    for (kind, changes, words) in cases {
        let image = Image::mke2fs(16 * MIB, kind);
        let before = image.bytes();
        let (mut told, mut made) = (0, false);
        for nr in 0.. {
            let memory = Arc::new(MemDevice::from_bytes(&before));
            let faulty = Arc::new(FaultDevice::new(memory.clone()));
            faulty.inject(Fault::new(Op::Write, nr));
            let done = Tune::new(faulty.clone()).apply(&changes);
            let after = superblock(&memory.to_vec()).features();
            if faulty.failed() == 0 {
                done.expect("a change");
                made = true;
                let image = Image::holding(&memory.to_vec());
                assert_eq!(complaints(image.path()), [""; 0]);
                break;
            }
            let error = done.expect_err("the device failed").to_string();
            let has_quota = after.ro_compat.contains(RoCompat::QUOTA);
            let is_told = error.contains(words);
            told += u64::from(is_told);
            // A step that is in the log is not told as one that is missing.
            let has_journal = after.compat.contains(Compat::HAS_JOURNAL);
            let halfway = match words {
                "the new journal is made" => has_journal && !has_quota,
                "features and values is made" => has_quota && !has_journal,
                _ => false,
            };
            if halfway
                && !error.contains("next recovery completes")
                && !error.contains("old journal")
            {
                assert!(is_told, "{nr}: {error}");
            }
        }
        assert!(made && told > 0, "{words}: {told}");
    }
}
