//! The part of the layout that does not depend on the size of the file system: numbers, directory
//! blocks, attributes, and the logical blocks of each node.

use super::directory::{DirName, Directory};
use super::numbers::{Numbers, Position};
use super::space::{LogicalRuns, from_start};
use super::xattrs::XattrPlaces;
use crate::error::{Error, Result};
use crate::tree::{Body, NodeId, StoredContent, Tree, XattrSetId};
use extant_format::extent::MAX_LOGICAL;
use extant_format::inline::INLINE_FIRST;
use extant_format::inode::FAST_SYMLINK_MAX;
use extant_format::{FileType, Geometry, Incompat, InodeNr, RoCompat, indirect};
use extant_mkfs::lost_found_blocks;
use std::ops::Range;

/// Name of the directory that every file system has.
const LOST_FOUND: &[u8] = b"lost+found";

/// Maximum number of subdirectories that a directory counts, without its own names.
const MAX_SUBDIRECTORIES: u64 = extant_format::inode::LINK_MAX as u64 - 2;

/// The tree with everything that has no place yet.
#[derive(Debug)]
pub(crate) struct Shapes<'t> {
    pub tree: &'t Tree,
    pub numbers: Numbers,
    pub xattrs: XattrPlaces,
    /// Blocks of each directory; 0 for one that lies in its inode.
    dir_blocks: Vec<u32>,
    /// Blocks that another name in the root needs at most.
    pub root_growth: u64,
    /// Directories with a hash tree, ascending.
    indexed: Vec<Position>,
    /// Number of nodes with each set of attributes.
    pub users: Vec<u64>,
    block_size: u64,
    ratio: u64,
    inline_data: bool,
}

