//! Valid images with maps and indexes of several levels: operations would need tens of thousands of
//! extents and names for them, but a node with few entries is as valid as a full one.
//!
//! The nodes of a file are its own blocks past its end and those of its old nodes, so bitmaps,
//! counts and quotas stay unchanged. Example: a file with 64 extents, one node and 32 blocks past
//! its end gets a map of three levels: 22 leaves with 3 extents, 8 nodes and 3 nodes. A directory
//! keeps its blocks, too: some nodes of its index become the level above the others.

use crate::atlas::Atlas;
use crate::seeds::{Seed, options};
use extant_blocks::MemDevice;
use extant_engine::{Falloc, Fs, Node, NodeKind, OpenFlags};
use extant_format::dir::DirFormat;
use extant_format::extent::{self, Index, Leaf, NodeMut, ROOT_SIZE, capacity, seal_extent_block};
use extant_format::htree::{self, Kind, RootInfo, seal_htree};
use extant_format::types::InodeNr;
use extant_testkit::image::FeatureSet;
use std::collections::VecDeque;
use std::sync::Arc;

/// The directory that holds the files `file0` and so on, and the directory `dir`.
pub const DIR: &str = "planted";

/// Files with deep maps in an image.
pub const FILES: u64 = 8;

/// Extents of a file whose nodes have few entries.
const EXTENTS: usize = 64;

/// Entries of a root with few entries.
const ROOT_ENTRIES: usize = 3;

/// Number of names of the directory: with blocks of 1 KiB its index needs four nodes.
const NAMES: u32 = 800;

/// Depth of the maps and of the index of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Layout {
    /// Levels of a map below its root, 1 at least.
    pub depth: u16,
    /// The first leaf and all nodes above it are full, and each other node has one entry. Otherwise
    /// all nodes have few.
    pub full: bool,
    /// Levels of an index between its root and its leaves: 1, or 2 with the feature `large_dir`.
    pub levels: u8,
}

impl Seed {
    /// An image with maps and an index of several levels.
    pub fn deep(layout: Layout) -> Seed {
        let image = FeatureSet::named("large_dir").make_sized(12 << 20).bytes();
        Seed::of(format!("{layout:?}"), layout.plant(&image))
    }
}

impl Layout {
    /// A layout whose nodes have few entries, with an index of one level.
    pub const fn sparse(depth: u16) -> Layout {
        Layout { depth, full: false, levels: 1 }
    }

    /// Returns a layout in which one more extent splits all nodes above it.
    pub const fn full(depth: u16) -> Layout {
        Layout { depth, full: true, levels: 1 }
    }

    /// Adds [`FILES`] files and a directory to an image with blocks of 1 KiB, in a new directory
    /// [`DIR`]. In each file unwritten extents and holes of one cluster alternate. Returns the
    /// image.
    pub fn plant(&self, image: &[u8]) -> Vec<u8> {
        let device = Arc::new(MemDevice::from_bytes(image));
        let fs = Fs::open_device(device.clone(), &options()).expect("a good image opens");
        let dir = fs
            .create(&fs.root().expect("root"), DIR.as_bytes(), 0o755, NodeKind::Dir)
            .expect("mkdir");
        let unit = u64::from(Atlas::of(image).geo.cluster_ratio()) << 10;
        let files: Vec<u64> = (0..FILES).map(|n| self.file(&fs, &dir, n, unit)).collect();
        let index = directory(&fs, &dir);
        drop(dir);
        fs.unmount().expect("unmount");
        let mut image = device.to_vec();
        let atlas = Atlas::of(&image);
        files.iter().for_each(|ino| self.raise_map(&mut image, &atlas, *ino as u32));
        self.raise_index(&mut image, &atlas, index as u32);
        image
    }

