//! What requests have in common: inodes and entries for replies, making, changing, writing.

use super::*;
use crate::caller::{UNTOLD, is_member, told_or_looked_up};
use crate::convert::system_time;
use extant::{FileType, SetAttr, TimeSet, Timestamp};

/// The attribute that an access ACL is kept in.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The namespace of attributes that only administrators see.
const TRUSTED: &[u8] = b"trusted.";

/// As lseek(2) has them.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Set-group-id in a mode.
const SET_GROUP: u16 = 0o2000;

/// Set-user-id in a mode.
const SET_USER: u16 = 0o4000;

/// Execution by the group in a mode.
const GROUP_EXECUTES: u16 = 0o010;

/// Whether a change of the file's owner by the caller would take a bit of its mode away, which only
/// the owner may do.
fn takes_set_id(who: Who, node: &Node) -> bool {
    let attr = node.attr();
    let is_kept = || attr.mode & GROUP_EXECUTES == 0 && is_member(who, attr.gid);
    let is_lost = attr.mode & SET_USER != 0 || attr.mode & SET_GROUP != 0 && !is_kept();
    let is_owner = || who.uid == attr.uid || is_capable(who, Capability::FileOwner);
    is_lost && node.file_type() != FileType::Directory && !is_owner()
}

/// The owner of a whiteout. On a mount that allows mapped ids a rename does not carry the ids of
/// its sender.
pub(super) fn whiteout_owner(who: Who) -> Caller {
    let who = told_or_looked_up(who);
    match who.uid {
        UNTOLD => Caller::default(),
        _ => Caller { uid: who.uid, gid: who.gid, umask: 0 },
    }
}

/// Whether set-group-id of this group survives a change by the caller.
fn keeps_group(who: Who, gid: u32) -> bool {
    is_member(who, gid) || is_capable(who, Capability::FileSetId)
}

/// The owner of a file, as far as its ids tell.
fn owner(node: &Node) -> Who {
    let attr = node.attr();
    Who { uid: attr.uid, gid: attr.gid, pid: 0 }
}

/// The mode bits of a program that runs with the rights of its group.
const GROUP_PROGRAM: u32 = 0o2010;

/// The engine's caller for a new file in `dir`. In a set-group-id directory the file has the
/// directory's group, whatever the caller's is. So that stands for the caller's own where the
/// caller may make programs of it: as a member by another group, or by a capability.
pub(super) fn caller(who: Who, dir: &Node, mode: u32, umask: u32) -> Caller {
    let dir = dir.attr();
    let asked = mode & GROUP_PROGRAM == GROUP_PROGRAM && dir.mode & SET_GROUP != 0;
    let gid = if asked && keeps_group(who, dir.gid) { dir.gid } else { who.gid };
    Caller { uid: who.uid, gid, umask: umask as u16 }
}

/// Searches for holes begin with so many holes one by one.
const HOLES: usize = 8;

