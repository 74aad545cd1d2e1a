//! Inode numbers: their choice, and the traces of freed inodes.

use extant_engine::{Fs, Node, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::image::FeatureSet;

fn make(fs: &Fs, dir: &Node, name: &str) -> Node {
    fs.create(dir, name.as_bytes(), 0o644, NodeKind::File).expect(name)
}

#[test]
fn files_that_come_and_go_within_a_transaction_leave_nothing() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("the image opens");
    let root = fs.root().expect("root");
    let before = (fs.stats().usage.inodes_free, fs.stats().orphans.added);
    fs.sync().expect("sync");
    let mut numbers = std::collections::BTreeSet::new();
    for _ in 0..3000 {
        let node = make(&fs, &root, "again");
        drop(fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open"));
        numbers.insert(node.ino());
        drop(node);
        fs.unlink(&root, b"again").expect("unlink");
    }
    // A commit that came by itself makes a number rest.
    assert!(numbers.len() < 20, "{numbers:?}");
    let after = fs.stats();
    assert!(after.inodes_cached < 60, "{} inodes in memory", after.inodes_cached);
    assert_eq!((after.usage.inodes_free, after.orphans.added), before);
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn a_freed_number_rests_until_its_slot_says_so() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("the image opens");
    let root = fs.root().expect("root");
    let first = make(&fs, &root, "first").ino();
    fs.sync().expect("sync");
    let tid = fs.stats().journal.commits;
    fs.unlink(&root, b"first").expect("unlink");
    assert!(fs.node(first).is_err(), "its number leads nowhere at once");
    let second = make(&fs, &root, "second").ino();
    if fs.stats().journal.commits == tid {
        assert_ne!(second, first);
    }
    fs.sync().expect("sync");
    assert!(fs.node(first).is_err());
    assert_eq!(make(&fs, &root, "third").ino(), first, "the lowest number of the lot");
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn the_last_numbers_can_be_used_again_and_again() {
    let image = FeatureSet::named("1k").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("the image opens");
    let root = fs.root().expect("root");
    let mut made = 0u32;
    while fs.create(&root, format!("f{made}").as_bytes(), 0o644, NodeKind::File).is_ok() {
        made += 1;
    }
    fs.sync().expect("sync");
    for n in 0..20u32 {
        fs.unlink(&root, format!("f{n}").as_bytes()).expect("unlink");
        make(&fs, &root, &format!("g{n}"));
        assert!(fs.create(&root, b"none", 0o644, NodeKind::File).is_err());
    }
    fs.unmount().expect("unmount");
    image.assert_clean();
}
