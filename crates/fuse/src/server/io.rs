//! Writes, allocation of space, and searches for holes.

use super::credentials::is_member;
use super::*;

/// Values of `whence` of lseek(2).
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Number of holes that a search writes back one by one, before it writes back the rest of the
/// file.
const HOLES: usize = 8;

/// Returns the file's owner as credentials without a thread.
fn owner(node: &Node) -> Credentials {
    let attr = node.attr();
    Credentials { uid: attr.uid, gid: attr.gid, pid: 0 }
}

impl Server {
    /// Makes the kernel write its cached data in the holes that a search meets, since such data
    /// turns a hole into data. Pages of data stay cached: they cannot change the result.
    pub(super) fn write_holes(&self, ino: NodeId, offset: i64, whence: i32) -> Result<(), Error> {
        let node = self.node(ino)?;
        let found = |from, data| match self.ops.seek(&node, from, data) {
            Err(e) if e.is(Errno::Nxio) => Ok(None),
            other => other.map(Some),
        };
        let mut at = u64::try_from(offset).map_err(|_| Errno::Nxio)?;
        for _ in 0..HOLES {
            // Past the end of the file everything is a hole.
            let hole = found(at, false)?.unwrap_or(at);
            if whence == SEEK_DATA && hole > at {
                return Ok(());
            }
            self.notices.write_back_range(ino, hole, found(hole, true)?);
            if whence == SEEK_DATA || found(hole, false)?.is_none_or(|still| still == hole) {
                return Ok(());
            }
            at = hole;
        }
        self.notices.write_back_range(ino, at, None);
        Ok(())
    }

    /// Writes, if the flags of the file allow it. Data that the kernel cached before the flags were
    /// set is written, too.
    pub(super) fn write_to(
        &self,
        credentials: Credentials,
        ino: NodeId,
        write: &WriteRequest<'_>,
    ) -> Result<usize, Error> {
        let node = self.node(ino)?;
        self.note_writer(ino, &node);
        self.ops.check_write(&node)?;
        if !self.ops.only_grows(&node) {
            return self.write_allowed(credentials, ino, &node, write);
        }
        let _alone = self.writers.judge(ino);
        let size = node.attr().size;
        self.check_append(ino, &node, size, write)?;
        let len = self.write_allowed(credentials, ino, &node, write)?;
        self.writers.filled(ino, write.offset..write.offset.saturating_add(len as u64), size);
        Ok(len)
    }

    /// Returns `EPERM` for a write that changes existing bytes of an append-only file of this size,
    /// unless its descriptor is older than the flag.
    pub(super) fn check_append(
        &self,
        ino: NodeId,
        node: &Node,
        size: u64,
        write: &WriteRequest<'_>,
    ) -> Result<(), Error> {
        let &WriteRequest { offset, data, flags, opened_to_append, appends } = write;
        let len = data.len() as u64;
        let allowed = if flags.contains(WriteFlags::CACHE) {
            let before = self.writers.floor(ino, size).saturating_sub(offset).min(len) as usize;
            // An append changes the last page, and the kernel writes the whole page: its old bytes
            // must be unchanged.
            self.has(node, offset, &data[..before])?
        } else if opened_to_append {
            let range = offset..offset.saturating_add(len);
            appends && self.writers.is_free(ino, &range, size)
        } else {
            true
        };
        if allowed { Ok(()) } else { Err(Errno::Perm.into()) }
    }

    /// Returns whether a file has these bytes at `offset`.
    pub(super) fn has(&self, node: &Node, offset: u64, bytes: &[u8]) -> Result<bool, Error> {
        let mut found = vec![0; bytes.len()];
        Ok(self.ops.read_direct(node, offset, &mut found)? == bytes.len() && found == bytes)
    }

    pub(super) fn write_allowed(
        &self,
        credentials: Credentials,
        ino: NodeId,
        node: &Node,
        write: &WriteRequest<'_>,
    ) -> Result<usize, Error> {
        let &WriteRequest { offset, data, flags, .. } = write;
        let from_cache = flags.contains(WriteFlags::CACHE);
        let strip = flags.contains(WriteFlags::KILL_SET_IDS);
        if strip {
            self.drop_privileges(credentials, node)?;
        }
        // The writer of cached data is unknown, so quota limits apply, and the file's owner decides
        // about the use of reserved blocks.
        let ignore_limits = !from_cache && credentials.uid == 0;
        let writer = if from_cache { owner(node) } else { credentials };
        let write = |offset, data| {
            self.with_reserve_for(writer, |use_reserve| {
                let ops = self.ops.with_rights(SpaceRights { use_reserve, ignore_limits });
                if from_cache {
                    // The kernel caches the times and sends them in a later request.
                    ops.write_kept(node, offset, data, strip)
                } else {
                    ops.write_direct(node, offset, data, strip)
                }
            })
        };
        let mut len = write(offset, data)?;
        // The kernel ignores short counts for writes from its cache, so the rest must be written as
        // well, or the result is an error.
        while from_cache && len < data.len() {
            match write(offset + len as u64, &data[len..])? {
                0 => return Err(Errno::Io.into()),
                more => len += more,
            }
        }
        if self.writers.blocks_changed(ino, node.attr().blocks) {
            self.notices.blocks(ino);
        }
        Ok(len)
    }

    /// Runs `f` with the answer whether it may use reserved blocks: the superblock grants that to
    /// the caller's ids. Supplementary groups and capabilities grant it, too, but cost reads of
    /// `/proc`: they are checked only after `ENOSPC`, and `f` then runs again.
    pub(super) fn with_reserve_for<T>(
        &self,
        credentials: Credentials,
        f: impl Fn(bool) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if credentials.uid == 0
            || self.ops.reserve_is_for(credentials.uid, |group| group == credentials.gid)
        {
            return f(true);
        }
        match f(false) {
            Err(e) if e.is(Errno::NoSpc) && self.reaches_reserve(credentials) => f(true),
            other => other,
        }
    }

    pub(super) fn reaches_reserve(&self, credentials: Credentials) -> bool {
        self.ops.reserve_is_for(credentials.uid, |group| is_member(credentials, group))
            || is_capable(credentials, Capability::SysResource)
    }

    /// Handles a failure to write data that the kernel had accepted. After `ENOSPC` the kernel must
    /// accept no more writes; after `EPERM` it must drop its pages.
    pub(super) fn stop_writers(&self, ino: NodeId, why: &Error) {
        if why.is(Errno::Perm) {
            self.notices.write_back_later(ino);
        }
        if why.is(Errno::NoSpc) && self.writers.refuse(ino, Errno::NoSpc, self.ops.usage().free) {
            self.notices.attributes(ino);
        }
    }

    pub(super) fn check_room(&self, ino: NodeId) -> Result<(), Error> {
        self.writers.refused(ino, || self.ops.usage().free).map_or(Ok(()), |why| Err(why.into()))
    }

    pub(super) fn seek_node(&self, ino: NodeId, offset: i64, whence: i32) -> Result<u64, Error> {
        let node = self.node(ino)?;
        let from = u64::try_from(offset).map_err(|_| Errno::Nxio)?;
        match whence {
            SEEK_DATA => self.ops.seek(&node, from, true),
            SEEK_HOLE => self.ops.seek(&node, from, false),
            _ => Err(Errno::Inval.into()),
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
}
