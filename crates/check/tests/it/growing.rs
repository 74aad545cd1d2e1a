//! Growth: each larger file system is whole for e2fsck, the kernel and the own check, keeps its
//! files, and a cut leaves one of the two sizes.

use crate::oracle::{complaints, damages};
use crate::tuning::KINDS;
use extant_blocks::{
    BlockDevice, Event, Fault, FaultDevice, MemDevice, Op, OpenOptions, RecordingDevice,
};
use extant_check::repair::OfflineError;
use extant_check::resize::{NewSize, Resize, ResizeError};
use extant_format::{Compat, Geometry, GroupNr, Incompat, Superblock};
use extant_testkit::cuts::{chosen_cuts, each_cut};
use extant_testkit::kernel::Mount;
use extant_testkit::tool::run;
use extant_testkit::{Image, Scratch, dumpe2fs, e2fsck};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// The bytes of the images before: one or more groups, the last of them short.
const SIZE: u64 = 28 * MIB;

/// More kinds than those of tuned images: tables of many groups together, larger blocks, few
/// blocks kept for descriptors, tables with 32-bit numbers.
const MORE: &[(&str, &[&str])] = &[
    ("4k", &["-t", "ext4", "-b", "4096"]),
    ("flex", &["-t", "ext4", "-b", "1024", "-g", "1024", "-G", "64"]),
    ("flex_2", &["-t", "ext4", "-b", "1024", "-g", "2048", "-G", "2"]),
    ("no_flex", &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"]),
    ("no_resize_inode", &["-t", "ext4", "-b", "1024", "-O", "^resize_inode"]),
    ("few_kept", &["-t", "ext4", "-b", "1024", "-g", "512", "-E", "resize=64m"]),
    ("few_kept_32", &["-t", "ext3", "-b", "1024", "-g", "512", "-E", "resize=64m"]),
    ("none_kept", &["-t", "ext4", "-b", "1024", "-g", "256", "-N", "4096", "-O", "^resize_inode"]),
    ("many_inodes", &["-t", "ext4", "-b", "1024", "-i", "1024"]),
    ("64k", &["-t", "ext4", "-b", "65536", "-O", "^has_journal"]),
    ("sparse_super2", &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "sparse_super2"]),
];

pub fn kinds() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let tuned = KINDS.iter().filter(|(name, _)| *name != "sparse_super2");
    tuned.chain(MORE).copied()
}

/// Returns an image with a file, as its own blocks are easy to lose: in groups that change.
fn with_file(args: &[&str]) -> Image {
    let source = Scratch::new();
    std::fs::write(source.path().join("file"), content()).expect("space");
    let image = Image::mke2fs_from(SIZE, args, source.path());
    // mke2fs does not count the file in quotas.
    recover_by_e2fsck(&image);
    image
}

/// Recovers an image by e2fsck. It asks before it replays the log of a superblock without a mark.
#[track_caller]
pub fn recover_by_e2fsck(image: &Image) {
    let args: [OsString; 2] = ["-fy".into(), image.path().into()];
    let recovered = run("e2fsck", &args);
    assert!(recovered.code <= 1, "{recovered}");
    assert_eq!(complaints(image.path()), [""; 0]);
}

fn content() -> Vec<u8> {
    (0..3 * MIB).map(|n| (n % 251) as u8).collect()
}

/// Grows an image file. Returns the superblock.
fn grow(image: &Path, bytes: u64) -> Result<Superblock, ResizeError> {
    let device: Arc<dyn BlockDevice> = Arc::new(OpenOptions::new(image).open().expect("an image"));
    let before = std::fs::metadata(image).expect("an image").len();
    let plan = Resize::new(device).plan(NewSize::Bytes(bytes))?;
    let planned = plan.planned().clone();
    let grown = plan.apply()?;
    assert_eq!(grown.blocks_count(), planned.blocks_count());
    assert_eq!(grown.inodes_count(), planned.inodes_count());
    let after = std::fs::metadata(image).expect("an image").len();
    assert_eq!(after, before.max(plan.bytes()), "the length of the file");
    Ok(grown)
}

#[track_caller]
fn judge(image: &Image, case: &str) {
    assert_eq!(complaints(image.path()), [""; 0], "{case}");
    let found = damages(&image.bytes(), true);
    assert!(found.is_empty(), "{case}: {found:?}");
}

