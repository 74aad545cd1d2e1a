//! Images whose size on disk is small compared to their apparent content: pointers, extents,
//! leaves, values and descriptors share blocks.
//!
//! All of these have valid checksums. The blocks of such maps are at the end of the image, in use
//! or not.

use crate::atlas::{Atlas, Kind};
use extant_format::dir::DirFormat;
use extant_format::extent::{Index, Leaf, NodeMut, seal_extent_block};
use extant_format::htree::{self, RootInfo, seal_htree};
use extant_format::indirect::{IND, TIND, pointers_per_block, put_pointer};
use extant_format::inode::InodeFlags;
use extant_format::types::InodeNr;
use extant_format::xattr::{
    Entry, NameIndex, block_space, decode_block, encode_block, seal_xattr_block,
};
use extant_testkit::rng::Rng;
use std::ops::Range;

/// Number of blocks at the end of an image that bombs overwrite.
const SPARE: u64 = 8;

/// Returns the first block that bombs overwrite.
pub fn spare(atlas: &Atlas) -> u64 {
    atlas.geo.blocks_count - SPARE
}

/// Makes an inode map `blocks` blocks by one pointer block per level. All pointers of a block point
/// to the block of the next level; those of the last level point to `data` in turn. 0 is a hole.
pub fn share_pointers(image: &mut [u8], atlas: &Atlas, ino: u32, data: &[u32], blocks: u64) {
    let first = spare(atlas) as u32;
    let per_block = pointers_per_block(atlas.geo.block_size) as usize;
    for level in 0..3 {
        let block = &mut image[atlas.block(u64::from(first) + level)];
        for n in 0..per_block {
            let below = first + level as u32 - u32::from(level > 0);
            put_pointer(block, n, if level == 0 { data[n % data.len()] } else { below });
        }
    }
    atlas.change_inode(image, ino, |inode| {
        inode.flags.remove(InodeFlags::EXTENTS | InodeFlags::INDEX | InodeFlags::INLINE_DATA);
        inode.size = blocks * u64::from(atlas.geo.block_size);
        (0..IND).for_each(|n| put_pointer(&mut inode.i_block, n, data[n % data.len()]));
        (IND..=TIND).for_each(|n| put_pointer(&mut inode.i_block, n, first + (n - IND) as u32));
    });
}

/// Makes an inode map the run of `len` blocks from `pblk` on repeatedly, by as many extents as fit
/// a block. Returns the number of extents.
pub fn share_extents(image: &mut [u8], atlas: &Atlas, ino: u32, pblk: u64, len: u16) -> u32 {
    let inode = atlas.read_inode(image, ino);
    let (nr, seed) = (spare(atlas), inode.seed(&atlas.geo, InodeNr(ino)));
    let block = &mut image[atlas.block(nr)];
    block.fill(0);
    let mut node = NodeMut::init(block, 0);
    let count = node.room() as u32;
    let leaves: Vec<_> = (0..count)
        .map(|n| Leaf { lblk: n * u32::from(len), pblk, len, unwritten: false })
        .collect();
    assert!(node.set_leaves(&leaves));
    if atlas.geo.metadata_csum {
        seal_extent_block(block, nr, seed);
    }
    atlas.change_inode(image, ino, |inode| {
        inode.flags.remove(InodeFlags::INDEX | InodeFlags::INLINE_DATA);
        inode.flags.insert(InodeFlags::EXTENTS);
        inode.size = u64::from(count * u32::from(len)) * u64::from(atlas.geo.block_size);
        assert!(NodeMut::init(&mut inode.i_block, 1).set_indexes(&[Index { lblk: 0, child: nr }]));
    });
    count
}

/// Rewrites the hash tree of an indexed directory, whose first blocks are `blocks` on the device,
/// in this order: the root, a node for each level, a leaf. All entries of the root and of a node
/// lead to the next one of them. `key` returns their hashes. The size of the directory stays.
pub fn share_leaves(
    image: &mut [u8],
    atlas: &Atlas,
    ino: u32,
    blocks: &[u64],
    key: impl Fn(u32) -> u32,
) {
    let (format, seed) =
        (DirFormat::new(&atlas.geo), atlas.read_inode(image, ino).seed(&atlas.geo, InodeNr(ino)));
    let levels = blocks.len().saturating_sub(2);
    let info = RootInfo::parse(&image[atlas.block(blocks[0])], &format).expect("a root");
    for (n, nr) in blocks[..=levels].iter().enumerate() {
        let block = &mut image[atlas.block(*nr)];
        let mut node = match n {
            0 => {
                let mut root =
                    htree::NodeMut::open(block, htree::Kind::Root, &format).expect("a root");
                root.set_levels(levels as u8);
                root
            }
            _ => htree::NodeMut::init_interior(block, &format, 0),
        };
        let mut count = 1;
        assert!(node.set_entries(&[(0, n as u32 + 1)]));
        while node.insert(count as usize, key(count), n as u32 + 1) {
            count += 1;
        }
        if atlas.geo.metadata_csum {
            seal_htree(block, *nr, seed);
        }
    }
    assert!(levels <= usize::from(htree::max_levels(&format)), "{} levels", info.levels);
}

