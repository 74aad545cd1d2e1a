//! Edits and repairs that exceed the journal: through a larger one, wholly or not at all.

use crate::claims::claimed;
use crate::edits::{plan, put, tree, tree_of};
use crate::growing::recover_by_e2fsck;
use crate::oracle::{complaints, damages};
use extant_blocks::{
    BlockDevice, Event, Fault, FaultDevice, MemDevice, Op, OverlayDevice, RecordingDevice,
};
use extant_check::edit::{Edit, EditBase, EditError};
use extant_check::repair::{NoLargerLog, OfflineError, Repair, RepairError, restore};
use extant_engine::{Follow, Fs, NodeKind, OpenOptions, RenameFlags, SetAttr, XattrMode};
use extant_format::jbd2::JournalSuperblock;
use extant_format::{Geometry, Superblock};
use extant_testkit::cuts::chosen_cuts;
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::run;
use extant_testkit::tree::Manifest;
use extant_testkit::{Image, debugfs};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::{Arc, Mutex};

type Device = Arc<dyn BlockDevice>;

const MIB: u64 = 1 << 20;

/// Files with a block of attributes each: more blocks than the smallest journal has.
const FILES: u32 = 1100;

/// The blocks of the smallest journal.
const LOG: u64 = 1024;

/// A kind of file systems: the bytes of the image, and arguments of mke2fs.
type Kind = (&'static str, u64, &'static [&'static str]);

const KINDS: &[Kind] = &[
    ("2k", 20 * MIB, &["-t", "ext4", "-b", "2048", "-J", "size=2"]),
    ("4k", 40 * MIB, &["-t", "ext4", "-b", "4096", "-J", "size=4", "-O", "orphan_file"]),
    ("ext3", 12 * MIB, &["-t", "ext3", "-b", "1024", "-J", "size=1"]),
    ("inode_128", 12 * MIB, &["-t", "ext4", "-b", "1024", "-J", "size=1", "-I", "128"]),
    ("no_csum", 12 * MIB, &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^metadata_csum"]),
    ("no_64bit", 12 * MIB, &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^64bit"]),
    ("groups", 12 * MIB, &["-t", "ext4", "-b", "1024", "-J", "size=1", "-g", "1024"]),
    (
        "uninit_bg",
        12 * MIB,
        &["-t", "ext4", "-b", "1024", "-J", "size=1", "-g", "1024", "-O", UNINIT],
    ),
    ("meta_bg", 12 * MIB, &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", META_BG]),
    (
        "bigalloc",
        40 * MIB,
        &["-t", "ext4", "-b", "4096", "-J", "size=4", "-O", "bigalloc", "-C", "8192"],
    ),
    ("fast_commit", 40 * MIB, &["-t", "ext4", "-b", "4096", "-J", "size=4", "-O", "fast_commit"]),
    ("quota", 12 * MIB, &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "quota"]),
    ("64k", 240 * MIB, &["-t", "ext4", "-b", "65536", "-J", "size=64"]),
];

const UNINIT: &str = "uninit_bg,^metadata_csum,^flex_bg";
const META_BG: &str = "meta_bg,^resize_inode";

fn kind(name: &str) -> Kind {
    *KINDS.iter().find(|(known, ..)| *known == name).expect("a kind")
}

/// Gives a file a value that no other file has, which needs a block of its own.
fn set_value(fs: &Fs, n: u32, byte: u8) {
    let node = fs.resolve(format!("/dir{}/{n}", n / 200), Follow::No).expect("a file");
    let mut value = vec![byte; 500];
    value[..4].copy_from_slice(&n.to_be_bytes());
    fs.set_xattr(&node, b"user.value", &value, XattrMode::Any).expect("space");
}

/// Returns an image with files that have attributes. Tests share those of a kind.
fn filled(kind: Kind) -> Vec<u8> {
    static IMAGES: Mutex<BTreeMap<&str, Arc<Vec<u8>>>> = Mutex::new(BTreeMap::new());
    let known = IMAGES.lock().expect("no panic").get(kind.0).cloned();
    let image = known.unwrap_or_else(|| {
        let made = Arc::new(make(kind));
        IMAGES.lock().expect("no panic").entry(kind.0).or_insert(made).clone()
    });
    image.to_vec()
}

fn make((_, bytes, args): Kind) -> Vec<u8> {
    let image = Image::mke2fs(bytes, args);
    image.leave_unjudged("its content is judged later");
    let device = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("a file system");
    let root = fs.root().expect("a root");
    for n in 0..FILES {
        if n % 200 == 0 {
            let name = format!("dir{}", n / 200);
            fs.create(&root, name.as_bytes(), 0o755, NodeKind::Dir).expect("space");
        }
        put(&fs, &format!("/dir{}/{n}", n / 200), b"");
        set_value(&fs, n, 1);
    }
    put(&fs, "/removed", &[3; 300_000]);
    put(&fs, "/moved", b"text");
    fs.unmount().expect("a device in memory");
    device.to_vec()
}

fn free(fs: &Fs) -> u64 {
    fs.usage().available
}

/// Changes all attributes in place, and some files besides.
fn change(fs: &Fs) {
    let root = fs.root().expect("a root");
    (0..FILES).for_each(|n| set_value(fs, n, 2));
    put(fs, "/new", &[8; 200_000]);
    fs.unlink(&root, b"removed").expect("a file");
    fs.rename((&root, b"moved"), (&root, b"name"), RenameFlags::empty()).expect("a move");
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    fs.set_attr(&root, &set).expect("a change");
}

/// Returns the inode of the journal, with its map, in words.
fn journal(image: &Image) -> String {
    debugfs::read(image.path(), "stat <8>")
}

#[track_caller]
fn judge(bytes: &[u8], case: &str) -> Image {
    let image = Image::holding(bytes);
    assert_eq!(complaints(image.path()), [""; 0], "{case}");
    image
}

/// Judges one of many states: without the trees of the kernel, which recovers some of them.
#[track_caller]
fn judge_state(bytes: &[u8], case: &str) {
    judge(bytes, case).leave_unjudged("e2fsck has judged it");
}

/// The result is that of a mount, and the file system has its journal again.
#[test]
fn edits_that_exceed_the_journal_are_those_of_a_mount() {
    for kind in KINDS {
        let name = kind.0;
        let before = filled(*kind);
        let mounted = Arc::new(MemDevice::from_bytes(&before));
        let fs = Fs::open_device(mounted.clone(), &OpenOptions::new()).expect("a file system");
        change(&fs);
        fs.unmount().expect("a device in memory");
        let memory = Arc::new(MemDevice::from_bytes(&before));
        let device: Device = memory.clone();
        let edit = plan(&device, MIB as usize, change).expect("a plan");
        assert!(memory.to_vec() == before, "{name}: a plan wrote");
        let [new, used] = edit.changed_blocks();
        assert!(used >= LOG, "{name}: {new} new, {used} in use");
        assert!(edit.larger_log().is_some_and(|blocks| blocks > used), "{name}");
        edit.apply(false).unwrap_or_else(|error| panic!("{name}: {error}"));
        let image = judge(&memory.to_vec(), name);
        let found = damages(&memory.to_vec(), true);
        assert!(found.is_empty(), "{name}: {found:?}");
        tree(device).without_times().assert_same(&tree(mounted).without_times());
        let old = Image::holding(&before);
        assert_eq!(journal(&image), journal(&old), "{name}");
    }
}

/// The states of a change, and the judgement on them.
struct Sweep<'s> {
    name: &'s str,
    before: Vec<u8>,
    events: Vec<Event>,
    /// Returns whether a recovered state is new. It must be whole.
    is_new: &'s dyn Fn(&[u8], &str) -> bool,
    /// Whether e2fsck repairs the old state, too.
    is_damaged: bool,
}

/// Returns a state after its recovery by Extant.
fn by_extant(state: &[u8]) -> Vec<u8> {
    let device = Arc::new(MemDevice::from_bytes(state));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new().count_mount(false));
    fs.expect("a file system").unmount().expect("a device in memory");
    device.to_vec()
}

fn by_the_kernel(state: &[u8]) -> Vec<u8> {
    let image = Image::holding(state);
    image.leave_unjudged("it is judged later");
    Mount::new(image.path(), "").unmount();
    image.bytes()
}

/// Returns a state after e2fsck has replayed its log.
fn by_e2fsck(state: &[u8]) -> Vec<u8> {
    let image = Image::holding(state);
    image.leave_unjudged("it is judged later");
    let args = ["-y", "-E", "journal_only"].map(std::ffi::OsString::from);
    let args = args.into_iter().chain([image.path().into()]).collect::<Vec<_>>();
    let recovered = run("e2fsck", &args);
    assert!(recovered.code <= 1, "{recovered}");
    image.bytes()
}

/// Returns a state after all of e2fsck, which must leave a clean one. All programs judge the first
/// of each side.
fn by_all_of_e2fsck(state: &[u8], is_first: bool) -> Vec<u8> {
    let image = Image::holding(state);
    recover_by_e2fsck(&image);
    if !is_first {
        image.leave_unjudged("e2fsck has judged it");
    }
    image.bytes()
}

/// Returns the distance of cuts and failures among many of a kind: `EXTANT_EVERY`, if that is set.
fn every_or(every: usize) -> usize {
    std::env::var("EXTANT_EVERY").map_or(every, |text| text.parse().expect("a number"))
}

impl Sweep<'_> {
    /// Returns whether a cut is behind a write that may decide: all but those among zeroes and
    /// copies in a log, and among the blocks that are written home.
    fn is_decisive(&self, cut: usize) -> bool {
        let sb = Superblock::parse_unverified(&self.before[1024..2048]).expect("a superblock");
        let geometry = Geometry::new(&sb).expect("a geometry");
        let size = u64::from(geometry.block_size);
        let is = |event: &Event| match event {
            // Superblocks of file system and logs, commit records.
            Event::Write { offset, data } => {
                let magic = [0xC0, 0x3B, 0x39, 0x98];
                let tells = data.starts_with(&magic) && [2, 3, 4].contains(&data[7]);
                tells || *offset < 1024 + size
            }
            Event::Zero { .. } => false,
            _ => true,
        };
        cut == 0 || is(&self.events[cut - 1]) || cut + 8 > self.events.len()
    }

    /// Judges the states after cuts: all decisive ones, and each `EXTANT_EVERY`th of the others.
    fn run(&self, every: usize) {
        let every = every_or(every);
        let (mut seen, mut by_all, mut judged) = ([0, 0], [false, false], 0);
        let is_chosen = |cut: usize| self.is_decisive(cut) || cut.is_multiple_of(every);
        chosen_cuts(&self.before, &self.events, &is_chosen, &mut |cut, state| {
            let decisive = self.is_decisive(cut);
            judged += 1;
            let case = format!("{}, cut {cut} of {}", self.name, self.events.len());
            let is_new = (self.is_new)(&by_extant(&state), &format!("{case}, Extant"));
            seen[usize::from(is_new)] += 1;
            let mut recovered = vec![("e2fsck -E journal_only", by_e2fsck(&state))];
            if decisive && (is_new || !self.is_damaged) {
                let is_first = !std::mem::replace(&mut by_all[usize::from(is_new)], true);
                recovered.push(("e2fsck", by_all_of_e2fsck(&state, is_first)));
            }
            if decisive {
                recovered.push(("the kernel", by_the_kernel(&state)));
            }
            for (program, state) in recovered {
                let case = format!("{case}, {program}");
                assert_eq!((self.is_new)(&state, &case), is_new, "{case}");
            }
        });
        println!("{}: {judged} states of {} events, {seen:?}", self.name, self.events.len());
        assert!(seen[0] > 0 && seen[1] > 0, "{}: {seen:?}", self.name);
    }
}

/// After a cut at any write, the recoveries of e2fsck, the kernel and Extant give the old tree or
/// the new one.
#[test]
fn a_cut_edit_through_a_larger_journal_is_whole_or_absent() {
    for name in ["2k", "ext3"] {
        let before = filled(kind(name));
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
        let device: Device = recorder.clone();
        let edit = plan(&device, 64 << 20, change).expect("a plan");
        edit.apply(false).expect("a device in memory");
        let trees = [tree_of(&before), tree_of(&recorder.inner().to_vec())];
        let is_new = |state: &[u8], case: &str| {
            judge_state(state, case);
            let found = tree_of(state);
            let side = trees.iter().position(|tree| *tree == found);
            side.unwrap_or_else(|| panic!("{case}: {:?}", found.diff(&trees[0]))) == 1
        };
        let (events, is_new) = (recorder.log(), &is_new);
        Sweep { name, before, events, is_new, is_damaged: false }.run(400);
    }
}

/// First bytes of the superblock of a log.
const LOG_SUPERBLOCK: [u8; 8] = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];