/// Mounts by the kernel, compares the file, and fills a part of the new space.
#[track_caller]
fn use_by_kernel(image: &Image, case: &str) {
    let mount = Mount::new(image.path(), "");
    assert!(std::fs::read(mount.join("file")).expect("a file") == content(), "{case}");
    for n in 0..20 {
        let dir = mount.join(format!("dir{n}"));
        std::fs::create_dir(&dir).expect("a directory");
        std::fs::write(dir.join("file"), vec![n; 3 << 20]).expect("space");
    }
    mount.unmount();
    assert_eq!(complaints(image.path()), [""; 0], "{case}");
}

#[test]
fn file_systems_of_all_kinds_grow_and_are_used() {
    for (name, args) in kinds() {
        // The kernel has no pages for larger blocks, and no quota here.
        let by_kernel = !["64k", "quota"].contains(&name);
        let image = with_file(args);
        for size in [28 * MIB + 17_000, 130 * MIB] {
            let case = format!("{name} to {size}");
            let grown = grow(image.path(), size).unwrap_or_else(|error| panic!("{case}: {error}"));
            let bytes = grown.blocks_count() * u64::from(grown.block_size());
            assert!(bytes <= size && bytes > size - 17 * MIB, "{case}: {bytes}");
            judge(&image, &case);
        }
        if by_kernel {
            use_by_kernel(&image, name);
            image.leave_unjudged("it is judged here, but for advice on the kernel's maps");
        }
    }
}

/// Sizes and counts are those of resize2fs, which moves blocks where this has `meta_bg`.
#[test]
fn sizes_are_those_of_resize2fs() {
    const COUNTS: [&str; 4] = ["Block count", "Inode count", "Inodes per group", "Free inodes"];
    for (name, args) in kinds().filter(|(name, _)| !["mmp", "64k"].contains(name)) {
        let (own, theirs) = (with_file(args), with_file(args));
        grow(own.path(), 130 * MIB).expect(name);
        let args: [OsString; 3] = ["-f".into(), theirs.path().into(), "130M".into()];
        run("resize2fs", &args).must_succeed();
        theirs.leave_unjudged("resize2fs 1.47 counts the free clusters of bigalloc wrongly");
        let (own, theirs) = (dumpe2fs::header(own.path()), dumpe2fs::header(theirs.path()));
        for count in COUNTS {
            assert_eq!(own.value(count), theirs.value(count), "{name}: {count}");
        }
        let reserved = |dump: &dumpe2fs::Dump| dump.number("Reserved block count");
        assert!(reserved(&own).abs_diff(reserved(&theirs)) <= 1, "{name}");
    }
}

fn superblock(bytes: &[u8]) -> Superblock {
    Superblock::parse(&bytes[1024..2048]).expect("a superblock")
}

/// The blocks that the resize inode keeps stay as long as the old descriptor blocks suffice.
#[test]
fn more_descriptor_blocks_lie_in_the_new_groups() {
    let (_, args) = MORE.iter().find(|(name, _)| *name == "few_kept").expect("a kind");
    let image = with_file(args);
    let before = superblock(&image.bytes());
    assert!(before.reserved_gdt_blocks() > 0, "the kind keeps no blocks");
    let some = grow(image.path(), 30 * MIB).expect("places");
    assert_eq!(some.reserved_gdt_blocks(), before.reserved_gdt_blocks());
    assert!(some.compat().contains(Compat::RESIZE_INODE));
    judge(&image, "the old blocks");
    let all = grow(image.path(), 300 * MIB).expect("other places");
    assert!(!all.compat().contains(Compat::RESIZE_INODE));
    assert!(all.incompat().contains(Incompat::META_BG));
    let blocks = Geometry::new(&before).expect("a geometry").desc_blocks;
    assert_eq!((all.first_meta_bg(), all.reserved_gdt_blocks()), (blocks, 0));
    judge(&image, "descriptors in groups");
}

