//! Handles: files, directories, freezing, the end by unmount, and strangers.

use crate::new;
use extant::{
    ErrorKind, Extent, Falloc, File, FileOptions, Frozen, Fs, NodeKind, SetMetadata, XattrMode,
};
use std::io::{Read, Seek, SeekFrom, Write};
use std::thread;
use std::time::Duration;

const _: () = {
    const fn shared<T: Clone + Send + Sync + 'static>() {}
    const fn sent<T: Send + 'static>() {}
    shared::<Fs>();
    shared::<extant::Inode>();
    shared::<extant::Dir>();
    sent::<File>();
    sent::<Frozen>();
};

#[test]
fn a_file_reads_writes_and_seeks_as_in_std() {
    let fs = new();
    let mut file = fs.create_file("/f").unwrap();
    write!(file, "hello world").unwrap();
    assert_eq!(file.seek(SeekFrom::End(-5)).unwrap(), 6);
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "world");
    assert_eq!(
        file.seek(SeekFrom::Current(-100)).unwrap_err().kind(),
        std::io::ErrorKind::InvalidInput
    );
    file.set_len(2).unwrap();
    assert_eq!((file.len(), fs.read("/f").unwrap()), (2, b"he".to_vec()));
    let mut log = fs.open_file_with("/f", &FileOptions::new().append(true)).unwrap();
    log.write_all(b"y").unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"hey");
    let reader = fs.open_file("/f").unwrap();
    assert_eq!(reader.write_all_at(b"x", 0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    drop((file, log, reader));
    fs.unmount().unwrap();
}

#[test]
fn extents_have_places_and_all_of_them_are_told() {
    let fs = new();
    let file = fs.create_file("/f").unwrap();
    for i in 0..200 {
        file.write_all_at(&[1; 1024], i * 16384).unwrap();
    }
    file.allocate(Falloc::Allocate, 4 << 20, 65536).unwrap();
    file.sync().unwrap();
    let extents: Vec<_> = file.extents().collect::<Result<_, _>>().unwrap();
    let (written, unwritten): (Vec<&Extent>, Vec<&Extent>) =
        extents.iter().partition(|e| !e.unwritten);
    assert_eq!(written.len(), 200);
    assert!(written.iter().all(|e| e.place.is_some() && e.offset % 16384 == 0));
    assert_eq!(unwritten.iter().map(|e| e.len).sum::<u64>(), 65536);
    drop(file);
    fs.unmount().unwrap();
}

#[test]
fn unmount_ends_handles_and_clones() {
    let fs = new();
    let (clone, root) = (fs.clone(), fs.root().unwrap());
    let file = fs.create_file("/f").unwrap();
    fs.unmount().unwrap();
    let errors = [
        file.read_at(&mut [0; 4], 0).unwrap_err(),
        file.write_all_at(b"x", 0).unwrap_err(),
        root.open("f").unwrap_err(),
        root.inode().metadata().unwrap_err(),
        root.entries().next().unwrap().unwrap_err(),
        clone.read("/f").unwrap_err(),
        clone.freeze().unwrap_err(),
        clone.unmount().unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Unmounted, 116), "{error}");
    }
}

#[test]
fn a_handle_of_another_file_system_is_refused() {
    let (one, other) = (new(), new());
    let (root, stranger) = (one.root().unwrap(), other.root().unwrap());
    let inode = stranger.create("f", NodeKind::File).unwrap();
    let linked = root.link("f", &inode).unwrap_err();
    let renamed = stranger.rename("f", &root, "f").unwrap_err();
    for error in [linked, renamed] {
        assert_eq!((error.kind(), error.errno()), (ErrorKind::ForeignHandle, 18), "{error}");
    }
    one.unmount().unwrap();
    other.unmount().unwrap();
}

#[test]
fn the_last_handle_unmounts() {
    let device = std::sync::Arc::new(extant_testkit::Memory::new(32 << 20));
    let fs = Fs::options().create_on(device.clone(), &Default::default()).unwrap();
    let file = fs.create_file("/f").unwrap();
    drop(fs);
    file.write_all_at(b"late", 0).unwrap();
    drop(file);
    let fs = Fs::options().read_only().open_on(device).unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"late");
    assert!(!fs.recovery().was_in_use);
    fs.unmount().unwrap();
}

#[test]
fn a_frozen_device_stands_still_and_any_thread_thaws_it() {
    let device = std::sync::Arc::new(extant_testkit::Memory::new(32 << 20));
    let fs = Fs::options().create_on(device.clone(), &Default::default()).unwrap();
    fs.write("/before", b"1").unwrap();
    let frozen = fs.freeze().unwrap();
    let image = device.to_vec();
    assert_eq!(fs.unmount().unwrap_err().kind(), ErrorKind::Busy);
    let writer = thread::spawn({
        let fs = fs.clone();
        move || fs.create_dir_all("/after").map(drop)
    });
    thread::sleep(Duration::from_millis(50));
    assert!(!writer.is_finished());
    assert!(image == device.to_vec(), "the device changed");
    thread::spawn(move || frozen.thaw()).join().unwrap().unwrap();
    writer.join().unwrap().unwrap();
    drop(fs.freeze().unwrap());
    fs.unmount().unwrap();
    let copy = std::sync::Arc::new(extant::device::MemDevice::from_bytes(&image));
    let copy = Fs::options().read_only().open_on(copy).unwrap();
    assert!(!copy.recovery().was_in_use);
    assert_eq!(copy.read("/before").unwrap(), b"1");
    copy.unmount().unwrap();
}

#[test]
fn inodes_have_attributes() {
    let fs = new();
    let root = fs.root().unwrap();
    let device = root.create_as("null", NodeKind::CharDevice(1, 3), 0o666, (5, 6)).unwrap();
    let metadata = device.metadata().unwrap();
    assert_eq!((metadata.device_number(), metadata.permissions()), ((1, 3), 0o666));
    assert_eq!((metadata.uid(), metadata.gid()), (5, 6));
    let time = extant::Timestamp::new(1 << 33, 5);
    let set = SetMetadata::new().permissions(0o4711).owner(7, 8).modified(time);
    let metadata = device.set_metadata(&set).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.modified()), (7, 8, time));
    device.set_xattr("trusted.a", b"b", XattrMode::Create).unwrap();
    assert_eq!(device.xattrs().unwrap(), [b"trusted.a"]);
    device.remove_xattr("trusted.a").unwrap();
    assert_eq!(device.xattr("trusted.a").unwrap_err().kind(), ErrorKind::NoData);
    root.remove_file("null").unwrap();
    assert_eq!(fs.inode(device.number()).unwrap_err().kind(), ErrorKind::Stale);
    drop(device);
    fs.unmount().unwrap();
}
