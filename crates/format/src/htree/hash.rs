//! Hashes of names.

use crate::error::{Corrupt, Result};

/// The hash that a directory uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HashVersion {
    /// The first one.
    Legacy,
    /// A shortened MD4.
    #[default]
    HalfMd4,
    /// The tiny encryption algorithm.
    Tea,
}

impl HashVersion {
    /// From the number on the disk.
    ///
    /// # Errors
    /// A number that is none of 0, 1 and 2. SipHash, number 6, belongs to encrypted directories and
    /// is not supported.
    pub fn from_raw(number: u8) -> Result<HashVersion> {
        match number {
            0 => Ok(HashVersion::Legacy),
            1 => Ok(HashVersion::HalfMd4),
            2 => Ok(HashVersion::Tea),
            other => Err(Corrupt::new("directory hash").field("version").found(other)),
        }
    }

    /// The number on the disk.
    pub const fn to_raw(self) -> u8 {
        match self {
            HashVersion::Legacy => 0,
            HashVersion::HalfMd4 => 1,
            HashVersion::Tea => 2,
        }
    }
}

/// What marks the end of a directory in positions; no name has this hash.
const END_HASH: u32 = 0xFFFF_FFFE;

/// Hash and minor hash of a name. `unsigned` says whether its bytes count as 0 to 255 or as -128 to
/// 127; a seed of zeros stands for the default one. Bit 0 of the hash is clear, and it is never the
/// mark of the end.
pub fn dirhash(version: HashVersion, unsigned: bool, seed: &[u32; 4], name: &[u8]) -> (u32, u32) {
    let (hash, minor) = match version {
        HashVersion::Legacy => (legacy(name, unsigned), 0),
        HashVersion::HalfMd4 => half_md4(name, unsigned, start(seed)),
        HashVersion::Tea => tea(name, unsigned, start(seed)),
    };
    let hash = hash & !1;
    (if hash == END_HASH { END_HASH - 2 } else { hash }, minor)
}

/// Major and minor hash, one behind the other, as names of encrypted directories show them.
pub fn hash_bytes((major, minor): (u32, u32)) -> [u8; 8] {
    (u64::from(minor) << 32 | u64::from(major)).to_le_bytes()
}

/// The initial state of MD4, used where the file system has no seed of its own.
const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

fn start(seed: &[u32; 4]) -> [u32; 4] {
    if *seed == [0; 4] { DEFAULT_SEED } else { *seed }
}

fn widen(byte: u8, unsigned: bool) -> u32 {
    if unsigned { u32::from(byte) } else { i32::from(byte as i8) as u32 }
}

fn legacy(name: &[u8], unsigned: bool) -> u32 {
    const FACTOR: u32 = 7_152_373;
    let (mut current, mut previous) = (0x12A3_FE2Du32, 0x37AB_E8F9u32);
    for byte in name {
        let mixed = current ^ widen(*byte, unsigned).wrapping_mul(FACTOR);
        let sum = previous.wrapping_add(mixed);
        previous = current;
        current = if sum & 0x8000_0000 != 0 { sum.wrapping_sub(0x7FFF_FFFF) } else { sum };
    }
    current << 1
}

/// Packs up to `N` words of the name, the first byte of each in its high bits; what is missing is
/// filled with the length of what is left of the name.
fn pack<const N: usize>(rest: &[u8], unsigned: bool) -> [u32; N] {
    let padding = (rest.len() as u32 & 0xFF).wrapping_mul(0x0101_0101);
    let mut words = [padding; N];
    for (word, chunk) in words.iter_mut().zip(rest.chunks(4)) {
        for byte in chunk {
            *word = (*word << 8).wrapping_add(widen(*byte, unsigned));
        }
    }
    words
}

fn half_md4(name: &[u8], unsigned: bool, seed: [u32; 4]) -> (u32, u32) {
    let mut state = seed;
    let mut rest = name;
    while !rest.is_empty() {
        mix_half_md4(&mut state, &pack::<8>(rest, unsigned));
        rest = rest.get(32..).unwrap_or(&[]);
    }
    (state[1], state[2])
}

/// One round: its function of three words, its constant, the order of the input, the rotations.
struct Round {
    mix: fn(u32, u32, u32) -> u32,
    add: u32,
    order: [usize; 8],
    turns: [u32; 4],
}

const ROUNDS: [Round; 3] = [
    Round {
        mix: |x, y, z| z ^ (x & (y ^ z)),
        add: 0,
        order: [0, 1, 2, 3, 4, 5, 6, 7],
        turns: [3, 7, 11, 19],
    },
    Round {
        mix: |x, y, z| (x & y).wrapping_add((x ^ y) & z),
        add: 0x5A82_7999,
        order: [1, 3, 5, 7, 0, 2, 4, 6],
        turns: [3, 5, 9, 13],
    },
    Round {
        mix: |x, y, z| x ^ y ^ z,
        add: 0x6ED9_EBA1,
        order: [3, 7, 2, 6, 1, 5, 0, 4],
        turns: [3, 9, 11, 15],
    },
];

#[expect(clippy::indexing_slicing, reason = "the orders are of 8 numbers, the turns are 4")]
fn mix_half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    let [mut a, mut b, mut c, mut d] = *state;
    for round in &ROUNDS {
        for (step, source) in round.order.into_iter().enumerate() {
            let sum = a
                .wrapping_add((round.mix)(b, c, d))
                .wrapping_add(input[source])
                .wrapping_add(round.add);
            let turned = sum.rotate_left(round.turns[step % 4]);
            (a, b, c, d) = (d, turned, b, c);
        }
    }
    for (word, value) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(value);
    }
}

fn tea(name: &[u8], unsigned: bool, seed: [u32; 4]) -> (u32, u32) {
    let mut state = seed;
    let mut rest = name;
    while !rest.is_empty() {
        mix_tea(&mut state, &pack::<4>(rest, unsigned));
        rest = rest.get(16..).unwrap_or(&[]);
    }
    (state[0], state[1])
}

fn mix_tea(state: &mut [u32; 4], key: &[u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let half = |word: u32, sum: u32, low: u32, high: u32| {
        (word << 4).wrapping_add(low) ^ word.wrapping_add(sum) ^ (word >> 5).wrapping_add(high)
    };
    let (mut x, mut y, mut sum) = (state[0], state[1], 0u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        x = x.wrapping_add(half(y, sum, key[0], key[1]));
        y = y.wrapping_add(half(x, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_never_have_bit_zero() {
        for version in [HashVersion::Legacy, HashVersion::HalfMd4, HashVersion::Tea] {
            for n in 0..2000u32 {
                let (hash, _) =
                    dirhash(version, n % 2 == 0, &[1, 2, 3, 4], n.to_string().as_bytes());
                assert_eq!(hash & 1, 0);
            }
        }
    }

    #[test]
    fn signedness_matters_only_above_ascii() {
        for version in [HashVersion::Legacy, HashVersion::HalfMd4, HashVersion::Tea] {
            let both = |name: &[u8]| {
                [false, true].map(|unsigned| dirhash(version, unsigned, &[0; 4], name))
            };
            let [signed, unsigned] = both(b"plain");
            assert_eq!(signed, unsigned);
            let [signed, unsigned] = both("größe".as_bytes());
            assert_ne!(signed, unsigned);
        }
    }
}
