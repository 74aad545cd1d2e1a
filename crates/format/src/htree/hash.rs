//! Hashes of names.

use crate::error::{Corrupt, Result};

/// The hash that a directory uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HashVersion {
    /// The original ext3 hash.
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
    /// [`Corrupt`] for numbers other than 0, 1 and 2. SipHash, number 6, belongs to encrypted
    /// directories and is not supported.
    pub fn from_raw(number: u8) -> Result<HashVersion> {
        match number {
            0 => Ok(HashVersion::Legacy),
            1 => Ok(HashVersion::HalfMd4),
            2 => Ok(HashVersion::Tea),
            other => Err(Corrupt::new("directory hash").field("version").found(other)),
        }
    }

    /// Returns the number on the disk.
    pub const fn to_raw(self) -> u8 {
        match self {
            HashVersion::Legacy => 0,
            HashVersion::HalfMd4 => 1,
            HashVersion::Tea => 2,
        }
    }
}

/// Hash value that marks the end of a directory in stream positions; no name has this hash.
const END_HASH: u32 = 0xFFFF_FFFE;

/// Returns hash and minor hash of a name. `unsigned` selects bytes of 0 to 255 instead of -128 to
/// 127; a seed of zeros selects the default seed. Bit 0 of the hash is clear, and the hash never
/// equals the end mark.
pub fn dirhash(version: HashVersion, unsigned: bool, seed: &[u32; 4], name: &[u8]) -> (u32, u32) {
    let (hash, minor) = match version {
        HashVersion::Legacy => (legacy(name, unsigned), 0),
        HashVersion::HalfMd4 => half_md4(name, unsigned, start(seed)),
        HashVersion::Tea => tea(name, unsigned, start(seed)),
    };
    let hash = hash & !1;
    (if hash == END_HASH { END_HASH - 2 } else { hash }, minor)
}

/// Returns the bytes of major and minor hash, concatenated as in no-key names of encrypted
/// directories.
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

/// Packs up to `N` words of the name, the first byte of each in its high bits; words without input
/// are padded with the length of the remaining name.
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

/// One round: takes the words of the input in order, and turns the results by the numbers of bits.
#[inline(always)]
fn round(
    state: [u32; 4],
    input: [u32; 8],
    turns: [u32; 4],
    mix: impl Fn(u32, u32, u32) -> u32,
) -> [u32; 4] {
    input.into_iter().zip(turns.into_iter().cycle()).fold(state, |[a, b, c, d], (word, turn)| {
        let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(word);
        [d, sum.rotate_left(turn), b, c]
    })
}

fn mix_half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    let [s, t, u, v, w, x, y, z] = *input;
    let first = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    let second =
        |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z).wrapping_add(0x5A82_7999);
    let third = |x: u32, y: u32, z: u32| (x ^ y ^ z).wrapping_add(0x6ED9_EBA1);
    let mixed = round(*state, *input, [3, 7, 11, 19], first);
    let mixed = round(mixed, [t, v, x, z, s, u, w, y], [3, 5, 9, 13], second);
    let mixed = round(mixed, [v, z, u, y, t, x, s, w], [3, 9, 11, 15], third);
    for (word, value) in state.iter_mut().zip(mixed) {
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
