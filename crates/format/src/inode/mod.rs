//! Inodes: the slot of the inode table as a plain struct.
//!
//! # Invariants
//! A field beyond the first 128 bytes is read and written only if the slot's extra size covers it.
//! Encoding preserves the attribute area and every byte without a named field, and seals the
//! checksum.

mod checksum;
mod raw;
mod special;
#[cfg(test)]
mod tests;
mod time;

pub use checksum::{seal_inode, verify_inode};
pub use raw::RawInode;
pub use special::{FAST_SYMLINK_MAX, LINK_MAX, can_store_rdev};

use crate::error::{Corrupt, Result};
use crate::features::{Incompat, RoCompat};
use crate::geometry::Geometry;
use crate::types::{FileType, InodeNr, MODE_PERM_MASK, Timestamp};
use bitflags::bitflags;
use raw::{GOOD_OLD_SIZE, field_end};
use zerocopy::IntoBytes;

/// Bytes of the `i_block` area.
pub const I_BLOCK_SIZE: usize = 60;

/// Offset of `i_block` in a slot.
const I_BLOCK_OFFSET: usize = std::mem::offset_of!(RawInode, i_block);

const STRUCTURE: &str = "inode";

bitflags! {
    /// Flags of an inode.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct InodeFlags: u32 {
        /// Secure deletion (not done).
        const SECRM = 0x1;
        /// Undelete (not done).
        const UNRM = 0x2;
        /// Compressed (not done).
        const COMPR = 0x4;
        /// Write synchronously.
        const SYNC = 0x8;
        /// May not be changed.
        const IMMUTABLE = 0x10;
        /// May only grow at its end.
        const APPEND = 0x20;
        /// Not to be dumped.
        const NODUMP = 0x40;
        /// Access times are not kept.
        const NOATIME = 0x80;
        /// Dirty (compression; not used).
        const DIRTY = 0x100;
        /// Compressed blocks (not used).
        const COMPRBLK = 0x200;
        /// Not compressed (not used).
        const NOCOMPR = 0x400;
        /// Encrypted.
        const ENCRYPT = 0x800;
        /// The directory is a hash tree.
        const INDEX = 0x1000;
        /// AFS directory.
        const IMAGIC = 0x2000;
        /// Data goes through the journal.
        const JOURNAL_DATA = 0x4000;
        /// The tail is not merged.
        const NOTAIL = 0x8000;
        /// Directory operations are synchronous.
        const DIRSYNC = 0x10000;
        /// Top of a directory hierarchy, for placement.
        const TOPDIR = 0x20000;
        /// The block count is in blocks.
        const HUGE_FILE = 0x40000;
        /// The map is an extent tree.
        const EXTENTS = 0x80000;
        /// The file has a verity tree.
        const VERITY = 0x100000;
        /// The inode holds an attribute's value.
        const EA_INODE = 0x200000;
        /// Blocks past the end (not used any more).
        const EOFBLOCKS = 0x400000;
        /// Direct access to memory.
        const DAX = 0x2000000;
        /// Data lies in the inode.
        const INLINE_DATA = 0x10000000;
        /// New files take the directory's project.
        const PROJINHERIT = 0x20000000;
        /// Names ignore case.
        const CASEFOLD = 0x40000000;
    }
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// File type and permissions.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of the file.
    pub size: u64,
    /// Number of links.
    pub links: u16,
    /// 512-byte sectors that the file takes, its metadata included.
    pub blocks: u64,
    /// Flags. [`InodeFlags::HUGE_FILE`] belongs to the encoding and is never set here.
    pub flags: InodeFlags,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Creation time; `None` if the slot is too short for it.
    pub crtime: Option<Timestamp>,
    /// Deletion in seconds since 1970, or the next inode of the orphan list.
    pub dtime: u32,
    /// Generation; part of the seed of all checksums of the file.
    pub generation: u32,
    /// The block of extended attributes, 0 for none.
    pub file_acl: u64,
    /// Extent root, block pointers, device number, inline data or short symbolic link.
    pub i_block: [u8; I_BLOCK_SIZE],
    /// Bytes of the fields beyond the first 128.
    pub extra_isize: u16,
    /// Version.
    pub version: u64,
    /// Project.
    pub projid: u32,
}

