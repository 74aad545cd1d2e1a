//! Files without a name, and birth times.

use crate::served::Served;
use crate::watchdog::await_that;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, linkat, openat, statvfs, statx};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

fn nameless(dir: &Path, flags: OFlags) -> rustix::io::Result<File> {
    openat(CWD, dir, OFlags::TMPFILE | OFlags::RDWR | flags, Mode::from(0o640)).map(File::from)
}

fn link(file: &File, to: &Path) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, path, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

fn inodes_free(dir: &Path) -> u64 {
    statvfs(dir).expect("statvfs").f_ffree
}

#[test]
pub fn files_without_a_name_are_made_and_named() {
    let mut served = Served::new("orphan_file");
    let (dir, named) = (served.path("dir"), served.path("named"));
    fs::create_dir(&dir).expect("mkdir");
    let mut file = nameless(&dir, OFlags::empty()).expect("O_TMPFILE");
    file.write_all(b"content").expect("write");
    assert_eq!(file.metadata().expect("fstat").nlink(), 0);
    assert_eq!(fs::read_dir(&dir).expect("readdir").count(), 0);
    link(&file, &named).expect("it gets a name");
    let meta = fs::metadata(&named).expect("stat");
    assert_eq!((meta.nlink(), meta.ino()), (1, file.metadata().expect("fstat").ino()));
    drop(file);
    let refused = link(&nameless(&dir, OFlags::EXCL).expect("O_TMPFILE"), &served.path("never"));
    assert!(refused.is_err(), "O_EXCL says that it never gets a name");
    served.unmount();
    served.mount();
    assert_eq!(fs::read(&named).expect("read"), b"content");
    served.unmount();
}

#[test]
pub fn files_that_get_no_name_go() {
    const FILES: u64 = 50;
    let mut served = Served::new("orphan_file");
    let before = inodes_free(served.dir());
    let files: Vec<File> = (0..FILES)
        .map(|number| {
            let mut file = nameless(served.dir(), OFlags::empty()).expect("O_TMPFILE");
            file.write_all(&vec![number as u8; 30_000]).expect("write");
            file
        })
        .collect();
    assert_eq!(inodes_free(served.dir()), before - FILES);
    for (number, mut file) in (0u8..).zip(files) {
        let mut back = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut back)).expect("read");
        assert!(back == vec![number; 30_000]);
    }
    // The kernel sends the releases of closed files later.
    await_that("the files are gone", || inodes_free(served.dir()) == before);
    served.unmount();
}

/// Returns the birth time of a file in seconds since 1970, as debugfs prints it.
fn birth_on_disk(image: &Path, name: &str) -> i64 {
    let request = format!("stat {name}");
    let printed =
        extant_testkit::tool::run("debugfs", &["-R".as_ref(), request.as_ref(), image.as_os_str()]);
    let text = printed.must_succeed().text();
    let word = text
        .split("crtime: 0x")
        .nth(1)
        .and_then(|rest| rest.split(':').next())
        .expect("a time of birth");
    i64::from_str_radix(word, 16).expect("a number")
}

#[test]
pub fn the_time_of_birth_shows() {
    let mut served = Served::new("default");
    fs::write(served.path("f"), b"x").expect("write");
    let birth = |served: &Served| {
        let found = statx(CWD, served.path("f"), AtFlags::empty(), StatxFlags::ALL).expect("statx");
        assert!(
            StatxFlags::from_bits_retain(found.stx_mask)
                .contains(StatxFlags::BTIME | StatxFlags::BASIC_STATS)
        );
        assert_eq!((found.stx_size, found.stx_nlink), (1, 1));
        (found.stx_btime.tv_sec, found.stx_btime.tv_nsec)
    };
    let first = birth(&served);
    std::thread::sleep(Duration::from_millis(20));
    filetime(&served.path("f"));
    assert_eq!(birth(&served), first, "it stays whatever becomes of the file");
    served.unmount();
    assert_eq!(birth_on_disk(served.image(), "/f"), first.0);
    served.mount();
    assert_eq!(birth(&served), first);
    served.unmount();
    let mut old = Served::new("inode_128");
    fs::write(old.path("f"), b"x").expect("write");
    let found = statx(CWD, old.path("f"), AtFlags::empty(), StatxFlags::ALL).expect("statx");
    assert!(
        !StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME),
        "small inodes have none"
    );
    assert_eq!(found.stx_size, 1);
    old.unmount();
}

/// Changes all times that can be set.
fn filetime(path: &Path) {
    let file = File::options().write(true).open(path).expect("open");
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("set");
    file.sync_all().expect("sync");
}
