//! A disk of 60 TiB whose bitmaps are generated when they are read.
//!
//! This project's mkfs makes the file system on the sparse device. Then each group gets one of a
//! number of patterns of used and free blocks, and its descriptor the counts of the pattern. A
//! bitmap block reads as its group's pattern, with the group's own metadata in use, until a thread
//! writes the block.

use crate::allocators::{Map, Shape};
use crate::side::make_sparse;
use extant_blocks::{BlockDevice, SparseDevice};
use extant_format::group_desc::{GroupDesc, GroupFlags, init_block_bitmap};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use extant_format::types::GroupNr;
use extant_format::{Geometry, bitmap};
use extant_space::free_runs;
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use extant_sync::{Level, RwLock, SplitMix64};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice};
use std::ops::RangeInclusive;

/// Patterns of a profile.
const PATTERNS: u32 = 64;
/// One group in so many has the long runs.
const RARE: u32 = 100;
/// File data come in pieces of more than so many bytes.
const MANY: usize = 64 << 10;
/// The first look at a flexible group's bitmaps, in nanoseconds: as on the authors' disk.
const FIRST_LOOK: u64 = 38_000_000;

thread_local! {
    static WAITED: Cell<u64> = const { Cell::new(0) };
}

/// Returns the seconds that this thread has waited for slow disks.
pub fn waited() -> f64 {
    WAITED.get() as f64 / 1e9
}

/// How free space is cut up.
#[derive(Clone, Debug)]
pub struct Profile {
    /// For tables.
    pub name: &'static str,
    /// Blocks of a free run, in most groups and in the others.
    runs: RangeInclusive<u32>,
    rare_runs: RangeInclusive<u32>,
    /// Used blocks for each free one.
    used: f64,
}

impl Profile {
    /// 382 million runs of 9.1 blocks on the disk of 60 TiB, at most 16 in 99% of the groups and at
    /// most 511 in the rest.
    pub const HARSH: Profile =
        Profile { name: "harsh", runs: 2..=16, rare_runs: 2..=511, used: 3.65 };
    /// 250 runs a group, as the postings' memory says, and all of 32 blocks: 10 MB are 80 requests
    /// then, each of which loads 200 trees at level 2, as the published counts say. With longer
    /// runs here and there the levels would load far less.
    pub const POSTED: Profile =
        Profile { name: "posted", runs: 32..=32, rare_runs: 32..=32, used: 3.1 };

    fn bitmap(&self, seed: u32, len: u32) -> Vec<u8> {
        let mut random = SplitMix64::new(u64::from(seed) << 32 | 0x5eed);
        let lengths = if seed == PATTERNS { &self.rare_runs } else { &self.runs };
        let mean = f64::from(lengths.start() + lengths.end()) / 2.0;
        let gap = (mean * self.used * 2.0) as u32;
        let mut bits = vec![0xFF; len.div_ceil(8) as usize];
        let mut at = within(&mut random, 0..=gap);
        while at < len {
            let run = within(&mut random, lengths.clone()).min(len - at);
            bitmap::clear_range(&mut bits, at as usize..(at + run) as usize);
            at += run + within(&mut random, 1..=gap - 1);
        }
        bits
    }

    fn pattern_of(&self, g: u32) -> u32 {
        let hash = (u64::from(g) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        if (hash as u32).is_multiple_of(RARE) { PATTERNS } else { (hash >> 8) as u32 % PATTERNS }
    }
}

fn within(random: &mut SplitMix64, range: RangeInclusive<u32>) -> u32 {
    range.start() + random.below(u64::from(range.end() - range.start()) + 1) as u32
}

/// A group's bitmap as the disk has it.
#[derive(Debug)]
struct Bits {
    bytes: Vec<u8>,
    runs: u64,
    free: u32,
    csum: u32,
}

#[derive(Debug)]
pub struct Disk {
    inner: SparseDevice,
    geo: Geometry,
    bits: Vec<Bits>,
    of_group: Vec<u32>,
    /// The groups of bitmap blocks.
    blocks: HashMap<u64, u32>,
    written: RwLock<HashSet<u64>>,
    looked: Box<[AtomicBool]>,
    slow: AtomicBool,
    /// Looks at bitmaps so far.
    pub bitmaps_read: AtomicU64,
}

impl Disk {
    /// Makes a file system of so many bytes.
    pub fn new(profile: &Profile, bytes: u64) -> io::Result<Disk> {
        let inner = make_sparse(bytes, false)?;
        let mut sb = [0; SUPERBLOCK_SIZE];
        inner.read_exact_at(&mut sb, SUPERBLOCK_OFFSET)?;
        let geo =
            Superblock::parse(&sb).and_then(|sb| Geometry::new(&sb)).map_err(io::Error::other)?;
        let flexes = (geo.groups_count >> geo.flex_bits) + 1;
        let mut disk = Disk {
            inner,
            geo,
            bits: Vec::new(),
            of_group: Vec::with_capacity(geo.groups_count as usize),
            blocks: HashMap::with_capacity(geo.groups_count as usize),
            written: RwLock::new(Level::Device, HashSet::new()),
            looked: (0..flexes).map(|_| AtomicBool::new(false)).collect(),
            slow: AtomicBool::new(false),
            bitmaps_read: AtomicU64::new(0),
        };
        disk.age(profile)?;
        Ok(disk)
    }

