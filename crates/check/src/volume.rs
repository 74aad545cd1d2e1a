//! The file system as all passes see it: superblock, groups, and the places of their metadata.

use crate::claims::ClaimMap;
use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::reader::Reader;
use extant_format::{BlockNr, GroupDesc, GroupFlags, GroupNr, Incompat, InodeNr, Superblock};
use std::ops::Range;

/// Blocks of an inode table that are read at once.
const TABLE_BLOCKS: usize = 32;

/// The name of the field with the place of an inode table.
const TABLE: &str = "inode table";

/// A group whose descriptor was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Group {
    pub desc: GroupDesc,
    /// Whether the descriptor's flags and its number of unused inodes are to be believed.
    pub trusted: bool,
    /// Whether the table lies in the file system, in blocks of its own.
    pub usable: bool,
}

impl Group {
    /// Returns whether the flag is set and is to be believed.
    pub fn has_flag(&self, reader: &Reader<'_>, flag: GroupFlags) -> bool {
        self.trusted && self.desc.has_flag(&reader.geometry, flag)
    }

    /// Returns the number of inodes of the table that may be in use.
    pub fn inodes(&self, reader: &Reader<'_>) -> u32 {
        let all = reader.geometry.inodes_per_group;
        if !self.usable || self.has_flag(reader, GroupFlags::INODE_UNINIT) {
            return 0;
        }
        let lazy = self.trusted && reader.geometry.has_group_checksums();
        let unused = if lazy { self.desc.itable_unused } else { 0 };
        all.saturating_sub(unused)
    }
}

/// The parts of a file system that no pass changes.
pub struct Volume<'a> {
    pub reader: Reader<'a>,
    pub superblock: Superblock,
    pub groups: Vec<Group>,
    /// The blocks of metadata that belongs to no inode.
    pub metadata: ClaimMap,
}

