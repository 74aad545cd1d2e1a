//! The order of nodes, and with it the inode numbers.
//!
//! `lost+found` follows the root if the tree has it: its inode is that of every file system.
//! Directories come first, in the order of a walk that takes names by their bytes, so that a walk
//! of the image reads its inode tables and directory blocks in order. Then follow the other nodes,
//! directory by directory. A node with several names belongs to the first directory that has one.

use crate::tree::{EntryId, NodeId, Tree};
use extant_format::InodeNr;
use std::ops::Range;

/// The position of a node; 0 is the root.
pub(crate) type Position = u32;

/// No position: a node without names.
const NONE: Position = Position::MAX;

/// Nodes in order.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Nodes by position.
    nodes: Vec<NodeId>,
    /// Positions by node.
    positions: Vec<Position>,
    directories: u32,
    /// Position 1 is that of `lost+found`.
    has_lost_found: bool,
    /// Sorted entries of all directories, one directory after the other.
    children: Vec<EntryId>,
    /// First of a directory's entries, by position, and the end of the last.
    first_child: Vec<u32>,
}

impl Numbers {
    /// Numbers the nodes. `lost_found` is the directory of this name in the root.
    pub(crate) fn new(tree: &Tree, lost_found: Option<NodeId>) -> Numbers {
        let mut numbers = Numbers {
            nodes: Vec::new(),
            positions: vec![NONE; tree.node_count()],
            directories: 0,
            has_lost_found: lost_found.is_some(),
            children: Vec::new(),
            first_child: vec![0],
        };
        numbers.walk(tree, lost_found);
        numbers.directories = numbers.nodes.len() as u32;
        for entry in 0..numbers.children.len() {
            let node = tree.entry_node(numbers.children[entry]);
            if numbers.positions[node.0 as usize] == NONE {
                numbers.push(node);
            }
        }
        numbers
    }

    fn push(&mut self, node: NodeId) {
        self.positions[node.0 as usize] = self.nodes.len() as u32;
        self.nodes.push(node);
    }

    /// Numbers the directories.
    fn walk(&mut self, tree: &Tree, lost_found: Option<NodeId>) {
        let mut pending = vec![NodeId::ROOT];
        while let Some(directory) = pending.pop() {
            self.push(directory);
            let children = tree.sorted_children(directory);
            let nodes = children.iter().rev().map(|entry| tree.entry_node(*entry));
            let nodes = nodes.filter(|node| Some(*node) != lost_found);
            pending.extend(nodes.filter(|node| tree.node(*node).is_directory()));
            if directory == NodeId::ROOT {
                pending.extend(lost_found);
            }
            self.children.extend(children);
            self.first_child.push(self.children.len() as u32);
        }
    }

    /// Returns the number of nodes, the root included.
    pub(crate) fn len(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Returns the number of directories; their positions are the first ones.
    pub(crate) fn directories(&self) -> u32 {
        self.directories
    }

    pub(crate) fn node(&self, position: Position) -> NodeId {
        self.nodes[position as usize]
    }

    pub(crate) fn position(&self, node: NodeId) -> Position {
        self.positions[node.0 as usize]
    }

    /// Returns the sorted entries of a directory.
    pub(crate) fn children(&self, directory: Position) -> &[EntryId] {
        let bound = |n: Position| self.first_child.get(n as usize).map_or(0, |n| *n as usize);
        self.children.get(bound(directory)..bound(directory + 1)).unwrap_or_default()
    }

    /// Returns the position of `lost+found`.
    pub(crate) fn lost_found(&self) -> Option<Position> {
        self.has_lost_found.then_some(1)
    }

    /// Returns the number of nodes whose inodes have numbers of their own in every file system: the
    /// root and `lost+found`.
    pub(crate) fn fixed(&self) -> u32 {
        1 + u32::from(self.has_lost_found)
    }

    /// Returns the inode of a position, where `first` is the first one after the fixed ones.
    pub(crate) fn inode_of(&self, position: Position, first: InodeNr) -> InodeNr {
        match position.checked_sub(self.fixed()) {
            Some(number) => InodeNr(first.0 + number),
            None if position == 0 => InodeNr::ROOT,
            None => InodeNr::FIRST_ORDINARY,
        }
    }

    /// Returns the position of an inode, where `first` is the first one after the fixed ones.
    pub(crate) fn position_of(&self, ino: InodeNr, first: InodeNr) -> Position {
        match ino.0.checked_sub(first.0) {
            Some(number) => number + self.fixed(),
            None => u32::from(ino != InodeNr::ROOT),
        }
    }

    /// Returns the positions of inodes without the fixed ones, the first of which is `first`.
    pub(crate) fn positions_of(&self, inodes: Range<u32>, first: InodeNr) -> Range<Position> {
        let position = |ino: u32| (ino + self.fixed()).saturating_sub(first.0).max(self.fixed());
        position(inodes.start)..position(inodes.end)
    }
}
