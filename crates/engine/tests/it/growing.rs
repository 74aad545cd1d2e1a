//! Growth of a mounted file system: threads read and write meanwhile, and each larger one is whole
//! for e2fsck, the kernel and the engine. A power cut leaves the old size, or that after a step.

use extant_blocks::{BlockDevice, Fault, FaultDevice, MemDevice, Op, RecordingDevice};
use extant_engine::format::Superblock;
use extant_engine::{Error, Follow, Fs, GrowTo, NodeKind, OpenFlags, OpenOptions, set_interrupt};
use extant_format::{Compat, Geometry, Incompat};
use extant_testkit::cuts::chosen_cuts;
use extant_testkit::kernel::Mount;
use extant_testkit::tool::run;
use extant_testkit::{Image, Memory, dumpe2fs, e2fsck};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

/// The bytes of the images before: the last group is short.
const SIZE: u64 = 28 * MIB;

/// Kinds of file systems; whether the kernel of the tests mounts them.
const KINDS: &[(&str, &[&str], bool)] = &[
    ("1k", &["-t", "ext4", "-b", "1024"], true),
    ("4k", &["-t", "ext4", "-b", "4096", "-g", "2048"], true),
    ("orphan_file", &["-t", "ext4", "-b", "1024", "-O", "orphan_file,metadata_csum_seed"], true),
    ("flex", &["-t", "ext4", "-b", "1024", "-g", "1024", "-G", "64"], true),
    ("flex_2", &["-t", "ext4", "-b", "1024", "-g", "2048", "-G", "2"], true),
    ("no_flex", &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"], true),
    ("no_csum", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], true),
    ("uninit_bg", &["-t", "ext4", "-b", "1024", "-O", "uninit_bg,^metadata_csum"], true),
    ("no_64bit", &["-t", "ext4", "-b", "2048", "-g", "4096", "-O", "^64bit"], true),
    ("meta_bg", &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"], true),
    ("no_kept", &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^resize_inode"], true),
    ("kept", &["-t", "ext4", "-b", "1024", "-g", "1024"], true),
    ("many_inodes", &["-t", "ext4", "-b", "1024", "-i", "1024"], true),
    ("sparse_super2", &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "sparse_super2"], true),
    ("all_copies", &["-t", "ext4", "-b", "1024", "-O", "^sparse_super,^resize_inode"], true),
    ("bigalloc", &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096", "-g", "8192"], true),
    ("mmp", &["-t", "ext4", "-b", "1024", "-O", "mmp"], true),
    ("quota", &["-t", "ext4", "-b", "1024", "-O", "quota,project"], false),
    ("64k", &["-t", "ext4", "-b", "65536", "-O", "^has_journal"], false),
    ("no_journal", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"], true),
    ("ext2", &["-t", "ext2", "-b", "1024", "-I", "128", "-g", "1024"], true),
    ("ext3", &["-t", "ext3", "-b", "4096", "-g", "2048"], true),
];

fn kind(name: &str) -> &'static [&'static str] {
    KINDS.iter().find(|(known, ..)| *known == name).expect("a kind").1
}

/// Returns an image of a kind. Its journal can have the lists of all blocks that the resize inode
/// keeps.
fn image(args: &[&str]) -> Image {
    let logged = !args.contains(&"ext2") && !args.contains(&"^has_journal");
    let journal: &[&str] = if logged { &["-J", "size=4"] } else { &[] };
    Image::mke2fs(SIZE, &[args, journal].concat())
}

fn write(fs: &Fs, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let root = fs.root()?;
    let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File)?;
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() })?;
    file.write_at(0, bytes).map(|_| ())
}

fn read(fs: &Fs, name: &str) -> Vec<u8> {
    let node = fs.resolve(format!("/{name}"), Follow::No).expect("a file");
    let file = fs.open_file(&node, OpenFlags::default()).expect("open");
    let mut bytes = vec![0; node.attr().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).expect("read"), bytes.len());
    bytes
}

fn content(nr: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(nr * 2 + 1) >> 3) as u8).collect()
}

const FILE: usize = 40_000;

/// Writes and reads files until it is told to end; gives how many there are. Space may be short.
fn use_meanwhile(fs: &Fs, thread: u64, ends: &AtomicBool, written: &AtomicU64) -> u64 {
    let mut files = 0;
    while !ends.load(Ordering::Acquire) && files < 120 {
        let nr = thread * 1000 + files;
        match write(fs, &format!("f{nr}"), &content(nr, FILE)) {
            Ok(()) => {}
            Err(e) if e.errno() == 28 => {
                fs.unlink(&fs.root().unwrap(), format!("f{nr}").as_bytes()).ok();
                std::thread::yield_now();
                continue;
            }
            Err(e) => panic!("file {nr}: {e}"),
        }
        files += 1;
        written.fetch_add(1, Ordering::AcqRel);
        let old = thread * 1000 + files / 2;
        assert!(read(fs, &format!("f{old}")) == content(old, FILE), "file {old}");
        if files.is_multiple_of(8) {
            fs.sync().expect("sync");
        }
    }
    files
}

