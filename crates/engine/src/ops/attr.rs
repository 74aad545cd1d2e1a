//! stat, chmod, chown, utimens, truncate, inode flags.

use super::quota::Ownership;
use super::{Node, Operations};
use crate::error::{Errno, Result};
use crate::inode::{Body, Inode};
use crate::{dir, file, xattr};
use extant_format::features::Incompat;
use extant_format::inode::InodeFlags;
use extant_format::types::{FileType, MODE_SETGID, MODE_SETUID, Timestamp};
use std::sync::Arc;

/// The attributes of an inode, as stat(2) and statx(2) return them.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// Generation.
    pub generation: u32,
    /// Type.
    pub ftype: FileType,
    /// Type and permissions.
    pub mode: u16,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number (major, minor) of device files.
    pub rdev: (u32, u32),
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth, where the inode keeps it.
    pub crtime: Option<Timestamp>,
    /// Flags as chattr(1) has them.
    pub flags: u32,
}

/// The most reads of an inode whose size changes during each.
const MAX_LOOKS: u32 = 16;

#[inline]
fn size_of(inode: &Arc<Inode>) -> u64 {
    match inode.ftype {
        FileType::Symlink => file::target_len(inode),
        _ => file::size(inode),
    }
}

impl Attr {
    #[inline(always)]
    pub(crate) fn of(inode: &Arc<Inode>) -> Attr {
        // The size is kept apart from the rest: one that is the same afterwards held for all of it.
        let (mut size, mut looks) = (size_of(inode), 1);
        loop {
            let seen = Attr::with_size(inode, size);
            let after = size_of(inode);
            if after == size || looks == MAX_LOOKS {
                return seen;
            }
            (size, looks) = (after, looks + 1);
        }
    }

    #[inline(always)]
    fn with_size(inode: &Arc<Inode>, size: u64) -> Attr {
        let delayed = file::delayed_sectors(inode);
        let body = inode.stat();
        Attr {
            ino: u64::from(inode.ino.0),
            generation: inode.generation,
            ftype: inode.ftype,
            mode: body.mode,
            nlink: u32::from(body.links),
            uid: body.uid,
            gid: body.gid,
            rdev: match inode.ftype {
                FileType::CharDevice | FileType::BlockDevice => {
                    inode.body().rdev().unwrap_or((0, 0))
                }
                _ => (0, 0),
            },
            size,
            blocks: body.blocks + delayed,
            atime: body.atime,
            mtime: body.mtime,
            ctime: body.ctime,
            crtime: body.crtime,
            flags: body.flags.bits(),
        }
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSet {
    /// The current time.
    Now,
    /// This one.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<TimeSet>,
    /// Last change of content.
    pub mtime: Option<TimeSet>,
    /// Last change of the inode; else the current time.
    pub ctime: Option<Timestamp>,
    /// Birth.
    pub crtime: Option<Timestamp>,
    /// Times that the caller's cache kept of changes made before: no flag of the inode forbids
    /// them.
    pub kept: bool,
}

/// Flags that a user may change with chattr(1).
const SETTABLE: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::CASEFOLD)
    .union(InodeFlags::DAX)
    .union(InodeFlags::PROJINHERIT);

/// Flags that the format excludes for a file with the DAX flag. Extant stores the DAX flag, and
/// ignores it otherwise.
const NOT_WITH_DAX: InodeFlags = InodeFlags::VERITY
    .union(InodeFlags::ENCRYPT)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::INLINE_DATA);

/// Flags among these that only directories have.
const OF_DIRECTORIES: InodeFlags = InodeFlags::DIRSYNC
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::CASEFOLD)
    .union(InodeFlags::PROJINHERIT);

/// Where file capabilities are kept.
const CAPABILITY: &[u8] = b"security.capability";

/// Credits of a change of one inode and an attribute that follows from it.
const INODE_CREDITS: u32 = 2;

impl Operations {
    /// Changes attributes. A size change comes first and is an operation of its own.
    pub fn set_attr(&self, node: &Node, set: &SetAttr) -> Result<Attr> {
        self.change_attr(node, set, Attr::of)
    }

    /// As [`Operations::set_attr`]; `look` sees the inode before anybody else changes it.
    pub(super) fn change_attr<R>(
        &self,
        node: &Node,
        set: &SetAttr,
        look: fn(&Arc<Inode>) -> R,
    ) -> Result<R> {
        self.own(node)?;
        self.st().writable()?;
        self.with_space(|| self.set_attr_once(&node.0, set, look))
    }

