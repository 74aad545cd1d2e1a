//! Features that are switched, and journals: as by tune2fs, with the files that were there, and
//! wholly or not at all.

use crate::growing::recover_by_e2fsck;
use crate::oracle::{complaints, damages};
use crate::tuning::dumped;
use extant_blocks::{BlockDevice, Event, MemDevice, RecordingDevice};
use extant_check::debug::{InspectOptions, Inspector};
use extant_check::tune::{JournalSize, Tune, TuneChanges, TuneError};
use extant_format::mmp::Mmp;
use extant_format::{Compat, Features, Superblock};
use extant_testkit::cuts::chosen_cuts;
use extant_testkit::kernel::Mount;
use extant_testkit::tool::run;
use extant_testkit::tree::Manifest;
use extant_testkit::{Image, dumpe2fs};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// The bytes of an image: three groups or more.
pub const SIZE: u64 = 20 * MIB;

/// Arguments to mke2fs.
pub type Kind = &'static [&'static str];

pub const SUMS: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1"];
pub const NO_SUMS: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^metadata_csum"];
pub const UNINIT: Kind =
    &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "uninit_bg,^metadata_csum"];
pub const UNINIT_32: Kind = &[
    "-t",
    "ext4",
    "-b",
    "1024",
    "-g",
    "2048",
    "-J",
    "size=1",
    "-O",
    "uninit_bg,^metadata_csum,^64bit",
];
const SEED: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "metadata_csum_seed"];
const MMP: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "mmp,^metadata_csum"];
const MMP_SUMS: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "mmp"];
const ORPHANS: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "orphan_file"];
const ORPHANS_NO_SUMS: Kind =
    &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "orphan_file,^metadata_csum"];
const QUOTA: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "quota,project"];
const FAST: Kind = &["-t", "ext4", "-b", "4096", "-J", "size=8", "-O", "fast_commit"];
pub const EXT2: Kind = &["-t", "ext2", "-b", "1024"];
pub const EXT3: Kind = &["-t", "ext3", "-b", "1024", "-J", "size=1"];
pub const INODE_128: Kind =
    &["-t", "ext4", "-b", "1024", "-J", "size=1", "-I", "128", "-O", "^metadata_csum"];
const BIGALLOC: Kind =
    &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "bigalloc,^metadata_csum", "-C", "4096"];
pub const META_BG: Kind = &[
    "-t",
    "ext4",
    "-b",
    "1024",
    "-g",
    "1024",
    "-J",
    "size=1",
    "-O",
    "meta_bg,^resize_inode,^metadata_csum",
];
pub const NO_JOURNAL: Kind = &["-t", "ext4", "-b", "1024", "-O", "^has_journal"];
pub const NO_JOURNAL_NO_SUMS: Kind =
    &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^metadata_csum"];
const ALL_COPIES: Kind = &[
    "-t",
    "ext4",
    "-b",
    "1024",
    "-g",
    "1024",
    "-J",
    "size=1",
    "-O",
    "^sparse_super,^resize_inode,^metadata_csum",
];

pub fn features(list: &str) -> TuneChanges {
    TuneChanges { features: Some(list.into()), ..TuneChanges::default() }
}

fn quota(list: &str) -> TuneChanges {
    TuneChanges { quota: Some(list.into()), ..TuneChanges::default() }
}

fn journal(size: JournalSize) -> TuneChanges {
    TuneChanges { journal_size: Some(size), ..TuneChanges::default() }
}