    /// Cuts free space up.
    fn age(&mut self, profile: &Profile) -> io::Result<()> {
        let patterns: Vec<_> =
            (0..=PATTERNS).map(|seed| profile.bitmap(seed, self.geo.clusters_per_group)).collect();
        let mut made = HashMap::new();
        let mut bytes = vec![0; self.geo.block_size as usize];
        for block in 0..self.geo.desc_blocks {
            let at = self.geo.gdt_block(block).0 << self.geo.block_bits;
            self.inner.read_exact_at(&mut bytes, at)?;
            let first = block * self.geo.descs_per_block();
            let slots = bytes.chunks_exact_mut(usize::from(self.geo.desc_size));
            for (g, slot) in (first..first + self.geo.descs_in_block(block)).map(GroupNr).zip(slots)
            {
                let mut desc = GroupDesc::decode(slot, &self.geo, g).map_err(io::Error::other)?;
                let pattern = profile.pattern_of(g.0);
                let key = (self.metadata_key(g, &desc), pattern);
                let index = match made.get(&key) {
                    Some(index) => *index,
                    None => {
                        let index = self.make_bits(g, &desc, &patterns[pattern as usize])?;
                        made.insert(key, index);
                        index
                    }
                };
                let bits = &self.bits[index as usize];
                (desc.free_clusters, desc.block_bitmap_csum) = (bits.free, bits.csum);
                desc.flags.remove(GroupFlags::BLOCK_UNINIT);
                desc.encode(slot, &self.geo, g);
                self.of_group.push(index);
                self.blocks.insert(desc.block_bitmap, g.0);
            }
            self.inner.write_all_at(&bytes, at)?;
        }
        Ok(())
    }

    /// Returns a key of the metadata's place within a group. A group with allocated blocks has a
    /// key of its own.
    fn metadata_key(&self, g: GroupNr, desc: &GroupDesc) -> (u32, [Option<u64>; 3], Option<u32>) {
        let first = self.geo.first_block_of_group(g).0;
        let inside = |block: u64| {
            block.checked_sub(first).filter(|at| *at < u64::from(self.geo.blocks_per_group))
        };
        let places = [desc.block_bitmap, desc.inode_bitmap, desc.inode_table].map(inside);
        let own = !desc.has_flag(&self.geo, GroupFlags::BLOCK_UNINIT);
        (self.geo.base_meta_blocks(g), places, own.then_some(g.0))
    }

