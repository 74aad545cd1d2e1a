//! What makes a mount of ours, for servers of other kinds: measurements compare on the same
//! transport and the same terms.

pub use crate::service::{
    Answer, Change, Data, Entry, HowWritten, Listed, Old, Service, Tell, Wants, Who,
};

use crate::mount::{self, MountOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Mounts any service on `dir` and serves it from threads of its own; joined, they tell how the
/// mount ended.
///
/// # Errors
/// Those of mount(2); Unsupported if the transport that the options name cannot be had.
pub fn mount(
    service: impl Service,
    dir: &Path,
    options: &MountOptions,
    read_only: bool,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let (thread, instead) = mount::start(&Arc::new(service), dir, options, read_only, None)?;
    match instead {
        None => Ok(thread),
        Some(why) => Err(io::Error::new(io::ErrorKind::Unsupported, why)),
    }
}
