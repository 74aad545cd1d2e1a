//! A frozen file system is clean on its device; after the thaw it goes on.

use extant::{Caller, Follow, Fs, New, OpenFlags, OpenOptions};
use extant_testkit::image::FeatureSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn write(fs: &Fs, name: &str) {
    let root = fs.root().expect("root");
    let node = fs.create(&Caller::default(), &root, name.as_bytes(), 0o644, New::File).expect("create");
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    file.write_at(0, &[5; 9000]).expect("write");
}

#[test]
fn a_copy_of_a_frozen_file_system_is_clean() {
    let image = FeatureSet::named("orphan_file").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    write(&fs, "before");
    let went_on = AtomicBool::new(false);
    std::thread::scope(|s| {
        let frozen = fs.freeze().expect("freeze");
        s.spawn(|| {
            write(&fs, "during");
            went_on.store(true, Ordering::Release);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!went_on.load(Ordering::Acquire), "a change went through a freeze");
        let copy = image.copy();
        copy.assert_clean();
        let other = Fs::open(copy.path(), &OpenOptions::new().read_only(true)).expect("the copy opens");
        assert!(other.recovery().journal.is_none(), "the copy needs no recovery");
        assert!(other.resolve("/before", Follow::No).is_ok());
        frozen.thaw().expect("thaw");
    });
    assert!(went_on.load(Ordering::Acquire));
    write(&fs, "after");
    fs.sync().expect("sync");
    // After the thaw a crash needs recovery again, and gets it.
    let torn = image.copy();
    fs.crash();
    let fs = Fs::open(torn.path(), &OpenOptions::new()).expect("recovery");
    assert!(fs.resolve("/after", Follow::No).is_ok());
    fs.unmount().expect("unmount");
    torn.assert_clean();
}
