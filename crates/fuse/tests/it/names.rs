//! Names: limits, links, renames, special files, attributes by name.

use crate::oracle::{Notes, same_as_kernel};
use crate::served::Served;
use extant_testkit::image::Image;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, XattrFlags, makedev, mknodat, renameat_with,
};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

#[test]
pub fn limits_of_names() {
    same_as_kernel("default", |dir, notes| {
        for len in [1, 254, 255, 256, 300] {
            let name = "n".repeat(len);
            notes.call(format!("create {len}"), fs::write(dir.join(&name), b"x"));
            notes.call(format!("stat {len}"), fs::metadata(dir.join(&name)).map(|m| m.len()));
            notes.call(format!("mkdir {len}"), fs::create_dir(dir.join(format!("{name}d"))));
            notes.call(
                format!("rename {len}"),
                fs::rename(dir.join(&name), dir.join(format!("{name}r"))),
            );
            notes.call(format!("unlink {len}"), fs::remove_file(dir.join(&name)));
        }
        for len in [1, 59, 60, 61, 1000, 4094, 4095, 4096] {
            let target = "t".repeat(len);
            let link = dir.join(format!("link{len}"));
            notes.call(format!("symlink {len}"), symlink(&target, &link));
            notes
                .call(format!("readlink {len}"), fs::read_link(&link).map(|t| t.as_os_str().len()));
            notes.call(
                format!("lstat {len}"),
                fs::symlink_metadata(&link).map(|m| (m.len(), m.mode(), m.blocks())),
            );
        }
        notes.call("empty symlink", symlink("", dir.join("empty")));
        for bad in [".", "..", "dir/.", "dir/.."] {
            notes.call(format!("mkdir {bad}"), fs::create_dir(dir.join(bad)));
            notes.call(format!("rmdir {bad}"), fs::remove_dir(dir.join(bad)));
            notes.call(format!("unlink {bad}"), fs::remove_file(dir.join(bad)));
        }
    });
}

/// A small tree to rename in.
fn tree(top: &Path) {
    for sub in ["", "d", "d/sub", "e", "e/full"] {
        fs::create_dir(top.join(sub)).expect("mkdir");
    }
    for file in ["f", "g", "d/f", "e/full/f"] {
        fs::write(top.join(file), file).expect("write");
    }
    symlink("f", top.join("l")).expect("symlink");
    fs::hard_link(top.join("f"), top.join("hard")).expect("link");
}

fn listing(top: &Path) -> io::Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(top)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        all.push(format!(
            "{} {:o} {}",
            path.file_name().unwrap_or_default().display(),
            meta.mode(),
            meta.nlink()
        ));
        if meta.is_dir() {
            all.extend(listing(&path)?);
        }
    }
    all.sort();
    Ok(all)
}

#[test]
pub fn renames_with_all_flags() {
    let names = [
        "f",
        "g",
        "hard",
        "l",
        "d",
        "d/sub",
        "d/f",
        "e",
        "e/full",
        "missing",
        "d/sub/new",
        "f/below",
    ];
    let flags = [
        RenameFlags::empty(),
        RenameFlags::NOREPLACE,
        RenameFlags::EXCHANGE,
        RenameFlags::WHITEOUT,
        RenameFlags::EXCHANGE | RenameFlags::NOREPLACE,
    ];
    same_as_kernel("orphan_file", |dir, notes| {
        for flags in flags {
            for from in names {
                for to in names {
                    let top = dir.join("top");
                    tree(&top);
                    notes.call(
                        format!("{flags:?} {from} to {to}"),
                        renameat_with(CWD, top.join(from), CWD, top.join(to), flags),
                    );
                    notes.call("tree", listing(&top));
                    fs::remove_dir_all(&top).expect("remove");
                }
            }
        }
    });
}

#[test]
pub fn special_files() {
    same_as_kernel("default", |dir, notes| {
        let devices = [
            (1, 3),
            (8, 0),
            (0, 0),
            (259, 1_000_000),
            (4095, 0xf_ffff),
            (255, 255),
            (256, 1),
            (1, 256),
        ];
        for (major, minor) in devices {
            for kind in [FileType::CharacterDevice, FileType::BlockDevice] {
                let path = dir.join(format!("{kind:?}.{major}.{minor}"));
                notes.call(
                    format!("mknod {kind:?} {major} {minor}"),
                    mknodat(CWD, &path, kind, Mode::from_raw_mode(0o640), makedev(major, minor)),
                );
                notes.call(
                    "stat",
                    fs::symlink_metadata(&path).map(|m| (m.mode(), m.rdev(), m.len(), m.blocks())),
                );
            }
        }
        for kind in [FileType::Fifo, FileType::Socket, FileType::RegularFile] {
            let path = dir.join(format!("{kind:?}"));
            notes.call(
                format!("mknod {kind:?}"),
                mknodat(CWD, &path, kind, Mode::from_raw_mode(0o640), 0),
            );
            notes.call("stat", fs::symlink_metadata(&path).map(|m| (m.mode(), m.rdev(), m.len())));
            notes.call("link", fs::hard_link(&path, dir.join(format!("{kind:?}.link"))));
            notes.call("truncate", nix::unistd::truncate(&path, 0));
        }
        notes.call("list", listing(dir));
    });
}

