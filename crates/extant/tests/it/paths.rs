//! Calls by path.

use crate::new;
use extant::{ErrorKind, FileOptions, FileType};
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn create_dir_all_makes_missing_directories_alone() {
    let fs = new();
    let made = fs.create_dir_all("/a/b//c/").unwrap();
    assert_eq!(made.inode().number(), fs.create_dir_all("a/b/c").unwrap().inode().number());
    fs.create_dir_all("/").unwrap();
    fs.write("/a/file", b"").unwrap();
    for path in ["/a/file", "/a/file/x"] {
        assert_eq!(fs.create_dir_all(path).unwrap_err().kind(), ErrorKind::NotADirectory, "{path}");
    }
    assert_eq!(fs.create_dir("/a").unwrap_err().kind(), ErrorKind::AlreadyExists);
    drop(made);
    fs.unmount().unwrap();
}

#[test]
fn names_of_each_type_are_bytes() {
    let fs = new();
    fs.write(Path::new("/p"), "str").unwrap();
    fs.write(b"/\xff\xfe".to_vec(), b"bytes").unwrap();
    assert_eq!(fs.read(b"/\xff\xfe").unwrap(), b"bytes");
    fs.rename(b"/\xff\xfe", "/p").unwrap();
    assert_eq!(fs.read(String::from("/p")).unwrap(), b"bytes");
    let names: Vec<_> = fs.read_dir("/").unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names.iter().filter(|name| *name == b"p").count(), 1);
    fs.unmount().unwrap();
}

#[test]
fn files_are_created_as_the_options_say() {
    let fs = new();
    let absent = fs.open_file_with("/f", &FileOptions::new().write(true)).unwrap_err();
    assert_eq!((absent.kind(), absent.op()), (ErrorKind::NotFound, "open_file"));
    let create_new = FileOptions::new().write(true).create_new(true);
    drop(fs.open_file_with("/f", &create_new).unwrap());
    let error = fs.open_file_with("/f", &create_new).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    fs.symlink("/nowhere/else", "/dangling").unwrap();
    let error = fs.create_file("/dangling").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    fs.remove_file("/dangling").unwrap();
    assert_eq!(fs.remove_dir("/f").unwrap_err().kind(), ErrorKind::NotADirectory);
    fs.unmount().unwrap();
}

#[test]
fn a_walk_sees_each_entry_once() {
    let fs = new();
    let mut expected = BTreeSet::from([b"/lost+found".to_vec()]);
    for dir in ["/a", "/a/b", "/c"] {
        fs.create_dir_all(dir).unwrap();
        expected.insert(dir.into());
        for i in 0..300 {
            let path = format!("{dir}/file {i}");
            fs.write(&path, b"").unwrap();
            expected.insert(path.into());
        }
    }
    fs.symlink("/a", "/c/link").unwrap();
    expected.insert(b"/c/link".to_vec());
    let entries: Vec<_> = fs.walk("/").unwrap().collect::<Result<_, _>>().unwrap();
    let paths: BTreeSet<_> = entries.iter().map(|entry| entry.path.clone()).collect();
    assert_eq!((entries.len(), &paths), (expected.len(), &expected));
    assert!(
        entries.iter().filter(|e| e.depth == 1).all(|e| e.entry.file_type != FileType::Unknown)
    );
    assert_eq!(fs.walk("a/b/").unwrap().next().unwrap().unwrap().depth, 0);
    fs.unmount().unwrap();
}

#[test]
fn a_walk_leaves_out_the_directory_that_it_is_told_to_skip() {
    let fs = new();
    for path in ["/a/b/c", "/a/d", "/e"] {
        fs.create_dir_all(path).unwrap();
    }
    fs.write("/a/f", b"").unwrap();
    let walk_without = |skipped: &[u8]| {
        let (mut walk, mut paths) = (fs.walk("/").unwrap(), Vec::new());
        while let Some(entry) = walk.next() {
            let path = entry.unwrap().path;
            if path == skipped {
                walk.skip_dir();
                walk.skip_dir();
            }
            paths.push(String::from_utf8(path).unwrap());
        }
        paths.retain(|path| path != "/lost+found");
        paths.sort();
        paths
    };
    assert_eq!(walk_without(b"/a"), ["/a", "/e"]);
    assert_eq!(walk_without(b"/a/b"), ["/a", "/a/b", "/a/d", "/a/f", "/e"]);
    // A file, and a directory without entries.
    assert_eq!(walk_without(b"/a/f").len(), 6);
    assert_eq!(walk_without(b"/e").len(), 6);
    fs.unmount().unwrap();
}

#[test]
fn a_long_listing_ends_when_its_thread_is_asked_to() {
    let fs = new();
    (0..6000).for_each(|n| fs.write(format!("/{n:0240}"), b"").unwrap());
    let before = extant::set_interrupt(Some(std::sync::Arc::new(|| true)));
    let ended: extant::Result<Vec<_>> = fs.walk("/").and_then(Iterator::collect);
    extant::set_interrupt(before);
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(fs.read_dir("/").unwrap().len(), 6001);
    fs.unmount().unwrap();
}