/// Damage must not spread to copies, and content that is no list is not overwritten as one.
#[test]
fn damaged_structures_are_refused_before_a_write() {
    let (_, args) = MORE.iter().find(|(name, _)| *name == "few_kept").expect("a kind");
    let image = with_file(args);
    let whole = image.bytes();
    let geometry = Geometry::new(&superblock(&whole)).expect("a geometry");
    let size = geometry.block_size as usize;
    let kept = geometry.base_meta(GroupNr(0)).reserved.start as u32;
    let list = (0..whole.len() / size)
        .find(|nr| whole[nr * size..][..size].chunks(4).any(|n| n == kept.to_le_bytes()))
        .expect("the list of the resize inode");
    let descriptors = geometry.gdt_block(0).0 as usize * size;
    for at in [descriptors + 3 * usize::from(geometry.desc_size) + 1, list * size + 900] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        let damaged = Image::holding(&bytes);
        damaged.leave_unjudged("it is damaged");
        let error = grow(damaged.path(), 300 * MIB).expect_err("a refusal");
        assert!(matches!(error, ResizeError::Corrupt(_)), "{at}: {error}");
        assert!(damaged.bytes() == bytes, "{at}: refused, but written");
    }
}

#[test]
fn sizes_that_cannot_be_had_change_nothing() {
    let image = Image::mke2fs(SIZE, &["-t", "ext4", "-b", "1024", "-O", "^64bit"]);
    let bytes = image.bytes();
    for size in [1 << 43, u64::MAX] {
        let error = grow(image.path(), size).expect_err("a refusal");
        assert!(matches!(error, ResizeError::Size(_)), "{size}: {error}");
    }
    assert!(image.bytes() == bytes);
    // The same size, and one that has no place for another group.
    for size in [SIZE, SIZE + 1023] {
        assert_eq!(grow(image.path(), size).expect("a size").blocks_count(), SIZE / 1024);
    }
    assert!(image.bytes()[..bytes.len()] == bytes);
}

/// With clusters the blocks of the resize inode's list cannot be told from those of its neighbors.
#[test]
fn clusters_without_kept_blocks_are_refused() {
    let args = ["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384", "-E", "resize=40m"];
    let image = Image::mke2fs(SIZE, &args);
    let before = image.bytes();
    let error = grow(image.path(), 40 << 30).expect_err("a refusal");
    assert!(error.to_string().contains("bigalloc"), "{error}");
    assert!(image.bytes() == before);
    grow(image.path(), 300 * MIB).expect("the descriptors have places");
    judge(&image, "clusters");
}

/// A device that refuses a write leaves the old file system, and its old length.
#[test]
fn failed_writes_leave_the_old_size() {
    let image = with_file(&["-t", "ext4", "-b", "1024"]);
    let before = image.bytes();
    let mut seen = [0, 0];
    let writes = recorded(&before, 60 * MIB).log().iter().filter(|event| is_write(event)).count();
    // Most writes are those of the log's blocks; the last ones count.
    for nr in (0..writes as u64).filter(|nr| nr % 16 == 0 || nr + 10 > writes as u64) {
        let memory = Arc::new(MemDevice::from_bytes(&before));
        let device = Arc::new(FaultDevice::new(memory.clone()));
        device.inject(Fault::new(Op::Write, nr));
        let plan = Resize::new(device.clone()).plan(NewSize::Bytes(60 * MIB)).expect("a plan");
        let grown = plan.apply();
        let Err(error) = grown else {
            assert_eq!(device.failed(), 0, "write {nr} failed without an error");
            continue;
        };
        let state = Image::holding(&memory.to_vec());
        recover_by_e2fsck(&state);
        let is_new = superblock(&state.bytes()).blocks_count() > SIZE / 1024;
        seen[usize::from(is_new)] += 1;
        if !matches!(error, ResizeError::Apply(OfflineError::InLog(_))) {
            assert!(!is_new, "write {nr}: {error}");
            assert_eq!(memory.len(), SIZE, "write {nr}: {error}: the length");
        }
    }
    assert!(seen[0] > 0, "{seen:?}");
}

fn extended(mut bytes: Vec<u8>, size: u64) -> Vec<u8> {
    bytes.resize(size as usize, 0);
    bytes
}

/// Records the writes of growth. The image has the new length before.
fn recorded(bytes: &[u8], size: u64) -> Arc<RecordingDevice<MemDevice>> {
    let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(bytes)));
    let plan = Resize::new(recorder.clone()).plan(NewSize::Bytes(size)).expect("a plan");
    plan.apply().expect("a larger file system");
    recorder
}

