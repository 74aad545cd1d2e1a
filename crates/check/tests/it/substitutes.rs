//! Copies in place of a damaged superblock and damaged descriptors.

use crate::oracle::{Agreement, check, compare, damages};
use extant_blocks::{BlockDevice, Fault, FaultDevice, MemDevice, Op};
use extant_check::Substitutes;
use extant_engine::Fs;
use extant_format::{GroupNr, Superblock};
use extant_hostile::seeds::{Seed, options};
use extant_testkit::tree::Manifest;
use extant_testkit::{FeatureSet, Image};
use std::ops::Range;
use std::sync::Arc;

const SUPERBLOCK: Range<usize> = 1024..2048;

/// The copy of group 1 in blocks of 1 KiB and of 4 KiB, and that of group 3 in blocks of 1 KiB.
const FIRST_1K: usize = 8193 << 10;
const FIRST_4K: usize = 32768 << 12;
const SECOND_1K: usize = (3 * 8192 + 1) << 10;

fn made(mib: u64, args: &[&str]) -> Vec<u8> {
    let image = Image::mke2fs(mib << 20, args);
    image.leave_unjudged("its bytes are damaged");
    image.bytes()
}

fn copy_at(bytes: &[u8], at: usize) -> Superblock {
    Superblock::parse(&bytes[at..at + SUPERBLOCK.len()]).expect("a copy")
}

/// Puts the superblock copy of an earlier file system into bytes that the present one does not use.
fn plant(bytes: &mut [u8], at: usize, earlier: &[u8], made: i64) {
    let mut copy = copy_at(earlier, at);
    let place = &mut bytes[at..at + SUPERBLOCK.len()];
    assert!(place.iter().all(|byte| *byte == 0), "it is in use");
    copy.set_mkfs_time(copy.mkfs_time().saturating_add_signed(made));
    place.copy_from_slice(&copy.seal());
}

/// Opens with copies.
fn open(device: Arc<dyn BlockDevice>) -> Fs {
    let found = Substitutes::of(&device, None).expect("copies");
    assert!(!found.is_empty());
    Fs::open_device(found.device(), &options().read_only(true).allow_short(true)).expect("opens")
}

fn uuid(bytes: &[u8]) -> [u8; 16] {
    open(Arc::new(MemDevice::from_bytes(bytes))).superblock().uuid()
}

#[test]
fn copies_of_an_earlier_file_system_are_passed_over() {
    let other = "00112233-4455-6677-8899-aabbccddeeff";
    let earlier = made(40, &["-t", "ext4", "-b", "1024", "-U", other]);
    // In blocks of another size, both have all their copies.
    let mut present = made(160, &["-t", "ext4", "-b", "4096"]);
    let own = copy_at(&present, FIRST_4K).uuid();
    plant(&mut present, FIRST_1K, &earlier, -3600);
    let mut damaged = present.clone();
    damaged[SUPERBLOCK].fill(0xa5);
    assert_eq!(uuid(&damaged), own);
    // A wrong checksum alone brings no other file system, however late it was made.
    plant(&mut present, SECOND_1K, &earlier, 3600);
    present[SUPERBLOCK][120] ^= 1;
    assert_eq!(uuid(&present), own);
    // In blocks of the same size the shorter one lies over the first copies of the earlier one.
    let mut present = made(20, &["-t", "ext4", "-b", "1024"]);
    let own = copy_at(&present, FIRST_1K).uuid();
    present.resize(earlier.len(), 0);
    plant(&mut present, SECOND_1K, &earlier, 3600);
    present[SUPERBLOCK].fill(0xa5);
    assert_eq!(uuid(&present), own);
}

/// As after a change of the UUID that was interrupted.
#[test]
fn copies_that_contradict_each_other_are_used_all_the_same() {
    let mut bytes = made(40, &["-t", "ext4", "-b", "1024"]);
    let own = copy_at(&bytes, FIRST_1K).uuid();
    let mut other = copy_at(&bytes, SECOND_1K);
    other.set_uuid([7; 16]);
    bytes[SECOND_1K..][..SUPERBLOCK.len()].copy_from_slice(&other.seal());
    bytes[SUPERBLOCK].fill(0xa5);
    assert_eq!(uuid(&bytes), own);
}

#[test]
fn copies_replace_what_cannot_be_read() {
    for args in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext4", "-b", "4096"]] {
        let bytes = made(160, args);
        let plain = MemDevice::from_bytes(&bytes);
        let whole = Fs::open_device(Arc::new(plain), &options().read_only(true)).expect("opens");
        let expected = Manifest::read(&whole).expect("a tree");
        for unreadable in [0..2048, 0..5000] {
            let device = Arc::new(FaultDevice::new(MemDevice::from_bytes(&bytes)));
            device.inject(Fault::new(Op::Read, 0).from_then_on().within(unreadable));
            assert!(Manifest::read(&open(device.clone())).expect("a tree") == expected);
            assert_eq!(device.count(Op::Write), 0);
        }
    }
}

/// The damage of superblock and descriptors hides no other damage.
#[test]
fn a_check_goes_on_with_copies() {
    for crashed in [false, true] {
        let seed = Seed::make(FeatureSet::named("1k"), crashed);
        let (geometry, size) = (seed.atlas.geo, seed.atlas.geo.block_size as usize);
        let end = geometry.base_meta(GroupNr(0)).descriptors.end as usize * size;
        let mut bytes = seed.bytes.clone();
        bytes[..end].fill(0xa5);
        assert!(matches!(compare(&bytes), Ok(Agreement::Same { damaged: true })));
        let (found, summary) = check(&bytes, false, 1);
        assert_eq!(summary.fatal, 0, "{found:?}");
        let words = damages(&bytes, false);
        assert!(words[0].starts_with("superblock-replaced, magic"), "{words:?}");
        assert!(words[1].starts_with("descriptor-field, group 0"), "{words:?}");
        assert!(words.iter().all(|words| !words.contains("inode 1")), "{words:?}");
        let replayed = found.iter().any(|finding| finding.code.name() == "journal-replayed");
        assert_eq!(replayed, crashed, "{found:?}");
        // Damage of the root directory is found, too, where no log has another copy of it.
        if !crashed {
            let places: Vec<usize> = (0..bytes.len() - 11)
                .filter(|at| bytes[*at..at + 11] == *b"lost+found\0")
                .collect();
            places.into_iter().for_each(|at| bytes[at] = b'/');
            let more = damages(&bytes, false);
            assert!(more.iter().any(|words| words.contains("inode 2")), "{more:?}");
        }
    }
}
