//! Extended attributes: in the inode, in a shared block, in inodes of their own; POSIX ACLs.
//!
//! # Locking
//! The caller holds the inode's `rw` lock (reading for [`get`] and [`list`]).

use crate::error::Result;
use crate::inode::Inode;
use crate::store::Store;
use extant_format::types::FileType;
use extant_journal::Handle;
use std::sync::Arc;

/// What must hold of the attribute before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Any,
    /// It must not exist (EEXIST).
    Create,
    /// It must exist (ENODATA).
    Replace,
}

/// Value of a full name as system calls have it (`user.x`); ACLs come in the version of the system call. ENODATA if absent.
pub fn get(st: &Store, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    let _ = (st, inode, name);
    todo!()
}

/// Sets or (value `None`) removes one. Namespaces that are not known: EOPNOTSUPP; too large: ENOSPC or ERANGE as Linux has it. Removing what is not there:
/// ENODATA. Does not touch ctime or the mode.
pub fn set(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, name: &[u8], value: Option<&[u8]>, mode: Mode) -> Result<()> {
    let _ = (st, h, inode, name, value, mode);
    todo!()
}

/// All full names, `system.data` left out.
pub fn list(st: &Store, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    let _ = (st, inode);
    todo!()
}

/// Credits that one [`set`] may cost.
pub fn credits(st: &Store, value_len: usize) -> u32 {
    let _ = (st, value_len);
    todo!()
}

/// Drops the block and the attribute inodes of an inode that is being freed; returns false when the handle must be restarted first.
pub fn release(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<bool> {
    let _ = (st, h, inode);
    todo!()
}

/// The second part of inline data (`system.data`), empty if there is none.
pub fn inline_get(st: &Store, inode: &Inode) -> Result<Vec<u8>> {
    let _ = (st, inode);
    todo!()
}

/// Sets (`Some`, possibly empty) or removes the second part of inline data; ENOSPC when it does not fit in the inode.
pub fn inline_set(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, value: Option<&[u8]>) -> Result<()> {
    let _ = (st, h, inode, value);
    todo!()
}

/// Bytes that the second part of inline data may have in this inode.
pub fn inline_room(st: &Store, inode: &Inode) -> usize {
    let _ = (st, inode);
    todo!()
}

/// What a new inode inherits of its directory's default ACL.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// The mode after the ACL or the umask.
    pub mode: u16,
    /// Full names and values.
    pub acls: Vec<(&'static [u8], Vec<u8>)>,
}

impl Inherited {
    /// Nothing but a mode.
    pub fn plain(mode: u16) -> Inherited {
        Inherited { mode, acls: Vec::new() }
    }
}

/// What an ACL says about the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclCheck {
    /// Permission bits (0o777).
    pub mode: u16,
    /// Only the three base entries are there.
    pub minimal: bool,
}

/// The access ACL (system call version) after a change of mode; `None` without one.
pub fn acl_after_chmod(st: &Store, inode: &Inode, mode: u16) -> Result<Option<Vec<u8>>> {
    let _ = (st, inode, mode);
    todo!()
}

/// Mode and ACLs of a new inode in `dir`.
pub fn inherit_acl(st: &Store, dir: &Inode, mode: u16, umask: u16, ftype: FileType) -> Result<Inherited> {
    let _ = (st, dir, mode, umask, ftype);
    todo!()
}

/// Verifies an ACL (system call version); EINVAL if it is malformed.
pub fn check_acl(value: &[u8]) -> Result<AclCheck> {
    let _ = value;
    todo!()
}
