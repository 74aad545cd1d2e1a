//! The superblock of an empty journal.

use super::{LogExtent, LogPlace, offset};
use crate::error::Result;
use extant_blocks::BlockDevice;
use extant_format::jbd2::{JournalIncompat, JournalSuperblock};

/// The parameters of an empty journal.
#[derive(Clone, Debug)]
pub struct FormatLog {
    /// Bytes of a block.
    pub block_size: u32,
    /// Number of blocks, including the superblock.
    pub blocks: u32,
    /// The journal's UUID: usually zero for an internal journal, its own for an external one.
    pub uuid: [u8; 16],
    /// Blocks of the fast-commit area at the end; 0 for none.
    pub fast_commit_blocks: u32,
    /// Features.
    pub incompat: JournalIncompat,
    /// UUIDs of the file systems that use an external journal; empty for an internal one.
    pub users: Vec<[u8; 16]>,
    /// The location of the journal.
    pub place: LogPlace,
    /// The first sequence. If the log's blocks may hold an earlier journal, a random number
    /// prevents its remains from being taken for this journal's.
    pub sequence: u32,
}

impl FormatLog {
    /// Makes an internal journal of version 2 without features, with the sequence 1.
    pub fn new(block_size: u32, blocks: u32) -> FormatLog {
        FormatLog {
            block_size,
            blocks,
            uuid: [0; 16],
            fast_commit_blocks: 0,
            incompat: JournalIncompat::empty(),
            users: Vec::new(),
            place: LogPlace::Inside,
            sequence: 1,
        }
    }

    /// Returns the superblock.
    pub fn superblock(&self) -> JournalSuperblock {
        let mut superblock = JournalSuperblock::new(self.block_size, self.blocks, self.uuid);
        superblock.set_incompat(self.incompat);
        superblock.set_first(self.place.superblock(self.block_size) + 1);
        superblock.set_sequence(self.sequence);
        superblock.set_num_fc_blks(self.fast_commit_blocks);
        if !self.users.is_empty() {
            let places = &mut superblock.raw_mut().users;
            places.iter_mut().zip(&self.users).for_each(|(place, user)| *place = *user);
            let count = self.users.len().min(places.len());
            superblock.set_nr_users(count as u32);
        }
        superblock
    }

    /// Returns the superblock's whole block.
    pub fn block(&self) -> Vec<u8> {
        let bytes = self.superblock().encode();
        let mut block = vec![0; (self.block_size as usize).max(bytes.len())];
        block[..bytes.len()].copy_from_slice(&bytes);
        block
    }
}

/// Writes the superblock of an empty journal to its block in `extents`, without a flush. An
/// external journal also has an ext4 superblock, which is not written here.
///
/// # Errors
/// The device's; corruption if the extents do not contain the block.
pub fn format_log(device: &dyn BlockDevice, extents: &[LogExtent], how: &FormatLog) -> Result<()> {
    Ok(device.write_all_at(
        &how.block(),
        offset(extents, how.place.superblock(how.block_size), how.block_size)?,
    )?)
}
