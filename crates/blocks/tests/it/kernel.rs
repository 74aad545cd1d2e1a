//! What the kernel has mounted is refused. These need root and loop devices.
//!
//! They run one at a time, since one's mount may be seen through another's loop device.

use crate::image::image;
use extant_blocks::{BlockDevice, OpenOptions};
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
        call("mount", &["-t", "ext4", device, at.to_str().unwrap()]);
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
    drop(OpenOptions::new(&path).open().expect("a loop device that nobody uses is no hindrance"));
    let mount = Mount::new(&device.0, &point);
    for path in [&path, &other_name] {
        let error = OpenOptions::new(path).open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        assert!(error.to_string().contains(point.to_str().unwrap()), "{error}");
        assert_eq!(OpenOptions::new(path).force(true).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
        assert_eq!(OpenOptions::new(path).read_only(true).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
        assert!(OpenOptions::new(path).read_only(true).force(true).open().is_ok());
    }
    // The loop device itself, which is a disk.
    assert_eq!(OpenOptions::new(&device.0).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
    assert_eq!(OpenOptions::new(&device.0).read_only(true).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
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
    assert_eq!(OpenOptions::new(&path).offset(1 << 20).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
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
    assert_eq!(OpenOptions::new(&device.0).read_only(true).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
    assert_eq!(OpenOptions::new(&path).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
    writer.write_at(&[5; 8192], 4096).unwrap();
    writer.write_zeroes(4096, 4096).unwrap();
    writer.write_zeroes(9000, 10).unwrap();
    writer.discard(0, 4096).unwrap();
    writer.flush().unwrap();
    let mut bytes = [1; 8192];
    writer.read_at(&mut bytes, 4096).unwrap();
    assert!(bytes[..4096].iter().all(|byte| *byte == 0) && bytes[4904..4914] == [0; 10] && bytes[4914] == 5);
    assert_eq!(writer.set_len(1).unwrap_err().kind(), ErrorKind::Unsupported);
    drop(writer);
    let readers = [0, 1].map(|_| OpenOptions::new(&device.0).read_only(true).open().unwrap());
    assert_eq!(OpenOptions::new(&device.0).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop(readers);
}