impl Default for Inode {
    fn default() -> Inode {
        Inode {
            mode: 0,
            uid: 0,
            gid: 0,
            size: 0,
            links: 0,
            blocks: 0,
            flags: InodeFlags::empty(),
            atime: Timestamp::default(),
            ctime: Timestamp::default(),
            mtime: Timestamp::default(),
            crtime: None,
            dtime: 0,
            generation: 0,
            file_acl: 0,
            i_block: [0; I_BLOCK_SIZE],
            extra_isize: 0,
            version: 0,
            projid: 0,
        }
    }
}

impl Inode {
    /// Makes a new inode of this mode: all times `now`, at the slot's precision, and the extra size
    /// of the file system's new inodes.
    pub fn new(geo: &Geometry, mode: u16, now: Timestamp) -> Inode {
        let mut inode = Inode { mode, extra_isize: new_extra_isize(geo), ..Inode::default() };
        let now = inode.storable_time(now);
        (inode.atime, inode.ctime, inode.mtime) = (now, now, now);
        inode.crtime = inode.storable_crtime(now);
        inode
    }

    /// Reads a slot and verifies its checksum and extra size.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field. A never used slot has no valid checksum.
    pub fn decode(slot: &[u8], geo: &Geometry, ino: InodeNr) -> Result<Inode> {
        verify_inode(slot, geo, ino)?;
        Inode::decode_unverified(slot, geo, ino)
    }

    /// Reads a slot and verifies its length and extra size only.
    ///
    /// # Errors
    /// [`Corrupt`] for too few bytes, or an extra size beyond the slot.
    pub fn decode_unverified(slot: &[u8], geo: &Geometry, ino: InodeNr) -> Result<Inode> {
        let slot = sized_slot(slot, geo, ino)?;
        let raw = RawInode::read(slot);
        let extra_isize = checked_extra_isize(&raw, geo).map_err(|error| error.at_inode(ino))?;
        let mode = raw.mode.get();
        let raw_flags = InodeFlags::from_bits_retain(raw.flags.get());
        let mut inode = Inode {
            mode,
            uid: raw.uid(),
            gid: raw.gid(),
            size: raw.size(has_high_size(mode, geo)),
            links: raw.links.get(),
            blocks: decode_blocks(&raw, raw_flags, geo),
            flags: raw_flags.difference(InodeFlags::HUGE_FILE),
            dtime: raw.dtime.get(),
            generation: raw.generation.get(),
            file_acl: raw.file_acl(),
            i_block: raw.i_block,
            extra_isize,
            version: raw.version_lo.get().into(),
            ..Inode::default()
        };
        inode.decode_times(&raw);
        if inode.has_field(field_end::VERSION_HI) {
            inode.version |= u64::from(raw.version_hi.get()) << 32;
        }
        if inode.has_field(field_end::PROJID) {
            inode.projid = raw.projid.get();
        }
        Ok(inode)
    }

