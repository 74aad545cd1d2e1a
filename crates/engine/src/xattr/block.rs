//! Attribute blocks, shared by inodes with equal attributes.
//!
//! For example, 1,000 files with the same default ACL refer to one block, 5000, whose reference
//! count is 1,000. A file that changes its ACL gets a block of its own, or shares another known
//! block.
//!
//! # Invariants
//! - The entries of a block change only while its reference count is 1. The count is read under the
//!   buffer's lock, and the entries are written under the same lock. A thread that takes a
//!   reference compares the entries and raises the count under that lock, too.
//! - Dropping the last reference and freeing the block is one step under
//!   [`super::AttrCache::sharing`]: a thread that finds a block by its hash finds it in use.
//! - A block holds one reference to each attribute inode that its entries name, however many inodes
//!   share the block.
//!
//! # Locking
//! The buffer's lock is never held across a call of another module. `sharing` is held while a block
//! is freed.

use super::area::Places;
use super::value::{self, Values};
use super::{AttrEnv, Change};
use crate::alloc::{Claim, Purpose, Request};
use crate::error::{Error, Result};
use crate::extent;
use crate::groups;
use crate::inode::{Inode, Step};
use crate::volume::SpaceRights;
use extant_blocks::Buffer;
use extant_format::error::Corrupt;
use extant_format::inode::InodeFlags;
use extant_format::types::BlockNr;
use extant_format::xattr::{
    Entry, REFCOUNT_MAX, decode_block, encode_block, refcount, seal_xattr_block, set_refcount,
    verify_xattr_block,
};
use extant_journal::Seal;
use std::sync::Arc;

/// Maximum number of blocks that are known by their hash.
const KNOWN_MAX: usize = 4096;

/// A decoded attribute block.
pub(super) struct Block {
    pub buf: Arc<Buffer>,
    pub hash: u32,
    pub refcount: u32,
    pub attrs: Vec<Entry>,
}

/// Reads and verifies the attribute block `nr` of an inode.
pub(super) fn load(env: &AttrEnv, inode: &Inode, nr: u64) -> Result<Block> {
    let at = |e: Corrupt| e.at_inode(inode.ino).at_block(nr);
    let is_outside = nr < u64::from(env.geo.first_data_block) || nr >= env.geo.blocks_count;
    if is_outside || is_system(env, nr) {
        return Err(at(Corrupt::new("attribute block").field("number").found(nr)).into());
    }
    let (geo, seed) = (&env.geo, env.geo.csum_seed);
    let buf = env.cache.read::<Error>(nr, |bytes| {
        if geo.metadata_csum {
            verify_xattr_block(bytes, nr, seed).map_err(at)?;
        }
        Ok(decode_block(bytes).map(drop).map_err(at)?)
    })?;
    let (header, attrs) = decode_block(&buf.read()).map_err(at)?;
    Ok(Block { buf, hash: header.hash, refcount: header.refcount, attrs })
}

/// Returns whether a block is a bitmap, or a part of an inode table or of the log. Such a block can
/// look like attributes, and a change of attributes would then write inodes.
fn is_system(env: &AttrEnv, nr: u64) -> bool {
    let zone = env.groups.zone();
    zone.holds_metadata(nr..nr + 1) || zone.holds_log(nr..nr + 1)
}

fn seal(env: &AttrEnv) -> Seal {
    if env.geo.metadata_csum {
        Seal { f: seal_xattr_block, seed: env.geo.csum_seed }
    } else {
        Seal::NONE
    }
}

/// Encodes a block with these attributes. Returns `None` if they do not fit.
pub(super) fn encode(env: &AttrEnv, attrs: &[Entry]) -> Option<Vec<u8>> {
    let mut image = vec![0; env.block_size()];
    encode_block(attrs, 1, &mut image).then_some(image)
}

