//! link.

use super::create::{check_dir, check_dir_writable};
use super::{Node, Operations, lock_inodes};
use crate::dir::{self, NewName};
use crate::error::{Errno, Result};
use crate::inode::Inode;
use crate::orphan::Orphans;
use crate::vfs::{Target, check_name};
use extant_format::inode::InodeFlags;
use extant_format::types::FileType;
use extant_sync::atomic::Ordering;
use std::sync::Arc;

/// Links that an inode may have.
const MAX_LINKS: u16 = 65000;

impl Operations {
    /// Gives `node` another name. A file that was made by [`Operations::create_nameless`] gets its
    /// first. ENOENT for one that has lost its last name.
    pub fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        self.own(node)?;
        self.own(dir)?;
        check_name(name)?;
        check_dir(&dir.0)?;
        if node.0.ftype == FileType::Directory {
            return Err(Errno::Perm.into());
        }
        self.with_space(|| self.link_once(node, &dir.0, name))
    }

    fn link_once(&self, node: &Node, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        let (st, inode): (_, &Arc<Inode>) = (self.st(), &node.0);
        st.writable()?;
        let _dir = self.lock_thawed(|| dir.rw.write());
        let _own = lock_inodes([inode]);
        if self.vfs.child_locked(dir, name)?.is_some() {
            return Err(Errno::Exist.into());
        }
        dir.check_live().map_err(|_| Errno::NoEnt)?;
        check_dir_writable(dir)?;
        dir::check_key(dir)?;
        let nameless = self.check_linkable(inode, dir)?;
        let mut tx = st.begin(dir::insert_credits(st, dir) + 2 + Orphans::CREDITS)?;
        tx.touch(dir)?;
        tx.touch(inode)?;
        if nameless {
            // Before its slot can say that it has a link: then it could be loaded a second time.
            self.vfs.inodes.enter(&node.0);
        }
        let new = NewName { name, ino: inode.ino, ftype: inode.ftype, slot: None };
        dir::insert(st, &mut tx, dir, new, |step| {
            if nameless {
                st.orphans.remove(step, inode)?;
            }
            {
                let mut body = step.edit(inode)?;
                body.links += 1;
                body.ctime = st.now();
            }
            self.touch_dir(step, dir, 0)
        })?;
        if nameless {
            inode.linkable.store(false, Ordering::Release);
        }
        let target = Target { ino: inode.ino, generation: inode.generation, ftype: inode.ftype };
        self.vfs.remember(dir, name, Some(target));
        Ok(())
    }

    /// Whether the inode has no name yet; an error if it may not get one.
    fn check_linkable(&self, inode: &Inode, dir: &Inode) -> Result<bool> {
        let project = {
            let body = dir.body();
            body.flags.contains(InodeFlags::PROJINHERIT).then_some(body.projid)
        };
        let body = inode.body();
        if body.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(Errno::Perm.into());
        }
        if project.is_some_and(|p| p != body.projid) {
            return Err(Errno::Xdev.into());
        }
        match body.links {
            0 if inode.linkable.load(Ordering::Acquire) && inode.held() && !inode.freeing() => {
                Ok(true)
            }
            0 => Err(Errno::NoEnt.into()),
            n if n >= MAX_LINKS => Err(Errno::Mlink.into()),
            _ => Ok(false),
        }
    }
}
