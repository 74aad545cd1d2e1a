//! Times: what sets them, what each can hold.

use crate::oracle::{Notes, same_as_kernel};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// Longer than the granularity of the kernel's clock.
const A_WHILE: Duration = Duration::from_millis(20);

fn times(path: &Path) -> io::Result<[(i64, i64); 3]> {
    let m = fs::symlink_metadata(path)?;
    Ok([(m.atime(), m.atime_nsec()), (m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec())])
}

#[test]
fn times_are_kept_as_they_were_set() {
    for set in ["default", "inode_128"] {
        same_as_kernel(set, |dir, notes| {
            fs::write(dir.join("f"), b"").expect("write");
            symlink("f", dir.join("l")).expect("symlink");
            let seconds = [0, 1, -1, -2, i64::from(i32::MIN), i64::from(i32::MIN) - 1, i64::from(i32::MAX), 1 << 31, 1 << 32, (1 << 34) - 1, 15_032_385_535, 15_032_385_536, 1 << 40, -(1 << 40)];
            for file in ["f", "l"] {
                let path = dir.join(file);
                for sec in seconds {
                    for nsec in [0, 1, 999_999_999] {
                        let time = Timespec { tv_sec: sec, tv_nsec: nsec };
                        let other = Timespec { tv_sec: 7, tv_nsec: UTIME_OMIT };
                        let set = utimensat(CWD, &path, &Timestamps { last_access: time, last_modification: other }, AtFlags::SYMLINK_NOFOLLOW);
                        notes.call(format!("{file}: atime {sec} {nsec}"), set);
                        let set = utimensat(CWD, &path, &Timestamps { last_access: other, last_modification: time }, AtFlags::SYMLINK_NOFOLLOW);
                        notes.call(format!("{file}: mtime {sec} {nsec}"), set);
                        notes.call("times", times(&path).map(|t| (t[0], t[1])));
                    }
                }
            }
        });
    }
}

/// Notes which of the times of `paths` `change` moves.
fn moved<T: std::fmt::Debug>(notes: &mut Notes, what: &str, paths: &[&Path], change: impl FnOnce() -> io::Result<T>) {
    let before: Vec<_> = paths.iter().map(|p| times(p).ok()).collect();
    sleep(A_WHILE);
    notes.call(what, change());
    for (path, before) in paths.iter().zip(before) {
        let after = times(path).ok();
        let moved = before.zip(after).map(|(b, a)| (b[1] != a[1], b[2] != a[2]));
        notes.value(format!("{what} moves mtime, ctime of {}", path.file_name().unwrap_or_default().display()), moved);
    }
}

#[test]
fn changes_move_times() {
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
        moved(notes, "truncate by path to the same", &all, || Ok(nix::unistd::truncate(&f, 10)?));
        moved(notes, "open to truncate", &all, || File::options().write(true).truncate(true).open(&f).map(drop));
        moved(notes, "open to truncate again", &all, || File::options().write(true).truncate(true).open(&f).map(drop));
        moved(notes, "fallocate", &all, || Ok(rustix::fs::fallocate(&open, rustix::fs::FallocateFlags::empty(), 0, 5000)?));
        moved(notes, "fallocate beyond", &all, || Ok(rustix::fs::fallocate(&open, rustix::fs::FallocateFlags::KEEP_SIZE, 9000, 5000)?));
        moved(notes, "link", &all, || fs::hard_link(&f, d.join("f")));
        moved(notes, "setxattr", &all, || Ok(rustix::fs::setxattr(&f, "user.x", b"1", rustix::fs::XattrFlags::empty())?));
        moved(notes, "removexattr", &all, || Ok(rustix::fs::removexattr(&f, "user.x")?));
        moved(notes, "rename within", &all, || fs::rename(&f, dir.join("g")).and_then(|()| fs::rename(dir.join("g"), &f)));
        moved(notes, "rename into", &all, || fs::rename(d.join("f"), e.join("f")));
        moved(notes, "mkdir", &all, || fs::create_dir(d.join("sub")));
        moved(notes, "rename of a directory", &[&d, &e, &e.join("sub")], || fs::rename(d.join("sub"), e.join("sub")));
        moved(notes, "rmdir", &all, || fs::remove_dir(e.join("sub")));
        moved(notes, "unlink", &all, || fs::remove_file(e.join("f")));
        moved(notes, "symlink", &all, || symlink("x", d.join("l")));
        moved(notes, "mmap-like sync", &all, || open.sync_all());
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        moved(notes, "touch", &all, || Ok(utimensat(CWD, &f, &Timestamps { last_access: now, last_modification: now }, AtFlags::empty())?));
        moved(notes, "touch of nothing", &all, || Ok(utimensat(CWD, &f, &Timestamps { last_access: omit, last_modification: omit }, AtFlags::empty())?));
        moved(notes, "exchange", &all, || Ok(rustix::fs::renameat_with(CWD, &f, CWD, &d, rustix::fs::RenameFlags::EXCHANGE)?));
    });
}
