//! The inodes of a new file system: root, `lost+found`, journal, orphan file, the resize inode.

use super::directory;
use super::error::{Error, Result};
use super::map;
use super::options::Options;
use super::sizing::Sizes;
use super::space::{Align, Taken};
use extant_format::indirect::{DIND, pointers_per_block, put_pointer};
use extant_format::jbd2::JournalSuperblock;
use extant_format::mmp::{MMP_SEQ_CLEAN, Mmp};
use extant_format::quota::{self, QuotaKind, QuotaRecord};
use extant_format::superblock::JournalBackup;
use extant_format::{
    BlockNr, Compat, FileType, Geometry, GroupNr, Incompat, Inode, InodeFlags, InodeNr, RoCompat,
    Superblock, Timestamp, orphan,
};
use std::ops::Range;

/// Unit of the block count of inodes, in bytes.
const SECTOR: u64 = 512;

/// Minimum size of `lost+found` in bytes, so that e2fsck can add names without allocating blocks.
const LOST_FOUND_SIZE: u64 = 16 << 10;

/// Maximum number of blocks of `lost+found`: those that the inode maps directly.
const LOST_FOUND_BLOCKS: u64 = 12;

/// The files of a new file system.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Inodes in ascending order.
    pub inodes: Vec<(InodeNr, Inode)>,
    /// Blocks to write.
    pub blocks: Vec<(u64, Vec<u8>)>,
    /// Blocks that must be zero before the others are written.
    pub zeroes: Vec<Range<u64>>,
}

impl Files {
    /// Returns the last inode in use.
    pub(super) fn last_inode(&self) -> InodeNr {
        self.inodes.last().map_or(InodeNr::NONE, |(ino, _)| *ino)
    }

    /// Returns the directories.
    pub(super) fn directories(&self) -> impl Iterator<Item = InodeNr> + '_ {
        self.inodes.iter().filter(|(_, inode)| inode.is_dir()).map(|(ino, _)| *ino)
    }
}

/// Builder of the files.
pub(super) struct Builder<'a> {
    geo: &'a Geometry,
    options: &'a Options,
    sizes: &'a Sizes,
    time: Timestamp,
    taken: &'a mut Taken,
    files: Files,
}

