//! A file system is mounted, used by the kernel's own system calls, unmounted, and checked.

use crate::served::Served;
use extant_testkit::kernel;
use extant_testkit::tree::{Manifest, Plan, Shape};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

#[test]
pub fn a_tree_survives_a_mount() {
    let mut served = Served::new("orphan_file");
    let plan = Plan::random(1, &Shape::small());
    let top = served.path("tree");
    fs::create_dir(&top).expect("mkdir");
    plan.apply(&top);
    let live = Manifest::walk(&top);
    served.unmount();
    served.mount();
    live.assert_same(&Manifest::walk(&top));
    served.unmount();
    let mount = kernel::Mount::new(served.image(), "ro");
    live.assert_same(&Manifest::walk(&mount.join("tree")));
    plan.manifest()
        .without_root()
        .without_directory_times()
        .assert_same(&live.without_root().without_directory_times());
}

#[test]
pub fn many_writers_at_once() {
    let mut served = Served::new("default");
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let dir = served.path(&format!("t{t}"));
            s.spawn(move || write_and_read(&dir, t));
        }
    });
    served.unmount();
}

fn write_and_read(dir: &Path, t: u8) {
    fs::create_dir(dir).expect("mkdir");
    for i in 0..200usize {
        let data = vec![t ^ i as u8; i * 97];
        fs::write(dir.join(format!("f{i}")), data).expect("write");
    }
    for i in (0..200).step_by(3) {
        fs::remove_file(dir.join(format!("f{i}"))).expect("unlink");
    }
    for i in (0..200usize).filter(|i| i % 3 != 0) {
        let data = fs::read(dir.join(format!("f{i}"))).expect("read");
        assert!(data == vec![t ^ i as u8; i * 97], "file {i} of thread {t}");
    }
}

#[test]
pub fn an_open_file_outlives_its_name() {
    let mut served = Served::new("default");
    let path = served.path("gone");
    let mut file = fs::File::options()
        .create(true)
        .read(true)
        .write(true)
        .truncate(true)
        .open(&path)
        .expect("create");
    file.write_all(&[9; 100_000]).expect("write");
    fs::remove_file(&path).expect("unlink");
    file.sync_all().expect("fsync");
    let mut back = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("seek");
    file.read_to_end(&mut back).expect("read");
    assert!(back == [9; 100_000]);
    drop(file);
    served.unmount();
}

#[test]
pub fn attributes_and_links() {
    let mut served = Served::new("orphan_file");
    let file = served.path("file");
    fs::write(&file, b"x").expect("write");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("chmod");
    std::os::unix::fs::chown(&file, Some(1234), Some(4321)).expect("chown");
    fs::hard_link(&file, served.path("hard")).expect("link");
    symlink("file", served.path("soft")).expect("symlink");
    let meta = fs::metadata(served.path("soft")).expect("stat");
    assert_eq!(
        (meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.nlink()),
        (0o640, 1234, 4321, 2)
    );
    fs::rename(served.path("hard"), served.path("renamed")).expect("rename");
    assert!(!served.path("hard").exists());
    served.unmount();
    served.mount();
    let meta = fs::metadata(served.path("renamed")).expect("stat");
    assert_eq!(
        (meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.nlink()),
        (0o640, 1234, 4321, 2)
    );
    served.unmount();
}

#[test]
pub fn holes_and_random_writes() {
    let mut served = Served::new("1k");
    let path = served.path("sparse");
    let file = fs::File::options()
        .create(true)
        .read(true)
        .write(true)
        .truncate(true)
        .open(&path)
        .expect("create");
    let mut model = vec![0; 3_000_000];
    for i in 0..300usize {
        let at = i * 7919 % 2_900_000;
        let data = vec![i as u8 | 1; 1 + i * 31 % 5000];
        file.write_all_at(&data, at as u64).expect("write");
        model[at..at + data.len()].copy_from_slice(&data);
    }
    file.set_len(2_000_000).expect("truncate");
    model.truncate(2_000_000);
    let end = fs::metadata(&path).expect("stat").len() as usize;
    model.truncate(end);
    drop(file);
    assert!(fs::read(&path).expect("read") == model);
    served.unmount();
    served.mount();
    assert!(fs::read(&path).expect("read") == model, "after a remount");
    served.unmount();
}

#[test]
pub fn free_space_is_given_back_to_the_device() {
    let mut served = Served::new("default");
    let path = served.path("big");
    fs::write(&path, vec![1; 64 << 20]).expect("write");
    let file = fs::File::open(&path).expect("open");
    file.sync_all().expect("fsync");
    drop(file);
    let image = served.image().to_path_buf();
    let full = fs::metadata(&image).expect("stat").blocks();
    fs::remove_file(&path).expect("unlink");
    // The kernel sends the release of the last user at an unspecified later time.
    let taken = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(20));
        fs::write(served.path("other"), b"x").expect("write");
        fs::File::open(served.path("other")).expect("open").sync_all().expect("fsync");
        extant_testkit::tool::run("fstrim", &[served.dir().as_os_str()]).must_succeed();
        fs::metadata(&image).expect("stat").blocks()
    });
    let left = taken.take(500).find(|left| left + (60 << 11) < full);
    assert!(left.is_some(), "the image still takes nearly {full} sectors");
    served.unmount();
}

/// Requests of the last user may still be in flight when the mount ends.
#[test]
pub fn a_detached_mount_ends_well_with_its_last_user() {
    let mut served = Served::new("default");
    for round in 0..30u8 {
        let path = served.path("file");
        let files: Vec<File> = (0..4).map(|_| File::create(&path).expect("create")).collect();
        files[3].write_all_at(&[round; 5000], 0).expect("write");
        served.end_with(|| drop(files));
        served.mount();
        assert!(fs::read(&path).expect("read") == [round; 5000], "round {round}");
    }
    served.unmount();
}
