//! Open files.

use super::{Anchor, Node, Operations};
use crate::error::{Errno, Error, Result};
use crate::file::{self, Extent, Falloc, Note};
use crate::inode::ErrorCursor;
use crate::vfs::Follow;
use crate::volume::SpaceRights;
use extant_format::inode::InodeFlags;
use extant_format::types::FileType;
use extant_sync::{Level, Mutex};
use std::sync::Arc;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenFlags {
    /// Content may be changed.
    pub write: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// Pages are bypassed: for callers with a cache of their own, such as a FUSE kernel.
    pub direct: bool,
    /// The size becomes 0, as with `open(2)` also of a file that is opened to be read only.
    pub truncate: bool,
}

/// An open regular file; keeps the inode alive without links. Closed when dropped.
#[derive(Debug)]
pub struct File {
    ops: Arc<Anchor>,
    node: Node,
    flags: OpenFlags,
    /// Rights of the program that has it open.
    rights: SpaceRights,
    /// Writeback errors seen so far.
    errors: Mutex<ErrorCursor>,
}

/// Extents that are found under one lock of the file.
const EXTENTS: usize = 256;

/// ENOKEY for content that is encrypted.
pub(super) fn check_key(node: &Node) -> Result<()> {
    if node.0.stat().flags.contains(InodeFlags::ENCRYPT) {
        Err(Errno::NoKey.into())
    } else {
        Ok(())
    }
}

impl Operations {
    /// Opens the regular file at a path.
    pub fn open(
        self: &Arc<Self>,
        path: impl AsRef<[u8]>,
        follow: Follow,
        flags: OpenFlags,
    ) -> Result<File> {
        self.open_node(self.resolve(path, follow)?, flags)
    }

    /// Opens a regular file.
    pub fn open_file(self: &Arc<Self>, node: &Node, flags: OpenFlags) -> Result<File> {
        self.open_node(node.clone(), flags)
    }

