//! The limits of one mount: handles that outlive it, nodes of another one, a second one on the same
//! device.

use extant_blocks::{Event, Fault, FaultDevice, Op, RecordingDevice};
use extant_engine::{
    Caller, Clock, Errno, Error, File, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions,
    RenameFlags, SetAttr, Timestamp, XattrMode, mkfs,
};
use extant_testkit::Memory;
use extant_testkit::image::FeatureSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

fn memory() -> Arc<Memory> {
    Arc::new(Memory::from_bytes(&FeatureSet::named("default").make().bytes()))
}

fn open(device: &Arc<Memory>) -> Fs {
    Fs::open_device(device.clone(), &OpenOptions::new()).expect("a good image opens")
}

fn make(fs: &Fs, name: &str) -> Node {
    fs.create(&fs.root().expect("root"), name.as_bytes(), 0o644, NodeKind::File).expect("create")
}

fn written(fs: &Fs, name: &str, byte: u8, direct: bool) -> File {
    let flags = OpenFlags { write: true, direct, ..Default::default() };
    let file = fs.open_file(&make(fs, name), flags).expect("open");
    file.write_at(0, &[byte; 1 << 16]).expect("write");
    file.sync().expect("sync");
    file
}

fn is_stale<T: std::fmt::Debug>(done: Result<T, Error>) {
    let error = done.expect_err("the file system is unmounted");
    assert!(matches!(error, Error::Unmounted), "{error}");
}

#[test]
fn a_handle_that_outlives_unmount_writes_nothing() {
    for direct in [false, true] {
        let device = memory();
        let fs = open(&device);
        let (file, ops, root) =
            (written(&fs, "old", 1, direct), fs.operations().clone(), fs.root().expect("root"));
        fs.unmount().expect("unmount");
        let fs = open(&device);
        fs.unlink(&fs.root().expect("root"), b"old").expect("unlink");
        fs.sync().expect("sync");
        drop(written(&fs, "new", 2, direct));
        let before = device.to_vec();
        is_stale(file.write_at(0, &[3; 1 << 16]));
        is_stale(file.set_len(0));
        is_stale(file.allocate(extant_engine::Falloc::Allocate, 0, 1 << 20));
        is_stale(file.sync());
        is_stale(file.read_at(0, &mut [0; 10]));
        is_stale(file.seek_data(0));
        is_stale(file.extents(0, 10, |_| true));
        is_stale(file.check_map());
        is_stale(ops.create(&root, b"late", 0o644, NodeKind::File));
        is_stale(ops.resolve("/old", Follow::No));
        is_stale(ops.stat("/old", Follow::No));
        is_stale(ops.read_dir(&root));
        is_stale(ops.sync());
        is_stale(ops.write_direct(file.node(), 0, &[4; 4096], false));
        drop((file, ops, root));
        assert!(before == device.to_vec(), "a handle of the earlier mounting has written");
        fs.unmount().expect("unmount");
    }
}

