//! The states that a power cut may leave of a scene: everything up to the last flush, and of the writes since then any part, torn
//! at sectors. Only what the format assumes to be written at once is: the superblock.

use super::scene::{Durable, Scene};
use extant_blocks::Event;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_testkit::rng::Rng;
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

/// What a device writes at once, in bytes.
const SECTOR: usize = 512;

const SUPERBLOCK: Range<usize> = SUPERBLOCK_OFFSET as usize..SUPERBLOCK_OFFSET as usize + SUPERBLOCK_SIZE;

/// Which of the writes since the last flush are there.
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

pub(crate) const PARTS: [Part; 6] = [Part::All, Part::Nothing, Part::Writes, Part::Sectors, Part::AllButOne, Part::One];

/// What a device holds, with a name for it that equal bytes share.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    pub bytes: Vec<u8>,
    pub name: u64,
}

impl Bytes {
    pub fn new(bytes: &[u8]) -> Bytes {
        let sectors = bytes.chunks(SECTOR).enumerate();
        let name = sectors.fold(0, |name, (nr, sector)| name ^ hash(nr, sector));
        Bytes { bytes: bytes.to_vec(), name }
    }

    fn put(&mut self, piece: &Piece) {
        let (first, last) = (piece.at / SECTOR, (piece.at + piece.data().len()).div_ceil(SECTOR));
        self.toggle(first..last);
        self.bytes[piece.at..piece.at + piece.data().len()].copy_from_slice(piece.data());
        self.toggle(first..last);
    }

    fn toggle(&mut self, sectors: Range<usize>) {
        for nr in sectors {
            let end = ((nr + 1) * SECTOR).min(self.bytes.len());
            self.name ^= hash(nr, &self.bytes[nr * SECTOR..end]);
        }
    }
}

fn hash(nr: usize, sector: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write_usize(nr);
    hasher.write(sector);
    hasher.finish()
}

/// A part of a write that is there as a whole or not at all.
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
    flushed: Bytes,
    pending: Vec<Piece>,
    writes: usize,
    /// How many marks were passed.
    marks: usize,
}

impl<'a> Walk<'a> {
    pub fn new(base: &[u8], events: &'a [Event]) -> Walk<'a> {
        Walk { events, next: 0, flushed: Bytes::new(base), pending: Vec::new(), writes: 0, marks: 0 }
    }

    /// Goes on behind the next event after which a cut makes a difference: a change, or the end. `None` at the end.
    pub fn step(&mut self) -> Option<usize> {
        while let Some(event) = self.events.get(self.next) {
            self.next += 1;
            self.pass(event);
            if event.changes() || self.next == self.events.len() {
                return Some(self.next);
            }
        }
        None
    }

    fn pass(&mut self, event: &Event) {
        match event {
            Event::Write { offset, data } => self.write(*offset as usize, data.clone()),
            Event::Zero { offset, len } => self.write(*offset as usize, vec![0; *len as usize].into()),
            Event::Flush => {
                for piece in std::mem::take(&mut self.pending) {
                    self.flushed.put(&piece);
                }
            }
            Event::Mark(_) => self.marks += 1,
            // What was given up is not looked at again before it is written.
            Event::Discard { .. } | Event::SetLen(_) => {}
        }
    }

    fn write(&mut self, offset: usize, whole: Arc<[u8]>) {
        self.writes += 1;
        let mut at = offset;
        let end = offset + whole.len();
        while at < end {
            let next = if SUPERBLOCK.contains(&at) { SUPERBLOCK.end } else { (at / SECTOR + 1) * SECTOR };
            let next = next.min(end);
            let of_whole = at - offset..next - offset;
            self.pending.push(Piece { at, whole: whole.clone(), of_whole, write: self.writes });
            at = next;
        }
    }

    /// Whether a mark was passed.
    pub fn has_passed_mark(&self) -> bool {
        self.marks > 0
    }

    /// What the device holds after a cut here.
    pub fn state(&self, part: Part, rng: &mut Rng) -> Bytes {
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

    /// What is promised of a device that is cut here.
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
    fn what_was_flushed_is_always_there() {
        let (base, events) = (vec![0; 8192], events());
        let mut walk = Walk::new(&base, &events);
        let mut rng = Rng::new(1);
        while let Some(cut) = walk.step() {
            for part in PARTS {
                let state = walk.state(part, &mut rng);
                assert_eq!(state.name, Bytes::new(&state.bytes).name, "{part:?}");
                assert!(cut == 1 || state.bytes[..512].iter().all(|byte| *byte == 1));
                let superblock = &state.bytes[SUPERBLOCK];
                assert!(superblock.iter().all(|byte| *byte == superblock[0]), "{part:?}: a torn superblock");
            }
        }
        assert_eq!(walk.state(Part::All, &mut rng).bytes[512..5000], {
            let mut whole = vec![2; 4488];
            whole[512..1536].fill(3);
            whole[4096..].fill(0);
            whole
        });
    }
}
