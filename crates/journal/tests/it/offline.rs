//! Changes of offline file systems: at every power cut, all of them or none.

use crate::kernel::open_device;
use extant_blocks::{BlockDevice, Event, Fault, FaultDevice, MemDevice, Op, RecordingDevice};
use extant_format::jbd2::JournalIncompat;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use extant_format::types::Timestamp;
use extant_journal::offline::{ChangedBlock, OfflineChanges, OfflineError, check_fit};
use extant_journal::{Error, Log, LogExtent, LogPlace, recovery};
use extant_testkit::cuts::each_cut;
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::kernel::Mount;
use extant_testkit::{dumpe2fs, e2fsck};
use std::sync::Arc;

const LABEL: &str = "changed";

/// New contents of free blocks, one of which looks like a block of a log, and a new label.
fn changes(image: &[u8], block_size: usize) -> Vec<ChangedBlock> {
    let holder = SUPERBLOCK_OFFSET as usize / block_size;
    let mut block = image[holder * block_size..][..block_size].to_vec();
    let within = SUPERBLOCK_OFFSET as usize % block_size;
    let mut sb = Superblock::parse(&block[within..within + SUPERBLOCK_SIZE]).unwrap();
    sb.set_volume_name(LABEL.as_bytes());
    block[within..within + SUPERBLOCK_SIZE].copy_from_slice(&sb.seal());
    let last = (image.len() / block_size) as u64 - 1;
    let mut magic = vec![0; block_size];
    magic[..4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
    let content = |n: u64| (last - 4 + n, Arc::from(vec![n as u8 + 1; block_size]));
    let mut changes = vec![(holder as u64, Arc::from(block))];
    changes.extend((0..4).map(content));
    changes.push((last, magic.into()));
    changes
}

fn commit(device: &Arc<dyn BlockDevice>, changes: &[ChangedBlock]) -> Result<(), OfflineError> {
    let fs = open_device(device.clone());
    let time = Timestamp::default();
    OfflineChanges { device: &**device, blocks: changes, time }.commit(&fs.log)
}

/// Returns whether all blocks are new (`true`) or old (`false`).
fn is_new(image: &[u8], before: &[u8], changes: &[ChangedBlock]) -> bool {
    let label = Superblock::parse(&image[1024..2048]).unwrap().volume_name() == LABEL;
    for (nr, bytes) in &changes[1..] {
        let at = *nr as usize * bytes.len();
        let expected = if label { &bytes[..] } else { &before[at..at + bytes.len()] };
        assert!(image[at..at + bytes.len()] == *expected, "block {nr}: old and new are mixed");
    }
    label
}

/// Recovers a state of an image by a program.
type Recover = fn(&[u8]) -> Vec<u8>;

fn by_extant(image: &[u8]) -> Vec<u8> {
    let device = Arc::new(MemDevice::from_bytes(image));
    let fs = open_device(device.clone());
    recovery::recover(fs.log, &*device, fs.blocks).unwrap();
    device.to_vec()
}

fn by_e2fsck(image: &[u8]) -> Vec<u8> {
    let image = Image::holding(image);
    e2fsck::recover(image.path()).assert_clean();
    image.bytes()
}

fn by_the_kernel(image: &[u8]) -> Vec<u8> {
    let image = Image::holding(image);
    Mount::new(image.path(), "").unmount();
    image.bytes()
}

fn sweep(set: &str, recover: &[Recover]) {
    let image = FeatureSet::named(set).make_sized(8 << 20);
    let before = image.bytes();
    let changes = changes(&before, dumpe2fs::header(image.path()).number("Block size") as usize);
    let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
    let device: Arc<dyn BlockDevice> = recorder.clone();
    commit(&device, &changes).unwrap();
    assert!(is_new(&recorder.inner().to_vec(), &before, &changes), "{set}");
    let after = Image::holding(&recorder.inner().to_vec());
    e2fsck::check(after.path()).assert_clean();
    let (mut old, mut new) = (0, 0);
    let events: Vec<Event> = recorder.log();
    each_cut(&before, &events, &mut |cut, state| {
        for recover in recover {
            let is_new = is_new(&recover(&state), &before, &changes);
            assert!(cut < events.len() || is_new, "{set}: a completed change is lost");
            assert!(cut > 1 || !is_new);
            *(if is_new { &mut new } else { &mut old }) += 1;
        }
    });
    assert!(old > 0 && new > 0, "{set}: {old} old, {new} new");
}

#[test]
fn a_cut_change_is_whole_or_absent_after_each_recovery() {
    sweep("default", &[by_extant, by_e2fsck, by_the_kernel]);
    sweep("1k", &[by_extant, by_e2fsck, by_the_kernel]);
}

#[test]
fn a_cut_change_is_whole_or_absent_in_other_logs() {
    for set in ["no_csum", "ext3", "ext3_1k", "2k", "no_64bit"] {
        sweep(set, &[by_extant, by_e2fsck]);
    }
}

/// Changes that do not fit, or of the log itself, are refused before the first write.
#[test]
fn changes_that_the_log_cannot_take_are_refused() {
    let image = FeatureSet::named("default").make_sized(8 << 20);
    let before = image.bytes();
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(&before));
    let fs = open_device(device.clone());
    let block = |nr: u64| (nr, Arc::from(vec![1; 4096]));
    let many: Vec<ChangedBlock> = (0..1 << 16).map(block).collect();
    let refused = commit(&device, &many).unwrap_err();
    assert!(matches!(refused, OfflineError::Unchanged(Error::NoCredits { .. })), "{refused}");
    let own = [block(fs.journal)];
    assert!(matches!(commit(&device, &own), Err(OfflineError::Unchanged(_))));
    let short = [(9, Arc::from(vec![1; 512]))];
    assert!(matches!(commit(&device, &short), Err(OfflineError::Unchanged(_))));
    let mut bytes = vec![0; before.len()];
    device.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == before, "a refusal wrote");
}

