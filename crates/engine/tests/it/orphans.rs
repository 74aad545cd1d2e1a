//! Orphans: many at once, more than the orphan file holds, with wrong records; recovered by Extant,
//! e2fsck and the kernel.

use crate::crash::{Setup, Stage, record, setup, sweep};
use extant_blocks::{Fault, FaultDevice, Op};
use extant_engine::{Caller, Fs, Node, NodeKind, OpenFlags, OpenOptions};
use extant_format::superblock::ErrorPolicy;
use extant_format::{InodeNr, RoCompat, orphan};
use extant_hostile::atlas::{Atlas, Kind, change_superblock};
use extant_testkit::Memory;
use extant_testkit::image::Image;
use extant_testkit::kernel::Mount;
use extant_testkit::{FeatureSet, e2fsck};
use std::sync::Arc;

/// An orphan file of a single block, with 254 slots. `mke2fs` takes a size without a unit in
/// blocks.
const ONE_BLOCK: Setup = setup(
    "orphans in a small file",
    &[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-N",
        "2048",
        "-O",
        "orphan_file",
        "-E",
        "orphan_file_size=1",
        "-J",
        "size=1",
    ],
);
const LIST: Setup = setup(
    "orphans in the list",
    &["-t", "ext4", "-b", "1024", "-N", "2048", "-O", "^orphan_file", "-J", "size=1"],
);
const SLOTS: u64 = 254;

fn new_file(fs: &Fs, dir: &Node, name: &str) -> Node {
    fs.create(dir, name.as_bytes(), 0o644, NodeKind::File).expect(name)
}

/// Makes a file, holds it and removes its name.
fn new_orphan(fs: &Fs, dir: &Node, name: &str) -> Node {
    let node = new_file(fs, dir, name);
    node.hold(1).expect(name);
    fs.unlink(dir, name.as_bytes()).expect(name);
    node
}

/// Several threads make orphans, more than the file has slots, and release some.
fn many(stage: &mut Stage) {
    let root = stage.root();
    let fs = &stage.fs;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let root = &root;
            scope.spawn(move || {
                let dir = fs.create(root, &[b'a' + thread], 0o755, NodeKind::Dir).expect("mkdir");
                let mut held = Vec::new();
                for i in 0..90 {
                    held.push(new_orphan(fs, &dir, &format!("f{i}")));
                    if i % 30 == 29 {
                        fs.sync_node(root, false).expect("fsync");
                        held.drain(..10).for_each(|node| fs.release(&node, 1));
                    }
                }
            });
        }
    });
    stage.fs.sync().expect("sync");
    assert!(stage.fs.stats().orphans.added >= 360);
}

#[test]
fn power_cuts_among_many_orphans_in_the_file_and_the_list() {
    for setup in [ONE_BLOCK, LIST] {
        sweep(setup.name, &record(setup, false, many), 120, 1);
    }
}

/// An image with so many orphans, copied from a frozen file system: its journal is empty.
fn left(args: &[&str], orphans: u64) -> Vec<u8> {
    let image = Image::mke2fs(8 << 20, args);
    let device = Arc::new(Memory::from_bytes(&image.bytes()));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    let held: Vec<Node> = (0..orphans).map(|i| new_orphan(&fs, &root, &format!("f{i}"))).collect();
    let frozen = fs.freeze().expect("freeze");
    let bytes = device.to_vec();
    frozen.thaw().expect("thaw");
    fs.crash();
    drop(held);
    bytes
}

fn save(bytes: &[u8]) -> Image {
    let image = Image::blank(bytes.len() as u64);
    std::fs::write(image.path(), bytes).expect("an image file");
    image
}

#[test]
fn a_full_orphan_file_overflows_and_all_recoveries_read_both() {
    let image = Image::mke2fs(8 << 20, ONE_BLOCK.args);
    let device = Arc::new(Memory::from_bytes(&image.bytes()));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    let held: Vec<Node> =
        (0..SLOTS + 40).map(|i| new_orphan(&fs, &root, &format!("f{i}"))).collect();
    let stats = fs.stats().orphans;
    assert_eq!((stats.added, stats.listed, stats.removed), (SLOTS + 40, 40, 0));
    // A slot that came free is used again.
    fs.release(&held[3], 1);
    while fs.stats().orphans.removed == 0 {
        std::thread::yield_now();
    }
    let _again = new_orphan(&fs, &root, "again");
    assert_eq!(fs.stats().orphans.listed, 40);
    fs.sync().expect("sync");
    fs.crash();
    let bytes = device.to_vec();

    let verdict = e2fsck::recover(save(&bytes).path());
    assert!(verdict.is_clean(), "{verdict:?}");

    let by_kernel = save(&bytes);
    Mount::new(by_kernel.path(), "rw").unmount();
    by_kernel.assert_clean();

    let device = Arc::new(Memory::from_bytes(&bytes));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
    assert_eq!((fs.recovery().orphans.freed, fs.recovery().orphans.invalid), (SLOTS + 40, 0));
    fs.unmount().expect("unmount");
    save(&device.to_vec()).assert_clean();
}