/// Grows while two threads write and read. Gives the names of their files.
fn grow_in_use(fs: &Fs, sizes: &[u64], case: &str) -> Vec<u64> {
    let (ends, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let threads = [1, 2].map(|thread| {
            let (ends, written) = (&ends, &written);
            scope.spawn(move || (thread, use_meanwhile(fs, thread, ends, written)))
        });
        for (at, size) in sizes.iter().enumerate() {
            // Some files before each growth.
            while written.load(Ordering::Acquire) < 4 * (at as u64 + 1)
                && !threads.iter().all(|thread| thread.is_finished())
            {
                std::thread::yield_now();
            }
            let grown = fs.grow(*size).unwrap_or_else(|e| panic!("{case} to {size}: {e}"));
            assert!(grown <= *size && grown + 17 * MIB > *size, "{case}: {grown} for {size}");
            let superblock = fs.superblock();
            let block = u64::from(superblock.block_size());
            assert_eq!(superblock.blocks_count() * block, grown, "{case}");
        }
        ends.store(true, Ordering::Release);
        let files = threads.map(|thread| thread.join().expect("no panic"));
        files
            .iter()
            .flat_map(|(thread, files)| (0..*files).map(move |n| thread * 1000 + n))
            .collect()
    })
}

fn judge_by_kernel(image: &Image, files: &[u64], case: &str) {
    let mount = Mount::new(image.path(), "");
    for nr in files {
        let found = std::fs::read(mount.join(format!("f{nr}"))).expect("a file");
        assert!(found == content(*nr, FILE), "{case}: file {nr}");
    }
    for nr in 0..20 {
        std::fs::write(mount.join(format!("k{nr}")), vec![nr; 1 << 20]).expect("space");
    }
    mount.unmount();
}

#[test]
fn file_systems_of_all_kinds_grow_in_use() {
    for (name, args, by_kernel) in KINDS {
        let image = image(args);
        let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
        let before = fs.usage();
        // Within the last group, some groups, and several blocks of descriptors.
        let files = grow_in_use(&fs, &[SIZE + 17_000, 60 * MIB, 130 * MIB], name);
        let after = fs.usage();
        assert!(after.blocks > before.blocks * 3 && after.free > before.free * 3, "{name}");
        // A group of large blocks is larger than that.
        assert!(*name == "64k" || after.inodes > before.inodes * 3, "{name}");
        for nr in 0..12 {
            write(&fs, &format!("later{nr}"), &content(nr, 4 << 20)).expect("space");
        }
        fs.sync().expect("sync");
        for nr in &files {
            assert!(read(&fs, &format!("f{nr}")) == content(*nr, FILE), "{name}: file {nr}");
        }
        fs.unmount().expect("unmount");
        e2fsck::check(image.path()).assert_clean();
        let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).expect("open");
        (0..12).for_each(|nr| assert!(read(&fs, &format!("later{nr}")) == content(nr, 4 << 20)));
        fs.unmount().expect("unmount");
        if *by_kernel {
            judge_by_kernel(&image, &files, name);
        }
        e2fsck::check(image.path()).assert_clean();
    }
}

/// Sizes and counts are those of the kernel's and of resize2fs's growth.
#[test]
fn sizes_of_a_mount_are_those_of_resize2fs() {
    const COUNTS: [&str; 3] = ["Block count", "Inode count", "Inodes per group"];
    for (name, args, _) in KINDS.iter().filter(|(name, ..)| !["mmp", "64k"].contains(name)) {
        let (own, theirs) = (image(args), image(args));
        let fs = Fs::open(own.path(), &OpenOptions::new()).expect("open");
        fs.grow(130 * MIB).expect(name);
        fs.unmount().expect("unmount");
        let args: [OsString; 3] = ["-f".into(), theirs.path().into(), "130M".into()];
        run("resize2fs", &args).must_succeed();
        theirs.leave_unjudged("resize2fs 1.47 counts the free clusters of bigalloc wrongly");
        let (own, theirs) = (dumpe2fs::header(own.path()), dumpe2fs::header(theirs.path()));
        for count in COUNTS {
            assert_eq!(own.value(count), theirs.value(count), "{name}: {count}");
        }
    }
}