/// First bytes of a block of attributes.
const MAGIC: [u8; 4] = [0, 0, 2, 0xEA];

/// Breaks the checksums of all blocks of attributes, or without checksums the hashes of values.
fn damage(bytes: &mut [u8]) -> usize {
    let sb = Superblock::parse(&bytes[1024..2048]).expect("a superblock");
    let at = if Geometry::new(&sb).expect("a geometry").metadata_csum { 16 } else { 44 };
    let blocks = bytes.chunks_exact_mut(sb.block_size() as usize);
    blocks.filter(|block| block.starts_with(&MAGIC)).map(|block| block[at] ^= 1).count()
}

/// Returns whether the damage of a state is repaired. Otherwise all of it must be there.
fn is_repaired(damaged: &[String], state: &[u8], case: &str) -> bool {
    let found = damages(state, true);
    assert!(found.is_empty() || found == damaged, "{case}: {} findings", found.len());
    if found.is_empty() {
        judge_state(state, case);
    }
    found.is_empty()
}

#[test]
fn repairs_that_exceed_the_journal_are_made() {
    for name in ["4k", "groups", "bigalloc", "fast_commit"] {
        let whole = filled(kind(name));
        let mut before = whole.clone();
        assert!(damage(&mut before) as u64 > LOG, "{name}");
        let memory = Arc::new(MemDevice::from_bytes(&before));
        let plan = Repair::new(memory.clone()).threads(2).plan(&mut |_| ()).expect("a plan");
        assert!(memory.to_vec() == before, "{name}: a plan wrote");
        let mut undo = Vec::new();
        plan.save_undo(&mut undo).expect("a device in memory");
        plan.apply().expect("a device in memory");
        let after = memory.to_vec();
        let image = judge(&after, name);
        assert_eq!(damages(&after, true), [""; 0], "{name}");
        tree_of(&after).assert_same(&tree_of(&whole));
        let old = Image::holding(&whole);
        assert_eq!(journal(&image), journal(&old), "{name}");
        assert!(restore(&*memory, &mut Cursor::new(&undo)).expect("an undo file") > 0);
        assert!(memory.to_vec() == before, "{name}: not as before");
    }
}

