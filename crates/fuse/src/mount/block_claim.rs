//! A block device that the kernel claims for a mount, as for its own file systems (the type
//! `fuseblk`).
//!
//! The claim has four effects: the mount shows the device's number, umount(8) returns when the
//! server has written everything, sync(2) reaches the server (Linux 6.18), and files can be swap
//! files, since the kernel asks for the places of their blocks and accesses those itself.
//!
//! The kernel claims the device before the server opens the image, and releases it after the end of
//! the mount. In between no other program can open it exclusively, mount it, or make a file system
//! on it.

use crate::options::MountOptions;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create_exclusive,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// A claimed device that can be mounted. A drop releases it.
#[derive(Debug)]
pub struct Claim {
    file_system: OwnedFd,
    connection: File,
}

impl Claim {
    /// Makes the kernel claim a device. Returns `None` where that is impossible: for files that are
    /// no block devices, for users other than root, before Linux 6.6, or where the kernel forbids
    /// writes to claimed devices.
    ///
    /// # Errors
    /// `ResourceBusy` if the device is in use.
    pub fn of(device: &Path, options: &MountOptions, read_only: bool) -> io::Result<Option<Claim>> {
        let is_disk = fs::metadata(device).is_ok_and(|meta| meta.file_type().is_block_device());
        if !is_disk || !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        match Claim::take(device, options, read_only) {
            Ok(claim) if File::options().read(true).write(!read_only).open(device).is_ok() => {
                Ok(Some(claim))
            }
            Err(Errno::BUSY) => Err(Errno::BUSY.into()),
            refused => {
                tracing::debug!(
                    "{} is mounted as if it were a file: {:?}",
                    device.display(),
                    refused.err()
                );
                Ok(None)
            }
        }
    }

    fn take(device: &Path, options: &MountOptions, read_only: bool) -> rustix::io::Result<Claim> {
        let (file_system, connection) =
            configured("fuseblk", device.as_os_str(), options, read_only)?;
        // With blocks smaller than pages, kernels of 6.17 lose writes to parts of a page.
        fsconfig_set_string(&file_system, "blksize", rustix::param::page_size().to_string())?;
        // Exclusively: otherwise the kernel would mount a server that serves the device already a
        // second time.
        fsconfig_create_exclusive(&file_system)?;
        Ok(Claim { file_system, connection })
    }

    /// Mounts the device on `dir` and returns the descriptor of the connection.
    pub(crate) fn mount(
        self,
        dir: &Path,
        options: &MountOptions,
        read_only: bool,
    ) -> io::Result<OwnedFd> {
        let flags = attributes(&options.kernel, read_only);
        let mount = fsmount(&self.file_system, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        // The path is that of a descriptor.
        let symlinks = MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
        move_mount(&mount, "", CWD, dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | symlinks)?;
        Ok(self.connection.into())
    }
}

/// Returns a file system of a type that is yet to be created, and its connection.
pub(super) fn configured(
    kind: &str,
    source: &OsStr,
    options: &MountOptions,
    read_only: bool,
) -> rustix::io::Result<(OwnedFd, File)> {
    let connection = File::options().read(true).write(true).open("/dev/fuse");
    let connection = connection.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let file_system = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    let fs = &file_system;
    fsconfig_set_string(fs, "source", source)?;
    fsconfig_set_string(fs, "subtype", &*options.subtype)?;
    fsconfig_set_string(fs, "fd", connection.as_raw_fd().to_string())?;
    for (name, value) in [("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")] {
        fsconfig_set_string(fs, name, value)?;
    }
    let other = options.allow_other.then_some("allow_other");
    let protected = read_only.then_some("ro");
    let names = options.kernel.iter().map(String::as_str);
    let synchronous = names.filter(|name| matches!(*name, "sync" | "dirsync"));
    for flag in options.permissions().into_iter().chain(other).chain(protected).chain(synchronous) {
        fsconfig_set_flag(fs, flag)?;
    }
    Ok((file_system, connection))
}

/// Returns the options that are attributes of the mount, not of the file system.
pub(super) fn attributes(options: &[String], read_only: bool) -> MountAttrFlags {
    let mut flags =
        if read_only { MountAttrFlags::MOUNT_ATTR_RDONLY } else { MountAttrFlags::empty() };
    for option in options {
        flags |= match option.as_str() {
            "nosuid" => MountAttrFlags::MOUNT_ATTR_NOSUID,
            "nodev" => MountAttrFlags::MOUNT_ATTR_NODEV,
            "noexec" => MountAttrFlags::MOUNT_ATTR_NOEXEC,
            "noatime" => MountAttrFlags::MOUNT_ATTR_NOATIME,
            "nodiratime" => MountAttrFlags::MOUNT_ATTR_NODIRATIME,
            "strictatime" => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
            _ => MountAttrFlags::empty(),
        };
    }
    flags
}
