//! unlink and rmdir.

use super::create::{check_dir, check_dir_writable};
use super::{Node, Operations, lock_dirs};
use crate::alloc::Alloc;
use crate::error::{Errno, Result};
use crate::inode::{Inode, Step};
use crate::orphan::Orphans;
use crate::vfs::check_name;
use crate::{dir, file};
use extant_format::inode::InodeFlags;
use std::sync::Arc;

/// The state of an inode after the removal of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// It has other names.
    Named,
    /// It has an orphan record, and is freed when its last holder releases it.
    Orphan,
    /// Nothing: it was freed.
    Freed,
    /// Nothing, not even something to be written.
    Unmade,
}

impl Operations {
    /// Removes a name that is not a directory's.
    pub fn unlink(&self, dir: &Node, name: &[u8]) -> Result<()> {
        self.own(dir)?;
        check_removable_name(name, Errno::IsDir)?;
        self.remove_name(&dir.0, name, false)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: &Node, name: &[u8]) -> Result<()> {
        self.own(dir)?;
        match name {
            b"." => return Err(Errno::Inval.into()),
            b".." => return Err(Errno::NotEmpty.into()),
            _ => check_name(name)?,
        }
        self.remove_name(&dir.0, name, true)
    }

    fn remove_name(&self, dir: &Arc<Inode>, name: &[u8], is_dir: bool) -> Result<()> {
        check_dir(dir)?;
        self.st().writable()?;
        let (child, left) =
            if is_dir { self.remove_dir(dir, name)? } else { self.remove_file(dir, name)? };
        match left {
            Left::Orphan => {
                self.vfs.inodes.lost_name(&child);
                self.bury_or_free(&child);
            }
            Left::Unmade => self.forget_unmade(child),
            Left::Named | Left::Freed => {}
        }
        Ok(())
    }

    fn remove_file(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<(Arc<Inode>, Left)> {
        let _dir = self.lock_thawed(|| dir.write_lock())?;
        let pos = dir::find(self.st(), dir, name)?.ok_or(Errno::NoEnt)?;
        let child = self.vfs.inode(pos.found().ino)?;
        check_kind(&child, false)?;
        let left = {
            let _file = child.rw.write();
            self.remove_locked(dir, name, &child, &pos)?
        };
        Ok((child, left))
    }

    fn remove_dir(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<(Arc<Inode>, Left)> {
        loop {
            // Directories are locked in an order that does not begin with this one.
            let child = self.child_inode(dir, name)?;
            check_kind(&child, true)?;
            let _dirs = self.lock_thawed(|| lock_dirs([dir, &child]));
            dir.check_not_freed()?;
            if let Some(pos) = self.pos_of(dir, name, &child)? {
                let left = self.remove_locked(dir, name, &child, &pos)?;
                return Ok((child, left));
            }
        }
    }

    /// Where `name` stands in `dir`, which is locked, if it still leads to `child`.
    fn pos_of(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        child: &Inode,
    ) -> Result<Option<dir::EntryPos>> {
        let Some(pos) = dir::find(self.st(), dir, name)? else { return Ok(None) };
        let now = self.vfs.inode(pos.found().ino)?;
        Ok((now.ino == child.ino && now.generation == child.generation).then_some(pos))
    }

    /// The inode that `name` leads to now.
    pub(super) fn child_inode(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Arc<Inode>> {
        self.vfs.child_inode(dir, name)?.ok_or(Errno::NoEnt.into())
    }

    /// Whether `name` still leads to `child`, with the directory locked.
    pub(super) fn still_leads(&self, dir: &Arc<Inode>, name: &[u8], child: &Inode) -> Result<bool> {
        let target = self.vfs.child_locked(dir, name)?;
        Ok(target.is_some_and(|t| t.ino == child.ino && t.generation == child.generation))
    }

    /// Both are locked.
    fn remove_locked(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        child: &Arc<Inode>,
        pos: &dir::EntryPos,
    ) -> Result<Left> {
        let st = self.st();
        check_dir_writable(dir)?;
        check_removable(dir, child)?;
        if child.is_dir() && !dir::is_empty(st, child)? {
            return Err(Errno::NotEmpty.into());
        }
        let bare = self.is_bare(child);
        let freeing = if bare { Alloc::INODE_CREDITS + st.owner_credits() } else { 0 };
        let mut tx = st.begin(dir::CHANGE_CREDITS + 2 + Orphans::CREDITS + freeing)?;
        tx.touch(dir)?;
        tx.touch(child)?;
        tx.step(|step| {
            dir::remove_at(st, step, dir, pos)?;
            let now = st.now();
            self.touch_dir_at(step, dir, -i32::from(child.is_dir()), now)?;
            self.vfs.remember(dir, name, None);
            // From here on no caller can open it.
            if bare && child.begin_free() {
                self.free_number(step, child, now)
            } else {
                self.drop_link(step, child)
            }
        })
    }

    /// Returns whether this is a file's last name, and the file has nothing to free but its number,
    /// whose bitmap is readable. Such a file is freed with its name, unless it has a holder, and
    /// needs no orphan record.
    fn is_bare(&self, child: &Inode) -> bool {
        let last = !child.is_dir() && child.stat().links <= 1 && !child.held();
        // Where the bitmap cannot be trusted, its error comes when the orphan is to be freed.
        last && file::owns_nothing(child)
            && self.st().alloc.inode_in_use(child.ino).unwrap_or(false)
    }

    /// Takes one link (a directory's all) from a locked inode; records an orphan when none is left.
    pub(super) fn drop_link(&self, step: &mut Step<'_>, child: &Arc<Inode>) -> Result<Left> {
        let st = self.st();
        let left = {
            let now = st.now();
            let mut body = step.edit(child)?;
            body.links = if child.is_dir() { 0 } else { body.links.saturating_sub(1) };
            body.ctime = now;
            body.links
        };
        if left > 0 {
            return Ok(Left::Named);
        }
        st.orphans.add(step, child)?;
        Ok(Left::Orphan)
    }
}

fn check_kind(child: &Inode, want_dir: bool) -> Result<()> {
    match (child.is_dir(), want_dir) {
        (true, false) => Err(Errno::IsDir.into()),
        (false, true) => Err(Errno::NotDir.into()),
        _ => Ok(()),
    }
}

/// EPERM where flags protect the directory's names or the inode.
pub(super) fn check_removable(dir: &Inode, child: &Inode) -> Result<()> {
    let protect = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    let denied = dir.flags().contains(InodeFlags::APPEND) || child.flags().intersects(protect);
    if denied { Err(Errno::Perm.into()) } else { Ok(()) }
}

/// A name that is neither `.` nor `..`.
pub(super) fn check_removable_name(name: &[u8], dots: Errno) -> Result<()> {
    match name {
        b"." | b".." => Err(dots.into()),
        _ => check_name(name),
    }
}
