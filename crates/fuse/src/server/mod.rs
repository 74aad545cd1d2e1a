//! The server of an Extant file system: runs requests as operations of the engine.
//!
//! This module has the state of a server and its end; the modules below have the operations. Open
//! files have no state here, but for errors that they were told of (`descriptors`): an inode lives
//! as long as it has links or lookups, and the kernel keeps lookups of open files. Each entry in a
//! reply counts one lookup.

mod attr;
mod convert;
mod create;
pub mod credentials;
mod descriptors;
mod grow;
pub mod handover;
mod io;
mod ioctl;
mod list;
mod lookup;
mod unseen;
mod xattr;

use crate::control::Pages;
use crate::guard::caught;
use crate::handler::{
    Answer, Change, CopyRequest, CreateMode, Credentials, Data, Entry, FallocRequest, Handler,
    Listed, SetXattrRequest, Tell, Wants, WriteRequest,
};
use crate::interrupts::Interrupts;
use crate::kernel_cache::notices::Notices;
use crate::kernel_cache::writers::Writers;
use crate::opens;
use crate::options::{MountOptions, View};
use crate::stats::ServerFacts;
use crate::types::{ErrorCode, FileAttr, NodeId, WriteFlags};
use attr::{SET_GROUP, keeps_group};
use convert::{disk_ino, errno, file_attr, protocol_ino};
use create::whiteout_owner;
use credentials::{Capability, is_capable, told_or_looked_up};
use descriptors::Descriptors;
use extant_engine::{
    AccessTimes, Attr, Caller, Errno, Error, Falloc, Fs, Node, NodeKind, OpenFlags as Open,
    Operations, RenameFlags as Rename, SpaceRights, Timestamp, Usage, XattrMode,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Largest copy of one request, in bytes.
const COPY: u64 = 1 << 20;

/// O_ACCMODE, O_EXCL, O_TRUNC, O_APPEND, O_NOATIME on Linux.
const ACCESS_MODE: i32 = 3;
const EXCLUSIVE: i32 = 0o200;
const TRUNCATE: i32 = 0o1000;
const APPEND: i32 = 0o2000;
const NO_ACCESS_TIME: i32 = 0o1_000_000;

/// A served file system.
#[derive(Debug)]
pub struct Server {
    fs: Mutex<Option<Fs>>,
    ops: Arc<Operations>,
    writers: Writers,
    descriptors: Descriptors,
    notices: Arc<Notices>,
    ttl: Duration,
    block_size: u32,
    writeback: bool,
    acl: bool,
    id_maps: bool,
    view: View,
    access_times: Option<AccessTimes>,
    directory_access_times: bool,
    done: Sender<Result<(), Error>>,
    stats: Pages,
    interrupts: Arc<Interrupts>,
    /// Options of the mount, for the counters.
    options: String,
    /// The serving process.
    about: ServerFacts,
    /// User id of the mounter.
    owner: u32,
    /// The image was opened for reading only.
    read_only: bool,
    /// The mount has become read-only since ([`control::READ_ONLY`](crate::control::READ_ONLY)).
    remounted_read_only: AtomicBool,
    /// The kernel opens files without a request.
    fast_opens: bool,
    /// Begins a handover.
    upgrade: Arc<OnceLock<UpgradeHook>>,
}

/// Begins a handover to a process, and does not wait for its end. Returns the number of a
/// descriptor.
pub struct UpgradeHook(pub Box<dyn Fn(u32) -> std::io::Result<u64> + Send + Sync>);

impl std::fmt::Debug for UpgradeHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("UpgradeHook").finish()
    }
}

impl Server {
    /// Creates a server. The receiver gets the result of the final unmount.
    pub fn new(
        fs: Fs,
        options: &MountOptions,
    ) -> std::io::Result<(Server, Receiver<Result<(), Error>>)> {
        let (done, outcome) = channel();
        let read_only = fs.is_read_only();
        let fast_opens = match opens::are_fast(&fs, options.fast_opens) {
            Ok(fast) => fast,
            Err(refused) => {
                // The refusal is the failure to tell; nothing was changed.
                drop(fs);
                return Err(refused);
            }
        };
        let server = Server {
            ops: fs.operations().clone(),
            block_size: fs.superblock().block_size(),
            writeback: options.writeback_cache && !read_only,
            // The kernel caches one spelling of a name. Without caching, no entry outlives the
            // removal of the name by another spelling.
            ttl: if fs.has_spellings() { Duration::ZERO } else { options.time_to_live },
            fs: Mutex::new(Some(fs)),
            writers: Writers::default(),
            descriptors: Descriptors::default(),
            notices: Notices::start()?,
            acl: options.acl && options.view == View::default(),
            id_maps: options.id_maps,
            view: options.view,
            access_times: options.access_times,
            directory_access_times: options.directory_access_times,
            done,
            stats: Pages::default(),
            interrupts: Arc::default(),
            options: options.shown_options.clone(),
            about: ServerFacts {
                begin: Instant::now(),
                fast_opens,
                rings: AtomicBool::new(false),
                containment: options.containment.clone(),
            },
            owner: options.owner.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            read_only,
            remounted_read_only: AtomicBool::new(false),
            fast_opens,
            upgrade: Arc::default(),
        };
        Ok((server, outcome))
    }

