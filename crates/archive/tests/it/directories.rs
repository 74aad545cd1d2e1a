//! Directories of the host: a tree made of one equals it.

use crate::hosts::{assert_same, of_host, of_tree, run, stored};
use crate::programs::sources;
use extant_archive::{Loader, Patterns, ScanOptions};
use extant_image::Tree;
use extant_testkit::Ending;
use rustix::fs::{CWD, RenameFlags};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

fn scan(path: &Path, options: &ScanOptions) -> (Tree, Result<(), String>) {
    let mut tree = Tree::new();
    let mut loader = Loader::new(&mut tree, std::env::temp_dir());
    let done = loader.add_directory(path, options).map_err(|error| error.to_string());
    (tree, done)
}

fn load(path: &Path, options: &ScanOptions) -> Tree {
    let (tree, done) = scan(path, options);
    done.unwrap();
    tree
}

fn excluding(patterns: &[&str]) -> ScanOptions {
    let mut exclude = Patterns::default();
    patterns.iter().for_each(|pattern| exclude.add(pattern.as_bytes()));
    let mut options = ScanOptions::default();
    options.exclude = exclude;
    options
}

#[test]
fn a_tree_equals_its_directory() {
    let directory = sources();
    let source = directory.path().join("source");
    let tree = load(&source, &ScanOptions::default());
    assert_same(&of_tree(&tree), &of_host(&source), "directory");
    assert!(stored(&tree, "sparse") < 300 << 10, "{}", stored(&tree, "sparse"));
    assert_eq!((stored(&tree, "hole"), stored(&tree, "large")), (0, 700_000));
    let root = tree.entry(b"").unwrap().attributes;
    assert_eq!((root.mtime.sec, root.mtime.nsec), {
        let data = fs::metadata(&source).unwrap();
        (data.mtime(), data.mtime_nsec() as u32)
    });
    let link = directory.path().join("link");
    symlink("source", &link).unwrap();
    assert_same(&of_tree(&load(&link, &ScanOptions::default())), &of_host(&source), "by a symlink");
}

#[test]
fn excluded_entries_and_the_output_are_left_out() {
    let directory = TempDir::new().unwrap();
    let script = "mkdir -p a/b/.git c; touch a/x.o a/b/.git/y c/x.o keep out; ln keep a/also";
    run("sh", &["-c", script], directory.path());
    let mut options = excluding(&[".git", "/c/*.o", "also"]);
    let out = fs::metadata(directory.path().join("out")).unwrap();
    options.outputs = vec![(out.dev(), out.ino())];
    let tree = load(directory.path(), &options);
    let names: Vec<String> =
        tree.walk().map(|entry| String::from_utf8(entry.path).unwrap()).collect();
    assert_eq!(names, ["a", "a/b", "a/x.o", "c", "keep"]);
    assert_eq!(tree.entry(b"keep").unwrap().links, 1);
}

#[test]
fn other_file_systems_are_left_empty_if_asked() {
    let mut options = ScanOptions::default();
    options.one_file_system = true;
    let directory = TempDir::new().unwrap();
    run("sh", &["-c", "mkdir -p mnt d; touch d/f"], directory.path());
    let mount = directory.path().join("mnt");
    run("mount", &["-t", "tmpfs", "none", mount.to_str().unwrap()], directory.path());
    File::create(mount.join("inside")).unwrap();
    let (all, one) =
        (load(directory.path(), &ScanOptions::default()), load(directory.path(), &options));
    run("umount", &[mount.to_str().unwrap()], directory.path());
    assert!(all.contains(b"mnt/inside"));
    assert!(one.contains(b"mnt") && !one.contains(b"mnt/inside") && one.contains(b"d/f"));
}

#[test]
fn a_file_that_changes_after_the_scan_is_an_error() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("file");
    for change in ["longer", "shorter", "other bytes", "another file", "symlink", "gone"] {
        fs::write(&path, "some bytes").unwrap();
        let tree = load(directory.path(), &ScanOptions::default());
        assert_eq!(tree.read(b"file").unwrap(), b"some bytes");
        match change {
            "longer" => fs::write(&path, "some bytes and more").unwrap(),
            "shorter" => fs::write(&path, "some").unwrap(),
            "other bytes" => {
                File::options().write(true).open(&path).unwrap().write_all_at(b"S", 0).unwrap();
                run("touch", &["-d", "2001-01-01", path.to_str().unwrap()], directory.path());
            }
            "another file" => {
                fs::write(directory.path().join("new"), "some bytes").unwrap();
                fs::rename(directory.path().join("new"), &path).unwrap();
            }
            "symlink" => {
                fs::remove_file(&path).unwrap();
                symlink("/etc/passwd", &path).unwrap();
            }
            _ => fs::remove_file(&path).unwrap(),
        }
        let error = tree.read(b"file").unwrap_err().to_string();
        let words = match change {
            "symlink" => "symbolic links",
            "gone" => "No such file",
            _ => "changed meanwhile",
        };
        assert!(error.starts_with("file: ") && error.contains(words), "{change}: {error}");
        let _ = fs::remove_file(&path);
    }
}

#[test]
fn a_source_that_is_no_directory_is_refused() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, words) in [(file, "file: not a directory"), ("/missing".into(), "/missing: No such")]
    {
        let error = scan(&path, &ScanOptions::default()).1.unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

/// A directory is exchanged with a symlink again and again: no scan has a file from elsewhere.
#[test]
fn exchanged_directories_add_no_files_from_elsewhere() {
    const SCANS: usize = 5000;
    let scratch = TempDir::new().unwrap();
    let [top, secret, link] = ["top", "secret", "link"].map(|name| scratch.path().join(name));
    let inner = top.join("inner");
    fs::create_dir_all(&inner).unwrap();
    fs::create_dir(&secret).unwrap();
    for n in 0..2 {
        fs::write(inner.join(format!("own {n}")), "own").unwrap();
        fs::write(secret.join(format!("secret {n}")), "secret").unwrap();
    }
    symlink(&secret, &link).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, &inner, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let _ending = Ending(&is_done);
        for number in 0..SCANS {
            let mut options = ScanOptions::default();
            options.through_library = number % 2 == 0;
            // An error is right as well.
            let (tree, _) = scan(&top, &options);
            let foreign = tree.walk().find(|entry| entry.path.starts_with(b"inner/secret"));
            assert!(foreign.is_none(), "{foreign:?}");
        }
    });
}
