//! Edits over an overlay: wholly or not at all on the device.

use crate::claims::claimed;
use crate::oracle::complaints;
use extant_blocks::{Event, Fault, FaultDevice, MemDevice, Op, OverlayDevice, RecordingDevice};
use extant_check::edit::{Edit, EditBase, EditError};
use extant_check::repair::{NoLargerLog, OfflineError};
use extant_check::{RedoError, RedoRecord, finish_redo};
use extant_engine::device::BlockDevice;
use extant_engine::{
    Follow, Fs, NodeKind, OpenFlags, OpenOptions, RenameFlags, SetAttr, XattrMode,
};
use extant_hostile::mutate::mutate_once;
use extant_hostile::seeds::Seed;
use extant_testkit::cuts::chosen_cuts;
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use extant_testkit::tree::Manifest;
use extant_testkit::{FeatureSet, Image, e2fsck};
use std::io::Cursor;
use std::sync::Arc;

type Device = Arc<dyn BlockDevice>;

/// Changes a device by way of an overlay.
pub fn plan(
    device: &Device,
    max_bytes: usize,
    change: impl FnOnce(&Fs),
) -> Result<Edit, EditError> {
    let base = EditBase { device, journal: None, threads: 2 };
    assert!(!base.needs_recovery()?, "the base is clean");
    let spill = Arc::new(MemDevice::new(device.len() + (64 << 10)));
    let overlay = Arc::new(base.overlay(max_bytes)?.with_spill(spill));
    let fs = Fs::open_device(overlay.clone(), &OpenOptions::new()).expect("a file system");
    change(&fs);
    fs.unmount().expect("an overlay");
    Edit::plan(base, overlay)
}

pub fn put(fs: &Fs, name: &str, content: &[u8]) {
    let (dir, last) = fs.resolve_parent(name.as_bytes()).expect("a directory");
    let node = fs.create(&dir, last, 0o644, NodeKind::File).expect("space");
    let file = fs.open_file(&node, OpenFlags { write: true, ..OpenFlags::default() });
    let file = file.expect("a file");
    let mut done = 0;
    while done < content.len() {
        done += file.write_at(done as u64, &content[done..]).expect("space");
    }
}

/// Makes the files that [`change`] changes.
fn prepare(fs: &Fs) {
    let root = fs.root().expect("a root");
    for name in ["/kept", "/removed", "/cut", "/moved", "/replaced"] {
        put(fs, name, &[7; 30_000]);
    }
    let dir = fs.create(&root, b"dir", 0o755, NodeKind::Dir).expect("space");
    for n in 0..40 {
        put(fs, &format!("/dir/a file with number {n}"), &[n; 3000]);
    }
    fs.link(&fs.resolve("/kept", Follow::No).expect("a file"), &dir, b"link").expect("space");
}

/// Makes changes of all kinds.
fn change(fs: &Fs) {
    let root = fs.root().expect("a root");
    let node = |name: &str| fs.resolve(name, Follow::No).expect("a file");
    put(fs, "/new", &[8; 200_000]);
    fs.unlink(&root, b"removed").expect("a file");
    let set = SetAttr { size: Some(5000), mode: Some(0o600), ..SetAttr::default() };
    fs.set_attr(&node("/cut"), &set).expect("a change");
    let dir = node("/dir");
    let flags = RenameFlags::empty();
    fs.rename((&root, b"moved"), (&dir, b"here"), flags).expect("a move");
    put(fs, "/successor", &[9; 50_000]);
    fs.rename((&root, b"successor"), (&root, b"replaced"), flags).expect("a move");
    for n in 0..30 {
        fs.unlink(&dir, format!("a file with number {n}").as_bytes()).expect("a file");
    }
    // A part of its blocks has the content of files that this power cut may bring back.
    put(fs, "/reuse", &[6; 150_000]);
    fs.create(&root, b"symlink", 0o777, NodeKind::Symlink(&[b't'; 100])).expect("space");
    fs.create(&root, b"null", 0o644, NodeKind::CharDevice(1, 3)).expect("space");
    fs.create(&root, b"new dir", 0o755, NodeKind::Dir).expect("space");
    fs.link(&node("/new"), &node("/new dir"), b"other name").expect("space");
    let owner = SetAttr { uid: Some(5), gid: Some(6), ..SetAttr::default() };
    fs.set_attr(&node("/kept"), &owner).expect("a change");
    fs.set_xattr(&node("/kept"), b"user.name", &[1; 500], XattrMode::Any).expect("space");
}

