//! Images of many feature sets, read as a whole.

use crate::fixture;
use crate::image::Image;
use crate::walk::{Map, map};
use extant_format::dir::{self, DirFormat};
use extant_format::features::{Compat, Incompat};
use extant_format::group_desc::{GroupDesc, GroupFlags, init_block_bitmap, init_inode_bitmap};
use extant_format::htree::{self, Kind, RootInfo, dirhash};
use extant_format::inode::{Inode, InodeFlags, tail};
use extant_format::jbd2::JournalSuperblock;
use extant_format::mmp::Mmp;
use extant_format::types::{FileType, GroupNr, InodeNr};
use extant_format::xattr::{self, Entry, Value};
use extant_format::{Superblock, bitmap, inline, orphan, seal};
use std::collections::BTreeMap;

/// Counts of the structures that a walk over an image met, so that a test can assert its own
/// coverage.
#[derive(Default, Debug)]
struct Seen {
    inodes: usize,
    extent_nodes: usize,
    tree_nodes: usize,
    leaves: usize,
    inline: usize,
    attributes: usize,
    attribute_blocks: usize,
    attribute_inodes: usize,
    uninit_groups: usize,
}

fn check(options: &[&str]) -> Seen {
    let fixture = fixture::make(options);
    let image = Image::open(&fixture.path);
    let mut seen = Seen::default();
    check_superblocks(&image);
    for group in (0..image.geo.groups_count).map(GroupNr) {
        check_descriptor(&image, group);
        check_bitmaps(&image, group, &mut seen);
        check_inodes(&image, group, &mut seen);
    }
    check_special(&image);
    seen
}

fn check_superblocks(image: &Image) {
    for group in image.geo.super_groups() {
        let block = image.geo.super_block_of(group).expect("a copy").0;
        let offset = if group.0 == 0 { 1024 } else { block * u64::from(image.geo.block_size) };
        let bytes = image.bytes(offset, 1024);
        let copy = Superblock::parse(&bytes).expect("a good copy");
        assert_eq!(copy.encode()[..], bytes[..]);
        assert_eq!(u32::from(copy.block_group_nr()), group.0);
        assert_eq!(copy.uuid(), image.sb.uuid());
    }
}

fn check_descriptor(image: &Image, group: GroupNr) {
    let bytes = image.desc_bytes(group);
    let desc = image.desc(group);
    let mut again = bytes.clone();
    desc.encode(&mut again, &image.geo, group);
    assert_eq!(again, bytes);
    let mut fresh = vec![0; bytes.len()];
    desc.encode(&mut fresh, &image.geo, group);
    assert_eq!(fresh, bytes);
    let (index, offset) = image.geo.desc_location(group);
    for backup in image.geo.gdt_backups(index) {
        let block = image.block(backup.0);
        GroupDesc::decode(&block[offset..], &image.geo, group)
            .expect("a good copy of a descriptor");
    }
}

fn check_bitmaps(image: &Image, group: GroupNr, seen: &mut Seen) {
    let (geo, desc) = (&image.geo, image.desc(group));
    let clusters = geo.clusters_in_group(group) as usize;
    let mut blocks = image.block(desc.block_bitmap);
    if desc.has_flag(geo, GroupFlags::BLOCK_UNINIT) {
        init_block_bitmap(&mut blocks, geo, group, &desc);
        seen.uninit_groups += 1;
    } else {
        desc.verify_block_bitmap(&blocks, geo).expect("a good block bitmap");
    }
    assert_eq!(
        bitmap::count_zeros(&blocks, 0..clusters),
        desc.free_clusters as usize,
        "group {group}"
    );
    assert!(bitmap::all_ones(&blocks, clusters..blocks.len() * 8));
    let mut inodes = image.block(desc.inode_bitmap);
    if desc.has_flag(geo, GroupFlags::INODE_UNINIT) {
        init_inode_bitmap(&mut inodes, geo);
    } else {
        desc.verify_inode_bitmap(&inodes, geo).expect("a good inode bitmap");
    }
    let free = bitmap::count_zeros(&inodes, 0..geo.inodes_per_group as usize);
    assert_eq!(free, desc.free_inodes as usize);
    for block in 0..u64::from(geo.base_meta_blocks(group)) {
        assert!(bitmap::test(&blocks, (block >> geo.cluster_bits) as usize));
    }
}