/// A file that is created without a name has an orphan record from its creation: after a power cut
/// it is freed.
#[test]
fn a_nameless_file_is_freed_after_a_power_cut() {
    for setup in [ONE_BLOCK, LIST] {
        let image = Image::mke2fs(8 << 20, setup.args);
        let device = Arc::new(Memory::from_bytes(&image.bytes()));
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
        let root = fs.root().expect("root");
        let node = fs.create_nameless(&Caller::default(), &root, 0o600).expect("O_TMPFILE");
        fs.write_direct(&node, 0, &[7; 5000], false).expect("write");
        fs.sync().expect("sync");
        fs.crash();
        drop((node, root));
        let bytes = device.to_vec();
        let verdict = e2fsck::recover(save(&bytes).path());
        assert!(verdict.is_clean(), "{}: {verdict:?}", setup.name);
        let device = Arc::new(Memory::from_bytes(&bytes));
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
        assert_eq!(
            (fs.recovery().orphans.freed, fs.recovery().orphans.invalid),
            (1, 0),
            "{}",
            setup.name
        );
        fs.unmount().expect("unmount");
        save(&device.to_vec()).assert_clean();
    }
}

#[test]
fn wrong_records_are_dropped_and_right_ones_kept() {
    let mut image = left(ONE_BLOCK.args, 3);
    let atlas = Atlas::of(&image);
    let piece = atlas.of_kind(Kind::OrphanBlock).next().expect("an orphan block").clone();
    let block = &mut image[piece.bytes.clone()];
    let used: Vec<(usize, u32)> = orphan::used(block).collect();
    assert_eq!(used.len(), 3, "{used:?}");
    // The root, a number that is free, one past the end, the journal; an orphan twice.
    let wrong = [2, 2000, 0xFFFF_FFFF, 8, used[0].1];
    let empty: Vec<usize> =
        (0..254).rev().filter(|slot| orphan::get(block, *slot) == 0).take(wrong.len()).collect();
    for (slot, ino) in empty.into_iter().zip(wrong) {
        orphan::put(block, slot, ino);
    }
    atlas.seal(&mut image, &piece);
    let device = Arc::new(Memory::from_bytes(&image));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
    assert_eq!((fs.recovery().orphans.freed, fs.recovery().orphans.invalid), (3, 5));
    fs.unmount().expect("unmount");
    save(&device.to_vec()).assert_clean();
}

#[test]
fn a_damaged_orphan_block_of_a_closed_file_system_is_left_alone() {
    let image = Image::mke2fs(8 << 20, ONE_BLOCK.args);
    let mut bytes = image.bytes();
    let atlas = Atlas::of(&bytes);
    let place = atlas.of_kind(Kind::OrphanBlock).next().expect("an orphan block").bytes.clone();
    bytes[place.end - 8] ^= 1;
    let device = Arc::new(Memory::from_bytes(&bytes));
    device.leave_unjudged("an orphan block is damaged");
    let fs =
        Fs::open_device(device.clone(), &OpenOptions::new()).expect("no operation needs the block");
    let root = fs.root().expect("root");
    let held: Vec<Node> = (0..5).map(|i| new_orphan(&fs, &root, &format!("f{i}"))).collect();
    assert_eq!(fs.stats().orphans.listed, 5);
    held.iter().for_each(|node| fs.release(node, 1));
    fs.unmount().expect("unmount");
    let after = device.to_vec();
    assert_eq!(after[place.clone()], bytes[place.clone()]);
    // With the original block, nothing else is wrong.
    let mut mended = after;
    mended[place.end - 8] ^= 1;
    save(&mended).assert_clean();
    // If the file may contain records, nothing is changed before a repair.
    change_superblock(&mut bytes, |sb| {
        let mut features = sb.features();
        features.ro_compat |= RoCompat::ORPHAN_PRESENT;
        sb.set_features(features);
    });
    let device = Arc::new(Memory::from_bytes(&bytes));
    device.leave_unjudged("an orphan block is damaged");
    assert!(Fs::open_device(device, &OpenOptions::new()).is_err());
}

