//! create, mknod, mkdir, symlink, O_TMPFILE.

use super::{Node, Operations};
use crate::dir::{self, NewName};
use crate::error::{Errno, Result};
use crate::inode::{Inode, Step, Tx};
use crate::quota::{Change, Owners};
use crate::vfs::{Caller, Target, check_name};
use crate::{extent, file, xattr};
use extant_format::error::Corrupt;
use extant_format::inode::{self as disk, InodeFlags, can_store_rdev};
use extant_format::types::{FileType, Timestamp};
use extant_sync::atomic::Ordering;
use std::sync::Arc;

/// The kind of a new inode, for [`Operations::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeKind<'a> {
    /// An empty regular file.
    File,
    /// An empty directory.
    Dir,
    /// A symlink with this target.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device: major, minor.
    CharDevice(u32, u32),
    /// A block device: major, minor.
    BlockDevice(u32, u32),
}

impl NodeKind<'_> {
    fn ftype(&self) -> FileType {
        match self {
            NodeKind::File => FileType::Regular,
            NodeKind::Dir => FileType::Directory,
            NodeKind::Symlink(_) => FileType::Symlink,
            NodeKind::Fifo => FileType::Fifo,
            NodeKind::Socket => FileType::Socket,
            NodeKind::CharDevice(..) => FileType::CharDevice,
            NodeKind::BlockDevice(..) => FileType::BlockDevice,
        }
    }

    /// The device number of device files (major, minor).
    fn rdev(&self) -> Option<(u32, u32)> {
        match *self {
            NodeKind::CharDevice(major, minor) | NodeKind::BlockDevice(major, minor) => {
                Some((major, minor))
            }
            _ => None,
        }
    }
}

/// A request for a new inode.
#[derive(Clone, Copy)]
struct Asked<'a> {
    kind: NodeKind<'a>,
    /// Permission bits.
    mode: u16,
    caller: &'a Caller<'a>,
}

/// Links that a directory may have, unless dir_nlink lets the count be unknown.
pub(super) const MAX_DIR_LINKS: u16 = 65000;

/// Flags that a new inode takes over from its directory.
const INHERITED: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::NOCOMPR)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::CASEFOLD)
    .union(InodeFlags::DAX)
    .union(InodeFlags::PROJINHERIT);

/// The inode that hides a name from lower layers: a character device 0:0.
const WHITEOUT: NodeKind<'_> = NodeKind::CharDevice(0, 0);

/// The mode bit of a directory that hands its group down.
const SETGID: u16 = 0o2000;

/// The mode bits of a program that runs with the rights of its group.
const GROUP_PROGRAM: u16 = SETGID | 0o010;

/// The project that a directory hands down.
fn inherited_project(dir: &disk::Inode) -> u32 {
    if dir.flags.contains(InodeFlags::PROJINHERIT) { dir.projid } else { 0 }
}

/// Returns the inherited flags that apply to a type.
fn inherited(dir: InodeFlags, ftype: FileType) -> InodeFlags {
    let flags = dir & INHERITED;
    match ftype {
        FileType::Directory => flags,
        FileType::Regular => {
            flags & !(InodeFlags::DIRSYNC | InodeFlags::CASEFOLD | InodeFlags::PROJINHERIT)
        }
        _ => flags & (InodeFlags::NODUMP | InodeFlags::NOATIME),
    }
}

impl Operations {
    /// Makes `name` in `dir`, for root. `mode` are permission bits. EEXIST if the name is there.
    pub fn create(&self, dir: &Node, name: &[u8], mode: u16, kind: NodeKind<'_>) -> Result<Node> {
        self.create_as(&Caller::default(), (dir, name), mode, kind)
    }

    /// As [`Operations::create`], for a caller. A set-group-id directory hands its group down; a
    /// file that the group may execute does not become set-group-id then unless the caller is root
    /// or has that group. EDQUOT beyond the limits of an owner.
    pub fn create_as(
        &self,
        caller: &Caller<'_>,
        (dir, name): (&Node, &[u8]),
        mode: u16,
        kind: NodeKind<'_>,
    ) -> Result<Node> {
        self.own(dir)?;
        check_name(name)?;
        self.check_kind(&kind)?;
        self.with_space(|| self.create_once(&dir.0, name, Asked { kind, mode, caller }))
    }