impl<'t> Shapes<'t> {
    /// Determines the shapes. Of `geo`, only facts count that do not depend on the size.
    pub(crate) fn new(tree: &'t Tree, geo: &Geometry) -> Result<Shapes<'t>> {
        let lost_found = lost_found(tree)?;
        let numbers = Numbers::new(tree, lost_found);
        let mut users = vec![0; tree.xattr_sets()];
        for position in 0..numbers.len() {
            users[tree.node(numbers.node(position)).xattrs.0 as usize] += 1;
        }
        let first_of = |set: XattrSetId| {
            let has = |position: &Position| tree.node(numbers.node(*position)).xattrs == set;
            (0..numbers.len()).find(has).map_or(NodeId::ROOT, |position| numbers.node(position))
        };
        let xattrs = XattrPlaces::new(tree, geo, &users)
            .map_err(|(set, cause)| Error::entry(&tree.path_of(first_of(set)), cause))?;
        let mut shapes = Shapes {
            tree,
            numbers,
            xattrs,
            dir_blocks: Vec::new(),
            indexed: Vec::new(),
            root_growth: 0,
            users,
            block_size: geo.block_size.into(),
            ratio: geo.cluster_ratio().into(),
            inline_data: geo.incompat(Incompat::INLINE_DATA),
        };
        shapes.measure(geo)?;
        Ok(shapes)
    }

    /// Counts the blocks of directories, and refuses nodes that the format cannot hold.
    fn measure(&mut self, geo: &Geometry) -> Result<()> {
        for position in 0..self.numbers.directories() {
            let node = self.numbers.node(position);
            let directory = self.directory(position, InodeNr(1));
            let failed = |cause| Error::entry(&self.tree.path_of(node), cause);
            let inline = self.inline_room(position).and_then(|room| directory.inline_rest(room));
            let mut blocks = match inline.filter(|_| position >= self.numbers.fixed()) {
                Some(_) => 0,
                None => directory.blocks(geo).map_err(failed)?,
            };
            let is_tree = Directory::is_tree(geo, blocks);
            if Some(position) == self.numbers.lost_found() && !is_tree {
                blocks = blocks.max(lost_found_blocks(geo.block_size));
            }
            let names = directory.names.iter();
            let below = names.filter(|name| name.file_type == FileType::Directory).count() as u64;
            let counted = below <= MAX_SUBDIRECTORIES || geo.has_dir_nlink();
            if !counted || (below > MAX_SUBDIRECTORIES && !is_tree) {
                let cause = "more than 64998 subdirectories need the features dir_nlink, dir_index";
                return Err(failed(cause.into()));
            }
            self.dir_blocks.push(u32::try_from(blocks).unwrap_or(u32::MAX));
            self.indexed.extend(is_tree.then_some(position));
        }
        self.root_growth = self.directory(0, InodeNr(1)).growth(geo);
        (self.numbers.directories()..self.numbers.len()).try_for_each(|n| self.check(n, geo))
    }

    fn check(&self, position: Position, geo: &Geometry) -> Result<()> {
        let node = self.numbers.node(position);
        let cause = match self.tree.node(node).body {
            Body::File { size, .. } => exceeds_map(geo, size),
            Body::Symlink { len, .. } if u64::from(len) >= self.block_size => {
                Some(format!("a symlink of {len} bytes does not fit into a block"))
            }
            _ => None,
        };
        cause.map_or(Ok(()), |cause| Err(Error::entry(&self.tree.path_of(node), cause)))
    }

    /// Returns the number of blocks of the root.
    pub(crate) fn root_blocks(&self) -> u64 {
        self.dir_blocks.first().map_or(1, |blocks| u64::from(*blocks))
    }

    /// Returns the number of blocks of `lost+found`, if the tree has it.
    pub(crate) fn lost_found_blocks(&self) -> Option<u64> {
        let blocks = |position: Position| self.dir_blocks.get(position as usize);
        self.numbers.lost_found().and_then(blocks).map(|blocks| u64::from(*blocks))
    }

    /// Returns whether the blocks of a directory are a hash tree.
    pub(crate) fn is_indexed(&self, position: Position) -> bool {
        self.indexed.binary_search(&position).is_ok()
    }

    /// Returns the number of inodes beside those that every file system has.
    pub(crate) fn inodes(&self) -> u32 {
        self.numbers.len() - self.numbers.fixed() + self.xattrs.values.len() as u32
    }

    /// Returns whether a file is larger than the feature `large_file` allows to do without.
    pub(crate) fn has_large_files(&self) -> bool {
        let large = |body| matches!(body, Body::File { size, .. } if size > i32::MAX as u64);
        (0..self.numbers.len()).any(|n| large(self.tree.node(self.numbers.node(n)).body))
    }

    /// Returns whether nodes have extended attributes.
    pub(crate) fn has_xattrs(&self) -> bool {
        let mut sets = (0..).zip(&self.users).filter(|(_, users)| **users > 0);
        sets.any(|(set, _)| !self.tree.xattrs(XattrSetId(set)).is_empty())
    }

    /// Returns the owners of nodes, sorted, for each kind of quota that the file system has.
    pub(crate) fn owners(&self, geo: &Geometry) -> [Vec<u32>; 3] {
        let mut owners = [vec![0], vec![0], vec![0]];
        if !geo.ro_compat(RoCompat::QUOTA) {
            return owners;
        }
        for position in 0..self.numbers.len() {
            let node = self.tree.node(self.numbers.node(position));
            for (list, id) in owners.iter_mut().zip([node.uid, node.gid]) {
                if let Err(at) = list.binary_search(&id) {
                    list.insert(at, id);
                }
            }
        }
        owners
    }

    /// Returns the bytes that inline data may take in the inode's slot; `None` without inline data.
    fn inline_room(&self, position: Position) -> Option<usize> {
        let set = self.tree.node(self.numbers.node(position)).xattrs;
        self.inline_data.then(|| self.xattrs.set(set).inline_room()).flatten()
    }

    /// Returns whether the content of a node lies in its inode as inline data.
    pub(crate) fn is_inline(&self, position: Position) -> bool {
        match self.tree.node(self.numbers.node(position)).body {
            Body::Directory { .. } => self.dir_blocks[position as usize] == 0,
            Body::File { size, content: StoredContent::Bytes(_) | StoredContent::Whole { .. } } => {
                let room = self.inline_room(position);
                room.is_some_and(|room| size <= (INLINE_FIRST + room) as u64)
            }
            _ => false,
        }
    }

    /// Returns whether a node is a regular file.
    pub(crate) fn is_file(&self, position: Position) -> bool {
        matches!(self.tree.node(self.numbers.node(position)).body, Body::File { .. })
    }

    /// Returns the logical blocks of a node that have data, each run from the border of a cluster.
    pub(crate) fn blocks(&self, position: Position) -> LogicalRuns {
        match self.tree.node(self.numbers.node(position)).body {
            Body::Directory { .. } => from_start(self.dir_blocks[position as usize].into()),
            Body::Symlink { len, .. } => from_start(u64::from(usize::from(len) > FAST_SYMLINK_MAX)),
            Body::File { .. } if self.is_inline(position) => Vec::new(),
            Body::File { content: StoredContent::Hole, .. } => Vec::new(),
            Body::File { size, content: StoredContent::Sparse { index, .. } } => {
                let ranges = self.tree.ranges(index).iter();
                let ranges = ranges.map(|range| range.start..range.end());
                file_blocks((self.block_size, self.ratio), size, ranges)
            }
            Body::File { size, .. } => from_start(size.div_ceil(self.block_size)),
            _ => Vec::new(),
        }
    }

    /// Returns a directory with its entries; `first` is the first inode after those that every file
    /// system has.
    pub(crate) fn directory(&self, position: Position, first: InodeNr) -> Directory<'t> {
        let tree = self.tree;
        let ino = |node| self.numbers.inode_of(self.numbers.position(node), first);
        let children = self.numbers.children(position).iter();
        let names = children.map(|entry| {
            let node = tree.entry_node(*entry);
            let name = tree.entry_name(*entry);
            DirName { ino: ino(node), file_type: tree.node(node).file_type(), name }
        });
        let mut names: Vec<DirName<'t>> = names.collect();
        let node = self.numbers.node(position);
        if position == 0 && self.numbers.lost_found().is_none() {
            let (name, ino) = (LOST_FOUND, InodeNr::FIRST_ORDINARY);
            let at = names.partition_point(|other| other.name < name);
            names.insert(at, DirName { ino, file_type: FileType::Directory, name });
        }
        Directory { own: ino(node), parent: ino(tree.parent_of(node)), names }
    }
}

