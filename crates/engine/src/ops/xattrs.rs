//! Extended attributes.

use super::{Node, Operations};
use crate::error::{Errno, Result};
use crate::inode::Inode;
use crate::xattr;
pub use crate::xattr::Mode;
use extant_format::inode::InodeFlags;
use extant_format::types::FileType;
use std::sync::Arc;

impl Operations {
    /// Value of an attribute (`user.x`, `security.x` …). ENODATA if there is none.
    pub fn get_xattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        self.own(node)?;
        let _lock = node.0.read_lock()?;
        xattr::get(self.st(), &node.0, name)
    }

    /// Names of all attributes.
    pub fn list_xattrs(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        self.own(node)?;
        let _lock = node.0.read_lock()?;
        xattr::list(self.st(), &node.0)
    }

    /// Sets an attribute. An access ACL changes the mode, too, and vanishes if it says no more than
    /// the mode.
    pub fn set_xattr(&self, node: &Node, name: &[u8], value: &[u8], mode: Mode) -> Result<()> {
        self.own(node)?;
        check_namespace(&node.0, name)?;
        self.with_space(|| self.change_xattr(&node.0, name, Some(value), mode))
    }

    /// Removes an attribute. ENODATA if there is none; an ACL need not be there, as with the
    /// kernel.
    pub fn remove_xattr(&self, node: &Node, name: &[u8]) -> Result<()> {
        self.own(node)?;
        let acl = name.starts_with(b"system.posix_acl_");
        match check_namespace(&node.0, name) {
            // Only directories have default ACLs, so that there is none to be removed.
            Err(e) if e.is(Errno::Acces) => return Ok(()),
            checked => checked?,
        }
        match self.with_space(|| self.change_xattr(&node.0, name, None, Mode::Any)) {
            Err(e) if acl && e.is(Errno::NoData) => Ok(()),
            done => done,
        }
    }

    fn change_xattr(
        &self,
        inode: &Arc<Inode>,
        name: &[u8],
        value: Option<&[u8]>,
        mode: Mode,
    ) -> Result<()> {
        let st = self.st();
        st.writable()?;
        let _lock = self.lock_thawed(|| inode.write_lock())?;
        if inode.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(Errno::Perm.into());
        }
        let acl = match value {
            Some(value) if name == b"system.posix_acl_access" => Some(xattr::check_acl(value)?),
            Some(value) if name == b"system.posix_acl_default" => {
                xattr::check_acl(value)?;
                None
            }
            _ => None,
        };
        let is_acl = name == b"system.posix_acl_access";
        let _restricting = is_acl.then(|| self.vfs.restricting(inode)).flatten();
        let mut tx = st.begin(xattr::credits(st, value.map_or(0, <[u8]>::len)) + 1)?;
        let stored = if acl.is_some_and(|a| a.minimal) { None } else { value };
        tx.touch(inode)?;
        let set = xattr::set(st, &mut tx, inode, (name, stored), mode);
        self.queue_left_values();
        match set {
            // An ACL that the mode replaces need not have been there.
            Err(e) if e.is(Errno::NoData) && value.is_some() && stored.is_none() => {}
            other => other?,
        }
        tx.step(|step| {
            let mut body = step.edit(inode)?;
            if let Some(acl) = acl {
                body.mode = (body.mode & !0o777) | acl.mode;
            }
            body.ctime = st.now();
            Ok(())
        })
    }
}

fn check_namespace(inode: &Inode, name: &[u8]) -> Result<()> {
    // A NUL ends a name in a list of names.
    if name.contains(&0) {
        return Err(Errno::Inval.into());
    }
    let plain = matches!(inode.ftype, FileType::Regular | FileType::Directory);
    if name.starts_with(b"user.") && !plain {
        return Err(Errno::Perm.into());
    }
    let acl = name.starts_with(b"system.posix_acl_");
    match acl && inode.ftype == FileType::Symlink
        || name == b"system.posix_acl_default" && !inode.is_dir()
    {
        true if inode.ftype == FileType::Symlink => Err(Errno::OpNotSupp.into()),
        true => Err(Errno::Acces.into()),
        false => Ok(()),
    }
}
