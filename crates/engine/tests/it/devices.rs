//! Devices that fail, are full, too short, or in use. The error reaches the right caller, no
//! operation hangs, and durable data stay.

use extant_blocks::{BlockDevice, Fault, FaultDevice, Op};
use extant_engine::{
    Caller, Errno, Error, File, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, RenameFlags,
    XattrMode,
};
use extant_hostile::deep::{self, Layout};
use extant_testkit::Memory;
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::rng::Rng;
use extant_testkit::{dumpe2fs, e2fsck};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

type Device = Arc<FaultDevice<Arc<Memory>>>;

/// The timer does not interfere.
fn options() -> OpenOptions {
    OpenOptions::new().memory(64 << 20).commit_interval(Duration::from_secs(3600)).seed(1)
}

fn device(bytes: &[u8]) -> Device {
    Arc::new(FaultDevice::new(Arc::new(Memory::from_bytes(bytes))))
}

fn open(device: &Device) -> Fs {
    Fs::open_device(device.clone(), &options()).expect("a good image opens")
}

fn open_file(fs: &Fs, node: &Node) -> extant_engine::Result<File> {
    fs.open_file(node, OpenFlags { write: true, ..Default::default() })
}

fn is_eio(e: &Error) -> bool {
    e.errno() == Errno::Io as i32
}

/// The feature set with maps of three levels. The directory with the old files has an index of two
/// levels.
const DEEP: &str = "large_dir";

/// Returns an image with some files, so that there are blocks to read.
fn filled(set: &str) -> Vec<u8> {
    let mut bytes = FeatureSet::named(set).make_sized(8 * MIB).bytes();
    if set == DEEP {
        bytes = Layout { levels: 2, ..Layout::sparse(3) }.plant(&bytes);
    }
    let device = device(&bytes);
    let fs = open(&device);
    let root = fs.root().unwrap();
    let dir = planted(&fs, "dir", &root, "old").unwrap();
    let dir = dir.unwrap_or_else(|| fs.create(&root, b"old", 0o755, NodeKind::Dir).unwrap());
    for n in 0..100 {
        let node = fs
            .create(&dir, format!("a file of some name {n}").as_bytes(), 0o644, NodeKind::File)
            .unwrap();
        if n % 10 == 0 {
            open_file(&fs, &node).unwrap().write_at(0, &vec![n as u8; 20_000]).unwrap();
            fs.set_xattr(&node, b"user.long", &[1; 500], XattrMode::Any).unwrap();
        }
    }
    drop((root, dir));
    fs.unmount().unwrap();
    device.inner().to_vec()
}