/// Changes of one kind of file systems, with the arguments to tune2fs for the same.
fn cases() -> Vec<(Kind, Vec<&'static str>, TuneChanges)> {
    let of = |kind: Kind, list: &'static str| (kind, vec!["-O", list], features(list));
    vec![
        of(SUMS, "^metadata_csum"),
        of(NO_SUMS, "metadata_csum"),
        of(UNINIT, "metadata_csum"),
        of(UNINIT_32, "metadata_csum"),
        of(UNINIT, "^uninit_bg"),
        of(NO_SUMS, "uninit_bg"),
        of(SEED, "^metadata_csum"),
        of(SUMS, "metadata_csum_seed"),
        of(SEED, "^metadata_csum_seed"),
        of(MMP, "metadata_csum"),
        of(MMP_SUMS, "^metadata_csum"),
        of(SUMS, "mmp"),
        of(BIGALLOC, "mmp"),
        of(NO_JOURNAL, "mmp"),
        of(NO_SUMS, "mmp"),
        of(MMP_SUMS, "^mmp"),
        of(ORPHANS_NO_SUMS, "metadata_csum"),
        of(ORPHANS, "^metadata_csum"),
        of(META_BG, "metadata_csum"),
        of(BIGALLOC, "metadata_csum"),
        of(INODE_128, "metadata_csum"),
        of(ALL_COPIES, "metadata_csum"),
        of(EXT3, "metadata_csum"),
        of(EXT3, "extent,uninit_bg,dir_nlink,huge_file"),
        of(NO_JOURNAL, "^metadata_csum"),
        of(NO_JOURNAL_NO_SUMS, "metadata_csum"),
        of(SUMS, "orphan_file"),
        of(ORPHANS, "^orphan_file"),
        of(SUMS, "quota"),
        of(SUMS, "project"),
        of(SUMS, "quota,project"),
        of(QUOTA, "^quota"),
        of(QUOTA, "^project"),
        (SUMS, vec!["-Q", "usrquota"], quota("usrquota")),
        (SUMS, vec!["-Q", "prjquota"], quota("prjquota")),
        (QUOTA, vec!["-Q", "^grpquota"], quota("^grpquota")),
        of(SUMS, "fast_commit"),
        of(FAST, "^fast_commit"),
        of(SUMS, "large_dir"),
        of(SUMS, "ea_inode,verity,stable_inodes"),
        of(SUMS, "encrypt"),
        of(SUMS, "casefold"),
        of(SUMS, "^dir_index"),
        of(&["-t", "ext2", "-b", "1024", "-O", "^dir_index"], "dir_index"),
        of(SUMS, "^has_journal"),
        of(EXT3, "^has_journal"),
        of(NO_JOURNAL, "has_journal"),
        (EXT2, vec!["-j"], journal(JournalSize::Default)),
        (NO_JOURNAL, vec!["-J", "size=3"], journal(JournalSize::Bytes(3 * MIB))),
    ]
}

fn tune2fs(image: &Path, args: &[&str]) {
    let args: Vec<OsString> = args.iter().map(OsString::from).chain([image.into()]).collect();
    run("tune2fs", &args).must_succeed();
}

/// Changes an image in memory, which must be refused without a write or leave a clean image.
#[track_caller]
pub fn tune(bytes: &[u8], changes: &TuneChanges) -> Result<Image, TuneError> {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    match Tune::new(device.clone()).threads(2).apply(changes) {
        Ok(new) => {
            let image = Image::holding(&device.to_vec());
            assert!(new.as_bytes() == &image.bytes()[1024..2048], "not as it is returned");
            Ok(image)
        }
        Err(error) => {
            assert!(device.to_vec() == bytes, "refused, but written: {error}");
            Err(error)
        }
    }
}

#[track_caller]
pub fn judge(image: &Image, case: &str) {
    assert_eq!(complaints(image.path()), [""; 0], "{case}");
    let found = damages(&image.bytes(), true);
    assert!(found.is_empty(), "{case}: {found:?}");
}

pub fn superblock(bytes: &[u8]) -> Superblock {
    Superblock::parse(&bytes[1024..2048]).expect("a superblock")
}