    /// A file with all blocks for its map. Returns its number.
    fn file(&self, fs: &Fs, dir: &Node, n: u64, unit: u64) -> u64 {
        let node =
            fs.create(dir, format!("file{n}").as_bytes(), 0o644, NodeKind::File).expect("create");
        let file =
            fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
        let room = usize::from(capacity(1024));
        let extents = self.extents(room);
        let nodes = (0..self.depth).fold((extents, 0), |(below, sum), _| {
            let nodes = self.groups(below, room).len();
            (nodes, sum + nodes)
        });
        let end = extents as u64 * 2 * unit;
        for at in (0..end).step_by(2 * unit as usize) {
            file.allocate(Falloc::KeepSize, at, unit).expect("fallocate");
        }
        // The extents were appended, so all leaves but the last are full.
        let behind = nodes.1 - (extents + 1).div_ceil(room);
        file.allocate(Falloc::KeepSize, end, behind as u64 * unit).expect("fallocate");
        file.set_len(end).expect("truncate");
        node.ino()
    }

    fn extents(&self, room: usize) -> usize {
        let root = usize::from(capacity(ROOT_SIZE));
        if self.full { root + usize::from(self.depth) * (room - 1) } else { EXTENTS }
    }

    /// Returns the number of `items` of each node of a level.
    fn groups(&self, items: usize, room: usize) -> Vec<usize> {
        let few = |few: &usize| few.pow(self.depth.into()) * ROOT_ENTRIES >= EXTENTS;
        let (first, others) =
            if self.full { (room, 1) } else { (1..).find(few).map(|n| (n, n)).expect("a number") };
        let (mut sizes, mut left) = (vec![first.min(items)], items - first.min(items));
        while left > 0 {
            sizes.push(others.min(left));
            left -= others.min(left);
        }
        sizes
    }

    /// Makes a map of this depth of a file's extents; old nodes and the blocks past the end become
    /// nodes.
    fn raise_map(&self, image: &mut [u8], atlas: &Atlas, ino: u32) {
        let (geo, inode) = (&atlas.geo, atlas.read_inode(image, ino));
        let seed = inode.seed(geo, InodeNr(ino));
        let end = (inode.size / u64::from(geo.block_size)) as u32;
        let Map { leaves, nodes } = map_of(image, atlas, &inode.i_block);
        let (leaves, behind): (Vec<Leaf>, Vec<Leaf>) =
            leaves.into_iter().partition(|leaf| leaf.lblk < end);
        assert_eq!(
            leaves.len(),
            self.extents(capacity(geo.block_size as usize).into()),
            "extents apart from each other"
        );
        let clusters =
            |leaf: &Leaf| (leaf.pblk..leaf.physical_end()).step_by(geo.cluster_ratio() as usize);
        let mut blocks: VecDeque<u64> = behind.iter().flat_map(clusters).chain(nodes).collect();
        let mut write = |depth: u16, fill: &dyn Fn(&mut NodeMut<'_>) -> bool| {
            let child = blocks.pop_front().expect("a block for each node");
            let bytes = &mut image[atlas.block(child)];
            assert!(fill(&mut NodeMut::init(bytes, depth)), "a node has room");
            if geo.metadata_csum {
                seal_extent_block(bytes, child, seed);
            }
            child
        };
        let room = usize::from(capacity(geo.block_size as usize));
        let mut level: Vec<Index> = parts(&leaves, &self.groups(leaves.len(), room))
            .map(|part| Index {
                lblk: part[0].lblk,
                child: write(0, &|node| node.set_leaves(part)),
            })
            .collect();
        for depth in 1..self.depth {
            level = parts(&level, &self.groups(level.len(), room))
                .map(|part| Index {
                    lblk: part[0].lblk,
                    child: write(depth, &|node| node.set_indexes(part)),
                })
                .collect();
        }
        assert!(blocks.is_empty(), "each block behind the end is a node");
        atlas.change_inode(image, ino, |inode| {
            assert!(
                NodeMut::init(&mut inode.i_block, self.depth).set_indexes(&level),
                "the root has room"
            );
        });
    }

