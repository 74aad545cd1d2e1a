//! A file system that is laid out in memory, and its writing.

use super::error::{Error, Result};
use super::features;
use super::files::{Builder, Files};
use super::groups::Groups;
use super::options::Options;
use super::output::Output;
use super::population::{Demand, Population};
use super::report::Report;
use super::root::EmptyRoot;
use super::sizing::Sizes;
use super::space::Taken;
use super::superblock::{self, Identity};
use super::tables::Tables;
use extant_blocks::{AlignedDevice, BlockDevice};
use extant_format::superblock::State;
use extant_format::{Features, Geometry, GroupNr, InodeNr, Superblock, Timestamp};
use std::ops::Range;

/// Bytes before the primary superblock.
const BOOT_BYTES: u64 = 1024;

/// Bytes at the device's end where signatures of other formats may be.
const END_BYTES: u64 = 64 << 10;

/// A file system that is laid out: everything but the content of its root has a place.
#[derive(Debug, Clone)]
pub struct FsLayout {
    options: Options,
    demand: Demand,
    sizes: Sizes,
    time: Timestamp,
    sb: Superblock,
    geo: Geometry,
    tables: Tables,
    taken: Taken,
    files: Files,
}

impl FsLayout {
    /// Lays out a file system for a device of `device_len` bytes.
    ///
    /// # Errors
    /// [`Error`](crate::Error) for invalid options, or a device that is too small.
    pub fn new(options: &Options, device_len: u64, demand: Demand) -> Result<FsLayout> {
        let sizes = Sizes::new(options, features::choose(options)?, device_len, demand.packed)?;
        let identity = Identity::new(options);
        let mut sb = superblock::build(options, &sizes, &identity)?;
        let geo = Geometry::new(&sb)?;
        let mut taken = Taken::default();
        let tables = Tables::place(&geo, &mut taken)?;
        set_overhead(&mut sb, &geo, &sizes, &taken);
        keep(&demand.kept, &geo, &mut taken)?;
        let time = identity.time;
        let files =
            Builder::new(&geo, (options, &demand), &sizes, time, &mut taken).make(&mut sb)?;
        let mut options = options.clone();
        identity.fix(&mut options);
        Ok(FsLayout { options, demand, sizes, time, sb, geo, tables, taken, files })
    }

    /// Returns the options, with the identity and the time that were chosen if they were unset:
    /// equal options make equal file systems.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the facts of the file system.
    pub fn geometry(&self) -> &Geometry {
        &self.geo
    }

    /// Sets features that content needs: `large_file` for files of 2 GiB and more, `ext_attr` for
    /// attributes. The layout is the same with any other.
    pub fn require(&mut self, added: Features) {
        self.sb.add_features(added);
        self.geo.features = self.sb.features();
    }

    /// Returns the time of creation.
    pub fn time(&self) -> Timestamp {
        self.time
    }

    /// Returns the blocks of the root directory, in order.
    pub fn root(&self) -> &[Range<u64>] {
        &self.files.root
    }

    /// Returns the blocks of `lost+found`, in order, if it belongs to the content.
    pub fn lost_found(&self) -> &[Range<u64>] {
        &self.files.lost_found
    }

    /// Returns the first inode of the content.
    pub fn first_inode(&self) -> InodeNr {
        InodeNr(self.files.last_inode().0 + 1)
    }

    /// Returns the runs of blocks in use in `range`, ascending.
    pub fn used(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        self.taken.within(range)
    }

    /// Returns the number of free blocks.
    pub fn free_blocks(&self) -> u64 {
        let first = u64::from(self.geo.first_data_block);
        let all = (self.geo.blocks_count - first).div_ceil(self.geo.cluster_ratio().into());
        let used = self.taken.clusters(first..self.geo.blocks_count, self.geo.cluster_bits);
        (all - used) << self.geo.cluster_bits
    }

