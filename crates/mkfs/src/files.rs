//! The inodes that every new file system has beside its root: `lost+found`, journal, orphan file,
//! quota files, the resize inode.

use super::directory;
use super::error::{Error, Result};
use super::map;
use super::options::Options;
use super::output::Output;
use super::population::{Demand, Population};
use super::sizing::Sizes;
use super::space::{Align, Taken};
use extant_format::indirect::{DIND, pointers_per_block, put_pointer};
use extant_format::jbd2::JournalSuperblock;
use extant_format::mmp::{MMP_SEQ_CLEAN, Mmp};
use extant_format::quota::{self, QuotaKind};
use extant_format::superblock::JournalBackup;
use extant_format::{
    BlockNr, Compat, FileType, Geometry, GroupNr, Incompat, Inode, InodeFlags, InodeNr, RoCompat,
    Superblock, Timestamp, orphan,
};
use std::ops::Range;

/// Unit of the block count of inodes, in bytes.
pub(super) const SECTOR: u64 = 512;

/// Minimum size of `lost+found` in bytes, so that e2fsck can add names without allocating blocks.
const LOST_FOUND_SIZE: u64 = 16 << 10;

/// Maximum number of blocks of `lost+found`: those that the inode maps directly.
const LOST_FOUND_BLOCKS: u64 = 12;

/// Returns the blocks of `lost+found` in a new file system: at least two, since all but the
/// first are empty, which is the purpose of the directory.
pub fn lost_found_blocks(block_size: u32) -> u64 {
    (LOST_FOUND_SIZE / u64::from(block_size)).clamp(2, LOST_FOUND_BLOCKS)
}

/// The files of a new file system.
#[derive(Debug, Default, Clone)]
pub(super) struct Files {
    /// Inodes in ascending order.
    pub inodes: Vec<(InodeNr, Inode)>,
    /// Blocks to write.
    pub blocks: Vec<(u64, Vec<u8>)>,
    /// Blocks that must be zero before the others are written.
    pub zeroes: Vec<Range<u64>>,
    /// Blocks of the root directory, in order.
    pub root: Vec<Range<u64>>,
    /// Blocks of `lost+found`, in order, if the population has it.
    pub lost_found: Vec<Range<u64>>,
    /// Reserved descriptor blocks of the first group, and the places of the first one's copies.
    reserved: (Range<u64>, Vec<u64>),
    /// Pieces of the orphan file, and the seed of the checksums of its blocks, if they have some.
    orphans: (Vec<Range<u64>>, Option<u32>),
    /// Quota files, whose content follows from the usage of all files.
    quotas: Vec<(QuotaKind, Vec<Range<u64>>)>,
}

impl Files {
    /// Returns the last inode in use.
    pub(super) fn last_inode(&self) -> InodeNr {
        self.inodes.last().map_or(InodeNr::NONE, |(ino, _)| *ino)
    }

    /// Returns an inode of the file system's own, which the population does not have.
    pub(super) fn inode(&self, ino: InodeNr) -> Option<&Inode> {
        if ino == InodeNr::FIRST_ORDINARY && !self.lost_found.is_empty() {
            return None;
        }
        let at = self.inodes.binary_search_by_key(&ino, |(ino, _)| *ino).ok()?;
        self.inodes.get(at).map(|(_, inode)| inode)
    }

    /// Writes the reserved descriptor blocks, each of which lists its copies: up to a thousand
    /// blocks, so they are made one after the other.
    pub(super) fn write_reserved(&self, block_size: u32, out: &mut Output<'_>) -> Result<()> {
        let (reserved, copies) = &self.reserved;
        let mut block = vec![0; block_size as usize];
        for place in reserved.clone() {
            for (slot, copy) in copies.iter().enumerate() {
                put_pointer(&mut block, slot, (copy + (place - reserved.start)) as u32);
            }
            out.blocks(place, &block)?;
        }
        Ok(())
    }

