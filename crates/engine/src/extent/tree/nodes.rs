//! The storage of the nodes of an extent tree, as the tree sees it.

use crate::error::Result;
use extant_format::extent::{Node, NodeMut};

/// A node: the root lies in the inode, the others in blocks of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::extent) enum At {
    /// In the inode.
    Root,
    /// In this block.
    Block(u64),
}

/// The properties of a node that its parent states.
#[derive(Clone, Copy, Debug)]
pub(in crate::extent) struct Expect {
    /// Levels below it; not known of the root.
    pub depth: Option<u16>,
    /// Its first key; not known of the root.
    pub first: Option<u32>,
    /// All its blocks lie below this logical block.
    pub end: u64,
}

/// Logical blocks end below this number: the last one that a file may have is 0xFFFF_FFFE.
pub(in crate::extent) const LOGICAL_END: u64 = 0xFFFF_FFFF;

impl Expect {
    /// Nothing is known of the root.
    pub const ROOT: Expect = Expect { depth: None, first: None, end: LOGICAL_END };
}

/// Nodes for reading.
pub(in crate::extent) trait Nodes {
    /// Runs `f` on a node with a valid header and the expected depth. `f` must not take a lock.
    fn view<R>(&self, at: At, expect: Expect, f: impl FnOnce(Node<'_>) -> R) -> Result<R>;
}

/// Nodes for changing.
pub(in crate::extent) trait NodesMut: Nodes {
    /// Runs `f` on a node that was viewed or created before. `f` must not take a lock.
    fn change<R>(&mut self, at: At, f: impl FnOnce(NodeMut<'_>) -> R) -> Result<R>;

    /// Formats a node anew, without entries, and runs `f` on it.
    fn format<R>(&mut self, at: At, depth: u16, f: impl FnOnce(NodeMut<'_>) -> R) -> Result<R>;

    /// Makes sure that the next `blocks` calls of [`Self::create`] do not lack space. Changes
    /// nothing on disk.
    fn prepare(&mut self, blocks: usize) -> Result<()>;

    /// Allocates a block, which the caller must format.
    fn create(&mut self) -> Result<u64>;

    /// Frees a block that is no longer a node.
    fn release(&mut self, block: u64) -> Result<()>;

    /// Reads a node and keeps it in memory until the next step has ended.
    fn hold(&mut self, at: At, expect: Expect) -> Result<()>;

    /// Reads the bitmaps that the next step needs to release the block. Changes nothing.
    fn prepare_release(&mut self, block: u64) -> Result<()>;

    /// Runs a step, of which all or nothing becomes durable. Everything that it needs must be
    /// prepared and held: an error after its first change aborts the journal.
    fn step<R>(&mut self, change: impl FnOnce(&mut Self) -> Result<R>) -> Result<R>;

    /// Runs a step that follows a finished edit and only makes the tree smaller. False if it failed
    /// before its first change: the edit stands without it.
    fn optional_step(&mut self, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<bool> {
        self.step(change).map(|()| true)
    }
}