/// The log of a superblock for so many blocks takes them, and a much shorter one does not.
#[test]
fn a_superblock_for_changes_has_their_length() {
    for set in ["default", "1k", "ext3_1k", "no_64bit", "fast_commit"] {
        let image = FeatureSet::named(set).make();
        let before = image.bytes();
        let size = dumpe2fs::header(image.path()).number("Block size") as usize;
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(&before));
        let mut old = open_device(device.clone());
        if set == "fast_commit" {
            // The kernel sets it at the first mount.
            let mut superblock = old.log.superblock().clone();
            superblock.set_incompat(superblock.incompat() | JournalIncompat::FAST_COMMIT);
            let at = old.journal * size as u64;
            device.write_all_at(&superblock.encode(), at).unwrap();
            old = open_device(device.clone());
        }
        let old = old.log;
        // In the second half of the image, which is empty.
        let start = (before.len() / size / 2) as u64;
        for blocks in [1, 1000, 1023, 1024, 3000, 5555] {
            let wanted = old.superblock_for(blocks).unwrap();
            let beside = wanted.fast_commit_blocks();
            assert_eq!(beside > 0, set == "fast_commit", "{set}");
            let open = |len: u32| {
                let mut superblock = wanted.clone();
                superblock.set_max_len(len);
                device.write_all_at(&superblock.encode(), start * size as u64).unwrap();
                let extents = [LogExtent { logical: 0, physical: start, len }];
                Log::open(device.clone(), &extents, size as u32, LogPlace::Inside).unwrap()
            };
            let len = wanted.max_len();
            assert!(check_fit(&open(len), blocks).is_ok(), "{set}: {blocks} in {len}");
            let is_least = len == 1024 + beside || check_fit(&open(len - 30), blocks).is_err();
            assert!(is_least, "{set}: {blocks} in {len} less 30");
        }
        assert!(old.superblock_for(usize::MAX >> 8).is_err());
    }
}

/// Each write and each flush fails in its turn. "Unchanged" is true to the byte, outside of the
/// log; otherwise a recovery decides.
#[test]
fn a_failed_change_says_in_which_state_it_left_the_image() {
    let image = FeatureSet::named("default").make_sized(8 << 20);
    let before = image.bytes();
    let changes = changes(&before, 4096);
    let (mut unchanged, mut in_log) = (0, 0);
    for op in [Op::Write, Op::Flush] {
        for nth in 0.. {
            let faulty = Arc::new(FaultDevice::new(MemDevice::from_bytes(&before)));
            faulty.inject(Fault::new(op, nth));
            let device: Arc<dyn BlockDevice> = faulty.clone();
            let Err(error) = commit(&device, &changes) else { break };
            faulty.heal();
            let now = faulty.inner().to_vec();
            match error {
                OfflineError::Unchanged(_) => {
                    unchanged += 1;
                    assert!(!is_new(&now, &before, &changes));
                    assert!(now[..4096] == before[..4096], "{op:?} {nth}: the mark stays");
                }
                OfflineError::InLog(_) => in_log += 1,
            }
            is_new(&by_extant(&now), &before, &changes);
        }
    }
    assert!(unchanged > 3 && in_log > 3, "{unchanged} unchanged, {in_log} in the log");
}
