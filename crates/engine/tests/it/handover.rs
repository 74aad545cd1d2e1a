//! File systems that one process hands over to the next one, with inodes that clients hold.

use extant_engine::device::{FileOptions, ImageSpec};
use extant_engine::{Error, Fs, HeldInodes, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::FeatureSet;
use extant_testkit::tool::run;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ORPHANS: u64 = 30;

fn writing() -> OpenFlags {
    OpenFlags { write: true, ..OpenFlags::default() }
}

fn hand_over(fs: Fs) -> HeldInodes {
    let (held, closed) = fs.hand_over();
    closed.expect("a clean end");
    held
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
            let held = hand_over(fs);
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
    hand_over(fs);
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("an image");
    assert_eq!(fs.recovery().orphans.freed, 1);
    fs.unmount().expect("the end");
    image.assert_clean();
}

/// The process that adopts fails before it serves: nothing is freed.
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
    let held = Arc::new(hand_over(fs));
    let open = || Fs::open(image.path(), &OpenOptions::new().adopt(held.clone()));
    open().expect("the second").crash();
    hand_over(open().expect("the third"));
    drop(open().expect("the fourth"));
    let fs = open().expect("the fifth");
    assert_eq!(fs.operations().node(ino).expect("it is held").attr().nlink, 0);
    fs.operations().forget(ino, 1).expect("it is held");
    fs.unmount().expect("the end");
    image.assert_clean();
}

/// The first process keeps the device, and shares its file: no other program gets between.
#[test]
fn the_image_stays_locked_between_processes() {
    let image = FeatureSet::named("default").make();
    let spec = ImageSpec::whole(image.path());
    let locked = || {
        let other = Fs::open(image.path(), &OpenOptions::new());
        other.is_err_and(|e| matches!(e, Error::Io(e) if e.kind() == ErrorKind::ResourceBusy))
    };
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("an image");
    let (device, file) = (fs.device().expect("a device"), fs.share_file().expect("a file"));
    let options = OpenOptions::new().adopt(Arc::new(hand_over(fs)));
    assert!(locked());
    // Neither the path nor the name counts.
    std::fs::rename(image.path(), image.scratch().join("moved")).expect("a rename");
    let share = || {
        let file = file.try_clone().expect("a descriptor");
        let shared = FileOptions::from_spec(&spec).open_shared(file).expect("its file");
        Fs::open_device(Arc::new(shared), &options)
    };
    share().expect("the second").unmount().expect("its end");
    Fs::open_device(device.clone(), &options).expect("the first").unmount().expect("its end");
    let fs = share().expect("the second");
    std::fs::rename(image.scratch().join("moved"), image.path()).expect("a rename");
    drop((device, file));
    assert!(locked(), "the second has the lock");
    fs.unmount().expect("its end");
    // Programs that other tests start have the descriptors, too, until they run.
    let end = Instant::now() + Duration::from_secs(20);
    while locked() {
        assert!(Instant::now() < end, "the lock stays");
        std::thread::sleep(Duration::from_millis(10));
    }
    image.assert_clean();
}

#[test]
fn images_that_others_could_claim_are_not_handed_over() {
    let image = FeatureSet::named("default").make();
    run("tune2fs", &["-O".as_ref(), "mmp".as_ref(), image.path().as_os_str()]).must_succeed();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("an image");
    let refused = fs.prepare_hand_over().expect_err("it has MMP");
    assert!(refused.to_string().contains("MMP"), "{refused}");
    fs.unmount().expect("the end");
    image.assert_clean();
}