#[test]
fn a_cut_repair_through_a_larger_journal_is_whole_or_absent() {
    for name in ["2k", "uninit_bg"] {
        let mut before = filled(kind(name));
        damage(&mut before);
        let damaged = damages(&before, true);
        assert!(damaged.len() as u64 > LOG, "{name}: {} findings", damaged.len());
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
        let repair = Repair::new(recorder.clone()).threads(2);
        repair.plan(&mut |_| ()).expect("a plan").apply().expect("a device in memory");
        let is_new = |state: &[u8], case: &str| is_repaired(&damaged, state, case);
        let (events, is_new) = (recorder.log(), &is_new);
        Sweep { name, before, events, is_new, is_damaged: true }.run(400);
    }
}

/// A device that refuses a write or a flush: the error says in which state the file system is.
#[test]
fn failed_writes_through_a_larger_journal_leave_one_of_both_states() {
    let before = filled(kind("2k"));
    let memory = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
    let device: Device = memory.clone();
    plan(&device, 64 << 20, change).expect("a plan").apply(false).expect("a device in memory");
    let events = memory.log();
    let count = |is: &dyn Fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    let writes = count(&|event| matches!(event, Event::Write { .. }));
    let zeroes = count(&|event| matches!(event, Event::Zero { .. }));
    let flushes = count(&|event| *event == Event::Flush);
    let every = every_or(150);
    // Each run makes its changes at another time.
    let trees = [tree_of(&before), tree_of(&memory.inner().to_vec())].map(Manifest::without_times);
    let mut seen = [0; 4];
    for (op, count) in [(Op::Write, writes), (Op::Zero, zeroes), (Op::Flush, flushes)] {
        for nr in (0..count).filter(|nr| count < 100 || nr % every == 0 || nr + 40 > count) {
            let memory = Arc::new(MemDevice::from_bytes(&before));
            let faulty = Arc::new(FaultDevice::new(memory.clone()));
            let device: Device = faulty.clone();
            let edit = plan(&device, 64 << 20, change).expect("a plan");
            faulty.inject(Fault::new(op, nr as u64));
            let Err(error) = edit.apply(false) else {
                assert_eq!(faulty.failed(), 0, "{op} {nr} failed without an error");
                continue;
            };
            let case = format!("{op} {nr} of {count}: {error}");
            let state = by_extant(&memory.to_vec());
            judge_state(&state, &case);
            let found = tree_of(&state).without_times();
            let is_new = found == trees[1];
            assert!(is_new || found == trees[0], "{case}: old and new are mixed");
            let expected = match error {
                EditError::Io(_) | EditError::Apply(OfflineError::Unchanged(_)) => !is_new,
                EditError::Apply(OfflineError::InLog(_)) => true,
                EditError::JournalStays(_) => is_new,
                _ => false,
            };
            assert!(expected, "{case}");
            let stays = matches!(error, EditError::JournalStays(_));
            seen[usize::from(is_new) + 2 * usize::from(stays)] += 1;
        }
    }
    println!("old {}, new {}, new with the larger journal {}", seen[0], seen[1], seen[3]);
    assert!(seen[0] > 0 && seen[1] > 0 && seen[3] > 0 && seen[2] == 0, "{seen:?}");
}

