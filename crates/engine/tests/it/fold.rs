//! Directories that fold case: any spelling leads to the name, the first one stays, and e2fsck
//! hashes as the engine does.

use extant_engine::{Errno, Follow, Fs, Node, NodeKind, OpenOptions, RenameFlags};
use extant_testkit::image::Image;
use std::collections::BTreeSet;

const CASEFOLD: u32 = 0x4000_0000;
const KIND: &[&str] =
    &["-t", "ext4", "-b", "1024", "-O", "casefold,orphan_file", "-E", "encoding=utf8"];
const STRICT: &[&str] =
    &["-t", "ext4", "-O", "casefold", "-E", "encoding=utf8,encoding_flags=strict"];
const INLINE: &[&str] = &["-t", "ext4", "-O", "casefold,inline_data", "-E", "encoding=utf8"];

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &OpenOptions::new()).expect("the image opens")
}

fn make(fs: &Fs, dir: &Node, name: &[u8], what: NodeKind<'_>) -> extant_engine::Result<Node> {
    fs.create(dir, name, 0o755, what)
}

/// A directory in the root that folds.
fn folding(fs: &Fs, name: &str) -> Node {
    let root = fs.root().expect("root");
    let dir = make(fs, &root, name.as_bytes(), NodeKind::Dir).expect(name);
    fs.set_flags(&dir, dir.attr().flags | CASEFOLD).expect("chattr +F");
    dir
}

fn names(fs: &Fs, dir: &Node) -> BTreeSet<Vec<u8>> {
    let entries = fs.read_dir(dir).expect("readdir");
    entries.into_iter().map(|e| e.name).filter(|name| name != b"." && name != b"..").collect()
}

fn is<T: std::fmt::Debug>(result: extant_engine::Result<T>, errno: Errno) {
    let error = result.expect_err("refused");
    assert!(error.is(errno), "{error}");
}

