//! Charges while the device fails.

use crate::{Caller, Fs, NodeKind, OpenFlags, OpenOptions};
use extant_blocks::{Fault, FaultDevice, Op};
use extant_format::quota::QuotaKind;
use extant_testkit::Memory;
use extant_testkit::image::Image;
use std::sync::Arc;

/// The owners of a file are in memory, but the blocks with their records have left the cache when a
/// step charges them.
#[test]
fn a_record_that_cannot_be_read_costs_the_counting_only() {
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-b", "4096", "-O", "quota"]);
    let device = Arc::new(FaultDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new().seed(1)).unwrap();
    let caller = Caller { uid: 5, gid: 6, ..Caller::default() };
    let root = fs.root().unwrap();
    let node = fs.create_as(&caller, (&root, b"file"), 0o644, NodeKind::File).unwrap();
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
    file.write_at(0, &[1; 9000]).unwrap();
    fs.sync().unwrap();
    let st = fs.operations().st();
    st.journal.checkpoint_all().unwrap();
    file.write_at(20_000, &[2; 9000]).unwrap();
    st.cache.shrink(0);
    let blocks = st.quota.sound(QuotaKind::User).unwrap().blocks.read().clone();
    for nr in blocks {
        device.inject(Fault::new(Op::Read, 0).from_then_on().within(nr * 4096..(nr + 1) * 4096));
    }
    file.sync().unwrap();
    assert!(!fs.is_read_only(), "changes go on");
    assert!(st.quota.sound(QuotaKind::User).is_none(), "the file is given up");
    assert_eq!(fs.quota(QuotaKind::Group, 6).unwrap().inodes, 1);
    device.heal();
    drop((file, node, root));
    fs.unmount().unwrap();
    device.inner().leave_unjudged("a given up quota file has old counts");
    let image = Image::holding(&device.inner().to_vec());
    extant_testkit::e2fsck::repair(image.path());
    image.assert_clean();
}
