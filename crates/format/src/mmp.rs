//! The block of multiple mount protection.

use crate::bytes::{
    array, le16, le32, le64, part, part_mut, put_le16, put_le32, put_le64, put_text, text,
};
use crate::checksum::crc32c_raw;
use crate::error::{Corrupt, Result};

/// The magic number of the block.
pub const MMP_MAGIC: u32 = 0x004D_4D50;
/// Sequence of a file system that is not in use.
pub const MMP_SEQ_CLEAN: u32 = 0xFF4D_4D50;
/// Sequence of a file system that is being checked.
pub const MMP_SEQ_FSCK: u32 = 0xE24D_4D50;
/// The highest sequence of a file system in use.
pub const MMP_SEQ_MAX: u32 = 0xE24D_4D4F;
/// Default interval between updates, in seconds.
pub const MMP_UPDATE_INTERVAL: u16 = 5;
/// The shortest check interval in seconds.
pub const MMP_MIN_CHECK_INTERVAL: u16 = 5;
/// The longest check interval in seconds.
pub const MMP_MAX_CHECK_INTERVAL: u16 = 300;

/// Bytes of the structure.
pub const MMP_SIZE: usize = 1024;

const SEQ: usize = 0x4;
const TIME: usize = 0x8;
const NODE_NAME: usize = 0x10;
const BDEV_NAME: usize = 0x50;
const CHECK_INTERVAL: usize = 0x70;
const CHECKSUM: usize = 0x3FC;

/// Contents of the block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mmp {
    /// Changes at each update; see the constants.
    pub seq: u32,
    /// Time of the last update, in seconds since 1970.
    pub time: u64,
    /// The host that updated it, at most 64 bytes.
    pub node_name: String,
    /// The device there, at most 32 bytes.
    pub bdev_name: String,
    /// Seconds without an update after which the other node counts as gone.
    pub check_interval: u16,
}

impl Mmp {
    /// Reads a block; `seed` is the file system's, and `None` where blocks have no checksums.
    ///
    /// # Errors
    /// A wrong magic or checksum.
    pub fn parse(block: &[u8], seed: Option<u32>) -> Result<Mmp> {
        let magic = le32(block, 0);
        if block.len() < MMP_SIZE || magic != MMP_MAGIC {
            return Err(Corrupt::new("MMP block").field("magic").found(magic).expected(MMP_MAGIC));
        }
        if let Some(seed) = seed {
            let (found, expected) = (le32(block, CHECKSUM), compute(block, seed));
            if found != expected {
                return Err(Corrupt::new("MMP block")
                    .field("checksum")
                    .found(found)
                    .expected(expected));
            }
        }
        Ok(Mmp {
            seq: le32(block, SEQ),
            time: le64(block, TIME),
            node_name: text(&array::<64>(block, NODE_NAME)),
            bdev_name: text(&array::<32>(block, BDEV_NAME)),
            check_interval: le16(block, CHECK_INTERVAL),
        })
    }

    /// Writes the structure, with its checksum if there is a seed; bytes that have no field stay.
    pub fn encode(&self, block: &mut [u8], seed: Option<u32>) {
        put_le32(block, 0, MMP_MAGIC);
        put_le32(block, SEQ, self.seq);
        put_le64(block, TIME, self.time);
        put_text(part_mut(block, NODE_NAME, BDEV_NAME), self.node_name.as_bytes());
        put_text(part_mut(block, BDEV_NAME, CHECK_INTERVAL), self.bdev_name.as_bytes());
        put_le16(block, CHECK_INTERVAL, self.check_interval);
        if let Some(seed) = seed {
            let checksum = compute(block, seed);
            put_le32(block, CHECKSUM, checksum);
        }
    }
}

fn compute(block: &[u8], seed: u32) -> u32 {
    crc32c_raw(seed, part(block, 0, CHECKSUM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mmp = Mmp {
            seq: MMP_SEQ_CLEAN,
            time: 5,
            node_name: "host".into(),
            bdev_name: "loop0".into(),
            check_interval: 5,
        };
        let mut block = vec![0u8; 4096];
        mmp.encode(&mut block, Some(7));
        assert_eq!(Mmp::parse(&block, Some(7)).unwrap(), mmp);
        assert!(Mmp::parse(&block, Some(8)).is_err());
        assert!(Mmp::parse(&block, None).is_ok());
        assert!(Mmp::parse(&block[..512], None).is_err());
    }
}
