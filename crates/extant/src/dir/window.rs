//! Entries in the order of their positions, a stretch at a time.
//!
//! # Invariants
//! - A stretch starts where a major hash starts, and ends where one ends; so all names of one major hash are together
//!   and names of the same position can be told apart by their order.
//! - Positions within a stretch ascend strictly and lie within it, whatever the leaves say, and stretches follow each
//!   other without overlap: reading always comes to an end.

use super::blocks::Dir;
use super::hash::{Hasher, major_of, start_of};
use super::htree;
use super::{Kind, area, read};
use crate::error::{Error, Result};
use crate::inode::{Window, WindowEntry};
use std::sync::Arc;

/// Entries that a stretch of a directory without order may hold, before it is cut.
const MANY: usize = 32 * 1024;

/// The stretch that contains `pos`.
pub(super) fn at(d: &Dir<'_>, pos: u64) -> Result<Arc<Window>> {
    let known = d.inode.dir.lock().window.clone();
    if let Some(window) = known.filter(|w| w.start <= pos && pos < w.end) {
        return Ok(window);
    }
    let window = Arc::new(make(d, pos)?);
    d.inode.dir.lock().window = Some(window.clone());
    Ok(window)
}

fn make(d: &Dir<'_>, pos: u64) -> Result<Window> {
    if d.kind == Kind::Indexed {
        match of_tree(d, pos) {
            Err(Error::Corrupt(e)) => tracing::warn!(%e, "hash tree is corrupt, scanning the directory"),
            other => return other,
        }
    }
    of_all(d, pos)
}

/// The leaves around a position, from one key without continuation to the next.
fn of_tree(d: &Dir<'_>, pos: u64) -> Result<Window> {
    let root = htree::root(d)?;
    let (mut path, start) = first_of_chain(d, &root, major_of(pos))?;
    let mut out = Window { start: start_of(start), end: Window::END, ..Window::default() };
    for _ in 0..d.count {
        add_leaf(d, &mut out, &root.hasher, path.leaf)?;
        match path.next_key(d)? {
            None => return Ok(finish(out)),
            Some(key) if key & 1 == 1 => path.advance(d)?,
            Some(key) if start_of(key) > pos => {
                out.end = start_of(key);
                return Ok(finish(out));
            }
            Some(_) => break,
        }
    }
    Err(d.corrupt("hash tree order", path.leaf).into())
}

/// The way to the leaf of `hash` or, if that leaf continues others, to the first of them; and the key of that leaf.
fn first_of_chain(d: &Dir<'_>, root: &htree::Root, mut hash: u32) -> Result<(htree::Path, u32)> {
    loop {
        let path = htree::probe(d, root, hash)?;
        let key = path.key(d)?;
        if key & 1 == 0 && key <= hash {
            return Ok((path, key));
        }
        let before = key & !1;
        if before >= hash {
            return Err(d.corrupt("hash tree order", path.leaf).into());
        }
        hash = before;
    }
}

fn add_leaf(d: &Dir<'_>, out: &mut Window, hasher: &Hasher, lblk: u32) -> Result<()> {
    let buf = htree::load_leaf(d, lblk)?;
    let bytes = buf.read();
    for entry in area::names(d.format.area(&bytes), &d.format) {
        let e = entry.map_err(|e| e.at_inode(d.inode.ino).at_block(buf.nr()))?;
        out.push(hasher.position(e.name), e.ino.0, e.ftype, e.name);
    }
    Ok(())
}

/// The next [`MANY`] or more entries of a directory without order.
fn of_all(d: &Dir<'_>, pos: u64) -> Result<Window> {
    let hasher = Hasher::default_of(d.st);
    let start = start_of(major_of(pos));
    let mut out = Window { start, end: Window::END, ..Window::default() };
    read::for_each_name(d, |e| {
        let at = hasher.position(e.name);
        if at >= start && at < out.end {
            out.push(at, e.ino.0, e.ftype, e.name);
            if out.entries.len() >= 2 * MANY {
                cut(&mut out);
            }
        }
    })?;
    Ok(finish(out))
}

/// Keeps the lower half or so of the entries: all of the major hashes below some bound.
fn cut(out: &mut Window) {
    out.entries.sort_unstable_by_key(|e| e.pos);
    let Some(bound) = out.entries.get(MANY).map(|e| start_of(major_of(e.pos))) else { return };
    let keep = out.entries.partition_point(|e| e.pos < bound);
    if keep == 0 {
        return;
    }
    let mut kept = Window { start: out.start, end: bound, ..Window::default() };
    for e in &out.entries[..keep] {
        kept.push(e.pos, e.ino, e.ftype, out.name(e));
    }
    *out = kept;
}

/// Sorts the entries and makes their positions differ.
fn finish(mut out: Window) -> Window {
    let Window { entries, names, start, end } = &mut out;
    entries.sort_by(|a, b| a.pos.cmp(&b.pos).then_with(|| name_of(names, a).cmp(name_of(names, b))));
    // Names that belong elsewhere by their hash are read here, where they are.
    let (mut lowest, last) = ((*start).max(read::FIRST), end.saturating_sub(1));
    for e in entries.iter_mut() {
        e.pos = e.pos.min(last).max(lowest);
        lowest = e.pos + 1;
    }
    out
}

fn name_of<'a>(names: &'a [u8], e: &WindowEntry) -> &'a [u8] {
    let at = e.name_at as usize;
    names.get(at..at + usize::from(e.name_len)).unwrap_or_default()
}