/// The header of dumpe2fs is that of the same call of tune2fs.
#[test]
fn switched_features_are_those_of_tune2fs() {
    for (kind, args, changes) in cases() {
        let case = format!("{kind:?} {args:?}");
        let image = Image::mke2fs(SIZE, kind);
        let theirs = image.copy();
        tune2fs(theirs.path(), &args);
        theirs.leave_unjudged("tune2fs 1.47.0 leaves orphan files without checksums");
        let own = tune(&image.bytes(), &changes).unwrap_or_else(|e| panic!("{case}: {e}"));
        judge(&own, &case);
        let [ours, others] = [&own, &theirs].map(|image| {
            let mut lines = dumped(image.path());
            // tune2fs keeps the map of a journal that is removed.
            let has_journal = superblock(&image.bytes()).compat().contains(Compat::HAS_JOURNAL);
            lines.retain(|(name, _)| has_journal || name != "Journal backup");
            lines
        });
        let differ = |(one, other): &(&(String, String), &(String, String))| one != other;
        let differ: Vec<_> = ours.iter().zip(&others).filter(differ).collect();
        assert!(differ.is_empty() && ours.len() == others.len(), "{case}: {differ:?}");
        // The features of copies are those of the primary superblock.
        let own = own.bytes();
        let primary = superblock(&own);
        let geometry = extant_format::Geometry::new(&primary).expect("a geometry");
        for group in geometry.super_groups().skip(1) {
            let block = geometry.super_block_of(group).expect("a copy").index();
            let at = block * geometry.block_size as usize;
            let copy = Superblock::parse(&own[at..at + 1024]).expect("a copy");
            assert_eq!(copy.features(), primary.features(), "{case}: {group}");
        }
    }
}

/// Writes files with all structures that have checksums, and full blocks of directories.
fn fill(root: &Path) {
    let has_space = |size: usize| vec![b'x'; size];
    for n in 0..3 {
        fs::create_dir(root.join(format!("dir{n}"))).expect("a directory");
    }
    // 50 names of 12 bytes fill a block of 1 KiB without a gap.
    fs::create_dir(root.join("full")).expect("a directory");
    for n in 0..50 {
        fs::hard_link(file(root), root.join(format!("full/name{n:08}"))).expect("a link");
    }
    fs::create_dir(root.join("many")).expect("a directory");
    for n in 0..1500 {
        fs::hard_link(file(root), root.join(format!("many/a longer name of no. {n}")))
            .expect("a link");
    }
    // An extent tree of two levels.
    let pieces = fs::File::create(root.join("pieces")).expect("a file");
    for n in 0..600 {
        pieces.write_all_at(b"piece", n * 2048).expect("space");
    }
    let value = has_space(300);
    for name in ["dir0", "pieces"] {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(root.join(name), "user.value", &value, flags).expect("an attribute");
    }
    symlink("x".repeat(300), root.join("dir1/link")).expect("a link");
    fs::write(root.join("whole"), has_space(300_000)).expect("space");
    std::os::unix::fs::chown(root.join("whole"), Some(1000), Some(1001)).expect("an owner");
    for n in 0..20 {
        let name = root.join(format!("dir2/{n}"));
        fs::write(&name, has_space(100)).expect("space");
        std::os::unix::fs::chown(&name, Some(2000 + n), Some(3000)).expect("an owner");
    }
}

/// Returns a file with many names.
fn file(root: &Path) -> std::path::PathBuf {
    let name = root.join("dir0/file");
    if !name.exists() {
        fs::write(&name, "text").expect("space");
    }
    name
}

pub fn walk(image: &Image) -> Manifest {
    let mount = Mount::new(image.path(), "");
    let tree = Manifest::walk(mount.path());
    mount.unmount();
    tree
}

/// Returns the files as Extant shows them, which needs no quota of the kernel.
pub fn read(bytes: &[u8]) -> Manifest {
    let options = extant_engine::OpenOptions::new().read_only(true);
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(bytes));
    let fs = extant_engine::Fs::open_device(device, &options).expect("a file system");
    let tree = Manifest::read(&fs).expect("a tree");
    fs.unmount().expect("an unmount");
    tree
}

/// Returns an image with files.
pub fn filled(kind: Kind) -> Image {
    let image = Image::mke2fs(SIZE, kind);
    let mount = Mount::new(image.path(), "");
    fill(mount.path());
    mount.unmount();
    image
}

fn has_quota(image: &Image) -> bool {
    dumpe2fs::header(image.path()).features().contains("quota")
}