/// Returns an image with files.
fn prepared(set: &str) -> Vec<u8> {
    let set = FeatureSet::named(set);
    // Its bytes are copied for each state.
    let image = set.make_sized(set.bytes / 4);
    image.leave_unjudged("its content is judged later");
    let device = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("a file system");
    prepare(&fs);
    fs.unmount().expect("a device in memory");
    device.to_vec()
}

pub fn tree(device: Device) -> Manifest {
    let fs = Fs::open_device(device, &OpenOptions::new().read_only(true));
    Manifest::read(&fs.expect("a file system")).expect("a whole tree")
}

pub fn tree_of(bytes: &[u8]) -> Manifest {
    tree(Arc::new(MemDevice::from_bytes(bytes)))
}

/// Returns the tree after a recovery by Extant, which must leave an image that is clean for e2fsck,
/// or for all programs.
fn recovered_by_extant(state: &[u8], by_all: bool) -> Manifest {
    let device = Arc::new(MemDevice::from_bytes(state));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new().count_mount(false));
    fs.expect("a file system").unmount().expect("a device in memory");
    let image = Image::holding(&device.to_vec());
    assert_eq!(complaints(image.path()), [""; 0]);
    if !by_all {
        image.leave_unjudged("e2fsck has judged it");
    }
    tree(device)
}

#[test]
fn edits_of_all_kinds_are_those_of_a_mount() {
    for set in ["default", "1k", "ext3", "bigalloc", "inline_data", "no_csum", "orphan_file"] {
        let before = prepared(set);
        let mounted = Arc::new(MemDevice::from_bytes(&before));
        let fs = Fs::open_device(mounted.clone(), &OpenOptions::new()).expect("a file system");
        change(&fs);
        fs.unmount().expect("a device in memory");
        // All in memory, and all but one block in another place.
        for max_bytes in [64 << 20, 4096] {
            let memory = Arc::new(MemDevice::from_bytes(&before));
            let device: Device = memory.clone();
            let edit = plan(&device, max_bytes, change).expect("a plan");
            assert!(memory.to_vec() == before, "{set}: a plan wrote");
            edit.apply(false).expect("a device in memory");
            let image = Image::holding(&memory.to_vec());
            assert_eq!(complaints(image.path()), [""; 0], "{set}");
            let (own, theirs) = (tree(device), tree(mounted.clone()));
            own.without_times().assert_same(&theirs.without_times());
            let mount = Mount::new(image.path(), "");
            assert_eq!(std::fs::read(mount.join("replaced")).expect("a file"), [9; 50_000]);
            mount.unmount();
        }
    }
}

