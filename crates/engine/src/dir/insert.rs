//! Insertion of a name into a directory of any kind, and conversion to the next kind.

use super::area::{self, NamedInode, Room};
use super::blocks::Dir;
use super::hash::Hasher;
use super::{Kind, inline, linear, split};
use crate::error::{Error, Result};
use crate::inode::{Inode, Step, Tx};
use crate::xattr::AttrEnv;
use extant_format::dir::Dots;
use extant_format::error::Corrupt;
use extant_format::htree::{NodeMut, RootInfo};
use extant_format::inode::InodeFlags;
use std::sync::Arc;

/// How often an insertion is tried: a directory may leave its inode, get an index, and get space in
/// its tree.
pub(super) const MAX_PASSES: u32 = 4;

/// Inserts `new` within a step. Returns false, with nothing changed, if that takes more than a
/// change of one leaf: [`make_space`] comes first then. Only the first change may lack space.
pub(super) fn insert(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    new: &NamedInode<'_>,
) -> Result<bool> {
    match d.kind {
        Kind::Inline => inline::insert(d, step, owner, new),
        Kind::Linear => insert_linear(d, step, owner, new),
        Kind::Indexed => insert_indexed(d, step, owner, new),
    }
}

/// Changes the form of a directory, or the nodes of its hash tree, so that one more leaf or none
/// holds `new`. Each change is a step.
pub(super) fn make_space(
    env: &AttrEnv,
    tx: &mut Tx<'_>,
    owner: &Arc<Inode>,
    new: &NamedInode<'_>,
) -> Result<()> {
    let mut d = Dir::open_for_change(env, owner)?;
    match d.kind {
        Kind::Inline => inline::convert(&mut d, tx, owner),
        Kind::Linear => tx.step(|step| index(&mut d, step, owner)),
        Kind::Indexed => match split::make_space(&mut d, tx, owner, new) {
            Err(Error::Corrupt(e)) if !d.format.metadata_csum => {
                tx.step(|step| drop_index(step, owner, &e))
            }
            done => done,
        },
    }
}

fn insert_linear(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    new: &NamedInode<'_>,
) -> Result<bool> {
    if d.count == 1 && d.hashed() {
        let buf = d.load(0)?;
        let inserted = linear::insert_at(d, step, &buf, Room::Unknown, new)?;
        if inserted {
            linear::note_gap(d, 0, &buf);
        }
        return Ok(inserted);
    }
    linear::insert(d, step, owner, new)?;
    if owner.flags().contains(InodeFlags::INDEX) {
        // The index misses the new name: readers must ignore it.
        step.edit(owner)?.flags.remove(InodeFlags::INDEX);
    }
    Ok(true)
}

/// Inserts into the hash tree. If the tree is damaged and no checksum protects the index, the
/// directory becomes linear: the leaves hold all names without it.
fn insert_indexed(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    new: &NamedInode<'_>,
) -> Result<bool> {
    match split::insert(d, step, owner, new) {
        Err(Error::Corrupt(e)) if !d.format.metadata_csum => {
            d.kind = Kind::Linear;
            linear::insert(d, step, owner, new)?;
            drop_index(step, owner, &e).map(|()| true)
        }
        other => other,
    }
}

fn drop_index(step: &mut Step<'_>, owner: &Arc<Inode>, why: &Corrupt) -> Result<()> {
    tracing::warn!(%why, "hash tree is corrupt, removing the index; e2fsck -D rebuilds it");
    step.edit(owner)?.flags.remove(InodeFlags::INDEX);
    Ok(())
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
    d.overwrite(step, &buf, d.leaf_seal(), &leaf)?;
    let mut root = vec![0; d.format.block_size as usize];
    let info = RootInfo { hash_version: Hasher::default_of(d).version, levels: 0 };
    NodeMut::init_root(&mut root, &d.format, info, Dots { own: d.inode.ino, parent }, lblk);
    step.edit(owner)?.flags.insert(InodeFlags::INDEX);
    d.kind = Kind::Indexed;
    d.inode.dir.lock().gaps = None;
    d.overwrite(step, &first, d.index_seal(), &root)
}
