//! Larger inodes: all files stay, as the kernel and e2fsck see them, and each power cut leaves the
//! old size or the new one.

use crate::growing::recover_by_e2fsck;
use crate::oracle::{complaints, damages};
use crate::switching::{
    EXT2, EXT3, INODE_128, Kind, META_BG, NO_JOURNAL, NO_SUMS, SUMS, UNINIT_32, by_extant,
    by_kernel, every_or, features, filled, full, judge, read, superblock, tune, walk,
};
use extant_blocks::{Event, Fault, FaultDevice, MemDevice, Op, RecordingDevice};
use extant_check::tune::{Tune, TuneChanges, TuneError};
use extant_format::InodeNr;
use extant_testkit::cuts::chosen_cuts;
use extant_testkit::kernel::Mount;
use extant_testkit::{Image, dumpe2fs};
use std::fs;
use std::sync::Arc;

/// A flexible group of tables without a gap, and inodes of 128 bytes.
const SMALL: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-I", "128"];
const BLOCKS_4K: Kind = &["-t", "ext4", "-b", "4096", "-J", "size=4", "-N", "2048"];
const CLUSTERS: Kind =
    &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "bigalloc", "-C", "4096", "-N", "1024"];
const NO_FLEX: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^flex_bg"];
const MMP: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "mmp"];
const INLINE: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "inline_data"];
const FAST: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=4", "-O", "fast_commit"];

pub fn inodes_of(bytes: u32) -> TuneChanges {
    TuneChanges { inode_size: Some(bytes), ..TuneChanges::default() }
}

#[test]
fn larger_inodes_keep_all_files() {
    let cases: &[(Kind, &[u32])] = &[
        (SUMS, &[512, 1024]),
        (SMALL, &[256, 1024]),
        (INODE_128, &[256]),
        (NO_SUMS, &[512]),
        (UNINIT_32, &[512]),
        (EXT3, &[512]),
        (EXT2, &[512]),
        (NO_JOURNAL, &[512]),
        (META_BG, &[512]),
        (BLOCKS_4K, &[512, 4096]),
        (CLUSTERS, &[512]),
        (NO_FLEX, &[512]),
        (MMP, &[512]),
        (INLINE, &[512]),
        (FAST, &[512]),
    ];
    for (kind, sizes) in cases {
        let mut image = filled(kind);
        let before = read(&image.bytes());
        for size in *sizes {
            let case = format!("{kind:?} {size}");
            image.leave_unjudged("it is judged here");
            let changes = TuneChanges { label: Some(b"large".into()), ..inodes_of(*size) };
            let old = superblock(&image.bytes());
            image = tune(&image.bytes(), &changes).unwrap_or_else(|e| panic!("{case}: {e}"));
            judge(&image, &case);
            let new = superblock(&image.bytes());
            let facts = (new.inode_size(), new.inodes_count(), new.journal_inum());
            assert_eq!(facts, (*size as u16, old.inodes_count(), old.journal_inum()), "{case}");
            assert_eq!(new.volume_name(), "large", "{case}");
            assert_eq!(old.features(), new.features(), "{case}");
            read(&image.bytes()).assert_same(&before);
            if !kind.iter().any(|word| word.contains("mmp")) {
                use_by_kernel(&image, &case);
            }
        }
    }
}

/// Files of the file system itself keep their numbers, and quotas count the journal's name no more.
#[test]
fn larger_inodes_keep_quota_files() {
    let list = "quota,project,orphan_file";
    let image = tune(&filled(SUMS).bytes(), &features(list)).expect(list);
    let before = read(&image.bytes());
    let new = tune(&image.bytes(), &inodes_of(512)).expect("larger inodes");
    judge(&new, list);
    read(&new.bytes()).assert_same(&before);
}

/// The kernel sees the files, and has the new space for attributes.
fn use_by_kernel(image: &Image, case: &str) {
    let copy = image.copy();
    walk(&copy).assert_same(&read(&image.bytes()));
    let mount = Mount::new(copy.path(), "");
    for n in 0..200 {
        fs::write(mount.join(format!("dir1/new{n}")), "more").expect("space");
    }
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(mount.join("dir1/new7"), "user.v", &[7; 150], flags).expect("space");
    rustix::fs::setxattr(mount.join("dir0/file"), "user.v", &[7; 60], flags).expect("space");
    mount.unmount();
    assert_eq!(complaints(copy.path()), [""; 0], "{case}, used");
}

/// The size and other values that dumpe2fs prints are those of tune2fs, which has no `flex_bg`.
#[test]
fn the_size_of_inodes_is_that_of_tune2fs() {
    let image = Image::mke2fs(20 << 20, NO_FLEX);
    let theirs = image.copy();
    let args = ["-I".as_ref(), "512".as_ref(), theirs.path().as_os_str()];
    extant_testkit::tool::run("tune2fs", &args).must_succeed();
    let own = tune(&image.bytes(), &inodes_of(512)).expect("larger inodes");
    judge(&own, "512");
    for name in ["Inode size", "Inodes per group", "Inode blocks per group", "Free blocks"] {
        let [own, theirs] = [&own, &theirs].map(|image| dumpe2fs::header(image.path()));
        assert_eq!(own.values.get(name), theirs.values.get(name), "{name}");
    }
}

