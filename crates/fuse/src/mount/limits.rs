//! Limits that the kernel applies to a mount, raised where the server may do so.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Share of the machine's limit of dirty pages for this mount, in percent. The kernel's default for
/// FUSE is 1, which halves the rate of writing.
const DIRTY_SHARE: &str = "50";

/// Read-ahead in KiB.
const READ_AHEAD: &str = "1024";

/// Raises the limits of the mount's backing device. Needs root; a failure costs speed only.
pub fn raise_limits(dir: &Path) {
    let Ok(meta) = std::fs::metadata(dir) else { return };
    let dev = meta.dev();
    let number = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    // The backing device of a claimed mount has its own name; the plain one is the disk's.
    let claimed = format!("/sys/class/bdi/{number}-fuseblk");
    let bdi =
        if Path::new(&claimed).exists() { claimed } else { format!("/sys/class/bdi/{number}") };
    for (name, value) in [("max_ratio", DIRTY_SHARE), ("read_ahead_kb", READ_AHEAD)] {
        if let Err(e) = std::fs::write(format!("{bdi}/{name}"), value) {
            tracing::debug!("{bdi}/{name} stays as it is: {e}");
        }
    }
}
