//! Encrypted directories and files that the kernel made, without their key: names are those that
//! the kernel shows, content is refused, names can be removed and none can be made.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use extant_engine::{
    Caller, Errno, Falloc, FileType, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions,
    RenameFlags, SetAttr,
};
use extant_format::dir::{DirEntry, DirFormat, NewEntry, entries, entry_len, put_entry};
use extant_format::features::{Compat, Incompat};
use extant_format::geometry::Geometry;
use extant_format::inode::InodeFlags;
use extant_hostile::atlas::{self, Atlas};
use extant_testkit::debugfs;
use extant_testkit::image::Image;
use extant_testkit::kernel::Mount;
use extant_testkit::tool::run;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, MetadataExt, symlink};
use std::path::Path;

/// Makes the kernel encrypt new files, by a key that it knows.
const WITH_KEY: &str = "rw,test_dummy_encryption=v2";
const KINDS: [&[&str]; 3] = [
    &["-t", "ext4", "-b", "1024", "-O", "encrypt,orphan_file"],
    &["-t", "ext4", "-b", "4096", "-O", "encrypt,^dir_index"],
    &["-t", "ext4", "-b", "4096", "-O", "encrypt"],
];

fn name(n: usize) -> String {
    // With 150 the digest is of less than a block of the cipher.
    let long = [0, 3, 12, 40, 100, 150, 140, 200, 240][n % 9];
    format!("{n}-{}", "n".repeat(long))
}

/// Creates the files, with the key.
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

/// Names with the numbers of their inodes, of each directory; the target of each symlink, with its
/// size.
type Listing = BTreeMap<u64, BTreeSet<(Vec<u8>, u64)>>;

fn by_kernel(dir: &Path, out: &mut Listing) {
    let ino = dir.metadata().expect("metadata").ino();
    out.entry(ino).or_default();
    for entry in std::fs::read_dir(dir).expect("read_dir") {
        let entry = entry.expect("entry");
        out.entry(ino).or_default().insert((entry.file_name().as_bytes().to_vec(), entry.ino()));
        let (ftype, path) = (entry.file_type().expect("type"), entry.path());
        if ftype.is_dir() {
            by_kernel(&path, out);
        } else if ftype.is_symlink() {
            let target = std::fs::read_link(&path).expect("readlink").into_os_string().into_vec();
            out.entry(entry.ino())
                .or_default()
                .insert((target, path.symlink_metadata().expect("lstat").len()));
        }
    }
}

fn by_extant(fs: &Fs, dir: &Node, out: &mut Listing) {
    out.entry(dir.ino()).or_default();
    for entry in
        fs.read_dir(dir).expect("readdir").into_iter().filter(|e| e.name != b"." && e.name != b"..")
    {
        let node = fs.lookup(dir, &entry.name).expect("listed names are found");
        assert_eq!(node.ino(), entry.ino);
        out.entry(dir.ino()).or_default().insert((entry.name, entry.ino));
        match node.file_type() {
            FileType::Directory => by_extant(fs, &node, out),
            FileType::Symlink => {
                out.entry(node.ino())
                    .or_default()
                    .insert((fs.read_link(&node).expect("a target"), node.attr().size));
            }
            _ => {}
        }
    }
}

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &OpenOptions::new()).expect("the image opens")
}

fn no_key<T: std::fmt::Debug>(result: extant_engine::Result<T>) {
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
    // The last one has directories of many blocks and no index, made before there were any.
    for (args, features) in
        KINDS.map(|args| (args, "")).into_iter().chain([(KINDS[1], "dir_index")])
    {
        let image = encrypted(args);
        if !features.is_empty() {
            run("tune2fs", &["-O".as_ref(), features.as_ref(), image.path().as_os_str()])
                .must_succeed();
        }
        let mut kernel = Listing::new();
        let mount = Mount::new(image.path(), "ro");
        by_kernel(&mount.join("."), &mut kernel);
        mount.unmount();
        let fs = open(&image);
        let mut own = Listing::new();
        by_extant(&fs, &fs.root().expect("root"), &mut own);
        assert_eq!(own, kernel, "{args:?} {features}");
        let targets = own.values().flatten().filter(|(shown, len)| shown.len() as u64 == *len);
        assert!(targets.count() >= 2, "targets are as long as is said");
        assert!(own.values().map(BTreeSet::len).sum::<usize>() > 260);
        fs.unmount().expect("unmount");
        image.assert_clean();
    }
}

