//! Several descriptors of one connection, so that its readers do not meet in one queue of requests
//! that are being served.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Where requests come from.
const DEVICE: &str = "/dev/fuse";

mod call {
    // FUSE_DEV_IOC_CLONE: makes a descriptor one of the connection of another.
    nix::ioctl_read!(clone, 229, 0, u32);
}

/// Another descriptor of a connection.
#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
pub fn another(fuse: &File) -> io::Result<File> {
    let device = File::options().read(true).write(true).open(DEVICE)?;
    let mut number = fuse.as_raw_fd() as u32;
    // SAFETY: the ioctl reads a descriptor's number, of four bytes, from the address, and nothing
    // else.
    unsafe { call::clone(device.as_raw_fd(), &raw mut number) }?;
    Ok(device)
}
