//! A new mount in the place of a dead one, without a moment between them.
//!
//! Were the dead mount detached first, a program could write into the directory below, where later
//! mounts hide its files. So the new mount is put beneath the dead one (Linux 6.5) and shows when
//! that is detached.

use super::block_claim::{attributes, configured};
use crate::options::MountOptions;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, MoveMountFlags, fsconfig_create, fsmount, move_mount};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Mounts a connection beneath the topmost mount at a place. Returns its descriptor, or `None`
/// where the kernel mounts nothing beneath others.
///
/// # Errors
/// Those of the system calls.
pub fn mount(place: &Path, options: &MountOptions, read_only: bool) -> io::Result<Option<OwnedFd>> {
    match put(place, options, read_only) {
        Ok(connection) => Ok(Some(connection)),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn put(place: &Path, options: &MountOptions, read_only: bool) -> rustix::io::Result<OwnedFd> {
    let (file_system, connection) =
        configured("fuse", options.source.as_os_str(), options, read_only)?;
    fsconfig_create(&file_system)?;
    let flags = attributes(&options.kernel, read_only);
    let mount = fsmount(&file_system, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    let beneath = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_BENEATH;
    move_mount(&mount, "", CWD, place, beneath)?;
    Ok(connection.into())
}
