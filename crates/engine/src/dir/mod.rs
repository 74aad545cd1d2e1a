//! Directory blocks: linear, indexed (hash trees of up to three levels), inline.
//!
//! A new directory of 3 files is inline with the feature `inline_data`, else a single block. When
//! 200 files have filled that block, a hash tree is built: block 0 becomes the root, blocks 1 and 2
//! are leaves.
//!
//! # Invariants
//! - A directory is inline, linear or indexed ([`Kind`]). It changes from inline to linear when its
//!   areas are full, and from linear to indexed when its only block is full and the file system has
//!   `dir_index`. It changes back to linear only if its index is damaged and has no checksums.
//! - With `dir_index` positions follow the hashes of the names, whatever the kind is, so that a
//!   cookie stays valid when the kind changes.
//!
//! # Locking
//! The caller must hold the directory's `rw` lock: for reading in [`lookup`], [`part`],
//! [`is_empty`] and [`parent`], for writing in all others. At most one buffer is locked at a time.

mod area;
mod blocks;
mod fold;
mod hash;
mod htree;
mod inline;
mod insert;
mod linear;
pub mod nokey;
mod read;
mod respell;
mod split;
#[cfg(feature = "casefold")]
mod unicode;
mod window;

use crate::bounds::Remark;
use crate::error::{Errno, Error, Result};
use crate::extent;
use crate::inode::{Inode, Step, Tx};
use crate::xattr::AttrEnv;
use area::{Hit, NamedInode, Room};
use blocks::Dir;
use extant_blocks::Buffer;
use extant_format::dir::{DirFormat, remove as remove_entry, set_target};
use extant_format::error::Corrupt;
use extant_format::features::{Compat, Incompat};
use extant_format::inode::InodeFlags;
use extant_format::types::{FileType, InodeNr};
use extant_journal::Seal;
use std::sync::Arc;

pub use read::Part;
pub use respell::{are_spellings, respell};

/// Returns whether the folding of an encoding, as the superblock numbers it, is implemented, with
/// the tables of the feature `casefold`.
pub fn can_fold(encoding: u16) -> bool {
    cfg!(feature = "casefold") && encoding == fold::UTF8_12_1
}

/// Returns whether names of a directory are equal if they differ in case only.
pub fn folds(env: &AttrEnv, flags: InodeFlags) -> bool {
    flags.contains(InodeFlags::CASEFOLD) && env.geo.incompat(Incompat::CASEFOLD)
}

/// Returns whether an entry of a directory may be found by several names: folded names, and
/// encrypted names shown without their key, whose hash part is not compared. The dentry table must
/// not store such names, since a change by one name would leave the dentries of the others stale.
pub fn has_spellings(env: &AttrEnv, flags: InodeFlags) -> bool {
    folds(env, flags) || flags.contains(InodeFlags::ENCRYPT)
}

/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;

/// An entry that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Inode number.
    pub ino: InodeNr,
    /// Type in the entry; `Unknown` if the file system stores no types.
    pub ftype: FileType,
}

/// An entry of a [`Part`].
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Name in bytes, which need not be UTF-8.
    pub name: &'a [u8],
    /// Inode number.
    pub ino: InodeNr,
    /// Type in the entry.
    pub ftype: FileType,
    /// Cookie behind this entry, from which a later call continues.
    pub next: u64,
    /// Major and minor hash, if the directory stores them.
    pub hash: Option<[u8; 8]>,
}

/// The form in which a directory stores its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// In the inode.
    Inline,
    /// In blocks, without order.
    Linear,
    /// In blocks, found by a hash tree.
    Indexed,
}

impl Kind {
    fn of(env: &AttrEnv, flags: InodeFlags) -> Kind {
        if flags.contains(InodeFlags::INLINE_DATA) {
            Kind::Inline
        } else if flags.contains(InodeFlags::INDEX) && env.geo.compat(Compat::DIR_INDEX) {
            Kind::Indexed
        } else {
            Kind::Linear
        }
    }
}