    /// Adds levels to the index of a directory. The first node above the leaves is then full.
    fn raise_index(&self, image: &mut [u8], atlas: &Atlas, ino: u32) {
        let (inode, format) = (atlas.read_inode(image, ino), DirFormat::new(&atlas.geo));
        let map = map_of(image, atlas, &inode.i_block);
        let blocks: Vec<u64> =
            map.leaves.iter().flat_map(|leaf| leaf.pblk..leaf.physical_end()).collect();
        let block = |nr: u32| atlas.block(blocks[nr as usize]);
        let info = RootInfo::parse(&image[block(0)], &format).expect("an index");
        assert_eq!(info.levels, 1, "an index with nodes below its root");
        if self.levels == info.levels {
            return;
        }
        let entries = |nr: u32, kind| {
            htree::Node::open(&image[block(nr)], kind, &format).expect("a node").entries()
        };
        let nodes: Vec<(u32, u32)> = entries(0, Kind::Root).collect();
        // Entry 0 of a node has the hash of the entry that leads to the node.
        let own = |(key, nr): &(u32, u32)| {
            let key = *key;
            entries(*nr, Kind::Interior)
                .enumerate()
                .map(move |(n, (hash, leaf))| (if n == 0 { key } else { hash }, leaf))
        };
        let leaves: Vec<(u32, u32)> = nodes.iter().flat_map(own).collect();
        let (above, below) = nodes.split_at((nodes.len() / 5).max(1));
        let first = usize::from(Kind::Interior.limit(&format));
        let others = (leaves.len() - first).div_ceil(below.len() - 1);
        let sizes: Vec<usize> =
            (0..below.len()).map(|n| if n == 0 { first } else { others }).collect();
        let mut write = |list: &[(u32, u32)], nr: u32| {
            let bytes = &mut image[block(nr)];
            assert!(
                htree::NodeMut::init_interior(bytes, &format, list[0].1).set_entries(list),
                "a node has room"
            );
            if atlas.geo.metadata_csum {
                seal_htree(bytes, 0, inode.seed(&atlas.geo, InodeNr(ino)));
            }
            (list[0].0, nr)
        };
        let lower: Vec<_> =
            parts(&leaves, &sizes).zip(below).map(|(list, (_, nr))| write(list, *nr)).collect();
        let sizes = vec![lower.len().div_ceil(above.len()); above.len()];
        let upper: Vec<_> =
            parts(&lower, &sizes).zip(above).map(|(list, (_, nr))| write(list, *nr)).collect();
        assert_eq!((lower.len(), upper.len()), (below.len(), above.len()), "each node is used");
        let bytes = &mut image[block(0)];
        let mut root = htree::NodeMut::open(bytes, Kind::Root, &format).expect("a root");
        assert!(root.set_entries(&upper), "the root has room");
        root.set_levels(self.levels);
        if atlas.geo.metadata_csum {
            seal_htree(bytes, 0, inode.seed(&atlas.geo, InodeNr(ino)));
        }
    }
}

/// A directory of many long names. Returns its number.
fn directory(fs: &Fs, parent: &Node) -> u64 {
    let dir = fs.create(parent, b"dir", 0o755, NodeKind::Dir).expect("mkdir");
    let file = fs.create(&dir, b"linked", 0o644, NodeKind::File).expect("create");
    (0..NAMES).for_each(|n| fs.link(&file, &dir, format!("{n:0>250}").as_bytes()).expect("link"));
    dir.ino()
}

/// Parts of a list of these lengths; the last ones may be shorter.
fn parts<'a, T>(list: &'a [T], sizes: &'a [usize]) -> impl Iterator<Item = &'a [T]> {
    let mut rest = list;
    sizes.iter().map_while(move |size| {
        let (part, behind) = rest.split_at((*size).min(rest.len()));
        rest = behind;
        (!part.is_empty()).then_some(part)
    })
}

/// The extents of a map in order, and the blocks of its nodes.
struct Map {
    leaves: Vec<Leaf>,
    nodes: Vec<u64>,
}

fn map_of(image: &[u8], atlas: &Atlas, node: &[u8]) -> Map {
    let node = extent::Node::parse(node, None).expect("a good node");
    let mut map = Map { leaves: node.leaves().collect(), nodes: Vec::new() };
    for index in node.indexes() {
        let below = map_of(image, atlas, &image[atlas.block(index.child)]);
        map.leaves.extend(below.leaves);
        map.nodes.push(index.child);
        map.nodes.extend(below.nodes);
    }
    map
}