/// Free space in pieces of two blocks: the map of the larger journal has nodes.
#[test]
fn a_larger_journal_in_pieces_is_one() {
    let before = {
        let device = Arc::new(MemDevice::from_bytes(&filled(kind("groups"))));
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("a file system");
        let root = fs.root().expect("a root");
        put(&fs, "/fill", &vec![6; (free(&fs) as usize - 3600) * 1024]);
        let dir = fs.create(&root, b"pieces", 0o755, NodeKind::Dir).expect("space");
        let mut count = 0;
        while free(&fs) > 60 {
            put(&fs, &format!("/pieces/{count}"), &[5; 2048]);
            count += 1;
            if count % 64 == 0 {
                fs.sync().expect("a device in memory");
            }
        }
        for n in (0..count).step_by(2) {
            fs.unlink(&dir, format!("{n}").as_bytes()).expect("a file");
        }
        fs.unmount().expect("a device in memory");
        device.to_vec()
    };
    let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
    let device: Device = recorder.clone();
    let edit = plan(&device, 64 << 20, |fs| (0..FILES).for_each(|n| set_value(fs, n, 2)));
    edit.expect("a plan").apply(false).expect("a device in memory");
    let trees = [tree_of(&before), tree_of(&recorder.inner().to_vec())];
    let is_new = |state: &[u8], case: &str| {
        judge_state(state, case);
        let found = tree_of(state);
        trees.iter().position(|tree| *tree == found).unwrap_or_else(|| panic!("{case}")) == 1
    };
    let (name, events, is_new) = ("pieces", recorder.log(), &is_new);
    Sweep { name, before, events, is_new, is_damaged: false }.run(800);
}