    /// Makes a file without a name (O_TMPFILE); it is held once and goes with its last holder
    /// unless it is linked, which is possible as long as it never had a name. Until then
    /// [`Operations::node`] does not find it, unless [`Operations::make_findable`] says that it has
    /// to.
    pub fn create_nameless(&self, caller: &Caller<'_>, dir: &Node, mode: u16) -> Result<Node> {
        self.own(dir)?;
        self.with_space(|| {
            let dir = &dir.0;
            check_dir(dir)?;
            dir::check_key(dir)?;
            let _lock = self.lock_thawed(|| dir.read_lock())?;
            dir.check_live()?;
            check_dir_writable(dir)?;
            let st = self.st();
            let plan = self.plan(dir, Asked { kind: NodeKind::File, mode, caller })?;
            // Each missing record takes a handle of its own: before this one opens.
            plan.owners(self)?;
            let mut tx = st.begin(self.new_credits(&plan))?.with_rights(caller.rights());
            let inode = self.with_new(&mut tx, &plan, |tx, inode| {
                tx.step(|step| {
                    st.orphans.add(step, inode)?;
                    step.edit(inode)?.links = 0;
                    Ok(inode.clone())
                })
            })?;
            inode.linkable.store(true, Ordering::Release);
            inode.hold(1)?;
            Ok(Node(self.vfs.inodes.insert_nameless(inode)))
        })
    }

    /// A file without a name is to be found by its number from now on, as a FUSE kernel asks for
    /// it. ESTALE if it is being freed.
    pub fn make_findable(&self, node: &Node) -> Result<()> {
        self.own(node)?;
        let _own = node.0.read_lock()?;
        self.vfs.inodes.enter(&node.0);
        Ok(())
    }

    fn check_kind(&self, kind: &NodeKind<'_>) -> Result<()> {
        match kind {
            NodeKind::Symlink([]) => Err(Errno::NoEnt.into()),
            NodeKind::Symlink(target) if target.len() >= self.st().block_size().min(4096) => {
                Err(Errno::NameTooLong.into())
            }
            // Readers would end the target at the zero byte.
            NodeKind::Symlink(target) if target.contains(&0) => Err(Errno::Inval.into()),
            _ if kind.rdev().is_some_and(|rdev| !can_store_rdev(rdev)) => Err(Errno::Inval.into()),
            _ => Ok(()),
        }
    }

    fn create_once(&self, dir: &Arc<Inode>, name: &[u8], asked: Asked<'_>) -> Result<Node> {
        check_dir(dir)?;
        let st = self.st();
        st.writable()?;
        let ftype = asked.kind.ftype();
        let _lock = self.lock_thawed(|| dir.write_lock())?;
        let slot = self.free_slot(dir, name, ftype)?;
        let plan = self.plan(dir, asked)?;
        // Each missing record takes a handle of its own: before this one opens.
        plan.owners(self)?;
        let credits = self.new_credits(&plan)
            + dir::insert_credits(st, dir)
            + 1
            + link_credits(st, &asked.kind);
        let mut tx = st.begin(credits)?.with_rights(asked.caller.rights());
        tx.touch(dir)?;
        let more = i32::from(ftype == FileType::Directory);
        let inode = self.with_new(&mut tx, &plan, |tx, inode| {
            let new = NewName { name, ino: inode.ino, ftype, slot: Some(&slot) };
            dir::insert(st, tx, dir, new, |step| {
                self.touch_dir_at(step, dir, more, inode.stat().ctime)?;
                Ok(inode.clone())
            })
        })?;
        let node = Node(self.vfs.inodes.insert(inode));
        let target = Target { ino: node.0.ino, generation: node.0.generation, ftype };
        self.vfs.remember(dir, name, Some(target));
        Ok(node)
    }

    fn free_slot(&self, dir: &Arc<Inode>, name: &[u8], ftype: FileType) -> Result<dir::InsertSlot> {
        let slot = self.vfs.slot_locked(dir, name)?;
        dir.check_live().map_err(|_| Errno::NoEnt)?;
        check_dir_writable(dir)?;
        dir::check_key(dir)?;
        let links = dir.stat().links;
        if ftype == FileType::Directory && links >= MAX_DIR_LINKS && !self.st().geo.has_dir_nlink()
        {
            Err(Errno::Mlink.into())
        } else {
            Ok(slot)
        }
    }

