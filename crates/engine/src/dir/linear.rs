//! Linear directories, which are sequences of leaves without order, and the entries `.` and `..` of
//! all directories in blocks.

use super::area::{self, NamedInode, Room};
use super::blocks::{Dir, Shape};
use super::{EntryPos, Kind};
use crate::error::Result;
use crate::inode::{Inode, Step};
use extant_blocks::Buffer;
use extant_format::dir::{Dots, dot_dot, fill, largest_gap, put_entry, room_at, set_rec_len};
use extant_format::types::InodeNr;
use std::sync::Arc;

/// Number of blocks up to which the gaps of a linear directory are kept in memory.
const GAPS_MAX: u32 = 1 << 20;

/// Unit of the kept gaps, in bytes.
const GAP_UNIT: usize = 4;

/// Scans all leaves for a name.
pub(super) fn find(d: &Dir<'_>, name: &[u8]) -> Result<Option<EntryPos>> {
    let mut scan = d.scan()?;
    for lblk in 0..d.count {
        let buf = scan.load(lblk)?;
        let hit = {
            let bytes = buf.read();
            match d.shape(lblk, &bytes) {
                Shape::Index => None,
                Shape::Leaf => area::find(d.format.area(&bytes), d, name)
                    .map_err(|e| e.at_inode(d.inode.ino).at_block(buf.nr()))?,
            }
        };
        if let Some(hit) = hit {
            return Ok(Some(EntryPos { buf: Some(buf), lblk, hit }));
        }
    }
    Ok(None)
}

/// Finds a name in a directory of one leaf. If the name is absent, returns the leaf and its free
/// space.
pub(super) fn look(d: &Dir<'_>, name: &[u8]) -> Result<Result<EntryPos, (Arc<Buffer>, Room)>> {
    let buf = d.load(0)?;
    let look = area::look(d.format.area(&buf.read()), d, name)
        .map_err(|e| e.at_inode(d.inode.ino).at_block(buf.nr()))?;
    Ok(match look {
        Ok(hit) => Ok(EntryPos { buf: Some(buf), lblk: 0, hit }),
        Err(room) => Err((buf, room)),
    })
}

/// Returns the offset of `..` in block 0, and the inode that it leads to.
pub(super) fn dotdot(d: &Dir<'_>) -> Result<(usize, InodeNr)> {
    let buf = d.load(0)?;
    let bytes = buf.read();
    let entry =
        dot_dot(&bytes, &d.format).map_err(|e| e.at_inode(d.inode.ino).at_block(buf.nr()))?;
    Ok((entry.offset, entry.ino))
}

/// Returns whether no leaf has an entry except `.` and `..`.
pub(super) fn is_empty(d: &Dir<'_>) -> Result<bool> {
    dotdot(d)?;
    let mut scan = d.scan()?;
    for lblk in 0..d.count {
        let buf = scan.load(lblk)?;
        let bytes = buf.read();
        if d.shape(lblk, &bytes) == Shape::Leaf
            && let Some(entry) = area::names(d.format.area(&bytes), &d.format).next()
        {
            return entry
                .map(|_| false)
                .map_err(|e| e.at_inode(d.inode.ino).at_block(buf.nr()).into());
        }
    }
    Ok(true)
}

/// Returns a first block with `.` and `..`.
pub(super) fn first_block(d: &Dir<'_>, parent: InodeNr) -> Vec<u8> {
    let mut image = vec![0; d.format.block_size as usize];
    d.format.init_first_block(&mut image, Dots { own: d.inode.ino, parent });
    image
}

/// Inserts a name into the first block with enough space, or into a new block.
pub(super) fn insert(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    new: &NamedInode<'_>,
) -> Result<()> {
    if let Some(lblk) = find_gap(d, new.len())? {
        let buf = d.load(lblk)?;
        if insert_at(d, step, &buf, Room::Unknown, new)? {
            note_gap(d, lblk, &buf);
            return Ok(());
        }
    }
    append(d, step, owner, new)
}

