//! Hash trees of dm-verity over finished images, in the format of veritysetup(8), version 1.
//!
//! A superblock of 512 bytes is followed, at the next hash block, by the levels of the tree, the
//! top first. Level 0 has the digests of the data blocks, level `n + 1` those of the hash blocks of
//! level `n`, and the top is one hash block, whose digest is the root hash. With blocks of 4096
//! bytes a hash block holds 128 digests: 20,000 data blocks have 157 hash blocks in level 0, two in
//! level 1, and one at the top. The digest of a single data block is the root hash itself.
//!
//! # Invariants
//! A hash block is a function of the data below it, so the tree does not depend on the number of
//! threads. The superblock is written last, after a flush: an interrupted run leaves no tree.

use crate::crew::{Turn, run_on_threads};
use crate::error::Result;
use crate::options::number_of_threads;
use extant_blocks::BlockDevice;
use sha2::{Digest, Sha256};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a digest.
const DIGEST: usize = 32;

/// Bytes of the superblock, and the places of its fields.
const SUPERBLOCK: usize = 512;

/// Limits of the size of blocks, in bytes, as veritysetup(8) has them.
const BLOCK_SIZES: Range<u32> = 512..(512 << 10) + 1;

/// Maximum length of the salt, in bytes.
const MAX_SALT: usize = 256;

/// Bytes of data that a thread reads at once, unless a block is larger.
const READ: usize = 1 << 20;

/// Hash blocks that a thread takes at once.
const BATCH: u64 = 8;

/// Parameters of a hash tree.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct VerityOptions {
    /// Bytes of a data block: a power of two from 512 to 524288. The kernel needs one that is not
    /// larger than its pages, nor than a block of the file system.
    pub data_block_size: u32,
    /// Bytes of a hash block, likewise.
    pub hash_block_size: u32,
    /// Bytes that are hashed before each block, at most 256.
    pub salt: Vec<u8>,
    /// UUID of the tree.
    pub uuid: [u8; 16],
    /// Threads that hash; 0 means one for each processor.
    pub threads: usize,
}

/// A level of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    /// Its first hash block, counted from the superblock's.
    start: u64,
    blocks: u64,
}

/// A planned hash tree.
#[derive(Debug, Clone)]
pub struct VerityTree {
    options: VerityOptions,
    data_blocks: u64,
    /// From the digests of the data to the top.
    levels: Vec<Level>,
    blocks: u64,
    /// The state of the hash after the salt.
    salted: Sha256,
}

/// Blocks of the level below, on their device.
struct Input<'d> {
    device: &'d dyn BlockDevice,
    offset: u64,
    block_size: usize,
    blocks: u64,
}