fn why(error: &EditError) -> Option<NoLargerLog> {
    match error {
        EditError::TooLarge { why, .. } => why.clone(),
        _ => None,
    }
}

/// Free blocks of a damaged file system may be in use.
#[test]
fn damaged_file_systems_get_no_larger_journal() {
    let mut before = filled(kind("2k"));
    // Also the copies in the log.
    let is_of_file = |block: &[u8]| {
        block.starts_with(&MAGIC) && block.windows(8).any(|part| part == [0, 0, 0, 5, 1, 1, 1, 1])
    };
    let blocks = before.chunks_exact_mut(2048);
    blocks.filter(|block| is_of_file(block)).for_each(|block| block[16] ^= 1);
    let memory = Arc::new(MemDevice::from_bytes(&before));
    let device: Device = memory.clone();
    // All but those that are damaged, which the engine would find.
    let edit = plan(&device, 64 << 20, |fs| {
        let valid = (0..FILES).filter(|n| {
            let node = fs.resolve(format!("/dir{}/{n}", n / 200), Follow::No).expect("a file");
            fs.get_xattr(&node, b"user.value").is_ok()
        });
        valid.for_each(|n| set_value(fs, n, 2));
    });
    let error = edit.expect("a plan").apply(false).expect_err("a refusal");
    assert!(matches!(why(&error), Some(NoLargerLog::Damage(_))), "{error}");
    assert!(memory.to_vec() == before, "a refused edit wrote");
}

