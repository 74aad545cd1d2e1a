//! The list of bad blocks: devices that cannot read some, and the verdicts of e2fsck and the
//! kernel.

use crate::repairs::objection;
use extant_blocks::{BlockDevice, Fault, FaultDevice, MemDevice, Op};
use extant_check::repair::{BadBlocks, Repair, RepairError, RepairLevel, RepairPlan};
use extant_check::{Check, FindingCode, ReadTest};
use extant_testkit::tool::run;
use extant_testkit::{Image, debugfs};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const BLOCK: u64 = 1024;

type Faulty = Arc<FaultDevice<MemDevice>>;

/// An image with a file of 300 blocks, and with a directory of one.
fn image(args: &[&str]) -> Image {
    let image = Image::mke2fs(16 << 20, &[&["-b", "1024"], args].concat());
    let file = image.scratch().join("content");
    let bytes: Vec<u8> = (0..300 * BLOCK).map(|n| (n / BLOCK) as u8 | 1).collect();
    std::fs::write(&file, bytes).unwrap();
    debugfs::write(image.path(), &format!("write {} f", file.display()));
    debugfs::write(image.path(), "mkdir d");
    image
}

fn block_of(image: &Image, name: &str, nr: u64) -> u64 {
    let text = debugfs::read(image.path(), &format!("bmap {name} {nr}"));
    text.trim().parse().expect("a block")
}

fn unreadable(image: &Image, blocks: &[u64]) -> Faulty {
    let mut bytes = image.bytes();
    for block in blocks {
        // Without content it would be a hole, which every disk can read.
        let at = (block * BLOCK) as usize;
        if bytes[at] == 0 {
            bytes[at] = 1;
        }
    }
    let device = FaultDevice::new(MemDevice::from_bytes(&bytes));
    for block in blocks {
        let range = block * BLOCK..(block + 1) * BLOCK;
        device.inject(Fault::new(Op::Read, 0).from_then_on().within(range));
    }
    Arc::new(device)
}

fn read_all(device: &Faulty, threads: usize) -> (Vec<u64>, Vec<u64>) {
    let stop = AtomicBool::new(false);
    let result = ReadTest { device: &**device, threads, stop: &stop }.run(&mut |_, _| ()).unwrap();
    (result.unreadable, result.unlisted)
}

fn plan(device: &Faulty, blocks: Vec<u64>, level: RepairLevel) -> Result<RepairPlan, RepairError> {
    let device: Arc<dyn BlockDevice> = device.clone();
    let bad = BadBlocks { blocks, replace: false };
    Repair::new(device).level(level).bad_blocks(bad).plan(&mut |_| ())
}

fn listed(image: &Image) -> Vec<u64> {
    let printed = run::<std::ffi::OsString>("dumpe2fs", &["-b".into(), image.path().into()]).text();
    printed.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

#[test]
fn files_get_copies_of_unreadable_blocks() {
    for args in [
        &["-t", "ext4"][..],
        &["-t", "ext2"],
        &["-t", "ext3"],
        &["-t", "ext4", "-O", "^metadata_csum,quota"],
    ] {
        let image = image(args);
        image.leave_unjudged("debugfs does not keep quotas");
        let (in_file, in_dir) = (block_of(&image, "f", 5), block_of(&image, "d", 0));
        // More than the inode's own pointers.
        let mut bad: Vec<u64> = (0..30).map(|n| 16_300 + 2 * n).chain([in_file, in_dir]).collect();
        bad.sort_unstable();
        let device = unreadable(&image, &bad);
        assert_eq!(read_all(&device, 1), (bad.clone(), bad.clone()), "{args:?}");
        assert_eq!(read_all(&device, 3).0, bad, "{args:?}");
        let before = device.inner().to_vec();
        let refused = plan(&device, bad.clone(), RepairLevel::Safe);
        assert!(matches!(refused, Err(RepairError::NeedsLossy(_))), "{refused:?}");
        assert!(device.inner().to_vec() == before, "a refusal writes nothing");
        let planned = plan(&device, bad.clone(), RepairLevel::Lossy).unwrap();
        assert_eq!(planned.unlisted_blocks(), []);
        planned.apply().unwrap();
        assert_eq!(read_all(&device, 2), (bad.clone(), Vec::new()), "{args:?}");
        let again = plan(&device, Vec::new(), RepairLevel::Safe).unwrap();
        assert_eq!(again.changed_blocks().unwrap(), 0, "{args:?}");
        let bytes = device.inner().to_vec();
        assert_eq!(objection(&bytes), None, "{args:?}");
        let result = Image::holding(&bytes);
        assert_eq!(listed(&result), bad, "{args:?}");
        for nr in [4, 6, 299] {
            let place = block_of(&image, "f", nr);
            assert_eq!(block_of(&result, "f", nr), place, "{args:?}: readable blocks stay");
        }
        let content = debugfs::read_bytes(result.path(), "cat f");
        let (start, end) = (5 * BLOCK as usize, 6 * BLOCK as usize);
        assert!(content[start..end].iter().all(|byte| *byte == 0), "{args:?}");
        let original = debugfs::read_bytes(image.path(), "cat f");
        assert!(content[..start] == original[..start] && content[end..] == original[end..]);
    }
}

#[test]
fn structures_with_a_fixed_place_stay_and_are_named() {
    let image = image(&["-t", "ext4"]);
    let journal = block_of(&image, "<8>", 100);
    // The superblock, its first copy, an inode table, the journal, no block at all.
    let bad = vec![1, 8193, 646, journal, 0, 1 << 40, 16_380];
    let device = unreadable(&image, &[]);
    let planned = plan(&device, bad, RepairLevel::Safe).unwrap();
    let unlisted: Vec<_> =
        planned.unlisted_blocks().iter().map(|block| (block.block, block.is_in_use())).collect();
    let expected =
        [(0, false), (1, true), (646, true), (8193, true), (journal, true), (1 << 40, false)];
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(unlisted, expected);
    planned.apply().unwrap();
    let bytes = device.inner().to_vec();
    assert_eq!(objection(&bytes), None);
    assert_eq!(listed(&Image::holding(&bytes)), [16_380]);
    // Another list, and none.
    for blocks in [vec![16_000, 16_001], Vec::new()] {
        let target: Arc<dyn BlockDevice> = device.clone();
        let bad = BadBlocks { blocks: blocks.clone(), replace: true };
        let plan = Repair::new(target).bad_blocks(bad).plan(&mut |_| ()).unwrap();
        plan.apply().unwrap();
        let bytes = device.inner().to_vec();
        assert_eq!(objection(&bytes), None);
        assert_eq!(listed(&Image::holding(&bytes)), blocks);
    }
}

#[test]
fn a_check_with_a_read_test_reports_runs_of_unlisted_blocks() {
    let image = image(&["-t", "ext4"]);
    let device: Arc<dyn BlockDevice> = unreadable(&image, &[16_000, 16_001, 16_002, 16_010]);
    for (reads_all, expected) in [(false, &[][..]), (true, &[(16_000, 3), (16_010, 1)])] {
        let mut found = Vec::new();
        let check = Check::new(device.clone()).read_test(reads_all);
        let summary = check.run(&mut |finding| {
            assert_eq!(finding.code, FindingCode::Unreadable);
            found.push((finding.place.block.unwrap(), finding.found.unwrap()));
        });
        assert_eq!((found.as_slice(), summary.is_clean()), (expected, !reads_all));
    }
}
