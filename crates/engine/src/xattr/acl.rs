//! POSIX ACLs: conversion between the on-disk format and that of system calls, and between ACLs and
//! mode bits.

use super::AttrEnv;
use super::get_stored;
use super::names::{ACCESS, ACL_ACCESS, ACL_DEFAULT, DEFAULT};
use crate::error::{Errno, Result};
use crate::inode::Inode;
use extant_format::acl::Acl;
use extant_format::types::FileType;
use std::sync::Arc;

/// The mode and the ACLs that a new inode inherits from the default ACL of its directory.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// Mode after the default ACL was applied, or, without one, the umask.
    pub mode: u16,
    /// Full names and values (in the format of system calls) of the ACLs to set.
    pub acls: Vec<(&'static [u8], Vec<u8>)>,
}

impl Inherited {
    /// Returns a mode without ACLs.
    pub fn plain(mode: u16) -> Inherited {
        Inherited { mode, acls: Vec::new() }
    }
}

/// The relation between an access ACL and the mode bits, for callers that set an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclCheck {
    /// Permission bits (0o777) that match the ACL.
    pub mode: u16,
    /// Whether the mode bits alone express the ACL, so that no attribute needs to be stored.
    pub minimal: bool,
}

/// Converts a stored ACL into the format of system calls.
pub(super) fn from_disk(inode: &Inode, stored: &[u8]) -> Result<Vec<u8>> {
    Ok(parse_stored(inode, stored)?.to_xattr())
}

fn parse_stored(inode: &Inode, stored: &[u8]) -> Result<Acl> {
    Ok(Acl::from_disk(stored).map_err(|e| e.at_inode(inode.ino))?)
}

/// Converts an ACL from the format of system calls into the on-disk format. Returns `None` for an
/// empty ACL, which removes the attribute, and EINVAL for a malformed one.
pub(super) fn to_disk(value: &[u8]) -> Result<Option<Vec<u8>>> {
    let acl = Acl::from_xattr(value).map_err(|_| Errno::Inval)?;
    Ok(acl.map(|acl| acl.to_disk()))
}

/// Verifies an ACL in the format of system calls.
///
/// # Errors
/// EINVAL if it is malformed.
pub fn check_acl(value: &[u8]) -> Result<AclCheck> {
    match Acl::from_xattr(value) {
        Ok(Some(acl)) => Ok(AclCheck { mode: acl.mode_bits(), minimal: acl.is_mode() }),
        _ => Err(Errno::Inval.into()),
    }
}

/// Reads the access ACL of a directory and caches it in the inode. Takes the directory's lock for
/// reading.
///
/// # Errors
/// ESTALE if the directory was freed; `Corrupt`, `Io`.
pub fn keep_access_acl(env: &AttrEnv, dir: &Inode) -> Result<Arc<Option<Acl>>> {
    let _lock = dir.read_lock()?;
    let stored = get_stored(env, dir, &ACCESS)?;
    let acl = Arc::new(stored.map(|stored| parse_stored(dir, &stored)).transpose()?);
    dir.dir.acl.store(Some(acl.clone()));
    Ok(acl)
}

/// Drops the cached access ACL before an ACL of the inode changes. The caller must hold the inode's
/// lock for writing, so that no thread caches the old ACL meanwhile.
pub(super) fn forget(inode: &Inode) {
    if let Some(caches) = inode.dir.get() {
        caches.acl.store(None);
    }
}

/// Returns the access ACL, in the format of system calls, with its entries changed to match a new
/// mode; `None` if the inode has no access ACL.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn acl_after_chmod(env: &AttrEnv, inode: &Inode, mode: u16) -> Result<Option<Vec<u8>>> {
    let Some(stored) = get_stored(env, inode, &ACCESS)? else { return Ok(None) };
    let mut acl = parse_stored(inode, &stored)?;
    acl.chmod(mode);
    Ok(Some(acl.to_xattr()))
}

/// Returns the mode and the ACLs of a new inode in `dir`. If `dir` has a default ACL, the ACL
/// replaces the umask. Symlinks inherit no ACL.
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