impl<'a> Builder<'a> {
    /// Returns a builder without inodes, which allocates blocks in `taken`.
    pub(super) fn new(
        geo: &'a Geometry,
        options: &'a Options,
        sizes: &'a Sizes,
        time: Timestamp,
        taken: &'a mut Taken,
    ) -> Builder<'a> {
        Builder { geo, options, sizes, time, taken, files: Files::default() }
    }

    /// Makes all inodes, allocates their blocks, and sets their fields in the superblock.
    pub(super) fn make(mut self, sb: &mut Superblock) -> Result<Files> {
        self.reserved();
        let lost_found = InodeNr(self.geo.first_ino);
        self.root(lost_found)?;
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

    fn root(&mut self, lost_found: InodeNr) -> Result<()> {
        let ino = InodeNr::ROOT;
        let mut inode = self.inode(FileType::Directory, self.options.root_mode);
        (inode.uid, inode.gid) = self.options.root_owner;
        inode.links = 3;
        let entries = [(ino, &b"."[..]), (ino, b".."), (lost_found, b"lost+found")];
        let content = directory::block(self.geo, inode.seed(self.geo, ino), &entries);
        self.directory(ino, inode, vec![content])
    }

    fn lost_found(&mut self, ino: InodeNr) -> Result<()> {
        let mut inode = self.inode(FileType::Directory, 0o700);
        inode.links = 2;
        let seed = inode.seed(self.geo, ino);
        // At least two blocks: the purpose of the directory is empty blocks.
        let count = (LOST_FOUND_SIZE / u64::from(self.geo.block_size)).clamp(2, LOST_FOUND_BLOCKS);
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

    /// Makes the orphan file: its blocks hold no orphans, but a magic number and a checksum each.
    fn orphan_file(&mut self, ino: InodeNr, sb: &mut Superblock) -> Result<()> {
        let inode = self.inode(FileType::Regular, 0o600);
        let seed = inode.seed(self.geo, ino);
        let pieces = self.allocate(self.sizes.orphan_blocks.into(), self.start())?;
        for place in pieces.iter().cloned().flatten() {
            let mut block = vec![0; self.geo.block_size as usize];
            orphan::init(&mut block);
            if self.geo.metadata_csum {
                orphan::seal_orphan_block(&mut block, place, seed);
            }
            self.files.blocks.push((place, block));
        }
        sb.set_orphan_file_inum(ino);
        self.mapped(ino, inode, &pieces)
    }

    fn journal(&mut self, sb: &mut Superblock) -> Result<()> {
        let (ino, inode) = (InodeNr::JOURNAL, self.inode(FileType::Regular, 0o600));
        let total = self.sizes.journal_blocks + self.sizes.fast_commit_blocks;
        let pieces = self.allocate(total.into(), self.middle())?;
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

    /// Makes the quota files, with the usage of the directories made so far.
    fn quotas(&mut self, sb: &mut Superblock) -> Result<()> {
        let charged = |ino: InodeNr| ino == InodeNr::ROOT || ino.0 == self.geo.first_ino;
        let files: Vec<(InodeNr, Inode)> =
            self.files.inodes.iter().filter(|(ino, _)| charged(*ino)).cloned().collect();
        // The first free number: root, `lost+found` and the orphan file exist already.
        let next =
            InodeNr(self.geo.first_ino + 1 + u32::from(self.geo.compat(Compat::ORPHAN_FILE)));
        let places = [InodeNr::USER_QUOTA, InodeNr::GROUP_QUOTA, next];
        for (kind, ino) in QuotaKind::ALL.into_iter().zip(places) {
            if !self.counts(kind) {
                continue;
            }
            let mut records: Vec<QuotaRecord> = Vec::new();
            for (_, file) in &files {
                let id = [file.uid, file.gid, file.projid][kind.index()];
                let at = records.iter().position(|record| record.id == id).unwrap_or(records.len());
                if at == records.len() {
                    records.push(QuotaRecord { id, ..QuotaRecord::default() });
                }
                records[at].inodes += 1;
                records[at].space += file.blocks * SECTOR;
            }
            self.quota_file(kind, ino, &records)?;
            match kind {
                QuotaKind::User => sb.set_usr_quota_inum(ino),
                QuotaKind::Group => sb.set_grp_quota_inum(ino),
                QuotaKind::Project => sb.set_prj_quota_inum(ino),
            }
        }
        Ok(())
    }

    fn quota_file(&mut self, kind: QuotaKind, ino: InodeNr, records: &[QuotaRecord]) -> Result<()> {
        let size = self.geo.block_size as usize;
        let content = quota::new_file(kind, records);
        let pieces = self.allocate(content.len().div_ceil(size) as u64, self.start())?;
        let padded =
            |part: &[u8]| part.iter().copied().chain(std::iter::repeat(0)).take(size).collect();
        let places = pieces.iter().cloned().flatten();
        self.files.blocks.extend(places.zip(content.chunks(size).map(padded)));
        let mut inode = self.inode(FileType::Regular, 0o600);
        inode.flags |= InodeFlags::IMMUTABLE;
        self.mapped(ino, inode, &pieces)
    }

    /// Makes the resize inode, which owns the reserved descriptor blocks. Each block lists its
    /// counterparts in the groups with copies.
    fn resize(&mut self) -> Result<()> {
        let geo = self.geo;
        let per_block = pointers_per_block(geo.block_size);
        let place = self.allocate(1, self.start())?.first().map_or(0, |piece| piece.start);
        let mut table = vec![0; geo.block_size as usize];
        let first = geo.base_meta(GroupNr(0)).reserved;
        let backups: Vec<u64> =
            geo.super_groups().skip(1).map(|group| geo.first_block_of_group(group).0).collect();
        for (n, reserved) in (geo.desc_blocks..).zip(first) {
            let mut block = vec![0; geo.block_size as usize];
            for (slot, backup) in backups.iter().enumerate() {
                put_pointer(&mut block, slot, (backup + (reserved - self.start())) as u32);
            }
            put_pointer(&mut table, (n % per_block) as usize, reserved as u32);
            self.files.blocks.push((reserved, block));
        }
        self.files.blocks.push((place, table));
        let mut inode = self.inode(FileType::Regular, 0o600);
        put_pointer(&mut inode.i_block, DIND, place as u32);
        let pointers = u64::from(per_block);
        inode.size = (12 + pointers + pointers * pointers) * u64::from(geo.block_size);
        let blocks = 1 + u64::from(geo.reserved_gdt_blocks) * (1 + backups.len() as u64);
        inode.blocks = blocks * self.sectors_per_cluster();
        self.files.inodes.push((InodeNr::RESIZE, inode));
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
        let map = map::build(geo, inode.seed(geo, ino), pieces, &mut || {
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
