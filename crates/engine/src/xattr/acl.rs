//! POSIX ACLs: between the disk's version and that of system calls, and between ACLs and modes.

use super::AttrEnv;
use super::get_stored;
use super::names::{ACCESS, ACL_ACCESS, ACL_DEFAULT, DEFAULT};
use crate::error::{Errno, Result};
use crate::inode::Inode;
use extant_format::acl::Acl;
use extant_format::types::FileType;
use std::sync::Arc;

/// What a new inode gets of its directory's default ACL.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// The mode after the ACL, or without one the umask, was applied.
    pub mode: u16,
    /// Full names and values (system call version) of the ACLs to set.
    pub acls: Vec<(&'static [u8], Vec<u8>)>,
}

impl Inherited {
    /// A mode and no ACL.
    pub fn plain(mode: u16) -> Inherited {
        Inherited { mode, acls: Vec::new() }
    }
}

/// What an ACL says about the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclCheck {
    /// The permission bits (0o777) that go with it.
    pub mode: u16,
    /// The mode says all that it says.
    pub minimal: bool,
}

/// A stored ACL in the version of system calls.
pub(super) fn from_disk(inode: &Inode, stored: &[u8]) -> Result<Vec<u8>> {
    Ok(parse_stored(inode, stored)?.to_xattr())
}

fn parse_stored(inode: &Inode, stored: &[u8]) -> Result<Acl> {
    Ok(Acl::from_disk(stored).map_err(|e| e.at_inode(inode.ino))?)
}

/// An ACL of a system call as the disk has it; `None` if it is empty, which removes the attribute.
/// EINVAL if it is malformed.
pub(super) fn to_disk(value: &[u8]) -> Result<Option<Vec<u8>>> {
    let acl = Acl::from_xattr(value).map_err(|_| Errno::Inval)?;
    Ok(acl.map(|acl| acl.to_disk()))
}

/// Verifies an ACL (system call version).
///
/// # Errors
/// EINVAL if it is malformed.
pub fn check_acl(value: &[u8]) -> Result<AclCheck> {
    match Acl::from_xattr(value) {
        Ok(Some(acl)) => Ok(AclCheck { mode: acl.mode_bits(), minimal: acl.is_mode() }),
        _ => Err(Errno::Inval.into()),
    }
}

/// A directory's access ACL, which memory knows from then on. Takes the directory's lock for
/// reading.
///
/// # Errors
/// ESTALE if the directory is gone; `Corrupt`, `Io`.
pub fn keep_access_acl(env: &AttrEnv, dir: &Inode) -> Result<Arc<Option<Acl>>> {
    let _lock = dir.read_lock()?;
    let stored = get_stored(env, dir, &ACCESS)?;
    let acl = Arc::new(stored.map(|stored| parse_stored(dir, &stored)).transpose()?);
    dir.dir.acl.store(Some(acl.clone()));
    Ok(acl)
}

/// An ACL of the inode is about to change. The caller holds its lock for writing, so that nobody
/// keeps the old one meanwhile.
pub(super) fn forget(inode: &Inode) {
    if let Some(caches) = inode.dir.get() {
        caches.acl.store(None);
    }
}

/// The access ACL (system call version) with its entries changed for a new mode; `None` if there is
/// no access ACL.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn acl_after_chmod(env: &AttrEnv, inode: &Inode, mode: u16) -> Result<Option<Vec<u8>>> {
    let Some(stored) = get_stored(env, inode, &ACCESS)? else { return Ok(None) };
    let mut acl = parse_stored(inode, &stored)?;
    acl.chmod(mode);
    Ok(Some(acl.to_xattr()))
}

/// Mode and ACLs of a new inode in `dir`: with a default ACL there it decides and the umask does
/// not count.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn inherit_acl(
    env: &AttrEnv,
    dir: &Inode,
    mode: u16,
    umask: u16,
    ftype: FileType,
) -> Result<Inherited> {
    let stored = if ftype == FileType::Symlink { None } else { get_stored(env, dir, &DEFAULT)? };
    let Some(stored) = stored else { return Ok(Inherited::plain(mode & !(umask & 0o777))) };
    let default = parse_stored(dir, &stored)?;
    let (mode, access) = default.inherit(mode);
    let mut acls = Vec::new();
    if let Some(access) = access {
        acls.push((ACL_ACCESS, access.to_xattr()));
    }
    if ftype == FileType::Directory {
        acls.push((ACL_DEFAULT, default.to_xattr()));
    }
    Ok(Inherited { mode, acls })
}
