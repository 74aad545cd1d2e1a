//! Mounts of foreign handlers. Measurements compare servers on the same transports and with the
//! same options.

pub use crate::handler::{
    Answer, Change, CopyRequest, CreateMode, Credentials, Data, Entry, FallocRequest, Handler,
    Invalidation, Listed, SetXattrRequest, Tell, Wants, WriteRequest,
};
pub use crate::types::{ErrorCode, FileAttr, NodeId};

use crate::options::MountOptions;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Mounts a handler on `dir` and starts the threads that serve it. Joining them gives the result of
/// serving.
///
/// # Errors
/// Errors of mount(2); `Unsupported` if the transport of the options is unavailable.
pub fn mount(
    handler: impl Handler,
    dir: &Path,
    options: &MountOptions,
    read_only: bool,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let keeper = crate::mount::own_keeper(dir, options, None);
    let rings = crate::mount::PreparedRings::of(options.transport);
    let started = crate::mount::start(&Arc::new(handler), &keeper, options, (rings, read_only))?;
    match started.instead {
        None => Ok(started.thread),
        Some(why) => Err(io::Error::new(io::ErrorKind::Unsupported, why)),
    }
}
