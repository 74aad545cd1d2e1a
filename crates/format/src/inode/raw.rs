//! The inode as the disk holds it.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an inode of revision 0, which every inode has.
pub(super) const GOOD_OLD_SIZE: usize = 128;

/// Where fields beyond the first 128 bytes end.
pub(super) mod field_end {
    pub(crate) const CHECKSUM_HI: usize = 0x84;
    pub(crate) const CTIME_EXTRA: usize = 0x88;
    pub(crate) const MTIME_EXTRA: usize = 0x8C;
    pub(crate) const ATIME_EXTRA: usize = 0x90;
    pub(crate) const CRTIME: usize = 0x94;
    pub(crate) const CRTIME_EXTRA: usize = 0x98;
    pub(crate) const VERSION_HI: usize = 0x9C;
    pub(crate) const PROJID: usize = 0xA0;
}

/// The fields of an inode; slots of 128 bytes end before `extra_isize`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields have the names that the format's documentation gives them"
)]
pub struct RawInode {
    pub mode: U16,
    pub uid_lo: U16,
    pub size_lo: U32,
    pub atime: U32,
    pub ctime: U32,
    pub mtime: U32,
    pub dtime: U32,
    pub gid_lo: U16,
    pub links: U16,
    pub blocks_lo: U32,
    pub flags: U32,
    pub version_lo: U32,
    pub i_block: [u8; 60],
    pub generation: U32,
    pub file_acl_lo: U32,
    pub size_high: U32,
    pub obsolete_faddr: U32,
    pub blocks_high: U16,
    pub file_acl_high: U16,
    pub uid_high: U16,
    pub gid_high: U16,
    pub checksum_lo: U16,
    pub reserved: U16,
    pub extra_isize: U16,
    pub checksum_hi: U16,
    pub ctime_extra: U32,
    pub mtime_extra: U32,
    pub atime_extra: U32,
    pub crtime: U32,
    pub crtime_extra: U32,
    pub version_hi: U32,
    pub projid: U32,
}

const _: () = assert!(size_of::<RawInode>() == GOOD_OLD_SIZE + 32);

impl RawInode {
    /// Reads the fields that the slot contains; the others are zero.
    pub fn read(slot: &[u8]) -> RawInode {
        let mut raw = RawInode::new_zeroed();
        crate::bytes::put_bytes(raw.as_mut_bytes(), 0, slot);
        raw
    }

    pub(super) fn uid(&self) -> u32 {
        u32::from(self.uid_high.get()) << 16 | u32::from(self.uid_lo.get())
    }

    pub(super) fn set_uid(&mut self, uid: u32) {
        self.uid_lo.set(uid as u16);
        self.uid_high.set((uid >> 16) as u16);
    }

    pub(super) fn gid(&self) -> u32 {
        u32::from(self.gid_high.get()) << 16 | u32::from(self.gid_lo.get())
    }

    pub(super) fn set_gid(&mut self, gid: u32) {
        self.gid_lo.set(gid as u16);
        self.gid_high.set((gid >> 16) as u16);
    }

    pub(super) fn size(&self, with_high: bool) -> u64 {
        let high = if with_high { u64::from(self.size_high.get()) } else { 0 };
        high << 32 | u64::from(self.size_lo.get())
    }

    pub(super) fn set_size(&mut self, size: u64) {
        self.size_lo.set(size as u32);
        self.size_high.set((size >> 32) as u32);
    }

    pub(super) fn file_acl(&self) -> u64 {
        u64::from(self.file_acl_high.get()) << 32 | u64::from(self.file_acl_lo.get())
    }

    pub(super) fn set_file_acl(&mut self, block: u64) {
        self.file_acl_lo.set(block as u32);
        self.file_acl_high.set((block >> 32) as u16);
    }
}