/// The leaf and the free space for a name that a lookup did not find, if known. Valid while the
/// directory stays locked.
#[derive(Debug, Default)]
pub struct InsertSlot(Option<(Arc<Buffer>, Room)>);

/// The position of an entry: in a block, or (`None`) in an area of the inode. Valid while the
/// directory stays locked.
#[derive(Debug)]
pub struct EntryPos {
    buf: Option<Arc<Buffer>>,
    /// Logical block, or number of the inline area.
    lblk: u32,
    hit: Hit,
}

impl EntryPos {
    /// Returns the inode and the type in the entry.
    pub fn found(&self) -> Found {
        self.hit.found
    }
}

/// Finds a name, `.` and `..` included.
///
/// # Errors
/// `Corrupt`, `Io`, ENAMETOOLONG.
pub fn lookup(env: &AttrEnv, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
    match name {
        b"." => Ok(Some(Found { ino: dir.ino, ftype: FileType::Directory })),
        b".." => Ok(Some(Found { ino: parent(env, dir)?, ftype: FileType::Directory })),
        _ if name.len() > NAME_MAX => Err(Errno::NameTooLong.into()),
        _ => Ok(locate_shown(&Dir::open(env, dir)?, name)?.map(|pos| pos.hit.found)),
    }
}

/// Finds an entry as [`locate`] does, by the name that readers see.
fn locate_shown(d: &Dir<'_>, name: &[u8]) -> Result<Option<EntryPos>> {
    if !d.encrypted {
        return locate(d, name);
    }
    match nokey::stored(d, name)? {
        Some(stored) => locate(d, &stored),
        None => Ok(None),
    }
}

/// An entry that was found before a change of its directory. Its block stays in memory: one that
/// cannot be read fails the search, and not the step that has changed another entry already.
#[derive(Debug)]
pub struct Held {
    pos: EntryPos,
    /// [`DirState::layout`](crate::inode::DirState::layout) of the directory.
    layout: u32,
}

impl Held {
    /// Returns the position, if no entry of the directory was moved since.
    fn unmoved(&self, dir: &Inode) -> Option<&EntryPos> {
        (self.pos.buf.is_some() && dir.dir.lock().layout == self.layout).then_some(&self.pos)
    }
}

/// Finds an ordinary name as [`lookup`] does. If the name is absent, returns the place for it.
///
/// # Errors
/// As [`lookup`].
pub fn lookup_slot(env: &AttrEnv, dir: &Inode, name: &[u8]) -> Result<Result<Found, InsertSlot>> {
    if matches!(name, b"." | b"..") || name.len() > NAME_MAX {
        return lookup(env, dir, name).map(|found| found.ok_or_else(InsertSlot::default));
    }
    let d = Dir::open(env, dir)?;
    let found = match d.kind {
        Kind::Indexed if !d.encrypted => look_in_tree(&d, name)?,
        Kind::Linear if d.is_one_leaf() && !d.encrypted => {
            linear::look(&d, name)?.map_err(|leaf| InsertSlot(Some(leaf)))
        }
        _ => locate_shown(&d, name)?.ok_or_else(InsertSlot::default),
    };
    Ok(found.map(|pos| pos.hit.found))
}

/// Finds the entry of an ordinary name.
fn locate(d: &Dir<'_>, name: &[u8]) -> Result<Option<EntryPos>> {
    match d.kind {
        Kind::Inline => inline::find(d, name),
        Kind::Indexed if !d.keeps_hashes => Ok(look_in_tree(d, name)?.ok()),
        Kind::Linear | Kind::Indexed => linear::find(d, name),
    }
}

/// Finds a name by the hash tree. If the tree is damaged, scans the leaves.
fn look_in_tree(d: &Dir<'_>, name: &[u8]) -> Result<Result<EntryPos, InsertSlot>> {
    match htree::find(d, name) {
        Err(Error::Corrupt(e)) => {
            d.scans(&e);
            Ok(linear::find(d, name)?.ok_or_else(InsertSlot::default))
        }
        other => Ok(other?.map_err(|leaf| InsertSlot(Some(leaf)))),
    }
}

