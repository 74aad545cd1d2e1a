//! A frozen file system is clean on its device, and continues after the thaw. One that is shut down
//! does not continue. Also: the state that readers beside the mount see.

use extant_blocks::BlockDevice;
use extant_engine::format::{ErrorPolicy, State};
use extant_engine::{
    AccessTimes, Errno, Falloc, Follow, Fs, NodeKind, OpenFlags, OpenOptions, RenameFlags, SetAttr,
    XattrMode,
};
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::{Ending, Memory, debugfs, dumpe2fs};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn write(fs: &Fs, name: &str) {
    let root = fs.root().expect("root");
    let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).expect("create");
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    file.write_at(0, &[5; 9000]).expect("write");
}

#[test]
fn a_copy_of_a_frozen_file_system_is_clean() {
    let image = FeatureSet::named("orphan_file").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    write(&fs, "before");
    let went_on = AtomicBool::new(false);
    std::thread::scope(|s| {
        let frozen = fs.freeze().expect("freeze");
        s.spawn(|| {
            write(&fs, "during");
            went_on.store(true, Ordering::Release);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!went_on.load(Ordering::Acquire), "a change went through a freeze");
        let copy = image.copy();
        copy.assert_clean();
        let other =
            Fs::open(copy.path(), &OpenOptions::new().read_only(true)).expect("the copy opens");
        assert!(other.recovery().journal.is_none(), "the copy needs no recovery");
        assert!(other.resolve("/before", Follow::No).is_ok());
        frozen.thaw().expect("thaw");
    });
    assert!(went_on.load(Ordering::Acquire));
    write(&fs, "after");
    fs.sync().expect("sync");
    // After the thaw a crash needs recovery again, and gets it.
    let torn = image.copy();
    fs.crash();
    let fs = Fs::open(torn.path(), &OpenOptions::new()).expect("recovery");
    assert!(fs.resolve("/after", Follow::No).is_ok());
    fs.unmount().expect("unmount");
    torn.assert_clean();
}

/// The space of a file that was removed while it was open is free in a copy, once it is closed.
#[test]
fn a_copy_has_no_orphans_but_files_in_use() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    let files = [0, 1].map(|nr| {
        let name = [b'f', b'0' + nr];
        let node = fs.create(&root, &name, 0o644, NodeKind::File).expect("create");
        let flags = OpenFlags { write: true, ..Default::default() };
        let file = fs.open_file(&node, flags).expect("open");
        file.write_at(0, &[7; 1 << 20]).expect("write");
        file.sync().expect("fsync");
        fs.unlink(&root, &name).expect("unlink");
        file
    });
    drop(root);
    let [used, closed] = files;
    drop(closed);
    let frozen = fs.freeze().expect("freeze");
    let copy = image.copy();
    frozen.thaw().expect("thaw");
    let other = Fs::open(copy.path(), &OpenOptions::new()).expect("the copy opens");
    assert_eq!(other.recovery().orphans.freed, 1, "{:?}", other.recovery());
    other.unmount().expect("unmount");
    copy.assert_clean();
    drop(used);
    fs.unmount().expect("unmount");
}

#[test]
fn no_byte_changes_while_frozen() {
    let image = FeatureSet::named("default").make();
    let device = Arc::new(Memory::from_bytes(&image.bytes()));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new().discard(true)).expect("open");
    let root = fs.root().expect("root");
    let files = ["overwritten", "written", "fallocated", "read"].map(|name| {
        let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).expect("create");
        let flags = OpenFlags { write: true, direct: true, ..Default::default() };
        let file = fs.open_file(&node, flags).expect("open");
        file.write_at(0, &[1; 1 << 16]).expect("write");
        file
    });
    files[2].allocate(extant_engine::Falloc::Allocate, 0, 1 << 20).expect("allocate");
    fs.sync().expect("sync");
    let (done, ended) = mpsc::channel();
    std::thread::scope(|s| {
        let frozen = fs.freeze().expect("freeze");
        let before = device.to_vec();
        let changes: [Box<dyn Fn() -> bool + Send + '_>; 4] = [
            Box::new(|| files[0].write_at(4096, &[2; 8192]).is_ok()),
            Box::new(|| files[1].write_at(1 << 16, &[2; 8192]).is_ok()),
            Box::new(|| files[2].write_at(1 << 18, &[2; 8192]).is_ok()),
            Box::new(|| fs.trim(0..fs.usage().blocks, 1).is_ok()),
        ];
        for change in changes {
            let done = done.clone();
            s.spawn(move || done.send(change()).expect("the test waits for it"));
        }
        let early = ended.recv_timeout(Duration::from_millis(200));
        assert!(early.is_err(), "a change went through a freeze");
        for file in &files {
            let mut bytes = [0; 8192];
            file.read_at(4096, &mut bytes).expect("reads go on");
            assert_eq!(bytes, [1; 8192]);
        }
        assert!(before == device.to_vec(), "the device changed while it was frozen");
        frozen.thaw().expect("thaw");
        assert!((0..4).all(|_| ended.recv().expect("a change ends")));
    });
    drop((files, root));
    fs.unmount().expect("unmount");
}