/// A value of attributes.
#[derive(Clone, Copy, Debug)]
pub struct SharedValue {
    /// Inode that holds the value.
    pub ino: u32,
    /// Bytes of the value.
    pub size: u32,
}

/// Fills the attribute block of an inode with names of one value while `more` returns true. The
/// hash of the value is 0.
pub fn share_values(
    image: &mut [u8],
    atlas: &Atlas,
    ino: u32,
    value: SharedValue,
    mut more: impl FnMut() -> bool,
) {
    let nr = atlas.read_inode(image, ino).file_acl;
    let block = &mut image[atlas.block(nr)];
    let (head, _) = decode_block(block).expect("an attribute block");
    let mut entries = Vec::new();
    for n in (0u32..).take_while(|_| more()) {
        let name = format!("{n:04x}");
        entries.push(Entry::in_inode(NameIndex::USER, name.as_bytes(), value.ino, value.size, 0));
        if block_space(&entries) > block.len() {
            entries.pop();
            break;
        }
    }
    assert!(encode_block(&entries, head.refcount, block));
    if atlas.geo.metadata_csum {
        seal_xattr_block(block, nr, atlas.geo.csum_seed);
    }
}

/// Makes all group descriptors name the bitmaps and the inode table of the first group.
pub fn share_descriptors(image: &mut [u8], atlas: &Atlas) {
    let mut places = None;
    atlas.change_group(image, 0, |desc| {
        places = Some((desc.block_bitmap, desc.inode_bitmap, desc.inode_table))
    });
    for group in 1..atlas.geo.groups_count {
        atlas.change_group(image, group, |desc| {
            (desc.block_bitmap, desc.inode_bitmap, desc.inode_table) =
                places.expect("a first group");
        });
    }
}

/// Mutation: shares a random kind of structure. Returns a description.
pub fn share(image: &mut [u8], atlas: &Atlas, rng: &mut Rng) -> String {
    let ino = *rng.pick(&atlas.inodes);
    let data = |rng: &mut Rng| *rng.pick(&atlas.blocks);
    match rng.below(5) {
        0 => {
            let data: Vec<u32> = (0..rng.between(1, 5)).map(|_| data(rng) as u32).collect();
            let blocks = 1 << rng.below(31);
            share_pointers(image, atlas, ino, &data, blocks);
            format!("inode {ino} maps {blocks} blocks by shared pointers to {data:?}")
        }
        1 => {
            let (pblk, len) = (data(rng), 1 << rng.below(6));
            share_extents(image, atlas, ino, pblk, len);
            format!("inode {ino} maps {len} blocks at {pblk} again and again")
        }
        2 => share_pieces(image, atlas, Kind::Directory, rng),
        3 => {
            let kind = *rng.pick(&[
                Kind::IndirectBlock,
                Kind::ExtentBlock,
                Kind::XattrBlock,
                Kind::OrphanBlock,
            ]);
            share_pieces(image, atlas, kind, rng)
        }
        _ => {
            share_descriptors(image, atlas);
            "the groups share their tables".into()
        }
    }
}

/// Copies a word of a structure, presumably a block number, over all words at the same stride after
/// it.
fn share_pieces(image: &mut [u8], atlas: &Atlas, kind: Kind, rng: &mut Rng) -> String {
    let pieces: Vec<_> = atlas.of_kind(kind).cloned().collect();
    let Some(piece) = pieces.get(rng.below(pieces.len().max(1) as u64) as usize) else {
        return format!("no {kind:?}");
    };
    let (width, stride) = *rng.pick(&[(4, 4), (4, 8), (8, 12), (8, 16)]);
    let from = piece.bytes.start + *rng.pick(&[0, 8, 12, 16, 24, 32]);
    let first: Range<usize> = from + stride..from + stride + width;
    let mut at = first.start + stride;
    while at + width <= piece.bytes.end {
        image.copy_within(first.clone(), at);
        at += stride;
    }
    atlas.seal(image, piece);
    format!("{width} bytes of each {stride} of the {kind:?} at {} are the same", piece.bytes.start)
}