/// A name to be added.
#[derive(Clone, Copy, Debug)]
pub struct NewName<'a> {
    /// The name, which must be absent.
    pub name: &'a [u8],
    /// The inode that it leads to.
    pub ino: InodeNr,
    /// The type of that inode.
    pub ftype: FileType,
    /// The place that [`lookup_slot`] returned for the name under the same lock.
    pub slot: Option<&'a InsertSlot>,
}

/// Adds a name, and calls `rest` in the same step. Splits blocks, builds the index and grows the
/// directory as needed (updates size and blocks; not times or links). Forms and nodes without space
/// are changed in steps of their own before, of which each leaves a valid directory.
///
/// # Errors
/// `Corrupt`, `Io`, ENOSPC (no space, or the directory has its maximum size), ENAMETOOLONG, EINVAL
/// for invalid names; those of `rest`.
pub fn insert<'a, R>(
    env: &AttrEnv,
    tx: &mut Tx<'a>,
    dir: &Arc<Inode>,
    new: NewName<'_>,
    rest: impl FnOnce(&mut Step<'a>) -> Result<R>,
) -> Result<R> {
    check_name(new.name)?;
    check_key(dir)?;
    let NewName { name, ino, ftype, mut slot } = new;
    let new = NamedInode { name, ino, ftype };
    let mut rest = Some(rest);
    for _ in 0..insert::MAX_PASSES {
        // Only the first pass finds the directory as the lookup left it.
        let slot = slot.take();
        let done = tx.step(|step| {
            if insert_once(env, step, dir, slot, &new)? {
                rest.take().map(|rest| rest(step)).transpose()
            } else {
                Ok(None)
            }
        })?;
        match done {
            Some(done) => return Ok(done),
            None => insert::make_space(env, tx, dir, &new)?,
        }
    }
    Err(Corrupt::new("directory").field("space for a name").at_inode(dir.ino).into())
}

/// Adds a name within a step. Only its first change may lack space. Returns false, with nothing
/// changed, if the directory needs [`insert::make_space`] first.
fn insert_once(
    env: &AttrEnv,
    step: &mut Step<'_>,
    dir: &Arc<Inode>,
    slot: Option<&InsertSlot>,
    new: &NamedInode<'_>,
) -> Result<bool> {
    let mut d = Dir::open_for_change(env, dir)?;
    if d.folds && env.geo.strict_names && fold::fold(new.name).is_none() {
        return Err(Errno::Inval.into());
    }
    // A known slot with enough space saves a second search.
    if let Some(InsertSlot(Some((leaf, room)))) = slot
        && (d.kind == Kind::Indexed || d.is_one_leaf())
        && linear::insert_at(&d, step, leaf, *room, new)?
    {
        linear::note_gap(&d, 0, leaf);
        return Ok(true);
    }
    insert::insert(&mut d, step, dir, new)
}

/// Removes a name.
///
/// # Errors
/// `Corrupt`, `Io`, ENOENT if the name is absent.
pub fn remove(env: &AttrEnv, step: &mut Step<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<Found> {
    let pos = find(env, dir, name)?.ok_or(Errno::NoEnt)?;
    remove_at(env, step, dir, &pos)?;
    Ok(pos.hit.found)
}

/// Finds a name as [`find`] does, for a change that follows others under the same lock.
///
/// # Errors
/// As [`find`].
pub fn hold(env: &AttrEnv, dir: &Inode, name: &[u8]) -> Result<Option<Held>> {
    let layout = dir.dir.lock().layout;
    Ok(find(env, dir, name)?.map(|pos| Held { pos, layout }))
}

/// Removes a name that [`hold`] found. Other names may have been added since.
///
/// # Errors
/// As [`remove`].
pub fn remove_held(
    env: &AttrEnv,
    step: &mut Step<'_>,
    dir: &Arc<Inode>,
    name: &[u8],
    held: &Held,
) -> Result<()> {
    match held.unmoved(dir) {
        Some(pos) => remove_at(env, step, dir, pos),
        None => remove(env, step, dir, name).map(drop),
    }
}

/// Finds the position of an ordinary name.
///
/// # Errors
/// `Corrupt`, `Io`, ENAMETOOLONG, EINVAL for invalid names.
pub fn find(env: &AttrEnv, dir: &Inode, name: &[u8]) -> Result<Option<EntryPos>> {
    check_name(name)?;
    locate_shown(&Dir::open(env, dir)?, name)
}

/// Removes the entry at the position that [`find`] returned under the same lock.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn remove_at(
    env: &AttrEnv,
    step: &mut Step<'_>,
    dir: &Arc<Inode>,
    pos: &EntryPos,
) -> Result<()> {
    remove_from(&Dir::open_for_change(env, dir)?, step, dir, pos)
}