/// A log that cannot even take the return from a larger one.
#[test]
fn a_tiny_journal_gets_no_larger_one() {
    let before = filled(kind("groups"));
    let memory = Arc::new(MemDevice::from_bytes(&before));
    let device: Device = memory.clone();
    let base = EditBase { device: &device, journal: None, threads: 2 };
    let overlay = Arc::new(base.overlay(64 << 20).expect("a file system"));
    let fs = Fs::open_device(overlay.clone(), &OpenOptions::new()).expect("a file system");
    change(&fs);
    fs.unmount().expect("an overlay");
    let mut blocks = before.chunks_exact(1024);
    let at = blocks.position(|block| block.starts_with(&LOG_SUPERBLOCK));
    let at = at.expect("a log") * 1024;
    let mut superblock = JournalSuperblock::parse(&before[at..at + 1024]).expect("a superblock");
    superblock.set_first(superblock.max_len() - 9);
    memory.write_all_at(&superblock.encode(), at as u64).expect("a device in memory");
    let before = memory.to_vec();
    let error = Edit::plan(base, overlay).expect("a plan").apply(false).expect_err("a refusal");
    assert!(matches!(why(&error), Some(NoLargerLog::TooSmall)), "{error}");
    assert!(memory.to_vec() == before, "a refused edit wrote");
}

/// A repair without space for a larger journal is refused before its first write.
#[test]
fn a_repair_without_space_for_a_larger_journal_is_refused() {
    let device = Arc::new(MemDevice::from_bytes(&filled(kind("no_64bit"))));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("a file system");
    put(&fs, "/fill", &vec![6; (free(&fs) as usize - 100) * 1024]);
    fs.unmount().expect("a device in memory");
    let mut before = device.to_vec();
    damage(&mut before);
    let memory = Arc::new(MemDevice::from_bytes(&before));
    let error = Repair::new(memory.clone()).plan(&mut |_| ()).expect_err("a refusal");
    let RepairError::TooLarge { wanted, available, why } = &error else { panic!("{error}") };
    assert!(wanted > available && matches!(why, NoLargerLog::NoSpace { .. }), "{error}");
    assert!(memory.to_vec() == before, "a refused repair wrote");
}

/// Another host sees the claim meanwhile.
#[test]
fn a_larger_journal_with_multiple_mount_protection() {
    let args = ["-t", "ext4", "-b", "2048", "-J", "size=2", "-O", "mmp"];
    let image = Image::mke2fs(20 * MIB, &args);
    image.leave_unjudged("its copy in memory is changed");
    let memory = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let fs = Fs::open_device(memory.clone(), &OpenOptions::new()).expect("a file system");
    let root = fs.root().expect("a root");
    (0..=FILES / 200).for_each(|n| {
        let name = format!("dir{n}");
        fs.create(&root, name.as_bytes(), 0o755, NodeKind::Dir).expect("space");
    });
    for n in 0..FILES {
        put(&fs, &format!("/dir{}/{n}", n / 200), b"");
        set_value(&fs, n, 1);
    }
    fs.unmount().expect("a device in memory");
    let claim = claimed(&memory);
    let device = claim.device();
    let base = EditBase { device: &device, journal: None, threads: 2 };
    let overlay = Arc::new(base.overlay(64 << 20).expect("a file system"));
    let options = OpenOptions::new().under_claim(&claim);
    let fs = Fs::open_device(overlay.clone(), &options).expect("a file system");
    (0..FILES).for_each(|n| set_value(&fs, n, 2));
    fs.unmount().expect("an overlay");
    let edit = Edit::plan(base, overlay).expect("a plan");
    assert!(edit.larger_log().is_some());
    edit.apply(false).expect("a device in memory");
    let there = Arc::new(OverlayDevice::new(memory.clone(), 2048, 1 << 20));
    assert!(Fs::open_device(there, &OpenOptions::new()).is_err(), "it is claimed");
    claim.check().expect("the claim holds");
    drop(claim);
    judge(&memory.to_vec(), "after the claim");
}

