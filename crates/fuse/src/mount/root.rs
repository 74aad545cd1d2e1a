//! mount(2) by root, with the type `fuse.SUBTYPE` and a source, which mount(8) shows.

use crate::options::MountOptions;
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Mounts a connection on `dir` and returns its descriptor.
pub fn mount(dir: &Path, options: &MountOptions, read_only: bool) -> io::Result<OwnedFd> {
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(|e| within("/dev/fuse", &e))?;
    let mut data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    for word in
        options.permissions().into_iter().chain(options.allow_other.then_some("allow_other"))
    {
        data.push(',');
        data.push_str(word);
    }
    let kind = format!("fuse.{}", options.subtype);
    let flags = flags(&options.kernel, read_only)?;
    let data = CString::new(data)?;
    rustix::mount::mount(options.source.as_os_str(), dir, kind.as_str(), flags, data.as_c_str())
        .map_err(|e| within(&dir.display().to_string(), &e.into()))?;
    Ok(device.into())
}

fn within(what: &str, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

/// Returns the flags of mount options.
///
/// # Errors
/// `InvalidInput` if an option is unknown.
fn flags(options: &[String], read_only: bool) -> io::Result<MountFlags> {
    let mut flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    for option in options {
        match option.as_str() {
            "nosuid" => flags |= MountFlags::NOSUID,
            "nodev" => flags |= MountFlags::NODEV,
            "noexec" => flags |= MountFlags::NOEXEC,
            "noatime" => flags |= MountFlags::NOATIME,
            "nodiratime" => flags |= MountFlags::NODIRATIME,
            "relatime" => flags |= MountFlags::RELATIME,
            "strictatime" => flags |= MountFlags::STRICTATIME,
            "dirsync" => flags |= MountFlags::DIRSYNC,
            "sync" => flags |= MountFlags::SYNCHRONOUS,
            "suid" | "dev" | "exec" | "async" | "atime" | "diratime" => {}
            other => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("mount option `{other}` is not known"),
                ));
            }
        }
    }
    Ok(flags)
}