/// Moves the file that [`Layout::plant`] made to another place, if it exists.
fn planted(fs: &Fs, from: &str, dir: &Node, name: &str) -> extant_engine::Result<Option<Node>> {
    match fs.resolve(format!("/{}", deep::DIR), Follow::No) {
        Ok(deep) => {
            fs.rename((&deep, from.as_bytes()), (dir, name.as_bytes()), RenameFlags::empty())?;
            fs.lookup(dir, name.as_bytes()).map(Some)
        }
        Err(e) if e.is(Errno::NoEnt) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The promises: names with their bytes, or `None` for removed names.
type Durable = BTreeMap<String, Option<Vec<u8>>>;

/// Runs a mix of operations and continues after errors, as programs do. Returns the durable state
/// and the errors.
fn work(fs: &Fs) -> (Durable, Vec<Error>) {
    let (mut durable, mut errors) = (Durable::new(), Vec::new());
    for n in 0..4 {
        if let Err(e) = one_file(fs, n, &mut durable) {
            errors.push(e);
        }
    }
    if let Err(e) = old_files(fs, &mut durable) {
        errors.push(e);
    }
    errors.extend(fs.sync().err());
    (durable, errors)
}

fn one_file(fs: &Fs, n: u64, durable: &mut Durable) -> extant_engine::Result<()> {
    let root = fs.root()?;
    let dir = match fs.lookup(&root, b"new") {
        Ok(dir) => dir,
        Err(_) => fs.create(&root, b"new", 0o755, NodeKind::Dir)?,
    };
    let name = format!("file{n}");
    let node = match planted(fs, &name, &dir, &name)? {
        Some(node) => node,
        None => fs.create(&dir, name.as_bytes(), 0o644, NodeKind::File)?,
    };
    let file = open_file(fs, &node)?;
    let mut data = Rng::new(n).bytes(30_000 + 100 * n as usize);
    file.write_at(0, &data)?;
    file.sync()?;
    // Behind them a planted file has zeroes.
    data.resize(file.len() as usize, 0);
    durable.insert(format!("/new/{name}"), Some(data));
    Ok(())
}

fn old_files(fs: &Fs, durable: &mut Durable) -> extant_engine::Result<()> {
    let old = fs.resolve("/old", Follow::No)?;
    fs.unlink(&old, b"a file of some name 10")?;
    fs.rename((&old, b"a file of some name 20"), (&old, b"moved"), RenameFlags::empty())?;
    let node = fs.lookup(&old, b"a file of some name 30")?;
    let file = open_file(fs, &node)?;
    file.set_len(5000)?;
    file.sync()?;
    // One commit holds all of this.
    durable.insert("/old/a file of some name 10".into(), None);
    durable.insert("/old/moved".into(), Some(vec![20; 20_000]));
    durable.insert("/old/a file of some name 30".into(), Some(vec![30; 5000]));
    let mut buf = vec![0; 20_000];
    let node = fs.lookup(&old, b"a file of some name 40")?;
    open_file(fs, &node)?.read_at(0, &mut buf)?;
    assert!(buf == [40; 20_000], "bytes that were not written");
    Ok(())
}

fn assert_durable(fs: &Fs, durable: &Durable, what: &str) {
    for (path, expected) in durable {
        let node = fs.resolve(path, Follow::No);
        let Some(expected) = expected else {
            assert!(node.is_err_and(|e| e.is(Errno::NoEnt)), "{what}: {path} is back");
            continue;
        };
        let node = node.unwrap_or_else(|e| panic!("{what}: {path}: {e}"));
        let file = fs.open_file(&node, OpenFlags::default()).unwrap();
        let mut found = vec![0; file.len() as usize];
        file.read_at(0, &mut found).unwrap();
        assert!(found == *expected, "{what}: {path} has other bytes");
    }
}

/// Verifies, on the repaired device, that the image recovers, keeps durable data and is consistent.
fn assert_recovers(device: &Device, durable: &Durable, what: &str) {
    let image = Image::blank(0);
    std::fs::write(image.path(), device.inner().to_vec()).unwrap();
    let fs = Fs::open(image.path(), &options()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(!fs.is_read_only(), "{what}");
    assert_durable(&fs, durable, what);
    let has_errors = fs.superblock().state().contains(extant_engine::format::State::ERROR);
    fs.unmount().unwrap_or_else(|e| panic!("{what}: {e}"));
    // A file system with errors recorded is to be checked in any case, and a check that may not
    // write stops there.
    let verdict =
        if has_errors { e2fsck::recover(image.path()) } else { e2fsck::check(image.path()) };
    assert!(verdict.is_clean(), "{what}: {verdict:?}");
}

/// Counts the requests of kind `op` in a run without failures.
fn count(bytes: &[u8], op: Op) -> u64 {
    let device = device(bytes);
    let fs = open(&device);
    let before = device.count(op);
    let (_, errors) = work(&fs);
    assert!(errors.is_empty(), "{errors:?}");
    fs.unmount().unwrap();
    device.count(op) - before
}

/// Makes one operation fail, and verifies the errors of the work and the image that it leaves.
fn failing(bytes: &[u8], fault: Fault, strict: bool, journal: bool, what: &str) {
    let device = device(bytes);
    let fs = open(&device);
    device.inject(fault);
    let (durable, errors) = work(&fs);
    let told = errors.iter().any(is_eio);
    let read_only = fs.is_read_only();
    let unmounted = fs.unmount();
    let hit = device.failed() > 0;
    // A read may be done without, and a write of data is tried again.
    let silent = hit && strict && !told && unmounted.is_ok();
    assert!(!silent, "{what}: the caller got no error");
    for e in &errors {
        let known = is_eio(e)
            || e.errno() == Errno::RoFs as i32
            || [Errno::NoEnt, Errno::Exist].iter().any(|x| e.is(*x));
        assert!(known, "{what}: {e:?}");
    }
    assert!(hit || !read_only, "{what}: read-only for no reason");
    device.heal();
    if journal {
        assert_recovers(&device, &durable, what);
    } else {
        device.inner().leave_unjudged("without a log nothing is promised after a failure");
    }
}

fn each_fails(set: &str, op: Op) {
    let bytes = filled(set);
    let journal = FeatureSet::named(set).journal;
    let total = count(&bytes, op);
    assert!(total > 3, "{op} happens {total} times");
    // `make devices` has each.
    let step = (total / 8).max(1);
    for nth in (0..total).step_by(step as usize) {
        failing(
            &bytes,
            Fault::new(op, nth),
            op == Op::Flush,
            journal,
            &format!("{set}: {op} {nth} of {total} fails"),
        );
        let from_then_on = Fault::new(op, nth).from_then_on();
        failing(
            &bytes,
            from_then_on,
            op != Op::Read,
            journal,
            &format!("{set}: all from {op} {nth} of {total} on fail"),
        );
    }
}

#[test]
fn each_read_fails() {
    each_fails("default", Op::Read);
    each_fails("1k", Op::Read);
    each_fails("ext2", Op::Read);
    each_fails(DEEP, Op::Read);
}

#[test]
fn each_write_fails() {
    each_fails("default", Op::Write);
    each_fails("1k", Op::Write);
    each_fails("ext2", Op::Write);
    each_fails(DEEP, Op::Write);
}

#[test]
fn each_flush_fails() {
    each_fails("default", Op::Flush);
    each_fails("1k", Op::Flush);
}

/// Opening fails at each request in turn: the result is an error or a working file system, and no
/// panic.
#[test]
fn opening_fails_at_each_operation() {
    let bytes = filled("orphan_file");
    let crashed = {
        let device = device(&bytes);
        let fs = open(&device);
        let (_, errors) = work(&fs);
        assert!(errors.is_empty());
        fs.crash();
        device.inner().to_vec()
    };
    for op in [Op::Read, Op::Write, Op::Flush] {
        for nth in 0.. {
            let device = device(&crashed);
            device.inject(Fault::new(op, nth));
            let opened = Fs::open_device(device.clone(), &options());
            let hit = device.failed() > 0;
            assert!(!hit || opened.as_ref().is_err_and(is_eio), "{op} {nth}: {opened:?}");
            device.heal();
            drop(opened.map(Fs::crash));
            let durable = Durable::from([("/new/file1".into(), Some(Rng::new(1).bytes(30_100)))]);
            assert_recovers(&device, &durable, &format!("{op} {nth} fails when opening"));
            if !hit {
                break;
            }
        }
    }
}

/// The blocks that hold a file's data, as a range of bytes of the device.
fn data_of(fs: &Fs, file: &File) -> std::ops::Range<u64> {
    let mut place = 0..0;
    file.extents(0, u64::MAX, |extent| {
        place = extent.physical..extent.physical + extent.len;
        false
    })
    .unwrap();
    let _ = fs;
    place
}

#[test]
fn each_open_file_reports_a_lost_write_once() {
    let device = device(&filled("default"));
    let fs = open(&device);
    let root = fs.root().unwrap();
    let node = fs.create(&root, b"file", 0o644, NodeKind::File).unwrap();
    let files = [open_file(&fs, &node).unwrap(), open_file(&fs, &node).unwrap()];
    files[0].write_at(0, &[1; 8192]).unwrap();
    files[0].sync().unwrap();
    device.inject(Fault::new(Op::Write, 0).from_then_on().within(data_of(&fs, &files[0])));
    files[0].write_at(0, &[2; 8192]).unwrap();
    let told = files[0].sync().unwrap_err();
    assert!(is_eio(&told), "{told}");
    device.heal();
    let told = files[1].sync().unwrap_err();
    assert!(is_eio(&told), "{told}");
    assert!(files[0].sync().is_ok() && files[1].sync().is_ok());
    let late = open_file(&fs, &node).unwrap();
    assert!(late.sync().is_ok());
    assert!(!fs.is_read_only());
    files[1].write_at(0, &[3; 8192]).unwrap();
    files[1].sync().unwrap();
    drop((files, late, node, root));
    fs.unmount().unwrap();
    assert_recovers(
        &device,
        &Durable::from([("/file".into(), Some(vec![3; 8192]))]),
        "after a lost write",
    );
}

#[test]
fn a_journal_that_cannot_be_written_stops_all_changes_once() {
    let device = device(&filled("default"));
    let fs = open(&device);
    let root = fs.root().unwrap();
    fs.sync().unwrap();
    device.inject(Fault::new(Op::Flush, 0));
    fs.create(&root, b"lost", 0o644, NodeKind::File).unwrap();
    let failed = device.failed();
    assert!(is_eio(&fs.sync().unwrap_err()));
    assert_eq!(device.failed(), failed + 1, "a failed flush is not tried again");
    assert!(fs.is_read_only());
    let refused = fs.create(&root, b"later", 0o644, NodeKind::File).unwrap_err();
    assert!(refused.is(Errno::RoFs), "{refused}");
    assert_eq!(fs.read_dir(&root).unwrap().iter().filter(|e| e.name == b"old").count(), 1);
    drop(root);
    let _ = fs.unmount();
    let image = Image::blank(0);
    std::fs::write(image.path(), device.inner().to_vec()).unwrap();
    assert!(dumpe2fs::header(image.path()).value("Filesystem state").contains("errors"));
    assert_recovers(&device, &Durable::new(), "after an abort");
}

/// A full file system under many threads: accepted writes are there, and the counts are right.
#[test]
fn a_full_disk_loses_nothing_that_was_accepted() {
    for set in ["default", "1k", "bigalloc_1k", "ext2"] {
        let image = FeatureSet::named(set).make_sized(16 * MIB);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let accepted: Vec<Vec<(u64, u64)>> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..6)
                .map(|n| {
                    scope.spawn({
                        let (fs, root) = (&fs, &root);
                        move || fill(fs, root, n)
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        fs.sync().unwrap_or_else(|e| panic!("{set}: {e}"));
        let usage = fs.usage();
        drop(root);
        fs.unmount().unwrap();
        image.assert_clean();
        let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap();
        assert_eq!(fs.superblock().free_blocks_count(), usage.free, "{set}");
        for (n, pieces) in accepted.iter().enumerate() {
            verify(&fs, set, n as u64, pieces);
        }
    }
}

fn piece(thread: u64, offset: u64, len: u64) -> Vec<u8> {
    Rng::new(thread << 40 ^ offset).bytes(len as usize)
}

/// Writes at random places until two writes were refused. Returns the accepted writes.
fn fill(fs: &Fs, root: &Node, thread: u64) -> Vec<(u64, u64)> {
    let node =
        fs.create(root, format!("thread{thread}").as_bytes(), 0o644, NodeKind::File).unwrap();
    let file = open_file(fs, &node).unwrap();
    let (mut accepted, mut refused, mut offset, mut rng) = (Vec::new(), 0, 0, Rng::new(thread));
    while refused < 2 {
        offset += rng.below(3) * 5000;
        let len = rng.between(1, 60_000);
        match file.write_at(offset, &piece(thread, offset, len)) {
            Ok(written) => {
                accepted.push((offset, len.min(written as u64)));
                offset += len;
            }
            Err(e) if e.is(Errno::NoSpc) => refused += 1,
            Err(e) => panic!("{e}"),
        }
        if rng.one_in(20) {
            file.sync().unwrap();
        }
    }
    file.sync().unwrap();
    accepted
}

fn verify(fs: &Fs, set: &str, thread: u64, pieces: &[(u64, u64)]) {
    let node = fs.resolve(format!("/thread{thread}"), Follow::No).unwrap();
    let file = fs.open_file(&node, OpenFlags::default()).unwrap();
    for (offset, len) in pieces {
        let mut found = vec![0; *len as usize];
        assert_eq!(file.read_at(*offset, &mut found).unwrap() as u64, *len);
        // The generator's first bytes do not depend on the length.
        assert!(
            found == piece(thread, *offset, *len),
            "{set}: thread {thread} lost {len} bytes at {offset}"
        );
    }
}

#[test]
fn inodes_run_out_and_come_back() {
    let image = Image::mke2fs(8 * MIB, &["-t", "ext4", "-N", "64"]);
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let root = fs.root().unwrap();
    let mut made = Vec::new();
    let refused = loop {
        let name = format!("{}", made.len());
        match fs.create(&root, name.as_bytes(), 0o644, NodeKind::File) {
            Ok(_) => made.push(name),
            Err(e) => break e,
        }
    };
    assert!(refused.is(Errno::NoSpc), "{refused}");
    assert_eq!(fs.usage().inodes_free, 0);
    assert!(fs.create(&root, b"dir", 0o755, NodeKind::Dir).unwrap_err().is(Errno::NoSpc));
    assert!(fs.create_nameless(&Caller::default(), &root, 0o600).unwrap_err().is(Errno::NoSpc));
    fs.unlink(&root, made[3].as_bytes()).unwrap();
    fs.create(&root, b"dir", 0o755, NodeKind::Dir).unwrap();
    drop(root);
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn an_image_is_written_by_one_at_a_time() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let second = Fs::open(image.path(), &OpenOptions::new()).unwrap_err();
    assert!([Errno::Again as i32, Errno::Busy as i32].contains(&second.errno()), "{second:?}");
    assert!(second.to_string().contains(&*image.path().to_string_lossy()), "{second}");
    let reader = Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap_err();
    assert!(reader.errno() != 0);
    fs.unmount().unwrap();
    let readers =
        [0, 1].map(|_| Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap());
    assert!(Fs::open(image.path(), &OpenOptions::new()).is_err());
    drop(readers);
    Fs::open(image.path(), &OpenOptions::new()).unwrap().unmount().unwrap();
    image.assert_clean();
}

#[test]
fn a_device_that_is_too_short_is_refused_with_both_lengths() {
    let bytes = FeatureSet::named("default").make_sized(8 * MIB).bytes();
    for len in [0, 1, 1024, 2047, 2048, 5000, 4 * MIB as usize, bytes.len() - 1] {
        let device = Arc::new(Memory::from_bytes(&bytes[..len]));
        for read_only in [false, true] {
            let error =
                Fs::open_device(device.clone(), &options().read_only(read_only)).unwrap_err();
            assert!(matches!(error, Error::Corrupt(_)), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("image"), "{text}");
            assert!(len < 2048 || text.contains("2048"), "{text}");
        }
        assert_eq!(device.to_vec(), bytes[..len]);
        assert_eq!(device.len(), len as u64);
    }
}