/// A journal on another device has the length that it has.
#[test]
fn an_external_journal_gets_no_larger_one() {
    let journal = Image::mke2fs(2 * MIB, &["-b", "1024", "-O", "journal_dev"]);
    journal.leave_unjudged("it is no file system");
    let on = Loop::attach(journal.path(), false);
    let named = format!("device={}", on.device().display());
    let image = Image::mke2fs(12 * MIB, &["-t", "ext4", "-b", "1024", "-J", &named]);
    image.leave_unjudged("its log is on another device");
    drop(on);
    let log: Device = Arc::new(MemDevice::from_bytes(&journal.bytes()));
    let memory = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let options = OpenOptions::new().journal_on(log.clone());
    let fs = Fs::open_device(memory.clone(), &options).expect("a file system");
    let root = fs.root().expect("a root");
    let names = (0..2 * FILES).map(|n| format!("file{n}"));
    for (n, name) in (0..).zip(names.clone()) {
        let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).expect("space");
        let value: Vec<u8> = u32::to_be_bytes(n).repeat(100);
        fs.set_xattr(&node, b"user.value", &value, XattrMode::Any).expect("space");
    }
    fs.unmount().expect("devices in memory");
    let (before, device) = (memory.to_vec(), memory.clone() as Device);
    let base = EditBase { device: &device, journal: Some(&log), threads: 2 };
    let overlay = Arc::new(base.overlay(64 << 20).expect("a file system"));
    let over = Arc::new(OverlayDevice::new(log.clone(), 4096, 64 << 20));
    let options = OpenOptions::new().journal_on(over);
    let fs = Fs::open_device(overlay.clone(), &options).expect("a file system");
    for name in names {
        let node = fs.resolve(format!("/{name}"), Follow::No).expect("a file");
        let value: Vec<u8> = name.as_bytes().repeat(50);
        fs.set_xattr(&node, b"user.value", &value, XattrMode::Any).expect("space");
    }
    fs.unmount().expect("overlays");
    let error = Edit::plan(base, overlay).expect("a plan").apply(false).expect_err("a refusal");
    assert!(matches!(why(&error), Some(NoLargerLog::External)), "{error}");
    assert!(memory.to_vec() == before, "a refused edit wrote");
}

/// Content in blocks that the same edit frees is a part of the transaction.
#[test]
fn files_are_written_into_the_blocks_of_others() {
    let image = Image::mke2fs(40 * MIB, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let memory = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let device: Device = memory.clone();
    let fill = |fs: &Fs, byte: u8| {
        (0..40).for_each(|n| put(fs, &format!("/{n}"), &vec![byte; 300_000]));
    };
    plan(&device, 64 << 20, |fs| fill(fs, 1)).expect("a plan").apply(false).expect("memory");
    let edit = plan(&device, 64 << 20, |fs| {
        let root = fs.root().expect("a root");
        (0..40).for_each(|n| {
            fs.unlink(&root, format!("{n}").as_bytes()).expect("a file");
        });
        fs.sync().expect("an overlay");
        fill(fs, 2);
    });
    let edit = edit.expect("a plan");
    let [new, used] = edit.changed_blocks();
    println!("{new} new, {used} in use, {:?}", edit.larger_log());
    assert!(used > LOG, "{new} new, {used} in use");
    edit.apply(false).expect("a device in memory");
    let _image = judge(&memory.to_vec(), "files in other's blocks");
    let expected = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let fs = Fs::open_device(expected.clone(), &OpenOptions::new()).expect("a file system");
    fill(&fs, 2);
    fs.unmount().expect("a device in memory");
    tree(device).without_times().assert_same(&tree(expected).without_times());
}