impl VerityTree {
    /// Plans the tree over the first `data_len` bytes of a device.
    ///
    /// # Errors
    /// `InvalidInput` if options are out of bounds, or if `data_len` is no multiple of the data
    /// block size, or 0.
    pub fn new(data_len: u64, options: &VerityOptions) -> Result<VerityTree> {
        let invalid = |cause: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, cause).into());
        let is_size = |size: u32| BLOCK_SIZES.contains(&size) && size.is_power_of_two();
        if !is_size(options.data_block_size) || !is_size(options.hash_block_size) {
            return invalid("a block of a hash tree has a power of two from 512 to 524288 bytes");
        }
        if options.salt.len() > MAX_SALT {
            return invalid("the salt of a hash tree has at most 256 bytes");
        }
        let data_block_size = u64::from(options.data_block_size);
        if data_len == 0 || !data_len.is_multiple_of(data_block_size) {
            return invalid("a hash tree needs whole data blocks");
        }
        let fan_out = u64::from(options.hash_block_size) / DIGEST as u64;
        let data_blocks = data_len / data_block_size;
        let mut counts = Vec::new();
        let mut below = data_blocks;
        while below > 1 {
            below = below.div_ceil(fan_out);
            counts.push(below);
        }
        let mut at = (SUPERBLOCK as u64).div_ceil(options.hash_block_size.into());
        let mut levels: Vec<Level> = Vec::new();
        for blocks in counts.into_iter().rev() {
            levels.push(Level { start: at, blocks });
            at += blocks;
        }
        levels.reverse();
        let salted = Sha256::new_with_prefix(&options.salt);
        Ok(VerityTree { options: options.clone(), data_blocks, levels, blocks: at, salted })
    }

    /// Returns the number of data blocks.
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// Returns the length of superblock and tree, in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.options.hash_block_size)
    }

    /// Returns the first offset behind the data at which the tree may begin on the same device, in
    /// bytes.
    pub fn offset_behind_data(&self) -> u64 {
        let data = self.data_blocks * u64::from(self.options.data_block_size);
        data.next_multiple_of(self.options.hash_block_size.into())
    }

    /// Hashes the data, writes the tree at `offset` of a device, which may be that of the data, and
    /// returns the root hash. `offset` must be a multiple of the hash block size. The bytes between
    /// the superblock and the tree become zeroes.
    ///
    /// # Errors
    /// Those of the devices; `Interrupted` if `stop` became true. The device has no tree then.
    pub fn write(
        &self,
        data: &dyn BlockDevice,
        device: &dyn BlockDevice,
        offset: u64,
        stop: &AtomicBool,
    ) -> Result<[u8; DIGEST]> {
        let size = self.options.hash_block_size as usize;
        // The superblock of an older tree must not describe a half of this one.
        let head = vec![0; SUPERBLOCK.next_multiple_of(size)];
        device.write_all_at(&head, offset)?;
        let place = |level: Level| offset + level.start * size as u64;
        let data_block_size = self.options.data_block_size as usize;
        let mut input = Input {
            device: data,
            offset: 0,
            block_size: data_block_size,
            blocks: self.data_blocks,
        };
        for level in &self.levels {
            self.write_level(&input, *level, (device, place(*level)), stop)?;
            let blocks = level.blocks;
            input = Input { device, offset: place(*level), block_size: size, blocks };
        }
        let mut top = vec![0; input.block_size];
        input.device.read_exact_at(&mut top, input.offset)?;
        device.flush()?;
        device.write_all_at(&self.superblock(), offset)?;
        device.flush()?;
        Ok(self.digest(&top))
    }

    fn digest(&self, block: &[u8]) -> [u8; DIGEST] {
        self.salted.clone().chain_update(block).finalize().into()
    }

    fn write_level(
        &self,
        input: &Input<'_>,
        level: Level,
        (device, place): (&dyn BlockDevice, u64),
        stop: &AtomicBool,
    ) -> Result<()> {
        let size = u64::from(self.options.hash_block_size);
        let zero = self.digest(&vec![0; input.block_size]);
        let threads = number_of_threads(self.options.threads);
        let batches = level.blocks.div_ceil(BATCH) as usize;
        let work = |turn: &Turn| {
            let mut reader = Reader { input, zero, tree: self, buf: Vec::new(), data: 0..0 };
            while let Some(batch) = turn.take() {
                // Relaxed: the flag orders nothing, and may be seen a batch later.
                if stop.load(Ordering::Relaxed) {
                    return Err(io::Error::from(io::ErrorKind::Interrupted).into());
                }
                let first = batch as u64 * BATCH;
                let blocks = first..(first + BATCH).min(level.blocks);
                let hashes = reader.hash_blocks(blocks, size)?;
                device.write_all_at(&hashes, place + first * size)?;
            }
            Ok(())
        };
        run_on_threads(threads, batches, work).map(drop)
    }

    fn superblock(&self) -> [u8; SUPERBLOCK] {
        let salt = &self.options.salt;
        let mut bytes = Vec::with_capacity(SUPERBLOCK);
        bytes.extend(b"verity\0\0");
        // Version of the format, and type of the hash: the salt is hashed before the block.
        bytes.extend([1u32, 1].map(u32::to_le_bytes).as_flattened());
        bytes.extend(self.options.uuid);
        bytes.extend(b"sha256");
        bytes.resize(64, 0);
        let sizes = [self.options.data_block_size, self.options.hash_block_size];
        bytes.extend(sizes.map(u32::to_le_bytes).as_flattened());
        bytes.extend(self.data_blocks.to_le_bytes());
        bytes.extend((salt.len() as u16).to_le_bytes());
        bytes.resize(88, 0);
        bytes.extend(salt);
        bytes.resize(SUPERBLOCK, 0);
        let mut superblock = [0; SUPERBLOCK];
        superblock.copy_from_slice(&bytes);
        superblock
    }
}

/// The input of one thread.
struct Reader<'r> {
    input: &'r Input<'r>,
    tree: &'r VerityTree,
    /// Digest of a block of zeroes.
    zero: [u8; DIGEST],
    buf: Vec<u8>,
    /// The data that was found last: bytes before it, from the place of that search on, are zeroes.
    data: Range<u64>,
}