impl<'a> Volume<'a> {
    /// Reads the descriptors and claims the blocks of metadata.
    pub fn load(
        reader: Reader<'a>,
        superblock: Superblock,
        findings: &mut Findings<'_>,
    ) -> Volume<'a> {
        let count = reader.group_count();
        let metadata = ClaimMap::of_blocks(&reader.geometry, count);
        let mut volume = Volume { reader, superblock, groups: Vec::new(), metadata };
        volume.read_descriptors(findings);
        volume.claim_base();
        // A bitmap that lies in a table is wrong, not the table, whose inodes all else depends on.
        for wanted in [Part::TrustedTable, Part::Table, Part::Bitmap] {
            for group in volume.reader.groups() {
                volume.claim_parts(group, wanted, findings);
            }
        }
        volume
    }

    fn read_descriptors(&mut self, findings: &mut Findings<'_>) {
        let geometry = &self.reader.geometry;
        let mut descriptors = self.reader.buffer();
        let mut loaded = None;
        for group in self.reader.groups() {
            let (index, offset) = geometry.desc_location(group);
            if loaded.is_none_or(|(block, _)| block != index) {
                let block = geometry.gdt_block(index).0;
                let ok = self.reader.read(block, &mut descriptors);
                loaded = Some((index, ok));
                if !ok {
                    let place = FindingPlace::group(group).block(block);
                    findings.report(Finding::new(FindingCode::Unreadable, place));
                }
            }
            let end = offset.saturating_add(geometry.desc_size.into());
            let bytes = descriptors.get(offset..end).filter(|_| loaded == Some((index, true)));
            let read = bytes.map(|bytes| read_group(&self.reader, group, bytes, findings));
            self.groups.push(read.unwrap_or_default());
        }
    }

    /// Returns the base metadata of a group: superblock copy, descriptors, reserved descriptors.
    fn base(&self, group: GroupNr) -> Range<u64> {
        let first = self.reader.geometry.first_block_of_group(group).0;
        first..first.saturating_add(self.reader.geometry.base_meta_blocks(group).into())
    }

    /// Returns the block of the multi-mount protection, if there is one.
    fn mmp_block(&self) -> Option<Range<u64>> {
        let block = self.superblock.mmp_block().0;
        let has_mmp = self.superblock.incompat().contains(Incompat::MMP) && self.is_block(block);
        has_mmp.then(|| block..block.saturating_add(1))
    }

    fn claim_base(&self) {
        for blocks in self.reader.groups().map(|group| self.base(group)).chain(self.mmp_block()) {
            self.metadata.claim(blocks);
        }
    }

    /// Returns bitmaps and table of a group, with the names of their fields.
    fn parts(&self, desc: &GroupDesc) -> [(&'static str, Range<u64>); 3] {
        let one = |block: u64| block..block.saturating_add(1);
        let table = u64::from(self.reader.geometry.inode_table_blocks());
        [
            ("block bitmap", one(desc.block_bitmap)),
            ("inode bitmap", one(desc.inode_bitmap)),
            (TABLE, desc.inode_table..desc.inode_table.saturating_add(table)),
        ]
    }

    /// Returns the kind of a part of a group's metadata.
    fn kind(&self, state: &Group, field: &str) -> Part {
        match (field == TABLE, state.trusted) {
            (true, true) => Part::TrustedTable,
            (true, false) => Part::Table,
            // Neighbors may share a cluster, which is no proof.
            (false, trusted) if trusted || self.reader.geometry.has_bigalloc() => Part::Bitmap,
            _ => Part::DoubtfulBitmap,
        }
    }

    /// Claims the parts of a kind.
    fn claim_parts(&mut self, group: GroupNr, wanted: Part, findings: &mut Findings<'_>) {
        let Some(state) = self.groups.get(group.index()).copied().filter(|state| state.usable)
        else {
            return;
        };
        for (field, blocks) in self.parts(&state.desc) {
            if self.kind(&state, field) != wanted || !self.is_block(blocks.start) {
                continue;
            }
            let Some(block) = self.metadata.claim(blocks) else { continue };
            let place = FindingPlace::group(group).block(block).field(field);
            findings.report(Finding::new(FindingCode::MetadataOverlap, place));
            if let Some(state) = self.groups.get_mut(group.index())
                && field == TABLE
            {
                state.usable = false;
            }
        }
    }

    /// Claims the metadata in a map of clusters, where neighbors share a cluster.
    pub fn claim_metadata(&self, claims: &ClaimMap) {
        let each = |blocks: Range<u64>| {
            let mut next = blocks.start;
            while let Some(taken) = claims.claim(next..blocks.end) {
                let ratio = u64::from(self.reader.geometry.cluster_ratio());
                next = taken.saturating_add(ratio).max(next.saturating_add(1));
            }
        };
        for group in self.reader.groups() {
            each(self.base(group));
            let state = self.groups.get(group.index()).filter(|state| state.usable);
            if let Some(state) = state {
                let parts = self.parts(&state.desc).into_iter();
                let parts = parts.filter(|(field, blocks)| {
                    self.kind(state, field) != Part::DoubtfulBitmap && self.is_block(blocks.start)
                });
                parts.for_each(|(_, blocks)| each(blocks));
            }
        }
        self.mmp_block().into_iter().for_each(each);
    }

    /// Claims the bitmaps of descriptors with a wrong checksum, after all files: such a bitmap does
    /// not take the block of a file.
    pub fn claim_doubtful(&self, claims: &ClaimMap, findings: &mut Findings<'_>) {
        for (group, state) in self.reader.groups().zip(&self.groups) {
            let parts = self.parts(&state.desc).into_iter().filter(|_| state.usable);
            for (field, blocks) in parts {
                if self.kind(state, field) != Part::DoubtfulBitmap || !self.is_block(blocks.start) {
                    continue;
                }
                if let Some(block) = claims.claim(blocks) {
                    let place = FindingPlace::group(group).block(block).field(field);
                    findings.report(Finding::new(FindingCode::MetadataOverlap, place));
                }
            }
        }
    }

    /// Reads the slot of an inode; `None` if it cannot be in use.
    pub fn slot(&self, ino: InodeNr) -> Option<Vec<u8>> {
        let (group, index) = self.reader.geometry.inode_location(ino).ok()?;
        let state = self.groups.get(group.index())?;
        if index >= state.inodes(&self.reader) {
            return None;
        }
        let (block, offset) = self.reader.geometry.inode_slot(index);
        let bytes = self.reader.block(state.desc.inode_table.checked_add(block.into())?)?;
        let end = offset.saturating_add(self.reader.geometry.inode_size.into());
        bytes.get(offset..end).map(<[u8]>::to_vec)
    }

    /// Calls `work` for each inode of a group that may be in use, with its slot. Returns the blocks
    /// that cannot be read, whose slots are taken as zeros.
    pub fn each_slot(&self, group: GroupNr, work: &mut dyn FnMut(InodeNr, &[u8])) -> Vec<u64> {
        let geometry = &self.reader.geometry;
        let Some(state) = self.groups.get(group.index()) else { return Vec::new() };
        let count = state.inodes(&self.reader);
        let per_block = geometry.inodes_per_block();
        let mut unreadable = Vec::new();
        let mut buffer = vec![0; (geometry.block_size as usize).saturating_mul(TABLE_BLOCKS)];
        let step = per_block.saturating_mul(TABLE_BLOCKS as u32);
        for (part, start) in (0..).zip((0..count).step_by(step.max(1) as usize)) {
            let read = (TABLE_BLOCKS as u64).saturating_mul(part);
            let block = state.desc.inode_table.saturating_add(read);
            let slots = count.saturating_sub(start).min(step);
            self.read_table(block, slots.div_ceil(per_block), &mut buffer, &mut unreadable);
            let all = buffer.chunks_exact(geometry.inode_size.into());
            for (index, slot) in (start..count).zip(all.take(slots as usize)) {
                work(geometry.inode_at(group, index), slot);
            }
        }
        unreadable
    }

    fn read_table(&self, start: u64, count: u32, buffer: &mut [u8], unreadable: &mut Vec<u64>) {
        let size = self.reader.geometry.block_size as usize;
        let len = (count as usize).saturating_mul(size);
        let Some(buffer) = buffer.get_mut(..len) else { return };
        if self.reader.read(start, buffer) {
            return;
        }
        for (block, buffer) in (start..).zip(buffer.chunks_mut(size)) {
            if !self.reader.read(block, buffer) {
                buffer.fill(0);
                unreadable.push(block);
            }
        }
    }

    /// Returns whether the block is in the file system and above its first data block.
    pub fn is_block(&self, block: u64) -> bool {
        self.reader.geometry.data_range_valid(BlockNr(block), 1)
    }
}

