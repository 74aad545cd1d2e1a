//! Encrypted directories and files that the kernel made, without their key: names are those that the kernel shows, content is refused,
//! names can be removed and none can be made.

use extant::{Caller, Errno, FileType, Follow, Fs, New, Node, OpenFlags, OpenOptions, RenameFlags, SetAttr};
use extant_testkit::image::Image;
use extant_testkit::kernel::Mount;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt, symlink};
use std::path::Path;

/// With it the kernel encrypts what is made, by a key that it knows of.
const WITH_KEY: &str = "rw,test_dummy_encryption=v2";
const KINDS: [&[&str]; 3] = [
    &["-t", "ext4", "-b", "1024", "-O", "encrypt,orphan_file"],
    &["-t", "ext4", "-b", "4096", "-O", "encrypt,^dir_index"],
    &["-t", "ext4", "-b", "4096", "-O", "encrypt"],
];

fn name(n: usize) -> String {
    let long = [0, 3, 12, 40, 100, 130, 140, 200, 240][n % 9];
    format!("{n}-{}", "n".repeat(long))
}

/// What is made where the key is known.
fn make(top: &Path) {
    for dir in ["few", "many", "many/sub"] {
        std::fs::create_dir(top.join(dir)).expect(dir);
    }
    for n in 0..10 {
        std::fs::write(top.join("few").join(name(n)), vec![n as u8; n * 900]).expect("write");
    }
    for n in 0..250 {
        std::fs::write(top.join("many").join(name(n)), b"secret").expect("write");
    }
    symlink("a target", top.join("many/link")).expect("symlink");
    symlink("t".repeat(300), top.join("many/sub/long link")).expect("symlink");
}

/// Names with the numbers of their inodes, of each directory.
type Listing = BTreeMap<u64, BTreeSet<(Vec<u8>, u64)>>;

fn by_kernel(dir: &Path, out: &mut Listing) {
    let ino = dir.metadata().expect("metadata").ino();
    out.entry(ino).or_default();
    for entry in std::fs::read_dir(dir).expect("read_dir") {
        let entry = entry.expect("entry");
        out.entry(ino).or_default().insert((entry.file_name().as_bytes().to_vec(), entry.ino()));
        if entry.file_type().expect("type").is_dir() {
            by_kernel(&entry.path(), out);
        }
    }
}

fn by_extant(fs: &Fs, dir: &Node, out: &mut Listing) {
    out.entry(dir.ino()).or_default();
    for entry in fs.read_dir(dir).expect("readdir").into_iter().filter(|e| e.name != b"." && e.name != b"..") {
        let node = fs.lookup(dir, &entry.name).expect("what is listed is found");
        assert_eq!(node.ino(), entry.ino);
        out.entry(dir.ino()).or_default().insert((entry.name, entry.ino));
        if node.file_type() == FileType::Directory {
            by_extant(fs, &node, out);
        }
    }
}

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &OpenOptions::new()).expect("the image opens")
}

fn no_key<T: std::fmt::Debug>(result: extant::Result<T>) {
    let error = result.expect_err("without a key");
    assert!(error.is(Errno::NoKey), "{error}");
    assert_eq!(error.errno(), 126);
}

fn encrypted(args: &[&str]) -> Image {
    let image = Image::mke2fs(32 << 20, args);
    let mount = Mount::new(image.path(), WITH_KEY);
    make(&mount.join("."));
    mount.unmount();
    image
}

#[test]
fn names_are_those_that_the_kernel_shows() {
    for args in KINDS {
        let image = encrypted(args);
        let mut kernel = Listing::new();
        let mount = Mount::new(image.path(), "ro");
        by_kernel(&mount.join("."), &mut kernel);
        mount.unmount();
        let fs = open(&image);
        let mut own = Listing::new();
        by_extant(&fs, &fs.root().expect("root"), &mut own);
        assert_eq!(own, kernel, "{args:?}");
        assert!(own.values().map(BTreeSet::len).sum::<usize>() > 260);
        fs.unmount().expect("unmount");
        image.assert_clean();
    }
}

#[test]
fn content_is_refused_and_nothing_is_made() {
    let image = encrypted(KINDS[0]);
    let fs = open(&image);
    let (who, root) = (Caller::default(), fs.root().expect("root"));
    let many = fs.lookup(&root, b"many").expect("many");
    let entries = fs.read_dir(&many).expect("readdir");
    let of = |kind| entries.iter().find(|e| e.ftype == kind && e.name.len() > 2).expect("an entry").name.clone();
    let (file, link) = (of(FileType::Regular), of(FileType::Symlink));
    let node = fs.lookup(&many, &file).expect("file");
    no_key(fs.open_file(&node, OpenFlags::default()));
    no_key(fs.read_direct(&node, 0, &mut [0; 10]));
    no_key(fs.set_attr(&node, &SetAttr { size: Some(0), ..SetAttr::default() }));
    no_key(fs.read_link(&fs.lookup(&many, &link).expect("link")));
    let path = [b"/many/", link.as_slice()].concat();
    no_key(fs.resolve(&path, Follow::Yes));
    assert!(fs.resolve(&path, Follow::No).is_ok());
    no_key(fs.create(&who, &many, b"new", 0o644, New::File));
    no_key(fs.create_nameless(&who, &many, 0o644));
    no_key(fs.link(&node, &many, b"another"));
    no_key(fs.rename(&many, &file, &root, b"out", RenameFlags::empty()));
    let plain = fs.create(&who, &root, b"plain", 0o644, New::File).expect("outside");
    no_key(fs.rename(&root, b"plain", &many, b"in", RenameFlags::empty()));
    assert_eq!(fs.lookup(&root, b"plain").expect("still there").ino(), plain.ino());
    fs.rename(&root, b"many", &root, b"moved", RenameFlags::empty()).expect("the whole of it");
    // Attributes are no content.
    fs.set_attr(&node, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).expect("chmod");
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn names_can_be_removed_without_the_key() {
    for args in KINDS {
        let image = encrypted(args);
        let fs = open(&image);
        let many = fs.resolve("/many", Follow::No).expect("many");
        let mut left: BTreeSet<u64> = BTreeSet::new();
        for (n, entry) in fs.read_dir(&many).expect("readdir").into_iter().enumerate() {
            match entry.ftype {
                FileType::Regular if n % 3 == 0 => {
                    left.insert(entry.ino);
                }
                FileType::Regular | FileType::Symlink => fs.unlink(&many, &entry.name).expect("unlink"),
                _ if entry.name.len() > 2 => {
                    let sub = fs.lookup(&many, &entry.name).expect("sub");
                    assert!(fs.rmdir(&many, &entry.name).expect_err("not empty").is(Errno::NotEmpty));
                    for inner in fs.read_dir(&sub).expect("readdir").iter().filter(|e| e.name.len() > 2) {
                        fs.unlink(&sub, &inner.name).expect("unlink");
                    }
                    fs.rmdir(&many, &entry.name).expect("rmdir");
                }
                _ => {}
            }
        }
        assert!(left.len() > 50);
        fs.unmount().expect("unmount");
        image.assert_clean();
        let mount = Mount::new(image.path(), WITH_KEY);
        let found = std::fs::read_dir(mount.join("many")).expect("read_dir").map(|entry| entry.expect("entry"));
        let mut inos = BTreeSet::new();
        for entry in found {
            inos.insert(entry.ino());
            assert_eq!(std::fs::read(entry.path()).expect("with the key it is read"), b"secret");
        }
        assert_eq!(inos, left);
        mount.unmount();
    }
}
