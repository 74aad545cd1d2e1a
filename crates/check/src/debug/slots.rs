//! Group descriptors, bitmaps and the slots of inode tables.

use super::{ChecksumState, InspectError, Inspector};
use crate::claims::ClaimMap;
use extant_format::group_desc::{init_block_bitmap, init_inode_bitmap};
use extant_format::inode::verify_inode;
use extant_format::{
    BlockNr, Corrupt, Geometry, GroupDesc, GroupFlags, GroupNr, Inode, InodeFlags, InodeNr, bitmap,
};

/// Blocks of an inode table that are read at once.
const TABLE_BLOCKS: u64 = 32;

/// Bytes of an inode without further fields.
const SHORT_INODE: u16 = 128;

/// A group as it was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupState {
    pub desc: GroupDesc,
    pub checksum: Option<ChecksumState>,
    /// The table lies in the file system, and in no other group's.
    pub is_own_table: bool,
}

/// A group, with the verdicts on its parts.
#[derive(Clone, Debug)]
pub struct InspectedGroup {
    /// Number of the group.
    pub group: u32,
    /// First block.
    pub first_block: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// The block with the descriptor.
    pub desc_block: u64,
    /// The descriptor; zeroes if it cannot be read.
    pub desc: GroupDesc,
    /// Verdict on the checksum of the descriptor; `None` if it cannot be read.
    pub checksum: Option<ChecksumState>,
    /// Impossible value of the descriptor.
    pub problem: Option<String>,
    /// The block bitmap, one bit for each cluster.
    pub block_bitmap: Result<InspectedBitmap, InspectError>,
    /// The inode bitmap.
    pub inode_bitmap: Result<InspectedBitmap, InspectError>,
}

/// A bitmap of a group.
#[derive(Clone, Debug)]
pub struct InspectedBitmap {
    /// The bits, set for blocks or inodes in use.
    pub bits: Vec<u8>,
    /// Verdict on the checksum.
    pub checksum: ChecksumState,
    /// The bitmap was never written, and stands for this content.
    pub is_uninit: bool,
    /// Number of bits that count.
    pub len: u32,
}

impl InspectedBitmap {
    /// Returns the number of clear bits.
    pub fn free(&self) -> u32 {
        bitmap::count_zeros(&self.bits, 0..self.len as usize) as u32
    }

    /// Returns whether a bit is set.
    pub fn is_set(&self, bit: u32) -> bool {
        bitmap::test(&self.bits, bit as usize)
    }
}

/// The slot of an inode.
#[derive(Clone, Debug)]
pub struct InodeSlot {
    /// Number of the inode.
    pub ino: u32,
    /// Its group.
    pub group: u32,
    /// The block with the slot.
    pub block: u64,
    /// Offset in the block, in bytes.
    pub offset: usize,
    /// The slot as it lies in the table.
    pub bytes: Vec<u8>,
    /// The decoded fields; those behind the first 128 bytes are missing if `problem` is set.
    pub inode: Inode,
    /// Impossible value of the slot.
    pub problem: Option<Corrupt>,
    /// Verdict on the checksum.
    pub checksum: ChecksumState,
}

impl InodeSlot {
    /// Decodes a slot, as far as it can be.
    pub(crate) fn decode(
        geometry: &Geometry,
        ino: InodeNr,
        (group, block, offset): (GroupNr, u64, usize),
        bytes: &[u8],
    ) -> Option<InodeSlot> {
        let decoded = Inode::decode_unverified(bytes, geometry, ino);
        let problem = decoded.as_ref().err().cloned();
        let short = Geometry { inode_size: SHORT_INODE, ..*geometry };
        let inode = decoded.or_else(|_| Inode::decode_unverified(bytes, &short, ino)).ok()?;
        let right = || verify_inode(bytes, geometry, ino).is_ok();
        Some(InodeSlot {
            ino: ino.0,
            group: group.0,
            block,
            offset,
            bytes: bytes.to_vec(),
            inode,
            problem,
            checksum: ChecksumState::of(geometry.metadata_csum, right),
        })
    }