    fn set_attr_once<R>(
        &self,
        inode: &Arc<Inode>,
        set: &SetAttr,
        look: fn(&Arc<Inode>) -> R,
    ) -> Result<R> {
        let _lock = self.lock_thawed(|| self.lock_content(inode))?;
        check_changeable(inode, set)?;
        if let Some(size) = set.size {
            self.set_size(inode, size)?;
        }
        let mut others = SetAttr { size: None, ..*set };
        let owners = Ownership { uid: set.uid, gid: set.gid, project: None };
        if self.moves_usage(inode, owners) {
            self.change_owner(inode, owners)?;
            (others.uid, others.gid) = (None, None);
        }
        if others.changes_something() {
            self.set_body(inode, &others)?;
        }
        Ok(look(inode))
    }

    fn set_size(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        match inode.ftype {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::IsDir.into()),
            _ => return Err(Errno::Inval.into()),
        }
        if inode.flags().intersects(InodeFlags::APPEND | InodeFlags::VERITY) {
            return Err(Errno::Perm.into());
        }
        dir::check_key(inode)?;
        file::truncate(self.st(), inode, size)
    }

    fn set_body(&self, inode: &Arc<Inode>, set: &SetAttr) -> Result<()> {
        let st = self.st();
        let now = st.now();
        let _restricting = set.mode.and_then(|_| self.vfs.restricting(inode));
        let acl = set
            .mode
            .and_then(|mode| xattr::acl_after_chmod(st, inode, mode).transpose())
            .transpose()?;
        let mut tx =
            st.begin(INODE_CREDITS + xattr::credits(st, acl.as_ref().map_or(0, Vec::len)))?;
        tx.touch(inode)?;
        if let Some(acl) = &acl {
            let access = (b"system.posix_acl_access".as_slice(), Some(acl.as_slice()));
            let set = xattr::set(st, &mut tx, inode, access, xattr::Mode::Any);
            self.queue_left_values();
            set?;
        }
        tx.step(|step| {
            let mut body = step.edit(inode)?;
            set.apply(&mut body, now);
            Ok(())
        })
    }

    /// Sets the flags of chattr(1) (FS_IOC_SETFLAGS).
    pub fn set_flags(&self, node: &Node, flags: u32) -> Result<()> {
        self.change_flags(node, |_| Ok(flags))
    }

    /// As [`Operations::set_flags`]. `change` makes the new flags from those that the inode has,
    /// which stand still meanwhile, or refuses.
    pub fn change_flags(&self, node: &Node, change: impl FnOnce(u32) -> Result<u32>) -> Result<()> {
        self.own(node)?;
        let inode = &node.0;
        let st = self.st();
        if !matches!(inode.ftype, FileType::Regular | FileType::Directory) {
            return Err(Errno::OpNotSupp.into());
        }
        let _lock = self.lock_thawed(|| inode.write_lock())?;
        let old = inode.flags();
        let flags = change(old.bits())?;
        // chattr(1) passes all flags of the inode, so known flags that cannot be changed are
        // ignored.
        let wanted = InodeFlags::from_bits(flags).ok_or(Errno::OpNotSupp)?;
        if !inode.is_dir() && wanted.intersects(OF_DIRECTORIES) {
            return Err(Errno::OpNotSupp.into());
        }
        let kept = old & !SETTABLE | wanted & SETTABLE;
        // Privileged callers, too, must make the inode mutable first.
        if kept != old && (old & kept).contains(InodeFlags::IMMUTABLE) {
            return Err(Errno::Perm.into());
        }
        if kept != old && kept.contains(InodeFlags::DAX) && kept.intersects(NOT_WITH_DAX) {
            return Err(Errno::OpNotSupp.into());
        }
        if (old ^ wanted).contains(InodeFlags::CASEFOLD) {
            self.check_folding(inode)?;
        }
        let log_data = InodeFlags::JOURNAL_DATA;
        if inode.ftype == FileType::Regular && (old ^ wanted).contains(log_data) {
            if old.contains(InodeFlags::VERITY) {
                return Err(Errno::Perm.into());
            }
            file::log_data(st, inode, wanted.contains(log_data))?;
        }
        st.begin(INODE_CREDITS)?.step(|step| {
            let mut body = step.edit(inode)?;
            body.flags = kept;
            body.ctime = st.now();
            Ok(())
        })
    }

    /// Names of a directory begin or end to be folded only while it has none. The directory is
    /// locked for writing.
    fn check_folding(&self, dir: &Inode) -> Result<()> {
        let st = self.st();
        if !st.geo.incompat(Incompat::CASEFOLD) {
            return Err(Errno::OpNotSupp.into());
        }
        if !dir::is_empty(st, dir)? {
            return Err(Errno::NotEmpty.into());
        }
        // Names that were looked for in vain.
        self.vfs.dentries.forget_all(dir.ino, dir.generation);
        Ok(())
    }

    /// Removes set-user-id, set-group-id and capabilities, as a change of owner or content by an
    /// unprivileged caller does. Set-group-id stays on a file that its group may not execute, if
    /// the caller `is_member` of the given group.
    ///
    /// # Errors
    /// Those of reading and changing attributes. The change that drops the privileges must not
    /// happen then.
    pub fn drop_privileges(&self, node: &Node, is_member: impl Fn(u32) -> bool) -> Result<()> {
        self.own(node)?;
        if node.0.is_dir() {
            return Ok(());
        }
        let stripped = |mode: u16, gid: u32| {
            if mode & MODE_SETGID != 0 && !is_member(gid) {
                mode & !(MODE_SETUID | MODE_SETGID)
            } else {
                file::strip_mode(mode)
            }
        };
        if node.0.mode() & (MODE_SETUID | MODE_SETGID) != 0 {
            self.change_mode(node, stripped)?;
        }
        match self.get_xattr(node, CAPABILITY) {
            Ok(_) => self.remove_xattr(node, CAPABILITY),
            Err(e) if e.is(Errno::NoData) || e.is(Errno::OpNotSupp) => Ok(()),
            // It may have capabilities.
            Err(e) => Err(e),
        }
    }

    /// Changes permission bits to the result of `change` for the mode and the group, both of which
    /// stand still meanwhile. `change` must not use the file system.
    ///
    /// # Errors
    /// As [`Operations::set_attr`].
    pub fn change_mode(&self, node: &Node, change: impl Fn(u16, u32) -> u16) -> Result<()> {
        self.own(node)?;
        let inode = &node.0;
        self.st().writable()?;
        self.with_space(|| {
            let _lock = self.lock_thawed(|| inode.write_lock())?;
            let (mode, gid) = (inode.mode(), inode.body().gid);
            let new = change(mode, gid);
            if new == mode {
                return Ok(());
            }
            let set = SetAttr { mode: Some(new & 0o7777), ..SetAttr::default() };
            check_changeable(inode, &set)?;
            self.set_body(inode, &set)
        })
    }
}

