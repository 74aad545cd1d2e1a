//! Quota files, version 2 revision 1: a header, a tree of four levels by the bytes of an id, and
//! blocks of records.
//!
//! The unit is a quota block of 1 KiB, whatever the file system's blocks are. Quota block 0 is the
//! header, 1 the tree's root; a tree block has 256 pointers, a data block a header and 14 records.
//! Data blocks with a free record form one list, unused blocks another.
//!
//! # Invariants
//! - Every function is total. Callers that follow pointers must check that block numbers are within
//!   the file ([`QuotaHeader::has`]).
//! - A record of 72 zero bytes is free. One that is in use and would be zero (that of id 0 without
//!   usage and limits) has the inode time 1, which means 0.

use crate::bytes::{le16, le32, le64, part, part_mut, put_le16, put_le32, put_le64};
use crate::error::{Corrupt, Result};

/// Bytes of a quota block.
pub const BLOCK: usize = 1024;

/// The quota block of the tree's root.
pub const ROOT: u32 = 1;

/// Levels of tree blocks, the root's included.
pub const LEVELS: usize = 4;

/// Bytes of a record.
pub const RECORD: usize = 72;

/// Records of a data block.
pub const RECORDS: usize = (BLOCK - DATA_HEADER) / RECORD;

/// Grace time of a new file, in seconds: a week.
pub const GRACE: u32 = 7 * 24 * 3600;

/// Bytes that a block limit counts.
pub const LIMIT_UNIT: u64 = 1024;

const DATA_HEADER: usize = 16;
const VERSION: u32 = 1;

/// Kind of owner whose usage a quota file counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKind {
    /// Users'.
    User,
    /// Groups'.
    Group,
    /// Projects'.
    Project,
}

impl QuotaKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    /// 0, 1, 2.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the file's magic number.
    pub const fn magic(self) -> u32 {
        match self {
            QuotaKind::User => 0xd9c0_1f11,
            QuotaKind::Group => 0xd9c0_1927,
            QuotaKind::Project => 0xd9c0_3f14,
        }
    }

    /// Returns the name of the file in messages.
    pub const fn file_name(self) -> &'static str {
        match self {
            QuotaKind::User => "user quota file",
            QuotaKind::Group => "group quota file",
            QuotaKind::Project => "project quota file",
        }
    }
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaHeader {
    /// Seconds for which a soft limit of blocks may be exceeded.
    pub block_grace: u32,
    /// The same for inodes.
    pub inode_grace: u32,
    /// Flags; kept.
    pub flags: u32,
    /// Quota blocks in use or on a list.
    pub blocks: u32,
    /// First unused block; 0 for none.
    pub free_block: u32,
    /// First of the data blocks with a free record; 0 for none.
    pub free_record: u32,
}

impl QuotaHeader {
    /// Reads the header and checks its numbers against the `capacity` of the file in quota blocks.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field.
    pub fn decode(block: &[u8], kind: QuotaKind, capacity: u64) -> Result<QuotaHeader> {
        let bad = |field| Corrupt::new(kind.file_name()).field(field);
        let (magic, version) = (le32(block, 0), le32(block, 4));
        if magic != kind.magic() {
            return Err(bad("magic").found(magic).expected(kind.magic()));
        }
        if version != VERSION {
            return Err(bad("version").found(version).expected(VERSION));
        }
        let header = QuotaHeader {
            block_grace: le32(block, 8),
            inode_grace: le32(block, 12),
            flags: le32(block, 16),
            blocks: le32(block, 20),
            free_block: le32(block, 24),
            free_record: le32(block, 28),
        };
        if header.blocks <= ROOT || u64::from(header.blocks) > capacity {
            return Err(bad("blocks").found(header.blocks).expected(capacity));
        }
        for (field, first) in
            [("free block", header.free_block), ("block with a free record", header.free_record)]
        {
            if first != 0 && !header.has(first) {
                return Err(bad(field).found(first).expected(header.blocks));
            }
        }
        Ok(header)
    }