    /// Writes the blocks of the orphan file, which hold no orphans, but a magic number and a
    /// checksum each: up to a thousand blocks, so they are made one after the other.
    pub(super) fn write_orphans(&self, block_size: u32, out: &mut Output<'_>) -> Result<()> {
        let (pieces, seed) = &self.orphans;
        let mut block = vec![0; block_size as usize];
        orphan::init(&mut block);
        for place in pieces.iter().cloned().flatten() {
            if let Some(seed) = seed {
                orphan::seal_orphan_block(&mut block, place, *seed);
            }
            out.blocks(place, &block)?;
        }
        Ok(())
    }

    /// Returns the blocks of the quota files with the usage of all files: that of the population,
    /// and of `lost+found`, unless it is a part of that.
    pub(super) fn quota_blocks(
        &self,
        geo: &Geometry,
        demand: &Demand,
        population: &dyn Population,
    ) -> Vec<(u64, Vec<u8>)> {
        let size = geo.block_size as usize;
        let lost_found = self.inode(InodeNr(geo.first_ino));
        let mut blocks = Vec::new();
        for (kind, pieces) in &self.quotas {
            let mut records = demand.unused_records(*kind);
            for record in &mut records {
                (record.inodes, record.space) = population.usage(*kind, record.id);
                if let Some(inode) = lost_found.filter(|_| record.id == 0) {
                    record.inodes += 1;
                    record.space += inode.blocks * SECTOR;
                }
            }
            let content = quota::new_file(*kind, &records);
            let padded =
                |part: &[u8]| part.iter().copied().chain(std::iter::repeat(0)).take(size).collect();
            let places = pieces.iter().cloned().flatten();
            blocks.extend(places.zip(content.chunks(size).map(padded)));
        }
        blocks
    }

    /// Returns the number of directories among these inodes.
    pub(super) fn directories(&self, inodes: Range<u32>) -> u32 {
        let within = |(ino, inode): &&(InodeNr, Inode)| inodes.contains(&ino.0) && inode.is_dir();
        self.inodes.iter().filter(within).count() as u32
    }
}

/// Returns the inode of the project quota file: the first free one after `lost+found` and the
/// orphan file.
fn project_quota(geo: &Geometry) -> InodeNr {
    InodeNr(geo.first_ino + 1 + u32::from(geo.compat(Compat::ORPHAN_FILE)))
}

/// Builder of the files.
pub(super) struct Builder<'a> {
    geo: &'a Geometry,
    options: &'a Options,
    demand: &'a Demand,
    sizes: &'a Sizes,
    time: Timestamp,
    taken: &'a mut Taken,
    files: Files,
}