    /// Returns whether the fields say that the inode is in use.
    pub fn is_linked(&self) -> bool {
        self.inode.links > 0 && (self.inode.mode != 0 || self.inode.i_block != [0; 60])
    }

    /// Returns whether the inode has a map of blocks, and no content in itself.
    pub fn has_map(&self, geometry: &Geometry) -> bool {
        use extant_format::FileType::{BlockDevice, CharDevice, Fifo, Socket};
        let inode = &self.inode;
        let other = matches!(inode.file_type(), BlockDevice | CharDevice | Fifo | Socket);
        let is_inline = inode.flags.contains(InodeFlags::INLINE_DATA);
        !other && !is_inline && !inode.is_fast_symlink(geometry)
    }

    pub(crate) fn number(&self) -> InodeNr {
        InodeNr(self.ino)
    }
}

impl Inspector {
    /// Reads the descriptors of all groups that begin on the device.
    pub(super) fn read_descriptors(&mut self) {
        let (reader, geometry) = (self.reader(), self.geometry);
        let mut groups: Vec<GroupState> = Vec::new();
        let mut loaded: Option<(u32, Option<Vec<u8>>)> = None;
        for group in reader.groups() {
            let (index, offset) = geometry.desc_location(group);
            if loaded.as_ref().is_none_or(|(block, _)| *block != index) {
                loaded = Some((index, reader.block(geometry.gdt_block(index).0)));
            }
            let block = loaded.as_ref().and_then(|(_, bytes)| bytes.as_deref());
            let end = offset.saturating_add(geometry.desc_size.into());
            let bytes = block.and_then(|block| block.get(offset..end));
            groups.push(bytes.map_or_else(GroupState::default, |bytes| {
                let right = || GroupDesc::verify_checksum(bytes, &geometry, group).is_ok();
                GroupState {
                    desc: GroupDesc::decode_unverified(bytes, &geometry),
                    checksum: Some(ChecksumState::of(geometry.has_group_checksums(), right)),
                    is_own_table: false,
                }
            }));
        }
        let tables = ClaimMap::of_blocks(&self.bounded_geometry(), groups.len());
        let len = u64::from(geometry.inode_table_blocks());
        for state in &mut groups {
            let start = state.desc.inode_table;
            state.is_own_table = geometry.data_range_valid(BlockNr(start), len)
                && start < reader.device_blocks()
                && tables.claim(start..start.saturating_add(len)).is_none();
        }
        self.groups = groups;
    }

    /// Returns the geometry of a file system that ends with the device.
    pub(super) fn bounded_geometry(&self) -> Geometry {
        let blocks = self.device.len() >> self.geometry.block_bits;
        Geometry { blocks_count: self.geometry.blocks_count.min(blocks), ..self.geometry }
    }

    /// Returns the number of groups that begin on the device.
    pub fn group_count(&self) -> u32 {
        self.groups.len() as u32
    }

    fn state(&self, group: GroupNr) -> Result<&GroupState, InspectError> {
        self.groups.get(group.index()).ok_or_else(|| {
            InspectError(format!(
                "group {group} is not on the device: it has {}",
                self.groups.len()
            ))
        })
    }

    /// Returns a group with its bitmaps.
    ///
    /// # Errors
    /// The group is not on the device.
    pub fn group(&self, group: u32) -> Result<InspectedGroup, InspectError> {
        let (nr, geometry) = (GroupNr(group), &self.geometry);
        let state = self.state(nr)?;
        let problem = state.desc.check(geometry).err().map(|error| error.to_string());
        Ok(InspectedGroup {
            group,
            first_block: geometry.first_block_of_group(nr).0,
            blocks: geometry.blocks_in_group(nr),
            desc_block: geometry.gdt_block(geometry.desc_location(nr).0).0,
            desc: state.desc,
            checksum: state.checksum,
            problem,
            block_bitmap: self.block_bitmap(nr),
            inode_bitmap: self.inode_bitmap(nr),
        })
    }