    /// Writes the header.
    pub fn encode(&self, block: &mut [u8], kind: QuotaKind) {
        let words = [
            kind.magic(),
            VERSION,
            self.block_grace,
            self.inode_grace,
            self.flags,
            self.blocks,
            self.free_block,
            self.free_record,
        ];
        words.iter().enumerate().for_each(|(n, word)| put_le32(block, n.saturating_mul(4), *word));
    }

    /// Returns whether a quota block may be a tree or data block.
    pub fn has(&self, block: u32) -> bool {
        block > ROOT && block < self.blocks
    }
}

/// Returns the slot of the pointer to `id` in a tree block of `level` (0 for the root).
pub const fn slot_of(id: u32, level: usize) -> usize {
    let shift = (LEVELS - 1).saturating_sub(level).saturating_mul(8);
    (id >> shift & 0xFF) as usize
}

/// A pointer of a tree block; 0 leads nowhere.
pub fn pointer(block: &[u8], slot: usize) -> u32 {
    le32(block, slot.saturating_mul(4))
}

/// Sets a pointer of a tree block.
pub fn put_pointer(block: &mut [u8], slot: usize, to: u32) {
    put_le32(block, slot.saturating_mul(4), to);
}

/// Header of a data block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataHeader {
    /// The next block of its list; 0 for none.
    pub next: u32,
    /// The one before; 0 for none.
    pub prev: u32,
    /// Records in use.
    pub used: u16,
}

impl DataHeader {
    /// Reads it.
    pub fn decode(block: &[u8]) -> DataHeader {
        DataHeader { next: le32(block, 0), prev: le32(block, 4), used: le16(block, 8) }
    }

    /// Writes it.
    pub fn encode(&self, block: &mut [u8]) {
        put_le32(block, 0, self.next);
        put_le32(block, 4, self.prev);
        put_le16(block, 8, self.used);
    }
}

/// Limits of an owner; 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Space that is never exceeded, in KiB.
    pub block_hard: u64,
    /// Space that is exceeded for the grace time only, in KiB.
    pub block_soft: u64,
    /// Inodes that are never exceeded.
    pub inode_hard: u64,
    /// Inodes that are exceeded for the grace time only.
    pub inode_soft: u64,
}

impl QuotaLimits {
    /// Returns whether there is none.
    pub fn is_none(&self) -> bool {
        *self == QuotaLimits::default()
    }
}

/// Limits and usage of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaRecord {
    /// User, group or project.
    pub id: u32,
    /// Limits.
    pub limits: QuotaLimits,
    /// Bytes in use.
    pub space: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// End of the grace time for space, in seconds since 1970; 0 below the soft limit.
    pub block_time: u64,
    /// The same for inodes.
    pub inode_time: u64,
}

/// Returns the offset of a record in a data block.
pub const fn record_at(slot: usize) -> usize {
    slot.saturating_mul(RECORD).saturating_add(DATA_HEADER)
}

impl QuotaRecord {
    /// Reads the record that `bytes` begin with; `None` if it is free.
    pub fn decode(bytes: &[u8]) -> Option<QuotaRecord> {
        if part(bytes, 0, RECORD).iter().all(|byte| *byte == 0) {
            return None;
        }
        let mut record = QuotaRecord {
            id: le32(bytes, 0),
            limits: QuotaLimits {
                inode_hard: le64(bytes, 8),
                inode_soft: le64(bytes, 16),
                block_hard: le64(bytes, 32),
                block_soft: le64(bytes, 40),
            },
            inodes: le64(bytes, 24),
            space: le64(bytes, 48),
            block_time: le64(bytes, 56),
            inode_time: le64(bytes, 64),
        };
        let escaped = QuotaRecord { inode_time: 1, ..QuotaRecord::default() };
        if record == escaped {
            record.inode_time = 0;
        }
        Some(record)
    }

