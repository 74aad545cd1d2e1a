//! Makes file systems, laid out as `mke2fs` 1.47 lays them out.
//!
//! The default features are those of `mke2fs -t ext4`, plus `orphan_file` and `metadata_csum_seed`,
//! which `mke2fs` supports but does not enable by default: [`Options::apply_features`] with
//! `^orphan_file,^metadata_csum_seed` disables them.
//!
//! The layout is complete in memory, as runs of blocks, before the first write, and only nonzero
//! blocks are written. So a file system of 60 TiB takes little more time than its descriptors and
//! the bitmaps that have to exist.
//!
//! # Invariants
//! The primary superblock is overwritten with zeroes first and written last, after a flush: after
//! an interrupted run the device has no file system.
#![forbid(unsafe_code)]

mod directory;
mod error;
mod features;
mod files;
mod groups;
mod map;
mod options;
mod output;
mod sizing;
mod space;
mod superblock;
mod tables;

pub use error::{Error, Result};
pub use options::{Length, Options, Preset, Zeroing, parse_size, parse_uuid};

use extant_blocks::{AlignedDevice, BlockDevice};
use extant_format::superblock::State;
use extant_format::{Features, Geometry, Superblock};
use files::{Builder, Files};
use groups::Groups;
use output::Output;
use sizing::Sizes;
use space::Taken;
use superblock::Identity;
use tables::Tables;

/// Description of the new file system.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Features of the file system.
    pub features: Features,
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the file system; blocks at the device's end that are too few for a group are left
    /// out.
    pub blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Inodes of the file system.
    pub inodes: u32,
    /// Inodes that are free.
    pub free_inodes: u32,
    /// Groups.
    pub groups: u32,
    /// Blocks of the journal, 0 if there is none.
    pub journal_blocks: u32,
    /// UUID.
    pub uuid: [u8; 16],
    /// Bytes that were written, without zeroed ranges.
    pub written: u64,
}

/// Bytes before the primary superblock.
const BOOT_BYTES: u64 = 1024;

/// Bytes at the device's end where signatures of other formats may be.
const END_BYTES: u64 = 64 << 10;

/// Makes a file system on the device; its previous content is lost.
///
/// # Errors
/// [`Error`] for invalid options, a device that is too small, or an error of the device; `EBUSY` if
/// this process has a file system open on it.
pub fn make(device: &dyn BlockDevice, options: &Options) -> Result<Report> {
    let _claim = device.claim(true)?;
    let device = &AlignedDevice::new(device);
    let features = features::choose(options)?;
    let sizes = Sizes::new(options, features, device.len())?;
    let identity = Identity::new(options);
    let mut sb = superblock::build(options, &sizes, &identity)?;
    let geo = Geometry::new(&sb)?;
    let mut taken = Taken::default();
    let tables = Tables::place(&geo, &mut taken)?;
    set_overhead(&mut sb, &geo, &sizes, &taken);
    let time = identity.time;
    let files = Builder::new(&geo, options, &sizes, time, &mut taken).make(&mut sb)?;
    let mut groups = Groups::new(&geo, &tables, &taken, &files);
    let mut out = Output::new(device, geo.block_size, options.zeroing);
    if options.discard {
        match device.discard(0, geo.blocks_count.saturating_mul(geo.block_size.into())) {
            // The discard is optional, and not all devices support it.
            Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {}
            done => done?,
        }
    }
    groups.note_zero_tables(options, &mut out)?;
    wipe(device, options, &geo, &mut out)?;
    groups.zero_tables(options, &mut out)?;
    write_files(&files, &mut out)?;
    groups.write_inode_tables(&files, &mut out)?;
    groups.write_bitmaps(&mut out)?;
    groups.write_descriptors(options.write_backups, &mut out)?;
    finish(&mut sb, &geo, &groups, options, &mut out)?;
    Ok(report(&sb, &geo, &sizes, out.written()))
}

/// Sets the overhead: the clusters of metadata, which no file can use.
fn set_overhead(sb: &mut Superblock, geo: &Geometry, sizes: &Sizes, taken: &Taken) {
    let metadata = taken.clusters(geo.first_data_block.into()..geo.blocks_count, geo.cluster_bits);
    let journal = u64::from(sizes.journal_blocks + sizes.fast_commit_blocks)
        .div_ceil(geo.cluster_ratio().into());
    let overhead = metadata + journal + u64::from(geo.first_data_block);
    sb.set_overhead_clusters(u32::try_from(overhead).unwrap_or(0));
}

/// Removes the signatures of previous formats.
fn wipe(
    device: &dyn BlockDevice,
    options: &Options,
    geo: &Geometry,
    out: &mut Output<'_>,
) -> Result<()> {
    out.zero_bytes(0..u64::from(geo.block_size).max(2 * BOOT_BYTES))?;
    // Only if the file system covers the device: bytes after a smaller one do not belong to it.
    if options.size.is_none() {
        out.zero_bytes(device.len().saturating_sub(END_BYTES)..device.len())?;
    }
    out.flush()
}

fn write_files(files: &Files, out: &mut Output<'_>) -> Result<()> {
    files.zeroes.iter().try_for_each(|range| out.zero(range.clone()))?;
    files.blocks.iter().try_for_each(|(place, block)| out.blocks(*place, block))
}

/// Writes the superblock's copies, and the primary once everything else is durable.
fn finish(
    sb: &mut Superblock,
    geo: &Geometry,
    groups: &Groups<'_>,
    options: &Options,
    out: &mut Output<'_>,
) -> Result<()> {
    let (free_clusters, free_inodes) = groups.totals();
    sb.set_free_blocks_count(free_clusters << geo.cluster_bits);
    sb.set_free_inodes_count(u32::try_from(free_inodes).unwrap_or(u32::MAX));
    sb.set_kbytes_written(out.written() / 1024);
    if options.write_backups {
        // Copies are used after damage only, so they are never marked as clean.
        let mut copy = sb.clone();
        copy.set_state(State::empty());
        for group in geo.super_groups().skip(1) {
            let place = geo.super_block_of(group).map_or(0, |block| block.0);
            out.bytes(place * u64::from(geo.block_size), &copy.encode_backup(group.0))?;
        }
    }
    out.flush()?;
    out.bytes(BOOT_BYTES, &sb.seal())?;
    out.flush()
}

fn report(sb: &Superblock, geo: &Geometry, sizes: &Sizes, written: u64) -> Report {
    Report {
        features: sb.features(),
        block_size: geo.block_size,
        blocks: geo.blocks_count,
        free_blocks: sb.free_blocks_count(),
        inodes: geo.inodes_count,
        free_inodes: sb.free_inodes_count(),
        groups: geo.groups_count,
        journal_blocks: sizes.journal_blocks + sizes.fast_commit_blocks,
        uuid: sb.uuid(),
        written,
    }
}

/// The examples of the README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
