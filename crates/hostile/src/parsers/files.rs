//! Parsers of structures of files: inode, extents, pointers, attributes, ACLs, hash trees.

use super::{block, number};
use extant_format::Geometry;
use extant_format::acl::{Acl, FileOwner};
use extant_format::extent::{Index, Leaf, Node, NodeMut, seal_extent_block, verify_extent_block};
use extant_format::indirect;
use extant_format::inode::{Inode, seal_inode, verify_inode};
use extant_format::types::InodeNr;
use extant_format::verity::{Descriptor, Tree, descriptor_len};
use extant_format::xattr::{self, Entry};

const INO: InodeNr = InodeNr(12);

pub(super) fn inode(geo: &Geometry, bytes: &[u8]) {
    let _ = Inode::decode(bytes, geo, INO);
    let _ = Inode::decode_record(bytes, geo, INO);
    let mut slot = block(bytes, geo.inode_size.into());
    seal_inode(&mut slot, geo, INO);
    let Ok(inode) = Inode::decode(&slot, geo, INO) else { return };
    let _ = (
        inode.rdev(),
        inode.fast_symlink(geo),
        inode.file_type(),
        inode.ea_refcount(),
        inode.ea_hash(),
    );
    let area = inode.xattr_area(geo);
    assert!(area.end <= slot.len(), "attributes lie in the slot");
    inode_attributes(geo, &slot[area]);
    extents(geo, &inode.i_block);
    let mut again = slot.clone();
    if inode.encode(&mut again, geo, INO).is_ok() {
        assert!(verify_inode(&again, geo, INO).is_ok(), "an inode is sealed");
        assert_eq!(
            Inode::decode(&again, geo, INO).expect("a sealed inode"),
            inode,
            "an inode comes back"
        );
    }
}

pub(super) fn extents(geo: &Geometry, bytes: &[u8]) {
    let lblk = number(bytes.get(16..).unwrap_or(&[])) as u32;
    let _ = Node::open(bytes).map(|node| node.search(lblk));
    if let Ok(node) = Node::parse(bytes, None) {
        let _ = node.check_physical(geo);
        let found = node.search(lblk);
        let keys: Vec<u32> = (0..node.len()).filter_map(|n| node.key(n)).collect();
        assert_eq!(
            found,
            keys.iter().rposition(|key| *key <= lblk),
            "a search finds the last that does not lie behind"
        );
        assert!(
            node.leaves()
                .all(|leaf| leaf.map(leaf.lblk).is_some() && leaf.map(leaf.last()).is_some()),
            "leaves map"
        );
        change(bytes, &node, lblk);
    }
    let mut own = block(bytes, geo.block_size as usize);
    let _ = verify_extent_block(&own, 1);
    if NodeMut::open(&mut own).is_ok() {
        seal_extent_block(&mut own, 1, 1);
        let _ = verify_extent_block(&own, 1);
    }
}

/// Inserts entries into a node and removes them, and checks that the old entries are unchanged.
fn change(bytes: &[u8], node: &Node<'_>, lblk: u32) {
    let mut copy = bytes.to_vec();
    let at = lblk as usize % (node.len() + 1);
    let Ok(mut changed) = NodeMut::open(&mut copy) else { return };
    let inserted = if node.is_leaf() {
        changed.insert_leaf(at, &Leaf { lblk, pblk: 77, len: 1, unwritten: false })
    } else {
        changed.insert_index(at, &Index { lblk, child: 77 })
    };
    assert_eq!(
        inserted,
        node.len() < usize::from(node.header().max),
        "there is room, or there is none"
    );
    if inserted {
        changed.remove(at..at + 1);
    }
    assert!(changed.as_node().leaves().eq(node.leaves()), "the old entries come back");
    changed.remove(at..usize::MAX);
    assert_eq!(changed.len(), at);
}