/// Each inode and each block that the file system gets can be used.
#[test]
fn a_full_file_system_takes_files_again() {
    let args = ["-t", "ext4", "-b", "1024", "-g", "1024", "-N", "256", "-m", "0", "-J", "size=4"];
    let image = Image::mke2fs(16 * MIB, &args);
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    let mut count = 0;
    let mut fill = || {
        while fs.create(&root, format!("n{count}").as_bytes(), 0o644, NodeKind::File).is_ok() {
            count += 1;
        }
        count
    };
    let first = fill();
    fs.grow(40 * MIB).expect("grow");
    let second = fill();
    assert!(second > first * 2, "{first} and then {second}");
    assert_eq!(fs.usage().inodes_free, 0);
    let node = fs.resolve("/n0", Follow::No).expect("a file");
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    let mut at = 0;
    while file.write_at(at, &[3; 65_536]).is_ok() && file.sync().is_ok() {
        at += 65_536;
    }
    assert!(at > 24 * MIB, "{at} bytes of 40 MiB");
    drop((file, node, root));
    fs.unmount().expect("unmount");
}

fn superblock(bytes: &[u8]) -> Superblock {
    Superblock::parse(&bytes[1024..2048]).expect("a superblock")
}

/// Blocks that the resize inode keeps are used for descriptors, one after the other; then only a
/// file system that nothing has open can grow, and the refusal says so.
#[test]
fn kept_blocks_hold_more_descriptors() {
    let args = ["-t", "ext4", "-b", "1024", "-g", "512", "-E", "resize=64m"];
    let image = Image::mke2fs(SIZE, &args);
    let old = superblock(&image.bytes());
    let geometry = Geometry::new(&old).expect("a geometry");
    let kept = u64::from(old.reserved_gdt_blocks());
    assert!(kept > 0, "nothing is kept");
    let groups = u64::from(geometry.desc_blocks) + kept;
    let most = groups * u64::from(geometry.descs_per_block()) * 512 * 1024;
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let error = fs.grow(most + 2 * MIB).expect_err("a refusal");
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("`extant resize`"), "{error}");
    assert_eq!(fs.superblock().blocks_count(), old.blocks_count());
    assert_eq!(std::fs::metadata(image.path()).unwrap().len(), SIZE, "a refusal changes nothing");
    assert_eq!(fs.grow(most).expect("kept blocks"), most);
    let new = fs.superblock();
    assert_eq!(new.reserved_gdt_blocks(), 0);
    assert!(new.compat().contains(Compat::RESIZE_INODE));
    fs.unmount().expect("unmount");
    e2fsck::check(image.path()).assert_clean();
    Mount::new(image.path(), "").unmount();
}

/// Without kept blocks, descriptors lie in the groups that they describe.
#[test]
fn descriptors_without_kept_blocks_lie_in_new_groups() {
    let image = Image::mke2fs(SIZE, kind("no_kept"));
    let before = superblock(&image.bytes());
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    fs.grow(130 * MIB).expect("grow");
    let after = fs.superblock();
    assert!(after.incompat().contains(Incompat::META_BG));
    assert_eq!(after.first_meta_bg(), Geometry::new(&before).expect("a geometry").desc_blocks);
    fs.unmount().expect("unmount");
}

#[test]
fn sizes_that_cannot_be_had_change_nothing() {
    let image = Image::mke2fs(SIZE, &["-t", "ext4", "-b", "1024", "-O", "^64bit"]);
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    for size in [0, SIZE - 1024, 1 << 43, u64::MAX] {
        let error = fs.grow(size).expect_err("a refusal");
        assert!(matches!(error, Error::Invalid(_) | Error::Unsupported(_)), "{size}: {error}");
    }
    // The present size, and one that has no place for another block.
    for size in [SIZE, SIZE + 1023] {
        assert_eq!(fs.grow(size).expect("a size"), SIZE);
    }
    assert_eq!(std::fs::metadata(image.path()).unwrap().len(), SIZE);
    fs.unmount().expect("unmount");
    let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).expect("open");
    assert_eq!(fs.grow(60 * MIB).expect_err("a refusal").errno(), 30);
    fs.unmount().expect("unmount");
}

/// Each list of the kept blocks changes when a new group has a copy of the superblock.
#[test]
fn a_small_journal_is_named() {
    let image = Image::mke2fs(SIZE, kind("1k"));
    let before = superblock(&image.bytes()).blocks_count();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let error = fs.grow(130 * MIB).expect_err("a refusal").to_string();
    assert!(error.contains("journal") && error.contains("`extant resize`"), "{error}");
    assert_eq!(fs.superblock().blocks_count(), before);
    fs.unmount().expect("unmount");
}