fn check_inodes(image: &Image, group: GroupNr, seen: &mut Seen) {
    let desc = image.desc(group);
    if desc.has_flag(&image.geo, GroupFlags::INODE_UNINIT) {
        return;
    }
    let bits = image.block(desc.inode_bitmap);
    for index in 0..image.geo.inodes_per_group {
        let ino = image.geo.inode_at(group, index);
        if bitmap::test(&bits, index as usize) {
            check_inode(image, ino, seen);
        }
    }
}

fn check_inode(image: &Image, ino: InodeNr, seen: &mut Seen) {
    let slot = image.slot(ino);
    let inode = image.inode(ino);
    let mut again = slot.clone();
    inode.encode(&mut again, &image.geo, ino).expect("room for the inode");
    assert_eq!(again, slot, "inode {ino}");
    seen.inodes += 1;
    check_attributes(image, &slot, &inode, seen);
    let inline = inode.flags.contains(InodeFlags::INLINE_DATA);
    let mapped = inode.is_dir() || inode.is_regular() || inode.flags.contains(InodeFlags::EXTENTS);
    if inline {
        seen.inline += 1;
        check_inline(image, &slot, &inode);
    } else if mapped && ino.0 != InodeNr::RESIZE.0 {
        let map = map(image, ino, &inode);
        seen.extent_nodes += map.nodes;
        if inode.is_dir() {
            check_directory(image, ino, &inode, &map, seen);
        }
    }
    check_type(image, &inode);
}

fn check_type(image: &Image, inode: &Inode) {
    match inode.file_type() {
        FileType::Symlink if inode.size < 60 && !inode.flags.contains(InodeFlags::INLINE_DATA) => {
            assert_eq!(inode.fast_symlink(&image.geo), Some(&b"short"[..]));
        }
        FileType::BlockDevice => assert_eq!(inode.rdev(), Some((8, 1))),
        FileType::CharDevice => assert_eq!(inode.rdev(), Some((300, 70000))),
        _ => {}
    }
}

fn check_attributes(image: &Image, slot: &[u8], inode: &Inode, seen: &mut Seen) {
    let area = tail(slot, &image.geo, inode);
    let entries = xattr::decode_inode_area(area).expect("good attributes");
    let mut again = vec![0; area.len()];
    assert!(xattr::encode_inode_area(&entries, &mut again));
    assert_eq!(xattr::decode_inode_area(&again).expect("good attributes"), entries);
    count_attributes(image, &entries, seen);
    if inode.file_acl != 0 {
        let block = image.block(inode.file_acl);
        if image.geo.metadata_csum {
            xattr::verify_xattr_block(&block, inode.file_acl, image.geo.csum_seed)
                .expect("a good checksum");
        }
        let (header, entries) = xattr::decode_block(&block).expect("a good attribute block");
        let mut again = vec![0; block.len()];
        assert!(xattr::encode_block(&entries, header.refcount, &mut again));
        // The ext4 tools leave the block's hash at 0, so only the entries are the same.
        assert_eq!(xattr::decode_block(&again).expect("a good attribute block").1, entries);
        count_attributes(image, &entries, seen);
        seen.attribute_blocks += 1;
    }
}

fn count_attributes(image: &Image, entries: &[Entry], seen: &mut Seen) {
    for entry in entries {
        seen.attributes += 1;
        if let Value::EaInode { ino, size } = entry.value {
            let inode = image.inode(InodeNr(ino));
            assert!(inode.flags.contains(InodeFlags::EA_INODE));
            assert_eq!((inode.size, inode.ea_refcount()), (size.into(), 1));
            let value = content(image, InodeNr(ino), &inode);
            let crc = xattr::value_crc(image.geo.csum_seed, &value);
            assert_eq!(inode.ea_hash(), crc);
            assert_eq!(entry.hash, xattr::inode_entry_hash(&entry.name, crc));
            seen.attribute_inodes += 1;
        }
    }
}

