//! Times: the operations that set them, and the range of each.

use crate::oracle::{Notes, same_after_remount, same_as_kernel};
use crate::served::Served;
use crate::watchdog::{await_that, await_tick_after};
use extant_testkit::tool::run;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

fn times(path: &Path) -> io::Result<[(i64, i64); 3]> {
    let m = fs::symlink_metadata(path)?;
    Ok([(m.atime(), m.atime_nsec()), (m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec())])
}

/// Seconds within, at the edges of, and beyond the range of an inode.
const SECONDS: [i64; 14] = [
    0,
    1,
    -1,
    -2,
    i32::MIN as i64,
    i32::MIN as i64 - 1,
    i32::MAX as i64,
    1 << 31,
    1 << 32,
    (1 << 34) - 1,
    15_032_385_535,
    15_032_385_536,
    1 << 40,
    -(1 << 40),
];

const NANOS: [i64; 3] = [0, 1, 999_999_999];

fn each_time(mut f: impl FnMut(&str, Timespec)) {
    for sec in SECONDS {
        for nsec in NANOS {
            f(&format!("{sec}.{nsec}"), Timespec { tv_sec: sec, tv_nsec: nsec });
        }
    }
}

/// Compared after a remount: with FUSE's writeback cache the kernel shows an mtime as requested
/// until it forgets the inode.
#[test]
pub fn times_are_kept_as_they_were_set() {
    for set in ["default", "inode_128"] {
        let make = |dir: &Path, notes: &mut Notes| {
            each_time(|name, time| {
                let (file, link) = (dir.join(name), dir.join(format!("{name}.link")));
                fs::write(&file, b"").expect("write");
                symlink("f", &link).expect("symlink");
                let omit = Timespec { tv_sec: 7, tv_nsec: UTIME_OMIT };
                for path in [&file, &link] {
                    for (atime, mtime) in [(time, omit), (omit, time)] {
                        let times = Timestamps { last_access: atime, last_modification: mtime };
                        notes.call(name, utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW));
                    }
                    notes.call(name, times(path).map(|t| t[0]));
                }
            });
        };
        same_after_remount(set, make, |dir, notes| {
            each_time(|name, _| {
                notes.call(name, times(&dir.join(name)).map(|t| (t[0], t[1])));
                notes.call(name, times(&dir.join(format!("{name}.link"))).map(|t| (t[0], t[1])));
            });
        });
    }
}

/// Notes which of the times of `paths` `change` moves.
fn moved<T: std::fmt::Debug>(
    notes: &mut Notes,
    what: &str,
    paths: &[&Path],
    change: impl FnOnce() -> io::Result<T>,
) {
    let before: Vec<_> = paths.iter().map(|p| times(p).ok()).collect();
    before.iter().flatten().for_each(|times| await_tick_after(times[1].max(times[2])));
    notes.call(what, change());
    for (path, before) in paths.iter().zip(before) {
        let after = times(path).ok();
        let moved = before.zip(after).map(|(b, a)| (b[1] != a[1], b[2] != a[2]));
        notes.value(
            format!(
                "{what} moves mtime, ctime of {}",
                path.file_name().unwrap_or_default().display()
            ),
            moved,
        );
    }
}