/// A device whose length is fixed.
#[derive(Debug)]
struct Fixed(Memory);

impl BlockDevice for Fixed {
    extant_blocks::forward_device!(self => self.0;
        len, name, alignment, read_only, read_exact_at, write_all_at, flush, discard, write_zeroes,
        next_data, claim);
}

#[test]
fn a_device_that_stays_short_is_named() {
    let image = Image::mke2fs(SIZE, kind("1k"));
    let mut bytes = image.bytes();
    bytes.resize(40 * MIB as usize, 0);
    let fs = Fs::open_device(Arc::new(Fixed(Memory::from_bytes(&bytes))), &OpenOptions::new())
        .expect("open");
    let error = fs.grow(60 * MIB).expect_err("a refusal").to_string();
    assert!(error.contains("larger first"), "{error}");
    assert_eq!(fs.grow(40 * MIB).expect("its own length"), 40 * MIB);
    fs.unmount().expect("unmount");
}

/// A file that another program has made longer is not cut, and gives its length as the size.
#[test]
fn a_longer_device_is_filled() {
    let image = Image::mke2fs(SIZE, &[kind("1k"), &["-J", "size=4"]].concat());
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let file = std::fs::OpenOptions::new().write(true).open(image.path()).expect("an image");
    file.set_len(100 * MIB).expect("space");
    let operations = fs.operations();
    let to = GrowTo::MoreBytes(12 * MIB);
    assert_eq!(operations.planned_size(to).expect("a size").bytes(), 40 * MIB);
    assert_eq!(operations.grow_to(to).expect("grow"), 40 * MIB);
    assert_eq!(file.metadata().expect("stat").len(), 100 * MIB);
    assert_eq!(operations.grow_to(GrowTo::Device).expect("grow"), 100 * MIB);
    assert_eq!(operations.size().blocks, 100 << 10);
    fs.unmount().expect("unmount");
    e2fsck::check(image.path()).assert_clean();
}

/// An interrupted growth leaves a size between two steps, and another one goes on from there.
#[test]
fn an_interruption_ends_growth_between_steps() {
    let image = Image::mke2fs(SIZE, kind("meta_bg"));
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let mut sizes = Vec::new();
    for looks in 0.. {
        let left = AtomicU64::new(looks);
        let is_over = move || {
            left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1))
        };
        let before = set_interrupt(Some(Arc::new(move || is_over().is_err())));
        let grown = fs.grow(90 * MIB);
        set_interrupt(before);
        sizes.push(fs.operations().size().blocks);
        match grown {
            Ok(_) => break,
            Err(error) => assert_eq!(error.errno(), 4, "{error}"),
        }
    }
    sizes.dedup();
    assert!(sizes.len() > 3 && sizes.is_sorted(), "{sizes:?}");
    assert_eq!((sizes[0], sizes[sizes.len() - 1]), (28 << 10, 90 << 10));
    fs.unmount().expect("unmount");
    e2fsck::check(image.path()).assert_clean();
}

/// Growth that fails leaves a file system that goes on, or one that stops without damage.
#[test]
fn failed_writes_leave_a_whole_file_system() {
    let image = Image::mke2fs(10 * MIB, kind("kept"));
    let bytes = image.bytes();
    let mut grown = [0, 0];
    for nr in 0.. {
        let memory = Arc::new(Memory::from_bytes(&bytes));
        let device = Arc::new(FaultDevice::new(memory.clone()));
        let fs = Fs::open_device(device.clone(), &OpenOptions::new().seed(1)).expect("open");
        write(&fs, "file", &content(7, FILE)).expect("write");
        fs.sync().expect("sync");
        device.inject(Fault::new(Op::Write, nr));
        let result = fs.grow(24 * MIB);
        grown[usize::from(result.is_ok())] += 1;
        let ended = device.failed() == 0;
        let again = (!fs.is_read_only()).then(|| fs.grow(24 * MIB).expect("the fault is over"));
        assert!(again.is_none_or(|size| size == 24 * MIB));
        // A journal that was aborted leaves a file system with errors.
        fs.unmount().ok();
        memory.leave_unjudged("it is judged here");
        let state = Image::holding(&memory.to_vec());
        let args: [OsString; 2] = ["-fy".into(), state.path().into()];
        let judged = run("e2fsck", &args);
        assert!(judged.code <= 1, "write {nr}: {judged}");
        e2fsck::check(state.path()).assert_clean();
        let fs = Fs::open(state.path(), &OpenOptions::new().read_only(true)).expect("open");
        assert!(read(&fs, "file") == content(7, FILE), "write {nr}");
        fs.unmount().expect("unmount");
        if ended {
            break;
        }
    }
    assert!(grown[0] > 5 && grown[1] > 0, "{grown:?}");
}