/// Each kind with files, and with those of another kind after it.
#[test]
fn switched_file_systems_keep_their_files() {
    let sequences: &[(Kind, &[&str])] = &[
        (NO_SUMS, &["metadata_csum", "^metadata_csum", "metadata_csum"]),
        (SUMS, &["^metadata_csum,^uninit_bg", "metadata_csum,metadata_csum_seed"]),
        (UNINIT_32, &["metadata_csum", "^metadata_csum"]),
        (EXT3, &["metadata_csum,extent,dir_nlink", "orphan_file"]),
        (EXT2, &["has_journal,metadata_csum", "^has_journal"]),
        (INODE_128, &["metadata_csum", "^metadata_csum"]),
        (
            BIGALLOC,
            &["metadata_csum,orphan_file,quota", "^orphan_file,^quota,^has_journal", "has_journal"],
        ),
        (META_BG, &["metadata_csum", "^dir_index", "dir_index"]),
        (ORPHANS_NO_SUMS, &["metadata_csum,quota", "^has_journal", "has_journal"]),
        (NO_JOURNAL_NO_SUMS, &["metadata_csum,quota,project", "^metadata_csum"]),
        (FAST, &["^dir_index,^metadata_csum", "^fast_commit", "metadata_csum,dir_index"]),
    ];
    for (kind, lists) in sequences {
        let mut image = filled(kind);
        let before = read(&image.bytes());
        for list in *lists {
            let case = format!("{kind:?} {list}");
            image.leave_unjudged("it is judged here");
            image = tune(&image.bytes(), &features(list)).unwrap_or_else(|e| panic!("{case}: {e}"));
            judge(&image, &case);
            read(&image.bytes()).assert_same(&before);
            if !has_quota(&image) {
                let copy = image.copy();
                let mount = Mount::new(copy.path(), "");
                // Names are found by the kernel's own hashes.
                assert_eq!(
                    fs::read(mount.join("many/a longer name of no. 777")).expect("a file"),
                    b"text"
                );
                Manifest::walk(mount.path()).assert_same(&before);
                for n in 0..50 {
                    fs::write(mount.join(format!("full/new{n}")), "more").expect("space");
                    fs::remove_file(mount.join(format!("many/a longer name of no. {n}")))
                        .expect("a file");
                }
                mount.unmount();
                assert_eq!(complaints(copy.path()), [""; 0], "{case}, used");
            }
        }
    }
}

/// The journal gets other lengths, and the file system keeps all else.
#[test]
fn journals_get_another_length() {
    for kind in [SUMS, EXT3, FAST, BIGALLOC, NO_SUMS] {
        let image = filled(kind);
        let before = walk(&image);
        let block = u64::from(superblock(&image.bytes()).block_size());
        let mut bytes = image.bytes();
        for blocks in [1500, 1100, 2048] {
            let case = format!("{kind:?} {blocks}");
            let own = tune(&bytes, &journal(JournalSize::Bytes(blocks * block)));
            let own = own.unwrap_or_else(|error| panic!("{case}: {error}"));
            judge(&own, &case);
            assert_eq!(dumpe2fs::header(own.path()).number("Total journal blocks"), blocks);
            walk(&own).assert_same(&before);
            bytes = own.bytes();
        }
    }
    let image = Image::mke2fs(SIZE, SUMS).bytes();
    for size in [JournalSize::Default, JournalSize::Bytes(1 << 19), JournalSize::Bytes(SIZE)] {
        assert!(matches!(tune(&image, &journal(size)), Err(TuneError::Invalid(_))), "{size:?}");
    }
}

/// More blocks change than the journal holds: it is longer meanwhile.
#[test]
fn changes_that_exceed_the_journal_are_made() {
    let kind: Kind =
        &["-t", "ext4", "-b", "1024", "-J", "size=1", "-N", "8192", "-O", "^metadata_csum"];
    let image = filled(kind);
    let before = walk(&image);
    let own = tune(&image.bytes(), &features("metadata_csum")).expect("a change");
    judge(&own, "8192 inodes");
    let dump = dumpe2fs::header(own.path());
    assert_eq!(dump.number("Total journal blocks"), 1024);
    assert!(dump.number("Inode count") / 4 > 1024);
    walk(&own).assert_same(&before);
}

