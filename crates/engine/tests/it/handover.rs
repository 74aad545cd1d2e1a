//! File systems that one process hands over to the next one, with inodes that clients hold.

use extant_engine::{Fs, HeldInodes, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::FeatureSet;
use std::sync::Arc;

const ORPHANS: u64 = 30;

fn writing() -> OpenFlags {
    OpenFlags { write: true, ..OpenFlags::default() }
}

/// Several handovers follow each other; at last all holds are released.
#[test]
fn held_inodes_without_names_survive_handovers() {
    // Records in slots of the orphan file, and in the legacy list.
    for set in ["default", "orphan_file"] {
        let image = FeatureSet::named(set).make();
        let mut fs = Fs::open(image.path(), &OpenOptions::new()).expect("an image");
        let root = fs.root().expect("root");
        let free = fs.usage().inodes_free;
        let mut numbers = Vec::new();
        for i in 0..ORPHANS {
            let name = format!("file {i}");
            let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).expect("a file");
            node.hold(1 + i % 3).expect("a hold");
            let file = fs.open_file(&node, writing()).expect("open");
            file.write_at(0, &vec![i as u8; 10_000]).expect("a write");
            numbers.push(node.ino());
            // Every third one keeps its name.
            if i % 3 != 0 {
                fs.unlink(&root, name.as_bytes()).expect("an unlink");
            }
        }
        drop(root);
        for round in 0..3 {
            fs.prepare_hand_over().expect("a sync");
            let held = fs.hand_over().expect("the end of the first");
            assert_eq!(held.holds.len(), numbers.len());
            fs = Fs::open(image.path(), &OpenOptions::new().adopt(Arc::new(held))).expect("again");
            let orphans = fs.recovery().orphans;
            assert_eq!((orphans.adopted, orphans.freed), (ORPHANS / 3 * 2, 0), "{round}");
            for (i, ino) in numbers.iter().enumerate() {
                let node = fs.operations().node(*ino).expect("it is held");
                let file = fs.open_file(&node, writing()).expect("open");
                let mut content = [0; 10_001];
                assert_eq!(file.read_at(0, &mut content).expect("a read"), 10_000);
                assert!(content[..9_999].iter().all(|byte| usize::from(*byte) == i));
                file.write_at(9_999, &[round]).expect("a write");
            }
        }
        for (i, ino) in numbers.iter().enumerate() {
            fs.operations().forget(*ino, i as u64 % 3).expect("it is held");
            assert!(fs.operations().node(*ino).is_ok());
            fs.operations().forget(*ino, 1).expect("it is held");
        }
        fs.sync().expect("a sync");
        let gone = |(i, ino): (usize, &u64)| i % 3 == 0 || fs.operations().node(*ino).is_err();
        assert!(numbers.iter().enumerate().all(gone), "they have no holders");
        assert_eq!(fs.usage().inodes_free, free - ORPHANS / 3);
        fs.unmount().expect("the end");
        image.assert_clean();
    }
}

#[test]
fn orphans_that_no_opening_adopts_are_freed() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("an image");
    let root = fs.root().expect("root");
    let node = fs.create(&root, b"file", 0o644, NodeKind::File).expect("a file");
    node.hold(1).expect("a hold");
    fs.unlink(&root, b"file").expect("an unlink");
    drop((root, node));
    drop(fs.hand_over().expect("the end of the first"));
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("an image");
    assert_eq!(fs.recovery().orphans.freed, 1);
    fs.unmount().expect("the end");
    image.assert_clean();
}

#[test]
fn an_image_that_another_program_changed_is_not_adopted() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("an image");
    let held = Arc::new(fs.hand_over().expect("the end of the first"));
    let adopting = OpenOptions::new().adopt(held);
    // Readers change nothing.
    let reader = Fs::open(image.path(), &OpenOptions::new().read_only(true)).expect("a reader");
    reader.unmount().expect("the end");
    let fs = Fs::open(image.path(), &adopting).expect("it is unchanged");
    drop(fs.hand_over().expect("the end of the second"));
    let refused = Fs::open(image.path(), &adopting).expect_err("an older table");
    assert!(refused.to_string().contains("another program has changed"), "{refused}");
    image.assert_clean();
}

/// The process that adopts is killed, or fails, before it serves.
#[test]
fn inodes_are_adopted_again_after_a_process_that_failed() {
    let image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("an image");
    let root = fs.root().expect("root");
    let node = fs.create(&root, b"file", 0o644, NodeKind::File).expect("a file");
    node.hold(1).expect("a hold");
    fs.unlink(&root, b"file").expect("an unlink");
    let ino = node.ino();
    drop((root, node));
    let held = fs.hand_over().expect("the end of the first");
    let open = |held| Fs::open(image.path(), &OpenOptions::new().adopt(Arc::new(held)));
    open(held.clone()).expect("the second").crash();
    let tried = HeldInodes { tried: true, ..held };
    open(tried.clone()).expect("the third").hand_over().expect("it fails in order");
    let fs = open(tried.clone()).expect("the fourth");
    assert_eq!(fs.operations().node(ino).expect("it is held").attr().nlink, 0);
    fs.operations().forget(ino, 1).expect("it is held");
    fs.unmount().expect("the end");
    Fs::open(image.path(), &OpenOptions::new()).expect("another").unmount().expect("the end");
    assert!(open(tried).is_err(), "another program has mounted it");
    image.assert_clean();
}
