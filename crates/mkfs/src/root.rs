//! The content of a file system without content: an empty root.

use super::directory;
use super::error::Result;
use super::files::SECTOR;
use super::map;
use super::options::Options;
use super::population::Population;
use extant_blocks::BlockDevice;
use extant_format::quota::QuotaKind;
use extant_format::{FileType, Geometry, Incompat, Inode, InodeFlags, InodeNr, Timestamp};
use std::ops::Range;

/// An empty root.
pub(super) struct EmptyRoot {
    geo: Geometry,
    block: u64,
    inode: Inode,
}

impl EmptyRoot {
    /// Makes a root at this block.
    pub(super) fn new(
        geo: &Geometry,
        options: &Options,
        time: Timestamp,
        block: u64,
    ) -> Result<EmptyRoot> {
        let mode = FileType::Directory.to_mode() | options.root_mode;
        let mut inode = Inode::new(geo, mode, time);
        (inode.uid, inode.gid) = options.root_owner;
        inode.links = 3;
        inode.size = geo.block_size.into();
        inode.blocks = u64::from(geo.sectors_per_block()) << geo.cluster_bits;
        if geo.incompat(Incompat::EXTENTS) {
            inode.flags |= InodeFlags::EXTENTS;
        }
        // One block is mapped by the inode itself.
        let mut no_node = || Ok(0);
        inode.i_block = map::build_map(geo, 0, &[(0, block..block + 1)], &mut no_node)?.i_block;
        Ok(EmptyRoot { geo: *geo, block, inode })
    }
}

impl Population for EmptyRoot {
    fn inodes(&self) -> u32 {
        0
    }

    fn directories(&self, _inodes: Range<u32>) -> u32 {
        0
    }

    fn usage(&self, kind: QuotaKind, id: u32) -> (u64, u64) {
        let owner = [self.inode.uid, self.inode.gid, self.inode.projid][kind.index()];
        if owner == id { (1, self.inode.blocks * SECTOR) } else { (0, 0) }
    }

    fn encode(&self, ino: InodeNr, slot: &mut [u8]) -> Result<()> {
        Ok(self.inode.encode(slot, &self.geo, ino)?)
    }

    fn write(&self, device: &dyn BlockDevice) -> Result<u64> {
        let (own, lost_found) = (InodeNr::ROOT, InodeNr(self.geo.first_ino));
        let entries = [(own, &b"."[..]), (own, b".."), (lost_found, b"lost+found")];
        let block = directory::block(&self.geo, self.inode.seed(&self.geo, own), &entries);
        device.write_all_at(&block, self.block * u64::from(self.geo.block_size))?;
        Ok(block.len() as u64)
    }
}