/// Returns an image without a free block.
pub fn full(kind: Kind) -> Vec<u8> {
    let image = Image::mke2fs(SIZE, kind);
    let mount = Mount::new(image.path(), "");
    fill(mount.path());
    let device = mount.device().file_name().expect("a name").to_owned();
    let kept = Path::new("/sys/fs/ext4").join(device).join("reserved_clusters");
    fs::write(kept, "0").expect("an attribute of the mount");
    for size in [30_000_000, 1024] {
        let is_written =
            |n: &u32| fs::write(mount.join(format!("{size}-{n}")), vec![1; size]).is_ok();
        (0..).take_while(is_written).for_each(drop);
        mount.sync();
    }
    mount.unmount();
    image.bytes()
}

/// Names, places and states that cannot be, and file systems without the space.
#[test]
fn impossible_switches_are_refused() {
    let image = Image::mke2fs(SIZE, SUMS).bytes();
    for list in ["nonesuch", "metadata_csum,,FEATURE_I30", "bigalloc", "^extent", "^64bit,quota"] {
        assert!(tune(&image, &features(list)).is_err(), "{list}");
    }
    assert!(matches!(tune(&image, &quota("nonesuch")), Err(TuneError::Invalid(_))));
    let small = Image::mke2fs(SIZE, INODE_128).bytes();
    assert!(matches!(tune(&small, &features("project")), Err(TuneError::Unsupported(_))));
    let ordered = TuneChanges { uuid: Some([7; 16]), ..features("^metadata_csum") };
    assert!(matches!(tune(&image, &ordered), Err(TuneError::Unsupported(_))));
    // A bitmap that claims less than there is.
    let mut damaged = filled(NO_SUMS).bytes();
    let sb = superblock(&damaged);
    let geometry = extant_format::Geometry::new(&sb).expect("a geometry");
    let at = geometry.gdt_block(0).index() * 1024;
    let desc = extant_format::GroupDesc::decode_unverified(&damaged[at..], &geometry);
    damaged[desc.block_bitmap as usize * 1024 + 100] ^= 0xFF;
    for list in ["metadata_csum", "orphan_file", "quota", "^has_journal", "^dir_index"] {
        let error = tune(&damaged, &features(list)).expect_err(list);
        assert!(matches!(error, TuneError::Damage(_)), "{list}: {error}");
    }
    let full = full(NO_SUMS);
    assert!(superblock(&full).free_blocks_count() < 3);
    for changes in [
        features("metadata_csum"),
        features("orphan_file"),
        features("quota"),
        journal(JournalSize::Bytes(2 * MIB)),
    ] {
        let error = tune(&full, &changes);
        let error = error.expect_err(&format!("a full file system: {changes:?}"));
        assert!(matches!(error, TuneError::NoSpace), "{changes:?}: {error}");
    }
}

/// A seed that is not that of the UUID goes only with the checksums.
#[test]
fn a_seed_of_another_uuid_stays() {
    let image = Image::mke2fs(SIZE, SUMS);
    let uuid = TuneChanges { uuid: Some(*b"0123456789abcdef"), ..TuneChanges::default() };
    let other = tune(&image.bytes(), &uuid).expect("a UUID");
    let error = tune(&other.bytes(), &features("^metadata_csum_seed")).expect_err("a seed");
    assert!(error.to_string().contains("^metadata_csum"), "{error}");
    let without = tune(&other.bytes(), &features("^metadata_csum")).expect("no checksums");
    let again = tune(&without.bytes(), &features("metadata_csum")).expect("checksums");
    judge(&again, "after both");
    assert!(!dumpe2fs::header(again.path()).features().contains("metadata_csum_seed"));
}

