//! Windows: entries in the order of their positions, one part of the directory at a time.
//!
//! # Invariants
//! - A window starts and ends where a major hash starts. All names of one major hash are thus in
//!   one window, where names of equal position are told apart by their order.
//! - Positions within a window ascend strictly and lie within it, whatever the leaves contain.
//!   Windows follow each other without overlap. Reading therefore always reaches the end.

use super::blocks::Dir;
use super::hash::{Hasher, major_of, start_of};
use super::htree;
use super::{Kind, area, is_component, read};
use crate::bounds::Steps;
use crate::error::{Error, Result};
use crate::inode::{Window, WindowEntry};
use std::sync::Arc;

/// Number of entries that a window of a scanned directory keeps, about, when it is cut. It is cut
/// at twice this number.
const MANY: usize = 32 * 1024;

/// Maximum number of names of one major hash, or of one chain of leaves.
const MAX_NAMES_OF_HASH: usize = 1 << 20;

/// Returns the window that contains `pos`.
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
            Err(Error::Corrupt(e)) => d.scans(&e),
            other => return other,
        }
    }
    of_all(d, pos)
}

/// Builds the window of the leaves around a position, from one key without the mark of continuation
/// to the next.
fn of_tree(d: &Dir<'_>, pos: u64) -> Result<Window> {
    // The tree must refer to each leaf once, and the loop is bounded by the number of blocks:
    // damaged indexes end in an error.
    let root = htree::root(d)?;
    htree::check_tree(d, &root)?;
    let (mut path, start) = first_of_chain(d, &root, major_of(pos))?;
    let mut out = Window { start: start_of(start), end: Window::END, ..Window::default() };
    let mut steps = Steps::default();
    for _ in 0..d.count {
        steps.next()?;
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

/// Returns the path to the leaf of `hash` or, if that leaf continues others, to the first of them,
/// and the key of that leaf.
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
    check_size(d, out)
}

/// Verifies the number of entries, since names of one major hash, or of one chain of leaves, are
/// not parted.
fn check_size(d: &Dir<'_>, out: &Window) -> Result<()> {
    let found = out.entries.len();
    if found <= MAX_NAMES_OF_HASH {
        Ok(())
    } else {
        Err(d.corrupt("names of one hash", found as u32).expected(MAX_NAMES_OF_HASH as u64).into())
    }
}

/// Builds a window of about [`MANY`] or more entries, by a scan of the whole directory: of a linear
/// one, or of one whose hash tree is damaged.
fn of_all(d: &Dir<'_>, pos: u64) -> Result<Window> {
    let hasher = Hasher::default_of(d);
    let start = start_of(major_of(pos));
    let mut out = Window { start, end: Window::END, ..Window::default() };
    let mut next_cut = 2 * MANY;
    read::for_each_name(d, |e| {
        let at = hasher.position(e.name);
        if at >= start && at < out.end {
            out.push(at, e.ino.0, e.ftype, e.name);
            if out.entries.len() >= next_cut {
                cut(&mut out);
                next_cut = 2 * out.entries.len().max(MANY);
            }
        }
        check_size(d, &out)
    })?;
    Ok(finish(out))
}

/// Cuts a window to about the lower half of its entries: all entries of the major hashes below some
/// bound, at least one major hash.
fn cut(out: &mut Window) {
    out.entries.sort_unstable_by_key(|e| e.pos);
    let (Some(first), Some(middle)) = (out.entries.first(), out.entries.get(MANY)) else { return };
    let bound = start_of(major_of(middle.pos)).max(start_of(major_of(first.pos) + 2));
    let keep = out.entries.partition_point(|e| e.pos < bound);
    if keep == out.entries.len() {
        return;
    }
    let mut kept = Window { start: out.start, end: bound, ..Window::default() };
    for e in &out.entries[..keep] {
        kept.push(e.pos, e.ino, e.ftype, out.name(e));
    }
    *out = kept;
}

/// Sorts the entries, makes their positions distinct and checks their names.
fn finish(mut out: Window) -> Window {
    let Window { entries, names, start, end, has_components_only } = &mut out;
    *has_components_only = entries.iter().all(|e| is_component(name_of(names, e)));
    entries
        .sort_by(|a, b| a.pos.cmp(&b.pos).then_with(|| name_of(names, a).cmp(name_of(names, b))));
    // Names in the wrong leaf for their hash get positions in the window of that leaf. A major hash
    // has 2^32 positions, enough for all of them.
    let mut lowest = (*start).max(read::FIRST);
    for e in entries.iter_mut() {
        e.pos = e.pos.max(lowest);
        lowest = e.pos.saturating_add(1);
    }
    let mut highest = end.saturating_sub(1);
    for e in entries.iter_mut().rev() {
        e.pos = e.pos.min(highest);
        highest = e.pos.saturating_sub(1);
    }
    out
}

fn name_of<'a>(names: &'a [u8], e: &WindowEntry) -> &'a [u8] {
    let at = e.name_at as usize;
    names.get(at..at + usize::from(e.name_len)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::types::FileType;
    use proptest::prelude::*;

    fn window(start: u64, end: u64, positions: &[u64]) -> Window {
        let mut out = Window { start, end, ..Window::default() };
        for (n, pos) in positions.iter().enumerate() {
            out.push(*pos, 12, FileType::Regular, format!("name {n}").as_bytes());
        }
        out
    }

    #[test]
    fn names_keep_their_positions() {
        let done =
            finish(window(0, start_of(100), &[start_of(60) + 7, start_of(20) + 1, start_of(20)]));
        let positions: Vec<u64> = done.entries.iter().map(|e| e.pos).collect();
        assert_eq!(positions, [start_of(20), start_of(20) + 1, start_of(60) + 7]);
        assert_eq!(done.name(&done.entries[2]), b"name 0");
    }

    #[test]
    fn cutting_keeps_major_hashes_whole() {
        let positions: Vec<u64> =
            (0..2 * MANY as u64).map(|n| start_of((n / 10 * 2) as u32) + n % 10).collect();
        let mut out = window(0, Window::END, &positions);
        cut(&mut out);
        assert_eq!(out.entries.len() % 10, 0);
        assert!(out.entries.len() <= MANY && out.entries.len() > MANY - 10);
        assert_eq!(out.end, start_of(major_of(out.entries[out.entries.len() - 1].pos) + 2));
    }

    #[test]
    fn a_large_first_major_hash_is_kept_alone() {
        let mut positions = vec![start_of(8); MANY + 5];
        positions.resize(2 * MANY, start_of(10));
        let mut out = window(0, Window::END, &positions);
        cut(&mut out);
        assert_eq!((out.entries.len(), out.end), (MANY + 5, start_of(10)));
    }

    #[test]
    fn one_major_hash_is_never_cut() {
        let mut out = window(0, Window::END, &vec![start_of(8); 2 * MANY]);
        cut(&mut out);
        assert_eq!((out.entries.len(), out.end), (2 * MANY, Window::END));
    }

    proptest! {
        #[test]
        fn positions_ascend_within_the_stretch(
            first in 0u32..1000,
            width in 1u32..100,
            found in prop::collection::vec(0u32..3000, 0..200),
            minor in 0u64..3,
        ) {
            let (start, end) = (start_of(2 * first), start_of(2 * (first + width)));
            let positions: Vec<u64> =
                found.iter().map(|major| start_of(2 * *major) + minor).collect();
            let done = finish(window(start, end, &positions));
            prop_assert_eq!(done.entries.len(), found.len());
            prop_assert!(done.entries.windows(2).all(|pair| pair[0].pos < pair[1].pos));
            let inside = start.max(read::FIRST)..end;
            prop_assert!(done.entries.iter().all(|e| inside.contains(&e.pos)));
        }
    }
}
