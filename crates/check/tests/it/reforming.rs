//! Files, directories and descriptors that get another form: all else stays, and each power cut
//! leaves a file system that is whole, or is after a repair.

use crate::oracle::complaints;
use crate::switching::{
    EXT2, EXT3, Kind, META_BG, SIZE, SUMS, UNINIT, UNINIT_32, decides, every_or, features, filled,
    judge, read, superblock, tune, walk,
};
use extant_blocks::{MemDevice, RecordingDevice};
use extant_check::debug::{InspectOptions, Inspector};
use extant_check::repair::Repair;
use extant_check::tune::{Tune, TuneChanges};
use extant_format::{Incompat, Inode, InodeFlags};
use extant_testkit::cuts::chosen_cuts;
use extant_testkit::kernel::Mount;
use extant_testkit::tool::run;
use extant_testkit::{Image, dumpe2fs};
use std::ffi::OsString;
use std::fs;
use std::sync::Arc;

/// Returns the numbers of inodes in use whose map has pointers, and of directories of several
/// blocks without an index.
fn in_old_form(bytes: &[u8]) -> [usize; 2] {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let inspector =
        Inspector::open(device, None, InspectOptions::default()).expect("a file system");
    let (sb, block) = (inspector.superblock(), inspector.geometry().block_size);
    // The directory for lost files is the first one behind those of the file system itself.
    let numbers = [2].into_iter().chain(sb.first_ino() + 1..=sb.inodes_count());
    let inodes: Vec<_> = numbers
        .filter_map(|ino| Some(inspector.inode(ino).ok()?.inode))
        .filter(|inode| inode.links > 0 && (inode.is_dir() || inode.is_regular()))
        .filter(|inode| !inode.flags.contains(InodeFlags::INLINE_DATA))
        .collect();
    let pointers = |inode: &&Inode| !inode.flags.contains(InodeFlags::EXTENTS);
    let unindexed = |inode: &&Inode| {
        let is_long = inode.is_dir() && inode.size > block.into();
        is_long && !inode.flags.contains(InodeFlags::INDEX)
    };
    [inodes.iter().filter(pointers).count(), inodes.iter().filter(unindexed).count()]
}

/// Files with pointers get extents, and long directories indexes, also if the file system has the
/// features already.
#[test]
fn files_and_directories_get_the_form_of_features() {
    for kind in [EXT2, EXT3, SUMS] {
        let image = filled(kind);
        let before = read(&image.bytes());
        let plain = tune(&image.bytes(), &features("^dir_index")).expect("no indexes");
        let marked = tune(&plain.bytes(), &TuneChanges::default()).expect("nothing to change");
        let [pointers, unindexed] = in_old_form(&marked.bytes());
        assert!((pointers > 5 || kind == SUMS) && unindexed > 0, "{pointers} {unindexed}");
        let new = tune(&marked.bytes(), &features("extent,dir_index"));
        let new = new.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        judge(&new, &format!("{kind:?}"));
        assert_eq!(in_old_form(&new.bytes()), [0, 0], "{kind:?}");
        read(&new.bytes()).assert_same(&before);
        walk(&new).assert_same(&before);
        // Nothing is left to convert.
        let again = tune(&new.bytes(), &features("extent,dir_index")).expect("again");
        let masked = |image: &Image| {
            let mut bytes = image.bytes();
            bytes.drain(..2048);
            bytes
        };
        assert!(kind != SUMS || masked(&again)[..] == masked(&new)[..], "written again");
    }
}

#[test]
fn directories_are_written_without_gaps() {
    let image = filled(SUMS);
    let mount = Mount::new(image.path(), "");
    for n in (0..1500).filter(|n| n % 10 > 0) {
        fs::remove_file(mount.join(format!("many/a longer name of no. {n}"))).expect("a file");
    }
    mount.unmount();
    let before = read(&image.bytes());
    let size = |bytes: &[u8]| {
        let device = Arc::new(MemDevice::from_bytes(bytes));
        let inspector = Inspector::open(device, None, InspectOptions::default()).expect("one");
        let ino = inspector.resolve(b"/many").expect("a directory");
        inspector.inode(ino).expect("an inode").inode.size
    };
    let changes = TuneChanges { compacts_directories: true, ..TuneChanges::default() };
    let new = tune(&image.bytes(), &changes).expect("compact directories");
    judge(&new, "compact");
    assert!(size(&new.bytes()) * 4 < size(&image.bytes()), "{}", size(&new.bytes()));
    read(&new.bytes()).assert_same(&before);
    walk(&new).assert_same(&before);
}

