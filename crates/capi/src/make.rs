//! New file systems.

use crate::call::{EINVAL, Failure, Result, done, host_path, optional_text};
use crate::device::{Device, take_device};
use extant::device::{BlockDevice, DeviceError, FileDeviceOptions};
use extant::mkfs;
use std::ffi::{c_char, c_int};
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Makes an image file with an empty file system. The file must not be there. `size` is its length
/// in bytes. `features` is null or a list as mke2fs(8) takes it, such as "^has_journal,casefold";
/// `label` is null or a label of at most 16 bytes.
///
/// # Safety
/// Path, features and label are text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_mkfs(
    path: *const c_char,
    size: u64,
    features: *const c_char,
    label: *const c_char,
) -> c_int {
    done(|| {
        // SAFETY: as the caller promises.
        let (path, options) = unsafe { (host_path(path)?, options(features, label)?) };
        make_file(path, size, &options)
    })
}

/// Makes an empty file system on a device of the caller, whose content is lost. The function
/// `release` of the device is called once.
///
/// # Safety
/// The functions of the device fulfil their descriptions; features and label are null or text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_mkfs_device(
    device: *const Device,
    features: *const c_char,
    label: *const c_char,
) -> c_int {
    done(|| {
        // SAFETY: as the caller promises.
        let (device, options) = unsafe { (take_device(device)?, options(features, label)?) };
        extant::Fs::options().create_on(device, &options)?.unmount()?;
        Ok(())
    })
}

/// # Safety
/// Both are null or text.
unsafe fn options(features: *const c_char, label: *const c_char) -> Result<mkfs::Options> {
    let mut options = mkfs::Options::default();
    // SAFETY: as the caller promises.
    let (features, label) = unsafe { (optional_text(features), optional_text(label)) };
    if let Some(features) = features {
        options
            .apply_features(&String::from_utf8_lossy(features))
            .map_err(|error| Failure::new(EINVAL, error.to_string()))?;
    }
    options.label = label.unwrap_or_default().to_vec();
    Ok(options)
}

/// A failed run leaves no file.
fn make_file(path: &Path, size: u64, options: &mkfs::Options) -> Result<()> {
    let failed = |error: &io::Error| {
        let errno = error
            .raw_os_error()
            .or_else(|| error.get_ref()?.downcast_ref::<DeviceError>()?.cause.raw_os_error());
        Failure::new(errno.unwrap_or(crate::call::EIO), format!("{}: {error}", path.display()))
    };
    OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| failed(&error))?;
    let made = FileDeviceOptions::new(path).open().and_then(|device| {
        device.set_len(size)?;
        Ok(device)
    });
    let made = made.map_err(|error| failed(&error)).and_then(|device| {
        extant::Fs::options().create_on(Arc::new(device), options)?.unmount()?;
        Ok(())
    });
    if made.is_err() {
        let _ = std::fs::remove_file(path);
    }
    made
}
