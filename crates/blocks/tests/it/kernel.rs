//! Images that the kernel has mounted are refused. These tests need root and loop devices.
//!
//! They run one at a time, since one test's mount may be seen through another's loop device.

use crate::image::{image, stored};
use extant_blocks::{BlockDevice, OpenOptions, raw_os_error};
use extant_testkit::tool::run;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

fn call(program: &str, args: &[&str]) -> String {
    run(program, args).must_succeed().text().trim().to_string()
}

/// A loop device that is detached when dropped.
struct Loop(String);

impl Loop {
    fn new(args: &[&str], path: &Path) -> Self {
        Loop(call("losetup", &[&["-f", "--show"], args, &[path.to_str().unwrap()]].concat()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        call("losetup", &["-d", &self.0]);
    }
}

/// A mount that is undone when dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(device: &str, at: &Path) -> Self {
        Mount::of_type("ext4", device, at)
    }

    fn of_type(kind: &str, device: &str, at: &Path) -> Self {
        call("mount", &["-t", kind, device, at.to_str().unwrap()]);
        Mount(at.to_path_buf())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        call("umount", &[self.0.to_str().unwrap()]);
    }
}

static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn ext4(offset: u64) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let (directory, path) = image((8 << 20) + offset);
    let extended = format!("offset={offset}");
    call("mke2fs", &["-q", "-F", "-t", "ext4", "-E", &extended, path.to_str().unwrap(), "8M"]);
    let point = directory.path().join("point");
    std::fs::create_dir(&point).unwrap();
    (directory, path, point)
}

#[test]
fn an_image_mounted_through_a_loop_device_is_refused() {
    let _alone = alone();
    let (directory, path, point) = ext4(0);
    let other_name = directory.path().join("link");
    std::fs::hard_link(&path, &other_name).unwrap();
    let device = Loop::new(&[], &path);
    drop(OpenOptions::new(&path).open().expect("an unused loop device does not hinder"));
    let mount = Mount::new(&device.0, &point);
    for path in [&path, &other_name] {
        let error = OpenOptions::new(path).open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        assert!(error.to_string().contains(point.to_str().unwrap()), "{error}");
        assert_eq!(
            OpenOptions::new(path).force(true).open().unwrap_err().kind(),
            ErrorKind::ResourceBusy
        );
        assert_eq!(
            OpenOptions::new(path).read_only(true).open().unwrap_err().kind(),
            ErrorKind::ResourceBusy
        );
        assert!(OpenOptions::new(path).read_only(true).force(true).open().is_ok());
    }
    // The loop device itself, which is a disk.
    assert_eq!(OpenOptions::new(&device.0).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
    assert_eq!(
        OpenOptions::new(&device.0).read_only(true).open().unwrap_err().kind(),
        ErrorKind::ResourceBusy
    );
    drop(mount);
    drop(OpenOptions::new(&device.0).open().unwrap());
    drop(OpenOptions::new(&path).open().unwrap());
}

#[test]
fn only_the_mounted_part_of_a_file_is_refused() {
    let _alone = alone();
    let (_directory, path, point) = ext4(1 << 20);
    let device = Loop::new(&["-o", "1048576"], &path);
    let _mount = Mount::new(&device.0, &point);
    assert_eq!(
        OpenOptions::new(&path).offset(1 << 20).open().unwrap_err().kind(),
        ErrorKind::ResourceBusy
    );
    assert_eq!(OpenOptions::new(&path).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
}

#[test]
fn disks_are_held_by_one_writer() {
    let _alone = alone();
    let (_directory, path) = image(1 << 20);
    let device = Loop::new(&[], &path);
    let writer = OpenOptions::new(&device.0).open().unwrap();
    assert_eq!(writer.len(), 1 << 20);
    assert_eq!(OpenOptions::new(&device.0).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
    assert_eq!(
        OpenOptions::new(&device.0).read_only(true).open().unwrap_err().kind(),
        ErrorKind::ResourceBusy
    );
    assert_eq!(OpenOptions::new(&path).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
    writer.write_all_at(&[5; 8192], 4096).unwrap();
    writer.write_zeroes(4096, 4096).unwrap();
    writer.write_zeroes(9000, 10).unwrap();
    writer.discard(0, 4096).unwrap();
    writer.flush().unwrap();
    let mut bytes = [1; 8192];
    writer.read_exact_at(&mut bytes, 4096).unwrap();
    assert!(
        bytes[..4096].iter().all(|byte| *byte == 0)
            && bytes[4904..4914] == [0; 10]
            && bytes[4914] == 5
    );
    assert_eq!(writer.set_len(1).unwrap_err().kind(), ErrorKind::Unsupported);
    drop(writer);
    let readers = [0, 1].map(|_| OpenOptions::new(&device.0).read_only(true).open().unwrap());
    assert_eq!(OpenOptions::new(&device.0).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop(readers);
}

#[test]
fn discards_of_a_block_device_punch_its_backing_file() {
    const MIB: u64 = 1 << 20;
    let _alone = alone();
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = directory.path().join("image");
    std::fs::write(&path, vec![5; 8 * MIB as usize]).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let whole = stored(&path);
    let device = Loop::new(&[], &path);
    let disk = OpenOptions::new(&device.0).open().unwrap();
    disk.write_zeroes(4 * MIB, 2 * MIB).unwrap();
    disk.flush().unwrap();
    assert_eq!(stored(&path), whole, "zeroes keep the storage");
    disk.discard(MIB, 2 * MIB).unwrap();
    disk.flush().unwrap();
    assert_eq!(stored(&path), whole - 2 * MIB);
    let mut bytes = vec![1; 8 * MIB as usize];
    disk.read_exact_at(&mut bytes, 0).unwrap();
    let zeroes =
        |start: u64, end: u64| bytes[start as usize..end as usize].iter().all(|byte| *byte == 0);
    assert!(zeroes(MIB, 3 * MIB) && zeroes(4 * MIB, 6 * MIB));
    assert!([0, MIB - 1, 3 * MIB, 4 * MIB - 1, 6 * MIB].iter().all(|at| bytes[*at as usize] == 5));
}

#[test]
fn discard_is_unsupported_where_the_host_cannot_punch() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let _mount = Mount::of_type("ramfs", "none", directory.path());
    let path = directory.path().join("image");
    std::fs::write(&path, vec![5; 1 << 20]).unwrap();
    let image = OpenOptions::new(&path).open().unwrap();
    let device = Loop::new(&[], &path);
    for round in 0..2 {
        let error = image.discard(0, 65_536).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "round {round}: {error}");
        assert_eq!(raw_os_error(&error), Some(nix::libc::EOPNOTSUPP));
    }
    drop(image);
    let disk = OpenOptions::new(&device.0).open().unwrap();
    assert_eq!(disk.discard(0, 65_536).unwrap_err().kind(), ErrorKind::Unsupported);
    // A range that cannot be punched is written instead.
    disk.write_zeroes(0, 65_536).unwrap();
    let mut bytes = vec![1; 65_537];
    disk.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes[..65_536].iter().all(|byte| *byte == 0) && bytes[65_536] == 5);
}
