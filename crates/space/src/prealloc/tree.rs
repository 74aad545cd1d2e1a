//! The preallocations of one file.
//!
//! # Invariants
//! - Those that are not deleted are disjoint in the file (and on the device, if what was inserted
//!   was).
//! - A preallocation's start, place and length never change, nor does it cease to be deleted. One
//!   that is deleted has given its unused part away and is erased later; every search passes over
//!   it.
//! - One that is being used ([`Found::Taken`] without [`Tree::finish`]) is not deleted. So space
//!   whose blocks are not mapped yet, but will be, is in nobody else's window.
//! - What was taken belongs to the taker, whatever becomes of the preallocation.

use super::Piece;
use super::used::Used;
use std::collections::BTreeMap;
use std::ops::Range;

/// Names a preallocation that is being used: its first logical unit.
pub type Key = u32;

/// Bytes that an entry of the tree takes, without a bitmap: itself and its share of half-full
/// nodes.
const ENTRY_BYTES: usize = 2 * size_of::<(Key, Pa)>();

/// How many preallocations were looked at.
pub type Visits = u32;

#[derive(Debug)]
struct Pa {
    physical: u64,
    len: u32,
    /// Units that are not used.
    free: u32,
    /// Uses that are not finished.
    refs: u32,
    deleted: bool,
    used: Used,
}

impl Pa {
    fn end(&self, start: Key) -> u64 {
        u64::from(start) + u64::from(self.len)
    }

    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.used.bytes()
    }

    fn take(&mut self, range: Range<u32>) {
        self.free = self.free.saturating_sub(range.end - range.start);
        self.used.mark(range, self.len);
    }
}

/// What a search for space found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// This is the caller's now. `of` is to be finished once it is mapped, or given back.
    Taken {
        /// What was taken.
        piece: Piece,
        /// Of which preallocation.
        of: Key,
    },
    /// So many units are in a preallocation, but were taken from it before, or given up.
    Spent(u32),
    /// No preallocation has the first unit.
    Nothing,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Tree {
    pas: BTreeMap<Key, Pa>,
    /// How many are deleted.
    dead: usize,
    /// Unused units of all.
    free: u64,
    bytes: usize,
}

