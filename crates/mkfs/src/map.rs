//! Maps of files: extent trees and indirect blocks.

use super::error::{Error, Result};
use extant_format::extent::{
    self, Index, Leaf, MAX_LOGICAL, NodeMut, ROOT_SIZE, seal_extent_block,
};
use extant_format::indirect::{DIRECT, TIND, pointers_per_block, put_pointer};
use extant_format::{Geometry, Incompat};
use std::ops::Range;

/// A file's map: the `i_block` area of its inode, and its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileMap {
    /// The `i_block` area.
    pub i_block: [u8; ROOT_SIZE],
    /// Nodes of the tree, or indirect blocks, with their places.
    pub nodes: Vec<(u64, Vec<u8>)>,
}

/// The first logical block of a run, and its physical blocks.
pub type MappedRun = (u64, Range<u64>);

/// Allocates the block of a new node.
pub(super) type NewNode<'a> = dyn FnMut() -> Result<u64> + 'a;

/// Maps runs of blocks, ascending; `seed` is the inode's. `new_node` allocates the blocks of the
/// map one by one.
///
/// # Errors
/// [`Error::Invalid`] for blocks that the kind of map cannot reach; those of `new_node`.
pub fn build_map(
    geo: &Geometry,
    seed: u32,
    runs: &[MappedRun],
    new_node: &mut NewNode<'_>,
) -> Result<FileMap> {
    if geo.incompat(Incompat::EXTENTS) {
        extents(geo, seed, runs, new_node)
    } else {
        indirect(geo, runs, new_node)
    }
}

/// Returns the runs of a file without holes, whose blocks are `pieces`.
pub(super) fn dense(pieces: &[Range<u64>]) -> Vec<MappedRun> {
    let mut logical = 0;
    let mut runs = Vec::with_capacity(pieces.len());
    for piece in pieces {
        runs.push((logical, piece.clone()));
        logical += piece.end - piece.start;
    }
    runs
}

fn leaves(runs: &[MappedRun]) -> Result<Vec<Leaf>> {
    let most = u64::from(extent::MAX_WRITTEN_LEN);
    let mut leaves = Vec::new();
    for (logical, blocks) in runs {
        let (mut logical, mut at) = (*logical, blocks.start);
        while at < blocks.end {
            let len = (blocks.end - at).min(most);
            if logical + len - 1 > MAX_LOGICAL.into() {
                return Error::invalid("a file of more than 2^32 - 1 blocks");
            }
            leaves.push(Leaf { lblk: logical as u32, len: len as u16, unwritten: false, pblk: at });
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
    runs: &[MappedRun],
    new_node: &mut NewNode<'_>,
) -> Result<FileMap> {
    let mut tree = ExtentTree { geo, seed, nodes: Vec::new() };
    let mut i_block = [0; ROOT_SIZE];
    let leaves = leaves(runs)?;
    if NodeMut::init(&mut i_block, 0).set_leaves(&leaves) {
        return Ok(FileMap { i_block, nodes: tree.nodes });
    }
    let room = usize::from(extent::capacity(geo.block_size as usize));
    let mut indexes = Vec::new();
    for chunk in leaves.chunks(room) {
        let child = tree.add_node(new_node()?, 0, |node| node.set_leaves(chunk));
        indexes.push(Index { lblk: chunk.first().map_or(0, |leaf| leaf.lblk), child });
    }
    for depth in 1..=extent::MAX_DEPTH {
        if NodeMut::init(&mut i_block, depth).set_indexes(&indexes) {
            return Ok(FileMap { i_block, nodes: tree.nodes });
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
fn indirect(geo: &Geometry, runs: &[MappedRun], new_node: &mut NewNode<'_>) -> Result<FileMap> {
    let mut map = FileMap { i_block: [0; ROOT_SIZE], nodes: Vec::new() };
    let mut data =
        runs.iter().flat_map(|(logical, blocks)| (*logical..).zip(blocks.clone())).peekable();
    let mut root = [0; ROOT_SIZE];
    let mut first = 0;
    for n in 0..=TIND {
        let levels = n.saturating_sub(DIRECT - 1);
        let place = map.pointers(geo, (levels, first), &mut data, new_node)?;
        put_pointer(&mut root, n, place);
        first += span(geo, levels);
    }
    if data.peek().is_some() {
        return Error::invalid("a file of more blocks than indirect blocks reach");
    }
    map.i_block = root;
    Ok(map)
}

/// Returns the number of blocks below a pointer with this number of levels.
fn span(geo: &Geometry, levels: usize) -> u64 {
    u64::from(pointers_per_block(geo.block_size)).pow(levels as u32)
}

impl FileMap {
    /// Returns the next data block (no levels), or builds an indirect block with this number of
    /// levels over the data blocks from logical block `first` on; 0 if all are holes. The recursion
    /// depth is at most three.
    fn pointers(
        &mut self,
        geo: &Geometry,
        (levels, first): (usize, u64),
        data: &mut std::iter::Peekable<impl Iterator<Item = (u64, u64)>>,
        new_node: &mut NewNode<'_>,
    ) -> Result<u32> {
        if data.peek().is_none_or(|(logical, _)| *logical >= first + span(geo, levels)) {
            return Ok(0);
        }
        if levels == 0 {
            return narrow(data.next().map_or(0, |(_, block)| block));
        }
        let place = narrow(new_node()?)?;
        let mut block = vec![0; geo.block_size as usize];
        let below = span(geo, levels - 1);
        for n in 0..pointers_per_block(geo.block_size) {
            let first = first + u64::from(n) * below;
            let pointer = self.pointers(geo, (levels - 1, first), data, new_node)?;
            put_pointer(&mut block, n as usize, pointer);
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
        let sizes = Sizes::new(&options, features, 1 << 30, false).unwrap();
        let identity = superblock::Identity::new(&options);
        Geometry::new(&superblock::build(&options, &sizes, &identity).unwrap()).unwrap()
    }

    #[test]
    fn few_pieces_lie_in_the_root() {
        let map =
            build_map(&geometry(""), 1, &dense(&[100..200, 300..301]), &mut || unreachable!())
                .unwrap();
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
        let map = build_map(&geometry(""), 1, &dense(&pieces), &mut new_node).unwrap();
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
        let map =
            build_map(&geo, 0, &dense(&[1000..1100, 1100..1000 + blocks]), &mut new_node).unwrap();
        assert_eq!(map.nodes.len(), 1 + 1 + 2);
        assert_eq!(pointer(&map.i_block, 11), 1011);
        assert_eq!(pointer(&map.i_block, 12), 500_001);
        assert_eq!(pointer(&map.i_block, 14), 0);
        let (_, last) = map.nodes.iter().find(|(place, _)| *place == 500_004).unwrap();
        assert_eq!(pointer(last, 43), 1000 + 12 + 256 + 299);
        assert_eq!(pointer(last, 44), 0);
    }
}
