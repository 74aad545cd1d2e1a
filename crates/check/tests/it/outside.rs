//! Journals that move to a device of their own, and back.

use crate::oracle::complaints;
use crate::switching::{decides, filled, superblock};
use extant_blocks::{BlockDevice, MemDevice, PartDevice, Place, RecordingDevice};
use extant_check::tune::{JournalSize, Tune, TuneChanges, TuneError};
use extant_format::InodeNr;
use extant_testkit::cuts::chosen_cuts;
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::run;
use extant_testkit::tree::Manifest;
use extant_testkit::{Image, dumpe2fs};
use std::ffi::OsString;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Offset of the log's superblock on its device, in blocks of 1 KiB.
const JOURNAL: usize = 2048;

/// Arguments to mke2fs.
type Kind = &'static [&'static str];

const SUMS: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1"];
const ORPHANS: Kind = &["-t", "ext4", "-b", "4096", "-J", "size=4", "-O", "orphan_file"];
const EXT3: Kind = &["-t", "ext3", "-b", "1024", "-J", "size=1"];
const FAST: Kind = &["-t", "ext4", "-b", "4096", "-J", "size=8", "-O", "fast_commit"];
const BIGALLOC: Kind =
    &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "bigalloc,^metadata_csum", "-C", "4096"];
const NO_JOURNAL: Kind = &["-t", "ext4", "-b", "1024", "-O", "^has_journal"];

fn outside() -> TuneChanges {
    TuneChanges { journal_device: Some(0), ..TuneChanges::default() }
}

fn inside() -> TuneChanges {
    let journal_size = Some(JournalSize::Bytes(4 * MIB));
    TuneChanges { journal_size, ..TuneChanges::default() }
}

fn journal_of(block_size: u32) -> Image {
    let size = block_size.to_string();
    let journal = Image::mke2fs(8 * MIB, &["-b", &size, "-O", "journal_dev"]);
    journal.leave_unjudged("it is no file system");
    journal
}

/// A file system and the device of its journal in memory.
struct Pair {
    device: Arc<MemDevice>,
    journal: Arc<MemDevice>,
}

impl Pair {
    fn of(image: &[u8], journal: &[u8]) -> Pair {
        let device = |bytes| Arc::new(MemDevice::from_bytes(bytes));
        Pair { device: device(image), journal: device(journal) }
    }

    fn tune(&self) -> Tune {
        Tune::new(self.device.clone()).threads(2)
    }

    fn image(&self) -> Image {
        held(&self.device.to_vec())
    }

    fn journal(&self) -> Image {
        held(&self.journal.to_vec())
    }
}

fn held(bytes: &[u8]) -> Image {
    let image = Image::holding(bytes);
    image.leave_unjudged("it is judged here, with its journal");
    image
}

fn is_outside(bytes: &[u8]) -> bool {
    superblock(bytes).journal_inum() == InodeNr::NONE
}

fn e2fsck(options: &str, image: &Image, on: &Loop) -> i32 {
    let journal: OsString = on.device().into();
    let checked = run("e2fsck", &[options.into(), "-j".into(), journal, image.path().into()]);
    assert!(checked.code <= 1, "{checked}");
    checked.code
}

/// Reads all files through the kernel's mount, which may write first.
fn by_kernel(image: &Image, on: &Loop) -> Manifest {
    let named = format!("journal_path={}", on.device().display());
    let options = if is_outside(&image.bytes()) { named.as_str() } else { "" };
    let mount = Mount::new(image.path(), options);
    let tree = Manifest::walk(mount.path()).without_root();
    std::fs::write(mount.join("new"), "text").expect("space");
    std::fs::remove_file(mount.join("new")).expect("a file");
    mount.unmount();
    tree
}

#[test]
fn journals_move_outside_and_back() {
    for kind in [SUMS, ORPHANS, EXT3, FAST, BIGALLOC, NO_JOURNAL] {
        let before = filled(kind);
        let uuid = dumpe2fs::header(before.path()).value("Filesystem UUID").to_owned();
        let bytes = before.bytes();
        let pair = Pair::of(&bytes, &journal_of(superblock(&bytes).block_size()).bytes());
        let tree = by_kernel(&held(&bytes), &Loop::attach(pair.journal().path(), false));
        let moved = pair.tune().new_journal(pair.journal.clone()).apply(&outside());
        let new = moved.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert_eq!(new.journal_inum(), InodeNr::NONE, "{kind:?}");
        let (image, journal) = (pair.image(), pair.journal());
        assert_eq!(dumpe2fs::dump(journal.path()).value("Journal users"), uuid, "{kind:?}");
        let on = Loop::attach(journal.path(), false);
        assert_eq!(e2fsck("-fn", &image, &on), 0, "{kind:?}");
        by_kernel(&image, &on).assert_same(&tree);
        assert_eq!(e2fsck("-fn", &image, &on), 0, "{kind:?}");
        drop(on);

        let pair = Pair::of(&image.bytes(), &journal.bytes());
        let error = pair.tune().apply(&inside()).expect_err("no journal is named");
        assert!(error.to_string().contains("journal"), "{kind:?}: {error}");
        assert!(pair.device.to_vec() == image.bytes(), "{kind:?}: refused, but written");
        let back = pair.tune().journal(pair.journal.clone()).apply(&inside());
        back.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        let (image, journal) = (pair.image(), pair.journal());
        assert_eq!(complaints(image.path()), [""; 0], "{kind:?}");
        let users = dumpe2fs::dump(journal.path()).values.get("Journal users").cloned();
        assert_eq!(users.as_deref().unwrap_or("<none>"), "<none>", "{kind:?}");
        let on = Loop::attach(journal.path(), false);
        by_kernel(&image, &on).assert_same(&tree);
        assert_eq!(complaints(image.path()), [""; 0], "{kind:?}");
    }
}