impl Server {
    /// What the kernel keeps unwritten makes data of a hole. So it is to write what lies in the
    /// holes that a search meets, and drops no pages of data, which cannot change the answer.
    pub(super) fn write_holes(&self, ino: INodeNo, offset: i64, whence: i32) -> Result<(), Error> {
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

    pub(super) fn node(&self, ino: INodeNo) -> Result<Node, Error> {
        self.ops.node(disk_ino(ino))
    }

    /// The kernel holds what it is told for true, and accepts writes: for an immutable file it has
    /// to ask before the next one.
    pub(super) fn file_attr(&self, a: &Attr) -> FileAttr {
        if self.writeback && a.flags & ioctl::IMMUTABLE != 0 {
            let ino = protocol_ino(a.ino);
            if self.writers.any(ino) {
                self.notices.attributes(ino);
            }
        }
        file_attr(a, self.block_size)
    }

    /// What a reply tells of an inode.
    pub(super) fn entry_of(&self, node: &Node) -> Entry {
        Entry { attr: self.file_attr(&node.attr()), generation: u64::from(node.generation()) }
    }

    /// An entry for a reply: counts a lookup.
    pub(super) fn entry(&self, node: &Node) -> Result<Entry, Error> {
        node.hold(1).map_err(|_| Errno::NoEnt)?;
        Ok(self.entry_of(node))
    }

    fn new_node(
        &self,
        who: Who,
        (parent, name): (INodeNo, &[u8]),
        mode: u32,
        umask: u32,
        what: New<'_>,
    ) -> Result<Node, Error> {
        let dir = self.node(parent)?;
        self.ops.create(&caller(who, &dir, mode, umask), &dir, name, (mode & 0o7777) as u16, what)
    }

    pub(super) fn make_node(
        &self,
        who: Who,
        at: (INodeNo, &[u8]),
        mode: u32,
        umask: u32,
        what: New<'_>,
    ) -> Result<Entry, Error> {
        self.entry(&self.new_node(who, at, mode, umask, what)?)
    }

    pub(super) fn change(&self, who: Who, ino: INodeNo, change: Change) -> Result<FileAttr, Error> {
        let node = self.node(ino)?;
        let mut set = change.set;
        let times = set.atime.is_some() || set.mtime.is_some();
        let others =
            set.mode.is_some() || set.size.is_some() || set.uid.is_some() || set.gid.is_some();
        set.kept = !others && Self::is_kept(&node, change);
        // A chown that changes neither owner nor group names nothing, and the kernel has not asked
        // whether the caller may. Such a request comes before a write by others, too, without a
        // change time: the write itself takes the bits away.
        let names_nothing = !times && !others;
        let is_forbidden = names_nothing && takes_set_id(who, &node);
        if is_forbidden && set.ctime.is_some() {
            return Err(Errno::Perm.into());
        }
        let owner = set.uid.is_some() || set.gid.is_some() || names_nothing && !is_forbidden;
        if owner || set.size.is_some() && change.strip {
            self.drop_privileges(who, &node)?;
        }
        let by_caller =
            !set.kept || matches!(set.mtime, Some(TimeSet::At(t)) if self.predates(ino, t));
        if !by_caller {
            let attr = self.ops.set_attr(&node, &set)?;
            self.note_cut(ino, &set, &attr);
            return Ok(self.file_attr(&attr));
        }
        self.writers.blocks_unknown(ino);
        let mut attr = self.ops.set_attr(&node, &set)?;
        self.note_cut(ino, &set, &attr);
        // Read again under the lock: whoever changes the blocks afterwards finds other ones told.
        let blocks = || {
            attr = node.attr();
            attr.blocks
        };
        self.writers.tell_blocks(ino, blocks, || self.notices.blocks_told(ino));
        Ok(self.file_attr(&attr))
    }

    /// Whether these are times that the kernel kept of changes made before. They come with the
    /// change time, in the name of a file that is open for writing. If none is, only a change time
    /// was kept: of a link or a rename.
    fn is_kept(node: &Node, Change { set, open, .. }: Change) -> bool {
        let both = set.atime.is_none() && set.ctime.is_some();
        both && matches!(set.mtime, Some(TimeSet::At(t)) if open || t == node.attr().mtime)
    }

    /// Whether a time is older than what the kernel may have kept of writes.
    fn predates(&self, ino: INodeNo, t: Timestamp) -> bool {
        self.writers.predates(ino, system_time(t))
    }

    /// A time that the inode cannot hold the kernel believes to be there.
    fn note_cut(&self, ino: INodeNo, set: &SetAttr, attr: &Attr) {
        if matches!(set.mtime, Some(TimeSet::At(asked)) if asked != attr.mtime) {
            self.kept_wrong(ino);
        }
    }

    /// With the writeback cache the kernel believes its own times of the inode, which are wrong
    /// now.
    fn kept_wrong(&self, ino: INodeNo) {
        if self.writeback {
            self.writers.wrong(ino);
            self.notices.forget(ino);
        }
    }

    pub(super) fn drop_privileges(&self, who: Who, node: &Node) -> Result<(), Error> {
        self.ops.drop_privileges(node, |gid| keeps_group(who, gid))
    }

    /// An ACL stands for a mode: set by somebody outside the file's group, it takes set-group-id
    /// away.
    pub(super) fn set_attribute(
        &self,
        who: Who,
        ino: INodeNo,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Error> {
        let node = self.node(ino)?;
        self.ops.set_xattr(&node, name, value, mode)?;
        if name == ACCESS_ACL && node.attr().mode & SET_GROUP != 0 {
            let kept = |mode, gid| if keeps_group(who, gid) { mode } else { mode & !SET_GROUP };
            self.ops.change_mode(&node, kept)?;
        }
        Ok(())
    }

    /// Names of attributes, each with a zero behind. The kernel shows those of administrators to no
    /// others.
    pub(super) fn listed_attributes(&self, who: Who, ino: INodeNo) -> Result<Vec<u8>, Error> {
        let mut names = self.ops.list_xattrs(&self.node(ino)?)?;
        let is_trusted = |name: &Vec<u8>| name.starts_with(TRUSTED);
        if names.iter().any(is_trusted) && !is_capable(who, Capability::SysAdmin) {
            names.retain(|name| !is_trusted(name));
        }
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    /// An ioctl changed attributes of an open file.
    pub(super) fn flags_changed(&self, ino: INodeNo, node: &Node) {
        self.writers.set_floor(ino, self.ops.only_grows(node).then(|| node.attr().size));
        self.notices.attributes_now(ino);
        self.kept_wrong(ino);
    }

    /// Writes, as far as the flags of the file allow. What the kernel kept from before these were
    /// set is written.
    pub(super) fn write_to(
        &self,
        who: Who,
        ino: INodeNo,
        offset: u64,
        data: &[u8],
        how: HowWritten,
    ) -> Result<usize, Error> {
        let node = self.node(ino)?;
        self.ops.check_write(&node)?;
        if !self.ops.only_grows(&node) {
            return self.write_allowed(who, ino, &node, offset, data, how.flags);
        }
        let _alone = self.writers.judge(ino);
        let size = node.attr().size;
        self.check_append(ino, &node, size, offset, data, how)?;
        let len = self.write_allowed(who, ino, &node, offset, data, how.flags)?;
        self.writers.filled(ino, offset..offset.saturating_add(len as u64), size);
        Ok(len)
    }

    /// EPERM for a write that changes what an append-only file of this size has, unless its
    /// descriptor is of the time before.
    fn check_append(
        &self,
        ino: INodeNo,
        node: &Node,
        size: u64,
        offset: u64,
        data: &[u8],
        how: HowWritten,
    ) -> Result<(), Error> {
        let range = offset..offset.saturating_add(data.len() as u64);
        let allowed = match how {
            how if how.flags.contains(WriteFlags::FUSE_WRITE_CACHE) => {
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
    fn has(&self, node: &Node, offset: u64, bytes: &[u8]) -> Result<bool, Error> {
        let mut found = vec![0; bytes.len()];
        Ok(self.ops.read_direct(node, offset, &mut found)? == bytes.len() && found == bytes)
    }

    fn write_allowed(
        &self,
        who: Who,
        ino: INodeNo,
        node: &Node,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, Error> {
        let from_cache = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let strip = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        if strip {
            self.drop_privileges(who, node)?;
        }
        // Who wrote what the kernel's cache held is not known, so limits hold for it.
        let bound = from_cache || who.uid != 0;
        let write = |offset, data| match bound {
            // The cache keeps the times, and tells of them when it has set them.
            true if from_cache => self.ops.write_kept(node, offset, data, strip),
            true => self.ops.write_direct(node, offset, data, strip),
            false => self.ops.without_limits(|| self.ops.write_direct(node, offset, data, strip)),
        };
        // For the same reason it is the file's owner by whom the use of reserved blocks is judged.
        let writer = if from_cache { owner(node) } else { who };
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
        who: Who,
        f: impl Fn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if who.uid == 0 || self.ops.reserve_is_for(who.uid, |group| group == who.gid) {
            return self.ops.with_reserve(f);
        }
        match f() {
            Err(e) if e.is(Errno::NoSpc) && self.reaches_reserve(who) => self.ops.with_reserve(f),
            other => other,
        }
    }

    fn reaches_reserve(&self, who: Who) -> bool {
        self.ops.reserve_is_for(who.uid, |group| is_member(who, group))
            || is_capable(who, Capability::SysResource)
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

    /// What the kernel had accepted could not be written: it has to accept no more, for lack of
    /// space; or to drop what is not allowed.
    pub(super) fn stop_writers(&self, ino: INodeNo, why: &Error) {
        if why.is(Errno::Perm) {
            self.notices.write_back_later(ino);
        }
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
        let how = Open {
            write: true,
            append: flags & APPEND != 0,
            direct: true,
            truncate: flags & TRUNCATE != 0,
        };
        self.ops.check_open(node, how)
    }

    pub(super) fn create_or_open(
        &self,
        who: Who,
        at: (INodeNo, &[u8]),
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Result<(Node, Entry), Error> {
        let node = match self.new_node(who, at, mode, umask, New::File) {
            Err(e) if e.is(Errno::Exist) && flags & EXCLUSIVE == 0 => {
                let node = self.ops.lookup(&self.node(at.0)?, at.1)?;
                self.check_open(&node, flags)?;
                node
            }
            other => other?,
        };
        let entry = self.entry(&node)?;
        Ok((node, entry))
    }

    pub(super) fn seek_node(&self, ino: INodeNo, offset: i64, whence: i32) -> Result<u64, Error> {
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

    /// A page of the counters, on the root directory, for administrators and for the user who
    /// mounted it.
    pub(super) fn stats_page(
        &self,
        who: Who,
        ino: INodeNo,
        input: &[u8],
    ) -> Result<Vec<u8>, Error> {
        self.may_control(who, ino)?;
        self.stats
            .page(input, || stats::document(&self.ops, &self.options))
            .ok_or(Errno::Inval.into())
    }

    /// Sets a tunable, on the root directory, for administrators and for the user who mounted it.
    pub(super) fn set_tunable(
        &self,
        who: Who,
        ino: INodeNo,
        input: &[u8],
    ) -> Result<Vec<u8>, Error> {
        self.may_control(who, ino)?;
        let (name, value) = control::setting(input).ok_or(Errno::Inval)?;
        let holds = match name {
            // What was opened for reading stays so.
            control::READ_ONLY if self.read_only && value == 0 => return Err(Errno::RoFs.into()),
            control::READ_ONLY => value,
            _ => self.ops.set_tunable(name, value)?,
        };
        Ok(control::encode_setting(name, holds).ok_or(Errno::Inval)?.to_vec())
    }

    fn may_control(&self, who: Who, ino: INodeNo) -> Result<(), Error> {
        if ino != INodeNo::ROOT {
            return Err(Errno::NotTy.into());
        }
        let is_owner = self.owner != 0 && who.uid == self.owner;
        if !is_owner && !is_capable(who, Capability::SysAdmin) {
            return Err(Errno::Acces.into());
        }
        Ok(())
    }
}
