//! What makes a mount of ours, for servers of other kinds: measurements compare on the same transport and the same terms.

pub use crate::server::{negotiate, open_flags};

use crate::mount::{self, MountOptions};
use fuser::Filesystem;
use std::io;
use std::path::Path;
use std::thread::JoinHandle;

/// Mounts any server on `dir` and serves it from threads of its own; joined, they tell how the mount ended.
///
/// # Errors
/// Those of mount(2).
pub fn mount(
    server: impl Filesystem,
    dir: &Path,
    options: &MountOptions,
    read_only: bool,
) -> io::Result<JoinHandle<io::Result<()>>> {
    mount::start(server, dir, options, read_only, drop)
}
