//! Maps of files that are wholly allocated: extent trees and indirect blocks.

use super::error::{Error, Result};
use extant_format::extent::{self, Index, Leaf, NodeMut, ROOT_SIZE, seal_extent_block};
use extant_format::indirect::{DIRECT, TIND, pointers_per_block, put_pointer};
use extant_format::{Geometry, Incompat};
use std::ops::Range;

/// A file's map: the `i_block` area of its inode, and its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Map {
    pub i_block: [u8; ROOT_SIZE],
    /// Nodes of the tree, or indirect blocks, with their places.
    pub nodes: Vec<(u64, Vec<u8>)>,
}

/// Allocates the block of a new node.
pub(super) type NewNode<'a> = dyn FnMut() -> Result<u64> + 'a;

/// Maps the blocks of `pieces`, in order, from logical block 0 on; `seed` is the inode's.
pub(super) fn build(
    geo: &Geometry,
    seed: u32,
    pieces: &[Range<u64>],
    new_node: &mut NewNode<'_>,
) -> Result<Map> {
    if geo.incompat(Incompat::EXTENTS) {
        extents(geo, seed, pieces, new_node)
    } else {
        indirect(geo, pieces, new_node)
    }
}

fn leaves(pieces: &[Range<u64>]) -> Result<Vec<Leaf>> {
    let most = u64::from(extent::MAX_WRITTEN_LEN);
    let mut leaves = Vec::new();
    let mut logical = 0u64;
    for piece in pieces {
        let mut at = piece.start;
        while at < piece.end {
            let len = (piece.end - at).min(most);
            let lblk = u32::try_from(logical)
                .map_err(|_| Error::Invalid("a file of more than 2^32 blocks".into()))?;
            leaves.push(Leaf { lblk, len: len as u16, unwritten: false, pblk: at });
            at += len;
            logical += len;
        }
    }
    Ok(leaves)
}

/// Builds the tree from its leaves upward until the entries fit into the root.
fn extents(
    geo: &Geometry,
    seed: u32,
    pieces: &[Range<u64>],
    new_node: &mut NewNode<'_>,
) -> Result<Map> {
    let mut tree = ExtentTree { geo, seed, nodes: Vec::new() };
    let mut i_block = [0; ROOT_SIZE];
    let leaves = leaves(pieces)?;
    if NodeMut::init(&mut i_block, 0).set_leaves(&leaves) {
        return Ok(Map { i_block, nodes: tree.nodes });
    }
    let room = usize::from(extent::capacity(geo.block_size as usize));
    let mut indexes = Vec::new();
    for chunk in leaves.chunks(room) {
        let child = tree.add_node(new_node()?, 0, |node| node.set_leaves(chunk));
        indexes.push(Index { lblk: chunk.first().map_or(0, |leaf| leaf.lblk), child });
    }
    for depth in 1..=extent::MAX_DEPTH {
        if NodeMut::init(&mut i_block, depth).set_indexes(&indexes) {
            return Ok(Map { i_block, nodes: tree.nodes });
        }
        let mut above = Vec::new();
        for chunk in indexes.chunks(room) {
            let child = tree.add_node(new_node()?, depth, |node| node.set_indexes(chunk));
            above.push(Index { lblk: chunk.first().map_or(0, |index| index.lblk), child });
        }
        indexes = above;
    }
    Error::invalid("a file of too many pieces")
}

/// The nodes of an extent tree, with their places; `seed` is the inode's.
struct ExtentTree<'a> {
    geo: &'a Geometry,
    seed: u32,
    nodes: Vec<(u64, Vec<u8>)>,
}

impl ExtentTree<'_> {
    /// Adds a node at `place`, which it returns.
    fn add_node(
        &mut self,
        place: u64,
        depth: u16,
        fill: impl FnOnce(&mut NodeMut<'_>) -> bool,
    ) -> u64 {
        let mut block = vec![0; self.geo.block_size as usize];
        let filled = fill(&mut NodeMut::init(&mut block, depth));
        debug_assert!(filled, "chunks fit into nodes");
        if self.geo.metadata_csum {
            seal_extent_block(&mut block, place, self.seed);
        }
        self.nodes.push((place, block));
        place
    }
}

