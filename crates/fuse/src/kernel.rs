//! mount(2) by root: with the type `fuse.SUBTYPE` and the source that mount(8) shows, which the
//! crate's own mount does not give.

use crate::mount::MountOptions;
use nix::mount::MsFlags;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Mounts an unserved connection on `dir`; the descriptor is where requests will arrive.
pub fn mount(dir: &Path, options: &MountOptions, read_only: bool) -> io::Result<OwnedFd> {
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(|e| within("/dev/fuse", &e))?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions",
        device.as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let kind = format!("fuse.{}", options.subtype);
    let flags = flags(&options.kernel, read_only)?;
    nix::mount::mount(
        Some(options.source.as_str()),
        dir,
        Some(kind.as_str()),
        flags,
        Some(data.as_str()),
    )
    .map_err(|e| within(&dir.display().to_string(), &e.into()))?;
    Ok(device.into())
}

fn within(what: &str, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

/// The flags that options stand for.
fn flags(options: &[String], read_only: bool) -> io::Result<MsFlags> {
    let mut flags = if read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
    for option in options {
        match option.as_str() {
            "nosuid" => flags |= MsFlags::MS_NOSUID,
            "nodev" => flags |= MsFlags::MS_NODEV,
            "noexec" => flags |= MsFlags::MS_NOEXEC,
            "noatime" => flags |= MsFlags::MS_NOATIME,
            "nodiratime" => flags |= MsFlags::MS_NODIRATIME,
            "relatime" => flags |= MsFlags::MS_RELATIME,
            "strictatime" => flags |= MsFlags::MS_STRICTATIME,
            "dirsync" => flags |= MsFlags::MS_DIRSYNC,
            "sync" => flags |= MsFlags::MS_SYNCHRONOUS,
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