    /// Reads an inode from a fast-commit record, which may end after the fields. Returns the inode
    /// and, if the record has the whole slot, the bytes after the fields. The record's checksum
    /// field is not that of a slot and is not verified.
    ///
    /// # Errors
    /// As [`decode_unverified`](Self::decode_unverified), and for a record longer than a slot.
    pub fn decode_record<'a>(
        record: &'a [u8],
        geo: &Geometry,
        ino: InodeNr,
    ) -> Result<(Inode, Option<&'a [u8]>)> {
        let mut slot = vec![0; geo.inode_size.into()];
        let Some(start) = slot.get_mut(..record.len()) else {
            let error = Corrupt::new("inode in a fast commit").field("size").at_inode(ino);
            return Err(error.found(record.len() as u64).expected(geo.inode_size));
        };
        start.copy_from_slice(record);
        let inode = Inode::decode_unverified(&slot, geo, ino)?;
        let whole = record.len() == slot.len();
        let tail = whole.then(|| tail(record, geo, &inode));
        Ok((inode, tail))
    }

    /// Writes the inode into its slot with its checksum; attribute area and unknown bytes stay
    /// unchanged.
    ///
    /// # Errors
    /// [`Corrupt`] for a slot that is too small, or an extra size or block count
    /// that this file system cannot hold.
    pub fn encode(&self, slot: &mut [u8], geo: &Geometry, ino: InodeNr) -> Result<()> {
        self.write_fields(slot, geo, ino)?;
        seal_inode(slot, geo, ino);
        Ok(())
    }

    /// Writes the inode and the bytes after its fields ([`tail`]) into its slot, with the checksum
    /// of both.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with_tail(
        &self,
        slot: &mut [u8],
        tail: &[u8],
        geo: &Geometry,
        ino: InodeNr,
    ) -> Result<()> {
        self.write_fields(slot, geo, ino)?;
        let area = self.xattr_area(geo);
        crate::bytes::put_bytes(crate::bytes::part_mut(slot, area.start, area.end), 0, tail);
        seal_inode(slot, geo, ino);
        Ok(())
    }

    fn write_fields(&self, slot: &mut [u8], geo: &Geometry, ino: InodeNr) -> Result<()> {
        sized_slot(slot, geo, ino)?;
        let mut raw = RawInode::read(slot);
        raw.extra_isize.set(self.extra_isize);
        checked_extra_isize(&raw, geo).map_err(|error| error.at_inode(ino))?;
        let flags = encode_blocks(&mut raw, self, geo).map_err(|error| error.at_inode(ino))?;
        raw.flags.set(flags.bits());
        self.encode_fields(&mut raw);
        self.encode_times(&mut raw);
        let has_extra = usize::from(geo.inode_size) > GOOD_OLD_SIZE;
        let extra = if has_extra { usize::from(self.extra_isize).max(size_of::<u16>()) } else { 0 };
        crate::bytes::put_bytes(
            slot,
            0,
            crate::bytes::part(raw.as_bytes(), 0, GOOD_OLD_SIZE.saturating_add(extra)),
        );
        Ok(())
    }

    fn encode_fields(&self, raw: &mut RawInode) {
        raw.mode.set(self.mode);
        raw.set_uid(self.uid);
        raw.set_gid(self.gid);
        raw.set_size(self.size);
        raw.links.set(self.links);
        raw.dtime.set(self.dtime);
        raw.generation.set(self.generation);
        raw.set_file_acl(self.file_acl);
        raw.i_block = self.i_block;
        raw.version_lo.set(self.version as u32);
        if self.has_field(field_end::VERSION_HI) {
            raw.version_hi.set((self.version >> 32) as u32);
        }
        if self.has_field(field_end::PROJID) {
            raw.projid.set(self.projid);
        }
    }

    /// Returns whether the slot has the field that ends at this byte.
    fn has_field(&self, end: usize) -> bool {
        GOOD_OLD_SIZE + usize::from(self.extra_isize) >= end
    }

    /// Returns whether the slot can hold a project number.
    pub fn has_projid(&self) -> bool {
        self.has_field(field_end::PROJID)
    }

    /// Returns whether the slot can hold a creation time.
    pub fn has_crtime(&self) -> bool {
        self.has_field(field_end::CRTIME)
    }

    /// Returns the bytes of the slot that extended attributes may take: all behind the fields, and
    /// none in an inode without extra size.
    pub fn xattr_area(&self, geo: &Geometry) -> std::ops::Range<usize> {
        let end = usize::from(geo.inode_size);
        let start = GOOD_OLD_SIZE + usize::from(self.extra_isize);
        if self.extra_isize > 0 { start.min(end)..end } else { end..end }
    }

    /// Returns the type of the file.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode)
    }

    /// Permissions with set-id and sticky bits.
    pub fn permissions(&self) -> u16 {
        self.mode & MODE_PERM_MASK
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Returns whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.file_type() == FileType::Regular
    }

    /// Returns whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type() == FileType::Symlink
    }

    /// Returns the seed of the checksums of the file's blocks.
    pub fn seed(&self, geo: &Geometry, ino: InodeNr) -> u32 {
        geo.inode_seed(ino, self.generation)
    }
}

/// Size of the length prefix of a symlink's encrypted target, in bytes.
pub const TARGET_HEAD: usize = 2;

/// Returns the encrypted target in the content of a symlink; `None` if the content is shorter than
/// the length prefix requires.
pub fn encrypted_target(content: &[u8]) -> Option<&[u8]> {
    let (len, rest) = content.split_first_chunk::<TARGET_HEAD>()?;
    rest.get(..u16::from_le_bytes(*len).into())
}