/// A name of values in a form of its own.
const ACL: &str = "system.posix_acl_access";

/// Asks for a new attribute that replaces an old one.
fn both(path: &Path, name: &str) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(path, name, b"b", XattrFlags::CREATE | XattrFlags::REPLACE)
}

fn attribute(notes: &mut Notes, path: &Path, name: &str, sizes: &[usize]) {
    for &size in sizes {
        let value = vec![b'v'; size];
        notes.call(
            format!("set {name} {size}"),
            rustix::fs::lsetxattr(path, name, &value, XattrFlags::empty()),
        );
        let mut room = vec![0; 70_000];
        notes.call("get", rustix::fs::lgetxattr(path, name, &mut room[..]));
        notes.call("get into little room", rustix::fs::lgetxattr(path, name, &mut room[..1]));
        notes.call("get into none", rustix::fs::lgetxattr(path, name, &mut room[..0]));
    }
}

#[test]
pub fn attributes_by_name() {
    same_as_kernel("default", |dir, notes| {
        fs::write(dir.join("f"), b"x").expect("write");
        fs::create_dir(dir.join("d")).expect("mkdir");
        symlink("f", dir.join("l")).expect("symlink");
        mknodat(CWD, dir.join("p"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("mknod");
        for file in ["f", "d", "l", "p"] {
            let path = dir.join(file);
            for name in
                ["user.a", "trusted.a", "security.a", "system.a", "nothing.a", "user.", "user", "a"]
            {
                attribute(notes, &path, name, &[0, 1, 100]);
                notes.call(
                    format!("{file}: create again {name}"),
                    rustix::fs::lsetxattr(&path, name, b"y", XattrFlags::CREATE),
                );
                notes.call(
                    format!("{file}: replace {name}"),
                    rustix::fs::lsetxattr(&path, name, b"z", XattrFlags::REPLACE),
                );
                notes.call(format!("{file}: both {name}"), both(&path, name));
                notes.call(format!("{file}: remove {name}"), rustix::fs::lremovexattr(&path, name));
                notes.call(format!("{file}: both, none {name}"), both(&path, name));
                notes.call(format!("{file}: both, none, a bad ACL"), both(&path, ACL));
                notes.call(
                    format!("{file}: remove again {name}"),
                    rustix::fs::lremovexattr(&path, name),
                );
                notes.call(
                    format!("{file}: replace none {name}"),
                    rustix::fs::lsetxattr(&path, name, b"z", XattrFlags::REPLACE),
                );
            }
            let mut list = vec![0; 70_000];
            notes.call(format!("{file}: list"), rustix::fs::llistxattr(&path, &mut list[..]));
        }
        attribute(notes, &dir.join("f"), "user.big", &[2000, 3900, 4000, 4096, 5000, 65_536]);
        for i in 0..60 {
            notes.call(
                format!("many {i}"),
                rustix::fs::setxattr(
                    dir.join("d"),
                    format!("user.many{i}"),
                    &[b'v'; 90],
                    XattrFlags::empty(),
                ),
            );
        }
        notes.call(
            "name of 255",
            rustix::fs::setxattr(
                dir.join("f"),
                format!("user.{}", "n".repeat(250)),
                b"v",
                XattrFlags::empty(),
            ),
        );
        notes.call(
            "name of 256",
            rustix::fs::setxattr(
                dir.join("f"),
                format!("user.{}", "n".repeat(251)),
                b"v",
                XattrFlags::empty(),
            ),
        );
    });
}

#[test]
pub fn results_of_open_equal_the_kernels() {
    use rustix::fs::OFlags;
    same_as_kernel("default", |dir, notes| {
        fs::create_dir(dir.join("d")).expect("mkdir");
        fs::write(dir.join("f"), b"content").expect("write");
        symlink("f", dir.join("l")).expect("symlink");
        symlink("nowhere", dir.join("dangling")).expect("symlink");
        symlink("loop", dir.join("loop")).expect("symlink");
        mknodat(CWD, dir.join("s"), FileType::Socket, Mode::from_raw_mode(0o600), 0)
            .expect("mknod");
        let extra = [
            OFlags::empty(),
            OFlags::CREATE,
            OFlags::CREATE | OFlags::EXCL,
            OFlags::TRUNC,
            OFlags::DIRECTORY,
            OFlags::NOFOLLOW,
            OFlags::PATH,
            OFlags::CREATE | OFlags::DIRECTORY,
            OFlags::APPEND,
            OFlags::DIRECT,
            OFlags::SYNC,
        ];
        for name in
            ["f", "d", "l", "dangling", "loop", "s", "missing", "f/", "d/", "missing/", "f/x"]
        {
            for access in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR] {
                for more in extra {
                    let opened = rustix::fs::open(
                        dir.join(name),
                        access | more | OFlags::CLOEXEC,
                        Mode::from_raw_mode(0o644),
                    );
                    notes.call(
                        format!("open {name} {access:?} {more:?}"),
                        opened.map(|fd| rustix::fs::fstat(fd).map(|s| (s.st_size, s.st_mode))),
                    );
                    let _ = fs::remove_file(dir.join("missing"));
                    let _ = fs::remove_file(dir.join("nowhere"));
                    fs::write(dir.join("f"), b"content").expect("write");
                }
            }
        }
    });
}

#[test]
pub fn links() {
    same_as_kernel("default", |dir, notes| {
        fs::write(dir.join("f"), b"x").expect("write");
        fs::create_dir(dir.join("d")).expect("mkdir");
        symlink("f", dir.join("l")).expect("symlink");
        notes.call("of a file", fs::hard_link(dir.join("f"), dir.join("d/f")));
        notes.call("again", fs::hard_link(dir.join("f"), dir.join("d/f")));
        notes.call("of a directory", fs::hard_link(dir.join("d"), dir.join("e")));
        notes.call(
            "of a symlink",
            rustix::fs::linkat(CWD, dir.join("l"), CWD, dir.join("l2"), AtFlags::empty()),
        );
        notes.call(
            "through a symlink",
            rustix::fs::linkat(CWD, dir.join("l"), CWD, dir.join("l3"), AtFlags::SYMLINK_FOLLOW),
        );
        notes.call("of nothing", fs::hard_link(dir.join("missing"), dir.join("m")));
        notes.call("into a file", fs::hard_link(dir.join("f"), dir.join("f/x")));
        let open = File::open(dir.join("d/f")).expect("open");
        fs::remove_file(dir.join("f")).expect("unlink");
        notes.call("left", open.metadata().map(|m| m.nlink()));
        fs::remove_file(dir.join("l3")).expect("unlink");
        fs::remove_file(dir.join("d/f")).expect("unlink");
        notes.call("none left", open.metadata().map(|m| (m.nlink(), m.len())));
        notes.call("list", listing(dir));
    });
}

/// In a case-folded directory a rename between two spellings of one file changes nothing; a rename
/// by way of a third name changes the spelling. A cached entry of one spelling does not outlive the
/// removal by another.
#[test]
fn another_spelling_of_a_name_is_the_same_name() {
    const CASEFOLD: u32 = 0x4000_0000;
    let args = ["-t", "ext4", "-b", "4096", "-O", "casefold", "-E", "encoding=utf8-12.1"];
    let mut served = Served::of(Image::mke2fs(64 << 20, &args));
    let dir = served.path("Folder");
    fs::create_dir(&dir).expect("mkdir");
    let flags = rustix::fs::IFlags::from_bits_retain(CASEFOLD);
    rustix::fs::ioctl_setflags(File::open(&dir).expect("open"), flags).expect("chattr +F");
    let names = || -> Vec<_> {
        fs::read_dir(&dir)
            .expect("readdir")
            .map(|entry| entry.expect("entry").file_name().into_string().expect("text"))
            .collect()
    };
    fs::write(dir.join("Name"), b"one").expect("create");
    assert_eq!(fs::read(dir.join("NAME")).expect("another spelling"), b"one");
    let exclusive = File::options().write(true).create_new(true).open(dir.join("naMe"));
    assert_eq!(exclusive.expect_err("it is there").kind(), io::ErrorKind::AlreadyExists);
    fs::rename(dir.join("Name"), dir.join("name")).expect("nothing to do");
    assert_eq!(names(), ["Name"]);
    fs::rename(dir.join("NAME"), dir.join("another")).expect("rename");
    fs::rename(dir.join("Another"), dir.join("nAMe")).expect("rename");
    assert_eq!(names(), ["nAMe"]);
    fs::remove_file(dir.join("NAME")).expect("unlink");
    for spelling in ["Name", "name", "NAME", "nAMe", "another"] {
        assert!(fs::metadata(dir.join(spelling)).is_err(), "{spelling}");
    }
    fs::write(dir.join("name"), b"two").expect("create");
    served.unmount();
    served.mount();
    assert_eq!(fs::read(dir.join("NAME")).expect("read"), b"two");
    assert_eq!(names(), ["name"]);
    served.unmount();
}
