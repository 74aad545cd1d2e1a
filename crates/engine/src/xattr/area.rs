//! The two places of an inode's attributes: its own area and its attribute block.

use super::AttrEnv;
use super::block::{self, Block};
use super::names::Key;
use super::value::{self, Values};
use crate::error::Result;
use crate::inode::{Inode, Step, Tail};
use extant_format::types::BlockNr;
use extant_format::xattr::{Entry, decode_inode_area, encode_inode_area};
use std::sync::Arc;

/// All attributes of an inode, decoded.
pub(super) struct Places {
    /// Attributes in the inode's own area.
    pub here: Vec<Entry>,
    /// The attribute block, if the inode has one.
    pub block: Option<Block>,
    /// Values in other inodes that a change may release, opened by [`Places::read_to_change`].
    pub values: Values,
}

impl Places {
    /// Reads and decodes both places. Opens no values.
    ///
    /// Errors: `Corrupt`, `Io`.
    pub fn read(env: &AttrEnv, inode: &Inode) -> Result<Places> {
        let (tail, nr) = {
            let body = inode.body();
            (body.tail.clone(), body.file_acl)
        };
        let here = decode_inode_area(&tail).map_err(|e| e.at_inode(inode.ino))?;
        let block = if nr == 0 { None } else { Some(block::load(env, inode, nr)?) };
        Ok(Places { here, block, values: Values::default() })
    }

    /// Reads both places as [`Places::read`] does, verifies that the block is in use, and opens the
    /// values whose reference counts may change when `key` is changed or the block is dropped. The
    /// values of a shared block all count: it may be copied, or, if the other inodes drop it
    /// meanwhile, freed.
    ///
    /// Errors: `Corrupt`, `Io`.
    pub fn read_to_change(env: &AttrEnv, inode: &Inode, key: Option<&Key<'_>>) -> Result<Places> {
        let mut places = Places::read(env, inode)?;
        if let Some(block) = &places.block {
            let nr = BlockNr(block.buf.nr());
            value::check_used(env, ("attribute block", inode.ino), nr, 1)?;
        }
        let shared = places.block.as_ref().is_some_and(|block| block.refcount > 1);
        let is_key = |attr: &&Entry| key.is_some_and(|key| is(attr, key));
        let in_block = places.in_block().iter().filter(|attr| shared || is_key(attr));
        places.values =
            Values::open(env, inode, places.here.iter().filter(is_key).chain(in_block))?;
        Ok(places)
    }

    /// Returns the attributes in the block.
    pub fn in_block(&self) -> &[Entry] {
        self.block.as_ref().map_or(&[], |block| &block.attrs)
    }

    /// Returns all attributes, those in the inode's own area first.
    pub fn all(&self) -> impl Iterator<Item = &Entry> {
        self.here.iter().chain(self.in_block())
    }

    /// Finds the attribute with the name `key`.
    pub fn find(&self, key: &Key<'_>) -> Option<&Entry> {
        self.all().find(|attr| is(attr, key))
    }
}

/// Returns whether an attribute has the name `key`.
pub(super) fn is(attr: &Entry, key: &Key<'_>) -> bool {
    attr.is(key.index, key.suffix)
}

/// Returns `attrs` without `key`, followed by `new` if there is one.
pub(super) fn with(attrs: &[Entry], key: &Key<'_>, new: Option<&Entry>) -> Vec<Entry> {
    let mut out: Vec<Entry> = attrs.iter().filter(|attr| !is(attr, key)).cloned().collect();
    out.extend(new.cloned());
    out
}

/// Encodes the inode's own area with these attributes. Returns `None` if they do not fit.
pub(super) fn encode_here(inode: &Inode, attrs: &[Entry]) -> Option<Box<[u8]>> {
    let mut tail = vec![0; inode.body().tail.len()].into_boxed_slice();
    encode_inode_area(attrs, &mut tail).then_some(tail)
}

/// Stores an encoded area in the inode.
pub(super) fn store_here(step: &mut Step<'_>, inode: &Arc<Inode>, tail: &[u8]) -> Result<()> {
    step.edit(inode)?.tail = Tail::from(tail);
    Ok(())
}
