//! The life of a file system in every feature set: made by mke2fs, changed by Extant, checked by
//! e2fsck, read by the kernel, changed by the kernel, read and changed by Extant again.

use extant_engine::{
    Errno, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, RenameFlags, XattrMode,
};
use extant_testkit::image::{FEATURE_SETS, FeatureSet, Image};
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::tree::{Manifest, Plan, Shape};

const ROUNDS: u64 = 3;

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &OpenOptions::new()).expect("the image opens")
}

fn write_file(fs: &Fs, dir: &Node, name: &str, data: &[u8]) -> Node {
    let node = fs.create(dir, name.as_bytes(), 0o644, NodeKind::File).expect(name);
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect(name);
    assert_eq!(file.write_at(0, data).expect(name), data.len());
    node
}

fn read_file(fs: &Fs, path: &str) -> Vec<u8> {
    let node = fs.resolve(path, Follow::Yes).expect(path);
    let file = fs.open_file(&node, OpenFlags::default()).expect(path);
    let mut data = vec![0; file.len() as usize];
    assert_eq!(file.read_at(0, &mut data).expect(path), data.len(), "{path}");
    data
}

/// Bytes that name their round and file.
fn content(round: u64, i: u64) -> Vec<u8> {
    let mut rng = Rng::new(round << 32 | i);
    let len = match i % 5 {
        0 => 0,
        1 => rng.between(1, 60),
        2 => rng.between(61, 3000),
        3 => rng.between(4096, 20_000),
        _ => rng.between(30_000, 300_000),
    };
    rng.bytes(len as usize)
}

/// Makes a directory of files, links and special files; later rounds remove that of the round
/// before.
fn work(fs: &Fs, round: u64) {
    let root = fs.root().expect("root");
    let top = format!("round{round}");
    let dir = fs.create(&root, top.as_bytes(), 0o755, NodeKind::Dir).expect("mkdir");
    for i in 0..60 {
        let node = write_file(fs, &dir, &format!("file{i}"), &content(round, i));
        if i % 7 == 0 {
            fs.set_xattr(&node, b"user.number", i.to_string().as_bytes(), XattrMode::Create)
                .expect("setxattr");
        }
    }
    fs.create(&dir, b"short", 0o777, NodeKind::Symlink(b"file1")).expect("symlink");
    fs.create(&dir, b"long", 0o777, NodeKind::Symlink(&[b'x'; 200])).expect("long symlink");
    let linked = fs.lookup(&dir, b"file3").expect("file3");
    fs.link(&linked, &dir, b"hard").expect("link");
    let sub = fs.create(&dir, b"sub", 0o700, NodeKind::Dir).expect("sub");
    fs.rename((&dir, b"file2"), (&sub, b"moved"), RenameFlags::empty()).expect("rename");
    fs.rename((&dir, b"file6"), (&dir, b"file7"), RenameFlags::empty()).expect("rename over");
    fs.unlink(&dir, b"file8").expect("unlink");
    let busy = fs.rmdir(&root, top.as_bytes()).expect_err("not empty");
    assert!(busy.is(Errno::NotEmpty), "{busy}");
}

/// Removes a round's directory, entry by entry.
fn remove_round(fs: &Fs, round: u64) {
    let root = fs.root().expect("root");
    let name = format!("round{round}");
    let dir = fs.lookup(&root, name.as_bytes()).expect("the round's directory");
    remove_all(fs, &dir);
    fs.rmdir(&root, name.as_bytes()).expect("rmdir");
}

fn remove_all(fs: &Fs, dir: &Node) {
    for entry in fs.read_dir(dir).expect("readdir") {
        let child = fs.lookup(dir, &entry.name).expect("lookup");
        if child.file_type() == extant_engine::FileType::Directory {
            remove_all(fs, &child);
            fs.rmdir(dir, &entry.name).expect("rmdir");
        } else {
            fs.unlink(dir, &entry.name).expect("unlink");
        }
    }
}

