//! Mounts that a word of the command line names: by the place of one, or by its image.

use crate::failure::{At, Result};
use crate::remote;
use crate::table::{self, Mount};
use extant_engine::device::{image_spec, is_remote};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Mounts of a place.
#[derive(Clone, Debug)]
pub enum Found {
    /// The newest mount there, which any program may have made.
    At(Mount),
    /// Those of an image by this user and this program, newest first.
    Of(Vec<Mount>),
}

/// Finds the mount at a place, or those of an image, without a question to a server.
///
/// # Errors
/// The place has no absolute path.
pub fn find(place: &Path) -> Result<Found> {
    let all = table::mounts();
    let remote = is_remote(&image_spec(place).path);
    let dir = if remote { Ok(PathBuf::new()) } else { table::mount_point(place) };
    let dir = dir.at_path(place.as_os_str().as_bytes())?;
    if let Some(mount) = all.iter().rev().find(|mount| mount.dir == dir) {
        return Ok(Found::At(mount.clone()));
    }
    let image = remote::absolute(place)?;
    let found = image.canonicalize().ok();
    let is_of_image = |mount: &Mount| {
        mount.is_ours("extant")
            && (mount.source == image
                || found.is_some() && mount.source.canonicalize().ok() == found)
    };
    Ok(Found::Of(all.into_iter().rev().filter(is_of_image).collect()))
}
