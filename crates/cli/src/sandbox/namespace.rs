//! A mount namespace in which a process can change attributes of files beneath its target only.

use crate::table;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount_bind_recursive, mount_change, mount_remount,
};
use rustix::process::geteuid;
use rustix::thread::UnshareFlags;
use std::path::PathBuf;

/// Types of file systems whose servers are asked when a path leads to them: a mount whose server
/// does not answer would stop everything. They stay as they are.
const REMOTE: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "lustre"];

/// Makes all mounts read-only but those of `trees`, for this thread and those that it starts.
/// Devices of the trees cannot be opened, but for those on the mounts of `images`. Returns the
/// state.
pub fn protect_all_but(trees: &[PathBuf], images: &[PathBuf]) -> String {
    if !geteuid().is_root() {
        return "none: for root only".into();
    }
    match protect(trees, images) {
        Ok(0) => "all".into(),
        Ok(left) => format!("partly: {left} stay writable"),
        Err(error) => format!("none: {error}"),
    }
}

/// Returns the number of mounts that stay writable.
fn protect(trees: &[PathBuf], images: &[PathBuf]) -> Result<usize, Errno> {
    // Other threads keep the namespace that they have; this one shares nothing else with them.
    #[expect(deprecated, reason = "unsafe for shared descriptors only, which stay shared")]
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", downstream)?;
    for tree in trees {
        mount_bind_recursive(tree, tree)?;
    }
    let mut left = 0;
    let mounts = table::mounts();
    let of_image = |image: &PathBuf| {
        let image = image.canonicalize().ok()?;
        let over = mounts.iter().filter(|mount| image.starts_with(&mount.dir));
        over.max_by_key(|mount| mount.dir.as_os_str().len()).map(|mount| &mount.dir)
    };
    let kept: Vec<_> = images.iter().filter_map(of_image).collect();
    for mount in &mounts {
        let is_target = trees.iter().any(|tree| mount.dir.starts_with(tree));
        let own = match is_target {
            true if kept.contains(&&mount.dir) => continue,
            true => MountFlags::NODEV,
            false => MountFlags::RDONLY,
        };
        let flags = MountFlags::BIND | mount.flags() | own;
        let done = !REMOTE.contains(&mount.shown_type().as_str())
            && mount_remount(&mount.dir, flags, "").is_ok();
        if !done && !is_target {
            left += 1;
        }
    }
    // The working directory is on a mount from before, which the one of a tree may cover.
    if let Ok(dir) = std::env::current_dir() {
        let _ = std::env::set_current_dir(dir);
    }
    Ok(left)
}
