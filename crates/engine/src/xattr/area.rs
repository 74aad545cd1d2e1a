//! Where an inode's attributes are: in its own area, and in an attribute block.

use super::AttrEnv;
use super::block::{self, Block};
use super::names::Key;
use super::value::Values;
use crate::error::Result;
use crate::inode::{Inode, Step, Tail};
use extant_format::xattr::{Entry, decode_inode_area, encode_inode_area};
use std::sync::Arc;

/// All attributes of an inode, decoded.
pub(super) struct Places {
    /// In the inode.
    pub here: Vec<Entry>,
    /// In its block.
    pub block: Option<Block>,
    /// Values in other inodes that a change may release, opened by [`Places::read_to_change`].
    pub values: Values,
}

impl Places {
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

    /// As [`Places::read`], before `key` is changed or the block is given up: opens the values that
    /// may lose or gain a reference by that. Of a block that others share a copy may be made, or it
    /// is freed if they have given it up meanwhile, so that all its values count.
    ///
    /// Errors: `Corrupt`, `Io`.
    pub fn read_to_change(env: &AttrEnv, inode: &Inode, key: Option<&Key<'_>>) -> Result<Places> {
        let mut places = Places::read(env, inode)?;
        let shared = places.block.as_ref().is_some_and(|block| block.refcount > 1);
        let is_key = |attr: &&Entry| key.is_some_and(|key| is(attr, key));
        let in_block = places.in_block().iter().filter(|attr| shared || is_key(attr));
        places.values =
            Values::open(env, inode, places.here.iter().filter(is_key).chain(in_block))?;
        Ok(places)
    }

    /// The attributes of the block.
    pub fn in_block(&self) -> &[Entry] {
        self.block.as_ref().map_or(&[], |block| &block.attrs)
    }

    /// All attributes, those of the inode's own area first.
    pub fn all(&self) -> impl Iterator<Item = &Entry> {
        self.here.iter().chain(self.in_block())
    }

    /// Finds an attribute.
    pub fn find(&self, key: &Key<'_>) -> Option<&Entry> {
        self.all().find(|attr| is(attr, key))
    }
}

/// Whether an attribute has this name.
pub(super) fn is(attr: &Entry, key: &Key<'_>) -> bool {
    attr.is(key.index, key.suffix)
}

/// `attrs` without `key`, and with `new` in its place if there is one.
pub(super) fn with(attrs: &[Entry], key: &Key<'_>, new: Option<&Entry>) -> Vec<Entry> {
    let mut out: Vec<Entry> = attrs.iter().filter(|attr| !is(attr, key)).cloned().collect();
    out.extend(new.cloned());
    out
}

/// The inode's area with these attributes; `None` if they do not fit.
pub(super) fn encode_here(inode: &Inode, attrs: &[Entry]) -> Option<Box<[u8]>> {
    let mut tail = vec![0; inode.body().tail.len()].into_boxed_slice();
    encode_inode_area(attrs, &mut tail).then_some(tail)
}

/// Stores an encoded area.
pub(super) fn store_here(step: &mut Step<'_>, inode: &Arc<Inode>, tail: &[u8]) -> Result<()> {
    step.edit(inode)?.tail = Tail::from(tail);
    Ok(())
}