/// Recovers by e2fsck. Returns the number of blocks, and the messages.
fn recover_by_e2fsck(image: &Path) -> (u64, String) {
    let args: [OsString; 2] = ["-fy".into(), image.into()];
    let recovered = run("e2fsck", &args);
    assert!(recovered.code <= 1, "{recovered}");
    e2fsck::check(image).assert_clean();
    let blocks = superblock(&std::fs::read(image).expect("an image")).blocks_count();
    (blocks, recovered.to_string())
}

/// After a cut at any write of the growth, e2fsck and Extant find the size before or after a step,
/// with all files, and growth goes on from there.
#[test]
fn cut_growth_leaves_a_whole_size() {
    // Those of small groups get a second block of descriptors, in a second step.
    let cases = [
        ("kept", 18 * MIB, Some(16 * MIB / 1024 + 1)),
        ("no_kept", 18 * MIB, Some(16 * MIB / 1024 + 1)),
        ("4k", 20 * MIB, None),
        ("no_flex", 18 * MIB, None),
    ];
    for (name, size, middle) in cases {
        let image = Image::mke2fs(10 * MIB, kind(name));
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&image.bytes())));
        let fs = Fs::open_device(recorder.clone(), &OpenOptions::new().seed(1)).expect("open");
        write(&fs, "file", &content(7, FILE)).expect("write");
        fs.sync().expect("sync");
        let before = recorder.inner().to_vec();
        recorder.take_log();
        fs.grow(size).expect("grow");
        write(&fs, "later", &content(8, FILE)).expect("write");
        fs.sync().expect("sync");
        let log = recorder.take_log();
        fs.crash();
        let [old, new] = [superblock(&before), superblock(&recorder.inner().to_vec())]
            .map(|superblock| superblock.blocks_count());
        assert!(old < new, "{name}: the superblock at home has the growth");
        let counts: Vec<u64> = [Some(old), middle, Some(new)].into_iter().flatten().collect();
        let mut seen = vec![0; counts.len()];
        chosen_cuts(&before, &log, &|_| true, &mut |cut, state| {
            let by_e2fsck = Image::holding(&state);
            let (count, printed) = recover_by_e2fsck(by_e2fsck.path());
            let side = counts.iter().position(|known| *known == count);
            let side = side.unwrap_or_else(|| panic!("{name}, cut {cut}: {count} blocks"));
            seen[side] += 1;
            let memory = Arc::new(Memory::from_bytes(&state));
            let fs = Fs::open_device(memory.clone(), &OpenOptions::new()).expect("recovery");
            assert_eq!(fs.superblock().blocks_count(), count, "{name}, cut {cut}: {printed}");
            assert!(read(&fs, "file") == content(7, FILE), "{name}, cut {cut}");
            let grown = fs.grow(size).unwrap_or_else(|e| panic!("{name}, cut {cut}: {e}"));
            assert_eq!(grown / u64::from(fs.superblock().block_size()), new);
            write(&fs, "again", &content(9, 1 << 20)).expect("space");
            fs.unmount().expect("unmount");
        });
        assert!(seen.iter().all(|seen| *seen > 0), "{name}: {seen:?}");
    }
}

/// The kernel recovers a journal with a growth, too.
#[test]
fn the_kernel_replays_a_growth() {
    let image = Image::mke2fs(10 * MIB, kind("kept"));
    let memory = Arc::new(Memory::from_bytes(&image.bytes()));
    let recorder = Arc::new(RecordingDevice::new(memory.clone()));
    let fs = Fs::open_device(recorder.clone(), &OpenOptions::new()).expect("open");
    recorder.take_log();
    fs.grow(12 * MIB).expect("grow");
    let log = recorder.take_log();
    fs.crash();
    memory.leave_unjudged("it is judged here");
    // At the writes of home blocks, which the log has: those of the superblock are the last.
    let mut before = image.bytes();
    before.resize(memory.len() as usize, 0);
    let mut replayed = 0;
    chosen_cuts(&before, &log, &|cut| cut + 12 >= log.len(), &mut |cut, state| {
        let state = Image::holding(&state);
        Mount::new(state.path(), "").unmount();
        let count = superblock(&state.bytes()).blocks_count();
        assert!(count == 10 * MIB / 1024 || count == 12 * MIB / 1024, "cut {cut}: {count}");
        replayed += u64::from(count == 12 * MIB / 1024);
    });
    assert!(replayed > 0, "no state has the growth");
}