    /// Returns the attributes that the new inode gets from its directory and its creator.
    fn plan<'a>(&self, dir: &'a Arc<Inode>, asked: Asked<'a>) -> Result<Plan<'a>> {
        let Asked { kind, mode: asked, caller } = asked;
        let (st, ftype) = (self.st(), kind.ftype());
        let (dir_mode, dir_gid, dir_flags, projid) = {
            let body = dir.body();
            (body.mode, body.gid, body.flags, inherited_project(&body))
        };
        let inherit = if ftype == FileType::Symlink {
            xattr::Inherited::plain(asked)
        } else {
            xattr::inherit_acl(st, dir, asked, caller.umask, ftype)?
        };
        let setgid = dir_mode & SETGID != 0;
        let mut mode = inherit.mode & 0o7777 | ftype.to_mode();
        if setgid && ftype == FileType::Directory {
            mode |= SETGID;
        } else if setgid && asked & GROUP_PROGRAM == GROUP_PROGRAM && !caller.may_act_for(dir_gid) {
            mode &= !SETGID;
        }
        let flags = inherited(dir_flags, ftype);
        Ok(Plan {
            dir,
            kind,
            mode,
            uid: caller.uid,
            gid: if setgid { dir_gid } else { caller.gid },
            flags,
            projid,
            acl: inherit.acls,
        })
    }

    fn new_credits(&self, plan: &Plan<'_>) -> u32 {
        let st = self.st();
        let acl: u32 = plan.acl.iter().map(|(_, v)| xattr::credits(st, v.len())).sum();
        let acl = acl.min(st.journal.max_credits() / 4 * 3);
        crate::alloc::Alloc::INODE_CREDITS
            + crate::orphan::Orphans::CREDITS
            + 2
            + acl
            + st.owner_credits()
    }

    /// Makes an inode, and runs `rest`, which gives it a name or an orphan record; the handle must
    /// not be restarted before. After an error the inode becomes an orphan, which the reaper frees.
    pub(super) fn with_new<'a, R>(
        &self,
        tx: &mut Tx<'a>,
        plan: &Plan<'_>,
        rest: impl FnOnce(&mut Tx<'a>, &Arc<Inode>) -> Result<R>,
    ) -> Result<R> {
        let inode = self.new_inode(tx, plan)?;
        let done = self.fill(tx, &inode, plan).and_then(|()| rest(tx, &inode));
        if done.is_err() {
            self.drop_new(tx, &inode);
        }
        done
    }

    /// Takes a number, and makes the inode in memory.
    fn new_inode(&self, tx: &mut Tx<'_>, plan: &Plan<'_>) -> Result<Arc<Inode>> {
        let st = self.st();
        // Before anything is changed: limits may forbid it.
        let owners = Owners::new(&st.quota, plan.ids());
        let one = Change { inodes: 1, ..Change::default() };
        let bound = !tx.rights().ignore_limits;
        tx.obtain(|h| st.quota.charge_within(h, owners, one, bound))?;
        let made = self.make_inode(tx, plan);
        if made.is_err()
            && let Err(e) = tx.obtain(|h| st.quota.charge_within(h, owners, one.reversed(), false))
        {
            st.abort(&e);
        }
        made
    }

    fn make_inode(&self, tx: &mut Tx<'_>, plan: &Plan<'_>) -> Result<Arc<Inode>> {
        let (st, Plan { dir, kind, .. }) = (self.st(), plan);
        let ftype = kind.ftype();
        let ino = tx.obtain(|h| st.alloc.new_inode(h, dir.near(), ftype))?;
        if self.vfs.inodes.peek(ino).is_some_and(|known| !known.freeing()) {
            // The number stays marked as in use, which it is.
            return Err(Corrupt::new("inode bitmap")
                .field("an inode in use marked as free")
                .at_inode(ino)
                .into());
        }
        let now = st.now();
        let mut body = disk::Inode::new(&st.geo, plan.mode, now);
        body.uid = plan.uid;
        body.gid = plan.gid;
        body.flags = plan.flags;
        body.projid = plan.projid;
        body.links = if ftype == FileType::Directory { 2 } else { 1 };
        body.generation = st.rng.next_u32();
        if *kind == NodeKind::File {
            file::init(st, &mut body);
        }
        kind.rdev().into_iter().for_each(|rdev| body.set_rdev(rdev));
        let inode = Inode::fresh(st, ino, body);
        if let Err(e) = tx.touch_new(&inode) {
            // Nothing knows of the inode yet: only its number is to be given back.
            if let Err(why) = tx.obtain(|h| st.alloc.free_inode(h, ino, ftype, true)) {
                st.abort(&why);
            }
            return Err(e);
        }
        // There is nothing to read without the inode.
        tx.note_datasync(&inode);
        Ok(inode)
    }