fn check_changeable(inode: &Inode, set: &SetAttr) -> Result<()> {
    if set.kept {
        return Ok(());
    }
    let flags = inode.flags();
    let owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    // Only a request for the current time in both is none for times of the caller's own. A cache
    // that keeps times sends its own current time as modification time and as change time.
    let is_now = |time: TimeSet| {
        time == TimeSet::Now || set.ctime.is_some_and(|ctime| time == TimeSet::At(ctime))
    };
    let touched = set.atime == Some(TimeSet::Now) && set.mtime.is_some_and(is_now);
    let times = (set.atime.is_some() || set.mtime.is_some()) && !touched;
    if flags.contains(InodeFlags::IMMUTABLE)
        || flags.contains(InodeFlags::APPEND) && (owner || times)
    {
        Err(Errno::Perm.into())
    } else {
        Ok(())
    }
}

impl SetAttr {
    fn changes_something(&self) -> bool {
        self.mode.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || self.atime.is_some()
            || self.mtime.is_some()
            || self.ctime.is_some()
            || self.crtime.is_some()
    }

    fn apply(&self, body: &mut Body, now: Timestamp) {
        let time = |t: TimeSet| match t {
            TimeSet::Now => now,
            TimeSet::At(t) => body.storable_time(t),
        };
        let (atime, mtime, ctime) =
            (self.atime.map(time), self.mtime.map(time), self.ctime.map(|t| body.storable_time(t)));
        if let Some(mode) = self.mode {
            body.mode = (body.mode & !0o7777) | (mode & 0o7777);
        }
        body.uid = self.uid.unwrap_or(body.uid);
        body.gid = self.gid.unwrap_or(body.gid);
        body.atime = atime.unwrap_or(body.atime);
        body.mtime = mtime.unwrap_or(body.mtime);
        body.ctime = ctime.unwrap_or(now);
        body.crtime = self.crtime.map_or(body.crtime, |t| body.storable_crtime(t));
    }
}