/// Twenty groups, whose descriptors of 64 bytes need a further block.
const NARROW: Kind =
    &["-t", "ext4", "-b", "1024", "-g", "1024", "-J", "size=1", "-O", "^64bit,metadata_csum"];

/// Without extents, which wide descriptors take.
const POINTERS: Kind = &["-t", "ext3", "-b", "1024", "-J", "size=1", "-O", "uninit_bg"];

/// Descriptors get both lengths, and the file system keeps all else.
#[test]
fn descriptors_get_another_length() {
    for (kind, lists) in [
        (NARROW, ["64bit", "^64bit"]),
        (UNINIT_32, ["64bit", "^64bit"]),
        (SUMS, ["^64bit", "64bit"]),
        (UNINIT, ["^64bit", "64bit"]),
    ] {
        let mut image = filled(kind);
        let before = read(&image.bytes());
        for list in lists {
            let case = format!("{kind:?} {list}");
            image.leave_unjudged("it is judged here");
            image = tune(&image.bytes(), &features(list)).unwrap_or_else(|e| panic!("{case}: {e}"));
            judge(&image, &case);
            let dump = dumpe2fs::header(image.path());
            assert_eq!(dump.features().contains("64bit"), list == "64bit", "{case}");
            walk(&image).assert_same(&before);
            read(&image.bytes()).assert_same(&before);
        }
    }
    for (kind, list, words) in [
        (EXT3, "64bit", "checksums"),
        (META_BG, "^64bit", "meta_bg"),
        (POINTERS, "64bit", "extent"),
    ] {
        let image = Image::mke2fs(SIZE, kind).bytes();
        let error = tune(&image, &features(list)).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// After a cut at any write, the repairs of e2fsck and Extant give a file system with all files,
/// and with descriptors of one length.
#[test]
fn a_cut_change_of_descriptors_is_repaired() {
    for (kind, list) in [(NARROW, "64bit"), (UNINIT_32, "64bit"), (SUMS, "^64bit")] {
        let before = filled(kind).bytes();
        let tree = read(&before);
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
        Tune::new(recorder.clone()).threads(2).apply(&features(list)).expect("a change");
        let is_wide = |bytes: &[u8]| superblock(bytes).incompat().contains(Incompat::BIT64);
        let events = recorder.log();
        let every = every_or((events.len() / 12).max(1));
        let (mut seen, start) = ([0, 0], is_wide(&before));
        let is_chosen = |cut: usize| {
            cut.is_multiple_of(every)
                || cut < 8
                || decides(&events[cut - 1])
                || cut + 3 > events.len()
        };
        chosen_cuts(&before, &events, &is_chosen, &mut |cut, state| {
            let case = format!("{kind:?} {list}, cut {cut} of {}", events.len());
            let checked = Image::holding(&state);
            checked.leave_unjudged("it is judged here");
            run("e2fsck", &[OsString::from("-fy"), checked.path().into()]);
            assert_eq!(complaints(checked.path()), [""; 0], "{case}, e2fsck");
            read(&checked.bytes()).assert_same(&tree);
            let device = Arc::new(MemDevice::from_bytes(&state));
            let plan = Repair::new(device.clone()).plan(&mut |_| ());
            let plan = plan.unwrap_or_else(|error| panic!("{case}: {error}"));
            plan.apply().unwrap_or_else(|error| panic!("{case}: {error}"));
            let image = Image::holding(&device.to_vec());
            image.leave_unjudged("it is judged here");
            judge(&image, &case);
            read(&image.bytes()).assert_same(&tree);
            assert_eq!(is_wide(&checked.bytes()), is_wide(&image.bytes()), "{case}");
            seen[usize::from(is_wide(&image.bytes()) != start)] += 1;
        });
        assert!(seen[0] > 0 && seen[1] > 0, "{list}: {seen:?}");
    }
}
