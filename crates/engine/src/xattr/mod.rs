//! Extended attributes in the inode, in a shared block or in inodes of their own; POSIX ACLs.
//!
//! A value of 20 bytes usually goes into the inode's own area, one of 2,000 bytes into the
//! attribute block, and one of 30,000 bytes, with the feature `ea_inode`, into an attribute inode.
//!
//! # Invariants
//! - An attribute is in one place: the inode's area or its block. It is stored in the inode if it
//!   fits there, else in the block. Else, with `ea_inode`, its value goes into an attribute inode,
//!   and the entry into the first of both places with enough space. A move takes place within one
//!   handle.
//! - Space is claimed before the step that needs it; values in attribute inodes are written by
//!   steps of their own before the entry that names them.
//!
//! # Locking
//! The caller must hold the inode's `rw` lock (for reading in [`get`] and [`list`]).

mod acl;
mod area;
mod block;
mod cache;
mod env;
mod names;
mod value;

pub use cache::AttrCache;
pub use env::AttrEnv;

pub use acl::{Inherited, acl_after_chmod, check_acl, inherit_acl, keep_access_acl};

use crate::alloc::Claim;
use crate::error::{Errno, Result};
use crate::inode::{Inode, Step, Tx};
use area::{Places, encode_here, is, store_here, with};
use extant_format::features::{Compat, Features, Incompat};
use extant_format::xattr::{Entry, Value, decode_inode_area, inode_area_space};
use extant_sync::atomic::Ordering;
use names::{INLINE_DATA, Key};
use std::sync::Arc;
use value::NewValue;

/// Largest value that system calls carry, in bytes.
pub const SIZE_MAX: usize = 64 * 1024;

/// The condition on an attribute's existence under which it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// None.
    Any,
    /// The attribute must not exist (EEXIST).
    Create,
    /// The attribute must exist (ENODATA).
    Replace,
}

/// Returns the value of an attribute by the full name of system calls (`user.x`). ACLs are
/// converted into the format of system calls.
///
/// # Errors
/// ENODATA if the attribute is absent, EOPNOTSUPP and ERANGE for invalid names, `Corrupt`, `Io`.
pub fn get(env: &AttrEnv, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    let key = names::parse(name)?;
    let stored = get_stored(env, inode, &key)?.ok_or(Errno::NoData)?;
    if key.is_acl() { acl::from_disk(inode, &stored) } else { Ok(stored) }
}

fn get_stored(env: &AttrEnv, inode: &Inode, key: &Key<'_>) -> Result<Option<Vec<u8>>> {
    if has_none(inode) {
        return Ok(None);
    }
    let places = Places::read(env, inode)?;
    value::check_total(inode, &places)?;
    places.find(key).map(|attr| value::read(env, inode, attr)).transpose()
}

/// Returns whether the inode is known, without I/O, to have no attributes.
pub fn has_none(inode: &Inode) -> bool {
    !inode.stat().has_attributes
}

/// Sets an attribute, or removes it if `value` is `None`. Does not change ctime or the mode. The
/// inode must have been touched. Each step leaves valid attributes; the attribute is set with the
/// last one, or not at all.
///
/// # Errors
/// EEXIST and ENODATA by `mode`, ENODATA on removal of an absent attribute, EOPNOTSUPP for unknown
/// namespaces, ERANGE and EINVAL for names, EINVAL for malformed ACLs, E2BIG above 64 KiB, ENOSPC
/// without space in the inode and its block; `Corrupt`, `Io`.
pub fn set(
    env: &AttrEnv,
    tx: &mut Tx<'_>,
    inode: &Arc<Inode>,
    (name, value): (&[u8], Option<&[u8]>),
    mode: Mode,
) -> Result<()> {
    let key = names::parse(name)?;
    if value.is_some_and(|value| value.len() > SIZE_MAX) {
        return Err(Errno::TooBig.into());
    }
    let value = match value {
        Some(value) if key.is_acl() => acl::to_disk(value)?,
        other => other.map(<[u8]>::to_vec),
    };
    // The cached ACL is dropped before the first change. The inode's lock keeps readers from
    // caching it again until the change is complete.
    if key.is_acl() {
        acl::forget(inode);
    }
    // Values and the block count are verified while nothing is changed: afterwards damage would
    // abort the step.
    let places = Places::read_to_change(env, inode, Some(&key))?;
    value::check_count(env, inode, &places, &key)?;
    let change = Change { env, inode, places: &places, key };
    match (places.find(&change.key).is_some(), mode, value) {
        (true, Mode::Create, _) => Err(Errno::Exist.into()),
        (false, Mode::Replace, _) | (false, _, None) => Err(Errno::NoData.into()),
        (_, _, None) => change.remove(tx),
        (_, _, Some(value)) => {
            tx.step(|step| announce(env, step))?;
            change.put(tx, &value)
        }
    }
}