    /// Runs a handler. A panic becomes `EIO` and stops all changes of the file system, so that no
    /// unfinished change becomes durable.
    fn guarded<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Answer<T> {
        caught(work).map_or_else(
            || {
                self.ops.stop_changes("a request's handler panicked");
                Err(ErrorCode::EIO)
            },
            |done| done.map_err(|e| errno(&e)),
        )
    }
}

fn writes(flags: i32) -> bool {
    flags & ACCESS_MODE != 0
}

impl Handler for Server {
    fn wants(&self) -> Wants {
        Wants { writeback: self.writeback, acl: self.acl, id_maps: self.id_maps }
    }

    fn acts_as_root(&self) -> bool {
        self.view.as_root
    }

    fn time_to_live(&self) -> Duration {
        self.ttl
    }

    fn connect(&self, tell: Tell) {
        self.notices.connect(tell);
    }

    fn note_transport(&self, rings: bool) {
        // Relaxed: a fact for the counters.
        self.about.rings.store(rings, Ordering::Relaxed);
    }

    fn end(&self) {
        self.notices.stop();
        let fs = self.fs.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(fs) = fs {
            let closed = fs.unmount();
            if let Err(e) = &closed {
                tracing::error!("unmounting failed: {e}");
            }
            // The receiver is gone if `Mounted` was dropped.
            let _ = self.done.send(closed);
        }
    }

    fn interrupts(&self) -> Option<&Arc<Interrupts>> {
        Some(&self.interrupts)
    }

    fn lookup(&self, parent: NodeId, name: &[u8]) -> Answer<Option<Entry>> {
        self.guarded(|| self.find(parent, name))
    }

    fn forget(&self, ino: NodeId, lookups: u64) {
        if self.writers.forgotten(ino) {
            self.notices.forgotten(ino);
        }
        let forgotten = self.guarded(|| {
            self.end_writer(ino);
            self.ops.forget(disk_ino(ino), lookups)
        });
        if forgotten.is_err() {
            // FORGET of an entry whose inode could not be loaded, or of a lost inode.
            tracing::warn!(ino = ino.0, "the kernel forgot an inode that is not known");
        }
    }

    fn attr(&self, ino: NodeId, open: bool) -> Answer<FileAttr> {
        self.guarded(|| {
            let attr = self.node(ino)?.attr();
            // The kernel requests attributes of an open file before it accepts a write.
            if open && self.writeback {
                self.check_room(ino)?;
                if attr.flags & ioctl::IMMUTABLE != 0 {
                    return Err(Errno::Perm.into());
                }
            }
            Ok(self.file_attr(&attr))
        })
    }

    fn attr_and_birth(&self, ino: NodeId) -> Answer<(FileAttr, Option<Timestamp>)> {
        self.guarded(|| {
            let attr = self.node(ino)?.attr();
            Ok((self.file_attr(&attr), attr.crtime))
        })
    }

    fn set_attr(
        &self,
        credentials: Credentials,
        ino: NodeId,
        change: Change,
    ) -> Answer<(FileAttr, Duration)> {
        self.guarded(|| self.change(told_or_looked_up(credentials), ino, change))
    }

    fn read_link(&self, ino: NodeId) -> Answer<Vec<u8>> {
        self.guarded(|| {
            let node = self.node(ino)?;
            self.note_access(ino, &node);
            self.ops.read_link(&node)
        })
    }

    fn make(
        &self,
        credentials: Credentials,
        at: (NodeId, &[u8]),
        mode: CreateMode,
        what: NodeKind<'_>,
    ) -> Answer<Entry> {
        self.guarded(|| self.make_node(told_or_looked_up(credentials), at, mode, what))
    }

    fn create(
        &self,
        credentials: Credentials,
        at: (NodeId, &[u8]),
        mode: CreateMode,
        flags: i32,
    ) -> Answer<Entry> {
        self.guarded(|| {
            let credentials = told_or_looked_up(credentials);
            let (node, made) = self.create_or_open(credentials, at, mode, flags)?;
            self.note_open(made.attr.ino, &node, flags);
            Ok(made)
        })
    }

