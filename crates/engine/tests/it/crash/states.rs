//! The states that a power cut may leave: all writes before the last flush, and any part of the
//! writes since then, torn at sectors. Only the superblock, whose write the format assumes to be
//! atomic, is never torn.

use super::pages::{PAGE, Pages};
use super::scene::{Durable, Scene};
use extant_blocks::Event;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_testkit::rng::Rng;
use std::ops::Range;
use std::sync::Arc;

/// Unit that a device writes atomically, in bytes.
const SECTOR: usize = 512;

const SUPERBLOCK: Range<usize> =
    SUPERBLOCK_OFFSET as usize..SUPERBLOCK_OFFSET as usize + SUPERBLOCK_SIZE;

/// The subset of the writes since the last flush that a cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    Nothing,
    /// Each write with an even chance.
    Writes,
    /// Each sector with an even chance.
    Sectors,
    /// All but one sector.
    AllButOne,
    /// One write alone.
    One,
}

pub(crate) const PARTS: [Part; 6] =
    [Part::All, Part::Nothing, Part::Writes, Part::Sectors, Part::AllButOne, Part::One];

/// The contents of a device. Equal contents that descend from one base have equal names.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub pages: Pages,
    pub name: u64,
}

impl State {
    /// Returns the state at the beginning of a walk.
    pub fn base(pages: &Pages) -> State {
        State { pages: pages.clone(), name: 0 }
    }

    fn put(&mut self, piece: &Piece) {
        let (start, len) = (piece.at, piece.data().len());
        let (first, last) = (start / SECTOR * SECTOR, (start + len).next_multiple_of(SECTOR));
        self.toggle(first, last);
        self.pages.part_mut(start, len).copy_from_slice(piece.data());
        self.toggle(first, last);
    }

    fn toggle(&mut self, start: usize, end: usize) {
        for at in (start..end).step_by(SECTOR) {
            self.name ^= hash(at, self.pages.part(at, SECTOR));
        }
    }
}

/// Returns a name for the changes since a base, except for `ignored` pages. Equal changes have
/// equal names.
pub(crate) fn name_since(base: &Pages, now: &Pages, ignored: impl Fn(usize) -> bool) -> u64 {
    let changed = now.changed(base).filter(|(nr, _)| !ignored(*nr));
    changed.fold(0, |name, (nr, page)| {
        name ^ hash(nr * PAGE, page) ^ hash(nr * PAGE, base.part(nr * PAGE, PAGE))
    })
}

/// Returns a hash of bytes and their place. It need not resist collisions made on purpose.
fn hash(at: usize, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, _) = bytes.as_chunks::<8>();
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    let hash =
        words.iter().fold(mix(!0, at as u64), |hash, word| mix(hash, u64::from_le_bytes(*word)));
    hash ^ hash >> 29
}

/// A part of a write that is written as a whole or not at all.
#[derive(Clone, Debug)]
struct Piece {
    at: usize,
    whole: Arc<[u8]>,
    of_whole: Range<usize>,
    /// Which write it is of.
    write: usize,
}

impl Piece {
    fn data(&self) -> &[u8] {
        &self.whole[self.of_whole.clone()]
    }
}

/// Walks along a recording from cut to cut.
pub(crate) struct Walk<'a> {
    events: &'a [Event],
    next: usize,
    flushed: State,
    pending: Vec<Piece>,
    writes: usize,
    /// How many marks were passed.
    marks: usize,
}

