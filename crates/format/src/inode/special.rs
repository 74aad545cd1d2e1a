//! The `i_block` area and the time fields of special inodes: devices, short symbolic links,
//! attribute values.

use super::{I_BLOCK_SIZE, Inode, InodeFlags};
use crate::bytes::{le32, put_bytes, put_le32};
use crate::features::Incompat;
use crate::geometry::Geometry;
use crate::types::Timestamp;

/// Maximum link count of an inode; a directory beyond it (with `dir_nlink`) stores 1.
pub const LINK_MAX: u16 = 65_000;

/// Maximum length in bytes of a symbolic link's target in the inode.
pub const FAST_SYMLINK_MAX: usize = I_BLOCK_SIZE - 1;

/// Bits of a device's major number in an inode, and of its minor number.
const RDEV_BITS: (u32, u32) = (12, 20);

/// Returns whether a device's major and minor number fit an inode.
pub fn can_store_rdev((major, minor): (u32, u32)) -> bool {
    major >> RDEV_BITS.0 == 0 && minor >> RDEV_BITS.1 == 0
}

impl Inode {
    /// Major and minor number, if it is a device.
    pub fn rdev(&self) -> Option<(u32, u32)> {
        if !self.file_type().is_device() {
            return None;
        }
        let old = le32(&self.i_block, 0);
        if old != 0 {
            return Some((old >> 8 & 0xFF, old & 0xFF));
        }
        let new = le32(&self.i_block, 4);
        Some((new >> 8 & 0xFFF, new & 0xFF | new >> 12 & 0xF_FF00))
    }

    /// Stores major (12 bits) and minor (20 bits) number of a device, in the old form if it fits.
    /// They must fit: see [`can_store_rdev`].
    pub fn set_rdev(&mut self, (major, minor): (u32, u32)) {
        self.i_block = [0; I_BLOCK_SIZE];
        if major < 256 && minor < 256 {
            put_le32(&mut self.i_block, 0, major << 8 | minor);
        } else {
            let new = (major & 0xFFF) << 8 | minor & 0xFF | (minor & 0xF_FF00) << 12;
            put_le32(&mut self.i_block, 4, new);
        }
    }

    /// Returns whether the `i_block` area of this inode holds the target of a symbolic link instead
    /// of a block map.
    ///
    /// Without `ea_inode` the block count decides: an inode with a short target has the attribute
    /// block at most. With `ea_inode` the count includes the blocks of values in other inodes, so
    /// size and flags decide. Size 0 means a target whose blocks are being freed.
    pub fn is_fast_symlink(&self, geo: &Geometry) -> bool {
        if !self.is_symlink() || self.flags.contains(InodeFlags::INLINE_DATA) {
            return false;
        }
        if geo.incompat(Incompat::EA_INODE) {
            let short = (1..=FAST_SYMLINK_MAX as u64).contains(&self.size);
            return short && !self.flags.contains(InodeFlags::EXTENTS);
        }
        let xattr_sectors = if self.file_acl == 0 {
            0
        } else {
            u64::from(geo.sectors_per_block()) << geo.cluster_bits
        };
        self.blocks <= xattr_sectors
    }

    /// Returns the target of a symbolic link that is stored in the inode, and `None` for all
    /// others.
    pub fn fast_symlink(&self, geo: &Geometry) -> Option<&[u8]> {
        if self.flags.contains(InodeFlags::EXTENTS) || !self.is_fast_symlink(geo) {
            return None;
        }
        let len = usize::try_from(self.size).ok().filter(|len| *len <= FAST_SYMLINK_MAX)?;
        self.i_block.get(..len)
    }

    /// Stores the target of a symbolic link in the inode; `false` if it is too long.
    #[must_use]
    pub fn set_fast_symlink(&mut self, target: &[u8]) -> bool {
        if target.len() > FAST_SYMLINK_MAX {
            return false;
        }
        self.i_block = [0; I_BLOCK_SIZE];
        put_bytes(&mut self.i_block, 0, target);
        self.size = target.len() as u64;
        self.flags.remove(InodeFlags::EXTENTS);
        true
    }

    /// Returns the number of attributes with this inode's data as their value.
    pub fn ea_refcount(&self) -> u64 {
        u64::from(self.ctime.sec as u32) << 32 | u64::from(self.version as u32)
    }

    /// Sets the number of attributes with this inode's data as their value.
    pub fn set_ea_refcount(&mut self, count: u64) {
        self.ctime = raw_time((count >> 32) as u32);
        self.version = self.version >> 32 << 32 | u64::from(count as u32);
    }

    /// Returns the checksum of the attribute value that is this inode's data.
    pub fn ea_hash(&self) -> u32 {
        self.atime.sec as u32
    }

    /// Sets the checksum of the attribute value that is this inode's data.
    pub fn set_ea_hash(&mut self, hash: u32) {
        self.atime = raw_time(hash);
    }

    /// Returns the inode that owns an attribute value of the old form, without reference count.
    pub fn ea_parent(&self) -> u32 {
        self.mtime.sec as u32
    }
}

/// Returns the time stamp whose base word is `word`.
fn raw_time(word: u32) -> Timestamp {
    Timestamp::new(i64::from(word as i32), 0)
}
