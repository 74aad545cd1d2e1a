//! What requests have in common: inodes and entries for replies, making, changing, writing.

use super::*;
use crate::caller::is_member;

/// The attribute that an access ACL is kept in.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// Set-group-id in a mode.
const SET_GROUP: u16 = 0o2000;

impl Server {
    pub(super) fn node(&self, ino: INodeNo) -> Result<Node, Error> {
        self.ops.node(disk_ino(ino))
    }

    pub(super) fn attr(&self, a: &Attr) -> FileAttr {
        file_attr(a, self.block_size)
    }

    /// An entry for a reply: counts a lookup.
    pub(super) fn entry(&self, node: &Node) -> Result<(FileAttr, Generation), Error> {
        node.hold(1).map_err(|_| Errno::NoEnt)?;
        Ok((self.attr(&node.attr()), Generation(u64::from(node.generation()))))
    }

    pub(super) fn make(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        what: New<'_>,
    ) -> Result<(FileAttr, Generation), Error> {
        let dir = self.node(parent)?;
        let who = Caller { uid: req.uid(), gid: req.gid(), umask: umask as u16 };
        let node = self.ops.create(&who, &dir, name.as_bytes(), (mode & 0o7777) as u16, what)?;
        self.entry(&node)
    }

    pub(super) fn change(&self, req: &Request, ino: INodeNo, mut set: SetAttr) -> Result<FileAttr, Error> {
        let node = self.node(ino)?;
        let times = set.atime.is_some() || set.mtime.is_some();
        let others = set.mode.is_some() || set.size.is_some() || set.uid.is_some() || set.gid.is_some();
        // So the times arrive that the kernel kept; and a chown that changes neither owner nor group names nothing.
        set.kept = times && !others && set.atime.is_none();
        let owner = set.uid.is_some() || set.gid.is_some() || !times && !others;
        let cut_by_user = set.size.is_some() && req.uid() != 0;
        if owner || cut_by_user {
            self.drop_privileges(req, &node)?;
        }
        self.writers.blocks_unknown(ino);
        Ok(self.attr(&self.ops.set_attr(&node, &set)?))
    }

    pub(super) fn drop_privileges(&self, req: &Request, node: &Node) -> Result<(), Error> {
        let attr = node.attr();
        // Only there the groups matter.
        let member = attr.mode & SET_GROUP == 0 || req.uid() == 0 || is_member(req, attr.gid);
        self.ops.drop_privileges(node, member)
    }

    /// An ACL stands for a mode: set by somebody outside the file's group, it takes set-group-id away.
    pub(super) fn set_xattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Error> {
        let node = self.node(ino)?;
        self.ops.set_xattr(&node, name, value, mode)?;
        if name == ACCESS_ACL && req.uid() != 0 {
            let attr = node.attr();
            if attr.mode & SET_GROUP != 0 && !is_member(req, attr.gid) {
                let mode = Some(attr.mode & 0o7777 & !SET_GROUP);
                self.ops.set_attr(&node, &SetAttr { mode, ..SetAttr::default() })?;
            }
        }
        Ok(())
    }

    /// An ioctl changed attributes of an open file.
    pub(super) fn flags_changed(&self, ino: INodeNo) {
        self.notices.attributes(ino);
        self.notices.settle(ino);
    }

