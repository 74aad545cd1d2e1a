//! Findings of structures that are damaged in one place.

use crate::metadata::index_directories;
use crate::oracle::check;
use extant_blocks::MemDevice;
use extant_check::repair::Repair;
use extant_check::{CheckSummary, Finding, FindingCode, PlannedRepair};
use extant_format::{Geometry, GroupDesc, GroupNr, Incompat, Superblock};
use extant_testkit::{FeatureSet, Image, Scratch, debugfs, e2fsck};
use std::ops::Range;
use std::sync::Arc;

fn findings(bytes: &[u8]) -> (Vec<Finding>, CheckSummary) {
    check(bytes, true, 2)
}

fn codes(bytes: &[u8]) -> Vec<FindingCode> {
    findings(bytes).0.iter().map(|finding| finding.code).collect()
}

fn geometry(bytes: &[u8]) -> Geometry {
    Geometry::new(&Superblock::parse_unverified(&bytes[1024..2048]).unwrap()).unwrap()
}

fn e2fsck_complains(bytes: &[u8]) -> bool {
    let image = Image::holding(bytes);
    image.leave_unjudged("it is damaged");
    !e2fsck::check_with(image.path(), &[]).is_clean()
}

/// Returns the bytes of a group's descriptor in the image.
fn descriptor(geo: &Geometry, group: GroupNr) -> Range<usize> {
    let (index, offset) = geo.desc_location(group);
    let start = geo.gdt_block(index).index() * geo.block_size as usize + offset;
    start..start + usize::from(geo.desc_size)
}

/// Changes a descriptor and its checksum.
fn change_descriptor(bytes: &mut [u8], group: GroupNr, change: impl FnOnce(&mut GroupDesc)) {
    let geo = geometry(bytes);
    let raw = &mut bytes[descriptor(&geo, group)];
    let mut desc = GroupDesc::decode(raw, &geo, group).unwrap();
    change(&mut desc);
    desc.encode(raw, &geo, group);
}

fn block_start(bytes: &[u8], block: impl FnOnce(&GroupDesc) -> u64) -> usize {
    let geo = geometry(bytes);
    let desc = GroupDesc::decode_unverified(&bytes[descriptor(&geo, GroupNr(0))], &geo);
    block(&desc) as usize * geo.block_size as usize
}

#[test]
fn wrong_counts_are_found_with_the_expected_value() {
    let mut bytes = FeatureSet::named("default").make().bytes();
    let mut right = 0;
    change_descriptor(&mut bytes, GroupNr(0), |desc| {
        right = desc.free_clusters;
        desc.free_clusters -= 7;
    });
    let (found, summary) = findings(&bytes);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].code, FindingCode::FreeClusters);
    assert_eq!(found[0].place.group, Some(0));
    assert_eq!((found[0].found, found[0].expected), (Some((right - 7).into()), Some(right.into())));
    assert_eq!(found[0].repair(), PlannedRepair::Recount);
    assert_eq!(summary.damages, 1);
    assert!(e2fsck_complains(&bytes));

    change_descriptor(&mut bytes, GroupNr(0), |desc| {
        desc.free_clusters = right;
        desc.free_inodes -= 1;
    });
    assert_eq!(codes(&bytes), [FindingCode::FreeInodes]);
    assert!(e2fsck_complains(&bytes));
}

#[test]
fn descriptors_with_wrong_places_and_checksums_are_found() {
    let clean = FeatureSet::named("default").make().bytes();
    let mut bytes = clean.clone();
    let geo = geometry(&bytes);
    change_descriptor(&mut bytes, GroupNr(0), |desc| desc.inode_table = geo.blocks_count);
    assert!(codes(&bytes).contains(&FindingCode::DescriptorField));
    assert!(e2fsck_complains(&bytes));

    let mut bytes = clean;
    let checksum = descriptor(&geo, GroupNr(0)).start + 0x1E;
    bytes[checksum] ^= 1;
    assert_eq!(codes(&bytes), [FindingCode::DescriptorChecksum]);
    assert!(e2fsck_complains(&bytes));
}

#[test]
fn bitmaps_that_free_metadata_are_found() {
    let mut bytes = FeatureSet::named("ext2_1k").make().bytes();
    let start = block_start(&bytes, |desc| desc.block_bitmap);
    bytes[start] &= !1;
    assert_eq!(codes(&bytes), [FindingCode::BlockMarkedFree]);
    assert!(e2fsck_complains(&bytes));
}

#[test]
fn clear_padding_of_the_inode_bitmap_is_found() {
    let mut bytes = FeatureSet::named("ext2").make().bytes();
    let start = block_start(&bytes, |desc| desc.inode_bitmap);
    bytes[start + 4095] = 0;
    assert_eq!(codes(&bytes), [FindingCode::InodeBitmapPadding]);
    assert!(e2fsck_complains(&bytes));
}

