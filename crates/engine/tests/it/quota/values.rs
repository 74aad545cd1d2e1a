//! Attribute values in attribute inodes: each owner is charged for them.

use super::{block_limits, create, is_quota, open};
use extant_engine::{Errno, QuotaKind, QuotaLimits, XattrMode};
use extant_testkit::e2fsck;
use extant_testkit::image::Image;

/// A value in an inode of its own costs its owner an inode, within its limits.
#[test]
fn inodes_of_values_are_limited() {
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-b", "1024", "-O", "quota,ea_inode"]);
    let fs = open(&image);
    let root = fs.root().expect("root");
    let node = create(&fs, 7, &root, "file").expect("create");
    fs.set_quota(QuotaKind::User, 7, QuotaLimits { inode_hard: 3, ..Default::default() })
        .expect("limits");
    let set = |name: &str, byte: u8, len: usize| {
        fs.set_xattr(&node, name.as_bytes(), &vec![byte; len], XattrMode::Any)
    };
    let used = || fs.quota(QuotaKind::User, 7).expect("quota").inodes;
    set("user.a", 1, 3000).expect("the second inode");
    set("user.b", 2, 3000).expect("the third one");
    is_quota(set("user.c", 3, 3000));
    assert_eq!(used(), 3);
    assert!(fs.get_xattr(&node, b"user.c").expect_err("not set").is(Errno::NoData));
    // One value replaces another, and values within the inode or its block cost no inode.
    set("user.a", 4, 3500).expect("instead of the old one");
    set("user.c", 3, 10).expect("a short one");
    assert_eq!(used(), 3);
    set("user.a", 4, 10).expect("a short one instead");
    assert_eq!(used(), 2);
    set("user.d", 4, 3000).expect("there is room again");
    is_quota(set("user.a", 4, 3000));
    assert_eq!(fs.get_xattr(&node, b"user.a").expect("the old value"), [4; 10]);
    // And space.
    let used = fs.quota(QuotaKind::User, 7).expect("quota").space >> 10;
    fs.set_quota(QuotaKind::User, 7, block_limits(used + 2, 0)).expect("limits");
    is_quota(set("user.a", 4, 3000));
    set("user.a", 4, 2000).expect("two blocks");
    drop((node, root));
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// Two files of the kernel's that share an attribute block with values in inodes: each owner pays
/// for the values, and gets it back with its file.
#[test]
fn owners_of_shared_values_are_repaid() {
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-b", "1024", "-O", "ea_inode"]);
    let mount = extant_testkit::kernel::Mount::new(image.path(), "");
    for name in ["a", "b"] {
        let file = std::fs::File::create(mount.join(name)).expect("create");
        for attribute in ["user.one", "user.two"] {
            rustix::fs::fsetxattr(&file, attribute, &[5; 5000], rustix::fs::XattrFlags::empty())
                .expect("a value");
        }
        std::os::unix::fs::fchown(&file, Some(7), Some(7)).expect("chown");
    }
    mount.unmount();
    extant_testkit::tool::run(
        "tune2fs",
        &["-O".as_ref(), "quota".as_ref(), image.path().as_os_str()],
    )
    .must_succeed();
    // tune2fs counts no values.
    e2fsck::repair(image.path());
    let fs = open(&image);
    let before = fs.quota(QuotaKind::User, 7).expect("quota").inodes;
    assert!(before >= 4, "{before}");
    fs.unlink(&fs.root().expect("root"), b"a").expect("unlink");
    fs.sync().expect("sync");
    fs.unmount().expect("unmount");
    image.assert_clean();
}
