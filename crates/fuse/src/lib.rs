//! Serves an Extant file system through FUSE. No file-system logic lives here: requests become operations of the engine, results become
//! replies.
#![forbid(unsafe_code)]

mod convert;
mod ioctl;
mod kernel;
mod mount;
mod pool;
mod reply;
mod server;
mod tune;

pub use mount::{MountOptions, Mounted, Unmounter, mount};
