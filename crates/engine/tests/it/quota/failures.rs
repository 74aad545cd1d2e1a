//! Promised space after a failure of the device.

use super::{block_limits, create, small, writer};
use extant_blocks::{BlockDevice, Fault, FaultDevice, Op};
use extant_engine::{File, Fs, Node, OpenFlags, OpenOptions, QuotaKind};
use extant_testkit::image::Image;
use std::sync::Arc;
use std::time::Duration;

/// A file system on a device that can fail, in which user 5 may have 1024 KiB.
fn limited(image: &Image) -> (Arc<FaultDevice<Arc<dyn BlockDevice>>>, Fs) {
    let options = OpenOptions::new().commit_interval(Duration::from_secs(1000));
    let device = Arc::new(FaultDevice::new(options.device(image.path()).expect("a device")));
    let fs = Fs::open_device(device.clone(), &options).expect("the image opens");
    fs.set_quota(QuotaKind::User, 5, block_limits(1024, 0)).expect("limits");
    (device, fs)
}

/// A file of that user with 600 KiB in memory, from `start` on.
fn filled(fs: &Fs, start: u64) -> (Node, Node, File) {
    let root = fs.root().expect("root");
    let node = create(fs, 5, &root, "f").expect("create");
    let cached = writer(fs, &node, false);
    cached.write_at(start, &vec![1; 600 << 10]).expect("600 of 1024 KiB");
    (root, node, cached)
}

/// A write that the device refuses gives back its own space only. Pages of the file that wait for
/// writeback keep theirs, or the owner could exceed the limit.
#[test]
fn a_failed_write_keeps_the_promises_of_others() {
    let image = small();
    let (device, fs) = limited(&image);
    let (root, node, cached) = filled(&fs, 4 << 20);
    device.inject(Fault::new(Op::Write, 0).from_then_on());
    let failed = writer(&fs, &node, true).write_at(0, &vec![2; 100 << 10]);
    device.heal();
    assert_eq!(failed.expect_err("the device refuses").errno(), 5);
    let other = create(&fs, 5, &root, "g").expect("create");
    let second = writer(&fs, &other, false);
    let written = second.write_at(0, &vec![3; 900 << 10]).expect("a part");
    assert!((400 << 10..=424 << 10).contains(&written), "{written}");
    [&cached, &second].iter().for_each(|file| file.sync().expect("sync"));
    let used = fs.quota(QuotaKind::User, 5).expect("quota").space;
    assert!(used <= 1024 << 10, "{used}");
    drop((node, other, root, cached, second));
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// Pages that can be written are, one by one, after a write of many fails; the others give back
/// their own space only, and once.
#[test]
fn a_bad_block_keeps_the_promises_of_other_pages() {
    let image = small();
    let (device, fs) = limited(&image);
    let (root, node, cached) = filled(&fs, 0);
    let flags = OpenFlags { direct: true, ..Default::default() };
    let reader = fs.open_file(&node, flags).expect("a reader");
    // The write of all pages fails, and that of a page in the middle.
    [0, 5].into_iter().for_each(|nth| device.inject(Fault::new(Op::Write, nth)));
    let mut bytes = vec![0; 100 << 10];
    assert_eq!(reader.read_at(0, &mut bytes).expect_err("a bad block").errno(), 5);
    assert_eq!(device.failed(), 2);
    device.heal();
    let other = create(&fs, 5, &root, "g").expect("create");
    let second = writer(&fs, &other, false);
    let written = second.write_at(0, &vec![3; 900 << 10]).expect("a part");
    assert!((400 << 10..=428 << 10).contains(&written), "{written}");
    assert!(cached.sync().is_err(), "the lost page is told");
    second.sync().expect("sync");
    let used = fs.quota(QuotaKind::User, 5).expect("quota").space;
    assert!(used <= 1024 << 10, "{used}");
    drop((node, other, root, cached, second, reader));
    fs.unmount().expect("unmount");
    image.assert_clean();
}
