//! Limits of the kernel that a mount is given where that is allowed.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Share (percent) of the machine's dirty pages that this mount may have; the kernel allows FUSE 1
/// by default, which halves the rate of writing.
const DIRTY_SHARE: &str = "50";

/// Read-ahead in KiB.
const READ_AHEAD: &str = "1024";

/// Raises the limits of the mount's backing device. Needs root; nothing is lost where it fails.
pub fn raise_limits(dir: &Path) {
    let Ok(meta) = std::fs::metadata(dir) else { return };
    let dev = meta.dev();
    let number = format!("{}:{}", nix::sys::stat::major(dev), nix::sys::stat::minor(dev));
    // That of a mount of a block device has a name of its own; the first would be the device's.
    let claimed = format!("/sys/class/bdi/{number}-fuseblk");
    let bdi =
        if Path::new(&claimed).exists() { claimed } else { format!("/sys/class/bdi/{number}") };
    for (name, value) in [("max_ratio", DIRTY_SHARE), ("read_ahead_kb", READ_AHEAD)] {
        if let Err(e) = std::fs::write(format!("{bdi}/{name}"), value) {
            tracing::debug!("{bdi}/{name} stays as it is: {e}");
        }
    }
}