fn content(image: &Image, ino: InodeNr, inode: &Inode) -> Vec<u8> {
    let mut data: Vec<u8> =
        map(image, ino, inode).blocks.values().flat_map(|block| image.block(*block)).collect();
    data.truncate(inode.size as usize);
    data
}

fn check_inline(image: &Image, slot: &[u8], inode: &Inode) {
    let entries = xattr::decode_inode_area(tail(slot, &image.geo, inode)).expect("good attributes");
    let rest = entries
        .iter()
        .find(|entry| entry.is(xattr::NameIndex::SYSTEM, b"data"))
        .expect("system.data");
    let Value::Inline(rest) = &rest.value else { panic!("inline data outside of the inode") };
    assert!(inode.size as usize <= inline::INLINE_FIRST + rest.len());
    if inode.is_dir() {
        assert_ne!(inline::parent(&inode.i_block).0, 0);
        let format = DirFormat::new(&image.geo);
        for area in [inline::dir_area(&inode.i_block), rest] {
            assert!(dir::entries(area, &format).all(|entry| entry.is_ok()));
        }
    }
}

fn check_directory(image: &Image, ino: InodeNr, inode: &Inode, map: &Map, seen: &mut Seen) {
    let format = DirFormat::new(&image.geo);
    let seed = inode.seed(&image.geo, ino);
    let blocks: BTreeMap<u32, Vec<u8>> =
        map.blocks.iter().map(|(lblk, nr)| (*lblk, image.block(*nr))).collect();
    let indexed = inode.flags.contains(InodeFlags::INDEX);
    for (lblk, block) in &blocks {
        let node = indexed && (*lblk == 0 || htree::is_interior(block, &format));
        let mut again = block.clone();
        if image.geo.metadata_csum {
            seal::seal_dir_block(&mut again, 0, seed);
            assert_eq!(&again, block);
        }
        if node {
            seen.tree_nodes += 1;
        } else {
            seen.leaves += 1;
            check_leaf(block, &format, seed);
        }
    }
    assert!(dir::dot_dot(&blocks[&0], &format).is_ok());
    if indexed {
        check_tree(image, &blocks, &format, seed);
    }
}

fn check_leaf(block: &[u8], format: &DirFormat, seed: u32) {
    if format.metadata_csum {
        dir::verify_leaf(block, seed).expect("a good checksum");
    }
    let entries: Vec<_> = dir::entries(format.area(block), format)
        .map(|entry| entry.expect("a good entry"))
        .collect();
    let mut area = vec![0; format.usable()];
    let used = || entries.iter().filter(|entry| entry.is_used());
    assert!(dir::fill(
        &mut area,
        format,
        used().map(|entry| (entry.ino, entry.file_type, entry.name))
    ));
    for entry in used() {
        let found = dir::find(&area, format, entry.name).expect("a good block").expect("the entry");
        assert_eq!((found.ino, found.file_type), (entry.ino, entry.file_type));
    }
}

/// Every name must be found where its hash leads.
fn check_tree(image: &Image, blocks: &BTreeMap<u32, Vec<u8>>, format: &DirFormat, seed: u32) {
    let info = RootInfo::parse(&blocks[&0], format).expect("a good root");
    let unsigned = image.sb.unsigned_hash().expect("a hash flag");
    for (lblk, block) in blocks {
        if *lblk == 0 || htree::is_interior(block, format) {
            continue;
        }
        for entry in
            dir::entries(format.area(block), format).map(|entry| entry.expect("a good entry"))
        {
            if !entry.is_used() {
                continue;
            }
            let (hash, _) = dirhash(info.hash_version, unsigned, &image.sb.hash_seed(), entry.name);
            let mut at = 0;
            for level in 0..=info.levels {
                let kind = if level == 0 { Kind::Root } else { Kind::Interior };
                if image.geo.metadata_csum {
                    htree::verify_htree(&blocks[&at], seed).expect("a good checksum");
                }
                let node = htree::Node::open(&blocks[&at], kind, format).expect("a good node");
                node.check_order().expect("ascending hashes");
                at = node.get(node.find(hash)).expect("an entry").1;
            }
            assert_eq!(at, *lblk);
        }
    }
}