    /// A write of the kernel's cache was accepted before, whatever the file's flags are now.
    pub(super) fn write_to(
        &self,
        req: &Request,
        ino: INodeNo,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, Error> {
        let node = self.node(ino)?;
        let from_cache = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        if !from_cache {
            self.ops.check_write(&node)?;
        }
        let strip = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        if strip {
            self.drop_privileges(req, &node)?;
        }
        // Who wrote what the kernel's cache held is not known, so limits hold for it.
        let bound = from_cache || req.uid() != 0;
        let write = |offset, data| match bound {
            true => self.ops.write_direct(&node, offset, data, strip),
            false => self.ops.without_limits(|| self.ops.write_direct(&node, offset, data, strip)),
        };
        let mut len = write(offset, data)?;
        // The kernel's cache does not look at how much was written: what is left goes in as well, or it is an error.
        while from_cache && len < data.len() {
            match write(offset + len as u64, &data[len..])? {
                0 => return Err(Errno::Io.into()),
                more => len += more,
            }
        }
        if self.writers.blocks_changed(ino, node.attr().blocks) {
            self.notices.attributes(ino);
        }
        Ok(len)
    }

    /// Notes an access; true if the kernel's times are old now, which it is told soon.
    pub(super) fn note_access(&self, ino: INodeNo, node: &Node) -> bool {
        let Some(which) = self.access_times else { return false };
        match self.ops.accessed(node, which) {
            Ok(noted) => {
                if noted {
                    self.notices.attributes(ino);
                }
                noted
            }
            Err(e) => {
                // Reading goes on.
                tracing::debug!("an access time was not noted: {e}");
                false
            }
        }
    }

    /// The kernel reads a directory from its beginning.
    pub(super) fn note_listing(&self, ino: INodeNo, dir: &Node, offset: u64) {
        if offset == 0 && self.directory_access_times {
            self.note_access(ino, dir);
        }
    }

    /// What the kernel had accepted could not be written for lack of space: it has to accept no more.
    pub(super) fn stop_writers(&self, ino: INodeNo, why: &Error) {
        if why.is(Errno::NoSpc) && self.writers.refuse(ino, Errno::NoSpc, self.ops.usage().free) {
            self.notices.attributes(ino);
        }
    }

    pub(super) fn check_room(&self, ino: INodeNo) -> Result<(), Error> {
        self.writers.refused(ino, || self.ops.usage().free).map_or(Ok(()), |why| Err(why.into()))
    }

    pub(super) fn check_open(&self, node: &Node, flags: i32) -> Result<(), Error> {
        if !writes(flags) {
            return Ok(());
        }
        let how = Open { write: true, append: flags & APPEND != 0, direct: true, truncate: flags & TRUNCATE != 0 };
        self.ops.check_open(node, how)
    }

    pub(super) fn create_or_open(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Result<(FileAttr, Generation), Error> {
        match self.make(req, parent, name, mode, umask, New::File) {
            Err(e) if e.is(Errno::Exist) && flags & EXCLUSIVE == 0 => {
                let node = self.ops.lookup(&self.node(parent)?, name.as_bytes())?;
                self.check_open(&node, flags)?;
                self.entry(&node)
            }
            other => other,
        }
    }

    pub(super) fn xattr(&self, value: Vec<u8>, size: u32, reply: ReplyXattr) {
        match size as usize {
            0 => reply.size(value.len() as u32),
            room if value.len() > room => reply.error(fuser::Errno::ERANGE),
            _ => reply.data(&value),
        }
    }

    pub(super) fn falloc(mode: i32) -> Result<Falloc, Error> {
        Ok(match mode {
            0 => Falloc::Allocate,
            1 => Falloc::KeepSize,
            3 => Falloc::Punch,
            8 => Falloc::Collapse,
            0x10 => Falloc::Zero,
            0x11 => Falloc::ZeroKeepSize,
            0x20 => Falloc::Insert,
            _ => return Err(Errno::OpNotSupp.into()),
        })
    }

    /// A page of the counters, on the root directory, for root and for the one who mounted it.
    pub(super) fn stats_page(&self, req: &Request, ino: INodeNo, input: &[u8]) -> Result<Vec<u8>, Error> {
        self.may_control(req, ino)?;
        self.stats.page(input, || stats::document(&self.ops)).ok_or(Errno::Inval.into())
    }

    /// Sets a tunable, on the root directory, for root and for the one who mounted it.
    pub(super) fn set_tunable(&self, req: &Request, ino: INodeNo, input: &[u8]) -> Result<Vec<u8>, Error> {
        self.may_control(req, ino)?;
        let (name, value) = control::setting(input).ok_or(Errno::Inval)?;
        let holds = match name {
            // What was opened for reading stays so.
            control::READ_ONLY if self.read_only && value == 0 => return Err(Errno::RoFs.into()),
            control::READ_ONLY => value,
            _ => self.ops.set_tunable(name, value)?,
        };
        Ok(control::encode_setting(name, holds).ok_or(Errno::Inval)?.to_vec())
    }

    fn may_control(&self, req: &Request, ino: INodeNo) -> Result<(), Error> {
        if ino != INodeNo::ROOT {
            return Err(Errno::NotTy.into());
        }
        if req.uid() != 0 && req.uid() != self.owner {
            return Err(Errno::Acces.into());
        }
        Ok(())
    }

    pub(super) fn fsync_node(&self, ino: INodeNo, datasync: bool, reply: ReplyEmpty) {
        let (ops, notices) = (self.ops.clone(), self.notices.clone());
        self.pool.run_waiting(move || {
            answer!(reply, {
                let node = ops.node(disk_ino(ino))?;
                ops.sync_node(&node, datasync)?;
                notices.settle(ino);
                Ok(())
            });
        });
    }
}