/// The fields of multi-mount protection, and its block, are those of tune2fs.
#[test]
fn protection_is_that_of_tune2fs() {
    let image = Image::mke2fs(SIZE, SUMS);
    let theirs = image.copy();
    tune2fs(theirs.path(), &["-O", "mmp"]);
    let bytes = |image: &Image| {
        let bytes = image.bytes();
        let sb = superblock(&bytes);
        let at = sb.mmp_block().index() * 1024;
        let geometry = extant_format::Geometry::new(&sb).expect("a geometry");
        let mmp = Mmp::parse(&bytes[at..at + 1024], Some(geometry.csum_seed)).expect("a block");
        (sb.mmp_update_interval(), mmp.seq, mmp.check_interval)
    };
    let added = tune(&image.bytes(), &features("mmp")).expect("protection");
    assert_eq!(bytes(&added), bytes(&theirs));
    let interval = |seconds: u16, list: Option<&str>| TuneChanges {
        mmp_update_interval: Some(seconds),
        features: list.map(Into::into),
        ..TuneChanges::default()
    };
    for (before, changes, expected) in [
        (&added, interval(9, None), 9),
        (&added, interval(0, None), 5),
        (&image, interval(7, Some("mmp")), 7),
    ] {
        let changed = tune(&before.bytes(), &changes).expect("an interval");
        judge(&changed, "an interval");
        assert_eq!(superblock(&changed.bytes()).mmp_update_interval(), expected);
    }
    let refusals = [
        (&image, interval(5, None), "`--features mmp` adds it"),
        (&added, interval(301, None), "at most 300"),
        (&added, interval(5, Some("^mmp")), "`--features mmp` adds it"),
    ];
    for (before, changes, why) in refusals {
        let error = tune(&before.bytes(), &changes).expect_err("no interval");
        assert!(error.to_string().contains(why), "{error}");
    }
    let removed = tune(&added.bytes(), &features("^mmp")).expect("no protection");
    let (sb, old) = (superblock(&removed.bytes()), superblock(&image.bytes()));
    assert_eq!((sb.mmp_block().0, sb.mmp_update_interval()), (0, 0));
    assert_eq!(sb.free_blocks_count(), old.free_blocks_count());
}

/// tune2fs cannot do these in one call.
#[test]
fn protection_is_switched_with_other_features() {
    for (kind, list) in [
        (NO_SUMS, "metadata_csum,mmp"),
        (SUMS, "^metadata_csum,mmp"),
        (MMP, "metadata_csum,^mmp"),
        (NO_JOURNAL, "has_journal,mmp,quota"),
    ] {
        let image = Image::mke2fs(SIZE, kind);
        let changed = tune(&image.bytes(), &features(list)).expect(list);
        judge(&changed, list);
        let incompat = superblock(&changed.bytes()).incompat();
        let has_mmp = incompat.contains(extant_format::Incompat::MMP);
        assert_eq!(has_mmp, !list.contains("^mmp"), "{list}");
    }
}

/// Programs that write the image of protected file systems wait for seconds, so that the states are
/// judged by checks that write nothing.
#[test]
fn a_cut_switch_of_protection_is_whole_or_absent() {
    for (kind, changes) in [(SUMS, features("mmp")), (MMP_SUMS, features("^mmp"))] {
        let before = Image::mke2fs(SIZE, kind).bytes();
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
        Tune::new(recorder.clone()).apply(&changes).expect("a change");
        let after = recorder.inner().to_vec();
        let sides = [&before, &after].map(|bytes| superblock(bytes).features());
        let mut seen = [0, 0];
        chosen_cuts(&before, &recorder.log(), &|_| true, &mut |cut, state| {
            let case = format!("{:?}, cut {cut}", changes.features);
            assert_eq!(damages(&state, false), [""; 0], "{case}");
            let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(&state));
            let view = Inspector::open(device, None, InspectOptions::default()).expect("an image");
            let recovered: Vec<u8> = (0..view.geometry().blocks_count)
                .flat_map(|nr| view.block(nr).expect("a block"))
                .collect();
            let image = Image::holding(&recovered);
            image.leave_unjudged("it is judged here");
            assert_eq!(complaints(image.path()), [""; 0], "{case}");
            let mut found = superblock(&recovered).features();
            found.incompat.remove(extant_format::Incompat::RECOVER);
            seen[sides.iter().position(|side| *side == found).expect("a side")] += 1;
        });
        assert!(seen[0] > 0 && seen[1] > 0, "{:?}: {seen:?}", changes.features);
    }
}

/// Returns the distance of cuts among many of a kind: `EXTANT_EVERY`, if that is set.
pub fn every_or(every: usize) -> usize {
    std::env::var("EXTANT_EVERY").map_or(every, |text| text.parse().expect("a number"))
}