/// A device on which the mark of a superblock fails as long as that is asked for.
#[derive(Debug)]
struct Unmarkable {
    inner: Memory,
    /// Writes of the superblock fail.
    refuses: AtomicBool,
    /// One flush after a write of the superblock fails.
    forgets: AtomicBool,
    written: AtomicBool,
}

impl Unmarkable {
    fn new(image: &Image) -> Arc<Unmarkable> {
        let inner = Memory::from_bytes(&image.bytes());
        let no = AtomicBool::default;
        Arc::new(Unmarkable { inner, refuses: no(), forgets: no(), written: no() })
    }
}

impl BlockDevice for Unmarkable {
    extant_blocks::forward_device!(self => self.inner;
        len, name, read_exact_at, read_vectored_at, write_vectored_at, discard, write_zeroes,
        next_data, claim);

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if offset == 1024 {
            if self.refuses.load(Ordering::Acquire) {
                return Err(io::Error::from_raw_os_error(5));
            }
            self.written.store(true, Ordering::Release);
        }
        self.inner.write_all_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        let marked = self.written.swap(false, Ordering::AcqRel);
        if marked && self.forgets.swap(false, Ordering::AcqRel) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.inner.flush()
    }
}

/// Creates a file and makes it durable, if that is possible. Returns whether it was, after a crash
/// and a new opening that must find the file then.
fn survives(fs: Fs, device: &Arc<Unmarkable>) -> bool {
    let root = fs.root().expect("root");
    let made = fs.create(&root, b"after", 0o644, NodeKind::File).and_then(|_| fs.sync());
    drop(root);
    fs.crash();
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("recovery");
    if made.is_ok() {
        fs.resolve("/after", Follow::No).expect("what was synced");
    }
    fs.unmount().expect("unmount");
    made.is_ok()
}

/// The superblock says that nothing is to be recovered, so nothing may need it.
#[test]
fn nothing_changes_after_a_thaw_that_failed() {
    let device = Unmarkable::new(&FeatureSet::named("default").make());
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
    let frozen = fs.freeze().expect("freeze");
    device.refuses.store(true, Ordering::Release);
    frozen.thaw().expect_err("the superblock cannot be marked");
    device.refuses.store(false, Ordering::Release);
    assert!(fs.is_read_only());
    assert!(!survives(fs, &device));
}

/// The mark of a clean file system has reached the device, or not.
#[test]
fn changes_after_a_freeze_that_failed_are_recovered() {
    let device = Unmarkable::new(&FeatureSet::named("default").make());
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
    device.forgets.store(true, Ordering::Release);
    device.written.store(false, Ordering::Release);
    fs.freeze().expect_err("the mark may not be durable");
    assert!(!device.forgets.load(Ordering::Acquire), "a flush failed");
    assert!(!fs.is_read_only());
    assert!(survives(fs, &device));
}

#[test]
fn nothing_is_written_after_a_shutdown_while_frozen() {
    let image = FeatureSet::named("default").make();
    let device = Arc::new(Memory::from_bytes(&image.bytes()));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
    let frozen = fs.freeze().expect("freeze");
    fs.shut_down().expect("shutdown");
    let before = device.to_vec();
    frozen.thaw().expect("thaw");
    assert!(before == device.to_vec());
    fs.crash();
}

/// A time limit above that of any reader on a busy host: a reader that waits for the thaw would
/// wait forever.
const PATIENCE: Duration = Duration::from_secs(120);