    /// Attributes of a new whiteout: it belongs to the caller; group, flags and project come from
    /// its directory, as with the kernel. A default ACL is not inherited, since a whiteout has no
    /// permissions.
    pub(super) fn plan_whiteout<'a>(&self, caller: &Caller<'_>, dir: &'a Arc<Inode>) -> Plan<'a> {
        let body = dir.body();
        Plan {
            dir,
            kind: WHITEOUT,
            mode: FileType::CharDevice.to_mode(),
            uid: caller.uid,
            gid: if body.mode & SETGID != 0 { body.gid } else { caller.gid },
            flags: inherited(body.flags, FileType::CharDevice),
            projid: inherited_project(&body),
            acl: Vec::new(),
        }
    }

    fn fill(&self, tx: &mut Tx<'_>, inode: &Arc<Inode>, plan: &Plan<'_>) -> Result<()> {
        let st = self.st();
        match plan.kind {
            NodeKind::Dir => {
                tx.step(|step| extent::init(st, step, inode))?;
                tx.step(|step| dir::init(st, step, inode, plan.dir.ino))?;
            }
            NodeKind::Symlink(target) => file::set_link(st, tx, inode, target)?,
            _ => {}
        }
        for (name, value) in &plan.acl {
            xattr::set(st, tx, inode, (name, Some(value)), xattr::Mode::Any)?;
        }
        Ok(())
    }

    /// Makes an orphan of a new inode.
    fn drop_new(&self, tx: &mut Tx<'_>, inode: &Arc<Inode>) {
        let st = self.st();
        let dropped = tx.step(|step| {
            step.edit(inode)?.links = 0;
            st.orphans.add(step, inode)
        });
        if let Err(e) = dropped {
            return st.abort(&e);
        }
        self.vfs.inodes.insert(inode.clone());
        self.queue_for_reaper(inode);
    }

    /// A name came into or left `dir`: times, and `links` more subdirectories.
    pub(super) fn touch_dir(
        &self,
        step: &mut Step<'_>,
        dir: &Arc<Inode>,
        links: i32,
    ) -> Result<()> {
        self.touch_dir_at(step, dir, links, self.st().now())
    }

    /// As [`Self::touch_dir`], at a time that was looked up before.
    pub(super) fn touch_dir_at(
        &self,
        step: &mut Step<'_>,
        dir: &Arc<Inode>,
        links: i32,
        now: Timestamp,
    ) -> Result<()> {
        let mut body = step.edit(dir)?;
        body.mtime = now;
        body.ctime = now;
        body.links = dir_links(body.links, links);
        Ok(())
    }
}

/// The link count of a directory: 1 stands for "too many to count".
fn dir_links(now: u16, by: i32) -> u16 {
    match now {
        1 => 1,
        n => match i32::from(n) + by {
            m if m > i32::from(MAX_DIR_LINKS) => 1,
            m => m.max(2) as u16,
        },
    }
}

/// A new inode.
pub(super) struct Plan<'a> {
    /// The directory in which it is made.
    dir: &'a Arc<Inode>,
    kind: NodeKind<'a>,
    mode: u16,
    uid: u32,
    gid: u32,
    flags: InodeFlags,
    projid: u32,
    acl: Vec<(&'static [u8], Vec<u8>)>,
}

impl Plan<'_> {
    fn ids(&self) -> (u32, u32, u32) {
        (self.uid, self.gid, self.projid)
    }

    /// Creates missing records of the owners that will be charged. No handle may be open.
    pub(super) fn owners(&self, ops: &Operations) -> Result<()> {
        ops.new_owners(self.ids()).map(drop)
    }
}

fn link_credits(st: &crate::store::Store, kind: &NodeKind<'_>) -> u32 {
    match kind {
        NodeKind::Symlink(target) if target.len() >= 60 => st.alloc.credits(1) + 4,
        NodeKind::Dir => st.alloc.credits(1) + 4,
        _ => 0,
    }
}

pub(super) fn check_dir(dir: &Inode) -> Result<()> {
    if dir.is_dir() { Ok(()) } else { Err(Errno::NotDir.into()) }
}

/// EPERM for a directory to which no name may be added.
pub(super) fn check_dir_writable(dir: &Inode) -> Result<()> {
    if dir.flags().contains(InodeFlags::IMMUTABLE) { Err(Errno::Perm.into()) } else { Ok(()) }
}