fn check_special(image: &Image) {
    let (geo, sb) = (&image.geo, &image.sb);
    if geo.compat(Compat::HAS_JOURNAL) {
        let ino = sb.journal_inum();
        let inode = image.inode(ino);
        let bytes = image.block(map(image, ino, &inode).blocks[&0])[..1024].to_vec();
        let journal = JournalSuperblock::parse(&bytes).expect("a good journal");
        assert_eq!(journal.encode()[..], bytes[..]);
        assert_eq!(journal.block_size(), geo.block_size);
        assert_eq!(sb.journal_backup().expect("a backup").size, inode.size);
        assert_eq!(sb.journal_backup().expect("a backup").i_block, inode.i_block);
    }
    if geo.compat(Compat::ORPHAN_FILE) {
        let ino = sb.orphan_file_inum();
        let inode = image.inode(ino);
        let map = map(image, ino, &inode);
        assert_eq!(
            map.blocks.len() as u64,
            orphan::default_blocks(geo.blocks_count, geo.cluster_ratio())
        );
        for nr in map.blocks.values() {
            let block = image.block(*nr);
            orphan::verify(&block, *nr, inode.seed(geo, ino), geo.metadata_csum)
                .expect("a good orphan block");
            assert_eq!(orphan::count_zero(&block), orphan::slots(block.len()));
        }
    }
    if geo.incompat(Incompat::MMP) {
        let block = image.block(sb.mmp_block().0);
        let seed = geo.metadata_csum.then_some(geo.csum_seed);
        let mmp = Mmp::parse(&block, seed).expect("a good MMP block");
        let mut again = block.clone();
        mmp.encode(&mut again, seed);
        assert_eq!(Mmp::parse(&again, seed).expect("a good MMP block"), mmp);
    }
}

#[test]
fn modern_defaults() {
    let seen = check(&[
        "-t",
        "ext4",
        "-b",
        "4096",
        "-g",
        "4096",
        "-O",
        "orphan_file,metadata_csum_seed,quota,project",
    ]);
    assert!(seen.inodes > 1400 && seen.extent_nodes > 1 && seen.tree_nodes > 0, "{seen:?}");
    assert!(seen.attributes > 3 && seen.attribute_blocks > 0 && seen.uninit_groups > 0, "{seen:?}");
}

#[test]
fn small_blocks_and_trees_of_two_levels() {
    let seen = check(&["-t", "ext4", "-b", "1024", "-O", "metadata_csum,^64bit,orphan_file"]);
    assert!(seen.tree_nodes > 2, "{seen:?}");
}

#[test]
fn crc16_descriptors() {
    let seen = check(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg,^64bit"]);
    assert!(seen.uninit_groups > 0, "{seen:?}");
    check(&[
        "-t",
        "ext4",
        "-b",
        "2048",
        "-O",
        "^metadata_csum,uninit_bg,64bit,sparse_super2,^resize_inode",
    ]);
}

#[test]
fn clusters() {
    check(&["-t", "ext4", "-b", "4096", "-C", "65536", "-O", "bigalloc"]);
    check(&["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc,^resize_inode"]);
}

#[test]
fn meta_groups() {
    check(&["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"]);
}

#[test]
fn data_in_inodes() {
    let seen = check(&["-t", "ext4", "-b", "4096", "-I", "512", "-O", "inline_data,mmp,large_dir"]);
    assert!(seen.inline > 3, "{seen:?}");
}

#[test]
fn attribute_values_in_inodes() {
    let seen = check(&["-t", "ext4", "-b", "1024", "-O", "ea_inode,metadata_csum_seed"]);
    assert!(seen.attribute_inodes > 0, "{seen:?}");
}

#[test]
fn large_blocks() {
    check(&["-t", "ext4", "-b", "65536"]);
}

#[test]
fn old_file_systems() {
    check(&["-t", "ext2", "-b", "1024", "-I", "128"]);
    check(&["-t", "ext3", "-b", "4096", "-I", "128", "-O", "^dir_index"]);
    check(&[
        "-t",
        "ext4",
        "-b",
        "4096",
        "-I",
        "128",
        "-O",
        "^sparse_super,^resize_inode,^flex_bg,^has_journal",
        "-g",
        "4096",
    ]);
    check(&["-r", "0", "-b", "1024", "-O", "none"]);
}