    fn open_node(self: &Arc<Self>, node: Node, flags: OpenFlags) -> Result<File> {
        self.own(&node)?;
        match node.0.ftype {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::IsDir.into()),
            _ => return Err(Errno::Nxio.into()),
        }
        check_key(&node)?;
        if flags.write || flags.truncate {
            self.check_open(&node, flags)?;
        }
        node.hold(1)?;
        if flags.write {
            file::open_writer(&node.0);
        }
        let errors = Mutex::new(Level::Leaf, node.0.pages.error_seq());
        let rights = SpaceRights::default();
        let file = File { ops: self.anchor(), node, flags, rights, errors };
        if flags.truncate {
            file.resize(0)?;
        }
        Ok(file)
    }

    /// Whether `node` may be opened for writing: EPERM where its flags forbid that.
    pub fn check_open(&self, node: &Node, flags: OpenFlags) -> Result<()> {
        self.own(node)?;
        self.st().writable()?;
        check_key(node)?;
        let own = node.0.flags();
        let denied = own.intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY)
            || own.contains(InodeFlags::APPEND) && (!flags.append || flags.truncate);
        if denied { Err(Errno::Perm.into()) } else { Ok(()) }
    }

    /// Reads past the page cache, for callers with a cache of their own. Fewer bytes than asked for
    /// at the end of the file.
    pub fn read_direct(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.own(node)?;
        check_key(node)?;
        self.record_corruption(file::read_direct(self.st(), &node.0, offset, buf))
    }

    /// The measure of a file that has a hash tree (fs-verity), and the number of the algorithm as
    /// FS_IOC_MEASURE_VERITY has it.
    ///
    /// # Errors
    /// ENODATA for other files; `Corrupt`, `Io`.
    pub fn measure_verity(&self, node: &Node) -> Result<(u8, Vec<u8>)> {
        self.own(node)?;
        if !file::is_verified(&node.0) {
            return Err(Errno::NoData.into());
        }
        let _lock = node.0.read_lock()?;
        self.record_corruption(file::measure(self.st(), &node.0))
    }

    /// Whether content may be written now through an open file: EPERM if the inode became immutable
    /// meanwhile.
    pub fn check_write(&self, node: &Node) -> Result<()> {
        self.own(node)?;
        self.st().writable()?;
        if node.0.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY) {
            Err(Errno::Perm.into())
        } else {
            Ok(())
        }
    }

    /// Whether the file is append-only: content that it has must not change.
    pub fn only_grows(&self, node: &Node) -> bool {
        node.0.flags().contains(InodeFlags::APPEND)
    }

    /// Makes content and attributes of one inode durable; with `datasync` only the attributes that
    /// are needed to read the content.
    pub fn sync_node(&self, node: &Node, datasync: bool) -> Result<()> {
        self.own(node)?;
        self.may_sync()?;
        file::fsync(self.st(), &node.0, datasync)
    }

    /// Returns a cursor for a descriptor that a client opens now: see [`Operations::check_errors`].
    pub fn error_cursor(&self, node: &Node) -> u32 {
        node.0.pages.error_seq()
    }

    /// Returns the error of a writeback of the file since `cursor`, once: moves the cursor behind
    /// it.
    ///
    /// # Errors
    /// That error; EXDEV for a node of another file system.
    pub fn check_errors(&self, node: &Node, cursor: &mut u32) -> Result<()> {
        self.own(node)?;
        node.0.pages.check_error(cursor)
    }

    /// SEEK_DATA or SEEK_HOLE.
    pub fn seek(&self, node: &Node, offset: u64, data: bool) -> Result<u64> {
        self.own(node)?;
        let _lock = node.0.read_lock()?;
        file::seek(self.st(), &node.0, offset, data)
    }

    /// Returns the offset on the device of `len` contiguous bytes of the file from `offset` on,
    /// written or preallocated; `None` if they are not contiguous. Content that waits since
    /// [`Operations::write_kept`] gets its place first. The result is valid until the file is
    /// changed. Files with logged content have no such place: a checkpoint may write an older copy
    /// there at any time.
    pub fn place_of(&self, node: &Node, offset: u64, len: u64) -> Result<Option<u64>> {
        self.own(node)?;
        file::write_waiting(self.st(), &node.0)?;
        let _lock = node.0.read_lock()?;
        if node.0.logs_data(self.st()) {
            return Ok(None);
        }
        let mut found = None;
        file::fiemap(self.st(), &node.0, offset, len, &mut |extent| {
            let within = offset
                .checked_sub(extent.logical)
                .filter(|at| at.saturating_add(len) <= extent.len);
            let placed = !extent.flags.delayed && !extent.flags.inline;
            found = within.filter(|_| placed).map(|at| extent.physical + at);
            false
        })?;
        Ok(found)
    }

    /// Tells that a client with write access has closed the file: its preallocations may be
    /// returned.
    pub fn close_hint(&self, node: &Node) {
        file::close_writer(&node.0);
    }

    /// Tells that a client opens the file for writing: space may be preallocated for its growth
    /// until the matching call of [`Operations::close_hint`].
    pub fn open_hint(&self, node: &Node) {
        file::open_writer(&node.0);
    }
}

impl File {
    /// The inode.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Sets the rights to space of the program that has the file open; none at first.
    pub fn set_rights(&mut self, rights: SpaceRights) {
        self.rights = rights;
    }