#[test]
pub fn changes_move_times() {
    same_as_kernel("default", |dir, notes| {
        let (f, d, e) = (dir.join("f"), dir.join("d"), dir.join("e"));
        fs::write(&f, [1; 5000]).expect("write");
        fs::create_dir(&d).expect("mkdir");
        fs::create_dir(&e).expect("mkdir");
        let all: [&Path; 4] = [&f, &d, &e, &d.join("f")];
        let open = File::options().read(true).write(true).open(&f).expect("open");
        moved(notes, "chmod", &all, || fs::set_permissions(&f, Permissions::from_mode(0o600)));
        moved(notes, "chown", &all, || chown(&f, Some(1), Some(1)));
        moved(notes, "chown to the same", &all, || chown(&f, Some(1), Some(1)));
        moved(notes, "chown of nothing", &all, || chown(&f, None, None));
        moved(notes, "write", &all, || open.write_at(b"x", 0));
        moved(notes, "write of nothing", &all, || open.write_at(b"", 0));
        moved(notes, "truncate", &all, || open.set_len(10));
        moved(notes, "truncate to the same", &all, || open.set_len(10));
        // truncate(2) by path to the same size changes times on ext4, but not on FUSE, where the
        // kernel keeps the times.
        moved(notes, "open to truncate", &all, || {
            File::options().write(true).truncate(true).open(&f).map(drop)
        });
        moved(notes, "open to truncate again", &all, || {
            File::options().write(true).truncate(true).open(&f).map(drop)
        });
        moved(notes, "fallocate", &all, || {
            Ok(rustix::fs::fallocate(&open, rustix::fs::FallocateFlags::empty(), 0, 5000)?)
        });
        moved(notes, "fallocate beyond", &all, || {
            Ok(rustix::fs::fallocate(&open, rustix::fs::FallocateFlags::KEEP_SIZE, 9000, 5000)?)
        });
        moved(notes, "link", &all, || fs::hard_link(&f, d.join("f")));
        moved(notes, "setxattr", &all, || {
            Ok(rustix::fs::setxattr(&f, "user.x", b"1", rustix::fs::XattrFlags::empty())?)
        });
        moved(notes, "removexattr", &all, || Ok(rustix::fs::removexattr(&f, "user.x")?));
        moved(notes, "rename within", &all, || {
            fs::rename(&f, dir.join("g")).and_then(|()| fs::rename(dir.join("g"), &f))
        });
        moved(notes, "rename into", &all, || fs::rename(d.join("f"), e.join("f")));
        moved(notes, "mkdir", &all, || fs::create_dir(d.join("sub")));
        moved(notes, "rename of a directory", &[&d, &e, &e.join("sub")], || {
            fs::rename(d.join("sub"), e.join("sub"))
        });
        moved(notes, "rmdir", &all, || fs::remove_dir(e.join("sub")));
        moved(notes, "unlink", &all, || fs::remove_file(e.join("f")));
        moved(notes, "symlink", &all, || symlink("x", d.join("l")));
        moved(notes, "mmap-like sync", &all, || open.sync_all());
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        moved(notes, "touch", &all, || {
            Ok(utimensat(
                CWD,
                &f,
                &Timestamps { last_access: now, last_modification: now },
                AtFlags::empty(),
            )?)
        });
        moved(notes, "touch of nothing", &all, || {
            Ok(utimensat(
                CWD,
                &f,
                &Timestamps { last_access: omit, last_modification: omit },
                AtFlags::empty(),
            )?)
        });
        moved(notes, "exchange", &all, || {
            Ok(rustix::fs::renameat_with(CWD, &f, CWD, &d, rustix::fs::RenameFlags::EXCHANGE)?)
        });
    });
}

/// The kernel caches times. If the inode cannot hold them, the server makes the kernel forget the
/// inode soon after its close (Linux 6.18), so that the kernel requests the stored times.
#[test]
pub fn times_that_the_kernel_kept_wrong_are_asked_for() {
    const LAST: i64 = 15_032_385_535;
    let mut served = Served::new("default");
    let (flagged, late) = (served.path("flagged"), served.path("late"));
    fs::write(&flagged, b"x").expect("write");
    let before = times(&flagged).expect("stat")[2];
    await_tick_after(before);
    run("chattr", &[OsStr::new("+A"), flagged.as_os_str()]).must_succeed();
    await_that("chattr moves the change time", || times(&flagged).expect("stat")[2] > before);
    let file = File::create(&late).expect("create");
    let at = Timespec { tv_sec: LAST + 10, tv_nsec: 0 };
    rustix::fs::futimens(&file, &Timestamps { last_access: at, last_modification: at })
        .expect("futimens");
    drop(file);
    await_that("times are cut to the range of the inode", || {
        times(&late).expect("stat")[1].0 == LAST
    });
    assert_eq!(fs::read(&flagged).expect("read"), b"x");
    served.unmount();
}