/// Returns the image after Extant has opened and unmounted it.
pub fn recovered_by_extant(state: &[u8]) -> Image {
    let device = Arc::new(MemDevice::from_bytes(state));
    let options = extant_engine::OpenOptions::new();
    let fs = extant_engine::Fs::open_device(device.clone(), &options).expect("a file system");
    fs.unmount().expect("an unmount");
    Image::holding(&device.to_vec())
}

/// After a cut at any write, the recoveries of e2fsck, the kernel and Extant give the old size or
/// the new one.
#[test]
fn cut_growth_is_whole_or_absent() {
    // Each cut that writes superblock and home blocks, and some of the log.
    let cases = [
        ("1k", 33 * MIB, 3),
        ("metadata_csum", 44 * MIB, 8),
        ("none_kept", 34 * MIB, 8),
        ("few_kept", 33 * MIB, 4),
    ];
    for (name, size, every) in cases {
        let (_, args) = kinds().find(|(known, _)| *known == name).expect("a kind");
        let before = extended(with_file(args).bytes(), size);
        let recorder = recorded(&before, size);
        let counts = [superblock(&before), superblock(&recorder.inner().to_vec())]
            .map(|superblock| superblock.blocks_count());
        let mut seen = [0, 0];
        let last = recorder.log().len();
        let is_chosen = |cut: usize| cut.is_multiple_of(every) || cut + 8 >= last;
        chosen_cuts(&before, &recorder.log(), &is_chosen, &mut |cut, state| {
            let image = Image::holding(&state);
            let by_kernel = image.copy();
            recover_by_e2fsck(&image);
            image.leave_unjudged("it was judged");
            by_kernel.leave_unjudged("it is judged here");
            let count = superblock(&image.bytes()).blocks_count();
            let side = counts.iter().position(|known| *known == count);
            seen[side.unwrap_or_else(|| panic!("{name}, cut {cut}: {count} blocks"))] += 1;
            let by_extant = recovered_by_extant(&state);
            if cut % (4 * every) == 0 || cut + 8 >= last {
                by_extant.assert_clean();
            } else {
                judge(&by_extant, name);
                by_extant.leave_unjudged("it was judged");
            }
            assert!(
                counts.contains(&superblock(&by_extant.bytes()).blocks_count()),
                "{name} {cut}"
            );
            Mount::new(by_kernel.path(), "").unmount();
            assert_eq!(complaints(by_kernel.path()), [""; 0], "{name}, cut {cut}");
        });
        assert!(seen[0] > 0 && seen[1] > 0, "{name}: {seen:?}");
    }
}

/// Without a log, a repair gives one of the two sizes, and growth goes on from there.
#[test]
fn cut_growth_without_a_log_is_repaired() {
    for name in ["no_journal", "ext2"] {
        let (_, args) = kinds().find(|(known, _)| *known == name).expect("a kind");
        let before = extended(with_file(args).bytes(), 60 * MIB);
        let recorder = recorded(&before, 60 * MIB);
        let mut seen = 0;
        each_cut(&before, &recorder.log(), &mut |cut, state| {
            let image = Image::holding(&state);
            recover_by_e2fsck(&image);
            let grown = grow(image.path(), 60 * MIB).expect("a size");
            assert_eq!(grown.blocks_count(), 60 * MIB / 1024, "{name}, cut {cut}");
            e2fsck::check(image.path()).assert_clean();
            seen += 1;
        });
        assert!(seen > 10, "{name}: {seen}");
    }
}

/// A log that is too small for all copies is left alone.
#[test]
fn more_copies_than_the_log_takes_are_written_in_place() {
    let few = ["-t", "ext4", "-b", "1024", "-g", "256", "-N", "8192", "-J", "size=1"];
    let copies = ["-O", "^sparse_super,^resize_inode"];
    let image = Image::mke2fs(300 * MIB, &[&few[..], &copies].concat());
    grow(image.path(), 310 * MIB).expect("a size");
    assert_eq!(complaints(image.path()), [""; 0]);
}

pub fn is_write(event: &Event) -> bool {
    matches!(event, Event::Write { .. })
}
