//! Reading of a directory from a cookie on.
//!
//! With `dir_index` a position has 31 bits of major hash above 32 bits of minor hash; `.` and `..`
//! come first, at 0 and 1. Without it, and in directories that store hashes with the names, a
//! position is the entry's offset in bytes. Entries of an inline directory have the offsets that
//! they would have in a first block.

use super::blocks::{Dir, Shape};
use super::inline::{Areas, DOTS_LEN};
use super::{Entry, Kind, area, window};
use crate::error::Result;
use crate::inode::Window;
use extant_format::dir::{entries, entry_len};
use extant_format::types::{FileType, InodeNr};

type Each<'e> = &'e mut dyn FnMut(Entry<'_>) -> bool;

/// Offsets behind `.` and `..`.
const DOTS: [u64; 2] = [entry_len(1) as u64, DOTS_LEN as u64];

/// First position behind `.` and `..` in hash order.
pub(super) const FIRST: u64 = 2;

/// Calls `each` with the entries from `cookie` on, until it returns false.
pub(super) fn read(d: &Dir<'_>, cookie: u64, each: Each<'_>) -> Result<()> {
    match (d.hashed() && !d.keeps_hashes, d.kind) {
        (true, _) => by_hash(d, cookie, each),
        (false, Kind::Inline) => inline_by_offset(d, cookie, each),
        // The root has `.` and `..`, but no leaf for the scan by offsets.
        (false, Kind::Indexed) if !dots(d, cookie, DOTS, each)? => Ok(()),
        (false, _) => blocks_by_offset(d, cookie, each),
    }
}

/// Passes `.` and `..`, behind which reading continues at `nexts`. Returns false if `each` did.
fn dots(d: &Dir<'_>, cookie: u64, nexts: [u64; 2], each: Each<'_>) -> Result<bool> {
    let directory = FileType::Directory;
    if cookie < nexts[0]
        && !each(Entry {
            name: b".",
            ino: d.inode.ino,
            ftype: directory,
            next: nexts[0],
            hash: None,
        })
    {
        return Ok(false);
    }
    if cookie >= nexts[1] {
        return Ok(true);
    }
    let ino = super::parent(d.env, d.inode)?;
    Ok(each(Entry { name: b"..", ino, ftype: directory, next: nexts[1], hash: None }))
}

fn by_hash(d: &Dir<'_>, cookie: u64, each: Each<'_>) -> Result<()> {
    if !dots(d, cookie, [1, FIRST], each)? {
        return Ok(());
    }
    let mut pos = cookie.max(FIRST);
    while pos < Window::END {
        let window = window::at(d, pos)?;
        let from = window.entries.partition_point(|e| e.pos < pos);
        for e in &window.entries[from..] {
            let entry = Entry {
                name: window.name(e),
                ino: InodeNr(e.ino),
                ftype: e.ftype,
                next: e.pos + 1,
                hash: None,
            };
            if !each(entry) {
                return Ok(());
            }
        }
        pos = window.end;
    }
    Ok(())
}

fn inline_by_offset(d: &Dir<'_>, cookie: u64, each: Each<'_>) -> Result<()> {
    if !dots(d, cookie, DOTS, each)? {
        return Ok(());
    }
    let areas = Areas::read(d)?;
    for (_, start, bytes) in areas.each() {
        if !area_by_offset(d, bytes, start as u64, cookie, each)? {
            break;
        }
    }
    Ok(())
}

fn blocks_by_offset(d: &Dir<'_>, cookie: u64, each: Each<'_>) -> Result<()> {
    let bits = d.env.geo.block_bits;
    let first = u32::try_from(cookie >> bits).unwrap_or(u32::MAX);
    let mut scan = d.scan()?;
    for lblk in first..d.count {
        let buf = scan.load(lblk)?;
        // A copy, since `each` must not run under the buffer's lock.
        let bytes = buf.snapshot();
        if d.shape(lblk, &bytes) == Shape::Leaf
            && !area_by_offset(d, d.format.area(&bytes), u64::from(lblk) << bits, cookie, each)?
        {
            break;
        }
    }
    Ok(())
}

/// Passes the used entries of an area that starts at position `start`. Returns false if `each` did.
fn area_by_offset(
    d: &Dir<'_>,
    bytes: &[u8],
    start: u64,
    cookie: u64,
    each: Each<'_>,
) -> Result<bool> {
    for entry in entries(bytes, &d.format) {
        let e = entry.map_err(|e| e.at_inode(d.inode.ino))?;
        let pos = start + e.offset as u64;
        // Only the first two entries can be `.` and `..`.
        let stray = e.is_dot_or_dot_dot() && pos > DOTS[0];
        if !e.is_used() || stray || pos < cookie {
            continue;
        }
        let next = pos + e.rec_len as u64;
        let hash = d.keeps_hashes.then(|| e.kept_hash(bytes));
        if !each(Entry { name: e.name, ino: e.ino, ftype: e.file_type, next, hash }) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Calls `f` with every used entry of every leaf and area, except `.` and `..`.
pub(super) fn for_each_name(
    d: &Dir<'_>,
    mut f: impl FnMut(area::NamedInode<'_>) -> Result<()>,
) -> Result<()> {
    let mut take = |bytes: &[u8]| -> Result<()> {
        for entry in area::names(bytes, &d.format) {
            f(entry.map_err(|e| e.at_inode(d.inode.ino))?)?;
        }
        Ok(())
    };
    if d.kind == Kind::Inline {
        return Areas::read(d)?.each().try_for_each(|(_, _, bytes)| take(bytes));
    }
    let mut scan = d.scan()?;
    for lblk in 0..d.count {
        let buf = scan.load(lblk)?;
        let bytes = buf.read();
        if d.shape(lblk, &bytes) == Shape::Leaf {
            take(d.format.area(&bytes))?;
        }
    }
    Ok(())
}
