//! States in which a power cut may leave an image, from the recorded writes of a change.

use crate::rng::Rng;
use extant_blocks::{BlockDevice, Event, MemDevice, replay};
use std::collections::VecDeque;

/// Bytes that a device writes wholly or not at all.
const SECTOR: u64 = 512;

/// The bytes of the superblock.
const SUPERBLOCK: std::ops::Range<u64> = 1024..2048;

/// Returns the parts of a write that a cut may separate. The superblock is taken to be written as a
/// whole, as the kernel and e2fsck take it: its checksum is in another sector than its marks.
fn pieces(event: &Event, sector: u64) -> Vec<Event> {
    let mut pieces: Vec<Event> = Vec::new();
    for piece in event.split(sector) {
        let Event::Write { offset, data } = &piece else { return vec![piece] };
        match pieces.last_mut() {
            Some(Event::Write { offset: first, data: before })
                if SUPERBLOCK.contains(first) && SUPERBLOCK.contains(offset) =>
            {
                *before = [&before[..], &data[..]].concat().into();
            }
            _ => pieces.push(piece),
        }
    }
    pieces
}

/// Returns whether an event changes bytes of a device of `len` bytes only.
fn is_within(event: &Event, len: u64) -> bool {
    match event {
        Event::Write { offset, data } => offset + data.len() as u64 <= len,
        Event::Zero { offset, len: count } | Event::Discard { offset, len: count } => {
            offset + count <= len
        }
        Event::SetLen(_) | Event::Flush | Event::Mark(_) => true,
    }
}

/// Calls `judge` with the states of an image `before` after a cut at each of the recorded events:
/// the events up to the last flush, and of the later ones all, or a random subset of their sectors.
/// States that were judged just before are left out. The first argument is the number of completed
/// events.
pub fn each_cut(before: &[u8], events: &[Event], judge: &mut dyn FnMut(usize, Vec<u8>)) {
    each_cut_between(SECTOR, before, events, judge);
}

/// As [`each_cut`], for a device that writes `sector` bytes wholly or not at all.
pub fn each_cut_between(
    sector: u64,
    before: &[u8],
    events: &[Event],
    judge: &mut dyn FnMut(usize, Vec<u8>),
) {
    cuts_among(sector, (before, events), &|_| true, judge);
}

/// As [`each_cut`], for the cuts of which `is_chosen` says so.
pub fn chosen_cuts(
    before: &[u8],
    events: &[Event],
    is_chosen: &dyn Fn(usize) -> bool,
    judge: &mut dyn FnMut(usize, Vec<u8>),
) {
    cuts_among(SECTOR, (before, events), is_chosen, judge);
}

fn cuts_among(
    sector: u64,
    (before, events): (&[u8], &[Event]),
    is_chosen: &dyn Fn(usize) -> bool,
    judge: &mut dyn FnMut(usize, Vec<u8>),
) {
    let mut recent = RecentStates::default();
    let mut durable = Durable { device: MemDevice::from_bytes(before), events: 0 };
    for cut in (0..=events.len()).filter(|cut| is_chosen(*cut)) {
        durable.advance(&events[..cut]);
        let states = states_of(sector, cut, &durable, events);
        let states = states.into_iter().filter(|state| recent.is_new(state));
        states.for_each(|state| judge(cut, state));
    }
}

/// The last few images that were judged, so that equal ones are judged once. For example, a flush
/// leaves the state as it was, and a subset of one write is that write, or nothing.
#[derive(Debug, Default)]
pub struct RecentStates {
    states: VecDeque<Sparse>,
}

impl RecentStates {
    const KEPT: usize = 3;

    /// Returns whether an image is none of the last ones, and notes it.
    pub fn is_new(&mut self, state: &[u8]) -> bool {
        let new = self.states.iter().all(|known| !known.is(state));
        if new {
            self.states.push_front(Sparse::of(state));
            self.states.truncate(RecentStates::KEPT);
        }
        new
    }
}

/// The pieces of an image that are not all zeroes.
#[derive(Debug)]
struct Sparse {
    len: usize,
    pieces: Vec<Option<Box<[u8]>>>,
}

impl Sparse {
    const PIECE: usize = 64 << 10;

    fn of(bytes: &[u8]) -> Self {
        let pieces = bytes.chunks(Sparse::PIECE);
        let pieces = pieces.map(|piece| (!is_zero(piece)).then(|| piece.into())).collect();
        Sparse { len: bytes.len(), pieces }
    }

    fn is(&self, bytes: &[u8]) -> bool {
        let is_same = |(known, piece): (&Option<Box<[u8]>>, &[u8])| match known {
            Some(known) => **known == *piece,
            None => is_zero(piece),
        };
        self.len == bytes.len() && self.pieces.iter().zip(bytes.chunks(Sparse::PIECE)).all(is_same)
    }
}

fn is_zero(piece: &[u8]) -> bool {
    static ZEROES: [u8; Sparse::PIECE] = [0; Sparse::PIECE];
    *piece == ZEROES[..piece.len()]
}

/// A device with the first `events` events, the last of which is a flush.
struct Durable {
    device: MemDevice,
    events: usize,
}

impl Durable {
    /// Goes on to the last flush of `done`, which begins with the events before.
    fn advance(&mut self, done: &[Event]) {
        let later = &done[self.events..];
        let Some(at) = later.iter().rposition(|event| *event == Event::Flush) else { return };
        replay(&later[..=at], &self.device).expect("a device in memory");
        self.events += at + 1;
    }
}

fn states_of(sector: u64, cut: usize, durable: &Durable, events: &[Event]) -> [Vec<u8>; 2] {
    let mut rng = Rng::new(cut as u64);
    let loose: Vec<Event> =
        events[durable.events..cut].iter().flat_map(|event| pieces(event, sector)).collect();
    let subset: Vec<&Event> = loose.iter().filter(|_| rng.one_in(2)).collect();
    let all: Vec<&Event> = loose.iter().collect();
    let bytes = durable.device.to_vec();
    [all, subset].map(|loose| {
        let device = MemDevice::from_bytes(&bytes);
        // Without a growth of the file, writes behind its end are lost with it.
        for event in loose.into_iter().filter(|event| is_within(event, device.len())) {
            event.apply(&device).expect("a device in memory");
        }
        device.to_vec()
    })
}