    fn create_nameless(
        &self,
        credentials: Credentials,
        dir: NodeId,
        mode: CreateMode,
        flags: i32,
    ) -> Answer<Entry> {
        self.guarded(|| self.make_nameless(told_or_looked_up(credentials), dir, mode, flags))
    }

    fn unlink(&self, parent: NodeId, name: &[u8]) -> Answer<()> {
        self.guarded(|| self.ops.unlink(&self.node(parent)?, name))
    }

    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Answer<()> {
        self.guarded(|| self.ops.rmdir(&self.node(parent)?, name))
    }

    fn rename(
        &self,
        credentials: Credentials,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
    ) -> Answer<()> {
        self.guarded(|| {
            let flags = Rename::from_bits(flags).ok_or(Errno::Inval)?;
            let (from, to) = ((&self.node(from.0)?, from.1), (&self.node(to.0)?, to.1));
            if flags.contains(Rename::WHITEOUT) {
                self.ops.rename_as(&whiteout_owner(credentials), from, to, flags)
            } else {
                self.ops.rename((from.0, from.1), (to.0, to.1), flags)
            }
        })
    }

    fn link(&self, ino: NodeId, parent: NodeId, name: &[u8]) -> Answer<Entry> {
        self.guarded(|| {
            let node = self.node(ino)?;
            self.ops.link(&node, &self.node(parent)?, name)?;
            self.entry(&node)
        })
    }

    fn needs_no_opens(&self) -> bool {
        self.fast_opens
    }

    fn open(&self, ino: NodeId, flags: i32) -> Answer<()> {
        self.guarded(|| {
            let node = self.node(ino)?;
            self.check_open(&node, flags)?;
            self.note_open(ino, &node, flags);
            // An open to read and write is no access yet.
            if !writes(flags) && flags & NO_ACCESS_TIME == 0 && self.note_access(ino, &node) {
                // The file is open, so the kernel cannot evict its inode, and the notice does not
                // wait.
                self.notices.settle(ino);
            }
            Ok(())
        })
    }

    fn is_append_only(&self, ino: NodeId) -> bool {
        self.node(ino).is_ok_and(|node| self.ops.only_grows(&node))
    }

    fn descriptor(&self, ino: NodeId) -> u64 {
        if self.misses_opens() {
            return 0;
        }
        self.node(ino).map_or(0, |node| self.descriptors.open(self.ops.error_cursor(&node)))
    }

    fn release(&self, ino: NodeId, descriptor: u64, flags: i32) -> Answer<()> {
        self.guarded(|| {
            self.descriptors.close(ino, descriptor);
            self.note_close(ino, flags)?;
            if self.writers.is_wrong(ino) {
                self.notices.forget(ino);
            }
            Ok(())
        })
    }

    fn note_read(&self, ino: NodeId) {
        // The read fails, too, if the inode cannot be had.
        let _ = self.guarded(|| self.note_unseen_access(ino));
    }

    fn read(&self, ino: NodeId, offset: u64, buf: &mut [u8]) -> Answer<Data> {
        self.guarded(|| self.ops.read_direct(&self.node(ino)?, offset, buf).map(Data::Filled))
    }

    fn write(
        &self,
        credentials: Credentials,
        ino: NodeId,
        write: WriteRequest<'_>,
    ) -> Answer<usize> {
        self.guarded(|| {
            let written = self.write_to(told_or_looked_up(credentials), ino, &write);
            if let (Err(e), true) = (&written, write.flags.contains(WriteFlags::CACHE)) {
                self.stop_writers(ino, e);
            }
            written
        })
    }

    fn fsync(&self, ino: NodeId, descriptor: u64, datasync: bool) -> Answer<()> {
        self.guarded(|| {
            let node = self.node(ino)?;
            let synced = self.ops.sync_node(&node, datasync);
            // Also after an error of this writeback, which counts as told then.
            let told = self.untold_error(ino, &node, descriptor);
            synced.and(told)?;
            // Writeback may have given the file blocks for its map.
            if self.writers.any(ino) && self.writers.blocks_changed(ino, node.attr().blocks) {
                self.notices.blocks(ino);
            }
            self.notices.settle(ino);
            Ok(())
        })
    }

    fn sync(&self) -> Answer<()> {
        self.guarded(|| self.ops.sync())
    }

    fn place(&self, ino: NodeId, block: u64, block_size: u32) -> Answer<u64> {
        self.guarded(|| {
            // Kernels before 6.17 use the block size of the mount for BMAP.
            if block_size == 0 || block_size != self.block_size {
                return Ok(0);
            }
            let size = u64::from(block_size);
            let offset = block.checked_mul(size).ok_or(Errno::FBig)?;
            let place = self.ops.place_of(&self.node(ino)?, offset, size)?;
            Ok(place.map_or(0, |at| at / size))
        })
    }