/// A change of one attribute of an inode.
struct Change<'a> {
    env: &'a AttrEnv,
    inode: &'a Arc<Inode>,
    places: &'a Places,
    key: Key<'a>,
}

/// Where an attribute is to be stored, and the new content of that place.
enum Target {
    /// The inode's area.
    Area(Box<[u8]>),
    /// The attribute block, and the inode's area if the attribute was there before.
    Block { attrs: Vec<Entry>, image: Vec<u8>, area: Option<Box<[u8]>> },
}

impl Change<'_> {
    /// Stores a value in the first place with enough space.
    fn put(&self, tx: &mut Tx<'_>, value: &[u8]) -> Result<()> {
        let inline = Entry::new(self.key.index, self.key.suffix, value);
        if let Some(target) = self.target(&inline) {
            return self.store(tx, &target, None, 0);
        }
        // Checks that an entry without a value fits, before the value is stored.
        let (index, suffix, len) = (self.key.index, self.key.suffix, value.len());
        let entry = Entry::in_inode(index, suffix, u32::MAX, len as u32, 0);
        if !self.env.geo.incompat(Incompat::EA_INODE) || self.target(&entry).is_none() {
            return Err(Errno::NoSpc.into());
        }
        // Limits are checked before the value is written.
        value::check_limits(self, tx.rights(), len)?;
        let new = NewValue::make(self, tx, value)?;
        let stored = self.put_in_inode(tx, &new, value);
        if stored.is_err() {
            tx.step(|step| new.take_back(self, step))?;
        }
        stored
    }

    /// Writes a value into its inode, and stores the entry that names it.
    fn put_in_inode(&self, tx: &mut Tx<'_>, new: &NewValue, value: &[u8]) -> Result<()> {
        let entry = new.write(self, tx, value)?;
        let target = self.target(&entry).ok_or(Errno::NoSpc)?;
        self.store(tx, &target, Some(&entry), new.paid)
    }

    /// Returns where the attribute fits, `None` if it fits nowhere.
    fn target(&self, attr: &Entry) -> Option<Target> {
        let (places, key) = (self.places, &self.key);
        if let Some(tail) = encode_here(self.inode, &with(&places.here, key, Some(attr))) {
            return Some(Target::Area(tail));
        }
        let attrs = with(places.in_block(), key, Some(attr));
        let image = block::encode(self.env, &attrs)?;
        let without =
            places.here.iter().any(|attr| is(attr, key)).then(|| with(&places.here, key, None));
        let area = without.and_then(|here| encode_here(self.inode, &here));
        Some(Target::Block { attrs, image, area })
    }

    /// Stores the attribute at `target`, and charges the owners for the value that the entry `new`
    /// names, in one step. `paid` is the number of inodes that they are charged for already.
    fn store(
        &self,
        tx: &mut Tx<'_>,
        target: &Target,
        new: Option<&Entry>,
        paid: i64,
    ) -> Result<()> {
        // The block precedes the inode's area: it may need a new block, or a copy of a shared one.
        self.with_spare(tx, |step, spare| {
            let (stored, area) = match target {
                Target::Area(tail) => (self.drop_from_block(step, spare)?, Some(tail)),
                Target::Block { attrs, image, area } => {
                    let stored = block::store(self, step, (attrs, image), spare)?;
                    (stored, area.as_ref())
                }
            };
            if stored {
                area.map_or(Ok(()), |tail| self.put_here(step, tail))?;
                value::charge(self, step, new, paid)?;
            }
            Ok(stored)
        })
    }

    /// Removes the attribute.
    fn remove(&self, tx: &mut Tx<'_>) -> Result<()> {
        let here = &self.places.here;
        let found = here.iter().any(|attr| is(attr, &self.key));
        let tail = if found {
            let left = with(here, &self.key, None);
            Some(encode_here(self.inode, &left).ok_or(Errno::NoSpc)?)
        } else {
            None
        };
        self.with_spare(tx, |step, spare| {
            let dropped = self.drop_from_block(step, spare)?;
            if dropped {
                tail.as_ref().map_or(Ok(()), |tail| self.put_here(step, tail))?;
                value::charge(self, step, None, 0)?;
            }
            Ok(dropped)
        })
    }

    /// Runs a step that returns false, with nothing changed, if it needs a new block: then it runs
    /// again with one.
    fn with_spare(
        &self,
        tx: &mut Tx<'_>,
        mut change: impl FnMut(&mut Step<'_>, &mut Option<Claim>) -> Result<bool>,
    ) -> Result<()> {
        let mut spare = None;
        while !tx.step(|step| change(step, &mut spare))? {
            spare = Some(block::claim(self.env, self.inode, tx.rights())?);
        }
        Ok(())
    }

    /// Stores the inode's area and releases the value that the attribute had in it.
    fn put_here(&self, step: &mut Step<'_>, tail: &[u8]) -> Result<()> {
        store_here(step, self.inode, tail)?;
        let old = self.places.here.iter().find(|attr| is(attr, &self.key));
        match old.and_then(value::inode_of) {
            Some(ino) => self.places.values.release(self.env, step, ino),
            None => Ok(()),
        }
    }

    /// Removes the attribute from the block. Returns false, with nothing changed, if the others
    /// need a new block.
    fn drop_from_block(&self, step: &mut Step<'_>, spare: &mut Option<Claim>) -> Result<bool> {
        let Some(old) =
            self.places.block.as_ref().filter(|b| b.attrs.iter().any(|attr| is(attr, &self.key)))
        else {
            return Ok(true);
        };
        let left = with(&old.attrs, &self.key, None);
        if left.is_empty() {
            return block::remove(self.env, step, self.inode, self.places).map(|()| true);
        }
        let image = block::encode(self.env, &left).ok_or(Errno::NoSpc)?;
        block::store(self, step, (&left, &image), spare)
    }
}

