//! Inodes: slots of the inode table.

use super::{Image, wrap};
use crate::error::{Error, Result};
use crate::layout::numbers::Position;
use crate::layout::placement::Blocks;
use crate::tree::{Body, read_file};
use extant_format::inline;
use extant_format::inode::LINK_MAX;
use extant_format::xattr::{Entry, NameIndex, encode_inode_area, value_crc};
use extant_format::{FileType, Incompat, Inode, InodeFlags, InodeNr, Timestamp};
use extant_mkfs::{FileMap, MappedRun, build_map};

/// Permissions of inodes that hold values of attributes.
const VALUE_MODE: u16 = 0o600;

impl Image<'_> {
    /// Returns the inode of a node, and the attributes of its slot.
    pub(super) fn inode(&self, position: Position) -> Result<(Inode, Vec<Entry>)> {
        let node = self.shapes.numbers.node(position);
        let body = self.tree.node(node);
        let mode = body.file_type().to_mode() | body.mode;
        let mut inode = Inode::new(&self.geo, mode, self.time);
        let [atime, ctime, mtime] = self.tree.times(node);
        inode.atime = inode.storable_time(atime);
        inode.ctime = inode.storable_time(ctime);
        inode.mtime = inode.storable_time(mtime);
        (inode.uid, inode.gid) = (body.uid, body.gid);
        inode.links = body.links.min(LINK_MAX.into()) as u16;
        inode.file_acl = self.placement.xattr_block(position);
        let mut xattrs = self.shapes.xattrs.in_inode(&self.view(), body.xattrs);
        self.fill(position, &mut inode, &mut xattrs)?;
        let metadata = u64::from(inode.file_acl != 0) << self.geo.cluster_bits;
        let values = self.shapes.xattrs.set(body.xattrs).value_blocks;
        inode.blocks += (metadata + values) * u64::from(self.geo.sectors_per_block());
        Ok((inode, xattrs))
    }

    /// Fills in the fields that depend on the kind.
    fn fill(&self, position: Position, inode: &mut Inode, xattrs: &mut Vec<Entry>) -> Result<()> {
        let node = self.shapes.numbers.node(position);
        match self.tree.node(node).body {
            Body::Directory { .. } => self.fill_directory(position, inode, xattrs)?,
            Body::File { size, .. } => {
                inode.size = size;
                if self.shapes.is_inline(position) {
                    let content = read_file(self.tree, node)?;
                    let (i_block, rest) = inline::split(&content);
                    set_inline(inode, i_block, rest, xattrs);
                } else {
                    self.map(position, inode)?;
                }
            }
            Body::Symlink { len, .. } => {
                inode.size = len.into();
                if !inode.set_fast_symlink(self.tree.target(node)) {
                    self.map(position, inode)?;
                }
            }
            Body::CharDevice(major, minor) | Body::BlockDevice(major, minor) => {
                inode.set_rdev((major, minor));
            }
            Body::Fifo | Body::Socket => {}
        }
        Ok(())
    }

    fn fill_directory(
        &self,
        position: Position,
        inode: &mut Inode,
        xattrs: &mut Vec<Entry>,
    ) -> Result<()> {
        let directory = self.shapes.directory(position, self.first);
        let names = directory.names.iter();
        let below = names.filter(|name| name.file_type == FileType::Directory).count();
        let links = below + 2;
        inode.links = if links > LINK_MAX.into() { 1 } else { links as u16 };
        if self.shapes.is_inline(position) {
            let rest = directory.inline_rest(usize::MAX).unwrap_or_default();
            let (i_block, value) = directory.inline(&self.geo, rest);
            set_inline(inode, i_block, &value, xattrs);
            inode.size = (inline::INLINE_FIRST + rest) as u64;
            return Ok(());
        }
        let blocks: u64 = self.shapes.blocks(position).iter().map(|run| run.end - run.start).sum();
        inode.size = blocks * u64::from(self.geo.block_size);
        if self.shapes.is_indexed(position) {
            inode.flags |= InodeFlags::INDEX;
        }
        self.map(position, inode)
    }

    /// Returns the map of a node and its blocks.
    pub(super) fn map_of(&self, position: Position) -> Result<(FileMap, Vec<MappedRun>)> {
        let Blocks { runs, free, mut nodes } = self.placement.blocks(self.shapes, position);
        let seed = self.geo.inode_seed(self.shapes.numbers.inode_of(position, self.first), 0);
        let map = build_map(&self.geo, seed, &runs, &mut || Ok(free.take_one(&mut nodes)));
        let failed = |e| Error::entry(&self.path(position), e);
        Ok((map.map_err(failed)?, runs))
    }

    fn map(&self, position: Position, inode: &mut Inode) -> Result<()> {
        let (map, runs) = self.map_of(position)?;
        self.set_map(inode, &map, &runs);
        Ok(())
    }

    fn set_map(&self, inode: &mut Inode, map: &FileMap, runs: &[MappedRun]) {
        if self.geo.incompat(Incompat::EXTENTS) {
            inode.flags |= InodeFlags::EXTENTS;
        }
        inode.i_block = map.i_block;
        let ratio = u64::from(self.geo.cluster_ratio());
        let clusters: u64 = runs.iter().map(|(_, run)| (run.end - run.start).div_ceil(ratio)).sum();
        let clusters = clusters + map.nodes.len() as u64;
        inode.blocks = clusters * ratio * u64::from(self.geo.sectors_per_block());
    }

    /// Returns the inode of a value, its map, and its blocks.
    pub(super) fn value(&self, number: usize) -> Result<(Inode, FileMap, Vec<MappedRun>)> {
        let value = &self.shapes.xattrs.values[number];
        let bytes = self.shapes.xattrs.value(self.tree, value);
        let blocks = bytes.len().div_ceil(self.geo.block_size as usize) as u64;
        let (runs, mut cursor) = self.placement.value_blocks(number, blocks);
        let seed = self.geo.inode_seed(self.value_inode(number), 0);
        let map = build_map(&self.geo, seed, &runs, &mut || {
            Ok(self.placement.free.take_one(&mut cursor))
        })
        .map_err(|e| Error::entry(b"", e))?;
        let mode = FileType::Regular.to_mode() | VALUE_MODE;
        let mut inode = Inode::new(&self.geo, mode, Timestamp::default());
        inode.links = 1;
        inode.size = bytes.len() as u64;
        inode.flags |= InodeFlags::EA_INODE;
        self.set_map(&mut inode, &map, &runs);
        inode.set_ea_hash(value_crc(self.geo.csum_seed, bytes));
        inode.set_ea_refcount(value.references);
        Ok((inode, map, runs))
    }

    pub(super) fn value_inode(&self, number: usize) -> InodeNr {
        InodeNr(
            self.first.0 + self.shapes.numbers.len() - self.shapes.numbers.fixed() + number as u32,
        )
    }

    /// Writes the inode at a position, or after the last one that of a value.
    pub(super) fn encode_at(
        &self,
        position: Position,
        ino: InodeNr,
        slot: &mut [u8],
    ) -> extant_mkfs::Result<()> {
        let value = position.checked_sub(self.shapes.numbers.len());
        let (inode, xattrs) = match value {
            Some(number) => (self.value(number as usize).map_err(wrap)?.0, Vec::new()),
            None => self.inode(position).map_err(wrap)?,
        };
        let area = inode.xattr_area(&self.geo);
        if let Some(area) = slot.get_mut(area) {
            let fits = encode_inode_area(&xattrs, area);
            debug_assert!(fits, "attributes were placed by the room of the area");
        }
        Ok(inode.encode(slot, &self.geo, ino)?)
    }
}

/// Makes the inode one with inline data.
fn set_inline(inode: &mut Inode, i_block: [u8; 60], rest: &[u8], xattrs: &mut Vec<Entry>) {
    inode.flags |= InodeFlags::INLINE_DATA;
    inode.i_block = i_block;
    // First, where the kernel has it, too.
    xattrs.insert(0, Entry::new(NameIndex::SYSTEM, NameIndex::INLINE_DATA_NAME, rest));
}