#[test]
fn content_is_refused_and_nothing_is_made() {
    let image = encrypted(KINDS[0]);
    let fs = open(&image);
    let root = fs.root().expect("root");
    let many = fs.lookup(&root, b"many").expect("many");
    let entries = fs.read_dir(&many).expect("readdir");
    let of = |kind| {
        entries.iter().find(|e| e.ftype == kind && e.name.len() > 2).expect("an entry").name.clone()
    };
    let (file, link) = (of(FileType::Regular), of(FileType::Symlink));
    let node = fs.lookup(&many, &file).expect("file");
    no_key(fs.open_file(&node, OpenFlags::default()));
    no_key(fs.read_direct(&node, 0, &mut [0; 10]));
    no_key(fs.check_open(&node, OpenFlags { write: true, ..OpenFlags::default() }));
    no_key(fs.write_direct(&node, 0, b"plain", false));
    no_key(fs.write_kept(&node, 0, b"plain", false));
    no_key(fs.allocate(&node, Falloc::KeepSize, 0, 1 << 16));
    no_key(fs.allocate(&node, Falloc::Punch, 0, 1 << 16));
    no_key(fs.set_attr(&node, &SetAttr { size: Some(0), ..SetAttr::default() }));
    let path = [b"/many/", link.as_slice()].concat();
    assert!(fs.resolve(&path, Follow::Yes).expect_err("an encrypted target").is(Errno::NoEnt));
    assert!(fs.resolve(&path, Follow::No).is_ok());
    no_key(fs.create(&many, b"new", 0o644, NodeKind::File));
    no_key(fs.create_nameless(&Caller::default(), &many, 0o644));
    no_key(fs.link(&node, &many, b"another"));
    no_key(fs.rename((&many, &file), (&root, b"out"), RenameFlags::empty()));
    let plain = fs.create(&root, b"plain", 0o644, NodeKind::File).expect("outside");
    no_key(fs.rename((&root, b"plain"), (&many, b"in"), RenameFlags::empty()));
    assert_eq!(fs.lookup(&root, b"plain").expect("still there").ino(), plain.ino());
    fs.rename((&root, b"many"), (&root, b"moved"), RenameFlags::empty()).expect("the whole of it");
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
                FileType::Regular | FileType::Symlink => {
                    fs.unlink(&many, &entry.name).expect("unlink")
                }
                _ if entry.name.len() > 2 => {
                    let sub = fs.lookup(&many, &entry.name).expect("sub");
                    assert!(
                        fs.rmdir(&many, &entry.name).expect_err("not empty").is(Errno::NotEmpty)
                    );
                    for inner in
                        fs.read_dir(&sub).expect("readdir").iter().filter(|e| e.name.len() > 2)
                    {
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
        let found = std::fs::read_dir(mount.join("many"))
            .expect("read_dir")
            .map(|entry| entry.expect("entry"));
        let mut inos = BTreeSet::new();
        for entry in found {
            inos.insert(entry.ino());
            assert_eq!(std::fs::read(entry.path()).expect("with the key it is read"), b"secret");
        }
        assert_eq!(inos, left);
        mount.unmount();
    }
}

/// Names by their inodes.
type Names = BTreeMap<u64, Vec<u8>>;

/// Stored hashes of names, by the inodes of the names.
type Hashes = BTreeMap<u64, [u8; 8]>;

/// Returns the hash that is stored behind the `n`th name.
fn hash_of(n: usize) -> [u8; 8] {
    std::array::from_fn(|at| (n * 31 + at * 7) as u8)
}

/// Turns the kernel's encrypted directory `many` into one that also folds case, as a kernel that
/// supports both would have made it. The hash of its folded form follows each name; without the key
/// that is an arbitrary number. Returns the hashes of the names.
fn fold(image: &Image) -> Hashes {
    let dir = debugfs::stat(image.path(), "many").ino;
    let blocks = debugfs::read(image.path(), "blocks many");
    let blocks: Vec<u64> = blocks.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let mut bytes = image.bytes();
    let geo = Geometry::new(&atlas::superblock(&bytes)).expect("geometry");
    let (format, size) = (DirFormat::new(&geo), geo.block_size as usize);
    let mut hashes = BTreeMap::new();
    for block in blocks {
        let area = &mut bytes[block as usize * size..][..size];
        let old = area.to_vec();
        let kept: Vec<_> = entries(&old, &format)
            .map(|entry| entry.expect("an entry"))
            .filter(DirEntry::is_used)
            .collect();
        area.fill(0);
        let mut at = 0;
        for (n, entry) in kept.iter().enumerate() {
            let own = entry_len(entry.name.len());
            let len = if entry.is_dot_or_dot_dot() { own } else { own + 8 };
            let rec_len = if n + 1 == kept.len() { size - at } else { len };
            let DirEntry { ino, file_type, name, .. } = *entry;
            put_entry(area, &format, at, rec_len, NewEntry { ino, file_type, name });
            if !entry.is_dot_or_dot_dot() {
                let hash = hash_of(hashes.len());
                area[at + own..at + own + 8].copy_from_slice(&hash);
                hashes.insert(u64::from(entry.ino.0), hash);
            }
            at += rec_len;
        }
    }
    let atlas = Atlas::of(&bytes);
    atlas.change_inode(&mut bytes, dir, |inode| inode.flags.insert(InodeFlags::CASEFOLD));
    atlas::change_superblock(&mut bytes, |sb| {
        let mut features = sb.features();
        features.incompat.insert(Incompat::CASEFOLD);
        sb.set_features(features);
    });
    std::fs::write(image.path(), &bytes).expect("an image");
    hashes
}

/// The image, the kernel's names of `many` by inode before it folded, and the hashes that are kept
/// with them.
fn folding(block: &str) -> (Image, Names, Hashes) {
    let features = "encrypt,casefold,^dir_index,^metadata_csum";
    let image = Image::mke2fs(
        32 << 20,
        &["-t", "ext4", "-b", block, "-O", features, "-E", "encoding=utf8-12.1"],
    );
    let mut bytes = image.bytes();
    atlas::change_superblock(&mut bytes, |sb| {
        let mut features = sb.features();
        features.incompat.remove(Incompat::CASEFOLD);
        sb.set_features(features);
    });
    std::fs::write(image.path(), &bytes).expect("an image");
    let mount = Mount::new(image.path(), WITH_KEY);
    make(&mount.join("."));
    // Space for hashes.
    (0..250)
        .filter(|n| n % 2 == 1)
        .for_each(|n| std::fs::remove_file(mount.join("many").join(name(n))).expect("unlink"));
    mount.unmount();
    let mount = Mount::new(image.path(), "ro");
    let names =
        std::fs::read_dir(mount.join("many")).expect("read_dir").map(|entry| entry.expect("entry"));
    let names = names.map(|entry| (entry.ino(), entry.file_name().as_bytes().to_vec())).collect();
    mount.unmount();
    let hashes = fold(&image);
    image.assert_clean();
    (image, names, hashes)
}

fn listed(fs: &Fs) -> (Node, Names) {
    let many = fs.resolve("/many", Follow::No).expect("many");
    let entries = fs
        .read_dir(&many)
        .expect("readdir")
        .into_iter()
        .filter(|e| e.name != b"." && e.name != b"..");
    let entries = entries.map(|e| (e.ino, e.name)).collect();
    (many, entries)
}

#[test]
fn names_that_fold_show_the_hash_that_is_kept_with_them() {
    for (block, indexed) in [("4096", false), ("1024", false), ("1024", true)] {
        let (image, mut names, hashes) = folding(block);
        for (ino, name) in &mut names {
            // The kernel shows a hash of zeros where there is no index and none is kept; the rest
            // is as before.
            let mut shown = URL_SAFE_NO_PAD.decode(&*name).expect("base64url");
            assert_eq!(shown[..8], [0; 8]);
            shown[..8].copy_from_slice(&hashes[ino]);
            *name = URL_SAFE_NO_PAD.encode(shown).into_bytes();
        }
        if indexed {
            let mut bytes = image.bytes();
            atlas::change_superblock(&mut bytes, |sb| {
                let mut features = sb.features();
                features.compat.insert(Compat::DIR_INDEX);
                sb.set_features(features);
            });
            std::fs::write(image.path(), &bytes).expect("an image");
            extant_testkit::tool::run("e2fsck", &[OsStr::new("-fyD"), image.path().as_os_str()]);
            image.assert_clean();
            assert!(
                debugfs::stat(image.path(), "many").flags & InodeFlags::INDEX.bits() != 0,
                "an index"
            );
        }
        let fs = open(&image);
        let (many, own) = listed(&fs);
        assert_eq!(own, names, "{block}, index: {indexed}");
        assert!(own.len() > 100);
        no_key(fs.create(&many, b"new", 0o644, NodeKind::File));
        for (n, (ino, name)) in names.iter().enumerate() {
            let node = fs.lookup(&many, name).expect("listed names are found");
            assert_eq!(node.ino(), *ino);
            if n % 3 > 0 && node.file_type() != FileType::Directory {
                drop(node);
                fs.unlink(&many, name).expect("unlink");
                assert!(fs.lookup(&many, name).expect_err("gone").is(Errno::NoEnt));
            }
        }
        let left = listed(&fs).1;
        assert!(left.len() < names.len() / 2 && left.iter().all(|(ino, name)| names[ino] == *name));
        drop(many);
        fs.unmount().expect("unmount");
        image.assert_clean();
    }
}

/// The hash in a shown name is not compared, so an entry has many shown names. None of them exists
/// after the removal of the entry, even if its inode has other names.
#[test]
fn removal_of_a_name_removes_all_its_spellings() {
    for args in KINDS {
        let image = encrypted(args);
        let mount = Mount::new(image.path(), WITH_KEY);
        for n in 0..250 {
            let link = mount.join("many").join(format!("hard link {n}"));
            std::fs::hard_link(mount.join("many").join(name(n)), link).expect("a hard link");
        }
        mount.unmount();
        let fs = open(&image);
        let many = fs.resolve("/many", Follow::No).expect("many");
        let names = fs
            .read_dir(&many)
            .expect("readdir")
            .into_iter()
            .filter(|e| e.ftype == FileType::Regular);
        for (n, entry) in names.take(20).enumerate() {
            let mut bytes = URL_SAFE_NO_PAD.decode(&entry.name).expect("base64url");
            bytes[2] ^= 0xFF;
            let alias = URL_SAFE_NO_PAD.encode(bytes).into_bytes();
            let found = fs.lookup(&many, &alias).map(|node| node.ino());
            assert_eq!(found.ok(), Some(entry.ino), "both spellings lead to the entry");
            assert_eq!(fs.lookup(&many, &entry.name).expect("found").ino(), entry.ino);
            let (gone, other) =
                if n % 2 == 0 { (&entry.name, &alias) } else { (&alias, &entry.name) };
            fs.unlink(&many, gone).expect("unlink");
            assert!(fs.lookup(&many, gone).expect_err("gone").is(Errno::NoEnt));
            assert!(fs.lookup(&many, other).expect_err("no spelling is left").is(Errno::NoEnt));
            assert!(
                fs.stat([b"/many/".as_slice(), other].concat(), Follow::No)
                    .expect_err("gone")
                    .is(Errno::NoEnt)
            );
            assert!(fs.unlink(&many, other).expect_err("gone").is(Errno::NoEnt));
        }
        drop(many);
        fs.unmount().expect("unmount");
        image.assert_clean();
    }
}