impl<'a> Builder<'a> {
    /// Returns a builder without inodes, which allocates blocks in `taken`.
    pub(super) fn new(
        geo: &'a Geometry,
        (options, demand): (&'a Options, &'a Demand),
        sizes: &'a Sizes,
        time: Timestamp,
        taken: &'a mut Taken,
    ) -> Builder<'a> {
        Builder { geo, options, demand, sizes, time, taken, files: Files::default() }
    }

    /// Makes all inodes, allocates their blocks, and sets their fields in the superblock.
    pub(super) fn make(mut self, sb: &mut Superblock) -> Result<Files> {
        self.reserved();
        self.files.root = self.allocate(self.demand.root_blocks, self.start())?;
        let lost_found = InodeNr(self.geo.first_ino);
        self.lost_found(lost_found)?;
        if self.geo.compat(Compat::RESIZE_INODE) {
            self.resize()?;
        }
        if self.geo.incompat(Incompat::MMP) {
            self.mmp(sb)?;
        }
        if self.geo.compat(Compat::ORPHAN_FILE) {
            self.orphan_file(InodeNr(lost_found.0 + 1), sb)?;
        }
        if self.geo.compat(Compat::HAS_JOURNAL) {
            self.journal(sb)?;
        }
        if self.geo.ro_compat(RoCompat::QUOTA) {
            self.quotas(sb)?;
        }
        let mut files = self.files;
        files.inodes.sort_by_key(|(ino, _)| *ino);
        if files.inodes.iter().any(|(_, inode)| inode.size > i32::MAX as u64) {
            let mut features = sb.features();
            features.ro_compat |= RoCompat::LARGE_FILE;
            sb.set_features(features);
        }
        Ok(files)
    }

    /// Reserved inodes without content. That of bad blocks has times, the others are empty but for
    /// their checksums.
    fn reserved(&mut self) {
        let special = |ino: InodeNr| match ino {
            InodeNr::ROOT => true,
            InodeNr::RESIZE => self.geo.compat(Compat::RESIZE_INODE),
            InodeNr::JOURNAL => self.geo.compat(Compat::HAS_JOURNAL),
            InodeNr::USER_QUOTA => self.counts(QuotaKind::User),
            InodeNr::GROUP_QUOTA => self.counts(QuotaKind::Group),
            _ => false,
        };
        let plain: Vec<InodeNr> =
            (1..self.geo.first_ino).map(InodeNr).filter(|ino| !special(*ino)).collect();
        for ino in plain {
            let mut inode = Inode::default();
            if ino == InodeNr::BAD_BLOCKS {
                (inode.atime, inode.ctime, inode.mtime) = (self.time, self.time, self.time);
            }
            self.files.inodes.push((ino, inode));
        }
    }

    fn inode(&self, kind: FileType, permissions: u16) -> Inode {
        let mut inode = Inode::new(self.geo, kind.to_mode() | permissions, self.time);
        inode.links = 1;
        inode
    }

    fn lost_found(&mut self, ino: InodeNr) -> Result<()> {
        let mut inode = self.inode(FileType::Directory, 0o700);
        inode.links = 2;
        if let Some(blocks) = self.demand.lost_found {
            self.files.lost_found = self.allocate(blocks, self.start())?;
            // Counted here, and written by the population.
            self.files.inodes.push((ino, inode));
            return Ok(());
        }
        let seed = inode.seed(self.geo, ino);
        let count = lost_found_blocks(self.geo.block_size);
        let mut blocks =
            vec![directory::block(self.geo, seed, &[(ino, b"."), (InodeNr::ROOT, b"..")])];
        blocks.resize_with(count as usize, || directory::block(self.geo, seed, &[]));
        self.directory(ino, inode, blocks)
    }

    fn directory(&mut self, ino: InodeNr, inode: Inode, content: Vec<Vec<u8>>) -> Result<()> {
        let pieces = self.allocate(content.len() as u64, self.start())?;
        let places = pieces.iter().cloned().flatten();
        self.files.blocks.extend(places.zip(content));
        self.mapped(ino, inode, &pieces)
    }

    /// Makes the orphan file.
    fn orphan_file(&mut self, ino: InodeNr, sb: &mut Superblock) -> Result<()> {
        let inode = self.inode(FileType::Regular, 0o600);
        let seed = inode.seed(self.geo, ino);
        let pieces = self.allocate(self.sizes.orphan_blocks.into(), self.start())?;
        self.files.orphans = (pieces.clone(), self.geo.metadata_csum.then_some(seed));
        sb.set_orphan_file_inum(ino);
        self.mapped(ino, inode, &pieces)
    }

    fn journal(&mut self, sb: &mut Superblock) -> Result<()> {
        let (ino, inode) = (InodeNr::JOURNAL, self.inode(FileType::Regular, 0o600));
        let total = self.sizes.journal_blocks + self.sizes.fast_commit_blocks;
        let near = if self.demand.packed { self.start() } else { self.middle() };
        let pieces = self.allocate(total.into(), near)?;
        let mut content = vec![0; self.geo.block_size as usize];
        let mut journal = JournalSuperblock::new(self.geo.block_size, total, sb.uuid());
        journal.raw_mut().num_fc_blks.set(self.sizes.fast_commit_blocks);
        content
            .get_mut(..1024)
            .into_iter()
            .for_each(|start| start.copy_from_slice(&journal.seal()));
        if let Some(first) = pieces.first() {
            self.files.blocks.push((first.start, content));
        }
        self.files.zeroes.extend(pieces.iter().cloned());
        self.mapped(ino, inode, &pieces)?;
        sb.set_journal_inum(ino);
        if let Some((_, inode)) = self.files.inodes.last() {
            sb.set_journal_backup(Some(&JournalBackup {
                i_block: inode.i_block,
                size: inode.size,
            }));
        }
        Ok(())
    }

    /// Returns whether the file system has a quota file of this kind.
    fn counts(&self, kind: QuotaKind) -> bool {
        let wanted = match &self.options.quota_kinds {
            Some(kinds) => kinds.contains(&kind),
            None => kind != QuotaKind::Project || self.geo.ro_compat(RoCompat::PROJECT),
        };
        self.geo.ro_compat(RoCompat::QUOTA) && wanted
    }

    /// Makes the quota files. Their sizes follow from the numbers that own files.
    fn quotas(&mut self, sb: &mut Superblock) -> Result<()> {
        let places = [InodeNr::USER_QUOTA, InodeNr::GROUP_QUOTA, project_quota(self.geo)];
        for (kind, ino) in QuotaKind::ALL.into_iter().zip(places) {
            if !self.counts(kind) {
                continue;
            }
            let len = quota::new_file(kind, &self.demand.unused_records(kind)).len();
            let blocks = len.div_ceil(self.geo.block_size as usize) as u64;
            let pieces = self.allocate(blocks, self.start())?;
            self.files.quotas.push((kind, pieces.clone()));
            let mut inode = self.inode(FileType::Regular, 0o600);
            inode.flags |= InodeFlags::IMMUTABLE;
            self.mapped(ino, inode, &pieces)?;
            match kind {
                QuotaKind::User => sb.set_usr_quota_inum(ino),
                QuotaKind::Group => sb.set_grp_quota_inum(ino),
                QuotaKind::Project => sb.set_prj_quota_inum(ino),
            }
        }
        Ok(())
    }

    /// Makes the resize inode, which owns the reserved descriptor blocks.
    fn resize(&mut self) -> Result<()> {
        let geo = self.geo;
        let per_block = pointers_per_block(geo.block_size);
        let place = self.allocate(1, self.start())?.first().map_or(0, |piece| piece.start);
        let mut table = vec![0; geo.block_size as usize];
        let reserved = geo.base_meta(GroupNr(0)).reserved;
        for (n, reserved) in (geo.desc_blocks..).zip(reserved.clone()) {
            put_pointer(&mut table, (n % per_block) as usize, reserved as u32);
        }
        let within = reserved.start.saturating_sub(self.start());
        let copy = |group| geo.first_block_of_group(group).0 + within;
        let copies: Vec<u64> = geo.super_groups().skip(1).map(copy).collect();
        self.files.blocks.push((place, table));
        let mut inode = self.inode(FileType::Regular, 0o600);
        put_pointer(&mut inode.i_block, DIND, place as u32);
        let pointers = u64::from(per_block);
        inode.size = (12 + pointers + pointers * pointers) * u64::from(geo.block_size);
        let blocks = 1 + u64::from(geo.reserved_gdt_blocks) * (1 + copies.len() as u64);
        inode.blocks = blocks * self.sectors_per_cluster();
        self.files.inodes.push((InodeNr::RESIZE, inode));
        self.files.reserved = (reserved, copies);
        Ok(())
    }

    fn mmp(&mut self, sb: &mut Superblock) -> Result<()> {
        let place = self.allocate(1, self.start())?.first().map_or(0, |piece| piece.start);
        let interval = self.options.mmp_interval.max(extant_format::mmp::MMP_UPDATE_INTERVAL);
        let mmp = Mmp {
            seq: MMP_SEQ_CLEAN,
            time: u64::try_from(self.time.sec).unwrap_or(0),
            check_interval: interval,
            ..Mmp::default()
        };
        let mut block = vec![0; self.geo.block_size as usize];
        mmp.encode(&mut block, self.geo.metadata_csum.then_some(self.geo.csum_seed));
        self.files.blocks.push((place, block));
        sb.set_mmp_block(BlockNr(place));
        sb.set_mmp_update_interval(interval);
        Ok(())
    }

    /// Adds a file whose blocks, from the first on, are `pieces`.
    fn mapped(&mut self, ino: InodeNr, mut inode: Inode, pieces: &[Range<u64>]) -> Result<()> {
        let geo = self.geo;
        if geo.incompat(Incompat::EXTENTS) {
            inode.flags |= InodeFlags::EXTENTS;
        }
        let near = pieces.first().map_or(0, |piece| piece.start);
        let map = map::build_map(geo, inode.seed(geo, ino), &map::dense(pieces), &mut || {
            self.allocate(1, near).map(|pieces| pieces.first().map_or(0, |piece| piece.start))
        })?;
        let blocks: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
        let clusters: u64 =
            pieces.iter().map(|piece| (piece.end - piece.start).div_ceil(self.align().step)).sum();
        inode.size = blocks * u64::from(geo.block_size);
        inode.blocks = (clusters + map.nodes.len() as u64) * self.sectors_per_cluster();
        inode.i_block = map.i_block;
        self.files.blocks.extend(map.nodes);
        self.files.inodes.push((ino, inode));
        Ok(())
    }

    fn sectors_per_cluster(&self) -> u64 {
        u64::from(self.geo.cluster_ratio()) * u64::from(self.geo.sectors_per_block())
    }

    fn align(&self) -> Align {
        Align { base: self.geo.first_data_block.into(), step: self.geo.cluster_ratio().into() }
    }

    fn start(&self) -> u64 {
        self.geo.first_data_block.into()
    }

    /// Returns the end of the blocks that a file can map.
    fn end(&self) -> u64 {
        if self.geo.incompat(Incompat::EXTENTS) {
            self.geo.blocks_count
        } else {
            self.geo.blocks_count.min(1 << 32)
        }
    }

    /// Allocates `len` blocks: in one run after `near`, in one run anywhere, or in pieces. Clusters
    /// are allocated whole.
    fn allocate(&mut self, len: u64, near: u64) -> Result<Vec<Range<u64>>> {
        let (align, start, end) = (self.align(), self.start(), self.end());
        let run = self
            .taken
            .find(near..end, len, align)
            .or_else(|| self.taken.find(start..end, len, align));
        let pieces = run
            .map(|at| std::iter::once(at..at + len).collect())
            .or_else(|| self.taken.gather(near..end, len, align))
            .or_else(|| self.taken.gather(start..end, len, align));
        let Some(pieces) = pieces else {
            return Error::too_small(format_args!("no room for {len} more blocks of metadata"));
        };
        for piece in &pieces {
            let whole = align.base + (piece.end - align.base).next_multiple_of(align.step);
            self.taken.take(piece.start..whole.min(self.geo.blocks_count));
        }
        Ok(pieces)
    }

    /// Returns the first block of the emptiest group near the middle.
    fn middle(&self) -> u64 {
        let geo = self.geo;
        let half = (geo.blocks_count - self.start()) / 2;
        let middle = geo.group_of_block(BlockNr(half)).map_or(0, |group| group.0);
        let window = if geo.flex_bits > 0 && middle > geo.flex_size() {
            let first = middle / geo.flex_size() * geo.flex_size();
            first..(first + 2).min(geo.groups_count)
        } else {
            middle.saturating_sub(1)..(middle + 2).min(geo.groups_count)
        };
        let used = |group: u32| {
            let first = geo.first_block_of_group(GroupNr(group)).0;
            let blocks = u64::from(geo.blocks_in_group(GroupNr(group)));
            std::cmp::Reverse(blocks - self.taken.count(first..first + blocks))
        };
        let group = window.min_by_key(|group| used(*group)).unwrap_or(0);
        geo.first_block_of_group(GroupNr(group)).0
    }
}
