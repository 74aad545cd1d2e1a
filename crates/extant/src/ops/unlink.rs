//! unlink and rmdir.

use super::create::{check_dir, check_dir_writable};
use super::{Node, Operations, lock_dirs, lock_inodes};
use crate::dir;
use crate::error::{Errno, Result};
use crate::inode::Inode;
use crate::orphan::Orphans;
use crate::vfs::check_name;
use extant_format::inode::InodeFlags;
use extant_journal::Handle;
use std::sync::Arc;

impl Operations {
    /// Removes a name that is not a directory's.
    pub fn unlink(&self, dir: &Node, name: &[u8]) -> Result<()> {
        check_removable_name(name, Errno::IsDir)?;
        self.remove_name(&dir.0, name, false)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: &Node, name: &[u8]) -> Result<()> {
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
        loop {
            let child = self.child_inode(dir, name)?;
            check_kind(&child, is_dir)?;
            let _dirs = lock_dirs([dir, &child]);
            let _files = lock_inodes([&child]);
            if !self.still_leads(dir, name, &child)? {
                continue;
            }
            let last = self.remove_locked(dir, name, &child)?;
            drop((_dirs, _files));
            if last {
                self.bury_or_free(&child);
            }
            return Ok(());
        }
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

    /// Both are locked. True if that was the last name.
    fn remove_locked(&self, dir: &Arc<Inode>, name: &[u8], child: &Arc<Inode>) -> Result<bool> {
        let st = self.st();
        check_dir_writable(dir)?;
        check_removable(dir, child)?;
        if child.is_dir() && !dir::is_empty(st, child)? {
            return Err(Errno::NotEmpty.into());
        }
        let mut h = st.start(dir::CHANGE_CREDITS + 2 + Orphans::CREDITS)?;
        // Before anything is changed: their slots can be read.
        dir.touch(st, &mut h)?;
        child.touch(st, &mut h)?;
        st.whole(&mut h, |h| {
            dir::remove(st, h, dir, name)?;
            self.touch_dir(h, dir, -i32::from(child.is_dir()))?;
            self.vfs.remember(dir, name, None);
            self.drop_link(h, child)
        })
    }

    /// Takes one link (a directory's all) from a locked inode; records an orphan when none is left.
    pub(super) fn drop_link(&self, h: &mut Handle<'_>, child: &Arc<Inode>) -> Result<bool> {
        let st = self.st();
        let left = {
            let now = st.now();
            let mut body = child.edit(st, h)?;
            body.links = if child.is_dir() { 0 } else { body.links.saturating_sub(1) };
            body.ctime = now;
            body.links
        };
        if left == 0 {
            st.orphans.add(st, h, child)?;
        }
        Ok(left == 0)
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
    let denied = dir.body().flags.contains(InodeFlags::APPEND) || child.body().flags.intersects(protect);
    match denied {
        true => Err(Errno::Perm.into()),
        false => Ok(()),
    }
}

/// A name that is neither `.` nor `..`.
pub(super) fn check_removable_name(name: &[u8], dots: Errno) -> Result<()> {
    match name {
        b"." | b".." => Err(dots.into()),
        _ => check_name(name),
    }
}