/// Returns the bytes after an inode's fields in its slot: the area of extended attributes.
pub fn tail<'a>(slot: &'a [u8], geo: &Geometry, inode: &Inode) -> &'a [u8] {
    let area = inode.xattr_area(geo);
    crate::bytes::part(slot, area.start, area.end)
}

/// As [`tail`], to be changed.
pub fn tail_mut<'a>(slot: &'a mut [u8], geo: &Geometry, inode: &Inode) -> &'a mut [u8] {
    let area = inode.xattr_area(geo);
    crate::bytes::part_mut(slot, area.start, area.end)
}

/// Returns the bytes of [`Inode::i_block`] in a slot, to be changed; fewer if the slot is shorter.
pub fn i_block_mut(slot: &mut [u8]) -> &mut [u8] {
    crate::bytes::part_mut(slot, I_BLOCK_OFFSET, I_BLOCK_OFFSET + I_BLOCK_SIZE)
}

/// Returns the length of [`tail`] in bytes.
pub fn tail_len(geo: &Geometry, inode: &Inode) -> usize {
    inode.xattr_area(geo).len()
}

/// Returns the extra size of new inodes: the superblock's `want_extra_isize`, or the size of all
/// known fields.
fn new_extra_isize(geo: &Geometry) -> u16 {
    let room = geo.inode_size.saturating_sub(GOOD_OLD_SIZE as u16);
    let known = const { (size_of::<RawInode>() - GOOD_OLD_SIZE) as u16 };
    let wanted = geo.want_extra_isize;
    let usable = wanted > 0 && wanted.is_multiple_of(4) && wanted <= room;
    if usable { wanted } else { known.min(room) }
}

fn sized_slot<'a>(slot: &'a [u8], geo: &Geometry, ino: InodeNr) -> Result<&'a [u8]> {
    slot.get(..geo.inode_size.into()).ok_or_else(|| {
        let error = Corrupt::new(STRUCTURE).field("slot size").at_inode(ino);
        error.found(slot.len() as u64).expected(geo.inode_size)
    })
}

fn checked_extra_isize(raw: &RawInode, geo: &Geometry) -> Result<u16> {
    let room = usize::from(geo.inode_size).saturating_sub(GOOD_OLD_SIZE);
    if room == 0 {
        return Ok(0);
    }
    let extra = raw.extra_isize.get();
    if usize::from(extra) > room || !extra.is_multiple_of(4) {
        return Err(Corrupt::new(STRUCTURE).field("extra size").found(extra).expected(room as u64));
    }
    Ok(extra)
}

fn has_high_size(mode: u16, geo: &Geometry) -> bool {
    FileType::from_mode(mode) == FileType::Regular || geo.incompat(Incompat::LARGEDIR)
}

fn decode_blocks(raw: &RawInode, flags: InodeFlags, geo: &Geometry) -> u64 {
    let low = u64::from(raw.blocks_lo.get());
    if !geo.ro_compat(RoCompat::HUGE_FILE) {
        return low;
    }
    let count = u64::from(raw.blocks_high.get()) << 32 | low;
    let unit = if flags.contains(InodeFlags::HUGE_FILE) { geo.sectors_per_block() } else { 1 };
    count.saturating_mul(unit.into())
}

/// Stores the block count in the smallest encoding and returns the inode's flags with those of the
/// encoding.
fn encode_blocks(raw: &mut RawInode, inode: &Inode, geo: &Geometry) -> Result<InodeFlags> {
    const LIMIT: u64 = 1 << 48;
    let flags = inode.flags.difference(InodeFlags::HUGE_FILE);
    let sectors = inode.blocks;
    let error = || Corrupt::new(STRUCTURE).field("block count").found(sectors);
    if !geo.ro_compat(RoCompat::HUGE_FILE) {
        raw.blocks_lo.set(u32::try_from(sectors).map_err(|_| error())?);
        return Ok(flags);
    }
    let huge = sectors >= LIMIT;
    let unit = if huge { u64::from(geo.sectors_per_block()) } else { 1 };
    let count = sectors.checked_div(unit).ok_or_else(error)?;
    if count >= LIMIT || !sectors.is_multiple_of(unit) {
        return Err(error());
    }
    raw.blocks_lo.set(count as u32);
    raw.blocks_high.set((count >> 32) as u16);
    Ok(if huge { flags | InodeFlags::HUGE_FILE } else { flags })
}
