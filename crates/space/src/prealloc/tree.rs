//! The preallocations of one file.
//!
//! For example, the preallocation at logical unit 100 with 50 units at 5000 gives logical units 120
//! to 124 the physical units 5020 to 5024. It keeps the rest until the file is closed.
//!
//! # Invariants
//! - Preallocations that are not deleted are disjoint in the file (and on the device, if the
//!   inserted ones were).
//! - The start, position and length of a preallocation never change, and a deleted one never
//!   becomes live again. A deleted one has returned its unused part and is erased later; every
//!   search skips it.
//! - The lists of [`Groups`] have the keys of exactly the preallocations that are not deleted.
//! - A preallocation in use ([`Found::Taken`] without [`Tree::finish`]) is not deleted. So space
//!   whose blocks are not mapped yet, but will be, is in no other window.
//! - Taken units belong to the caller, whatever happens to the preallocation.

#[cfg(feature = "designs")]
pub mod designs;
#[cfg(feature = "designs")]
mod linked;

use super::Piece;
use super::groups::{Groups, Keys};
use super::used::Used;
use std::ops::Range;

/// Preallocations by their keys.
#[cfg(not(feature = "designs"))]
type Pas = std::collections::BTreeMap<Key, Pa>;
#[cfg(feature = "designs")]
type Pas = designs::Runs<Pa>;

/// The key of a preallocation in use: its first logical unit.
pub type Key = u32;

/// Bytes of an entry of the tree without a bitmap: the entry and its share of half-full nodes, and
/// its key in the list of its group.
const ENTRY_BYTES: usize = 2 * size_of::<(Key, Pa)>() + 2 * size_of::<Key>();

/// The uses of a preallocation that is deleted.
const DELETED: u32 = u32::MAX;

/// Number of preallocations that a search examined.
pub type Visits = u32;

#[derive(Debug)]
struct Pa {
    physical: u64,
    len: u32,
    /// Unused units.
    free: u32,
    /// Unfinished uses, or [`DELETED`].
    refs: u32,
    /// The group of its space.
    group: u32,
    used: Used,
}

impl Pa {
    fn end(&self, start: Key) -> u64 {
        u64::from(start) + u64::from(self.len)
    }

    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.used.bytes()
    }

    fn is_live(&self) -> bool {
        self.refs != DELETED
    }

    fn is_in(&self, group: u32) -> bool {
        self.is_live() && self.group == group
    }

    fn whole(&self, logical: Key) -> Piece {
        Piece { logical, physical: self.physical, len: self.len }
    }

    /// Gives up the unused units, which go to `give`. Returns the number of units and of bytes.
    fn give_up(&mut self, logical: Key, give: &mut impl FnMut(Piece)) -> (u64, usize) {
        unused(&self.whole(logical), &self.used, give);
        let gone = (u64::from(self.free), self.used.bytes());
        self.free = 0;
        self.used = Used::Front(self.len);
        gone
    }

    fn take(&mut self, range: Range<u32>) {
        self.free = self.free.saturating_sub(range.end - range.start);
        self.used.mark(range, self.len);
    }
}

/// The result of a search for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The piece is now the caller's. The caller must finish `of` once the piece is mapped or
    /// returned.
    Taken {
        /// The taken piece.
        piece: Piece,
        /// Its preallocation.
        of: Key,
    },
    /// This many units are in a preallocation, but were taken from it or given up before.
    Spent(u32),
    /// No preallocation contains the first unit.
    Nothing,
}

/// The preallocations of one file. See the module's documentation.
#[derive(Debug, Default)]
pub struct Tree {
    pas: Pas,
    /// Number of deleted preallocations.
    dead: usize,
    /// Unused units of all preallocations.
    free: u64,
    bytes: usize,
    groups: Groups,
}

