//! Failing devices: an error of writeback is told once to every open file, and nothing else is lost.

use super::model::read_all;
use extant::{Caller, Fs, New, OpenFlags, OpenOptions};
use extant_blocks::{Fault, FaultDevice, MemDevice, Op};
use extant_testkit::FeatureSet;
use std::sync::Arc;

#[test]
fn an_error_of_writeback_is_told_once_to_each() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let device = Arc::new(FaultDevice::new(MemDevice::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let root = fs.root().unwrap();
    let node = fs.create(&Caller::default(), &root, b"f", 0o644, New::File).unwrap();
    let open = || fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
    let (a, b) = (open(), open());
    a.write_at(0, &[1; 40_960]).unwrap();
    a.sync().unwrap();
    let mut bad = 0..0;
    a.extents(0, 4096, |e| {
        bad = e.physical + 8192..e.physical + 12288;
        true
    })
    .unwrap();

    a.write_at(0, &[2; 40_960]).unwrap();
    device.inject(Fault::new(Op::Write, 0).from_then_on().within(bad));
    assert_eq!(a.sync().unwrap_err().errno(), 5);
    device.heal();
    a.sync().unwrap();
    assert_eq!(b.sync().unwrap_err().errno(), 5);
    b.sync().unwrap();
    open().sync().unwrap();

    // Only the page that could not be written is lost: what the device has is read.
    let content = read_all(&a);
    assert!(content[..8192].iter().chain(&content[12288..]).all(|byte| *byte == 2));
    assert!(content[8192..12288].iter().all(|byte| *byte == 1));
    drop((a, b));
    fs.unmount().unwrap();
}

#[test]
fn a_failed_direct_write_maps_nothing() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let device = Arc::new(FaultDevice::new(MemDevice::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    let root = fs.root().unwrap();
    let node = fs.create(&Caller::default(), &root, b"f", 0o644, New::File).unwrap();
    fs.sync().unwrap();
    device.inject(Fault::new(Op::Write, 0));
    assert!(fs.write_direct(&node, 0, &[1; 10_000], false).is_err());
    device.heal();
    assert_eq!(node.attr().size, 0);
    assert_eq!(node.attr().blocks, 0);
    fs.close_hint(&node);
    let free = fs.usage().free;
    assert_eq!(fs.write_direct(&node, 0, &[1; 10_000], false).unwrap(), 10_000);
    fs.close_hint(&node);
    assert_eq!(fs.usage().free, free - 3);
    fs.unmount().unwrap();
}