fn life(args: &[&str]) {
    let image = Image::mke2fs(24 << 20, args);
    let fs = open(&image);
    let root = fs.root().expect("root");
    let dir = make(&fs, &root, b"Folder", NodeKind::Dir).expect("mkdir");
    // Negative results from before the change must not be used after it.
    is(fs.lookup(&dir, b"readme"), Errno::NoEnt);
    is(fs.resolve("/Folder/ReadMe", Follow::No), Errno::NoEnt);
    fs.set_flags(&dir, dir.attr().flags | CASEFOLD).expect("chattr +F");
    let file = make(&fs, &dir, "Readme-Größe".as_bytes(), NodeKind::File).expect("create");
    let other = "README-GRO\u{308}SSE";
    for _ in 0..2 {
        assert_eq!(fs.lookup(&dir, other.as_bytes()).expect("another spelling").ino(), file.ino());
        assert_eq!(
            fs.resolve(format!("/Folder/{other}"), Follow::No).expect("its path").ino(),
            file.ino()
        );
    }
    is(make(&fs, &dir, other.as_bytes(), NodeKind::File), Errno::Exist);
    assert_eq!(names(&fs, &dir), BTreeSet::from(["Readme-Größe".as_bytes().to_vec()]));
    is(fs.resolve("/folder", Follow::No), Errno::NoEnt);
    is(fs.set_flags(&dir, dir.attr().flags & !CASEFOLD), Errno::NotEmpty);
    let sub = make(&fs, &dir, b"Sub", NodeKind::Dir).expect("mkdir");
    assert_eq!(sub.attr().flags & CASEFOLD, CASEFOLD, "handed down");
    assert_eq!(file.attr().flags & CASEFOLD, 0);
    fs.link(&file, &sub, b"Link").expect("link");
    fs.rename((&dir, other.as_bytes()), (&sub, b"Moved"), RenameFlags::empty())
        .expect("rename by another spelling");
    is(fs.resolve("/Folder/readme-größe", Follow::No), Errno::NoEnt);
    assert_eq!(fs.resolve("/Folder/SUB/mOVED", Follow::No).expect("moved").ino(), file.ino());
    fs.rename((&sub, b"LINK"), (&sub, b"moved"), RenameFlags::empty())
        .expect("over another name of the same");
    fs.unlink(&sub, b"MOVED").expect("unlink by another spelling");
    is(fs.lookup(&sub, b"Moved"), Errno::NoEnt);
    is(fs.resolve("/Folder/Sub/Moved", Follow::No), Errno::NoEnt);
    fs.unlink(&sub, b"lINK").expect("unlink");
    fs.rmdir(&dir, b"sUB").expect("rmdir");
    is(fs.lookup(&dir, b"Sub"), Errno::NoEnt);
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn any_spelling_leads_to_the_name() {
    life(KIND);
    life(INLINE);
}

fn rename(fs: &Fs, dir: &Node, old: &str, new: &str) -> extant_engine::Result<()> {
    fs.rename((dir, old.as_bytes()), (dir, new.as_bytes()), RenameFlags::empty())
}

/// The name of an inode.
fn spelled(fs: &Fs, dir: &Node, ino: u64) -> Vec<String> {
    let entries = fs.read_dir(dir).expect("readdir").into_iter().filter(|e| e.ino == ino);
    entries.map(|e| String::from_utf8(e.name).expect("text")).collect()
}

/// Also in leaves without gaps, where a longer spelling requires a split.
#[test]
fn a_name_gets_another_spelling() {
    for (args, others) in [(KIND, 0), (INLINE, 0), (INLINE, 30), (KIND, 500)] {
        let image = Image::mke2fs(24 << 20, args);
        let fs = open(&image);
        let dir = folding(&fs, "d");
        let made: Vec<Node> = (0..=others)
            .map(|n| {
                make(&fs, &dir, format!("ßtraße-{n:04}").as_bytes(), NodeKind::File)
                    .expect("create")
            })
            .collect();
        for (n, node) in made.iter().enumerate() {
            let (shown, long) =
                (format!("SSTRASSE-{n:04}"), format!("sS\u{AD}\u{AD}\u{AD}\u{AD}traSSe-{n:04}"));
            rename(&fs, &dir, &format!("SStrasse-{n:04}"), &shown).expect("another spelling");
            assert_eq!(spelled(&fs, &dir, node.ino()), [shown.as_str()]);
            is(
                fs.rename(
                    (&dir, shown.as_bytes()),
                    (&dir, long.as_bytes()),
                    RenameFlags::NOREPLACE,
                ),
                Errno::Exist,
            );
            rename(&fs, &dir, &shown, &long).expect("a longer one");
            rename(&fs, &dir, &long, &long).expect("the same");
            assert_eq!(spelled(&fs, &dir, node.ino()), [long.as_str()]);
            assert_eq!(fs.lookup(&dir, shown.as_bytes()).expect("by any").ino(), node.ino());
        }
        fs.link(&made[0], &dir, b"Link").expect("link");
        rename(&fs, &dir, "link", "SSTRASSE-0000").expect("links of one inode");
        assert_eq!(spelled(&fs, &dir, made[0].ino()).len(), 2, "both stay");
        fs.unmount().expect("unmount");
        image.assert_clean();
    }
}

#[test]
fn names_that_are_no_text_are_themselves_or_refused() {
    let raw = b"A\xFFB";
    let image = Image::mke2fs(16 << 20, KIND);
    let fs = open(&image);
    let dir = folding(&fs, "d");
    make(&fs, &dir, raw, NodeKind::File).expect("create");
    assert!(fs.lookup(&dir, raw).is_ok());
    is(fs.lookup(&dir, b"a\xFFb"), Errno::NoEnt);
    make(&fs, &dir, b"a\xFFb", NodeKind::File).expect("another name");
    fs.unmount().expect("unmount");
    image.assert_clean();
    let image = Image::mke2fs(16 << 20, STRICT);
    let fs = open(&image);
    let dir = folding(&fs, "d");
    is(make(&fs, &dir, raw, NodeKind::File), Errno::Inval);
    make(&fs, &fs.root().expect("root"), raw, NodeKind::File).expect("where names are not folded");
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// Each code point of the planes that are not empty, in one of some thousand names. e2fsck reports
/// a name with a wrong hash, since it lies in the wrong one of some hundred leaves, and two names
/// that it takes for one.
#[test]
fn hashes_are_those_of_e2fsck() {
    // A name has 255 bytes.
    const MOST: usize = 240;
    let image = Image::mke2fs(48 << 20, KIND);
    let fs = open(&image);
    let dir = folding(&fs, "d");
    let mut made: Vec<String> = Vec::new();
    let mut name = String::new();
    // Beyond the assigned code points: private use, and a sample of unassigned ones.
    let planes = (0x80..0x3_0000)
        .chain((0x3_0000..0xE_0000).step_by(997))
        .chain(0xE_0000..0xE_1100)
        .chain([0x10_FFFD]);
    for c in planes.filter_map(char::from_u32) {
        name.push(c);
        if name.len() >= MOST {
            made.push(std::mem::take(&mut name));
        }
    }
    // By themselves, among letters and marks.
    let dense = (0xA0..0x600)
        .chain(0x1C80..0x2200)
        .chain(0x2C00..0x2E00)
        .chain(0xA640..0xA800)
        .chain(0xAB30..0xAC10);
    for (n, c) in dense.filter_map(char::from_u32).enumerate() {
        made.push(match n % 3 {
            0 => format!("N{n}{c}"),
            1 => format!("{c}\u{323}\u{301}{n}"),
            _ => format!("{c}{c}É{n}"),
        });
    }
    for (n, name) in made.iter_mut().enumerate() {
        // Some names consist of ignored code points only, and would be equal.
        name.push_str(&n.to_string());
        make(&fs, &dir, name.as_bytes(), NodeKind::Fifo).expect(name);
    }
    for name in made.iter().step_by(7) {
        assert!(fs.lookup(&dir, name.as_bytes()).is_ok(), "{name}");
    }
    fs.unmount().expect("unmount");
    image.assert_clean();
    let fs = open(&image);
    let dir = fs.resolve("/d", Follow::No).expect("d");
    for (n, name) in made.iter().enumerate().filter(|(n, _)| n % 2 == 0) {
        let spelled = if n % 4 == 0 { name.to_lowercase() } else { name.clone() };
        // Code points that Unicode 12.1 does not assign have no case.
        let node =
            fs.lookup(&dir, spelled.as_bytes()).or_else(|_| fs.lookup(&dir, name.as_bytes()));
        assert!(node.is_ok(), "{name}");
        fs.unlink(&dir, name.as_bytes()).expect(name);
    }
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn images_of_our_own_fold() {
    let image = Image::blank(16 << 20);
    let mut options = extant_engine::mkfs::Options::default();
    options.apply_features("casefold").expect("features");
    options.apply_extended("encoding=utf8,encoding_flags=strict").expect("extended");
    let device = OpenOptions::new().device(image.path()).expect("device");
    extant_engine::mkfs::make(&*device, &options).expect("mkfs");
    drop(device);
    image.assert_clean();
    let fs = open(&image);
    make(&fs, &folding(&fs, "d"), b"Name", NodeKind::File).expect("create");
    assert!(fs.resolve("/d/nAME", Follow::No).is_ok());
    fs.unmount().expect("unmount");
    image.assert_clean();
    let without = Image::mke2fs(16 << 20, &["-t", "ext4"]);
    let fs = open(&without);
    let dir = make(&fs, &fs.root().expect("root"), b"d", NodeKind::Dir).expect("mkdir");
    is(fs.set_flags(&dir, dir.attr().flags | CASEFOLD), Errno::OpNotSupp);
}
