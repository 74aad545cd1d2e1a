//! Directories inside their inode: the parent's number, then two areas of entries. The first area
//! is in `i_block`, the second one is the value of `system.data`.
//!
//! # Invariants
//! There are no entries for `.` and `..`. The two areas, one after the other, equal the part of a
//! first block behind `..`. A conversion copies them unchanged, so entries keep their offsets.

use super::area::{self, NamedInode};
use super::blocks::Dir;
use super::{EntryPos, Kind, linear};
use crate::error::{Errno, Result};
use crate::extent;
use crate::inode::{Inode, Step, Tx};
use crate::xattr;
use crate::xattr::AttrEnv;
use extant_format::dir::{
    DirFormat, entries, entry_len, init_area, insert as insert_entry, largest_gap, put_entry,
    set_rec_len,
};
use extant_format::error::Corrupt;
use extant_format::features::Incompat;
use extant_format::inline as format;
use extant_format::inode::InodeFlags;
use extant_format::types::InodeNr;
use std::sync::Arc;

/// Size of the smallest inline directory in bytes: that of the first area with the parent's number.
const MIN_SIZE: u64 = format::INLINE_FIRST as u64;

/// Bytes of `.` and `..` in a first block. The areas would follow them.
pub(super) const DOTS_LEN: usize = entry_len(1) + entry_len(2);

/// Number of the area in the inode's `i_block`.
const FIRST: u32 = 0;
/// Number of the area in `system.data`.
const SECOND: u32 = 1;

/// Copies of both areas.
pub(super) struct Areas {
    areas: [Vec<u8>; 2],
}

impl Areas {
    /// Reads both areas. Errors: `Corrupt` if the length of `system.data` contradicts the inode's
    /// size.
    pub fn read(d: &Dir<'_>) -> Result<Areas> {
        let (first, size) = {
            let body = d.inode.body();
            (format::dir_area(&body.i_block).to_vec(), body.size)
        };
        let second = xattr::inline_get(d.env, d.inode)?;
        if size != MIN_SIZE + second.len() as u64 {
            return Err(Corrupt::new("inline directory")
                .field("size")
                .found(size)
                .at_inode(d.inode.ino)
                .into());
        }
        Ok(Areas { areas: [first, second] })
    }

    /// Returns number, offset within a corresponding first block, and bytes of each area that is
    /// not empty.
    pub fn each(&self) -> impl Iterator<Item = (u32, usize, &[u8])> {
        let mut at = DOTS_LEN;
        self.areas.iter().enumerate().filter(|(_, area)| !area.is_empty()).map(move |(nr, area)| {
            let start = at;
            at += area.len();
            (nr as u32, start, area.as_slice())
        })
    }

    /// Returns a first block with `.`, `..` and the unchanged areas behind them. The last entry is
    /// extended to the end of the block.
    fn as_first_block(&self, d: &Dir<'_>, parent: InodeNr) -> Result<Vec<u8>> {
        let mut image = linear::first_block(d, parent);
        let area = d.format.area_mut(&mut image);
        let mut last = entry_len(1);
        for (_, start, bytes) in self.each() {
            set_rec_len(area, &d.format, last, start - last);
            let Some(place) = area.get_mut(start..start + bytes.len()) else {
                return Err(Corrupt::new("inline directory")
                    .field("size")
                    .at_inode(d.inode.ino)
                    .into());
            };
            place.copy_from_slice(bytes);
            last = start
                + entries(bytes, &d.format).try_fold(0, |_, e| Ok::<_, Corrupt>(e?.offset))?;
        }
        let rest = area.len() - last;
        set_rec_len(area, &d.format, last, rest);
        Ok(image)
    }
}

/// Returns the inode that `..` leads to.
pub(super) fn parent(dir: &Inode) -> InodeNr {
    format::parent(&dir.body().i_block)
}

/// Sets the inode that `..` leads to.
pub(super) fn set_parent(step: &mut Step<'_>, owner: &Arc<Inode>, ino: InodeNr) -> Result<()> {
    format::set_parent(&mut step.edit(owner)?.i_block, ino);
    Ok(())
}

