//! Damaged quota files cost the counting only.

use super::{create, is_quota, mix, open, small, writer};
use extant_engine::{Follow, QuotaKind, QuotaLimits};
use extant_testkit::e2fsck;
use extant_testkit::image::Image;
use extant_testkit::rng::Rng;

/// Where the blocks of the user quota file are.
fn quota_blocks(image: &Image) -> Vec<usize> {
    let text = extant_testkit::debugfs::read(image.path(), "blocks <3>");
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_wrong_file_costs_the_counting_only() {
    let made = small();
    let fs = open(&made);
    mix(&fs, 3).steps(100);
    fs.unmount().expect("unmount");
    let (bytes, blocks) = (made.bytes(), quota_blocks(&made));
    assert!(!blocks.is_empty());
    let mut rng = Rng::new(11);
    for round in 0..60 {
        let image = Image::blank(bytes.len() as u64);
        let mut wrong = bytes.clone();
        for _ in 0..=rng.below(if round < 20 { 2 } else { 200 }) {
            let at = *rng.pick(&blocks) * 4096
                + rng.below(if round % 2 == 0 { 4096 } else { 48 }) as usize;
            wrong[at] = match rng.below(3) {
                0 => 0xFF,
                1 => 0,
                _ => rng.below(8) as u8,
            };
        }
        std::fs::write(image.path(), &wrong).expect("write");
        let fs = open(&image);
        mix(&fs, 50 + round).steps(60);
        for kind in QuotaKind::ALL {
            // Values or an error, but neither a panic nor an endless loop.
            let _ = fs.quotas(kind);
        }
        fs.unmount().expect("unmount");
        e2fsck::repair(image.path());
        image.assert_clean();
    }
}

#[test]
fn a_quota_file_without_magic_is_reported_and_not_counted() {
    let image = small();
    let mut bytes = image.bytes();
    bytes[quota_blocks(&image)[0] * 4096] ^= 1;
    std::fs::write(image.path(), &bytes).expect("write");
    let fs = open(&image);
    let error = fs.quota(QuotaKind::User, 0).expect_err("wrong").to_string();
    assert!(error.contains("user quota file"), "{error}");
    assert!(fs.superblock().state().contains(extant_engine::format::State::ERROR));
    let root = fs.root().expect("root");
    create(&fs, 4, &root, "f").expect("create");
    assert_eq!(fs.quota(QuotaKind::Group, 104).expect("sound").inodes, 1);
    assert!(fs.node(3).is_err() && fs.resolve("/f", Follow::No).is_ok());
    fs.unmount().expect("unmount");
    assert!(!e2fsck::check(image.path()).is_clean());
    e2fsck::repair(image.path());
    image.assert_clean();
}

/// Files of an owner without a record in the quota file are not counted; other owners are.
#[test]
fn an_owner_without_a_record_costs_its_own_counting() {
    let image = small();
    let fs = open(&image);
    let root = fs.root().expect("root");
    let lost = create(&fs, 0, &root, "lost").expect("create");
    writer(&fs, &lost, true).write_at(0, &[1; 9000]).expect("write");
    create(&fs, 5, &root, "f").expect("create");
    drop((lost, root));
    fs.unmount().expect("unmount");
    extant_testkit::debugfs::write(image.path(), "sif lost uid 123");
    let fs = open(&image);
    fs.set_quota(QuotaKind::User, 5, QuotaLimits { inode_hard: 3, ..Default::default() })
        .expect("limits");
    let root = fs.root().expect("root");
    let lost = fs.lookup(&root, b"lost").expect("lost");
    writer(&fs, &lost, true).write_at(9000, &[1; 9000]).expect("no owner is charged");
    assert!(
        fs.superblock().state().contains(extant_engine::format::State::ERROR),
        "it needs a check"
    );
    drop(lost);
    create(&fs, 123, &root, "another of theirs").expect("create");
    fs.unlink(&root, b"lost").expect("unlink");
    fs.sync().expect("sync");
    // The others are counted and limited as before.
    create(&fs, 5, &root, "g").expect("create");
    create(&fs, 5, &root, "h").expect("create");
    is_quota(create(&fs, 5, &root, "i"));
    assert_eq!(fs.quota(QuotaKind::User, 5).expect("counted").inodes, 3);
    drop(root);
    fs.unmount().expect("unmount");
    e2fsck::repair(image.path());
    image.assert_clean();
    let fs = open(&image);
    assert_eq!(fs.quota(QuotaKind::User, 123).expect("counted anew").inodes, 1);
    assert_eq!(fs.quota(QuotaKind::User, 5).expect("kept").inodes, 3);
    fs.unmount().expect("unmount");
}

/// A new owner needs blocks of the tree, which come from a list that leads nowhere.
#[test]
fn a_wrong_list_of_free_blocks_costs_the_counting_only() {
    let image = small();
    let (mut bytes, blocks) = (image.bytes(), quota_blocks(&image));
    let word = |bytes: &[u8], at: usize| {
        u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
    };
    let header = blocks[0] * 4096;
    let used = word(&bytes, header + 20);
    let free = blocks[used as usize / 4] * 4096 + used as usize % 4 * 1024;
    for (at, value) in [(header + 20, used + 1), (header + 24, used), (free, u32::MAX)] {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    std::fs::write(image.path(), &bytes).expect("write");
    let fs = open(&image);
    let root = fs.root().expect("root");
    create(&fs, 70_000, &root, "f").expect("the owner is not counted");
    assert!(!fs.is_read_only(), "changes go on");
    fs.quota(QuotaKind::User, 0).expect_err("the file is given up");
    assert_eq!(fs.quota(QuotaKind::Group, 70_100).expect("sound").inodes, 1);
    fs.sync().expect("sync");
    drop(root);
    fs.unmount().expect("unmount");
    e2fsck::repair(image.path());
    image.assert_clean();
}