/// After a cut at any write, the recoveries of e2fsck, the kernel and Extant give the old tree or
/// the new one.
#[test]
fn a_cut_edit_is_whole_or_absent() {
    for (set, every) in [("default", 4), ("1k", 16), ("ext3", 16), ("orphan_file", 16)] {
        let before = prepared(set);
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
        let device: Device = recorder.clone();
        let edit = plan(&device, 64 << 20, change).expect("a plan");
        let [new, used] = edit.changed_blocks();
        assert!(new > 0 && used > 0 && recorder.log().is_empty(), "{set}: {new} {used}");
        edit.apply(false).expect("a device in memory");
        let trees = [tree_of(&before), tree_of(&recorder.inner().to_vec())];
        let side = |found: &Manifest, case: &str| {
            let side = trees.iter().position(|tree| tree == found);
            side.unwrap_or_else(|| panic!("{case}: {:?}", found.diff(&trees[0])))
        };
        let (mut seen, last) = ([0, 0], recorder.log().len());
        let is_chosen = |cut: usize| cut.is_multiple_of(every) || cut + 12 >= last;
        chosen_cuts(&before, &recorder.log(), &is_chosen, &mut |cut, state| {
            let case = format!("{set}, cut {cut} of {last}");
            let by_all = cut % (4 * every) == 0 || cut + 12 >= last;
            let is_new = side(&recovered_by_extant(&state, by_all), &case);
            seen[is_new] += 1;
            let image = Image::holding(&state);
            image.leave_unjudged("it is recovered here");
            let by_kernel = image.copy();
            e2fsck::recover(image.path());
            assert_eq!(complaints(image.path()), [""; 0], "{case}");
            assert_eq!(side(&tree_of(&image.bytes()), &case), is_new, "{case}");
            if by_all {
                by_kernel.leave_unjudged("it is judged here");
                Mount::new(by_kernel.path(), "").unmount();
                assert_eq!(complaints(by_kernel.path()), [""; 0], "{case}");
                assert_eq!(side(&tree_of(&by_kernel.bytes()), &case), is_new, "{case}");
            }
        });
        assert!(seen[0] > 0 && seen[1] > 0, "{set}: {seen:?}");
    }
}

fn is_write(event: &Event) -> bool {
    matches!(event, Event::Write { .. })
}

