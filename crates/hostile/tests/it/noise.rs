//! All parsers return a value or an error for any bytes. In debug builds an overflow panics, so
//! arithmetic is tested, too.

use extant_format::Superblock;
use extant_format::features::{Incompat, RoCompat};
use extant_hostile::parsers;
use proptest::prelude::*;

/// A kind of file system with 64-bit descriptors that have checksums.
const KIND: u8 = 4 | 16;

fn base(block_log: u32) -> Superblock {
    let mut sb = parsers::kind(KIND);
    sb.set_log_block_size(block_log);
    sb.set_log_cluster_size(block_log);
    sb.set_first_data_block(u32::from(block_log == 0));
    sb
}

/// Numbers at the limits of types.
fn number() -> impl Strategy<Value = u32> {
    let powers = (0u32..32).prop_map(|n| 1 << n);
    prop_oneof![
        any::<u32>(),
        powers.clone(),
        powers.prop_map(|n| n - 1),
        0u32..20,
        (0u32..20).prop_map(|n| u32::MAX - n)
    ]
}

/// Places of the superblock that a geometry depends on.
fn place() -> impl Strategy<Value = usize> {
    let places: Vec<usize> = (0..0x30)
        .chain(0x54..0x68)
        .chain(0xCE..0xD0)
        .chain(0xFC..0x108)
        .chain([0x150, 0x174])
        .collect();
    prop_oneof![prop::sample::select(places), 0usize..1024]
}

fn damaged() -> impl Strategy<Value = Superblock> {
    let changes = prop::collection::vec((place(), number(), 1usize..5), 0..5);
    (0u32..7, changes, any::<[u32; 2]>()).prop_map(|(log, changes, masks)| {
        let mut bytes = base(log).encode();
        for (place, number, len) in changes {
            let end = (place + len).min(bytes.len());
            bytes[place..end].copy_from_slice(&number.to_le_bytes()[..end - place]);
        }
        bytes[0x38..0x3A].copy_from_slice(&[0x53, 0xEF]);
        let mut sb = Superblock::parse_unverified(&bytes).expect("the magic is right");
        let mut features = sb.features();
        features.incompat.toggle(Incompat::from_bits_retain(masks[0] & masks[1] & 0xFFF));
        features.ro_compat.toggle(RoCompat::from_bits_retain(masks[0] & !masks[1] & 0xFFF));
        sb.set_features(features);
        sb
    })
}

/// Arguments of accessors: a block and a group in one number, an inode; then random bytes.
fn questions() -> impl Strategy<Value = Vec<u8>> {
    let numbers = prop_oneof![any::<[u32; 4]>(), [number(), number(), number(), number()]];
    (numbers, prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(numbers, bytes)| {
        numbers.into_iter().flat_map(u32::to_le_bytes).chain(bytes).collect()
    })
}

proptest! {
    #[test]
    fn superblocks(sb in damaged(), questions in questions()) {
        parsers::ask_superblock(sb, &questions);
    }

    #[test]
    fn every_parser(
        which in 0..parsers::COUNT as u8,
        of in any::<u8>(),
        bytes in prop::collection::vec(any::<u8>(), 0..1200),
    ) {
        parsers::run(&[&[which, of][..], &bytes].concat());
    }

    /// Choices that make logs with an area of fast commits.
    #[test]
    fn logs_with_fast_commits(
        flags in 0u8..32,
        blocks in 2u8..20,
        choices in prop::collection::vec(any::<u8>(), 8..300),
    ) {
        const FAST_COMMIT: u8 = 32;
        extant_hostile::log::run(&[&[flags | FAST_COMMIT, 0, blocks][..], &choices].concat());
    }

    /// With the magic of a log's block in front.
    #[test]
    fn blocks_of_a_log(
        form in 0u8..32,
        kind in 1u8..6,
        mut bytes in prop::collection::vec(any::<u8>(), 12..1200),
    ) {
        bytes[..8].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, kind]);
        for which in [parsers::COUNT as u8 - 2, parsers::COUNT as u8 - 1] {
            parsers::run(&[&[which, 12, form][..], &bytes].concat());
        }
    }
}