/// Damage ends all changes here. The journal notes that in its superblock, which is on the frozen
/// device.
#[test]
fn readers_of_a_frozen_file_system_do_not_wait_for_the_thaw() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    write(&fs, "good");
    write(&fs, "bad");
    fs.unmount().expect("unmount");
    debugfs::write(image.path(), "set_inode_field bad block[0] 0");
    image.leave_unjudged("the map of a file is damaged");
    let device = Arc::new(Memory::from_bytes(&image.bytes()));
    device.leave_unjudged("the map of a file is damaged");
    let options = OpenOptions::new().errors(ErrorPolicy::RemountReadOnly);
    let fs = Fs::open_device(device.clone(), &options).expect("open");
    let (done, ended) = mpsc::channel();
    std::thread::scope(|s| {
        let frozen = fs.freeze().expect("freeze");
        let before = device.to_vec();
        let read = |name: &str| -> extant_engine::Result<()> {
            let node = fs.resolve(name, Follow::No)?;
            fs.open_file(&node, OpenFlags::default())?.read_at(0, &mut [0; 9000])?;
            // The access time would change the inode, so it stays.
            assert!(!fs.accessed(&node, AccessTimes::Always)?);
            Ok(())
        };
        s.spawn(move || ["/good", "/bad"].map(|name| done.send(read(name).is_ok())));
        assert!(ended.recv_timeout(PATIENCE).expect("a reader waits for the thaw"));
        assert!(!ended.recv_timeout(PATIENCE).expect("a reader of damage waits for the thaw"));
        assert!(fs.is_read_only(), "damage ends all changes");
        assert!(before == device.to_vec(), "the device changed while it was frozen");
        frozen.thaw().expect("thaw");
    });
    // It is on the device after the thaw, and not only after an unmount.
    let written = Image::holding(&device.to_vec());
    written.leave_unjudged("the map of a file is damaged");
    let header = dumpe2fs::header(written.path());
    assert!(header.value("Filesystem state").contains("with errors"));
    assert_ne!(header.value("Journal errno"), "0");
    fs.freeze().expect_err("nothing may be changed");
    fs.crash();
}

/// Returns whether names, attributes and content below a directory are read before the time limit.
fn are_read(fs: &Fs, dir: &str, names: &[&str]) -> bool {
    let dir = fs.resolve(dir, Follow::No).expect("a directory");
    let entries = fs.read_dir(&dir).expect("a listing");
    assert!(entries.len() >= names.len());
    assert!(fs.lookup(&dir, b"absent").is_err());
    for name in names {
        let node = fs.lookup(&dir, name.as_bytes()).expect("a name");
        let file = fs.open_file(&node, OpenFlags::default()).expect("open");
        file.read_at(0, &mut [0; 100]).expect("read");
        fs.get_xattr(&node, b"user.a").err();
    }
    true
}

/// Changes of each kind wait, and readers of the same directory and files go on.
#[test]
fn readers_go_on_beside_changes_that_wait() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    let dir = fs.create(&root, b"d", 0o755, NodeKind::Dir).expect("mkdir");
    let other = fs.create(&root, b"e", 0o755, NodeKind::Dir).expect("mkdir");
    fs.create(&dir, b"empty", 0o755, NodeKind::Dir).expect("mkdir");
    const NAMES: [&str; 8] = ["a", "b", "c", "f", "g", "h", "i", "j"];
    let files = NAMES.map(|name| {
        let node = fs.create(&dir, name.as_bytes(), 0o644, NodeKind::File).expect("create");
        let flags = OpenFlags { write: true, ..Default::default() };
        fs.open_file(&node, flags).expect("open").write_at(0, &[7; 5000]).expect("write");
        node
    });
    let open = |nr: usize| {
        let flags = OpenFlags { write: true, ..Default::default() };
        fs.open_file(&files[nr], flags).expect("open")
    };
    let (done, ended) = mpsc::channel();
    let (fs, dir, other, files, open) = (&fs, &dir, &other, &files, &open);
    let none = RenameFlags::empty();
    let changes: [Box<dyn Fn() -> extant_engine::Result<()> + Send + Sync + '_>; 11] = [
        Box::new(|| fs.create(dir, b"new", 0o644, NodeKind::File).map(drop)),
        Box::new(|| fs.unlink(dir, b"a")),
        Box::new(|| fs.rmdir(dir, b"empty")),
        Box::new(|| fs.rename((dir, b"b"), (dir, b"b2"), none)),
        Box::new(|| fs.rename((dir, b"c"), (other, b"c"), none)),
        Box::new(|| fs.link(&files[3], dir, b"f2")),
        Box::new(|| {
            let set = SetAttr { mode: Some(0o600), ..Default::default() };
            fs.set_attr(&files[4], &set).map(drop)
        }),
        Box::new(|| fs.set_xattr(&files[5], b"user.a", b"b", XattrMode::Any)),
        Box::new(|| fs.set_flags(&files[6], 0x40)),
        Box::new(|| open(7).set_len(10)),
        Box::new(|| open(6).allocate(Falloc::Allocate, 0, 1 << 20)),
    ];
    std::thread::scope(|s| {
        let frozen = fs.freeze().expect("freeze");
        for change in &changes {
            let done = done.clone();
            s.spawn(move || done.send(change()).expect("the test waits for it"));
        }
        let early = ended.recv_timeout(Duration::from_millis(200));
        assert!(early.is_err(), "a change went through a freeze");
        let (tell, read) = mpsc::channel();
        s.spawn(move || tell.send(are_read(fs, "/d", &NAMES)));
        let read = read.recv_timeout(PATIENCE);
        frozen.thaw().expect("thaw");
        assert_eq!(read, Ok(true), "readers wait for the thaw");
        (0..changes.len()).for_each(|_| ended.recv().expect("an end").expect("a change"));
    });
    drop(changes);
    assert!(fs.lookup(dir, b"new").is_ok() && fs.lookup(other, b"c").is_ok());
    fs.sync().expect("sync");
}