/// Makes `image`, the encoded `attrs`, the inode's attribute block, in place of the block in
/// `places`. Shares a known block with equal entries, rewrites the old block, or writes `spare`.
/// Releases the values that only the old block names. Returns false, with nothing changed, if it
/// needs a spare block and there is none.
pub(super) fn store(
    change: &Change<'_>,
    step: &mut Step<'_>,
    (attrs, image): (&[Entry], &[u8]),
    spare: &mut Option<Claim>,
) -> Result<bool> {
    let Change { env, inode, places, .. } = *change;
    let old = places.block.as_ref();
    let (header, new) = decode_block(image)?;
    let hash = header.hash;
    // Only blocks without values in attribute inodes are shared here. The kernel shares others too.
    let shareable = hash != 0 && values(attrs).next().is_none();
    if shareable && let Some(nr) = share(env, step, old, hash, &new)? {
        return point(env, step, inode, places, nr).map(|()| true);
    }
    // Without other users the old block is rewritten. If another inode took a reference since
    // `places` was read, `rewrite` changes nothing and a new block follows.
    if let Some(old) = old
        && old.refcount == 1
        && rewrite(env, step, old, image)?
    {
        remember(env, hash, old.buf.nr(), shareable);
        let mut gone = values(&old.attrs).filter(|ino| !values(attrs).any(|kept| kept == *ino));
        gone.try_for_each(|ino| places.values.release(env, step, ino))?;
        return Ok(true);
    }
    let Some(claim) = spare.take() else { return Ok(false) };
    let nr = create(env, step, claim, image)?;
    remember(env, hash, nr, shareable);
    if let Some(old) = old {
        // The old block keeps its own references to the values that both blocks name.
        for ino in values(attrs).filter(|ino| values(&old.attrs).any(|both| both == *ino)) {
            places.values.retain(step, ino)?;
        }
    }
    point(env, step, inode, places, nr).map(|()| true)
}

/// Drops the inode's attribute block, if it has one.
pub(super) fn remove(
    env: &AttrEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    places: &Places,
) -> Result<()> {
    let Some(old) = &places.block else { return Ok(()) };
    extent::charge(env, step, inode, -i64::from(env.geo.cluster_ratio()))?;
    step.edit(inode)?.file_acl = 0;
    unref(env, step, old, &places.values)
}

/// Makes `nr` the inode's attribute block. The inode must have a reference to it already.
fn point(
    env: &AttrEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    places: &Places,
    nr: u64,
) -> Result<()> {
    step.edit(inode)?.file_acl = nr;
    match &places.block {
        Some(old) => unref(env, step, old, &places.values),
        None => extent::charge(env, step, inode, i64::from(env.geo.cluster_ratio())),
    }
}

/// Returns the inodes that hold values of these attributes.
fn values(attrs: &[Entry]) -> impl Iterator<Item = u32> {
    attrs.iter().filter_map(value::inode_of)
}

/// Replaces the entries of a block that no other inode shares. Returns false, with the block
/// unchanged, if another inode shares it by now.
fn rewrite(env: &AttrEnv, step: &mut Step<'_>, old: &Block, image: &[u8]) -> Result<bool> {
    // The block leaves the known blocks first: its hash is about to change.
    forget(env, old.hash, old.buf.nr());
    let mut bytes = step.write(&old.buf, seal(env))?;
    if refcount(&bytes) != 1 {
        return Ok(false);
    }
    let len = bytes.len().min(image.len());
    bytes[..len].copy_from_slice(&image[..len]);
    Ok(true)
}