fn remove_from(d: &Dir<'_>, step: &mut Step<'_>, dir: &Arc<Inode>, pos: &EntryPos) -> Result<()> {
    let format = d.format;
    match &pos.buf {
        None => inline::change(d, step, dir, pos.lblk, |area| {
            remove_entry(area, &format, pos.hit.offset, pos.hit.before)
        }),
        Some(buf) => {
            {
                let mut bytes = step.write(buf, seal_of(d, pos))?;
                remove_entry(format.area_mut(&mut bytes), &format, pos.hit.offset, pos.hit.before)?;
            }
            linear::note_gap(d, pos.lblk, buf);
            Ok(())
        }
    }
}

/// Points an existing name (also `..`) at another inode.
///
/// # Errors
/// `Corrupt`, `Io`, ENOENT.
pub fn replace(
    env: &AttrEnv,
    step: &mut Step<'_>,
    dir: &Arc<Inode>,
    name: &[u8],
    (ino, ftype): (InodeNr, FileType),
) -> Result<()> {
    if name == b".." {
        return set_parent(env, step, dir, ino);
    }
    check_name(name)?;
    check_key(dir)?;
    let d = Dir::open_for_change(env, dir)?;
    // Only the inode and the type change: the name, and so its hash and position, stay.
    let pos = locate(&d, name)?.ok_or(Errno::NoEnt)?;
    let (format, at) = (d.format, pos.hit.offset);
    let set = |area: &mut [u8]| {
        set_target(area, &format, at, ino, ftype);
        Ok(())
    };
    match &pos.buf {
        None => inline::change(&d, step, dir, pos.lblk, set),
        Some(buf) => Ok(set(format.area_mut(&mut step.write(buf, seal_of(&d, &pos))?))?),
    }
}

/// Creates the first block (or the inline area) of a new directory, with `.` and `..`, and sets the
/// size.
///
/// # Errors
/// `Io`, ENOSPC.
pub fn init(env: &AttrEnv, step: &mut Step<'_>, dir: &Arc<Inode>, parent: InodeNr) -> Result<()> {
    if inline::init(env, step, dir, parent)? {
        return Ok(());
    }
    let mut d = Dir::open(env, dir)?;
    let (_, buf) = d.grow(step, dir)?;
    let image = linear::first_block(&d, parent);
    d.overwrite(step, &buf, d.leaf_seal(), &image)
}

/// Returns whether the directory has no entry except `.` and `..`.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn is_empty(env: &AttrEnv, dir: &Inode) -> Result<bool> {
    let d = Dir::open(env, dir)?;
    match d.kind {
        Kind::Inline => inline::is_empty(&d),
        _ => linear::is_empty(&d),
    }
}

/// Returns the inode that `..` leads to.
///
/// # Errors
/// `Corrupt` if `..` is not at its place, `Io`.
pub fn parent(env: &AttrEnv, dir: &Inode) -> Result<InodeNr> {
    let d = Dir::open(env, dir)?;
    match d.kind {
        Kind::Inline => Ok(inline::parent(dir)),
        _ => Ok(linear::dotdot(&d)?.1),
    }
}

/// Returns the part of the directory from `cookie` on (0: from the start, `.` and `..` first).
/// Cookies stay valid while entries come and go: with `dir_index` entries come in hash order.
///
/// # Errors
/// `Corrupt`, `Io`, EINTR.
pub fn part(env: &AttrEnv, dir: &Inode, cookie: u64) -> Result<Part> {
    read::part(&Dir::open(env, dir)?, cookie)
}