    fn make_bits(&mut self, g: GroupNr, desc: &GroupDesc, pattern: &[u8]) -> io::Result<u32> {
        let mut bytes = vec![0; self.geo.block_size as usize];
        if desc.has_flag(&self.geo, GroupFlags::BLOCK_UNINIT) {
            init_block_bitmap(&mut bytes, &self.geo, g, desc);
            // A flexible group's first group holds the metadata of all.
            let table = u64::from(self.geo.inode_table_blocks()) << self.geo.flex_bits;
            let first = self.geo.first_block_of_group(g).0;
            if (first..first + u64::from(self.geo.blocks_per_group)).contains(&desc.block_bitmap) {
                let from = (desc.block_bitmap - first) as usize;
                let end = (desc.inode_table - first + table).min(self.geo.blocks_per_group.into())
                    as usize;
                bitmap::set_range(&mut bytes, from..end);
            }
        } else {
            self.inner.read_exact_at(&mut bytes, desc.block_bitmap << self.geo.block_bits)?;
        }
        bytes.iter_mut().zip(pattern).for_each(|(byte, pattern)| *byte |= pattern);
        let mut bits = Bits { runs: 0, free: 0, csum: 0, bytes };
        free_runs(&bits.bytes, self.geo.clusters_in_group(g), |run| {
            bits.runs += 1;
            bits.free += run.len;
        });
        let mut sealed = *desc;
        sealed.seal_block_bitmap(&bits.bytes, &self.geo);
        bits.csum = sealed.block_bitmap_csum;
        self.bits.push(bits);
        Ok(self.bits.len() as u32 - 1)
    }

    fn all(&self) -> impl Iterator<Item = &Bits> {
        self.of_group.iter().filter_map(|index| self.bits.get(*index as usize))
    }

    /// Returns the number of free runs of all groups.
    pub fn runs(&self) -> u64 {
        self.all().map(|bits| bits.runs).sum()
    }

    /// Returns the mean length of a free run, in blocks.
    pub fn mean_run(&self) -> f64 {
        self.all().map(|bits| f64::from(bits.free)).sum::<f64>() / self.runs() as f64
    }

    /// Returns the free runs as they were generated, for designs that run on them.
    pub fn map(&self) -> Map {
        let shape = Shape {
            group_len: self.geo.clusters_per_group,
            groups: self.geo.groups_count,
            flex_bits: self.geo.flex_bits,
        };
        let runs = |bits: &Bits| {
            let mut runs = Vec::new();
            free_runs(&bits.bytes, shape.group_len, |run| runs.push(run));
            runs
        };
        Map::new(shape, self.bits.iter().map(runs), self.of_group.clone())
    }

    /// Forgets the reads so far, and is slow or fast from now on.
    pub fn restart(&self, slow: bool) {
        self.looked.iter().for_each(|looked| looked.store(false, Relaxed));
        self.slow.store(slow, Relaxed);
        self.bitmaps_read.store(0, Relaxed);
    }

    fn look(&self, g: u32) {
        self.bitmaps_read.fetch_add(1, Relaxed);
        if self.slow.load(Relaxed)
            && !self.looked[(g >> self.geo.flex_bits) as usize].swap(true, Relaxed)
        {
            WAITED.set(WAITED.get() + FIRST_LOOK);
        }
    }

    /// Returns the generated content of a block.
    fn made_up(&self, block: u64) -> Option<&[u8]> {
        let g = *self.blocks.get(&block)?;
        self.look(g);
        if self.written.read().contains(&block) {
            return None;
        }
        let bits = self.bits.get(*self.of_group.get(g as usize)? as usize)?;
        Some(&bits.bytes)
    }
}

/// Compares many bytes at a time: the work of the disk is not part of the measurement.
fn is_zero(data: &[u8]) -> bool {
    data.chunks(ZEROES.len()).all(|part| part == &ZEROES[..part.len()])
}

static ZEROES: [u8; 4096] = [0; 4096];

impl BlockDevice for Disk {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn name(&self) -> String {
        "60 TiB in pieces".into()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let size = u64::from(self.geo.block_size);
        if !offset.is_multiple_of(size) || !(buf.len() as u64).is_multiple_of(size) {
            return self.inner.read_exact_at(buf, offset);
        }
        for (block, part) in (offset / size..).zip(buf.chunks_exact_mut(size as usize)) {
            match self.made_up(block) {
                Some(bytes) => part.copy_from_slice(bytes),
                None => self.inner.read_exact_at(part, block * size)?,
            }
        }
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_vectored_at(&[IoSlice::new(data)], offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let size = u64::from(self.geo.block_size);
        let blocks = offset / size..(offset + len as u64).div_ceil(size);
        let bitmaps: Vec<u64> = blocks.filter(|block| self.blocks.contains_key(block)).collect();
        if !bitmaps.is_empty() {
            self.written.write().extend(bitmaps);
        } else if len > MANY && bufs.iter().all(|buf| is_zero(buf)) {
            // Zeroes need no memory.
            return self.inner.write_zeroes(offset, len as u64);
        }
        self.inner.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}