fn verify(fs: &Fs, round: u64) {
    for i in (0..60).filter(|i| ![2, 6, 7, 8].contains(i)) {
        assert!(
            read_file(fs, &format!("/round{round}/file{i}")) == content(round, i),
            "round {round}, file {i}"
        );
    }
    assert!(read_file(fs, &format!("/round{round}/sub/moved")) == content(round, 2));
    assert!(read_file(fs, &format!("/round{round}/file7")) == content(round, 6));
    assert!(read_file(fs, &format!("/round{round}/hard")) == content(round, 3));
    let long = fs.resolve(format!("/round{round}/long"), Follow::No).expect("long");
    assert_eq!(fs.read_link(&long).expect("readlink"), [b'x'; 200]);
    let number = fs.resolve(format!("/round{round}/file14"), Follow::Yes).expect("file14");
    assert_eq!(fs.get_xattr(&number, b"user.number").expect("getxattr"), b"14");
}

fn live(set: &FeatureSet) {
    let image = set.make();
    // Multiple mount protection makes each opening wait for seconds.
    let rounds = if set.name == "mmp" { 1 } else { ROUNDS };
    for round in 0..rounds {
        let fs = open(&image);
        if round > 0 {
            verify(&fs, round - 1);
            remove_round(&fs, round - 1);
        }
        work(&fs, round);
        verify(&fs, round);
        fs.unmount().expect("unmount");
        image.assert_clean();
        let fs = open(&image);
        verify(&fs, round);
        fs.unmount().expect("unmount");
        image.assert_clean();
        if set.kernel_mountable {
            by_kernel(&image, round);
        }
    }
}

/// The kernel reads the files that Extant wrote, and writes a tree that Extant reads.
fn by_kernel(image: &Image, round: u64) {
    let plan = Plan::random(round, &Shape::small());
    let mount = Mount::new(image.path(), "rw");
    for i in (0..60).filter(|i| ![2, 6, 7, 8].contains(i)) {
        let path = mount.join(format!("round{round}/file{i}"));
        assert!(
            std::fs::read(&path).expect("the kernel reads") == content(round, i),
            "round {round}, file {i}"
        );
    }
    let dir = mount.join(format!("kernel{round}"));
    std::fs::create_dir(&dir).expect("mkdir");
    plan.apply(&dir);
    let _ = Manifest::walk(&dir);
    mount.unmount();
    image.assert_clean();
}

macro_rules! lives {
    ($($name:ident = $set:literal;)*) => {
        $(#[test]
        fn $name() {
            live(FeatureSet::named($set));
        })*
        #[test]
        fn no_feature_set_is_forgotten() {
            let done = [$($set),*];
            for set in FEATURE_SETS {
                assert!(done.contains(&set.name), "{} is not lived through", set.name);
            }
        }
    };
}

lives! {
    default = "default";
    orphan_file = "orphan_file";
    blocks_1k = "1k";
    blocks_2k = "2k";
    blocks_64k = "64k";
    ext2 = "ext2";
    ext2_1k = "ext2_1k";
    ext3 = "ext3";
    ext3_1k = "ext3_1k";
    no_journal = "no_journal";
    bigalloc = "bigalloc";
    bigalloc_1k = "bigalloc_1k";
    inline_data = "inline_data";
    meta_bg = "meta_bg";
    ea_inode = "ea_inode";
    large_dir = "large_dir";
    sparse_super2 = "sparse_super2";
    uninit_bg = "uninit_bg";
    no_csum = "no_csum";
    no_64bit = "no_64bit";
    inode_128 = "inode_128";
    inode_1024 = "inode_1024";
    no_flex_bg = "no_flex_bg";
    no_dir_index = "no_dir_index";
    mmp = "mmp";
    fast_commit = "fast_commit";
    quota = "quota";
    quota_1k = "quota_1k";
}

#[test]
fn a_number_used_again_in_one_transaction_has_its_new_inode() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().expect("root");
    for round in 0..40 {
        for i in 0..50 {
            write_file(&fs, &root, &format!("{i}"), format!("{round} {i}").as_bytes());
        }
        if round < 39 {
            (0..50).for_each(|i| fs.unlink(&root, format!("{i}").as_bytes()).expect("unlink"));
        }
    }
    fs.unmount().expect("unmount");
    image.assert_clean();
    let fs = open(&image);
    for i in 0..50 {
        assert_eq!(read_file(&fs, &format!("/{i}")), format!("39 {i}").as_bytes());
    }
    fs.unmount().expect("unmount");
}