/// Returns the node of `lost+found`, which must be a directory, as every file system has one.
fn lost_found(tree: &Tree) -> Result<Option<NodeId>> {
    let Some(node) = tree.lookup(LOST_FOUND) else { return Ok(None) };
    if tree.node(node).is_directory() {
        return Ok(Some(node));
    }
    let cause = "every file system has a directory of this name; leave the entry out";
    Err(Error::entry(LOST_FOUND, cause))
}

/// Returns the logical blocks of a file of `size` bytes with data in these ranges, each run from
/// the border of a cluster. Block size and blocks of a cluster are given.
pub(crate) fn file_blocks(
    (block_size, ratio): (u64, u64),
    size: u64,
    ranges: impl Iterator<Item = Range<u64>>,
) -> LogicalRuns {
    let blocks = size.div_ceil(block_size);
    merged(ranges.map(|range| {
        let start = range.start / block_size;
        let end = range.end.div_ceil(block_size);
        start - start % ratio..end.next_multiple_of(ratio).min(blocks)
    }))
}

/// Returns the cause for which a file system cannot hold a file of `size` bytes.
pub(crate) fn exceeds_map(geo: &Geometry, size: u64) -> Option<String> {
    let most = if geo.incompat(Incompat::EXTENTS) {
        u64::from(MAX_LOGICAL) + 1
    } else {
        indirect::max_blocks(geo.block_size)
    };
    (size.div_ceil(geo.block_size.into()) > most)
        .then(|| format!("a file of {size} bytes exceeds the {most} blocks that its inode can map"))
}

/// Joins ascending runs that overlap or touch.
fn merged(runs: impl Iterator<Item = Range<u64>>) -> LogicalRuns {
    let mut joined: LogicalRuns = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => joined.push(run),
        }
    }
    joined
}