impl Tree {
    /// Preallocations that are not deleted.
    pub fn len(&self) -> usize {
        self.pas.len() - self.dead
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Units that nobody has taken.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Bytes of memory, more or less.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The last one, not deleted, that starts at or before `logical`.
    fn left(&self, logical: u32, visits: &mut Visits) -> Option<(Key, &Pa)> {
        let found =
            self.pas.range(..=logical).rev().inspect(|_| *visits += 1).find(|(_, pa)| !pa.deleted);
        found.map(|(key, pa)| (*key, pa))
    }

    /// Where the first one, not deleted, starts that starts behind `logical`.
    fn right(&self, logical: u32, visits: &mut Visits) -> Option<Key> {
        let behind = self.pas.range(logical.checked_add(1)?..);
        behind.inspect(|_| *visits += 1).find(|(_, pa)| !pa.deleted).map(|(key, _)| *key)
    }

    /// Takes up to `len` units (not 0) for the file's units from `logical` on, if they lie below
    /// the physical `limit`: of what is disjoint only the left neighbour can have them, and deleted
    /// ones are nobody's neighbours.
    pub fn take(&mut self, logical: u32, len: u32, limit: u64, visits: &mut Visits) -> Found {
        let Some((key, pa)) = self.left(logical, visits) else { return Found::Nothing };
        let offset = logical - key;
        let physical = pa.physical + u64::from(offset);
        if offset >= pa.len || physical >= limit {
            return Found::Nothing;
        }
        let unused = pa.used.next(offset, pa.len, false);
        if unused > offset {
            return Found::Spent(len.min(unused - offset));
        }
        let end = pa.used.next(offset, pa.len, true);
        let len = len.min(end - offset).min(u32::try_from(limit - physical).unwrap_or(u32::MAX));
        self.use_part(key, offset..offset + len);
        Found::Taken { piece: Piece { logical, physical, len }, of: key }
    }

    fn use_part(&mut self, key: Key, range: Range<u32>) {
        let Some(pa) = self.pas.get_mut(&key) else { return };
        let before = pa.bytes();
        self.free -= u64::from(range.end - range.start);
        pa.take(range);
        pa.refs += 1;
        self.bytes = self.bytes + pa.bytes() - before;
    }

    /// What of a window around `logical` no preallocation has; empty if one has `logical` itself.
    pub fn trim(&self, logical: u32, window: Range<u64>, visits: &mut Visits) -> Range<u64> {
        let start = self.left(logical, visits).map_or(0, |(key, pa)| pa.end(key));
        let end = self.right(logical, visits).map_or(u64::MAX, u64::from);
        let (start, end) = (window.start.max(start), window.end.min(end));
        if start > u64::from(logical) { start..start } else { start..end.max(start) }
    }

    /// Adds a preallocation; false, and nothing changes, if it is empty or overlaps another one in
    /// the file.
    pub fn insert(&mut self, piece: Piece) -> bool {
        let mut visits = 0;
        let wanted = u64::from(piece.logical)..piece.end();
        if piece.len == 0 || self.trim(piece.logical, wanted.clone(), &mut visits) != wanted {
            return false;
        }
        let Piece { physical, len, .. } = piece;
        let pa = Pa { physical, len, free: len, refs: 0, deleted: false, used: Used::Front(0) };
        self.bytes += pa.bytes();
        self.free += u64::from(len);
        let old = self.pas.insert(piece.logical, pa);
        self.forget(old);
        true
    }

    /// Keeps count of an erased one.
    fn forget(&mut self, old: Option<Pa>) {
        if let Some(pa) = old {
            self.bytes -= pa.bytes();
            self.free -= u64::from(pa.free);
            self.dead -= usize::from(pa.deleted);
        }
    }

    /// A use is over: what was taken is mapped, or was given back. A preallocation without unused
    /// units that nobody uses goes.
    pub fn finish(&mut self, of: Key) {
        let Some(pa) = self.pas.get_mut(&of) else { return };
        pa.refs = pa.refs.saturating_sub(1);
        if pa.refs == 0 && pa.free == 0 && !pa.deleted {
            let old = self.pas.remove(&of);
            self.forget(old);
        }
    }

    /// Deletes those that `which` names by their range, and hands their unused parts to `give`, in
    /// ascending order. Of those that are being used only the unused parts go. What is deleted
    /// stays until [`Tree::sweep`], seen by no search.
    pub fn discard(&mut self, mut which: impl FnMut(&Piece) -> bool, mut give: impl FnMut(Piece)) {
        for (&logical, pa) in self.pas.iter_mut().filter(|(_, pa)| !pa.deleted) {
            let whole = Piece { logical, physical: pa.physical, len: pa.len };
            if !which(&whole) {
                continue;
            }
            self.free -= u64::from(pa.free);
            unused(&whole, &pa.used, &mut give);
            pa.free = 0;
            self.bytes -= pa.used.bytes();
            pa.used = Used::Front(pa.len);
            if pa.refs == 0 {
                pa.deleted = true;
                self.dead += 1;
            }
        }
    }

    /// Erases what is deleted.
    pub fn sweep(&mut self) {
        if self.dead > 0 {
            self.bytes -= self.dead * ENTRY_BYTES;
            self.dead = 0;
            self.pas.retain(|_, pa| !pa.deleted);
        }
    }

    /// Whether the invariants hold: disjoint, and counted right.
    pub fn is_sound(&self) -> bool {
        let live: Vec<_> = self.pas.iter().filter(|(_, pa)| !pa.deleted).collect();
        let disjoint = live.windows(2).all(|pair| match pair {
            [(a, pa), (b, _)] => pa.end(**a) <= u64::from(**b),
            _ => true,
        });
        let free: u64 = live.iter().map(|(_, pa)| u64::from(pa.free)).sum();
        let bytes: usize = self.pas.values().map(Pa::bytes).sum();
        disjoint
            && free == self.free
            && bytes == self.bytes
            && live.len() + self.dead == self.pas.len()
    }
}

/// Hands out the unused runs of a preallocation.
fn unused(whole: &Piece, used: &Used, give: &mut impl FnMut(Piece)) {
    let mut at = 0;
    loop {
        let start = used.next(at, whole.len, false);
        if start >= whole.len {
            return;
        }
        at = used.next(start, whole.len, true);
        give(Piece {
            logical: whole.logical + start,
            physical: whole.physical + u64::from(start),
            len: at - start,
        });
    }
}
