//! Files with a hash tree (fs-verity): the descriptor and the shape of the tree. Both lie behind
//! the end of the file: the tree from the next multiple of [`METADATA_ALIGN`] bytes on, its root
//! first; then, from the next block of the file system on, the descriptor; and in the last four
//! bytes of the last mapped block the descriptor's length. Source of facts: the kernel's
//! documentation of fs-verity.
//!
//! # Invariants
//! A [`Tree`] has at most [`MAX_LEVELS`] levels, and a block of each level names at least two
//! blocks below it.

use crate::bytes::{array, le32, le64, part};
use crate::error::{Corrupt, Result};

/// The tree begins at a multiple of this many bytes.
pub const METADATA_ALIGN: u64 = 65_536;

/// Bytes of a descriptor; a signature may follow.
pub const DESCRIPTOR_SIZE: usize = 256;

/// Longest descriptor with its signature, in bytes.
pub const MAX_DESCRIPTOR: u32 = 16_384;

/// Size of the descriptor's length field, in bytes.
pub const LENGTH_SIZE: usize = 4;

/// Maximum number of levels of a tree.
pub const MAX_LEVELS: usize = 8;

/// Smallest block of a tree: 1 KiB.
const MIN_BLOCK_BITS: u32 = 10;

const SALT_MAX: usize = 32;
const STRUCTURE: &str = "verity descriptor";

const VERSION_AT: usize = 0;
const ALGORITHM_AT: usize = 1;
const BLOCK_BITS_AT: usize = 2;
const SALT_SIZE_AT: usize = 3;
const SIGNATURE_SIZE_AT: usize = 4;
const DATA_SIZE_AT: usize = 8;
const ROOT_AT: usize = 16;
const SALT_AT: usize = 80;
const RESERVED_AT: usize = 112;

/// Hash algorithm of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    /// Its number in descriptors and in FS_IOC_MEASURE_VERITY.
    pub fn number(self) -> u8 {
        match self {
            Algorithm::Sha256 => 1,
            Algorithm::Sha512 => 2,
        }
    }

    /// Returns the number of bytes of a hash.
    pub fn digest_len(self) -> usize {
        match self {
            Algorithm::Sha256 => 32,
            Algorithm::Sha512 => 64,
        }
    }

    /// Returns the number of bytes that the algorithm takes in at a time; a salt is filled up with
    /// zeroes to a multiple of it.
    pub fn input_len(self) -> usize {
        self.digest_len().saturating_mul(2)
    }
}

/// Parameters and root hash for the verification of a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Hash algorithm of the blocks.
    pub algorithm: Algorithm,
    /// Logarithm of the size of the tree's blocks, and of the data blocks that it hashes.
    pub block_bits: u32,
    /// Salt, padded with zeroes, that precedes the input of each hash; empty for none.
    pub salt: Vec<u8>,
    /// Bytes of the file.
    pub data_size: u64,
    /// Hash of the tree's root block, or of the only data block; zeroes for an empty file.
    pub root: Vec<u8>,
    /// The descriptor without its signature: the input of the file's measurement hash.
    pub measured: Vec<u8>,
}

impl Descriptor {
    /// Reads a descriptor of a file of `size` bytes in a file system whose blocks have `1 <<
    /// max_block_bits` bytes. A signature is ignored.
    ///
    /// # Errors
    /// [`Corrupt`] with the wrong field.
    pub fn parse(bytes: &[u8], size: u64, max_block_bits: u32) -> Result<Descriptor> {
        let wrong = |field, found: u64| Corrupt::new(STRUCTURE).field(field).found(found);
        if bytes.len() < DESCRIPTOR_SIZE {
            return Err(wrong("length", bytes.len() as u64).expected(DESCRIPTOR_SIZE as u64));
        }
        let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
        if byte(VERSION_AT) != 1 {
            return Err(wrong("version", byte(VERSION_AT).into()).expected(1u8));
        }
        let algorithm = match byte(ALGORITHM_AT) {
            1 => Algorithm::Sha256,
            2 => Algorithm::Sha512,
            other => return Err(wrong("hash algorithm", other.into())),
        };
        let block_bits = u32::from(byte(BLOCK_BITS_AT));
        if block_bits < MIN_BLOCK_BITS || block_bits > max_block_bits {
            return Err(wrong("block size", block_bits.into()).expected(max_block_bits));
        }
        let salt_len = usize::from(byte(SALT_SIZE_AT));
        if salt_len > SALT_MAX {
            return Err(wrong("salt size", salt_len as u64).expected(SALT_MAX as u64));
        }
        let signature = le32(bytes, SIGNATURE_SIZE_AT);
        if u64::from(signature) > bytes.len().saturating_sub(DESCRIPTOR_SIZE) as u64 {
            return Err(wrong("signature size", signature.into()));
        }
        let data_size = le64(bytes, DATA_SIZE_AT);
        if data_size != size {
            return Err(wrong("file size", data_size).expected(size));
        }
        if part(bytes, RESERVED_AT, DESCRIPTOR_SIZE).iter().any(|b| *b != 0) {
            return Err(Corrupt::new(STRUCTURE).field("reserved bytes"));
        }
        let mut measured = array::<DESCRIPTOR_SIZE>(bytes, 0);
        crate::bytes::put_le32(&mut measured, SIGNATURE_SIZE_AT, 0);
        Ok(Descriptor {
            algorithm,
            block_bits,
            salt: part(bytes, SALT_AT, SALT_AT + salt_len).to_vec(),
            data_size,
            root: part(bytes, ROOT_AT, ROOT_AT.saturating_add(algorithm.digest_len())).to_vec(),
            measured: measured.to_vec(),
        })
    }

