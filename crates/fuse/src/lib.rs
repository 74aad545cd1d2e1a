//! Serves an Extant file system through FUSE. No file-system logic lives here: requests become
//! operations of the engine, results become replies.
#![deny(unsafe_code)]

#[doc(hidden)]
pub mod bare;
mod cached;
mod caller;
mod claim;
mod clone;
mod connection;
pub mod control;
mod convert;
mod flags;
mod fusermount;
mod held;
mod interrupts;
mod ioctl;
mod kernel;
mod mount;
mod notices;
mod pool;
mod reader;
mod reply;
mod ring;
mod server;
mod service;
mod stats;
mod tune;
mod wire;

pub use claim::Claim;
pub use mount::{MountOptions, Mounted, Transport, Unmounter, mount, mount_claimed};
