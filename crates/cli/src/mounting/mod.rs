//! Mounting: the options, the process that serves, the table of mounts.

pub mod announce;
pub mod options;
pub mod serve;
pub mod spawn;
pub mod table;

use crate::failure::{At, Result};
use options::Options;
use std::path::PathBuf;

/// What is to be mounted, where and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The image as the table of mounts shall show it: an absolute path.
    pub image: PathBuf,
    /// The directory.
    pub dir: PathBuf,
    /// How.
    pub options: Options,
    /// The type shows as `fuse.SUBTYPE`.
    pub subtype: String,
    /// Where the server's messages go.
    pub log: Option<PathBuf>,
    /// Wait until nobody else uses the image, however long.
    pub wait: bool,
}

/// Changes the options of a mount that is there. The server is not told: what the kernel refuses does not reach it, and before a
/// mount becomes read-only everything is made durable.
pub fn remount(plan: &Plan) -> Result {
    let dir = plan.dir.display();
    rustix::mount::mount_remount(&plan.dir, plan.options.mount_flags(), "").at(dir)?;
    if plan.options.read_only {
        let root = std::fs::File::open(&plan.dir).at(plan.dir.display())?;
        root.sync_all().at(plan.dir.display())?;
    }
    Ok(())
}