impl Reader<'_> {
    /// Returns hash blocks of the level above the input.
    fn hash_blocks(&mut self, blocks: Range<u64>, size: u64) -> io::Result<Vec<u8>> {
        let fan_out = size / DIGEST as u64;
        let mut hashes = Vec::with_capacity(((blocks.end - blocks.start) * size) as usize);
        let (mut at, end) = (blocks.start * fan_out, blocks.end * fan_out);
        let chunk = (READ / self.input.block_size).max(1) as u64;
        while at < end.min(self.input.blocks) {
            let next = (at + chunk).min(end).min(self.input.blocks);
            self.hash(at..next, &mut hashes)?;
            at = next;
        }
        hashes.resize(((blocks.end - blocks.start) * size) as usize, 0);
        Ok(hashes)
    }

    /// Appends the digests of blocks of the input.
    fn hash(&mut self, blocks: Range<u64>, hashes: &mut Vec<u8>) -> io::Result<()> {
        let size = self.input.block_size;
        let count = (blocks.end - blocks.start) as usize;
        let start = self.input.offset + blocks.start * size as u64;
        if self.is_hole(start..start + (count * size) as u64)? {
            hashes.extend(std::iter::repeat_n(self.zero, count).flatten());
            return Ok(());
        }
        self.buf.resize(count * size, 0);
        self.input.device.read_exact_at(&mut self.buf, start)?;
        let digests = self.buf.chunks(size).map(|block| self.tree.digest(block));
        hashes.extend(digests.flatten());
        Ok(())
    }

    fn is_hole(&mut self, bytes: Range<u64>) -> io::Result<bool> {
        if self.data.end <= bytes.start {
            self.data = self.input.device.next_data(bytes.start)?.unwrap_or(u64::MAX..u64::MAX);
        }
        Ok(bytes.end <= self.data.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_blocks::SparseDevice;

    fn options(data: u32, hash: u32) -> VerityOptions {
        VerityOptions { data_block_size: data, hash_block_size: hash, ..VerityOptions::default() }
    }

    #[test]
    fn levels_shrink_by_the_fan_out() {
        let counts = |blocks: u64| {
            let tree = VerityTree::new(blocks * 4096, &options(4096, 4096)).unwrap();
            let levels = tree.levels.iter().map(|level| level.blocks).collect::<Vec<_>>();
            (levels, tree.blocks)
        };
        assert_eq!(counts(1), (vec![], 1));
        assert_eq!(counts(2), (vec![1], 2));
        assert_eq!(counts(128), (vec![1], 2));
        assert_eq!(counts(129), (vec![2, 1], 4));
        assert_eq!(counts(20_000), (vec![157, 2, 1], 161));
    }

    #[test]
    fn bad_options_are_refused() {
        for (len, data, hash) in
            [(0, 4096, 4096), (4097, 4096, 4096), (4096, 256, 4096), (4096, 4096, 1 << 20)]
        {
            assert!(VerityTree::new(len, &options(data, hash)).is_err(), "{len} {data} {hash}");
        }
        let salt = vec![1; 257];
        assert!(VerityTree::new(4096, &VerityOptions { salt, ..options(4096, 4096) }).is_err());
        assert!(VerityTree::new(4096, &options(4096, 3000)).is_err());
    }

    #[test]
    fn threads_and_holes_change_nothing() {
        let data = SparseDevice::new(9 << 20);
        data.write_all_at(&[7; 5000], (3 << 20) + 100).unwrap();
        data.write_all_at(&[0; 4096], 4096).unwrap();
        let stop = AtomicBool::new(false);
        let trees = [1, 3].map(|threads| {
            let options = VerityOptions { threads, ..options(1024, 512) };
            let tree = VerityTree::new(data.len(), &options).unwrap();
            let device = SparseDevice::new(tree.bytes());
            let root = tree.write(&data, &device, 0, &stop).unwrap();
            let mut bytes = vec![0; tree.bytes() as usize];
            device.read_exact_at(&mut bytes, 0).unwrap();
            (root, bytes)
        });
        assert!(trees[0] == trees[1]);
        stop.store(true, Ordering::Relaxed);
        let tree = VerityTree::new(data.len(), &options(1024, 512)).unwrap();
        let device = SparseDevice::new(tree.bytes());
        assert!(tree.write(&data, &device, 0, &stop).is_err());
        let mut head = [1; 8];
        device.read_exact_at(&mut head, 0).unwrap();
        assert_eq!(head, [0; 8], "an interrupted tree has no superblock");
    }
}