    /// Returns the description of the file system without content.
    pub(super) fn report(&self) -> Report {
        let mut sb = self.sb.clone();
        sb.set_free_blocks_count(self.free_blocks());
        sb.set_free_inodes_count(self.geo.inodes_count - self.files.last_inode().0);
        report(&sb, &self.geo, &self.sizes, 0)
    }

    /// Takes the free blocks in `range` for content, which must lie in the file system.
    pub fn take(&mut self, range: Range<u64>) {
        let mut at = range.start;
        for used in self.taken.within(range.clone()).collect::<Vec<_>>() {
            self.taken.take(at..used.start);
            at = used.end;
        }
        self.taken.take(at..range.end.max(at));
    }

    pub(super) fn empty_root(&self) -> Result<EmptyRoot> {
        let block = self.files.root.first().map_or(0, |piece| piece.start);
        EmptyRoot::new(&self.geo, &self.options, self.time, block)
    }

    /// Writes the file system with its content; the previous content of the device is lost.
    ///
    /// # Errors
    /// An error of the device or of the content; `EBUSY` if this process has a file system open on
    /// the device. The device has no file system then.
    pub fn write(
        mut self,
        device: &dyn BlockDevice,
        population: &dyn Population,
    ) -> Result<Report> {
        let _claim = device.claim(true)?;
        let device = &AlignedDevice::new(device);
        let (geo, options) = (&self.geo, &self.options);
        let quotas = self.files.quota_blocks(geo, &self.demand, population);
        let mut groups = Groups::new(geo, &self.tables, &self.taken, &self.files, population);
        let mut out = Output::new(device, geo.block_size, options.zeroing);
        if options.discard {
            match device.discard(0, geo.blocks_count.saturating_mul(geo.block_size.into())) {
                // The discard is optional, and not all devices support it.
                Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {}
                done => done?,
            }
        }
        groups.note_zero_tables(options, &mut out)?;
        wipe(device, options, geo, &mut out)?;
        groups.zero_tables(options, &mut out)?;
        self.files.zeroes.iter().try_for_each(|range| out.zero(range.clone()))?;
        self.files.write_reserved(geo.block_size, &mut out)?;
        self.files.write_orphans(geo.block_size, &mut out)?;
        let blocks = self.files.blocks.iter().chain(&quotas);
        blocks.into_iter().try_for_each(|(place, block)| out.blocks(*place, block))?;
        out.elsewhere(population.write(device)?);
        groups.write_inode_tables(&mut out)?;
        groups.write_bitmaps(&mut out)?;
        groups.write_descriptors(options.write_backups, &mut out)?;
        finish(&mut self.sb, geo, &groups, options, &mut out)?;
        Ok(report(&self.sb, geo, &self.sizes, out.written()))
    }
}

/// Takes the blocks of content that is there already.
fn keep(kept: &[Range<u64>], geo: &Geometry, taken: &mut Taken) -> Result<()> {
    for range in kept {
        if range.end > geo.blocks_count || taken.within(range.clone()).next().is_some() {
            let why = format!("blocks {} to {} cannot be kept", range.start, range.end);
            return Error::invalid(why);
        }
        taken.take(range.clone());
    }
    Ok(())
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
        for (group, place) in copies(geo) {
            out.bytes(place * u64::from(geo.block_size), &copy.encode_backup(group.0))?;
        }
    }
    out.flush()?;
    out.bytes(BOOT_BYTES, &sb.seal())?;
    out.flush()
}

/// Returns the groups with copies of the superblock, and the blocks of these.
fn copies(geo: &Geometry) -> impl Iterator<Item = (GroupNr, u64)> + '_ {
    let place = |group| (group, geo.super_block_of(group).map_or(0, |block| block.0));
    geo.super_groups().skip(1).map(place)
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
        copies: copies(geo).map(|(_, block)| block).collect(),
        journal_blocks: sizes.journal_blocks + sizes.fast_commit_blocks,
        uuid: sb.uuid(),
        written,
    }
}