#[test]
fn impossible_sizes_of_inodes_are_refused() {
    let image = filled(SUMS).bytes();
    for (size, words) in [(300, "power of two"), (128, "smaller"), (2048, "power of two"), (0, "")]
    {
        let error = tune(&image, &inodes_of(size)).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let with = TuneChanges { inode_size: Some(512), ..features("quota") };
    let error = tune(&image, &with).expect_err("two changes").to_string();
    assert!(error.contains("a call of its own"), "{error}");
    assert_eq!(superblock(&tune(&image, &inodes_of(256)).expect("none").bytes()).inode_size(), 256);
    let error = tune(&full(SUMS), &inodes_of(512)).expect_err("a full file system");
    assert!(matches!(error, TuneError::NoSpace), "{error}");
    let error = tune(&full(NO_FLEX), &inodes_of(512)).expect_err("a full file system").to_string();
    assert!(error.contains("in a row"), "{error}");
}

/// Returns whether an event writes the superblock.
fn is_superblock(event: &Event) -> bool {
    matches!(event, Event::Write { offset: 1024, .. })
}

/// Returns whether inode 8 is written, and the journal still has another one.
fn is_unread_journal(complaints: &[String]) -> bool {
    complaints.first().is_some_and(|first| first.starts_with("Journal inode is not in use"))
}

/// After a cut at any write, the recoveries of e2fsck, the kernel and Extant give a file system
/// with all files, and with inodes of one size. Its journal may be a file.
#[test]
fn a_cut_change_of_the_size_of_inodes_is_whole_or_absent() {
    // The others only with all cuts, which take minutes.
    let all =
        [(SUMS, 512, true), (EXT3, 512, true), (NO_FLEX, 1024, true), (NO_JOURNAL, 512, false)];
    let count = if every_or(0) == 0 { 2 } else { all.len() };
    for (kind, size, has_journal) in all.into_iter().take(count) {
        let before = filled(kind).bytes();
        let (tree, old) = (read(&before), superblock(&before).inode_size());
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
        Tune::new(recorder.clone()).threads(2).apply(&inodes_of(size)).expect("a change");
        let events = recorder.log();
        let every = every_or((events.len() / 4).max(1));
        let is_chosen =
            |cut: usize| cut.is_multiple_of(every) || cut > 0 && is_superblock(&events[cut - 1]);
        let mut seen = [0, 0, 0];
        chosen_cuts(&before, &events, &is_chosen, &mut |cut, state| {
            let case = format!("{kind:?} {size}, cut {cut} of {}", events.len());
            let checked = Image::holding(&state);
            recover_by_e2fsck(&checked);
            checked.leave_unjudged("it was judged");
            read(&checked.bytes()).assert_same(&tree);
            for (program, image) in
                [("the kernel", by_kernel(&state)), ("Extant", by_extant(&state))]
            {
                let case = format!("{case}, {program}");
                let found = complaints(image.path());
                if has_journal && !is_unread_journal(&found) {
                    assert_eq!(found, [""; 0], "{case}");
                    assert_eq!(damages(&image.bytes(), true), [""; 0], "{case}");
                }
                let has_name = superblock(&image.bytes()).journal_inum().0 > InodeNr::JOURNAL.0;
                seen[2] += u64::from(has_name);
                // It takes the name of the journal away.
                recover_by_e2fsck(&image);
                read(&image.bytes()).assert_same(&tree);
                let found = superblock(&image.bytes()).inode_size();
                assert!(found == old || u32::from(found) == size, "{case}: {found}");
                seen[usize::from(found != old)] += 1;
            }
        });
        println!("{kind:?}: {} events, {seen:?}", events.len());
        assert!(seen.iter().all(|count| *count > 0), "{kind:?}: {seen:?}");
    }
}

/// A device that fails at any write leaves the size that the error tells.
#[test]
fn failed_writes_tell_the_size_of_inodes() {
    let before = filled(SUMS).bytes();
    let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
    Tune::new(recorder.clone()).apply(&inodes_of(512)).expect("a change");
    let writes = recorder.log().len() as u64;
    for nr in (0..writes).step_by((writes / 8).max(1) as usize) {
        let memory = MemDevice::from_bytes(&before);
        let device = Arc::new(FaultDevice::new(memory));
        device.inject(Fault::new(Op::Write, nr).from_then_on());
        let Err(error) = Tune::new(device.clone()).apply(&inodes_of(512)) else { continue };
        let state = Image::holding(&device.inner().to_vec());
        recover_by_e2fsck(&state);
        let size = superblock(&state.bytes()).inode_size();
        let is_new = matches!(error, TuneError::JournalNamed(_));
        assert!(!is_new || size == 512, "{error}: {size}");
        state.leave_unjudged("it was judged");
    }
}