/// Sets the feature `ext_attr` in the superblock with the first attribute.
fn announce(env: &AttrEnv, step: &mut Step<'_>) -> Result<()> {
    if env.geo.compat(Compat::EXT_ATTR) || env.attrs.announced.load(Ordering::Relaxed) {
        return Ok(());
    }
    let added = Features { compat: Compat::EXT_ATTR, ..Features::default() };
    env.groups.edit_superblock(step.handle(), |sb| sb.add_features(added))?;
    // Relaxed: setting the feature twice is harmless.
    env.attrs.announced.store(true, Ordering::Relaxed);
    Ok(())
}

/// Lists all full names except `system.data`.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn list(env: &AttrEnv, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    if has_none(inode) {
        return Ok(Vec::new());
    }
    let places = Places::read(env, inode)?;
    value::check_total(inode, &places)?;
    Ok(places.all().filter_map(|attr| names::full(attr.index, &attr.name)).collect())
}

/// Returns the credits of one [`set`] with a value of `value_len` bytes. On a small log they leave
/// a quarter of the transaction to the rest of the operation.
pub fn credits(env: &AttrEnv, value_len: usize) -> u32 {
    // The inode, the superblock, a block that is dropped and a new one.
    let base = 2 + 2 * (1 + env.alloc.credits(1));
    if !env.geo.incompat(Incompat::EA_INODE) {
        return base;
    }
    let worst = base + value::create_credits(env, value_len) + value::release_credits(env);
    worst.min(env.journal.max_credits() / 4 * 3)
}

