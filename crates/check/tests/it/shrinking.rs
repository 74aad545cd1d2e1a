//! Smaller file systems: each is whole for e2fsck, the kernel and the own check, keeps its files
//! with all attributes, and a cut leaves one of the two sizes.

use crate::growing::{is_write, kinds, recover_by_e2fsck, recovered_by_extant};
use crate::oracle::{complaints, damages};
use extant_blocks::{
    BlockDevice, Event, Fault, FaultDevice, MemDevice, Op, OpenOptions, RecordingDevice, replay,
};
use extant_check::repair::OfflineError;
use extant_check::resize::{NewSize, Resize, ResizeError, ResizePlan};
use extant_format::{Compat, Superblock};
use extant_hostile::mutate::mutate_once;
use extant_hostile::seeds::Seed;
use extant_testkit::cuts::chosen_cuts;
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use extant_testkit::tree::{Manifest, Plan, Shape};
use extant_testkit::{FEATURE_SETS, Image};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// The bytes of the images before.
const SIZE: u64 = 40 * MIB;

/// Features without a kernel that mounts them here.
const UNMOUNTED: [&str; 2] = ["64k", "quota"];

/// More kinds than those of growth: features with references to inodes and blocks.
const MORE: &[(&str, &[&str])] = &[
    ("ea_inode", &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "ea_inode"]),
    ("inline", &["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "inline_data", "-I", "512"]),
    ("orphan_file", &["-t", "ext4", "-b", "4096", "-g", "1024", "-O", "orphan_file"]),
    ("large_dir", &["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "large_dir"]),
];

fn all_kinds() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    kinds().chain(MORE.iter().copied())
}

/// Writes files in many groups: small and large, whole and in pieces, with many names.
fn fill(root: &Path) {
    fs::create_dir(root.join("tree")).expect("a directory");
    Plan::random(7, &Shape::small()).apply(&root.join("tree"));
    let write = |path: &str, bytes: usize| {
        let content: Vec<u8> = (0..bytes).map(|n| (n * 7 % 251) as u8).collect();
        fs::write(root.join(path), content).expect("space");
    };
    for n in 0..60 {
        fs::create_dir(root.join(format!("dir{n}"))).expect("a directory");
        for m in 0..4 {
            write(&format!("dir{n}/file{m}"), 700 * (m + 1));
        }
        fs::hard_link(root.join(format!("dir{n}/file0")), root.join(format!("link{n}")))
            .expect("a link");
        let name = root.join(format!("dir{n}/file1"));
        let value = vec![b'v'; 60 + n];
        rustix::fs::setxattr(&name, "user.value", &value, rustix::fs::XattrFlags::empty())
            .expect("an attribute");
    }
    fs::create_dir(root.join("many")).expect("a directory");
    for n in 0..700 {
        fs::hard_link(root.join("dir3/file2"), root.join(format!("many/a name of no. {n}")))
            .expect("a link");
    }
    (0..300).for_each(|n| write(&format!("many/hole{n}"), 5000));
    (0..300).step_by(2).for_each(|n| {
        fs::remove_file(root.join(format!("many/hole{n}"))).expect("a file");
    });
    write("pieces", 700_000);
    write("whole", 3_000_000);
    std::os::unix::fs::symlink("x".repeat(300), root.join("dir40/symlink")).expect("a link");
    let sparse = fs::File::create(root.join("dir50/sparse")).expect("a file");
    let (flags, len) = (rustix::fs::FallocateFlags::empty(), 300_000);
    // Without extents there is none.
    let _ = rustix::fs::fallocate(&sparse, flags, 100_000, len);
    fs::write(root.join("dir59/last"), vec![9; 100_000]).expect("space");
}

/// Returns a full image of a kind, with its files.
fn filled(name: &str, args: &[&str]) -> (Image, Manifest) {
    let source = extant_testkit::Scratch::new();
    if UNMOUNTED.contains(&name) {
        fill(source.path());
        let image = Image::mke2fs_from(SIZE, args, source.path());
        // mke2fs does not count the files in quotas.
        let args: [OsString; 2] = ["-fy".into(), image.path().into()];
        assert!(run("e2fsck", &args).code <= 1);
        let tree = read(&image);
        return (image, tree);
    }
    let image = Image::mke2fs(SIZE, args);
    let mount = Mount::new(image.path(), "");
    fill(mount.path());
    mount.unmount();
    let tree = walk(&image);
    (image, tree)
}

/// Returns the files as the kernel shows them.
fn walk(image: &Image) -> Manifest {
    let mount = Mount::new(image.path(), "");
    let tree = Manifest::walk(mount.path());
    mount.unmount();
    tree
}

/// Returns the files as Extant shows them.
fn read(image: &Image) -> Manifest {
    let options = extant_engine::OpenOptions::new().read_only(true);
    let fs = extant_engine::Fs::open(image.path(), &options).expect("a file system");
    let tree = Manifest::read(&fs).expect("a tree");
    fs.unmount().expect("an unmount");
    tree
}

fn files(name: &str, image: &Image) -> Manifest {
    if UNMOUNTED.contains(&name) { read(image) } else { walk(image) }
}

fn device(image: &Image) -> Arc<dyn BlockDevice> {
    Arc::new(OpenOptions::new(image.path()).open().expect("an image"))
}

fn plan(image: &Image, blocks: u64) -> Result<ResizePlan, ResizeError> {
    Resize::new(device(image)).threads(2).plan(NewSize::Blocks(blocks))
}

#[track_caller]
fn judge(image: &Image, case: &str) {
    assert_eq!(complaints(image.path()), [""; 0], "{case}");
    let found = damages(&image.bytes(), true);
    assert!(found.is_empty(), "{case}: {found:?}");
}

#[track_caller]
fn apply(plan: ResizePlan, image: &Image) -> Superblock {
    // Only without a journal there is a record.
    let new = plan.apply_with_redo(&mut |_| Ok(())).expect("a smaller file system");
    assert_eq!(new.blocks_count(), plan.planned().blocks_count());
    assert_eq!(fs::metadata(image.path()).expect("an image").len(), plan.bytes());
    new
}

fn superblock(bytes: &[u8]) -> Superblock {
    Superblock::parse(&bytes[1024..2048]).expect("a superblock")
}

#[test]
fn file_systems_of_all_kinds_shrink() {
    for (name, args) in all_kinds() {
        let (image, before) = filled(name, args);
        let old = superblock(&image.bytes());
        if name == "64k" {
            // It is full.
            refuse(&image, old.blocks_count() - 100, "0 before it are free");
            continue;
        }
        if !old.compat().contains(Compat::HAS_JOURNAL) {
            let bytes = image.bytes();
            let planned = plan(&image, old.blocks_count() - 100).expect(name);
            let error = planned.apply().expect_err("no journal");
            drop(planned);
            assert!(matches!(error, ResizeError::NoJournal), "{name}: {error}");
            assert!(image.bytes() == bytes, "{name}: refused, but written");
        }
        for percent in [93, 70] {
            let case = format!("{name} to {percent}%");
            match plan(&image, old.blocks_count() * percent / 100) {
                Ok(plan) => drop(apply(plan, &image)),
                Err(error) => panic!("{case}: {error}"),
            }
            judge(&image, &case);
            before.assert_same(&files(name, &image));
        }
        let least = least(&image);
        println!("{name}: {} to {least}", old.blocks_count());
        refuse(&image, least - 1, "");
        apply(plan(&image, least).expect(name), &image);
        judge(&image, name);
        before.assert_same(&files(name, &image));
    }
}

/// Returns the blocks of the smallest size.
fn least(image: &Image) -> u64 {
    let plan = Resize::new(device(image)).plan_minimum().expect("a size");
    plan.planned().blocks_count()
}

/// A size that cannot be had is refused before the first write.
#[track_caller]
fn refuse(image: &Image, blocks: u64, why: &str) {
    let bytes = image.bytes();
    let error = plan(image, blocks).expect_err("a refusal").to_string();
    assert!(error.contains(why), "{error}");
    assert!(image.bytes() == bytes, "refused, but written: {error}");
}

/// The peer reaches similar sizes; it moves tables, too, and does so in several runs.
#[test]
fn sizes_are_near_those_of_resize2fs() {
    for name in ["1k", "metadata_csum", "flex", "no_64bit", "orphan_file"] {
        let (_, args) = all_kinds().find(|(known, _)| *known == name).expect("a kind");
        let (own, tree) = filled(name, args);
        let theirs = own.copy();
        let args: [OsString; 3] = ["-f".into(), "-M".into(), theirs.path().into()];
        run("resize2fs", &args).must_succeed();
        let theirs = superblock(&theirs.bytes()).blocks_count();
        let mut sizes = Vec::new();
        for _ in 0..2 {
            let least = least(&own);
            sizes.push(least);
            match plan(&own, least) {
                Ok(plan) => drop(apply(plan, &own)),
                Err(error) => panic!("{name}: {error}"),
            }
        }
        println!("{name}: {sizes:?}, resize2fs {theirs}");
        tree.assert_same(&walk(&own));
        judge(&own, name);
        assert!(sizes[1] <= theirs * 3 / 2, "{name}: {sizes:?}, resize2fs {theirs}");
    }
}

/// A full image has no place to move to, and one with many small files has too few inodes.
#[test]
fn full_images_are_refused() {
    let image = Image::mke2fs(SIZE, &["-t", "ext4", "-b", "1024", "-m", "0"]);
    let mount = Mount::new(image.path(), "");
    let content = vec![7; 1 << 20];
    let full =
        (0..100).map(|n| fs::write(mount.join(format!("file{n}")), &content)).any(|r| r.is_err());
    assert!(full);
    mount.unmount();
    refuse(&image, SIZE / 1024 - 4096, "free");
    let args = ["-t", "ext4", "-b", "1024", "-g", "2048", "-N", "1280"];
    let image = Image::mke2fs(SIZE, &args);
    let mount = Mount::new(image.path(), "");
    (0..1200).for_each(|n| drop(fs::File::create(mount.join(format!("{n}"))).expect("an inode")));
    mount.unmount();
    refuse(&image, SIZE / 2048, "inodes");
    assert!(least(&image) > SIZE / 1024 * 9 / 10);
}

/// Values of attributes that the kernel has written into inodes of their own get other numbers, as
/// well as their owners.
#[test]
fn values_in_inodes_move_with_their_files() {
    let args = ["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "ea_inode"];
    let image = Image::mke2fs(SIZE, &args);
    let mount = Mount::new(image.path(), "");
    for n in 0..40 {
        let dir = mount.join(format!("dir{n}"));
        fs::create_dir(&dir).expect("a directory");
        let file = dir.join("file");
        fs::write(&file, "text").expect("space");
        let value = vec![b'a' + n % 20; 3000];
        rustix::fs::setxattr(&file, "user.value", &value, rustix::fs::XattrFlags::empty())
            .expect("an attribute");
    }
    mount.unmount();
    let before = walk(&image);
    let blocks = least(&image);
    assert!(blocks < SIZE / 1024 / 2, "{blocks}");
    apply(plan(&image, blocks).expect("a plan"), &image);
    judge(&image, "values");
    before.assert_same(&walk(&image));
}

/// The search for the smallest size goes on above inodes that keep their numbers.
#[test]
fn inodes_that_keep_their_numbers_bound_the_smallest_size() {
    let args = ["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "stable_inodes"];
    let image = Image::mke2fs(SIZE, &args);
    let mount = Mount::new(image.path(), "");
    (0..30).for_each(|n| fs::create_dir(mount.join(format!("dir{n}"))).expect("a directory"));
    mount.unmount();
    let (before, blocks) = (walk(&image), least(&image));
    assert!(blocks < SIZE / 1024, "{blocks}");
    refuse(&image, blocks / 2, "stable_inodes");
    apply(plan(&image, blocks).expect("a plan"), &image);
    judge(&image, "stable inodes");
    before.assert_same(&walk(&image));
}

/// Records the writes of a change to a smaller size.
fn recorded(bytes: &[u8], blocks: u64) -> Arc<RecordingDevice<MemDevice>> {
    let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(bytes)));
    let plan = Resize::new(recorder.clone()).plan(NewSize::Blocks(blocks)).expect("a plan");
    plan.apply().expect("a smaller file system");
    recorder
}

/// After a cut at any write, the recoveries of e2fsck, the kernel and Extant give the old size or
/// the new one, with all files.
#[test]
fn cut_shrinking_is_whole_or_absent() {
    let cases = [("1k", 35), ("metadata_csum", 60), ("meta_bg", 80), ("bigalloc", 50)];
    for (name, percent) in cases {
        let (_, args) = all_kinds().find(|(known, _)| *known == name).expect("a kind");
        let (image, tree) = filled(name, args);
        let before = image.bytes();
        let own = read(&image);
        let recorder = recorded(&before, superblock(&before).blocks_count() * percent / 100);
        let counts =
            [&before, &recorder.inner().to_vec()].map(|bytes| superblock(bytes).blocks_count());
        let events = recorder.log();
        // Writes of superblock, log's superblock and descriptors are among the sparse ones.
        let every = (events.len() / 6).max(1);
        let mut seen = [0, 0];
        let is_decisive = |cut: usize| cut > 0 && decides(&events[cut - 1]);
        let is_chosen =
            |cut: usize| cut.is_multiple_of(every) || cut + 4 >= events.len() || is_decisive(cut);
        chosen_cuts(&before, &events, &is_chosen, &mut |cut, state| {
            let case = format!("{name}, cut {cut} of {}", events.len());
            let image = Image::holding(&state);
            let by_kernel = image.copy();
            recover_by_e2fsck(&image);
            image.leave_unjudged("it was judged");
            let count = superblock(&image.bytes()).blocks_count();
            let side = counts.iter().position(|known| *known == count);
            seen[side.unwrap_or_else(|| panic!("{case}: {count} blocks"))] += 1;
            own.assert_same(&read(&image));
            let by_extant = recovered_by_extant(&state);
            judge(&by_extant, &case);
            if !is_decisive(cut) {
                by_extant.leave_unjudged("it was judged");
            }
            own.assert_same(&read(&by_extant));
            by_kernel.leave_unjudged("it is judged here, if it is recovered");
            if cut % (every * 4) == 0 || is_decisive(cut) {
                tree.assert_same(&walk(&by_kernel));
                assert_eq!(complaints(by_kernel.path()), [""; 0], "{case}");
            }
        });
        println!("{name}: {seen:?} of {} events", events.len());
        assert!(seen[0] > 0 && seen[1] > 0, "{name}: {seen:?}");
    }
}

/// Returns whether an event writes the superblock.
fn decides(event: &Event) -> bool {
    let Event::Write { offset, data } = event else { return false };
    (*offset..*offset + data.len() as u64).contains(&1024)
}

/// With a log that is too small for all changes, inodes move in several steps.
#[test]
fn small_logs_take_several_steps() {
    let args =
        ["-t", "ext4", "-b", "1024", "-g", "2048", "-J", "size=1", "-I", "1024", "-N", "16000"];
    let image = Image::mke2fs(60 * MIB, &args);
    let mount = Mount::new(image.path(), "");
    // In order of their numbers, so that those that stay are in the last groups.
    let names = (0..8000).map(|n| mount.join(format!("file{n}")));
    let names: Vec<_> = names.collect();
    names.iter().for_each(|name| fs::write(name, vec![7; 500]).expect("space"));
    names.iter().take(7000).for_each(|name| fs::remove_file(name).expect("a file"));
    mount.unmount();
    let tree = read(&image);
    let blocks = 26 << 10;
    let before = image.bytes();
    let recorder = recorded(&before, blocks);
    let transactions = recorder.log().iter().filter(|event| decides(event)).count();
    // Two of each part, and three of the last one.
    assert!(transactions >= 7, "{transactions} writes of the superblock");
    let after = Image::holding(&recorder.inner().to_vec());
    judge(&after, "after all steps");
    tree.assert_same(&read(&after));
    // Another run goes on after a cut.
    let events = recorder.log();
    let state = MemDevice::from_bytes(&before);
    replay(events.iter().take(events.len() / 2), &state).expect("a device in memory");
    let image = Image::holding(&state.to_vec());
    recover_by_e2fsck(&image);
    tree.assert_same(&read(&image));
    let resumed = plan(&image, blocks).expect("a plan").apply().expect("a size");
    assert_eq!(resumed.blocks_count(), blocks);
    judge(&image, "resumed");
    tree.assert_same(&read(&image));
}

/// A device that refuses a write leaves one of the two sizes, and says which.
#[test]
fn failed_writes_leave_the_old_size() {
    let (_, args) = all_kinds().find(|(known, _)| *known == "metadata_csum").expect("a kind");
    let (image, _) = filled("metadata_csum", args);
    let (before, own) = (image.bytes(), read(&image));
    let blocks = superblock(&before).blocks_count() / 2;
    let writes = recorded(&before, blocks).log().iter().filter(|event| is_write(event)).count();
    let mut seen = [0, 0];
    for nr in (0..writes as u64).filter(|nr| nr % 48 == 0 || nr + 10 > writes as u64) {
        let memory = Arc::new(MemDevice::from_bytes(&before));
        let device = Arc::new(FaultDevice::new(memory.clone()));
        device.inject(Fault::new(Op::Write, nr));
        let plan = Resize::new(device.clone()).plan(NewSize::Blocks(blocks)).expect("a plan");
        let Err(error) = plan.apply() else {
            assert_eq!(device.failed(), 0, "write {nr} failed without an error");
            continue;
        };
        let state = Image::holding(&memory.to_vec());
        recover_by_e2fsck(&state);
        own.assert_same(&read(&state));
        let is_new = superblock(&state.bytes()).blocks_count() == blocks;
        seen[usize::from(is_new)] += 1;
        if !matches!(error, ResizeError::Apply(OfflineError::InLog(_))) {
            assert!(!is_new, "write {nr}: {error}");
        }
    }
    assert!(seen[0] > 0, "{seen:?}");
}

/// Damaged images are refused, or become smaller without new damage.
#[test]
fn mutants_are_refused_or_shrink() {
    let seeds: Vec<Seed> = FEATURE_SETS.iter().map(|set| Seed::make(set, false)).collect();
    let (mut refused, mut shrunk) = (0, 0);
    for number in 0..270 {
        let seed = &seeds[number as usize % seeds.len()];
        let mut bytes = seed.bytes.clone();
        let what = mutate_once(&mut bytes, &seed.atlas, &mut Rng::new(number));
        let memory = Arc::new(MemDevice::from_bytes(&bytes));
        let resize = Resize::new(memory.clone());
        let blocks = seed.atlas.geo.blocks_count * (50 + number % 50) / 100;
        let Ok(plan) = resize.plan(NewSize::Blocks(blocks)) else {
            assert!(memory.to_vec() == bytes, "mutant {number} was written");
            refused += 1;
            continue;
        };
        let old = Image::holding(&bytes);
        old.leave_unjudged("it may be damaged");
        // File systems without a journal need a record.
        let applied = plan.apply_with_redo(&mut |_| Ok(()));
        applied.unwrap_or_else(|error| panic!("mutant {number} of {}: {error}", seed.name));
        let image = Image::holding(&memory.to_vec());
        image.leave_unjudged("it may be damaged");
        let (before, after) = (complaints(old.path()), complaints(image.path()));
        assert!(
            after.is_empty() || !before.is_empty(),
            "mutant {number} of {}, {what}: {after:?}",
            seed.name
        );
        shrunk += 1;
    }
    println!("{refused} refused, {shrunk} smaller");
    assert!(refused > 0 && shrunk > 0);
}