/// Inserts a name into a leaf. Returns false without enough space.
pub(super) fn insert_at(
    d: &Dir<'_>,
    step: &mut Step<'_>,
    buf: &Arc<Buffer>,
    known: Room,
    new: &NamedInode<'_>,
) -> Result<bool> {
    // The search under the lock for reading keeps full leaves out of the transaction. The result
    // stays valid: the directory's lock excludes other changes.
    let Some(room) = find_room(d, &buf.read(), known, new.len())? else { return Ok(false) };
    let mut bytes = step.write(buf, d.leaf_seal())?;
    let area = d.format.area_mut(&mut bytes);
    let start = room.offset + room.used;
    if room.used > 0 {
        set_rec_len(area, &d.format, room.offset, room.used);
    }
    put_entry(area, &d.format, start, room.rec_len - room.used, new.entry());
    Ok(true)
}

/// A record whose end is free.
struct Roomy {
    offset: usize,
    used: usize,
    rec_len: usize,
}

fn find_room(d: &Dir<'_>, bytes: &[u8], known: Room, wanted: usize) -> Result<Option<Roomy>> {
    let area = d.format.area(bytes);
    let found = match known {
        Room::None => return Ok(None),
        Room::At(offset) => room_at(area, &d.format, offset, wanted),
        Room::Unknown => extant_format::dir::find_room(area, &d.format, wanted),
    };
    let entry = found.map_err(|e| e.at_inode(d.inode.ino))?;
    Ok(entry.map(|e| Roomy { offset: e.offset, used: e.needed(), rec_len: e.rec_len }))
}

/// Returns a leaf with these entries; `None` if they do not fit.
pub(super) fn leaf_image<'a>(
    d: &Dir<'_>,
    list: impl Iterator<Item = NamedInode<'a>>,
) -> Option<Vec<u8>> {
    let mut image = vec![0; d.format.block_size as usize];
    d.format.init_block(&mut image);
    fill(d.format.area_mut(&mut image), &d.format, list.map(NamedInode::parts)).then_some(image)
}

fn append(
    d: &mut Dir<'_>,
    step: &mut Step<'_>,
    owner: &Arc<Inode>,
    new: &NamedInode<'_>,
) -> Result<()> {
    let (lblk, buf) = d.grow(step, owner)?;
    if let Some(image) = leaf_image(d, std::iter::once(*new)) {
        d.overwrite(step, &buf, d.leaf_seal(), &image)?;
    }
    note_gap(d, lblk, &buf);
    Ok(())
}

/// Returns the first block with a gap of at least `need` bytes. Gaps are collected by one scan,
/// then kept in memory.
fn find_gap(d: &Dir<'_>, need: usize) -> Result<Option<u32>> {
    if d.count > GAPS_MAX {
        return Ok(Some(d.count - 1));
    }
    let need = need.div_ceil(GAP_UNIT) as u16;
    let known =
        d.inode.dir.lock().gaps.as_ref().map(|gaps| gaps.iter().position(|&gap| gap >= need));
    let found = match known {
        Some(found) => found,
        None => {
            let gaps = collect_gaps(d)?;
            let found = gaps.iter().position(|&gap| gap >= need);
            d.inode.dir.lock().gaps = Some(gaps);
            found
        }
    };
    Ok(found.map(|lblk| lblk as u32).filter(|&lblk| lblk < d.count))
}

fn collect_gaps(d: &Dir<'_>) -> Result<Vec<u16>> {
    let mut gaps = Vec::new();
    let mut scan = d.scan()?;
    for lblk in 0..d.count {
        let buf = scan.load(lblk)?;
        gaps.push(gap_of(d, &buf));
    }
    Ok(gaps)
}

fn gap_of(d: &Dir<'_>, buf: &Buffer) -> u16 {
    let largest = largest_gap(d.format.area(&buf.read()), &d.format).unwrap_or(0);
    (largest / GAP_UNIT).min(usize::from(u16::MAX)) as u16
}

/// Updates the kept gap of block `lblk` after a change.
pub(super) fn note_gap(d: &Dir<'_>, lblk: u32, buf: &Buffer) {
    if d.kind != Kind::Linear || d.inode.dir.lock().gaps.is_none() {
        return;
    }
    let gap = gap_of(d, buf);
    if let Some(gaps) = &mut d.inode.dir.lock().gaps {
        let lblk = lblk as usize;
        if lblk == gaps.len() {
            gaps.push(gap);
        } else if let Some(known) = gaps.get_mut(lblk) {
            *known = gap;
        }
    }
}
