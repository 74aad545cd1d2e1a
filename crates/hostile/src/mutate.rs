//! Structure-aware damage: sets fields of structures to malicious values and recomputes the
//! checksum.

use crate::atlas::{Atlas, Kind, Piece};
use crate::bombs;
use crate::records::Record;
use extant_testkit::rng::Rng;

/// Damages an image in some places, or makes a bomb of it. Returns descriptions of the changes, for
/// messages.
pub fn mutate(image: &mut [u8], atlas: &Atlas, rng: &mut Rng) -> Vec<String> {
    let rounds = *rng.pick(&[1, 1, 1, 2, 3, 8]);
    let shared = rng.one_in(8).then(|| bombs::share(image, atlas, rng));
    shared.into_iter().chain((0..rounds).map(|_| mutate_once(image, atlas, rng))).collect()
}

/// Damages an image in one place.
pub fn mutate_once(image: &mut [u8], atlas: &Atlas, rng: &mut Rng) -> String {
    let piece = pick(atlas, rng).clone();
    if piece.kind == Kind::FastCommits && !rng.one_in(4) {
        return records(image, atlas, rng);
    }
    let what = match rng.below(12) {
        0 => splice(image, atlas, &piece, rng),
        1 => noise(image, &piece, rng),
        2 => shift(image, &piece, rng),
        _ => field(image, atlas, &piece, rng),
    };
    let sealed = !rng.one_in(16);
    if sealed {
        atlas.seal(image, &piece);
    }
    format!(
        "{:?} at {}: {what}{}",
        piece.kind,
        piece.bytes.start,
        if sealed { "" } else { ", not sealed" }
    )
}

/// Changes records of fast commits: their fields, number and order. The tails are valid afterwards.
fn records(image: &mut [u8], atlas: &Atlas, rng: &mut Rng) -> String {
    let mut what = Vec::new();
    atlas.change_records(image, |records| {
        for _ in 0..rng.between(1, 6) {
            // The head stays unchanged.
            let Some(count) = (records.len() as u64).checked_sub(1).filter(|count| *count > 0)
            else {
                return;
            };
            let (at, other) = (1 + rng.below(count) as usize, 1 + rng.below(count) as usize);
            match rng.below(6) {
                0 => drop(records.remove(at)),
                1 => records.insert(at, records[other].clone()),
                2 => records.swap(at, other),
                3 => records.truncate(at + 1),
                _ => record_field(&mut records[at].value, atlas, rng),
            }
            what.push(format!("{at} {other}"));
        }
        records.push(Record::tail());
    });
    format!("records of fast commits: {what:?}")
}

/// Most fields are words; lengths and flags are halves of them.
fn record_field(bytes: &mut [u8], atlas: &Atlas, rng: &mut Rng) {
    let width = *rng.pick(&[1, 2, 4, 4]);
    let Some(places) = (bytes.len().min(64) / width).checked_sub(1) else { return };
    let at = rng.below(places as u64 + 1) as usize * width;
    let mut old = [0; 8];
    old[..width].copy_from_slice(&bytes[at..at + width]);
    let new = if rng.one_in(3) {
        u64::from(*rng.pick(&atlas.inodes))
    } else {
        value(atlas, u64::from_le_bytes(old), rng)
    };
    bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
}

/// Picks a kind first, so that the few superblocks are damaged as often as the many inodes.
fn pick<'a>(atlas: &'a Atlas, rng: &mut Rng) -> &'a Piece {
    if rng.one_in(3) {
        return rng.pick(&atlas.pieces);
    }
    let mut kinds: Vec<Kind> = atlas.pieces.iter().map(|piece| piece.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let kind = *rng.pick(&kinds);
    let of_kind: Vec<&Piece> = atlas.of_kind(kind).collect();
    of_kind[rng.below(of_kind.len() as u64) as usize]
}

/// Picks the offset of a field: mostly near the start of the structure.
fn place(piece: &Piece, width: usize, rng: &mut Rng) -> usize {
    let len = piece.bytes.len();
    let reach = match rng.below(4) {
        0 => len,
        1 => len.min(256),
        _ => len.min(64),
    };
    let at = rng.below((reach / width) as u64) as usize * width;
    let from_end = rng.one_in(20);
    piece.bytes.start + if from_end { len - width - at } else { at }
}

fn field(image: &mut [u8], atlas: &Atlas, piece: &Piece, rng: &mut Rng) -> String {
    let width = *rng.pick(&[1, 2, 2, 4, 4, 4]);
    let at = place(piece, width, rng);
    let big_endian = matches!(
        piece.kind,
        Kind::JournalSuperblock | Kind::JournalDescriptor | Kind::JournalRevoke
    );
    let mut old = [0; 8];
    old[..width].copy_from_slice(&image[at..at + width]);
    if big_endian {
        old[..width].reverse();
    }
    let old = u64::from_le_bytes(old);
    let new = value(atlas, old, rng);
    let mut bytes = new.to_le_bytes();
    if big_endian {
        bytes[..width].reverse();
    }
    image[at..at + width].copy_from_slice(&bytes[..width]);
    format!("{width} bytes at {} from {old:#x} to {new:#x}", at - piece.bytes.start)
}

/// Picks a malicious value: a limit, a neighbor of the old value, or the number of another object.
fn value(atlas: &Atlas, old: u64, rng: &mut Rng) -> u64 {
    match rng.below(12) {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => old ^ 1 << rng.below(32),
        5 => rng.below(16),
        6 => 1 << rng.below(32),
        7 => (1 << rng.below(32)) - 1,
        8 | 9 => *rng.pick(&atlas.blocks) + rng.below(2),
        10 => (*rng.pick(&atlas.inodes)).into(),
        _ => rng.next_u64(),
    }
}

/// Copies a part of another structure of the same kind over it.
fn splice(image: &mut [u8], atlas: &Atlas, piece: &Piece, rng: &mut Rng) -> String {
    let others: Vec<&Piece> =
        atlas.of_kind(piece.kind).filter(|other| other.bytes.len() == piece.bytes.len()).collect();
    let other = rng.pick(&others).bytes.clone();
    let len = piece.bytes.len();
    let from = if rng.one_in(2) { 0 } else { rng.below(len as u64 / 4) as usize * 4 };
    let to = if rng.one_in(2) { len } else { from + rng.below((len - from) as u64 + 1) as usize };
    image.copy_within(other.start + from..other.start + to, piece.bytes.start + from);
    format!("bytes {from}..{to} of the one at {}", other.start)
}

fn noise(image: &mut [u8], piece: &Piece, rng: &mut Rng) -> String {
    let count = rng.between(1, 24);
    for _ in 0..count {
        let at = place(piece, 1, rng);
        image[at] = rng.below(256) as u8;
    }
    format!("{count} random bytes")
}

/// Moves the bytes after an offset by a few, as a lost or duplicated entry would.
fn shift(image: &mut [u8], piece: &Piece, rng: &mut Rng) -> String {
    let by = *rng.pick(&[4, 8, 12, 16]);
    let at = place(piece, 4, rng);
    let end = piece.bytes.end;
    if at + by >= end {
        return "nothing".into();
    }
    if rng.one_in(2) {
        image.copy_within(at..end - by, at + by);
    } else {
        image.copy_within(at + by..end, at);
    }
    format!("bytes behind {} moved by {by}", at - piece.bytes.start)
}
