//! Several descriptors of one connection, so that its readers do not contend for one queue of
//! requests.

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The device of FUSE connections.
const DEVICE: &str = "/dev/fuse";

/// FUSE_DEV_IOC_CLONE: attaches a descriptor to the connection of another one.
const CLONE: Opcode = opcode::read::<u32>(229, 0);

/// Opens another descriptor of a connection.
#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
pub fn another(fuse: &File) -> io::Result<File> {
    let device = File::options().read(true).write(true).open(DEVICE)?;
    let number = fuse.as_raw_fd() as u32;
    // SAFETY: the ioctl reads the number of a descriptor, four bytes, from the address, and
    // accesses no other memory.
    unsafe { ioctl(&device, Setter::<CLONE, u32>::new(number)) }?;
    Ok(device)
}