    /// Returns the content of a bitmap's block, which must be one of the file system.
    fn bitmap_block(&self, group: GroupNr, block: u64) -> Result<Vec<u8>, InspectError> {
        let valid = self.geometry.data_range_valid(BlockNr(block), 1);
        let bytes = valid.then(|| self.reader().block(block)).flatten();
        bytes.ok_or_else(|| {
            InspectError(format!("bitmap of group {group} in block {block} cannot be read"))
        })
    }

    pub(super) fn block_bitmap(&self, group: GroupNr) -> Result<InspectedBitmap, InspectError> {
        let (geometry, desc) = (&self.geometry, self.state(group)?.desc);
        let len = geometry.clusters_in_group(group);
        if desc.has_flag(geometry, GroupFlags::BLOCK_UNINIT) {
            let mut bits = self.reader().buffer();
            init_block_bitmap(&mut bits, geometry, group, &desc);
            let checksum = ChecksumState::Absent;
            return Ok(InspectedBitmap { bits, checksum, is_uninit: true, len });
        }
        let bits = self.bitmap_block(group, desc.block_bitmap)?;
        let right = || desc.verify_block_bitmap(&bits, geometry).is_ok();
        let checksum = ChecksumState::of(self.has_checksums(), right);
        Ok(InspectedBitmap { bits, checksum, is_uninit: false, len })
    }

    pub(super) fn inode_bitmap(&self, group: GroupNr) -> Result<InspectedBitmap, InspectError> {
        let (geometry, desc) = (&self.geometry, self.state(group)?.desc);
        let len = geometry.inodes_per_group;
        if desc.has_flag(geometry, GroupFlags::INODE_UNINIT) {
            let mut bits = self.reader().buffer();
            init_inode_bitmap(&mut bits, geometry);
            let checksum = ChecksumState::Absent;
            return Ok(InspectedBitmap { bits, checksum, is_uninit: true, len });
        }
        let bits = self.bitmap_block(group, desc.inode_bitmap)?;
        let right = || desc.verify_inode_bitmap(&bits, geometry).is_ok();
        let checksum = ChecksumState::of(self.has_checksums(), right);
        Ok(InspectedBitmap { bits, checksum, is_uninit: false, len })
    }

    /// Returns whether the bitmap says that an inode is in use.
    ///
    /// # Errors
    /// There is no such inode, or the bitmap cannot be read.
    pub fn is_inode_in_use(&self, ino: u32) -> Result<bool, InspectError> {
        let (group, index) = self.location(ino)?;
        Ok(self.inode_bitmap(group)?.is_set(index))
    }

    /// Returns whether the bitmap says that a block is in use.
    ///
    /// # Errors
    /// There is no such block, or the bitmap cannot be read.
    pub fn is_block_in_use(&self, block: u64) -> Result<bool, InspectError> {
        let place = self.geometry.group_and_bit(BlockNr(block));
        let missing = || {
            let last = self.geometry.blocks_count.saturating_sub(1);
            InspectError(format!("block {block} is in no group: the last is {last}"))
        };
        let (group, bit) = place.ok_or_else(missing)?;
        Ok(self.block_bitmap(group)?.is_set(bit))
    }

    fn location(&self, ino: u32) -> Result<(GroupNr, u32), InspectError> {
        let missing = || {
            let last = self.geometry.inodes_count;
            InspectError(format!("inode {ino} does not exist: the last is {last}"))
        };
        self.geometry.inode_location(InodeNr(ino)).map_err(|_| missing())
    }

