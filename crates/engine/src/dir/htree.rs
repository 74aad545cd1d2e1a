//! Walks of the hash tree: from a hash to its leaf, and along a chain of leaves with equal hashes.
//!
//! # Invariants
//! Index blocks are untrusted. A child lies within the directory and is not the root, the number of
//! levels is bounded, and a walk along leaves visits at most as many leaves as the directory has
//! blocks.

use super::EntryPos;
use super::area::{self, Room};
use super::blocks::{Dir, Shape};
use super::hash::Hasher;
use crate::bounds::Walk;
use crate::error::{Error, Result};
use extant_blocks::Buffer;
use extant_format::htree::{Kind, Node, RootInfo};
use smallvec::SmallVec;
use std::sync::Arc;

/// A node on a path, with the index of the entry that the path follows.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub lblk: u32,
    pub buf: Arc<Buffer>,
    pub at: usize,
}

/// A path from the root to a leaf.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub frames: SmallVec<[Frame; 3]>,
    /// Logical block of the leaf.
    pub leaf: u32,
}

impl Frame {
    pub fn kind(&self) -> Kind {
        if self.lblk == 0 { Kind::Root } else { Kind::Interior }
    }

    /// Calls `f` with the opened node.
    pub fn with<R>(&self, d: &Dir<'_>, f: impl FnOnce(&Node<'_>) -> R) -> Result<R> {
        let bytes = self.buf.read();
        let node = Node::open(&bytes, self.kind(), &d.format)
            .map_err(|e| e.at_inode(d.inode.ino).at_block(self.buf.nr()))?;
        Ok(f(&node))
    }
}

/// The root of a hash tree, with its parsed header.
pub(super) struct Root {
    pub buf: Arc<Buffer>,
    pub hasher: Hasher,
    pub info: RootInfo,
}

/// Reads the root and verifies its header.
pub(super) fn root(d: &Dir<'_>) -> Result<Root> {
    let buf = d.load(0)?;
    let info = RootInfo::parse(&buf.read(), &d.format)
        .map_err(|e| e.at_inode(d.inode.ino).at_block(buf.nr()))?;
    Ok(Root { buf, hasher: Hasher::new(d, info.hash_version), info })
}

/// Descends to the first leaf that may hold `hash`.
pub(super) fn probe(d: &Dir<'_>, root: &Root, hash: u32) -> Result<Path> {
    let mut frames = SmallVec::new();
    let mut frame = Frame { lblk: 0, buf: root.buf.clone(), at: 0 };
    for level in 0..=root.info.levels {
        let (at, child) = frame.with(d, |node| {
            let at = node.find(hash);
            (at, block_of(node, at))
        })?;
        frame.at = at;
        frames.push(frame.clone());
        check_child(d, child)?;
        if level == root.info.levels {
            return Ok(Path { frames, leaf: child });
        }
        frame = Frame { lblk: child, buf: load_node(d, child)?, at: 0 };
    }
    Err(d.corrupt("hash tree", 0).into())
}

/// Finds the entry of a name. If the name is absent, returns the first leaf that it may go to.
pub(super) fn find(d: &Dir<'_>, name: &[u8]) -> Result<Result<EntryPos, (Arc<Buffer>, Room)>> {
    let root = root(d)?;
    let hash = root.hasher.major(name);
    let mut path = probe(d, &root, hash)?;
    let (mut first, mut chain) = (None, Walk::of(d.inode.ino));
    loop {
        let buf = load_leaf(d, path.leaf)?;
        let look = area::look(d.format.area(&buf.read()), d, name)
            .map_err(|e| e.at_inode(d.inode.ino).at_block(buf.nr()))?;
        let first = match look {
            Ok(hit) => return Ok(Ok(EntryPos { buf: Some(buf), lblk: path.leaf, hit })),
            Err(room) => first.get_or_insert((buf, room)),
        };
        match path.next_key(d)? {
            Some(key) if key == hash | 1 => {
                // The leaves of a chain must be distinct: else the chain has no end.
                chain.enter(path.leaf.into())?;
                path.advance(d)?;
            }
            _ => return Ok(Err(first.clone())),
        }
    }
}