#[test]
fn an_old_superblock_copy_is_a_note() {
    let mut bytes = FeatureSet::named("1k").make().bytes();
    let geo = geometry(&bytes);
    let copy = geo.super_block_of(GroupNr(1)).unwrap().index() * 1024;
    bytes[copy + 0x38] ^= 0xFF;
    let (found, summary) = findings(&bytes);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].code, FindingCode::BackupSuperblock);
    assert_eq!((summary.notes, summary.damages, summary.fatal), (1, 0, 0));
    assert!(summary.is_clean());
}

#[test]
fn a_truncated_device_is_found_and_bounds_the_work() {
    let mut bytes = FeatureSet::named("1k").make().bytes();
    bytes.truncate(20 << 20);
    let (found, summary) = findings(&bytes);
    assert_eq!(found[0].code, FindingCode::DeviceTooShort);
    assert_eq!((found[0].found, found[0].expected), (Some(20 << 10), Some(64 << 10)));
    assert_eq!(summary.fatal, 0);
    let groups = found.iter().filter_map(|finding| finding.place.group);
    assert!(groups.max().unwrap_or(0) < 3, "{found:?}");
}

/// A pointer of the resize inode's map, beyond those to reserved blocks and to their copies.
#[test]
fn stray_pointers_of_the_resize_inode_are_found() {
    let clean = FeatureSet::named("default").make().bytes();
    let geo = geometry(&clean);
    let size = geo.block_size as usize;
    let inode = block_start(&clean, |desc| desc.inode_table) + 6 * usize::from(geo.inode_size);
    let word = |at: usize| u32::from_le_bytes(clean[at..at + 4].try_into().unwrap());
    let list = word(inode + 40 + 13 * 4) as usize;
    for block in [list, geo.base_meta(GroupNr(0)).reserved.start as usize] {
        let slots = (block * size..(block + 1) * size).step_by(4);
        let unused = slots.rev().find(|at| word(*at) == 0).expect("an unused slot");
        for stray in [500u32, u32::MAX] {
            let mut bytes = clean.clone();
            bytes[unused..unused + 4].copy_from_slice(&stray.to_le_bytes());
            assert_eq!(codes(&bytes), [FindingCode::ResizeInode], "block {block}, {stray}");
            assert!(e2fsck_complains(&bytes), "block {block}, {stray}");
        }
    }
}

/// A directory that once had more subdirectories than its count can tell keeps the count 1, if it
/// has an index.
#[test]
fn a_lost_count_of_subdirectories_is_right_in_indexed_directories() {
    let top = Scratch::new();
    for name in ["indexed", "plain"] {
        std::fs::create_dir(top.dir(name).join("sub")).expect("a directory");
    }
    for number in 0..300 {
        let name = format!("indexed/a-name-that-is-rather-long-{number}");
        std::fs::write(top.join(name), "").expect("a file");
    }
    for (name, expected) in [("indexed", vec![]), ("plain", vec![FindingCode::LinkCount])] {
        let image = Image::mke2fs_from(32 << 20, &["-t", "ext4", "-b", "1024"], top.path());
        index_directories(&image);
        debugfs::write(image.path(), &format!("set_inode_field /{name} links_count 1"));
        image.leave_unjudged("one of the counts is wrong");
        let (bytes, is_wrong) = (image.bytes(), !expected.is_empty());
        assert_eq!((codes(&bytes), e2fsck_complains(&bytes)), (expected, is_wrong), "{name}");
    }
}

/// e2fsck sets the feature, too.
#[test]
fn wide_descriptors_without_extents_are_found_and_get_them() {
    let whole = Image::mke2fs(16 << 20, &["-t", "ext4", "-O", "64bit,extent"]).bytes();
    let mut bytes = whole.clone();
    let mut sb = Superblock::parse(&bytes[1024..2048]).expect("a superblock");
    let mut features = sb.features();
    features.incompat.remove(Incompat::EXTENTS);
    sb.set_features(features);
    bytes[1024..2048].copy_from_slice(&sb.seal());
    assert!(e2fsck_complains(&bytes));
    let is_found = |finding: &Finding| {
        finding.code == FindingCode::SuperblockField && finding.place.field == Some("extent")
    };
    let found = findings(&bytes).0;
    assert!(found.iter().any(is_found), "{found:?}");
    let device = Arc::new(MemDevice::from_bytes(&bytes));
    let plan = Repair::new(device.clone()).plan(&mut |_| ()).expect("a plan");
    plan.apply().expect("a repair");
    let repaired = device.to_vec();
    assert_eq!(findings(&repaired).0, []);
    let sb = Superblock::parse(&repaired[1024..2048]).expect("a superblock");
    assert!(sb.incompat().contains(Incompat::EXTENTS));
    assert!(!e2fsck_complains(&repaired));
}