#[test]
fn a_leaked_handle_keeps_no_image_locked() {
    let image = FeatureSet::named("default").make();
    for read_only in [false, true] {
        let fs = Fs::open(image.path(), &OpenOptions::new().read_only(read_only)).expect("open");
        let node = if read_only {
            fs.resolve("/file", Follow::No).expect("a file")
        } else {
            make(&fs, "file")
        };
        std::mem::forget(
            fs.open_file(&node, OpenFlags { write: !read_only, ..Default::default() })
                .expect("open"),
        );
        fs.unmount().expect("unmount");
    }
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("the image is free");
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn nodes_of_another_file_system_are_refused() {
    let (here, there) = (memory(), memory());
    let (fs, other) = (open(&here), open(&there));
    let foreign = make(&other, "foreign");
    let (root, other_root) = (fs.root().expect("root"), other.root().expect("root"));
    let own = make(&fs, "own");
    let write = OpenFlags { write: true, truncate: true, ..Default::default() };
    let refused = [
        fs.link(&foreign, &root, b"link").err(),
        fs.link(&own, &other_root, b"link").err(),
        fs.open_file(&foreign, write).err(),
        fs.create(&other_root, b"made", 0o644, NodeKind::File).err(),
        fs.create_nameless(&Caller::default(), &other_root, 0o644).err(),
        fs.rename((&root, b"own"), (&other_root, b"moved"), RenameFlags::empty()).err(),
        fs.rename((&other_root, b"foreign"), (&root, b"moved"), RenameFlags::empty()).err(),
        fs.unlink(&other_root, b"own").err(),
        fs.rmdir(&other_root, b"lost+found").err(),
        fs.lookup(&other_root, b"own").err(),
        fs.parent(&other_root).err(),
        fs.read_dir(&other_root).err(),
        fs.read_dir_plus(&other_root, 0, |_, _| true).err(),
        fs.set_attr(&foreign, &SetAttr { mode: Some(0), ..Default::default() }).err(),
        fs.set_flags(&foreign, 0x80).err(),
        fs.set_xattr(&foreign, b"user.x", b"1", XattrMode::Any).err(),
        fs.remove_xattr(&foreign, b"user.x").err(),
        fs.get_xattr(&foreign, b"user.x").err(),
        fs.list_xattrs(&foreign).err(),
        fs.project(&foreign).err(),
        fs.set_project(&foreign, 7).err(),
        fs.read_direct(&foreign, 0, &mut [0; 10]).err(),
        fs.write_direct(&foreign, 0, &[1; 10], true).err(),
        fs.write_kept(&foreign, 0, &[1; 10], true).err(),
        fs.allocate(&foreign, extant_engine::Falloc::Allocate, 0, 4096).err(),
        fs.sync_node(&foreign, false).err(),
        fs.seek(&foreign, 0, true).err(),
        fs.place_of(&foreign, 0, 1).err(),
        fs.check_write(&foreign).err(),
        fs.drop_privileges(&foreign, |_| false).err(),
        fs.change_mode(&foreign, |mode, _| mode ^ 0o777).err(),
        fs.make_findable(&foreign).err(),
        fs.accessed(&foreign, extant_engine::AccessTimes::Always).err(),
    ];
    for (nth, refused) in refused.into_iter().enumerate() {
        let error =
            refused.unwrap_or_else(|| panic!("call {nth} took a node of another file system"));
        assert!(error.is(Errno::Xdev), "call {nth}: {error}");
    }
    drop((foreign, own, root, other_root));
    fs.unmount().expect("unmount");
    other.unmount().expect("unmount");
}

#[test]
fn a_node_of_another_file_system_is_not_released() {
    let (here, there) = (memory(), memory());
    let (fs, other) = (open(&here), open(&there));
    // Here its number is a file's, too.
    let (own, foreign) = (make(&fs, "own"), make(&other, "foreign"));
    assert_eq!(own.ino(), foreign.ino());
    foreign.hold(1).expect("hold");
    other.unlink(&other.root().expect("root"), b"foreign").expect("unlink");
    fs.release(&foreign, 1);
    fs.sync().expect("sync");
    assert_eq!(fs.node(own.ino()).expect("it was not freed").ino(), own.ino());
    other.sync().expect("sync");
    assert_eq!(other.node(foreign.ino()).expect("it is held").ino(), foreign.ino());
    other.release(&foreign, 1);
    drop((own, foreign));
    fs.unmount().expect("unmount");
    other.unmount().expect("unmount");
}

#[test]
fn a_device_has_one_writer() {
    let device = memory();
    let fs = open(&device);
    let busy = |refused: Option<Error>| {
        let error = refused.expect("a second user of the device");
        assert_eq!(error.errno(), Errno::Busy as i32, "{error}");
    };
    let reader = OpenOptions::new().read_only(true);
    busy(Fs::open_device(device.clone(), &OpenOptions::new()).err());
    busy(Fs::open_device(Arc::new(device.clone()), &OpenOptions::new()).err());
    busy(Fs::open_device(device.clone(), &reader).err());
    busy(Fs::create(device.clone(), &mkfs::Options::default(), &OpenOptions::new()).err());
    drop(written(&fs, "file", 1, false));
    fs.unmount().expect("unmount");
    let readers =
        [(); 2].map(|()| Fs::open_device(device.clone(), &reader).expect("readers share a device"));
    busy(Fs::open_device(device.clone(), &OpenOptions::new()).err());
    drop(readers);
    open(&device).crash();
    open(&device).unmount().expect("unmount");
}

#[test]
fn a_path_is_opened_once_in_a_process() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    for read_only in [false, true] {
        let refused = Fs::open(image.path(), &OpenOptions::new().read_only(read_only))
            .expect_err("it is in use");
        assert_eq!(refused.errno(), Errno::Busy as i32, "{refused}");
    }
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// Bytes written by these events.
fn bytes(events: &[Event]) -> u64 {
    let of = |event: &Event| match event {
        Event::Write { data, .. } => data.len() as u64,
        Event::Zero { len, .. } => *len,
        _ => 0,
    };
    events.iter().map(of).sum()
}

#[test]
fn writes_of_a_lifetime_are_counted() {
    let device = Arc::new(RecordingDevice::new(memory()));
    let open = || Fs::open_device(device.clone(), &OpenOptions::new()).expect("a good image opens");
    let before = open().superblock().kbytes_written();
    device.take_log();
    let fs = open();
    drop(written(&fs, "data", 1, false));
    drop(written(&fs, "direct", 2, true));
    fs.unmount().expect("unmount");
    let log = device.take_log();
    // The superblock that carries the count is the last write.
    let last = log.iter().rposition(|event| matches!(event, Event::Write { .. })).expect("writes");
    let fs = Fs::open_device(device.clone(), &OpenOptions::new().read_only(true)).expect("open");
    let counted = fs.superblock().kbytes_written();
    assert!(counted >= before + 128, "{before} and then {counted}");
    assert_eq!(counted, before + bytes(&log[..last]) / 1024);
    fs.unmount().expect("unmount");
    // The count in a committed transaction survives a crash.
    let fs = open();
    drop(written(&fs, "more", 3, true));
    fs.set_label(b"carries the count").err();
    fs.set_label(b"carries it").expect("label");
    let carried = fs.superblock().kbytes_written();
    fs.crash();
    let fs = open();
    assert!(fs.superblock().kbytes_written() + 64 >= carried, "{carried}");
    assert!(fs.superblock().kbytes_written() >= counted + 64);
    fs.unmount().expect("unmount");
}

#[test]
fn unmount_reports_the_error_that_stopped_all_changes() {
    let device = Arc::new(FaultDevice::new(memory()));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
    make(&fs, "file");
    device.inject(Fault::new(Op::Write, 1).from_then_on());
    fs.sync().expect_err("the log cannot be written");
    device.heal();
    let told = fs.unmount().expect_err("changes are lost").to_string();
    assert!(told.contains("write"), "{told}");
    device.inner().leave_unjudged("changes are lost, as the device was broken");
}

/// A clock at which a write meets the test, once.
#[derive(Debug)]
struct Meeting(AtomicBool, Barrier);

impl Clock for Meeting {
    fn now(&self) -> Timestamp {
        if self.0.swap(false, Ordering::Relaxed) {
            self.1.wait();
        }
        Timestamp { sec: 1_700_000_000, nsec: 0 }
    }
}

/// A write that has begun when the file system is closed is written or refused: its accepted part
/// is kept.
#[test]
fn data_accepted_during_unmount_are_kept() {
    const LEN: usize = 96 << 20;
    let image = FeatureSet::named("default").make_sized(256 << 20);
    let clock = Arc::new(Meeting(AtomicBool::new(false), Barrier::new(2)));
    let fs = Fs::open(image.path(), &OpenOptions::new().clock(clock.clone())).expect("open");
    let file = fs
        .open_file(&make(&fs, "file"), OpenFlags { write: true, ..Default::default() })
        .expect("open");
    let data: Vec<u8> = (0..LEN / 8).flat_map(|n| (n as u64).to_le_bytes()).collect();
    clock.0.store(true, Ordering::Relaxed);
    let accepted = std::thread::scope(|scope| {
        let writer = scope.spawn(|| file.write_at(0, &data));
        clock.1.wait();
        fs.unmount().expect("unmount");
        writer.join().expect("no panic")
    });
    let accepted = match accepted {
        Ok(accepted) => accepted,
        Err(e) => {
            assert!(matches!(e, Error::Unmounted), "{e}");
            0
        }
    };
    drop(file);
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let file = fs.open("/file", Follow::No, OpenFlags::default()).expect("open");
    let mut bytes = vec![0; accepted];
    assert_eq!(
        file.read_at(0, &mut bytes).expect("read"),
        accepted,
        "the file is shorter than the accepted data"
    );
    assert!(bytes == data[..accepted], "accepted data are lost");
    drop(file);
    fs.unmount().expect("unmount");
    image.assert_clean();
}