/// A device that refuses a write, or a flush, leaves the old tree, or the error says where the new
/// one is.
#[test]
fn failed_writes_leave_the_old_tree() {
    let before = prepared("1k");
    let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
    let device: Device = recorder.clone();
    plan(&device, 64 << 20, change).expect("a plan").apply(false).expect("a device in memory");
    let log = recorder.log();
    let old = tree_of(&before);
    let counts = [log.iter().filter(|event| is_write(event)).count(), log.len()];
    let mut seen = [0, 0];
    for (op, count) in [(Op::Write, counts[0]), (Op::Flush, counts[1] - counts[0])] {
        for nr in 0..count as u64 {
            let memory = Arc::new(MemDevice::from_bytes(&before));
            let faulty = Arc::new(FaultDevice::new(memory.clone()));
            let device: Device = faulty.clone();
            let edit = plan(&device, 64 << 20, change).expect("a plan");
            faulty.inject(Fault::new(op, nr));
            let Err(error) = edit.apply(false) else {
                assert_eq!(faulty.failed(), 0, "{op} {nr} failed without an error");
                continue;
            };
            let is_new = recovered_by_extant(&memory.to_vec(), nr % 8 == 0) != old;
            seen[usize::from(is_new)] += 1;
            let in_log = matches!(error, EditError::Apply(OfflineError::InLog(_)));
            assert!(in_log || !is_new, "{op} {nr}: {error}");
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

/// New content needs no place in the log, also in groups that have no bitmap yet. Content in the
/// place of old content does, or free space for a larger log.
#[test]
fn changes_that_exceed_log_and_free_space_are_refused_before_a_write() {
    let image = Image::mke2fs(96 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let groups = run("dumpe2fs", &[image.path()]).must_succeed().text();
    assert!(groups.contains("BLOCK_UNINIT"), "{groups}");
    let memory = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let device: Device = memory.clone();
    let edit = plan(&device, 4 << 20, |fs| put(fs, "/large", &vec![1; 60 << 20]));
    let edit = edit.expect("a plan");
    let [new, used] = edit.changed_blocks();
    assert!(new > 60 << 10 && used < 100, "{new} new, {used} in use");
    edit.apply(false).expect("a device in memory");
    let before = memory.to_vec();
    let edit = plan(&device, 4 << 20, |fs| {
        fs.unlink(&fs.root().expect("a root"), b"large").expect("a file");
        fs.sync().expect("an overlay");
        put(fs, "/other", &vec![2; 60 << 20]);
    });
    let edit = edit.expect("a plan");
    let error = edit.apply(false).expect_err("a refusal");
    let why = |error: &EditError| match error {
        EditError::TooLarge { why, .. } => why.clone(),
        _ => None,
    };
    assert!(matches!(why(&error), Some(NoLargerLog::NoSpace { .. })), "{error}");
    assert!(memory.to_vec() == before, "a refused edit wrote");
    let image = Image::holding(&before);
    assert_eq!(complaints(image.path()), [""; 0]);
}

#[test]
fn without_a_journal_edits_are_in_place_or_refused() {
    for set in ["ext2_1k", "no_journal"] {
        let before = prepared(set);
        let memory = Arc::new(MemDevice::from_bytes(&before));
        let device: Device = memory.clone();
        let edit = plan(&device, 64 << 20, change).expect("a plan");
        let error = edit.apply(false).expect_err("a refusal");
        assert!(matches!(error, EditError::NoJournal), "{set}: {error}");
        assert!(memory.to_vec() == before, "{set}: a refused edit wrote");
        edit.apply(true).expect("a device in memory");
        let image = Image::holding(&memory.to_vec());
        assert_eq!(complaints(image.path()), [""; 0], "{set}");
        assert!(tree(device) != tree_of(&before), "{set}");
    }
}

/// After a cut at any write, a change in place is not begun, or its redo file makes it whole.
#[test]
fn a_cut_edit_without_a_journal_is_whole_by_its_redo_file() {
    for (set, every) in [("ext2_1k", 24), ("no_journal", 8)] {
        let before = prepared(set);
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
        let device: Device = recorder.clone();
        let edit = plan(&device, 64 << 20, change).expect("a plan");
        let (mut file, mut begin) = (Vec::new(), 0);
        let mut save = |redo: &RedoRecord<'_>| {
            begin = recorder.log().len();
            redo.write_to(&mut file)
        };
        edit.apply_with_redo(&mut save).expect("a device in memory");
        let trees = [tree_of(&before), tree_of(&recorder.inner().to_vec())];
        let last = recorder.log().len();
        assert!(begin > 0 && last > begin + 3, "{set}: {begin} of {last}");
        let is_chosen = |cut: usize| cut.is_multiple_of(every) || cut + 12 >= last || cut == begin;
        let (mut finished, mut parts) = (0, 0);
        chosen_cuts(&before, &recorder.log(), &is_chosen, &mut |cut, state| {
            let case = format!("{set}, cut {cut} of {last}");
            if cut <= begin {
                assert!(tree_of(&state) == trees[0], "{case}");
                assert_eq!(complaints(Image::holding(&state).path()), [""; 0], "{case}");
            }
            if cut >= begin {
                let memory = MemDevice::from_bytes(&state);
                let done = finish_redo(&memory, &mut Cursor::new(&file));
                let done = done.expect("a change under way");
                let whole = memory.to_vec();
                assert_eq!(complaints(Image::holding(&whole).path()), [""; 0], "{case}");
                assert!(tree_of(&whole) == trees[1], "{case}");
                let again = finish_redo(&memory, &mut Cursor::new(&file));
                assert_eq!(again.expect("no change"), 0, "{case}");
                finished += 1;
                parts += u64::from(done > 0);
            }
        });
        assert!(finished > 6 && parts > 3, "{set}: {finished}, {parts}");
    }
}

#[test]
fn a_redo_file_changes_no_image_but_its_own() {
    let before = prepared("ext2_1k");
    let memory = Arc::new(MemDevice::from_bytes(&before));
    let device: Device = memory.clone();
    let mut file = Vec::new();
    let refused = plan(&device, 64 << 20, change)
        .expect("a plan")
        .apply_with_redo(&mut |_| Err(std::io::ErrorKind::StorageFull.into()));
    assert!(matches!(refused, Err(EditError::Io(_))), "{refused:?}");
    assert!(tree_of(&memory.to_vec()) == tree_of(&before), "a change without a redo file");
    let memory = Arc::new(MemDevice::from_bytes(&before));
    let device: Device = memory.clone();
    let edit = plan(&device, 64 << 20, change).expect("a plan");
    let mut begun = Vec::new();
    let mut save = |redo: &RedoRecord<'_>| {
        begun = memory.to_vec();
        redo.write_to(&mut file)
    };
    edit.apply_with_redo(&mut save).expect("a device in memory");
    let finish = |bytes: &[u8], file: &[u8]| {
        let memory = MemDevice::from_bytes(bytes);
        let done = finish_redo(&memory, &mut Cursor::new(file));
        assert!(done.is_ok() || memory.to_vec() == bytes, "a refusal wrote");
        done
    };
    assert!(finish(&begun, &file).expect("not begun") > 0);
    // A copy from before the change has no content of its new files.
    let error = finish(&before, &file).expect_err("a refusal");
    assert!(matches!(error, RedoError::Missing(_)), "{error}");
    // A write of another program: to the superblock, and to the first changed block.
    let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("a number"));
    let nr = number(44 + number(20) as usize * 12) as usize;
    for at in [1024 + 0x30, nr * 1024 + 600] {
        let mut changed = begun.clone();
        changed[at] ^= 1;
        let error = finish(&changed, &file).expect_err("a refusal");
        assert!(matches!(error, RedoError::Changed(_)), "{error}");
    }
    for len in [0, 7, 35, 43, 48, file.len() - 1] {
        let error = finish(&begun, &file[..len]).expect_err("a refusal");
        assert!(matches!(error, RedoError::Corrupt(_)), "{len}: {error}");
    }
    for at in [0, 9, 17, 21, 29, 37, 48, file.len() - 2] {
        let mut flipped = file.clone();
        flipped[at] ^= 1;
        assert!(matches!(finish(&begun, &flipped), Err(RedoError::Corrupt(_))), "{at}");
    }
    let longer = [&begun[..], &[0; 1024]].concat();
    assert!(matches!(finish(&longer, &file), Err(RedoError::Corrupt(_))));
}

/// A cut within the superblock's block, then others while the redo file is used.
#[test]
fn a_redo_file_is_used_again_after_cuts() {
    let before = prepared("ext2_1k");
    let memory = Arc::new(MemDevice::from_bytes(&before));
    let device: Device = memory.clone();
    let mut file = Vec::new();
    let edit = plan(&device, 64 << 20, change).expect("a plan");
    let mut save = |redo: &RedoRecord<'_>| redo.write_to(&mut file);
    edit.apply_with_redo(&mut save).expect("a device in memory");
    let after = memory.to_vec();
    let mut torn = after.clone();
    let second = 1024 + 512..2048;
    torn[second.clone()].copy_from_slice(&before[second]);
    let recorder = RecordingDevice::new(MemDevice::from_bytes(&torn));
    finish_redo(&recorder, &mut Cursor::new(&file)).expect("a change under way");
    let events: Vec<Event> = recorder.log().iter().flat_map(|event| event.split(512)).collect();
    let mut count = 0;
    chosen_cuts(&torn, &events, &|_| true, &mut |cut, state| {
        let memory = MemDevice::from_bytes(&state);
        finish_redo(&memory, &mut Cursor::new(&file)).unwrap_or_else(|e| panic!("{cut}: {e}"));
        assert!(memory.to_vec() == after, "{cut}");
        count += 1;
    });
    assert!(count > 1, "{count}");
}

/// A log that is not empty is replayed first; its changes would be lost.
#[test]
fn a_dirty_base_is_refused() {
    let image = FeatureSet::named("default").make();
    let mount = Mount::new(image.path(), "");
    std::fs::write(mount.join("file"), "text").expect("space");
    mount.sync();
    mount.crash(extant_testkit::kernel::Shutdown::NoFlushLog);
    image.leave_unjudged("it needs recovery");
    let device: Device = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let base = EditBase { device: &device, journal: None, threads: 2 };
    assert!(base.needs_recovery().expect("a file system"));
    let overlay = Arc::new(base.overlay(1 << 20).expect("a file system"));
    let refused = Edit::plan(base, overlay).expect_err("a refusal");
    assert!(matches!(refused, EditError::NeedsRecovery), "{refused}");
}

/// Other hosts see the claim of a file system over an overlay, until it is dropped.
#[test]
fn other_hosts_see_the_claim_of_an_edit() {
    let image = FeatureSet::named("mmp").make();
    image.leave_unjudged("its copy in memory is changed");
    let memory = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let claim = claimed(&memory);
    let device = claim.device();
    let base = EditBase { device: &device, journal: None, threads: 2 };
    let overlay = Arc::new(base.overlay(64 << 20).expect("a file system"));
    let options = OpenOptions::new().under_claim(&claim);
    let fs = Fs::open_device(overlay.clone(), &options).expect("a file system");
    put(&fs, "/file", b"text");
    fs.unmount().expect("an overlay");
    claim.check().expect("the claim holds");
    let is_claimed = || {
        // As another host: this process would refuse to open the device twice.
        let there = Arc::new(OverlayDevice::new(memory.clone(), 4096, 1 << 20));
        Fs::open_device(there, &OpenOptions::new()).is_err_and(|e| e.is(extant_engine::Errno::Busy))
    };
    assert!(is_claimed());
    Edit::plan(base, overlay).expect("a plan").apply(false).expect("a device in memory");
    drop(claim);
    let image = Image::holding(&memory.to_vec());
    assert_eq!(complaints(image.path()), [""; 0]);
    assert!(!is_claimed());
}

/// Makes two files over an overlay of an image that may be damaged.
fn try_edit(device: &Device) -> Option<Edit> {
    let base = EditBase { device, journal: None, threads: 2 };
    if base.needs_recovery().ok()? {
        return None;
    }
    let overlay = Arc::new(base.overlay(64 << 20).ok()?);
    let fs = Fs::open_device(overlay.clone(), &OpenOptions::new()).ok()?;
    for name in [b"one", b"two"] {
        let made = fs.root().and_then(|root| fs.create(&root, name, 0o644, NodeKind::File));
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let _ = made.and_then(|node| fs.open_file(&node, flags)?.write_at(0, &[5; 100_000]));
    }
    fs.unmount().ok()?;
    Edit::plan(base, overlay).ok()
}

/// Damage gives an error or an edit, never a panic, and a refusal writes nothing.
#[test]
fn edits_of_damaged_images_are_made_or_refused() {
    let sets = ["default", "1k", "ext3", "bigalloc", "ext2_1k", "inline_data"];
    let seeds = sets.map(|set| Seed::make(FeatureSet::named(set), false));
    let (mut made, mut refused) = (0, 0);
    for number in 0..180 {
        let seed = &seeds[number as usize % seeds.len()];
        let mut bytes = seed.bytes.clone();
        let damage = mutate_once(&mut bytes, &seed.atlas, &mut Rng::new(number));
        let memory = Arc::new(MemDevice::from_bytes(&bytes));
        let device: Device = memory.clone();
        let edit = try_edit(&device);
        assert!(memory.to_vec() == bytes, "{number}, {damage}: a plan wrote");
        let applied = edit.map(|edit| edit.apply(true));
        match applied {
            Some(Ok(())) => made += 1,
            Some(Err(EditError::TooLarge { .. } | EditError::NoJournal)) | None => {
                assert!(memory.to_vec() == bytes, "{number}, {damage}: a refusal wrote");
                refused += 1;
            }
            Some(Err(error)) => panic!("{number}, {damage}: {error}"),
        }
    }
    assert!(made > 10 && refused > 10, "{made} made, {refused} refused");
}