/// Changes are on their way when the freeze comes, with locks and without.
#[test]
fn readers_go_on_whenever_the_freeze_comes() {
    let image = FeatureSet::named("default").make();
    let fs = &Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let ends = &AtomicBool::new(false);
    write(fs, "stays");
    std::thread::scope(|s| {
        for thread in 0..3 {
            s.spawn(move || {
                let root = fs.root().expect("root");
                for nr in (0..).take_while(|_| !ends.load(Ordering::Acquire)) {
                    let name = format!("{thread}.{}", nr % 20);
                    fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).expect("create");
                    fs.rename((&root, name.as_bytes()), (&root, b"stays2"), RenameFlags::empty())
                        .expect("rename");
                }
            });
        }
        let _ending = Ending(ends);
        for _ in 0..100 {
            let frozen = fs.freeze().expect("freeze");
            let (tell, read) = mpsc::channel();
            s.spawn(move || tell.send(are_read(fs, "/", &["stays"])));
            let read = read.recv_timeout(PATIENCE);
            frozen.thaw().expect("thaw");
            assert_eq!(read, Ok(true), "readers wait for the thaw");
        }
    });
    fs.sync().expect("sync");
}

#[test]
fn a_shut_down_file_system_changes_no_more_and_is_recovered() {
    let image = FeatureSet::named("orphan_file").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    write(&fs, "flushed");
    fs.sync().expect("sync");
    write(&fs, "committed");
    fs.shut_down().expect("shutdown");
    fs.shut_down().expect("a second one does nothing");
    let root = fs.root().expect("root");
    let refused = fs.create(&root, b"late", 0o644, NodeKind::File).expect_err("nothing changes");
    assert!(refused.is(Errno::Io), "{refused}");
    let unsynced = fs.sync().expect_err("nothing becomes durable");
    assert!(unsynced.is(Errno::Io), "{unsynced}");
    fs.unmount().expect("there is nothing to be told");
    let other = Fs::open(image.path(), &OpenOptions::new()).expect("recovery");
    assert!(other.recovery().journal.is_some(), "the journal was to be replayed");
    assert!(!other.superblock().state().contains(State::ERROR), "a shutdown is no error");
    for name in ["/flushed", "/committed"] {
        other.resolve(name, Follow::No).expect(name);
    }
    assert!(other.resolve("/late", Follow::No).is_err());
    other.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn a_label_is_on_the_device_at_once() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    fs.set_label(b"sixteen bytes ok").expect("sixteen bytes");
    assert_eq!(fs.label(), "sixteen bytes ok");
    assert_eq!(dumpe2fs::header(image.path()).value("Filesystem volume name"), "sixteen bytes ok");
    for bad in [b"seventeen bytes!!".as_slice(), b"a\0b"] {
        assert!(fs.set_label(bad).expect_err("no label").is(Errno::Inval));
    }
    fs.set_label(b"").expect("none");
    assert_eq!(fs.label(), "");
    fs.unmount().expect("unmount");
    image.assert_clean();
}