/// Fills direct pointers, then one tree of indirect blocks after the other, as far as the file
/// reaches.
fn indirect(geo: &Geometry, pieces: &[Range<u64>], new_node: &mut NewNode<'_>) -> Result<Map> {
    let mut map = Map { i_block: [0; ROOT_SIZE], nodes: Vec::new() };
    let mut data = pieces.iter().cloned().flatten().peekable();
    let mut root = [0; ROOT_SIZE];
    for n in 0..=TIND {
        if data.peek().is_none() {
            break;
        }
        let levels = n.saturating_sub(DIRECT - 1);
        let place = map.pointers(geo, levels, &mut data, new_node)?;
        put_pointer(&mut root, n, place);
    }
    if data.peek().is_some() {
        return Error::invalid("a file of more blocks than indirect blocks reach");
    }
    map.i_block = root;
    Ok(map)
}

impl Map {
    /// Returns the next data block (no levels), or builds an indirect block with this number of
    /// levels over the next data blocks. The recursion depth is at most three.
    fn pointers(
        &mut self,
        geo: &Geometry,
        levels: usize,
        data: &mut std::iter::Peekable<impl Iterator<Item = u64>>,
        new_node: &mut NewNode<'_>,
    ) -> Result<u32> {
        if levels == 0 {
            return narrow(data.next().unwrap_or(0));
        }
        let place = narrow(new_node()?)?;
        let mut block = vec![0; geo.block_size as usize];
        for n in 0..pointers_per_block(geo.block_size) as usize {
            if data.peek().is_none() {
                break;
            }
            put_pointer(&mut block, n, self.pointers(geo, levels - 1, data, new_node)?);
        }
        self.nodes.push((place.into(), block));
        Ok(place)
    }
}

fn narrow(block: u64) -> Result<u32> {
    u32::try_from(block)
        .map_err(|_| Error::Invalid("indirect blocks do not reach beyond 2^32 blocks".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, sizing::Sizes, superblock};
    use extant_format::extent::Node;
    use extant_format::indirect::pointer;

    fn geometry(list: &str) -> Geometry {
        let mut options = Options { block_size: Some(1024), ..Options::default() };
        options.apply_features(list).unwrap();
        let features = crate::features::choose(&options).unwrap();
        let sizes = Sizes::new(&options, features, 1 << 30).unwrap();
        let identity = superblock::Identity::new(&options);
        Geometry::new(&superblock::build(&options, &sizes, &identity).unwrap()).unwrap()
    }

    #[test]
    fn few_pieces_lie_in_the_root() {
        let map = build(&geometry(""), 1, &[100..200, 300..301], &mut || unreachable!()).unwrap();
        let node = Node::parse(&map.i_block, None).unwrap();
        assert_eq!((node.len(), map.nodes.len()), (2, 0));
    }

    #[test]
    fn many_pieces_make_a_tree() {
        let pieces: Vec<_> = (0..1000u64).map(|n| n * 10..n * 10 + 5).collect();
        let mut next = 100_000;
        let mut new_node = || {
            next += 1;
            Ok(next)
        };
        let map = build(&geometry(""), 1, &pieces, &mut new_node).unwrap();
        assert_eq!(map.nodes.len(), 1000usize.div_ceil(84) + 1);
        let root = Node::parse(&map.i_block, None).unwrap();
        assert_eq!((root.header().depth, root.len()), (2, 1));
    }

    #[test]
    fn indirect_blocks_are_nested() {
        let geo = geometry("^extent,^64bit");
        let mut next = 500_000;
        let mut new_node = || {
            next += 1;
            Ok(next)
        };
        let blocks = 12 + 256 + 300;
        let map = build(&geo, 0, &[1000..1100, 1100..1000 + blocks], &mut new_node).unwrap();
        assert_eq!(map.nodes.len(), 1 + 1 + 2);
        assert_eq!(pointer(&map.i_block, 11), 1011);
        assert_eq!(pointer(&map.i_block, 12), 500_001);
        assert_eq!(pointer(&map.i_block, 14), 0);
        let (_, last) = map.nodes.iter().find(|(place, _)| *place == 500_004).unwrap();
        assert_eq!(pointer(last, 43), 1000 + 12 + 256 + 299);
        assert_eq!(pointer(last, 44), 0);
    }
}
