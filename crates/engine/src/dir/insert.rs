//! Insertion of a name into a directory of any kind, and conversion to the next kind.

use super::area::{self, New, Room};
use super::blocks::{Dir, overwrite};
use super::hash::Hasher;
use super::{Kind, inline, linear, split};
use crate::error::{Error, Result};
use crate::inode::{Inode, Step};
use extant_format::htree::{NodeMut, RootInfo};
use extant_format::inode::InodeFlags;
use std::sync::Arc;

/// Inserts `new`, and converts the directory if its kind has no space left.
pub(super) fn insert(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    new: &New<'_>,
) -> Result<()> {
    if d.kind == Kind::Inline {
        if inline::insert(d, step, owner, new)? {
            return Ok(());
        }
        inline::convert(d, step, owner)?;
    }
    match d.kind {
        Kind::Indexed => insert_indexed(d, step, owner, new),
        _ => insert_linear(d, step, owner, new),
    }
}

fn insert_linear(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    new: &New<'_>,
) -> Result<()> {
    if owner.flags().contains(InodeFlags::INDEX) {
        // The index misses the new name: readers must ignore it.
        step.edit(owner)?.flags.remove(InodeFlags::INDEX);
    }
    if d.count == 1 && d.hashed() {
        let buf = d.load(0)?;
        if linear::insert_at(d, step, &buf, Room::Unknown, new)? {
            linear::note_gap(d, 0, &buf);
            return Ok(());
        }
        index(d, step, owner)?;
        return insert_indexed(d, step, owner, new);
    }
    linear::insert(d, step, owner, new)
}

/// Inserts into the hash tree. If the tree is damaged and no checksum protects the index, the
/// directory becomes linear: the leaves hold all names without it.
fn insert_indexed(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    new: &New<'_>,
) -> Result<()> {
    match split::insert(d, step, owner, new) {
        Err(Error::Corrupt(e)) if !d.format.metadata_csum => {
            tracing::warn!(%e, "hash tree is corrupt, removing the index; e2fsck -D rebuilds it");
            step.edit(owner)?.flags.remove(InodeFlags::INDEX);
            d.kind = Kind::Linear;
            linear::insert(d, step, owner, new)
        }
        other => other,
    }
}

/// Converts a full directory of one block to an indexed one: the names move to a new leaf, and
/// block 0 becomes the root.
fn index(d: &mut Dir<'_>, step: &mut Step<'_>, owner: &Arc<Inode>) -> Result<()> {
    // The new leaf is complete before the flag and the root change: if the block cannot be
    // allocated, the directory is unchanged.
    let (_, parent) = linear::dotdot(d)?;
    let first = d.load(0)?;
    let old = first.snapshot();
    let names: Vec<_> = area::names(d.format.area(&old), &d.format).collect::<Result<_, _>>()?;
    let leaf =
        linear::leaf_image(d, names.into_iter()).ok_or_else(|| d.corrupt("directory block", 0))?;
    let (lblk, buf) = d.grow(step, owner)?;
    overwrite(step, &buf, d.leaf_seal(), &leaf)?;
    let mut root = vec![0; d.format.block_size as usize];
    let info = RootInfo { hash_version: Hasher::default_of(d).version, levels: 0 };
    NodeMut::init_root(&mut root, &d.format, info, d.inode.ino, parent, lblk);
    step.edit(owner)?.flags.insert(InodeFlags::INDEX);
    d.kind = Kind::Indexed;
    d.inode.dir.lock().gaps = None;
    overwrite(step, &first, d.index_seal(), &root)
}