/// Takes a reference to a known block with the entries `new`, other than `old`. Returns `None` if
/// none is known.
fn share(
    env: &AttrEnv,
    step: &mut Step<'_>,
    old: Option<&Block>,
    hash: u32,
    new: &[Entry],
) -> Result<Option<u64>> {
    // Excludes `unref`: the block must not be freed between the look-up and the new reference.
    let _sharing = env.attrs.sharing.lock();
    let known = env.attrs.blocks.lock().get(&hash).copied();
    let Some(nr) = known.filter(|&nr| old.is_none_or(|old| old.buf.nr() != nr)) else {
        return Ok(None);
    };
    let Some(buf) = env.cache.peek(nr) else { return Ok(None) };
    let usable = |bytes: &[u8]| {
        decode_block(bytes).is_ok_and(|(header, own)| header.refcount < REFCOUNT_MAX && own == new)
    };
    // The first comparison keeps a block that cannot be shared out of the transaction. The second
    // one, under the lock for writing, decides: the entries or the count may have changed in
    // between.
    if !usable(&buf.read()) {
        return Ok(None);
    }
    let mut bytes = step.write(&buf, seal(env))?;
    if !usable(&bytes) {
        return Ok(None);
    }
    let count = refcount(&bytes) + 1;
    set_refcount(&mut bytes, count);
    Ok(Some(nr))
}

/// Drops a reference. The last one frees the block and releases its values.
fn unref(env: &AttrEnv, step: &mut Step<'_>, old: &Block, opened: &Values) -> Result<()> {
    let nr = old.buf.nr();
    // Held until the block is free, so that `share` cannot join the freed block to a transaction
    // again, which would cancel its revoke.
    let sharing = env.attrs.sharing.lock();
    let left = {
        let mut bytes = step.write(&old.buf, seal(env))?;
        let count = refcount(&bytes);
        let left = count.checked_sub(1).ok_or_else(|| {
            Corrupt::new("attribute block").field("reference count").found(0u32).at_block(nr)
        })?;
        set_refcount(&mut bytes, left);
        left
    };
    if left > 0 {
        return Ok(());
    }
    // The hash must be unknown before the block is free.
    forget(env, old.hash, nr);
    env.alloc.free(step.handle(), BlockNr(nr), env.geo.cluster_ratio(), Purpose::Metadata)?;
    drop(sharing);
    values(&old.attrs).try_for_each(|ino| opened.release(env, step, ino))
}

/// Claims a block for this inode alone, and reads the bitmap in which it is to be booked.
///
/// # Errors
/// ENOSPC, EDQUOT, `Corrupt`, `Io`.
pub(super) fn claim(env: &AttrEnv, inode: &Inode, rights: SpaceRights) -> Result<Claim> {
    let want = Request {
        goal: env.alloc.inode_goal(inode.ino),
        len: 1,
        min: 1,
        purpose: Purpose::Metadata,
        privileged: false,
        reserved: false,
        low: !inode.flags().contains(InodeFlags::EXTENTS),
    };
    // Only checks the quota: the inode is charged when it gets the block, unless it replaces
    // another one.
    let more = if inode.body().file_acl == 0 { env.geo.cluster_ratio() } else { 0 };
    env.quota.promise(inode, more, !rights.ignore_limits)?;
    env.quota.release_reservation(inode, more.into());
    let claim = env.alloc.claim(&want)?;
    if let Some(g) = env.geo.group_of_block(claim.start) {
        env.groups.bitmap(g, groups::Kind::Blocks)?;
        env.groups.desc_block(g)?;
    }
    Ok(claim)
}

/// Books a claimed block and writes `image` into it. Returns its number.
fn create(env: &AttrEnv, step: &mut Step<'_>, mut claim: Claim, image: &[u8]) -> Result<u64> {
    let len = claim.len;
    let nr = env.alloc.book(step.handle(), &mut claim, len)?.0;
    let buf = env.cache.fresh(nr);
    let mut bytes = step.write(&buf, seal(env))?;
    let len = bytes.len().min(image.len());
    bytes[..len].copy_from_slice(&image[..len]);
    Ok(nr)
}

fn remember(env: &AttrEnv, hash: u32, nr: u64, shareable: bool) {
    if !shareable {
        return;
    }
    let mut known = env.attrs.blocks.lock();
    if known.len() >= KNOWN_MAX {
        known.clear();
    }
    known.insert(hash, nr);
}

fn forget(env: &AttrEnv, hash: u32, nr: u64) {
    let mut known = env.attrs.blocks.lock();
    if known.get(&hash) == Some(&nr) {
        known.remove(&hash);
    }
}