/// Verifies that names can be inserted into a directory.
///
/// # Errors
/// ENOKEY for a directory with encrypted names.
pub fn check_key(dir: &Inode) -> Result<()> {
    if dir.stat().flags.contains(InodeFlags::ENCRYPT) { Err(Errno::NoKey.into()) } else { Ok(()) }
}

/// Returns the maximum credits of one [`insert`] (splits at every level, growth, conversion).
pub fn insert_credits(env: &AttrEnv, dir: &Inode) -> u32 {
    let flags = dir.flags();
    let hashed = env.geo.compat(Compat::DIR_INDEX);
    let levels = 1 + u32::from(extant_format::htree::max_levels(&DirFormat::new(&env.geo)));
    // The inode, new blocks, old blocks.
    1 + match Kind::of(env, flags) {
        // The last block, or one more.
        Kind::Linear if !hashed => append_credits(env, dir, 1) + 1,
        // A new leaf, a new node on each level below the root, a further level; the old ones.
        Kind::Indexed => append_credits(env, dir, levels + 1) + levels + 1,
        // The first leaf and its other half; the first block, which becomes the root.
        Kind::Linear => append_credits(env, dir, 2) + 1,
        // The first block as well.
        Kind::Inline => append_credits(env, dir, if hashed { 3 } else { 2 }),
    }
}

/// Returns the credits of appending `count` blocks one by one. If the map has space for one of them
/// it has space for all, but each may come from another group.
fn append_credits(env: &AttrEnv, dir: &Inode, count: u32) -> u32 {
    extent::credits(env, dir, count) + (count - 1) * env.alloc.credits(1) + count
}

/// Credits of one [`remove`] or [`replace`].
pub const CHANGE_CREDITS: u32 = 2;

fn set_parent(env: &AttrEnv, step: &mut Step<'_>, dir: &Arc<Inode>, ino: InodeNr) -> Result<()> {
    let d = Dir::open_for_change(env, dir)?;
    if d.kind == Kind::Inline {
        return inline::set_parent(step, dir, ino);
    }
    let (offset, _) = linear::dotdot(&d)?;
    let buf = d.load(0)?;
    let mut bytes = step.write(&buf, d.first_seal())?;
    set_target(&mut bytes, &d.format, offset, ino, FileType::Directory);
    Ok(())
}

fn seal_of(d: &Dir<'_>, pos: &EntryPos) -> Seal {
    // Entries are found in leaves only; block 0 of an indexed directory is the root.
    debug_assert!(d.kind != Kind::Indexed || pos.lblk != 0);
    d.leaf_seal()
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Errno::NameTooLong.into());
    }
    if is_component(name) { Ok(()) } else { Err(Errno::Inval.into()) }
}

/// Returns whether a name can be a component of a path that leads to an entry. Every reader of a
/// directory relies on this check: a name with a slash would lead a copy or an archive out of its
/// destination.
fn is_component(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|&b| b == b'/' || b == 0)
}

impl<'a> Dir<'a> {
    /// Logs that a hash tree is damaged, so that all leaves are scanned.
    fn scans(&self, why: &Corrupt) {
        if self.env.remarks.tells(Remark::HashTree) {
            tracing::warn!(%why, "hash tree is corrupt, scanning the directory");
        }
    }

    /// Opens the directory as [`Dir::open`] does, for a change: drops the cached window of entries.
    fn open_for_change(env: &'a AttrEnv, inode: &'a Inode) -> Result<Dir<'a>> {
        // The index flag cannot be cleared where blocks have checksums: as leaves, the index blocks
        // would lack theirs.
        let flags = inode.flags();
        if flags.contains(InodeFlags::INDEX)
            && !env.geo.compat(Compat::DIR_INDEX)
            && env.geo.metadata_csum
        {
            return Err(Corrupt::new("directory").field("index flag").at_inode(inode.ino).into());
        }
        inode.dir.lock().window = None;
        Dir::open(env, inode)
    }
}