#[test]
fn a_record_is_written_only_where_a_crash_would_leave_work() {
    let image = FeatureSet::named("orphan_file").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    let node = new_file(&fs, &root, "file");
    let file =
        fs.open_file(&node, OpenFlags { write: true, ..OpenFlags::default() }).expect("open");
    file.write_at(0, &[1; 100_000]).expect("write");
    fs.sync().expect("sync");
    for size in (0..100_000).rev().step_by(997) {
        file.set_len(size).expect("truncate");
    }
    assert_eq!(fs.stats().orphans.added, 0, "each is one transaction");
    drop(file);
    fs.unlink(&root, b"file").expect("unlink");
    let stats = fs.stats().orphans;
    assert_eq!((stats.added, stats.removed), (1, 1));
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn a_circular_orphan_list_is_cut() {
    let mut image = left(LIST.args, 4);
    let atlas = Atlas::of(&image);
    let head = extant_hostile::atlas::superblock(&image).last_orphan();
    let mut chain = vec![head];
    while let Some(next) =
        chain.last().map(|ino| InodeNr(atlas.read_inode(&image, ino.0).dtime)).filter(|n| n.0 != 0)
    {
        chain.push(next);
    }
    assert_eq!(chain.len(), 4, "{chain:?}");
    atlas.change_inode(&mut image, chain[3].0, |inode| inode.dtime = chain[1].0);
    let device = Arc::new(Memory::from_bytes(&image));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
    assert_eq!((fs.recovery().orphans.freed, fs.recovery().orphans.invalid), (4, 1));
    fs.unmount().expect("unmount");
    save(&device.to_vec()).assert_clean();
}

/// A thread that releases a file without a name, and syncs, has its space back, although another
/// thread frees it.
#[test]
fn a_sync_waits_until_released_orphans_are_freed() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    fs.sync().expect("sync");
    let free = fs.usage().free;
    for round in 0..40 {
        let node = new_file(&fs, &root, "file");
        let file =
            fs.open_file(&node, OpenFlags { write: true, ..OpenFlags::default() }).expect("open");
        file.write_at(0, &vec![1; 2 << 20]).expect("write");
        fs.unlink(&root, b"file").expect("unlink");
        if round % 2 == 0 {
            fs.sync().expect("sync");
        }
        drop(file);
        fs.sync().expect("sync");
        assert_eq!(fs.usage().free, free, "round {round}");
    }
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// The unreadable parts of an orphan.
const BROKEN: [&str; 5] = ["map", "attributes", "bitmap", "inode bitmap", "inode"];

/// Orphans in a group of their own, each with a map outside the inode and an attribute block, one
/// of which cannot be read: the image, the orphans' numbers in the order of their recovery, and the
/// bytes that cannot be read.
fn with_broken(args: &[&str], what: &str) -> (Vec<u8>, std::ops::Range<u64>) {
    let image = Image::mke2fs(32 << 20, args);
    let device = Arc::new(Memory::from_bytes(&image.bytes()));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    let mut broken = 0;
    let held: Vec<Node> = (0..60)
        .map(|n| {
            let node = new_file(&fs, &root, &format!("f{n}"));
            if n == 30 {
                broken = node.ino() as u32;
            }
            let file = fs
                .open_file(&node, OpenFlags { write: true, ..OpenFlags::default() })
                .expect("open");
            (0..20).for_each(|i| {
                assert_eq!(file.write_at(i * 4096, &[n; 1024]).expect("write"), 1024)
            });
            fs.set_xattr(&node, b"user.long", &[n; 700], extant_engine::XattrMode::Create)
                .expect("an attribute block");
            node.hold(1).expect("hold");
            node
        })
        .collect();
    fs.sync().expect("sync");
    // The numbers of others lie in other blocks of the table, and the record of the one that is
    // broken comes neither first nor last.
    (0..60).for_each(|n| fs.unlink(&root, format!("f{n}").as_bytes()).expect("unlink"));
    drop(root);
    let frozen = fs.freeze().expect("freeze");
    let bytes = device.to_vec();
    frozen.thaw().expect("thaw");
    fs.crash();
    drop(held);
    let atlas = Atlas::of(&bytes);
    let inode = atlas.read_inode(&bytes, broken);
    let piece = |kind| {
        let of = atlas.blocks_of(broken, inode.generation);
        of.into_iter().find(|piece| piece.kind == kind).expect("a block of the map").bytes.clone()
    };
    let place = match what {
        "map" if args.contains(&"ext3") => {
            let nr = u32::from_le_bytes([
                inode.i_block[48],
                inode.i_block[49],
                inode.i_block[50],
                inode.i_block[51],
            ]);
            atlas.block(nr.into())
        }
        "map" => piece(Kind::ExtentBlock),
        "attributes" => atlas.block(inode.file_acl),
        "inode" => {
            let start = atlas.slot(broken).bytes.start & !1023;
            start..start + 1024
        }
        "inode bitmap" => atlas.of_kind(Kind::InodeBitmap).next().expect("a bitmap").bytes.clone(),
        _ => atlas.of_kind(Kind::BlockBitmap).next().expect("a bitmap").bytes.clone(),
    };
    (bytes, place.start as u64..place.end as u64)
}

const BROKEN_KINDS: [&[&str]; 3] = [
    &["-t", "ext4", "-b", "1024", "-I", "128", "-O", "orphan_file,^flex_bg"],
    &["-t", "ext4", "-b", "1024", "-I", "128", "-O", "^orphan_file,^flex_bg"],
    &["-t", "ext3", "-b", "1024", "-I", "128"],
];

#[test]
fn an_orphan_that_cannot_be_read_keeps_its_record_and_writers_go_on() {
    for (args, what) in BROKEN_KINDS.iter().flat_map(|args| BROKEN.map(|what| (args, what))) {
        let (bytes, place) = with_broken(args, what);
        let device = Arc::new(FaultDevice::new(Memory::from_bytes(&bytes)));
        device.inject(Fault::new(Op::Read, 0).from_then_on().within(place.clone()));
        let options = OpenOptions::new().errors(ErrorPolicy::Continue);
        let fs = Fs::open_device(device.clone(), &options)
            .unwrap_or_else(|e| panic!("{args:?}, {what}: {e}"));
        let report = fs.recovery().orphans;
        assert!(report.kept > 0 && report.invalid == 0, "{args:?}, {what}: {report:?}");
        if ["map", "attributes"].contains(&what) {
            assert_eq!((report.freed, report.kept), (59, 1), "{args:?}, {what}");
        }
        assert!(!fs.is_read_only(), "{args:?}, {what}");
        let root = fs.root().expect("root");
        if what != "inode bitmap" {
            let dir = fs.create(&root, b"dir", 0o755, NodeKind::Dir).expect("mkdir");
            drop(new_orphan(&fs, &dir, "held"));
            new_file(&fs, &dir, "file");
        }
        drop(root);
        fs.unmount().unwrap_or_else(|e| panic!("{args:?}, {what}: {e}"));
        device.heal();
        // Nothing was lost: when the block is readable again, the next recovery completes the work.
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open again");
        let rest = fs.recovery().orphans;
        assert_eq!((rest.kept, rest.invalid), (0, 0), "{args:?}, {what}");
        assert!(rest.freed >= report.kept, "{args:?}, {what}: {report:?}, then {rest:?}");
        fs.unmount().expect("unmount");
        let image = save(&device.inner().to_vec());
        clear_errors(&image);
        image.assert_clean();
    }
}

/// Clears the errors that the first recovery recorded in the superblock.
fn clear_errors(image: &Image) {
    let printed = e2fsck::repair(image.path());
    assert!(printed.code <= 1 && !printed.text().to_lowercase().contains("orphan"), "{printed}");
}

#[test]
fn an_orphan_that_cannot_be_read_stops_changes_where_the_policy_says_so() {
    for args in BROKEN_KINDS {
        let (bytes, place) = with_broken(args, "map");
        let device = Arc::new(FaultDevice::new(Memory::from_bytes(&bytes)));
        device.inject(Fault::new(Op::Read, 0).from_then_on().within(place));
        let options = OpenOptions::new().errors(ErrorPolicy::RemountReadOnly);
        let fs = Fs::open_device(device.clone(), &options).expect("it opens as a kernel mounts it");
        let report = fs.recovery().orphans;
        assert!(report.kept > 0, "{args:?}: {report:?}");
        assert!(fs.is_read_only());
        assert!(fs.recovery().read_only.is_some(), "opening says why");
        assert!(fs.create(&fs.root().expect("root"), b"new", 0o644, NodeKind::File).is_err());
        assert!(fs.unmount().is_err(), "closing tells that changes were stopped");
        device.heal();
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open again");
        let rest = fs.recovery().orphans;
        // Those that were freed are there again if the stop came before the commit.
        assert!(
            report.freed + rest.freed >= 60 && rest.kept == 0,
            "{args:?}: {report:?}, then {rest:?}"
        );
        fs.unmount().expect("unmount");
        let image = save(&device.inner().to_vec());
        clear_errors(&image);
        image.assert_clean();
    }
}