impl Tree {
    /// Returns the number of preallocations that are not deleted.
    pub fn len(&self) -> usize {
        self.pas.len() - self.dead
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of unused units.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Returns the bytes of memory used, approximately.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the last live preallocation that starts at or before `logical`.
    #[cfg(not(feature = "designs"))]
    fn left(&self, logical: u32, visits: &mut Visits) -> Option<(Key, &Pa)> {
        let found =
            self.pas.range(..=logical).rev().inspect(|_| *visits += 1).find(|(_, pa)| pa.is_live());
        found.map(|(key, pa)| (*key, pa))
    }

    /// Returns the start of the first live preallocation that starts behind `logical`.
    #[cfg(not(feature = "designs"))]
    fn right(&self, logical: u32, visits: &mut Visits) -> Option<Key> {
        let behind = self.pas.range(logical.checked_add(1)?..);
        behind.inspect(|_| *visits += 1).find(|(_, pa)| pa.is_live()).map(|(key, _)| *key)
    }

    #[cfg(feature = "designs")]
    fn left(&self, logical: u32, visits: &mut Visits) -> Option<(Key, &Pa)> {
        self.pas.left(logical, visits, (Pa::is_live, Pa::end))
    }

    #[cfg(feature = "designs")]
    fn right(&self, logical: u32, visits: &mut Visits) -> Option<Key> {
        self.pas.right(logical.checked_add(1)?, visits, Pa::is_live)
    }

    /// Takes up to `len` units (not 0) for the file's units from `logical` on, if they lie below
    /// the physical `limit`. Live preallocations are disjoint, so only the left live neighbor can
    /// contain `logical`.
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

    /// Returns the part of a window around `logical` that no preallocation contains. Empty if one
    /// contains `logical` itself.
    pub fn trim(&self, logical: u32, window: Range<u64>, visits: &mut Visits) -> Range<u64> {
        let start = self.left(logical, visits).map_or(0, |(key, pa)| pa.end(key));
        let end = self.right(logical, visits).map_or(u64::MAX, u64::from);
        let (start, end) = (window.start.max(start), window.end.min(end));
        if start > u64::from(logical) { start..start } else { start..end.max(start) }
    }

    /// Adds a preallocation whose space is in `group`. Returns false, with nothing changed, if it
    /// is empty or overlaps another one in the file.
    pub fn insert(&mut self, piece: Piece, group: u32) -> bool {
        let mut visits = 0;
        let wanted = u64::from(piece.logical)..piece.end();
        if piece.len == 0 || self.trim(piece.logical, wanted.clone(), &mut visits) != wanted {
            return false;
        }
        let Piece { physical, len, .. } = piece;
        let pa = Pa { physical, len, free: len, refs: 0, group, used: Used::Front(0) };
        self.bytes += pa.bytes();
        self.free += u64::from(len);
        let old = self.pas.insert(piece.logical, pa);
        self.forget(old);
        self.groups.add(group, piece.logical);
        true
    }

    /// Updates the counts for an erased preallocation.
    fn forget(&mut self, old: Option<Pa>) {
        if let Some(pa) = old {
            self.bytes -= pa.bytes();
            self.free -= u64::from(pa.free);
            self.dead -= usize::from(!pa.is_live());
        }
    }

    /// Finishes a use: the taken piece is mapped, or was returned. Removes a preallocation without
    /// unused units and without other uses.
    pub fn finish(&mut self, of: Key) {
        let Some(pa) = self.pas.get_mut(&of).filter(|pa| pa.is_live()) else { return };
        pa.refs = pa.refs.saturating_sub(1);
        if pa.refs == 0 && pa.free == 0 {
            let group = pa.group;
            let old = self.pas.remove(&of);
            self.forget(old);
            let pas = &self.pas;
            self.groups.end(group, |key| pas.get(&key).is_some_and(|pa| pa.is_in(group)));
        }
    }

    /// Deletes the preallocations for which `which` returns true, and passes their unused parts to
    /// `give` in ascending order. Preallocations in use lose only their unused parts. Deleted ones
    /// stay until [`Tree::sweep`], and no search sees them.
    pub fn discard(&mut self, mut which: impl FnMut(&Piece) -> bool, mut give: impl FnMut(Piece)) {
        for (&logical, pa) in self.pas.iter_mut().filter(|(_, pa)| pa.is_live()) {
            if !which(&pa.whole(logical)) {
                continue;
            }
            let (free, bytes) = pa.give_up(logical, &mut give);
            self.free -= free;
            self.bytes -= bytes;
            if pa.refs == 0 {
                pa.refs = DELETED;
                self.dead += 1;
            }
        }
        let pas = &self.pas;
        self.groups.retain(|group, key| pas.get(&key).is_some_and(|pa| pa.is_in(group)));
    }

    /// Erases the preallocations whose space is in `group`, and passes their unused parts to
    /// `give`. Preallocations in use lose only their unused parts. No preallocation elsewhere is
    /// looked at.
    pub fn discard_group(&mut self, group: u32, mut give: impl FnMut(Piece), visits: &mut Visits) {
        let mut keys = self.groups.take(group);
        keys.sort_unstable();
        keys.dedup();
        let mut kept = Keys::new();
        for key in keys {
            *visits += 1;
            let found = self.pas.get_mut(&key).filter(|pa| pa.is_in(group));
            let Some(pa) = found else { continue };
            let (free, bytes) = pa.give_up(key, &mut give);
            self.free -= free;
            self.bytes -= bytes;
            if pa.refs == 0 {
                let old = self.pas.remove(&key);
                self.forget(old);
            } else {
                kept.push(key);
            }
        }
        self.groups.restore(group, kept);
    }

    /// Returns the owner's number for a group in which there are preallocations, or were last:
    /// `Some(None)` if none was set since [`Tree::take_left`] gave the previous one back.
    pub fn slot_mut(&mut self, group: u32) -> Option<&mut Option<u32>> {
        self.groups.slot_mut(group)
    }

    /// Takes a group out that has lost its number, with that number.
    #[inline]
    pub fn take_left(&mut self) -> Option<(u32, u32)> {
        self.groups.take_left()
    }

    /// Returns the groups that have a number, with their numbers.
    pub fn slots(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.groups.slots()
    }

    /// Erases the deleted preallocations.
    pub fn sweep(&mut self) {
        if self.dead > 0 {
            self.bytes -= self.dead * ENTRY_BYTES;
            self.dead = 0;
            self.pas.retain(|_, pa| pa.is_live());
        }
    }

    /// Returns whether the invariants hold: disjoint preallocations, and correct counts and lists.
    pub fn is_sound(&self) -> bool {
        let live: Vec<_> = self.pas.iter().filter(|(_, pa)| pa.is_live()).collect();
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
            && self.groups.is_sound(live.iter().map(|(key, pa)| (pa.group, **key)))
    }
}

/// Passes the unused runs of a preallocation to `give`.
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