    fn list(&self, ino: NodeId, from: u64, each: &mut dyn FnMut(Listed<'_>) -> bool) -> Answer<()> {
        self.guarded(|| self.list_names(ino, from, each))
    }

    fn list_plus(
        &self,
        ino: NodeId,
        from: u64,
        each: &mut dyn FnMut(Listed<'_>, Option<&Entry>) -> bool,
    ) -> Answer<()> {
        self.guarded(|| self.list_entries(ino, from, each))
    }

    fn usage(&self) -> Usage {
        self.ops.usage()
    }

    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn set_xattr(
        &self,
        credentials: Credentials,
        ino: NodeId,
        request: SetXattrRequest<'_>,
    ) -> Answer<()> {
        self.guarded(|| self.set_attribute(told_or_looked_up(credentials), ino, &request))
    }

    fn xattr(&self, ino: NodeId, name: &[u8]) -> Answer<Vec<u8>> {
        self.guarded(|| self.ops.get_xattr(&self.node(ino)?, name))
    }

    fn list_xattrs(&self, credentials: Credentials, ino: NodeId) -> Answer<Vec<u8>> {
        self.guarded(|| self.listed_attributes(told_or_looked_up(credentials), ino))
    }

    fn remove_xattr(&self, ino: NodeId, name: &[u8]) -> Answer<()> {
        self.guarded(|| self.remove_attribute(ino, name))
    }

    fn ioctl(
        &self,
        credentials: Credentials,
        ino: NodeId,
        cmd: u32,
        input: &[u8],
    ) -> Answer<Vec<u8>> {
        self.guarded(|| self.dispatch_ioctl(told_or_looked_up(credentials), ino, cmd, input))
    }

    fn allocate(
        &self,
        credentials: Credentials,
        ino: NodeId,
        request: FallocRequest,
    ) -> Answer<()> {
        self.guarded(|| {
            let credentials = told_or_looked_up(credentials);
            let node = self.node(ino)?;
            self.note_writer(ino, &node);
            self.writers.blocks_unknown(ino);
            let mode = Self::falloc(request.mode)?;
            self.with_reserve_for(credentials, |use_reserve| {
                let rights = SpaceRights { use_reserve, ignore_limits: false };
                let ops = self.ops.with_rights(rights);
                ops.allocate(&node, mode, request.offset, request.len)
            })?;
            if is_capable(credentials, Capability::FileSetId) {
                Ok(())
            } else {
                self.drop_privileges(credentials, &node)
            }
        })
    }

    fn seek(&self, ino: NodeId, offset: i64, whence: i32) -> Answer<u64> {
        self.guarded(|| self.seek_node(ino, offset, whence))
    }

    fn is_written_to(&self, ino: NodeId) -> bool {
        self.misses_opens() || self.writers.any(ino)
    }

    fn forbids_writes(&self, _ino: NodeId, cmd: u32, input: &[u8]) -> bool {
        !self.misses_opens() && ioctl::forbids_writes(cmd, input)
    }

    fn write_back(&self, ino: NodeId) {
        self.notices.write_back(ino);
    }

    fn write_back_holes(&self, ino: NodeId, offset: i64, whence: i32) {
        if self.write_holes(ino, offset, whence).is_err() {
            // The search itself will return the error.
            self.notices.write_back(ino);
        }
    }

    fn read_into_pages(&self, ino: NodeId) {
        self.writers.read_into_pages(ino);
    }

    fn outdates_pages(&self, ino: NodeId) -> bool {
        self.writers.outdates_pages(ino)
    }

    fn write_back_later(&self, ino: NodeId) {
        self.notices.write_back_later(ino);
    }

    fn copy(&self, credentials: Credentials, request: CopyRequest) -> Answer<usize> {
        self.guarded(|| {
            let credentials = told_or_looked_up(credentials);
            let flags = if is_capable(credentials, Capability::FileSetId) {
                WriteFlags::empty()
            } else {
                WriteFlags::KILL_SET_IDS
            };
            let source = self.node(request.source)?;
            let mut data = vec![0; request.len.min(COPY) as usize];
            let len = self.ops.read_direct(&source, request.source_offset, &mut data)?;
            if len == 0 {
                return Ok(0);
            }
            let write = WriteRequest {
                offset: request.target_offset,
                data: &data[..len],
                flags,
                opened_to_append: request.opened_to_append,
                // The kernel refuses copies to descriptors that have O_APPEND now.
                appends: false,
            };
            self.write_to(credentials, request.target, &write)
        })
    }
}