    /// Writes the record to where `bytes` begin.
    pub fn encode(&self, bytes: &mut [u8]) {
        let escape = u64::from(*self == QuotaRecord::default());
        let limits = &self.limits;
        put_le32(bytes, 0, self.id);
        put_le32(bytes, 4, 0);
        let words = [
            limits.inode_hard,
            limits.inode_soft,
            self.inodes,
            limits.block_hard,
            limits.block_soft,
            self.space,
            self.block_time,
            self.inode_time | escape,
        ];
        words
            .iter()
            .enumerate()
            .for_each(|(n, word)| put_le64(bytes, n.saturating_mul(8).saturating_add(8), *word));
    }
}

fn record_bytes(block: &[u8], slot: usize) -> &[u8] {
    let at = record_at(slot);
    part(block, at, at.saturating_add(RECORD))
}

/// Returns the records of a data block with their slots.
pub fn records(block: &[u8]) -> impl Iterator<Item = (usize, QuotaRecord)> + '_ {
    (0..RECORDS).filter_map(|slot| {
        QuotaRecord::decode(record_bytes(block, slot)).map(|record| (slot, record))
    })
}

/// Returns the slot of an owner's record.
pub fn find(block: &[u8], id: u32) -> Option<(usize, QuotaRecord)> {
    records(block).find(|(_, record)| record.id == id)
}

/// Returns the first free slot.
pub fn free_slot(block: &[u8]) -> Option<usize> {
    (0..RECORDS).find(|slot| QuotaRecord::decode(record_bytes(block, *slot)).is_none())
}

/// Stores a record in a slot.
pub fn put_record(block: &mut [u8], slot: usize, record: &QuotaRecord) {
    let at = record_at(slot);
    record.encode(part_mut(block, at, at.saturating_add(RECORD)));
}

/// A whole file that holds these records, each of another owner.
pub fn new_file(kind: QuotaKind, records: &[QuotaRecord]) -> Vec<u8> {
    let mut file = NewFile { blocks: vec![[0; BLOCK]; (ROOT + 1) as usize] };
    // A file without records has an empty data block, too.
    let mut data = file.push();
    let mut used = 0;
    for record in records {
        if used == RECORDS {
            file.set_used(data, used);
            data = file.push();
            used = 0;
        }
        let leaf = file.leaf_of(record.id);
        let (slot, level) = (used, LEVELS.saturating_sub(1));
        file.edit(leaf, |block| put_pointer(block, slot_of(record.id, level), data));
        file.edit(data, |block| put_record(block, slot, record));
        used = used.saturating_add(1);
    }
    file.set_used(data, used);
    let header = QuotaHeader {
        block_grace: GRACE,
        inode_grace: GRACE,
        flags: 0,
        blocks: file.blocks.len() as u32,
        free_block: 0,
        free_record: if used < RECORDS { data } else { 0 },
    };
    file.edit(0, |block| header.encode(block, kind));
    file.blocks.concat()
}

/// The quota blocks of a new file.
struct NewFile {
    blocks: Vec<[u8; BLOCK]>,
}

impl NewFile {
    fn push(&mut self) -> u32 {
        self.blocks.push([0; BLOCK]);
        (self.blocks.len() as u32).saturating_sub(1)
    }

    fn edit(&mut self, number: u32, edit: impl FnOnce(&mut [u8])) {
        if let Some(block) = self.blocks.get_mut(number as usize) {
            edit(block);
        }
    }

    fn set_used(&mut self, data: u32, used: usize) {
        let header = DataHeader { used: used as u16, ..DataHeader::default() };
        self.edit(data, |block| header.encode(block));
    }