impl<'a> Walk<'a> {
    pub fn new(base: &Pages, events: &'a [Event]) -> Walk<'a> {
        Walk {
            events,
            next: 0,
            flushed: State::base(base),
            pending: Vec::new(),
            writes: 0,
            marks: 0,
        }
    }

    /// Advances behind the next event after which a cut makes a difference: a change, or the end.
    /// Returns `None` at the end.
    pub fn step(&mut self) -> Option<usize> {
        self.step_to(|_, event| event.changes())
    }

    /// Advances as [`Walk::step`] does, or behind the next mark at which something became durable.
    /// Returns the position, and whether a mark is at it.
    pub fn step_or_promise(&mut self, scene: &Scene) -> Option<(usize, bool)> {
        let promised = |walk: &Self, event: &Event| {
            matches!(event, Event::Mark(_)) && scene.promising[walk.marks - 1]
        };
        let cut = self.step_to(|walk, event| event.changes() || promised(walk, event))?;
        Some((cut, promised(self, &self.events[cut - 1])))
    }

    fn step_to(&mut self, stops: impl Fn(&Self, &Event) -> bool) -> Option<usize> {
        while let Some(event) = self.events.get(self.next) {
            self.next += 1;
            self.pass(event);
            if stops(self, event) || self.next == self.events.len() {
                return Some(self.next);
            }
        }
        None
    }

    fn pass(&mut self, event: &Event) {
        match event {
            Event::Write { offset, data } => self.write(*offset as usize, data.clone()),
            Event::Zero { offset, len } => {
                self.write(*offset as usize, vec![0; *len as usize].into())
            }
            Event::Flush => {
                for piece in std::mem::take(&mut self.pending) {
                    self.flushed.put(&piece);
                }
            }
            Event::Mark(_) => self.marks += 1,
            // Discarded bytes are not read again before they are written.
            Event::Discard { .. } | Event::SetLen(_) => {}
        }
    }

    fn write(&mut self, offset: usize, whole: Arc<[u8]>) {
        self.writes += 1;
        let mut at = offset;
        let end = offset + whole.len();
        while at < end {
            let next =
                if SUPERBLOCK.contains(&at) { SUPERBLOCK.end } else { (at / SECTOR + 1) * SECTOR };
            let next = next.min(end);
            let of_whole = at - offset..next - offset;
            self.pending.push(Piece { at, whole: whole.clone(), of_whole, write: self.writes });
            at = next;
        }
    }

    /// Returns the number of pieces of writes that a cut here may lose.
    pub fn uncertain(&self) -> usize {
        self.pending.len()
    }

    /// Whether a mark was passed.
    pub fn has_passed_mark(&self) -> bool {
        self.marks > 0
    }

    /// Returns the contents of the device after a cut here.
    pub fn state(&self, part: Part, rng: &mut Rng) -> State {
        let mut state = self.flushed.clone();
        let Some(last) = self.pending.len().checked_sub(1) else { return state };
        let one = rng.below(self.pending.len() as u64) as usize;
        let seed = rng.next_u64();
        let keep = |(nr, piece): &(usize, &Piece)| match part {
            Part::All => true,
            Part::Nothing => false,
            Part::Writes => Rng::new(seed ^ piece.write as u64).one_in(2),
            Part::Sectors => Rng::new(seed ^ (*nr as u64) << 32).one_in(2),
            Part::AllButOne => *nr != one.min(last),
            Part::One => piece.write == self.pending[one].write,
        };
        for (_, piece) in self.pending.iter().enumerate().filter(keep) {
            state.put(piece);
        }
        state
    }

    /// Returns the promises of a device that is cut here.
    pub fn promised<'s>(&self, scene: &'s Scene) -> &'s Durable {
        &scene.promises[self.marks.saturating_sub(1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Vec<Event> {
        let write = |offset, byte, len| Event::Write { offset, data: vec![byte; len].into() };
        vec![write(0, 1, 512), Event::Flush, write(512, 2, 4096), write(1024, 3, 1024)]
    }

    #[test]
    fn flushed_writes_survive_each_cut() {
        let (base, events) = (Pages::new(&[0; 8192]), events());
        let mut walk = Walk::new(&base, &events);
        let mut rng = Rng::new(1);
        while let Some(cut) = walk.step() {
            for part in PARTS {
                let state = walk.state(part, &mut rng);
                let bytes = state.pages.to_vec();
                assert_eq!(state.name == 0, bytes == base.to_vec(), "{part:?}");
                assert!(cut == 1 || bytes[..512].iter().all(|byte| *byte == 1));
                let superblock = &bytes[SUPERBLOCK];
                assert!(
                    superblock.iter().all(|byte| *byte == superblock[0]),
                    "{part:?}: a torn superblock"
                );
            }
        }
        let state = walk.state(Part::All, &mut rng);
        assert_eq!(state.name, walk.state(Part::All, &mut rng).name);
        assert_eq!(state.pages.to_vec()[512..5000], {
            let mut whole = vec![2; 4488];
            whole[512..1536].fill(3);
            whole[4096..].fill(0);
            whole
        });
    }

    #[test]
    fn equal_changes_share_a_name() {
        let base = Pages::new(&[0; 8192]);
        let (mut a, mut b) = (base.clone(), base.clone());
        a.part_mut(5, 1).fill(1);
        a.part_mut(5000, 1).fill(1);
        b.part_mut(5000, 1).fill(1);
        b.part_mut(5000, 1).fill(2);
        let all = |pages: &Pages| name_since(&base, pages, |_| false);
        assert!(all(&a) != all(&b) && all(&a) != 0);
        b.part_mut(5000, 1).fill(1);
        assert!(all(&a) != all(&b));
        assert_eq!(name_since(&base, &a, |nr| nr == 0), all(&b));
        b.part_mut(5000, 1).fill(0);
        assert_eq!(all(&b), 0);
    }
}
