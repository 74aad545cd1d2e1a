//! Trees on the host and in memory, in one form.

use extant_image::{EntryKind, FileContent, Tree};
use rustix::fs::{lgetxattr, llistxattr};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// All that a test compares of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub kind: String,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, u32),
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// First name of the file, in the order of names.
    pub first: Vec<u8>,
}

pub type Listing = BTreeMap<Vec<u8>, Seen>;

/// Runs a program, which must succeed; returns its output.
pub fn run(program: &str, arguments: &[&str], directory: &Path) -> Vec<u8> {
    extant_testkit::need(program);
    let output = Command::new(program).args(arguments).current_dir(directory).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    output.stdout
}

/// Describes content without holding it in the listing.
fn content(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(1_000_003) ^ u64::from(*byte));
    format!("file of {} bytes, {sum:x}", bytes.len())
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let len = llistxattr(path, &mut names).unwrap();
    names.truncate(len);
    let mut found = BTreeMap::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 1 << 16];
        let len = lgetxattr(path, name, &mut value).unwrap();
        value.truncate(len);
        found.insert(name.to_vec(), value);
    }
    found
}

fn kind(path: &Path, data: &std::fs::Metadata) -> String {
    let device = || {
        let rdev = data.rdev();
        format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev))
    };
    let kind = data.file_type();
    if kind.is_dir() {
        "directory".into()
    } else if kind.is_symlink() {
        format!("symlink to {}", std::fs::read_link(path).unwrap().display())
    } else if kind.is_char_device() {
        format!("char device {}", device())
    } else if kind.is_block_device() {
        format!("block device {}", device())
    } else if kind.is_fifo() {
        "fifo".into()
    } else {
        content(&std::fs::read(path).unwrap())
    }
}

/// Lists a directory of the host, without the directory itself.
pub fn of_host(root: &Path) -> Listing {
    let mut listing = Listing::new();
    let mut first = BTreeMap::new();
    let mut pending: Vec<PathBuf> = vec![root.into()];
    while let Some(directory) = pending.pop() {
        let mut entries: Vec<PathBuf> =
            std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            let data = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            if data.is_dir() {
                pending.push(path.clone());
            }
            let least = first.entry((data.dev(), data.ino())).or_insert_with(|| name.clone());
            if name < *least {
                least.clone_from(&name);
            }
            let seen = Seen {
                kind: kind(&path, &data),
                mode: data.mode() & 0o7777,
                owner: (data.uid(), data.gid()),
                mtime: (data.mtime(), data.mtime_nsec() as u32),
                xattrs: xattrs(&path),
                first: data.ino().to_string().into_bytes(),
            };
            listing.insert(name, seen);
        }
    }
    let by_number: BTreeMap<Vec<u8>, Vec<u8>> =
        first.into_iter().map(|((_, ino), name)| (ino.to_string().into_bytes(), name)).collect();
    for seen in listing.values_mut() {
        seen.first = by_number[&seen.first].clone();
    }
    listing
}

/// Lists a tree in memory.
pub fn of_tree(tree: &Tree) -> Listing {
    let mut first = BTreeMap::new();
    for entry in tree.walk() {
        let least = first.entry(entry.file).or_insert_with(|| entry.path.clone());
        if entry.path < *least {
            least.clone_from(&entry.path);
        }
    }
    let seen = tree.walk().map(|entry| {
        let text = |target: &[u8]| String::from_utf8_lossy(target).into_owned();
        let kind = match &entry.kind {
            EntryKind::Directory => "directory".into(),
            EntryKind::File(_) => content(&tree.read(&entry.path).unwrap()),
            EntryKind::Symlink(target) => format!("symlink to {}", text(target)),
            EntryKind::CharDevice(major, minor) => format!("char device {major}:{minor}"),
            EntryKind::BlockDevice(major, minor) => format!("block device {major}:{minor}"),
            EntryKind::Fifo => "fifo".into(),
            other => format!("{other:?}"),
        };
        let attributes = entry.attributes;
        let seen = Seen {
            kind,
            mode: attributes.mode.into(),
            owner: (attributes.uid, attributes.gid),
            mtime: (attributes.mtime.sec, attributes.mtime.nsec),
            xattrs: attributes.xattrs.into_iter().collect(),
            first: first[&entry.file].clone(),
        };
        (entry.path, seen)
    });
    seen.collect()
}

/// Compares two listings and names the first difference.
#[track_caller]
pub fn assert_same(found: &Listing, expected: &Listing, subject: &str) {
    assert!(!expected.is_empty(), "{subject}: nothing to compare");
    for (name, seen) in expected {
        let shown = String::from_utf8_lossy(name);
        assert_eq!(found.get(name), Some(seen), "{subject}: {shown}");
    }
    let more: Vec<_> = found.keys().filter(|name| !expected.contains_key(*name)).collect();
    assert!(more.is_empty(), "{subject}: {more:?}");
}

/// Returns the bytes of data in a file of a tree.
pub fn stored(tree: &Tree, path: &str) -> u64 {
    match tree.entry(path.as_bytes()).unwrap().kind {
        EntryKind::File(FileContent::Sparse { ranges, .. }) => ranges.iter().map(|r| r.len).sum(),
        EntryKind::File(FileContent::Whole { size, .. }) => size,
        _ => 0,
    }
}
