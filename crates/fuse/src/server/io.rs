//! Writes, space and searches for holes.

use super::credentials::is_member;
use super::*;

/// As lseek(2) has them.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Searches for holes begin with so many holes one by one.
const HOLES: usize = 8;

/// The owner of a file, as far as its ids tell.
fn owner(node: &Node) -> Credentials {
    let attr = node.attr();
    Credentials { uid: attr.uid, gid: attr.gid, pid: 0 }
}

impl Server {
    /// What the kernel keeps unwritten makes data of a hole. So it is to write what lies in the
    /// holes that a search meets, and drops no pages of data, which cannot change the answer.
    pub(super) fn write_holes(&self, ino: NodeId, offset: i64, whence: i32) -> Result<(), Error> {
        let node = self.node(ino)?;
        let found = |from, data| match self.ops.seek(&node, from, data) {
            Err(e) if e.is(Errno::Nxio) => Ok(None),
            other => other.map(Some),
        };
        let mut at = u64::try_from(offset).map_err(|_| Errno::Nxio)?;
        for _ in 0..HOLES {
            // Behind the end everything is a hole.
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

    /// Writes, as far as the flags of the file allow. What the kernel kept from before these were
    /// set is written.
    #[expect(clippy::too_many_arguments, reason = "the fields of a request")]
    pub(super) fn write_to(
        &self,
        credentials: Credentials,
        ino: NodeId,
        offset: u64,
        data: &[u8],
        how: HowWritten,
    ) -> Result<usize, Error> {
        let node = self.node(ino)?;
        self.ops.check_write(&node)?;
        if !self.ops.only_grows(&node) {
            return self.write_allowed(credentials, ino, &node, offset, data, how.flags);
        }
        let _alone = self.writers.judge(ino);
        let size = node.attr().size;
        self.check_append(ino, &node, size, offset, data, how)?;
        let len = self.write_allowed(credentials, ino, &node, offset, data, how.flags)?;
        self.writers.filled(ino, offset..offset.saturating_add(len as u64), size);
        Ok(len)
    }

    /// EPERM for a write that changes what an append-only file of this size has, unless its
    /// descriptor is of the time before.
    #[expect(clippy::too_many_arguments, reason = "the fields of a request")]
    pub(super) fn check_append(
        &self,
        ino: NodeId,
        node: &Node,
        size: u64,
        offset: u64,
        data: &[u8],
        how: HowWritten,
    ) -> Result<(), Error> {
        let range = offset..offset.saturating_add(data.len() as u64);
        let allowed = match how {
            how if how.flags.contains(WriteFlags::CACHE) => {
                let before =
                    self.writers.floor(ino, size).saturating_sub(offset).min(data.len() as u64)
                        as usize;
                // An append changes the last page, and the kernel writes all of that.
                self.has(node, offset, &data[..before])?
            }
            HowWritten { opened_to_append: true, appends, .. } => {
                appends && self.writers.is_free(ino, &range, size)
            }
            _ => true,
        };
        if allowed { Ok(()) } else { Err(Errno::Perm.into()) }
    }

    /// Whether a file has these bytes there.
    pub(super) fn has(&self, node: &Node, offset: u64, bytes: &[u8]) -> Result<bool, Error> {
        let mut found = vec![0; bytes.len()];
        Ok(self.ops.read_direct(node, offset, &mut found)? == bytes.len() && found == bytes)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a request")]
    pub(super) fn write_allowed(
        &self,
        credentials: Credentials,
        ino: NodeId,
        node: &Node,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, Error> {
        let from_cache = flags.contains(WriteFlags::CACHE);
        let strip = flags.contains(WriteFlags::KILL_SET_IDS);
        if strip {
            self.drop_privileges(credentials, node)?;
        }
        // Who wrote what the kernel's cache held is not known, so limits hold for it.
        let bound = from_cache || credentials.uid != 0;
        let write = |offset, data| {
            if from_cache {
                // The cache keeps the times, and tells of them when it has set them.
                self.ops.write_kept(node, offset, data, strip)
            } else if bound {
                self.ops.write_direct(node, offset, data, strip)
            } else {
                self.ops.without_limits(|| self.ops.write_direct(node, offset, data, strip))
            }
        };
        // For the same reason it is the file's owner by whom the use of reserved blocks is judged.
        let writer = if from_cache { owner(node) } else { credentials };
        let mut len = self.with_reserve_for(writer, || write(offset, data))?;
        // The kernel's cache does not look at how much was written: what is left goes in as well,
        // or it is an error.
        while from_cache && len < data.len() {
            match self.with_reserve_for(writer, || write(offset + len as u64, &data[len..]))? {
                0 => return Err(Errno::Io.into()),
                more => len += more,
            }
        }
        if self.writers.blocks_changed(ino, node.attr().blocks) {
            self.notices.blocks(ino);
        }
        Ok(len)
    }

    /// Runs `f`, which may use the reserved blocks if the superblock lets the caller. By a
    /// capability he may too, which costs a look at `/proc`: so only what lacks space is tried
    /// again with it.
    pub(super) fn with_reserve_for<T>(
        &self,
        credentials: Credentials,
        f: impl Fn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if credentials.uid == 0
            || self.ops.reserve_is_for(credentials.uid, |group| group == credentials.gid)
        {
            return self.ops.with_reserve(f);
        }
        match f() {
            Err(e) if e.is(Errno::NoSpc) && self.reaches_reserve(credentials) => {
                self.ops.with_reserve(f)
            }
            other => other,
        }
    }

    pub(super) fn reaches_reserve(&self, credentials: Credentials) -> bool {
        self.ops.reserve_is_for(credentials.uid, |group| is_member(credentials, group))
            || is_capable(credentials, Capability::SysResource)
    }

    /// What the kernel had accepted could not be written: it has to accept no more, for lack of
    /// space; or to drop what is not allowed.
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