/// Returns whether an event writes the superblock or that of a log.
pub fn decides(event: &Event) -> bool {
    match event {
        Event::Write { offset, data } => {
            *offset <= 1024 && offset + data.len() as u64 > 1024
                || data.starts_with(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4])
        }
        _ => false,
    }
}

pub fn by_kernel(state: &[u8]) -> Image {
    let image = Image::holding(state);
    image.leave_unjudged("it is judged here");
    Mount::new(image.path(), "").unmount();
    image
}

pub fn by_extant(state: &[u8]) -> Image {
    let device = Arc::new(MemDevice::from_bytes(state));
    let fs = extant_engine::Fs::open_device(
        device.clone() as Arc<dyn BlockDevice>,
        &extant_engine::OpenOptions::new().count_mount(false),
    );
    fs.expect("a file system").unmount().expect("a device in memory");
    let image = Image::holding(&device.to_vec());
    image.leave_unjudged("it is judged here");
    image
}

/// After a cut at any write, the recoveries of e2fsck, the kernel and Extant give a file system
/// with all files, and with the old features or the new ones.
#[test]
fn a_cut_switch_is_whole_or_absent() {
    // Whether each state is without damage: not where the journal comes or goes.
    let cases: &[(Kind, TuneChanges, bool)] = &[
        (NO_SUMS, features("metadata_csum"), true),
        (SUMS, features("^metadata_csum"), true),
        (UNINIT_32, features("metadata_csum"), true),
        (UNINIT, features("^uninit_bg"), true),
        (SUMS, features("orphan_file"), true),
        (SUMS, features("^dir_index"), true),
        (EXT3, journal(JournalSize::Bytes(2 * MIB)), true),
        (EXT2, features("has_journal"), false),
        (SUMS, features("^has_journal"), false),
        (NO_JOURNAL_NO_SUMS, features("metadata_csum"), false),
    ];
    for (kind, changes, is_clean) in cases {
        let name = format!("{kind:?} {:?} {:?}", changes.features, changes.journal_size);
        let before = filled(kind).bytes();
        let tree = read(&before);
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
        Tune::new(recorder.clone()).threads(2).apply(changes).expect("a change");
        let facts = |bytes: &[u8]| -> (Features, u64) {
            let image = Image::holding(bytes);
            image.leave_unjudged("it is judged elsewhere");
            let dump = dumpe2fs::header(image.path());
            let blocks = dump.values.get("Total journal blocks");
            let mut features = superblock(bytes).features();
            features.incompat.remove(extant_format::Incompat::RECOVER);
            (features, blocks.map_or(0, |text| text.parse().expect("a number")))
        };
        let sides = [facts(&before), facts(&recorder.inner().to_vec())];
        let events = recorder.log();
        let every = every_or((events.len() / 8).max(1));
        let (mut seen, mut judged) = ([0, 0, 0], 0);
        let is_chosen = |cut: usize| {
            cut.is_multiple_of(every)
                || cut > 0 && decides(&events[cut - 1])
                || cut + 3 > events.len()
        };
        chosen_cuts(&before, &events, &is_chosen, &mut |cut, state| {
            judged += 1;
            let case = format!("{name}, cut {cut} of {}", events.len());
            let checked = Image::holding(&state);
            recover_by_e2fsck(&checked);
            checked.leave_unjudged("it was judged");
            read(&checked.bytes()).assert_same(&tree);
            let found = facts(&checked.bytes());
            let side = sides.iter().position(|side| *side == found);
            // With a journal for the time of the change.
            assert!(side.is_some() || !is_clean, "{case}: {found:?}");
            seen[side.unwrap_or(2)] += 1;
            for (who, image) in [("the kernel", by_kernel(&state)), ("Extant", by_extant(&state))] {
                let case = format!("{case}, {who}");
                if *is_clean {
                    assert_eq!(complaints(image.path()), [""; 0], "{case}");
                    assert!(sides.contains(&facts(&image.bytes())), "{case}");
                } else {
                    recover_by_e2fsck(&image);
                }
                read(&image.bytes()).assert_same(&tree);
            }
        });
        println!("{name}: {judged} states of {} events, {seen:?}", events.len());
        assert!(seen[0] > 0 && seen[1] > 0, "{name}: {seen:?}");
    }
}