#[test]
fn unsuitable_devices_are_refused() {
    let bytes = filled(SUMS).bytes();
    let other = Image::mke2fs(8 * MIB, &["-t", "ext4", "-b", "1024"]);
    let used = Pair::of(&bytes, &journal_of(1024).bytes());
    let renamed = TuneChanges { uuid: Some([7; 16]), ..TuneChanges::default() };
    used.tune().apply(&renamed).expect("a UUID");
    used.tune().new_journal(used.journal.clone()).apply(&outside()).expect("a change");
    // Changes of a copy of this file system.
    let own = Pair::of(&bytes, &journal_of(1024).bytes());
    own.tune().new_journal(own.journal.clone()).apply(&outside()).expect("a change");
    let mut dirty = own.journal.to_vec();
    let (first, start) = (JOURNAL + 20, JOURNAL + 28);
    dirty.copy_within(first..first + 4, start);
    let cases = [
        (dirty, "with changes of a file system"),
        (vec![0; MIB as usize], "extant mkfs -O journal_dev -b 1024"),
        (other.bytes(), "external journal"),
        (journal_of(4096).bytes(), "4096"),
        (used.journal.to_vec(), "another file system"),
    ];
    for (journal, why) in cases {
        let pair = Pair::of(&bytes, &journal);
        let tuned = pair.tune().new_journal(pair.journal.clone()).apply(&outside());
        let error = tuned.expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
        assert!(pair.device.to_vec() == bytes && pair.journal.to_vec() == journal, "{why}");
    }
    let both = TuneChanges { journal_size: Some(JournalSize::Default), ..outside() };
    let pair = Pair::of(&bytes, &[0; 4096]);
    assert!(matches!(pair.tune().apply(&both), Err(TuneError::Invalid(_))));
}

/// After a cut at any write, the recoveries of e2fsck, of the kernel and of Extant give a file
/// system with all files, whose journal is in the old place or the new one.
#[test]
fn a_cut_move_is_whole_or_absent() {
    let filled = filled(SUMS).bytes();
    let journal = journal_of(1024).bytes();
    let pair = Pair::of(&filled, &journal);
    pair.tune().new_journal(pair.journal.clone()).apply(&outside()).expect("a change");
    let moved = [pair.device.to_vec(), pair.journal.to_vec()].concat();
    for (changes, before) in [(outside(), [filled.clone(), journal].concat()), (inside(), moved)] {
        let size = filled.len();
        let tree = by_kernel(&held(&filled), &Loop::attach(held(&before).path(), false));
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
        let whole: Arc<dyn BlockDevice> = recorder.clone();
        let part = PartDevice::at(whole.clone(), Place::Offset(size as u64)).expect("a part");
        let tune = Tune::new(whole).threads(2);
        let goes_outside = changes.journal_device.is_some();
        let tune = if goes_outside { tune.new_journal(part) } else { tune.journal(part) };
        tune.apply(&changes).expect("a change");
        let events = recorder.log();
        let every = (events.len() / 3).max(1);
        let mut seen = [0, 0];
        let is_chosen = |cut: usize| {
            cut.is_multiple_of(every)
                || cut > 0 && decides(&events[cut - 1])
                || cut + 3 > events.len()
        };
        chosen_cuts(&before, &events, &is_chosen, &mut |_, state| {
            let (image, journal) = state.split_at(size);
            let side = is_outside(image);
            seen[usize::from(side)] += 1;
            for recovers in [by_kernel, |image: &Image, on: &Loop| {
                e2fsck("-fy", image, on);
                by_kernel(image, on)
            }] {
                let (image, journal) = (held(image), held(journal));
                let on = Loop::attach(journal.path(), false);
                recovers(&image, &on).assert_same(&tree);
                e2fsck("-fy", &image, &on);
                assert_eq!(e2fsck("-fn", &image, &on), 0);
                assert_eq!(is_outside(&image.bytes()), side, "the write of the superblock counts");
            }
            let by_extant = Pair::of(image, journal);
            let options = extant_engine::OpenOptions::new().journal_on(by_extant.journal.clone());
            let fs = extant_engine::Fs::open_device(by_extant.device.clone(), &options);
            fs.expect("a file system").unmount().expect("a device in memory");
            let (image, journal) = (by_extant.image(), by_extant.journal());
            let on = Loop::attach(journal.path(), false);
            e2fsck("-fy", &image, &on);
            by_kernel(&image, &on).assert_same(&tree);
        });
        println!("{} events, {seen:?}", events.len());
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }
}
