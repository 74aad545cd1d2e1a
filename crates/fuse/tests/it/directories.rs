//! Directories: listings while names are added and removed, and removed directories that are still
//! open.

use crate::oracle::same_as_kernel;
use crate::served::Served;
use extant_engine::{Fs, NodeKind, OpenOptions};
use extant_testkit::Image;
use rustix::fs::{Dir, Mode, OFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const SETS: [&str; 4] = ["default", "1k", "inline_data", "no_dir_index"];

fn open(path: &Path) -> Dir {
    let fd =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .expect("opendir");
    Dir::new(fd).expect("opendir")
}

fn fill(dir: &Path, count: usize) {
    for i in 0..count {
        fs::write(dir.join(format!("a file with a name of some length {i}")), b"").expect("create");
    }
}

#[test]
pub fn numbers_in_entries_are_those_of_stat() {
    for set in SETS {
        let mut served = Served::new(set);
        fs::create_dir(served.path("d")).expect("mkdir");
        fs::create_dir(served.path("d/sub")).expect("mkdir");
        fill(&served.path("d"), 300);
        for again in [false, true] {
            if again {
                served.unmount();
                served.mount();
            }
            for (top, parent) in [
                (served.path("d"), served.dir().to_owned()),
                (served.path("d/sub"), served.path("d")),
            ] {
                let mut seen = 0;
                for entry in open(&top) {
                    let entry = entry.expect("readdir");
                    let name = entry.file_name().to_str().expect("text");
                    let path = match name {
                        "." => top.clone(),
                        ".." => parent.clone(),
                        name => top.join(name),
                    };
                    let meta = fs::symlink_metadata(&path).expect("stat");
                    assert_eq!(entry.ino(), meta.ino(), "{set}: {path:?}");
                    seen += 1;
                }
                assert!(seen >= 2);
            }
        }
        served.unmount();
    }
}

#[test]
pub fn every_place_can_be_sought() {
    for set in SETS {
        let mut served = Served::new(set);
        let top = served.path("d");
        fs::create_dir(&top).expect("mkdir");
        fill(&top, 250);
        let mut dir = open(&top);
        let mut places = Vec::new();
        let mut at = 0;
        while let Some(entry) = dir.read() {
            let entry = entry.expect("readdir");
            places.push((at, entry.file_name().to_owned()));
            at = entry.offset();
        }
        assert_eq!(places.len(), 252, "{set}");
        for (i, (place, name)) in places.iter().enumerate().rev().step_by(7) {
            dir.seek(*place).expect("seekdir");
            let rest: Vec<_> = std::iter::from_fn(|| dir.read())
                .map(|e| e.expect("readdir").file_name().to_owned())
                .collect();
            assert_eq!(&rest[0], name, "{set}: at {i}");
            assert_eq!(rest.len(), places.len() - i, "{set}: from {i}");
        }
        drop(dir);
        served.unmount();
    }
}

#[test]
pub fn names_that_stay_are_read_exactly_once() {
    for set in SETS {
        let mut served = Served::new(set);
        let top = served.path("d");
        fs::create_dir(&top).expect("mkdir");
        fill(&top, 400);
        let names: Vec<_> =
            fs::read_dir(&top).expect("readdir").map(|e| e.expect("entry").file_name()).collect();
        let mut seen = BTreeMap::new();
        for (i, entry) in fs::read_dir(&top).expect("readdir").enumerate() {
            *seen.entry(entry.expect("entry").file_name()).or_insert(0) += 1;
            // Remove names that the reader has passed, and add names everywhere: blocks split
            // during the listing.
            if i % 2 == 0 && i < names.len() / 2 {
                fs::remove_file(top.join(&names[i])).expect("unlink");
            }
            if i < 400 {
                fs::write(top.join(format!("another name, likewise of some length {i}")), b"")
                    .expect("create");
            }
        }
        let gone: BTreeSet<_> = names.iter().take(names.len() / 2).step_by(2).collect();
        for name in &names {
            let count = seen.get(name).copied().unwrap_or(0);
            assert!(
                count == 1 || count == 0 && gone.contains(name),
                "{set}: {name:?} was read {count} times"
            );
        }
        assert!(seen.values().all(|&n| n == 1), "{set}: a name was read twice");
        served.unmount();
    }
}

#[test]
pub fn rewinding_shows_new_names() {
    same_as_kernel("default", |dir, notes| {
        fill(dir, 10);
        let mut reader = open(dir);
        let mut read = |label: &str| {
            reader.rewind();
            let names: BTreeSet<_> = std::iter::from_fn(|| reader.read())
                .map(|e| e.expect("readdir").file_name().to_owned())
                .collect();
            notes.value(label, names);
        };
        read("first");
        fs::write(dir.join("new"), b"").expect("create");
        read("with the new one");
        fs::remove_file(dir.join("new")).expect("unlink");
        read("without it");
        fs::rename(dir.join("a file with a name of some length 3"), dir.join("renamed"))
            .expect("rename");
        read("renamed");
    });
}

#[test]
pub fn a_directory_without_a_name() {
    same_as_kernel("orphan_file", |dir, notes| {
        for how in ["rmdir", "rename"] {
            let (gone, other) = (dir.join("gone"), dir.join("other"));
            fs::create_dir(&gone).expect("mkdir");
            let fd = rustix::fs::open(
                &gone,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .expect("open");
            match how {
                "rmdir" => fs::remove_dir(&gone).expect("rmdir"),
                _ => {
                    fs::create_dir(&other).expect("mkdir");
                    fs::rename(&other, &gone).expect("rename");
                }
            }
            notes.call(
                format!("{how}: fstat"),
                rustix::fs::fstat(&fd).map(|s| (s.st_nlink, s.st_mode)),
            );
            notes.call(
                "create",
                rustix::fs::openat(
                    &fd,
                    "x",
                    OFlags::CREATE | OFlags::WRONLY,
                    Mode::from_raw_mode(0o600),
                )
                .map(drop),
            );
            notes.call("mkdir", rustix::fs::mkdirat(&fd, "x", Mode::from_raw_mode(0o700)));
            notes.call(
                "lookup",
                rustix::fs::statat(&fd, "x", rustix::fs::AtFlags::empty()).map(drop),
            );
            notes.call("symlink", rustix::fs::symlinkat("x", &fd, "y"));
            notes.call("chmod", rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o700)));
            let names: Vec<_> = Dir::read_from(&fd)
                .expect("opendir")
                .map(|e| e.map(|e| e.file_name().to_owned()))
                .collect();
            notes.value("names", names);
            notes.call("sync", rustix::fs::fsync(&fd));
            let _ = fs::remove_dir(&gone);
        }
    });
}