/// Verifies, once while the inode is in memory, that the tree refers to each node and each leaf
/// once. Otherwise a listing would repeat a few leaves forever.
///
/// # Errors
/// `Corrupt` if a block is referred to twice; `Io`, EINTR.
pub(super) fn check_tree(d: &Dir<'_>, root: &Root) -> Result<()> {
    let known = d.inode.dir.lock().tree_is_sound;
    match known {
        Some(true) => return Ok(()),
        Some(false) => return Err(d.corrupt("hash tree child in several places", 0).into()),
        None => {}
    }
    d.check_map()?;
    let checked = walk_tree(d, root);
    // An I/O error says nothing about the tree: only a verdict is stored.
    if matches!(checked, Ok(()) | Err(Error::Corrupt(_))) {
        d.inode.dir.lock().tree_is_sound = Some(checked.is_ok());
    }
    checked
}

fn walk_tree(d: &Dir<'_>, root: &Root) -> Result<()> {
    // Nodes to visit, with the number of levels below each.
    let mut todo = vec![(0, root.info.levels)];
    let mut walk = Walk::of(d.inode.ino);
    while let Some((lblk, below)) = todo.pop() {
        let buf = if lblk == 0 { root.buf.clone() } else { load_node(d, lblk)? };
        let node = Frame { lblk, buf, at: 0 };
        let children: Vec<u32> =
            node.with(d, |node| node.entries().map(|(_, child)| child).collect())?;
        for child in children {
            check_child(d, child)?;
            walk.enter(child.into())?;
            todo.extend(below.checked_sub(1).map(|below| (child, below)));
        }
    }
    Ok(())
}

impl Path {
    /// Returns the key of the next leaf; `None` at the end.
    pub fn next_key(&self, d: &Dir<'_>) -> Result<Option<u32>> {
        for frame in self.frames.iter().rev() {
            let next = frame.with(d, |node| node.get(frame.at + 1).map(|(key, _)| key))?;
            if next.is_some() {
                return Ok(next);
            }
        }
        Ok(None)
    }

    /// Returns the key of this leaf; 0 for the first leaf.
    pub fn key(&self, d: &Dir<'_>) -> Result<u32> {
        match self.frames.iter().rev().find(|frame| frame.at > 0) {
            Some(frame) => frame.with(d, |node| node.get(frame.at).map_or(0, |(key, _)| key)),
            None => Ok(0),
        }
    }

    /// Moves on to the next leaf, which must exist.
    pub fn advance(&mut self, d: &Dir<'_>) -> Result<()> {
        let depth = self.frames.len();
        while let Some(mut frame) = self.frames.pop() {
            frame.at += 1;
            let child = frame.with(d, |node| node.get(frame.at).map(|(_, child)| child))?;
            if let Some(child) = child {
                self.frames.push(frame);
                return self.descend(d, depth, child);
            }
        }
        Err(d.corrupt("hash tree", self.leaf).into())
    }

    /// Descends to the leftmost leaf below `child`.
    fn descend(&mut self, d: &Dir<'_>, depth: usize, mut child: u32) -> Result<()> {
        check_child(d, child)?;
        while self.frames.len() < depth {
            let frame = Frame { lblk: child, buf: load_node(d, child)?, at: 0 };
            child = frame.with(d, |node| block_of(node, 0))?;
            check_child(d, child)?;
            self.frames.push(frame);
        }
        self.leaf = child;
        Ok(())
    }
}

/// Returns the child at an entry; 0, which no valid child has, if there is no such entry.
fn block_of(node: &Node<'_>, at: usize) -> u32 {
    node.get(at).map_or(0, |(_, child)| child)
}

fn check_child(d: &Dir<'_>, child: u32) -> Result<()> {
    if child == 0 || child >= d.count {
        return Err(d.corrupt("hash tree child", child).expected(d.count).into());
    }
    Ok(())
}

fn load_node(d: &Dir<'_>, lblk: u32) -> Result<Arc<Buffer>> {
    let buf = d.load(lblk)?;
    let shape = d.shape(lblk, &buf.read());
    if shape == Shape::Index { Ok(buf) } else { Err(d.corrupt("hash tree node", lblk).into()) }
}

/// Reads a leaf of the tree.
pub(super) fn load_leaf(d: &Dir<'_>, lblk: u32) -> Result<Arc<Buffer>> {
    let buf = d.load(lblk)?;
    // Without checksums an empty leaf looks like an interior node: both are one unused entry.
    let index = d.format.metadata_csum && d.shape(lblk, &buf.read()) == Shape::Index;
    if index { Err(d.corrupt("hash tree leaf", lblk).into()) } else { Ok(buf) }
}
