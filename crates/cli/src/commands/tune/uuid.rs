//! UUIDs as tune2fs(8) chooses them.

use extant_engine::mkfs::parse_uuid;
use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// The choice of a UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    Random,
    Time,
    Given([u8; 16]),
}

/// Parses `random`, `time`, `clear` or a UUID.
pub fn parse(text: &str) -> Result<Chosen, String> {
    match text.to_ascii_lowercase().as_str() {
        "random" => Ok(Chosen::Random),
        "time" => Ok(Chosen::Time),
        "clear" | "null" => Ok(Chosen::Given([0; 16])),
        _ => parse_uuid(text).map(Chosen::Given).map_err(|error| error.to_string()),
    }
}

impl Chosen {
    /// Returns the bytes of the UUID.
    pub fn bytes(&self) -> [u8; 16] {
        match self {
            Chosen::Random => versioned(random(), 4),
            Chosen::Time => of_time(),
            Chosen::Given(uuid) => *uuid,
        }
    }
}

/// Returns a number whose parts are the secret keys of two hashers.
fn random() -> u128 {
    let part = || u128::from(RandomState::new().hash_one(SystemTime::now()));
    part() << 64 | part()
}

/// Sets version and variant.
fn versioned(value: u128, version: u128) -> [u8; 16] {
    let value = value & !(0xF << 76) | version << 76;
    let value = value & !(3 << 62) | 2 << 62;
    std::array::from_fn(|n| (value >> (120 - 8 * n)) as u8)
}

/// Steps of 100 ns from the begin of the Gregorian calendar, 1582-10-15, to 1970.
const BEFORE_1970: u128 = 0x01B2_1DD2_1381_4000;

/// A UUID of the current time: version 1, with a random clock sequence and a random node, which the
/// multicast bit marks as such.
fn of_time() -> [u8; 16] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let steps = now.as_nanos() / 100 + BEFORE_1970;
    let (low, mid, high) = (steps & 0xFFFF_FFFF, steps >> 32 & 0xFFFF, steps >> 48 & 0xFFF);
    let tail = random() & u128::from(u64::MAX) | 1 << 40;
    versioned(low << 96 | mid << 80 | high << 64 | tail, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_version_and_variant() {
        for (chosen, version) in [(Chosen::Random, 4), (Chosen::Time, 1)] {
            let (one, other) = (chosen.bytes(), chosen.bytes());
            assert_ne!(one, other);
            assert_eq!((one[6] >> 4, one[8] >> 6), (version, 2), "{chosen:?}");
        }
        assert_eq!(Chosen::Time.bytes()[10] & 1, 1, "a multicast address");
    }

    #[test]
    fn choices_are_named() {
        assert_eq!(parse("Random"), Ok(Chosen::Random));
        assert_eq!(parse("clear"), Ok(Chosen::Given([0; 16])));
        let given = parse("00112233-4455-6677-8899-aabbccddeeff");
        assert!(matches!(given, Ok(Chosen::Given(uuid)) if uuid[15] == 0xFF));
        assert!(parse("new").is_err());
    }
}