/// Kinds of metadata of a group, in the order of their claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    TrustedTable,
    /// The descriptor has a wrong checksum.
    Table,
    Bitmap,
    /// The descriptor has a wrong checksum.
    DoubtfulBitmap,
}

fn read_group(
    reader: &Reader<'_>,
    group: GroupNr,
    bytes: &[u8],
    findings: &mut Findings<'_>,
) -> Group {
    let place = FindingPlace::group(group);
    let verified = GroupDesc::verify_checksum(bytes, &reader.geometry, group);
    if let Err(error) = &verified {
        findings.report(Finding::corrupt(FindingCode::DescriptorChecksum, place, error));
    }
    let desc = GroupDesc::decode_unverified(bytes, &reader.geometry);
    let checked = desc.check(&reader.geometry);
    if let Err(error) = &checked {
        findings.report(Finding::corrupt(FindingCode::DescriptorField, place, error));
    }
    if !reader.geometry.incompat(Incompat::FLEX_BG) {
        check_home(reader, group, &desc, findings);
    }
    let lazy = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
    let is_lazy = desc.flags.intersects(lazy) || desc.itable_unused != 0;
    if !reader.geometry.has_group_checksums() && is_lazy {
        let flags = Finding::new(FindingCode::DescriptorField, place.field("flags"));
        findings.report(flags.found(desc.flags.bits()));
    }
    let valid = |block, len| reader.geometry.data_range_valid(BlockNr(block), len);
    let table = u64::from(reader.geometry.inode_table_blocks());
    let usable = valid(desc.inode_table, table);
    Group { desc, trusted: verified.is_ok(), usable }
}

/// Reports bitmaps and tables outside of their group, where nothing allows that.
fn check_home(reader: &Reader<'_>, group: GroupNr, desc: &GroupDesc, findings: &mut Findings<'_>) {
    let parts = [
        ("block bitmap", desc.block_bitmap),
        ("inode bitmap", desc.inode_bitmap),
        ("inode table", desc.inode_table),
    ];
    for (field, block) in parts {
        let home = reader.geometry.group_of_block(BlockNr(block));
        if home.is_some_and(|home| home != group) {
            let place = FindingPlace::group(group).block(block).field(field);
            findings.report(Finding::new(FindingCode::DescriptorField, place));
        }
    }
}