/// Finds a name.
pub(super) fn find(d: &Dir<'_>, name: &[u8]) -> Result<Option<EntryPos>> {
    let areas = Areas::read(d)?;
    for (nr, _, area) in areas.each() {
        if let Some(hit) = area::find(area, d, name).map_err(|e| e.at_inode(d.inode.ino))? {
            return Ok(Some(EntryPos { buf: None, lblk: nr, hit }));
        }
    }
    Ok(None)
}

/// Returns whether both areas have no used entry.
pub(super) fn is_empty(d: &Dir<'_>) -> Result<bool> {
    let areas = Areas::read(d)?;
    for (_, _, area) in areas.each() {
        if let Some(entry) = area::names(area, &d.format).next() {
            return entry.map(|_| false).map_err(|e| e.at_inode(d.inode.ino).into());
        }
    }
    Ok(true)
}

/// Makes a new directory inline. Returns false if the file system lacks inline data or the inode
/// lacks space.
pub(super) fn init(
    env: &AttrEnv,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    parent: InodeNr,
) -> Result<bool> {
    if !env.geo.incompat(Incompat::INLINE_DATA) || owner.body().tail.is_empty() {
        return Ok(false);
    }
    // The attribute comes first: without space for it the inode stays unchanged.
    match xattr::inline_set(env, step, owner, Some(&[])) {
        Ok(()) => {}
        Err(e) if e.is(Errno::NoSpc) => return Ok(false),
        Err(e) => return Err(e),
    }
    let mut body = step.edit(owner)?;
    body.i_block.fill(0);
    format::set_parent(&mut body.i_block, parent);
    init_area(format::dir_area_mut(&mut body.i_block), &DirFormat::new(&env.geo));
    body.flags.remove(InodeFlags::EXTENTS);
    body.flags.insert(InodeFlags::INLINE_DATA);
    body.size = MIN_SIZE;
    Ok(true)
}

/// Changes one area by `f`.
pub(super) fn change(
    d: &Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    nr: u32,
    f: impl FnOnce(&mut [u8]) -> Result<(), Corrupt>,
) -> Result<()> {
    if nr == FIRST {
        return Ok(f(format::dir_area_mut(&mut step.edit(owner)?.i_block))?);
    }
    let mut value = xattr::inline_get(d.env, owner)?;
    f(&mut value)?;
    xattr::inline_set(d.env, step, owner, Some(&value))
}

/// Inserts a name into the areas, and extends the second one as far as the inode has space. Returns
/// false without enough space.
pub(super) fn insert(
    d: &Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    new: &NamedInode<'_>,
) -> Result<bool> {
    let areas = Areas::read(d)?;
    for (nr, _, bytes) in areas.each() {
        if largest_gap(bytes, &d.format).map_err(|e| e.at_inode(d.inode.ino))? >= new.len() {
            change(d, step, owner, nr, |bytes| {
                insert_entry(bytes, &d.format, new.entry()).map(drop)
            })?;
            return Ok(true);
        }
    }
    extend_second(d, step, owner, &areas.areas[SECOND as usize], new)
}

fn extend_second(
    d: &Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    second: &[u8],
    new: &NamedInode<'_>,
) -> Result<bool> {
    let len = second.len() + new.len();
    if len > xattr::inline_room(d.env, owner) {
        return Ok(false);
    }
    let mut value = second.to_vec();
    value.resize(len, 0);
    put_entry(&mut value, &d.format, second.len(), new.len(), new.entry());
    match xattr::inline_set(d.env, step, owner, Some(&value)) {
        Err(e) if e.is(Errno::NoSpc) => return Ok(false),
        other => other?,
    }
    step.edit(owner)?.size = MIN_SIZE + len as u64;
    Ok(true)
}

/// Moves the entries to a block of their own. The block is claimed before the first change.
pub(super) fn convert(d: &mut Dir<'_>, tx: &mut Tx<'_>, owner: &Arc<Inode>) -> Result<()> {
    let areas = Areas::read(d)?;
    let image = areas.as_first_block(d, parent(owner))?;
    let first = extent::claim_first(d.env, owner, tx.rights())?;
    tx.step(|step| {
        xattr::inline_set(d.env, step, owner, None)?;
        extent::init(d.env, step, owner)?;
        let place = extent::map_first(d.env, step, owner, first)?;
        step.edit(owner)?.size = d.format.block_size.into();
        d.kind = Kind::Linear;
        d.overwrite(step, &d.env.cache.fresh(place.0), d.leaf_seal(), &image)
    })
}
