//! Claims against other hosts (MMP), for commands that write an image below the engine.

use crate::failure::{Failure, Result};
use crate::image::ImageArgs;
use extant_check::repair::chosen_superblock;
use extant_engine::device::BlockDevice;
use extant_engine::format::Superblock;
use extant_engine::{Error, HostClaim};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes of a superblock, and their place.
const SUPERBLOCK: (usize, u64) = (1024, 1024);

type Device = Arc<dyn BlockDevice>;

/// Calls `work` with a claim of the file system on a device, through whose device alone the work
/// writes, and releases it. `stop` ends the waits. Without a superblock of use there is no claim:
/// the work refuses such an image.
pub fn while_claimed<T>(
    image: &ImageArgs,
    device: &Device,
    stop: &AtomicBool,
    work: impl FnOnce(&HostClaim) -> Result<T>,
) -> Result<T> {
    let superblock = primary(&**device);
    let claim = HostClaim::take(device.clone(), superblock.as_ref(), Some(stop));
    carry_out(image, claim, work)
}

/// As [`while_claimed`], for a repair: the superblock and the block may be damaged, and other hosts
/// see that the file system is checked.
pub fn while_checked<T>(
    image: &ImageArgs,
    device: &Device,
    stop: &AtomicBool,
    work: impl FnOnce(&HostClaim) -> Result<T>,
) -> Result<T> {
    let superblock = chosen_superblock(&**device);
    let claim = HostClaim::take_for_check(device.clone(), superblock.as_ref(), Some(stop));
    carry_out(image, claim, work)
}

fn carry_out<T>(
    image: &ImageArgs,
    claim: extant_engine::Result<HostClaim>,
    work: impl FnOnce(&HostClaim) -> Result<T>,
) -> Result<T> {
    let claim = claim.map_err(|error| image.refused(&error))?;
    let done = work(&claim);
    let released = claim.release().map_err(|error| unreleased(image, &error));
    done.and_then(|done| released.map(|()| done))
}

fn primary(device: &dyn BlockDevice) -> Option<Superblock> {
    let (len, at) = SUPERBLOCK;
    let mut bytes = vec![0; len];
    device.read_exact_at(&mut bytes, at).ok()?;
    Superblock::parse(&bytes).ok()
}

fn unreleased(image: &ImageArgs, error: &Error) -> Failure {
    let message = format!(
        "{}: all changes are made, but the claim against other hosts (MMP) could not be released: \
         {error}",
        image.name()
    );
    Failure::of(error, image.image.as_os_str().as_bytes(), message)
}
