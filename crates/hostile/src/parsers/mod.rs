//! Fuzz target for all parsers of on-disk structures. The first byte of an input selects the
//! parser, the second the kind of file system, and the rest is parsed.
//!
//! Each parser's run calls all accessors of the parsed structure, and checks that encoding and
//! parsing it again gives the same.

mod files;
mod journal;
mod names;
mod whole;

use crate::atlas::Kind;
use crate::seeds::Seed;
use extant_format::features::{Features, Incompat, RoCompat};
use extant_format::superblock::SUPERBLOCK_SIZE;
use extant_format::{Compat, Geometry, Superblock};

type Parser = fn(&Geometry, &[u8]);

/// Number of parsers.
pub const COUNT: usize = 18;

/// The meaning of inputs depends on the order.
const PARSERS: [Parser; COUNT] = [
    whole::superblock,
    whole::descriptor,
    whole::bits,
    whole::mmp,
    whole::orphans,
    whole::quota,
    files::inode,
    files::extents,
    files::pointers,
    files::verity,
    files::acl,
    files::inode_attributes,
    files::attribute_block,
    names::entries,
    names::index,
    names::hashes,
    journal::superblock,
    journal::blocks,
];

/// Returns the superblock of a kind of file system, selected by bits.
pub fn kind(bits: u8) -> Superblock {
    let mut sb = Superblock::empty();
    let block_log = [0, 2, 6, 1][usize::from(bits & 3)];
    let mut incompat = Incompat::EXTENTS | Incompat::FLEX_BG | Incompat::FILETYPE;
    let mut ro_compat = RoCompat::SPARSE_SUPER;
    incompat.set(Incompat::BIT64, bits & 4 != 0);
    incompat.set(Incompat::LARGEDIR, bits & 4 != 0);
    ro_compat.set(RoCompat::METADATA_CSUM, bits & 8 != 0);
    ro_compat.set(RoCompat::GDT_CSUM, bits & 24 == 16);
    sb.set_features(Features {
        compat: Compat::HAS_JOURNAL | Compat::DIR_INDEX,
        incompat,
        ro_compat,
    });
    sb.set_desc_size(if bits & 4 != 0 { 64 } else { 32 });
    sb.set_log_block_size(block_log);
    sb.set_log_cluster_size(block_log);
    sb.set_first_data_block(u32::from(block_log == 0));
    sb.set_blocks_per_group(8192);
    sb.set_clusters_per_group(8192);
    sb.set_blocks_count(100_000);
    sb.set_inodes_per_group(1024);
    sb.set_inodes_count(13 * 1024);
    sb.set_inode_size(if bits & 32 != 0 { 128 } else { 256 });
    sb.set_first_ino(11);
    sb.set_checksum_type(1);
    sb
}

/// Returns the bytes as a block of `size` bytes: cut, or padded with zeroes.
fn block(bytes: &[u8], size: usize) -> Vec<u8> {
    let mut block = bytes.to_vec();
    block.resize(size, 0);
    block
}

/// A number from the beginning of the bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Parses bytes.
///
/// # Panics
/// If a parser panics or contradicts itself.
pub fn run(input: &[u8]) {
    let [which, of, bytes @ ..] = input else { return };
    let geo = Geometry::new(&kind(*of)).expect("a geometry that can be");
    PARSERS[usize::from(*which) % PARSERS.len()](&geo, bytes);
}

/// Calls all accessors of a superblock and its geometry. The bytes are structures of the file
/// system and arguments of the calls.
///
/// # Panics
/// If an accessor panics, or results contradict each other.
pub fn ask_superblock(sb: Superblock, bytes: &[u8]) {
    whole::answers(sb, bytes);
}

/// Returns inputs made of an image's structures: some of each kind. Structures beyond the end of a
/// damaged image are left out.
pub fn of_image(seed: &Seed) -> Vec<Vec<u8>> {
    const SOME: usize = 4;
    let parser = |wanted: Parser| {
        PARSERS.iter().position(|parser| std::ptr::fn_addr_eq(*parser, wanted)).unwrap_or(0) as u8
    };
    let kinds: [(Kind, Parser); 14] = [
        (Kind::Descriptor, whole::descriptor),
        (Kind::BlockBitmap, whole::bits),
        (Kind::Mmp, whole::mmp),
        (Kind::OrphanBlock, whole::orphans),
        (Kind::Inode, files::inode),
        (Kind::ExtentBlock, files::extents),
        (Kind::IndirectBlock, files::pointers),
        (Kind::XattrBlock, files::attribute_block),
        (Kind::Directory, names::index),
        (Kind::JournalSuperblock, journal::superblock),
        (Kind::JournalDescriptor, journal::blocks),
        (Kind::JournalRevoke, journal::blocks),
        (Kind::JournalCommit, journal::blocks),
        (Kind::FastCommits, journal::blocks),
    ];
    let input = |which: Parser, of: u8, extra: &[u8], bytes: &[u8]| {
        [&[parser(which), of], extra, bytes].concat()
    };
    let mut inputs = Vec::new();
    for (kind, which) in kinds {
        for bytes in seed
            .atlas
            .of_kind(kind)
            .filter_map(|piece| seed.bytes.get(piece.bytes.clone()))
            .take(SOME)
        {
            let form: &[u8] =
                if std::ptr::fn_addr_eq(which, journal::blocks as Parser) { &[18] } else { &[] };
            inputs.push(input(which, 12, form, bytes));
            if kind == Kind::Directory {
                inputs.push(input(names::entries, 12, &[3, b'n', b'e', b'w'], bytes));
            }
        }
    }
    inputs.push(input(whole::superblock, 0, &[], &[0; SUPERBLOCK_SIZE]));
    inputs
}