    /// Returns the group of an inode, and the block and offset of its slot.
    ///
    /// # Errors
    /// There is no such inode, or its table cannot be one.
    pub fn slot_place(&self, ino: u32) -> Result<(GroupNr, u64, usize), InspectError> {
        let (group, index) = self.location(ino)?;
        let table = self.state(group)?.desc.inode_table;
        let (block, offset) = self.geometry.inode_slot(index);
        let block = table.saturating_add(block.into());
        if !self.geometry.data_range_valid(BlockNr(block), 1) {
            let message = format!("inode {ino}: group {group} has no inode table: block {table}");
            return Err(InspectError(message));
        }
        Ok((group, block, offset))
    }

    /// Returns an inode.
    ///
    /// # Errors
    /// There is no such inode, or its slot cannot be read.
    pub fn inode(&self, ino: u32) -> Result<InodeSlot, InspectError> {
        let place = self.slot_place(ino)?;
        let (_, block, offset) = place;
        let bytes = self.reader().block(block);
        let end = offset.saturating_add(self.geometry.inode_size.into());
        let slot = bytes.as_deref().and_then(|bytes| bytes.get(offset..end));
        let found =
            slot.and_then(|slot| InodeSlot::decode(&self.geometry, InodeNr(ino), place, slot));
        found.ok_or_else(|| InspectError(format!("inode {ino}: block {block} cannot be read")))
    }

    /// Calls `work` for each slot of all tables that is not zero. Returns the problems.
    pub(super) fn each_slot(&self, work: &mut dyn FnMut(InodeSlot)) -> Vec<String> {
        let mut problems = Vec::new();
        for (nr, state) in (0u32..).zip(&self.groups) {
            if !state.is_own_table {
                let table = state.desc.inode_table;
                problems.push(format!("group {nr} has no inode table of its own: block {table}"));
                continue;
            }
            if state.desc.has_flag(&self.geometry, GroupFlags::INODE_UNINIT)
                && state.checksum != Some(ChecksumState::Wrong)
            {
                continue;
            }
            self.each_slot_of(GroupNr(nr), state, work, &mut problems);
        }
        problems
    }

    fn each_slot_of(
        &self,
        group: GroupNr,
        state: &GroupState,
        work: &mut dyn FnMut(InodeSlot),
        problems: &mut Vec<String>,
    ) {
        let (reader, geometry) = (self.reader(), &self.geometry);
        let (blocks, size) = (u64::from(geometry.inode_table_blocks()), reader.buffer().len());
        let mut start = 0u64;
        while start < blocks {
            let count = blocks.saturating_sub(start).min(TABLE_BLOCKS);
            let first = state.desc.inode_table.saturating_add(start);
            if first >= reader.device_blocks() {
                let message = "the inode table is behind the end of the device from block";
                return problems.push(format!("group {group}: {message} {first} on"));
            }
            let mut buffer = vec![0; size.saturating_mul(count as usize)];
            if !reader.read(first, &mut buffer) {
                for (block, part) in (first..).zip(buffer.chunks_mut(size)) {
                    if !reader.read(block, part) {
                        part.fill(0);
                        problems.push(format!("inode table: block {block} cannot be read"));
                    }
                }
            }
            for (block, part) in (start..).zip(buffer.chunks(size)) {
                self.slots_of_block(group, (state.desc.inode_table, block), part, work);
            }
            start = start.saturating_add(TABLE_BLOCKS);
        }
    }

    fn slots_of_block(
        &self,
        group: GroupNr,
        (table, block): (u64, u64),
        bytes: &[u8],
        work: &mut dyn FnMut(InodeSlot),
    ) {
        let geometry = &self.geometry;
        let size = usize::from(geometry.inode_size);
        let first = (block as u32).saturating_mul(geometry.inodes_per_block());
        for (n, slot) in (0u32..).zip(bytes.chunks_exact(size.max(1))) {
            let index = first.saturating_add(n);
            if index >= geometry.inodes_per_group || slot.iter().all(|byte| *byte == 0) {
                continue;
            }
            let place = (group, table.saturating_add(block), size.saturating_mul(n as usize));
            let ino = geometry.inode_at(group, index);
            if let Some(slot) = InodeSlot::decode(geometry, ino, place, slot) {
                work(slot);
            }
        }
    }
}