    /// Reads at `offset`; fewer bytes than asked for at the end of the file.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = &self.node.0;
        let st = self.ops.st();
        if self.flags.direct {
            return self.ops.read_direct(&self.node, offset, buf);
        }
        self.ops.alive()?;
        let _lock = inode.read_lock()?;
        self.ops.record_corruption(file::read(st, inode, offset, buf))
    }

    /// Writes all of `data` at `offset` (at the end for files opened to append).
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        self.check_mode()?;
        self.ops.check_write(&self.node)?;
        if self.flags.direct {
            // Before the inode is locked: others may read it while the file system is frozen.
            self.ops.st().mounted.wait_for_thaw();
        }
        self.ops.with_space(|| self.write_once(offset, data))
    }

    fn write_once(&self, offset: u64, data: &[u8]) -> Result<usize> {
        let inode = &self.node.0;
        let st = &self.ops.st().on_behalf(self.rights);
        if self.flags.direct && !self.flags.append {
            return file::write_direct(st, inode, offset, data, Note::TIMES);
        }
        let _lock = self.ops.lock_content(inode)?;
        let offset = if self.flags.append { file::size(inode) } else { offset };
        file::write(st, inode, offset, data, Note { strip: true, times: true })
    }

    /// Cuts the file or lets it grow (with a hole).
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.check_mode()?;
        self.resize(size)
    }

    fn resize(&self, size: u64) -> Result<()> {
        let set = super::SetAttr { size: Some(size), ..Default::default() };
        self.ops.change_attr(&self.node, &set, |_| ())
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        file::size(&self.node.0)
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// fallocate(2).
    pub fn allocate(&self, how: Falloc, offset: u64, len: u64) -> Result<()> {
        self.check_mode()?;
        self.ops.with_rights(self.rights).allocate(&self.node, how, offset, len)
    }

    /// The next byte with data at or behind `offset` (SEEK_DATA). ENXIO if there is none.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.ops.seek(&self.node, offset, true)
    }

    /// The next hole at or behind `offset` (SEEK_HOLE); the end of the file counts as one.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.ops.seek(&self.node, offset, false)
    }

    /// Extents of a byte range, in order, until `each` returns false. The file is not locked while
    /// `each` runs, which may call any operation.
    pub fn extents(
        &self,
        start: u64,
        len: u64,
        mut each: impl FnMut(&Extent) -> bool,
    ) -> Result<()> {
        let end = start.saturating_add(len);
        let mut at = start;
        loop {
            self.ops.alive()?;
            // Copied under the lock and handed out without it.
            let mut batch = Vec::new();
            {
                let _lock = self.node.0.read_lock()?;
                file::fiemap(
                    self.ops.st(),
                    &self.node.0,
                    at,
                    end.saturating_sub(at),
                    &mut |extent| {
                        batch.push(*extent);
                        batch.len() < EXTENTS
                    },
                )?;
            }
            if !batch.iter().all(&mut each) || batch.len() < EXTENTS {
                return Ok(());
            }
            at = batch.last().map_or(end, |last| last.logical.saturating_add(last.len));
        }
    }

    /// Verifies that no block of the device stands in two places of the file. Else a small image
    /// may hold more data than the device has blocks: before all of a file of unknown origin is
    /// copied, this is worth a look at its map.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, EINTR.
    pub fn check_map(&self) -> Result<()> {
        self.ops.alive()?;
        let _lock = self.node.0.read_lock()?;
        file::check_map(self.ops.st(), &self.node.0)
    }

    /// Content and attributes are durable when this returns. A failed writeback is told once to
    /// each open file.
    pub fn sync(&self) -> Result<()> {
        self.sync_as(false)
    }

    /// As [`File::sync`], without attributes that are not needed to read the content (times).
    pub fn sync_data(&self) -> Result<()> {
        self.sync_as(true)
    }

    fn sync_as(&self, datasync: bool) -> Result<()> {
        self.ops.alive()?;
        let synced = file::fsync(self.ops.st(), &self.node.0, datasync);
        let earlier = self.take_error();
        synced.and(earlier)
    }

    /// The writeback error that this open file was not told of yet.
    pub fn take_error(&self) -> Result<()> {
        self.node.0.pages.check_error(&mut self.errors.lock())
    }

    fn check_mode(&self) -> Result<()> {
        if self.flags.write { Ok(()) } else { Err(Error::Posix(Errno::BadF)) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.flags.write {
            file::close_writer(&self.node.0);
        }
        self.ops.release(&self.node, 1);
    }
}