pub(super) fn pointers(geo: &Geometry, bytes: &[u8]) {
    let lblk = number(bytes) as u32;
    if let Some(path) = indirect::Path::new(lblk, geo.block_size) {
        assert!(path.levels() < 5 && !path.offsets().is_empty(), "three levels at most");
    }
    let mut copy = bytes.to_vec();
    let n = number(bytes.get(4..).unwrap_or(&[])) as usize % 20_000;
    indirect::put_pointer(&mut copy, n, 9);
    let _ = indirect::pointer(&copy, n);
    assert_eq!(indirect::pointers(bytes).count(), bytes.len() / 4);
}

pub(super) fn verity(_: &Geometry, bytes: &[u8]) {
    let _ = descriptor_len(number(bytes).to_le_bytes()[..4].try_into().expect("four bytes"));
    let Some((size, rest)) = bytes.split_at_checked(8) else { return };
    let own = rest.get(8..16).map(number);
    for size in [Some(number(size)), own].into_iter().flatten() {
        let Ok(desc) = Descriptor::parse(rest, size, 16) else { continue };
        let Ok(tree) = Tree::of(&desc) else { continue };
        assert!(
            desc.block_size() <= 1 << 16 && tree.levels() <= extant_format::verity::MAX_LEVELS,
            "a small tree"
        );
        let _ =
            (tree.blocks(), tree.parent(size), tree.place(0, size), tree.place(tree.levels(), 0));
    }
}

pub(super) fn acl(_: &Geometry, bytes: &[u8]) {
    let found = [Acl::from_disk(bytes).ok(), Acl::from_xattr(bytes).ok().flatten()];
    for mut acl in found.into_iter().flatten() {
        assert_eq!(Acl::from_disk(&acl.to_disk()).ok().as_ref(), Some(&acl), "an ACL comes back");
        assert_eq!(
            Acl::from_xattr(&acl.to_xattr()).ok().flatten().as_ref(),
            Some(&acl),
            "an ACL comes back"
        );
        let _ = acl.allows(7, FileOwner { uid: 2, gid: 3 }, 1, |group| group % 2 == 0);
        let (mode, inherited) = acl.inherit(0o7777);
        assert!(mode <= 0o7777, "a mode");
        let _ = inherited.map(|acl| acl.is_mode());
        acl.chmod(0o750);
        assert_eq!(acl.mode_bits() & 0o707, 0o700, "the bits that chmod sets");
    }
}

fn same(one: &[Entry], other: &[Entry]) {
    let mut sorted = [one, other].map(|entries| {
        entries
            .iter()
            .map(|entry| (entry.index, entry.name.clone(), entry.value.len()))
            .collect::<Vec<_>>()
    });
    sorted.iter_mut().for_each(|entries| entries.sort());
    assert_eq!(sorted[0], sorted[1], "attributes come back");
}

pub(super) fn inode_attributes(_: &Geometry, bytes: &[u8]) {
    let Ok(entries) = xattr::decode_inode_area(bytes) else { return };
    let mut again = vec![0; bytes.len() + 100];
    if xattr::encode_inode_area(&entries, &mut again) {
        same(&entries, &xattr::decode_inode_area(&again).expect("attributes that were written"));
    }
    assert!(xattr::inode_area_space(&entries) < usize::MAX / 2, "space");
}

pub(super) fn attribute_block(geo: &Geometry, bytes: &[u8]) {
    let _ = xattr::verify_xattr_block(bytes, 1, 1);
    let _ = xattr::decode_block(bytes);
    let own = block(bytes, geo.block_size.min(4096) as usize);
    let Ok((header, entries)) = xattr::decode_block(&own) else { return };
    let mut again = vec![0; own.len()];
    if xattr::encode_block(&entries, header.refcount, &mut again) {
        xattr::seal_xattr_block(&mut again, 1, 1);
        assert!(xattr::verify_xattr_block(&again, 1, 1).is_ok(), "a block of attributes is sealed");
        same(&entries, &xattr::decode_block(&again).expect("attributes that were written").1);
    }
    for entry in &entries {
        let full = xattr::full_name(entry.index, &entry.name);
        let split = full.as_ref().and_then(|full| xattr::split_name(full));
        assert!(
            full.is_none() || split == Some((entry.index, &entry.name[..])),
            "a name is found by its listed form"
        );
    }
}