/// Drops the attribute block and the attribute inodes of an inode that is being freed, each value
/// in a step. Returns the credits with which the handle must be restarted first, if it has too few.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn release(env: &AttrEnv, tx: &mut Tx<'_>, inode: &Arc<Inode>) -> Result<Option<u32>> {
    loop {
        if has_none(inode) {
            return Ok(None);
        }
        // One value for each pass, since each may need a handle of its own: the entries are read
        // again, so that a pass in a later handle continues with the remaining values.
        let places = Places::read(env, inode)?;
        let next = places.all().find(|attr| value::inode_of(attr).is_some());
        let Some(attr) = next else { return release_rest(env, tx, inode) };
        let shared = places.block.as_ref().is_some_and(|block| block.refcount > 1)
            && !places.here.contains(attr);
        if shared {
            // The values belong to the other users of the block.
            return release_rest(env, tx, inode);
        }
        let key = Key { index: attr.index, suffix: &attr.name };
        let places = Places::read_to_change(env, inode, Some(&key))?;
        value::check_count(env, inode, &places, &key)?;
        let need = places.values.credits(env, attr) + credits(env, 0);
        let need = need.min(env.journal.max_credits());
        if !afford(tx, need)? {
            return Ok(Some(need));
        }
        Change { env, inode, places: &places, key }.remove(tx)?;
    }
}

fn release_rest(env: &AttrEnv, tx: &mut Tx<'_>, inode: &Arc<Inode>) -> Result<Option<u32>> {
    // The other users of a shared block keep its values, unless they have dropped the block
    // meanwhile.
    let places = Places::read_to_change(env, inode, None)?;
    let need = 3 + 2 * env.alloc.credits(1) + env.owner_credits();
    if places.block.is_some() && !afford(tx, need)? {
        return Ok(Some(need));
    }
    let values: i64 = places.in_block().iter().map(value::inodes_of).sum();
    tx.touch(inode)?;
    tx.step(|step| {
        block::remove(env, step, inode, &places)?;
        value::charge_inodes(env, step.handle(), inode, -values, false)
    })?;
    Ok(None)
}

/// Returns the number of inodes that the owners of an inode are charged for: the inode itself, and
/// one for each value in an attribute inode.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn inode_usage(env: &AttrEnv, inode: &Inode) -> Result<i64> {
    if has_none(inode) {
        Ok(1)
    } else {
        Ok(1 + Places::read(env, inode)?.all().map(value::inodes_of).sum::<i64>())
    }
}

fn afford(tx: &mut Tx<'_>, need: u32) -> Result<bool> {
    let left = tx.credits_left();
    Ok(left >= need || tx.extend(need - left)?)
}

/// Returns the second part of inline data (`system.data`), empty if there is none.
///
/// # Errors
/// `Corrupt` for a malformed area.
pub fn inline_get(_st: &AttrEnv, inode: &Inode) -> Result<Vec<u8>> {
    let tail = inode.body().tail.clone();
    let attrs = decode_inode_area(&tail).map_err(|e| e.at_inode(inode.ino))?;
    match attrs.into_iter().find(|attr| is(attr, &INLINE_DATA)).map(|attr| attr.value) {
        Some(Value::Inline(value)) => Ok(value),
        _ => Ok(Vec::new()),
    }
}

/// Sets (`Some`, possibly empty) or removes (`None`) the second part of inline data.
///
/// # Errors
/// ENOSPC if it does not fit in the inode, `Corrupt`.
pub fn inline_set(
    env: &AttrEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    value: Option<&[u8]>,
) -> Result<()> {
    let tail = inode.body().tail.clone();
    let here = decode_inode_area(&tail).map_err(|e| e.at_inode(inode.ino))?;
    let new = value.map(|value| Entry::new(INLINE_DATA.index, INLINE_DATA.suffix, value));
    let tail = encode_here(inode, &with(&here, &INLINE_DATA, new.as_ref())).ok_or(Errno::NoSpc)?;
    if value.is_some() {
        announce(env, step)?;
    }
    store_here(step, inode, &tail)
}

/// Returns the maximum size, in bytes, of the second part of inline data in this inode.
pub fn inline_room(_st: &AttrEnv, inode: &Inode) -> usize {
    let tail = inode.body().tail.clone();
    let Ok(here) = decode_inode_area(&tail) else { return 0 };
    let empty = Entry::new(INLINE_DATA.index, INLINE_DATA.suffix, b"");
    let used = inode_area_space(&with(&here, &INLINE_DATA, Some(&empty)));
    tail.len().saturating_sub(used) & !3
}