    /// Returns the tree block of the last level for an owner; those on the way to it are made.
    fn leaf_of(&mut self, id: u32) -> u32 {
        (0..LEVELS.saturating_sub(1)).fold(ROOT, |at, level| {
            let slot = slot_of(id, level);
            match self.blocks.get(at as usize).map_or(0, |block| pointer(block, slot)) {
                0 => {
                    let new = self.push();
                    self.edit(at, |block| put_pointer(block, slot, new));
                    new
                }
                next => next,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lead_through_the_tree_by_their_bytes() {
        assert_eq!(
            (0..LEVELS).map(|level| slot_of(0x0102_03FF, level)).collect::<Vec<_>>(),
            [1, 2, 3, 255]
        );
        assert_eq!(RECORDS, 14);
    }

    #[test]
    fn records_come_back() {
        let limits = QuotaLimits { block_hard: 1, block_soft: 2, inode_hard: 3, inode_soft: 4 };
        let full = QuotaRecord { id: 9, limits, space: 5, inodes: 6, block_time: 7, inode_time: 8 };
        let mut block = vec![0; BLOCK];
        assert_eq!(free_slot(&block), Some(0));
        for (slot, record) in [full, QuotaRecord::default()].iter().enumerate() {
            put_record(&mut block, slot, record);
            assert_eq!(find(&block, record.id), Some((slot, *record)));
        }
        assert_eq!((records(&block).count(), free_slot(&block)), (2, Some(2)));
        assert_eq!(find(&block, 7), None);
    }

    #[test]
    fn a_header_is_believed_within_the_file() {
        let file = new_file(QuotaKind::Group, &[QuotaRecord::default()]);
        let header = QuotaHeader::decode(&file, QuotaKind::Group, 6).unwrap();
        assert_eq!((header.blocks, header.free_record, header.block_grace), (6, 2, GRACE));
        assert!(QuotaHeader::decode(&file, QuotaKind::User, 6).is_err());
        assert!(QuotaHeader::decode(&file, QuotaKind::Group, 5).is_err());
        assert!(QuotaHeader::decode(&[], QuotaKind::Group, 5).is_err());
        let mut wrong = file.clone();
        QuotaHeader { free_record: 6, ..header }.encode(&mut wrong, QuotaKind::Group);
        assert!(QuotaHeader::decode(&wrong, QuotaKind::Group, 6).is_err());
    }

    #[test]
    fn a_new_file_leads_to_its_records() {
        let of = |id| QuotaRecord { id, space: 4096, inodes: 1, ..QuotaRecord::default() };
        let ids = [0x0102_0304, 0, 0x0102_0305, 0x0103_0304];
        let file = new_file(QuotaKind::User, &ids.map(of));
        let blocks: Vec<&[u8]> = file.chunks(BLOCK).collect();
        assert_eq!(blocks.len(), 3 + 3 + 3 + 2);
        for (slot, id) in ids.into_iter().enumerate() {
            let leaf = (0..LEVELS)
                .fold(ROOT, |at, level| pointer(blocks[at as usize], slot_of(id, level)));
            assert_eq!(find(blocks[leaf as usize], id), Some((slot, of(id))));
        }
    }

    #[test]
    fn a_new_file_holds_any_number_of_records() {
        for count in [0, 13, 14, 15, 28, 3000] {
            let of = |id| QuotaRecord { id, space: 1024, inodes: 1, ..QuotaRecord::default() };
            let list: Vec<QuotaRecord> = (0..count).map(|n| of(n * 77_777)).collect();
            let file = new_file(QuotaKind::User, &list);
            let blocks: Vec<&[u8]> = file.chunks(BLOCK).collect();
            let header =
                QuotaHeader::decode(&file, QuotaKind::User, blocks.len() as u64).expect("a header");
            assert_eq!(header.blocks as usize, blocks.len());
            for record in &list {
                let leaf = (0..LEVELS).fold(ROOT, |at, level| {
                    pointer(blocks[at as usize], slot_of(record.id, level))
                });
                assert!(find(blocks[leaf as usize], record.id).is_some(), "{count}: {record:?}");
            }
            let is_free = count % 14 != 0 || count == 0;
            assert_eq!(header.free_record != 0, is_free, "{count}");
        }
    }
}
