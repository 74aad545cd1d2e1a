//! A mount namespace in which a process can change attributes of files beneath its target only.

use crate::table;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount_bind_recursive, mount_change, mount_remount,
};
use rustix::process::geteuid;
use rustix::thread::UnshareFlags;
use std::path::PathBuf;

/// Makes all mounts read-only but those of `trees`, for this thread and those that it starts.
/// Devices of the trees cannot be opened. Returns the state.
pub fn protect_all_but(trees: &[PathBuf]) -> String {
    if !geteuid().is_root() {
        return "none: for root only".into();
    }
    match protect(trees) {
        Ok(0) => "all".into(),
        Ok(left) => format!("partly: {left} stay writable"),
        Err(error) => format!("none: {error}"),
    }
}

/// Returns the number of mounts that stay writable.
fn protect(trees: &[PathBuf]) -> Result<usize, Errno> {
    // Other threads keep the namespace that they have; this one shares nothing else with them.
    #[expect(deprecated, reason = "unsafe for shared descriptors only, which stay shared")]
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    for tree in trees {
        mount_bind_recursive(tree, tree)?;
    }
    let mut left = 0;
    for mount in table::mounts() {
        let is_target = trees.iter().any(|tree| mount.dir.starts_with(tree));
        let own = if is_target { MountFlags::NODEV } else { MountFlags::RDONLY };
        let flags = MountFlags::BIND | mount.flags() | own;
        if mount_remount(&mount.dir, flags, "").is_err() && !is_target {
            left += 1;
        }
    }
    // The working directory is on a mount from before, which the one of a tree may cover.
    if let Ok(dir) = std::env::current_dir() {
        let _ = std::env::set_current_dir(dir);
    }
    Ok(left)
}