    /// Returns the number of bytes of the tree's blocks.
    pub fn block_size(&self) -> usize {
        1 << self.block_bits
    }
}

/// The descriptor's length, from the last four bytes of the last mapped block.
///
/// # Errors
/// [`Corrupt`] for an impossible length.
pub fn descriptor_len(word: [u8; LENGTH_SIZE]) -> Result<u32> {
    let len = u32::from_le_bytes(word);
    if (DESCRIPTOR_SIZE as u32..=MAX_DESCRIPTOR).contains(&len) {
        Ok(len)
    } else {
        Err(Corrupt::new(STRUCTURE).field("length").found(len).expected(MAX_DESCRIPTOR))
    }
}

/// Locations of the blocks of a hash tree, counted in blocks from the tree's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// First block of each level, from the one that hashes data up to the root.
    starts: Vec<u64>,
    /// Blocks of all levels.
    blocks: u64,
    /// Hashes in a block.
    arity: u64,
}

impl Tree {
    /// Returns the tree of a descriptor.
    ///
    /// # Errors
    /// [`Corrupt`] for a file so large that its tree has more than [`MAX_LEVELS`] levels.
    pub fn of(desc: &Descriptor) -> Result<Tree> {
        let size = desc.block_size() as u64;
        // At least 2, or the loop below would not end.
        let arity = size.checked_div(desc.algorithm.digest_len() as u64).unwrap_or(0).max(2);
        let mut counts = Vec::new();
        let mut below = desc.data_size.div_ceil(size);
        while below > 1 {
            below = below.div_ceil(arity);
            counts.push(below);
        }
        if counts.len() > MAX_LEVELS {
            return Err(Corrupt::new(STRUCTURE)
                .field("levels")
                .found(counts.len() as u64)
                .expected(MAX_LEVELS as u64));
        }
        let mut blocks = 0;
        let mut starts = vec![0; counts.len()];
        for (start, count) in starts.iter_mut().zip(&counts).rev() {
            *start = blocks;
            blocks = count.saturating_add(blocks);
        }
        Ok(Tree { starts, blocks, arity })
    }

    /// Returns the number of levels; none where the file has one block at most.
    pub fn levels(&self) -> usize {
        self.starts.len()
    }

    /// Returns the number of blocks of all levels.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the block that holds the hash of block `below` of the level under it, and the index
    /// of that hash in the block.
    pub fn parent(&self, below: u64) -> (u64, usize) {
        let index = below.checked_rem(self.arity).unwrap_or(0);
        (below.checked_div(self.arity).unwrap_or(0), index as usize)
    }

    /// Returns the position of block `index` of `level` in the tree (level 0 hashes data); `None`
    /// if there is no such level.
    pub fn place(&self, level: usize, index: u64) -> Option<u64> {
        self.starts.get(level).map(|start| start.saturating_add(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(data_size: u64) -> Vec<u8> {
        let mut bytes = vec![0; DESCRIPTOR_SIZE];
        bytes[..4].copy_from_slice(&[1, 1, 12, 3]);
        bytes[DATA_SIZE_AT..DATA_SIZE_AT + 8].copy_from_slice(&data_size.to_le_bytes());
        bytes[SALT_AT..SALT_AT + 3].copy_from_slice(b"xyz");
        bytes
    }

    #[test]
    fn descriptors_are_taken_apart() {
        let desc = Descriptor::parse(&bytes(5000), 5000, 12).unwrap();
        assert_eq!(
            (desc.algorithm, desc.block_size(), desc.salt.as_slice()),
            (Algorithm::Sha256, 4096, &b"xyz"[..])
        );
        for (at, value) in
            [(0, 2), (1, 0), (1, 3), (2, 9), (2, 13), (3, 33), (4, 1), (8, 0), (112, 1), (255, 1)]
        {
            let mut bad = bytes(5000);
            bad[at] = value;
            assert!(Descriptor::parse(&bad, 5000, 12).is_err(), "byte {at} is {value}");
        }
        assert!(Descriptor::parse(&bytes(5000)[..255], 5000, 12).is_err());
        assert!(
            descriptor_len(255u32.to_le_bytes()).is_err() && descriptor_len([0xff; 4]).is_err()
        );
        assert_eq!(descriptor_len(256u32.to_le_bytes()), Ok(256));
    }

    #[test]
    fn a_signature_is_not_measured() {
        let mut signed = bytes(5000);
        signed[SIGNATURE_SIZE_AT] = 9;
        signed.extend([7; 9]);
        let desc = Descriptor::parse(&signed, 5000, 12).unwrap();
        assert_eq!(desc.measured, bytes(5000));
    }

    #[test]
    fn trees_have_their_root_first() {
        let tree = |size| Tree::of(&Descriptor::parse(&bytes(size), size, 12).unwrap());
        assert_eq!(tree(0).unwrap().levels(), 0);
        assert_eq!(tree(4096).unwrap().levels(), 0);
        let two = tree(4097).unwrap();
        assert_eq!((two.levels(), two.blocks(), two.place(0, 0)), (1, 1, Some(0)));
        let three = tree(129 * 4096).unwrap();
        assert_eq!((three.levels(), three.blocks()), (2, 3));
        assert_eq!(
            (three.place(1, 0), three.place(0, 1), three.place(2, 0)),
            (Some(0), Some(2), None)
        );
        assert_eq!(three.parent(128), (1, 0));
        assert!(tree(u64::MAX).unwrap().levels() == MAX_LEVELS);
        let mut small = bytes(u64::MAX);
        small[2] = 10;
        assert!(Tree::of(&Descriptor::parse(&small, u64::MAX, 12).unwrap()).is_err());
    }
}
