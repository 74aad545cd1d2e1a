//! The blocks of files, verified on the way.

use crate::image::Image;
use extant_format::extent::{Node, verify_extent_block};
use extant_format::indirect::{self, Path};
use extant_format::inode::{Inode, InodeFlags};
use extant_format::types::InodeNr;
use std::collections::BTreeMap;

/// A file's map, gathered by a walk.
#[derive(Default)]
pub struct Map {
    /// Physical blocks by logical ones.
    pub blocks: BTreeMap<u32, u64>,
    /// Blocks of the map itself.
    pub nodes: usize,
}

pub fn map(image: &Image, ino: InodeNr, inode: &Inode) -> Map {
    let mut map = Map::default();
    if inode.flags.contains(InodeFlags::EXTENTS) {
        let seed = inode.seed(&image.geo, ino);
        walk_node(image, &inode.i_block, None, seed, &mut map);
    } else {
        walk_pointers(image, inode, &mut map);
    }
    map
}

fn walk_node(image: &Image, bytes: &[u8], depth: Option<u16>, seed: u32, map: &mut Map) {
    let node = Node::parse(bytes, depth).expect("a good node");
    node.check_physical(&image.geo).expect("blocks of the file system");
    for leaf in node.leaves() {
        map.blocks.extend((leaf.lblk..=leaf.last()).map(|lblk| (lblk, leaf.map(lblk).unwrap())));
    }
    for index in node.indexes() {
        let block = image.block(index.child);
        assert!(!image.geo.metadata_csum || verify_extent_block(&block, seed));
        map.nodes += 1;
        walk_node(image, &block, Some(node.depth() - 1), seed, map);
    }
}

fn walk_pointers(image: &Image, inode: &Inode, map: &mut Map) {
    let count = inode.size.div_ceil(image.geo.block_size.into());
    let mut known = BTreeMap::new();
    for lblk in 0..u32::try_from(count).expect("a small file") {
        let path = Path::new(lblk, image.geo.block_size).expect("a block that a map reaches");
        let (first, rest) = path.offsets().split_first().unwrap();
        let mut block = indirect::pointer(&inode.i_block, *first as usize);
        for offset in rest {
            if block != 0 {
                let bytes = known.entry(block).or_insert_with(|| image.block(block.into()));
                block = indirect::pointer(bytes, *offset as usize);
            }
        }
        if block != 0 {
            map.blocks.insert(lblk, block.into());
        }
    }
    map.nodes = known.len();
}