#[test]
pub fn links_and_sizes_of_directories() {
    same_as_kernel("default", |dir, notes| {
        let stat =
            |path: &Path| fs::metadata(path).map(|m| (m.nlink(), m.len(), m.blocks(), m.mode()));
        let top = dir.join("d");
        fs::create_dir(&top).expect("mkdir");
        notes.call("new", stat(&top));
        for i in 0..5 {
            fs::create_dir(top.join(format!("{i}"))).expect("mkdir");
            notes.call("with one more", stat(&top));
        }
        notes.call("not empty", fs::remove_dir(&top));
        fs::rename(top.join("3"), dir.join("3")).expect("rename");
        notes.call("moved out", stat(&top).and_then(|a| stat(dir).map(|b| (a, b))));
        fs::rename(top.join("2"), top.join("1")).expect("rename");
        notes.call("moved over", stat(&top));
        fs::remove_dir(top.join("0")).expect("rmdir");
        notes.call("one less", stat(&top));
        notes.call("unlink of a directory", fs::remove_file(&top));
        fs::write(dir.join("f"), b"").expect("write");
        notes.call("rmdir of a file", fs::remove_dir(dir.join("f")));
        notes.call("mkdir over a file", fs::create_dir(dir.join("f")));
    });
}

#[test]
pub fn names_that_are_no_components_are_not_listed() {
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-O", "^metadata_csum"]);
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("opens");
    let root = fs.root().expect("a root");
    for name in ["good-1", "bad-name-1", "good-2"] {
        fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).expect("create");
    }
    fs.unmount().expect("unmounts");
    image.replace(b"bad-name-1", b"../names\0-");
    let mut served = Served::of(image);
    let names: BTreeSet<_> = open(served.dir())
        .map_while(Result::ok)
        .map(|entry| entry.file_name().to_str().expect("text").to_owned())
        .collect();
    served.let_go();
    let expected = [".", "..", "good-1", "good-2", "lost+found"].map(String::from);
    assert_eq!(names, BTreeSet::from(expected));
}
