//! A file system as a whole.

use crate::call::{
    EINVAL, Failure, Result, done, give, give_new, host_path, object, quietly, take, text,
};
use crate::device::{Device, take_device};
use crate::options::{Options, of};
use crate::types::{Recovery, Usage};
use extant::device::{BackingSpec, ImageFormat, ImageSpec};
use std::ffi::{CStr, c_char, c_int};

/// An open file system. Any number of threads may use it at once.
pub struct Fs(pub(crate) extant::Fs);

/// A file system that holds still.
pub struct Frozen(extant::Frozen);

/// Opens an image file or a block device. Options may be null.
///
/// # Safety
/// The path is text, the options are live, `fs` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_open(
    path: *const c_char,
    options: *const Options,
    fs: *mut *mut Fs,
) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe { give_new(fs, "fs", || Ok(Fs(of(options).open(host_path(path)?)?))) })
}

/// Opens a disk image in the format "raw" or "qcow2". `backing` is null, or a list of the files
/// below an overlay that ends with a null pointer, each as `FILE` (raw) or `FILE:FORMAT`: files
/// that only the image names are never opened.
///
/// # Safety
/// As `extant_open`; the list holds text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_open_image(
    path: *const c_char,
    format: *const c_char,
    backing: *const *const c_char,
    options: *const Options,
    fs: *mut *mut Fs,
) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe {
        give_new(fs, "fs", || {
            let format = String::from_utf8_lossy(text(format, "format")?);
            let format = ImageFormat::named(&format).ok_or_else(|| {
                Failure::new(EINVAL, format!("unknown format {format:?}: use raw or qcow2"))
            })?;
            let mut image = ImageSpec { format, ..ImageSpec::whole(host_path(path)?) };
            image.backing = backing_files(backing)?;
            Ok(Fs(of(options).open_image(&image)?))
        })
    })
}

/// # Safety
/// The pointer is null, or to a list of text that ends with a null pointer.
unsafe fn backing_files(mut list: *const *const c_char) -> Result<Vec<BackingSpec>> {
    let mut files = Vec::new();
    // SAFETY: as the caller promises.
    while let Some(file) = unsafe { list.as_ref() }.filter(|file| !file.is_null()) {
        // SAFETY: as the caller promises.
        let file = unsafe { CStr::from_ptr(*file) };
        let file = file.to_str().map_err(|_| {
            Failure::new(EINVAL, format!("{file:?}: names of backing files must be UTF-8"))
        })?;
        files.push(BackingSpec::parse(file));
        // SAFETY: the list goes on behind each text.
        list = unsafe { list.add(1) };
    }
    Ok(files)
}

/// Opens the file system on a device of the caller, which is copied: it may go after the call. Its
/// function `release` is called once, also after an error. Options may be null.
///
/// # Safety
/// The functions of the device fulfil their descriptions; as `extant_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_open_device(
    device: *const Device,
    options: *const Options,
    fs: *mut *mut Fs,
) -> c_int {
    done(|| {
        // SAFETY: as the caller promises.
        let device = unsafe { take_device(device) }?;
        // SAFETY: as the caller promises.
        unsafe { give_new(fs, "fs", || Ok(Fs(of(options).open_on(device)?))) }
    })
}

/// Writes all changes and releases the device. Calls on handles fail with `ESTALE` from now on. The
/// object stays, for `extant_free`.
///
/// # Safety
/// The file system is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_unmount(fs: *const Fs) -> c_int {
    // SAFETY: as the caller promises.
    done(|| Ok(unsafe { object(fs, "fs") }?.0.unmount()?))
}

/// Frees a file system; null is none. One that is not unmounted is so once all its files and
/// directories are freed, but an error of that is lost.
///
/// # Safety
/// A function of this library gave it, and no thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_free(fs: *mut Fs) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(fs) }));
}

/// Makes all changes durable that have returned.
///
/// # Safety
/// The file system is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_sync(fs: *const Fs) -> c_int {
    // SAFETY: as the caller promises.
    done(|| Ok(unsafe { object(fs, "fs") }?.0.sync()?))
}

/// Makes all changes durable, and lets new ones wait until `extant_thaw`: the device may be copied.
///
/// # Safety
/// The file system is live, `frozen` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_freeze(fs: *const Fs, frozen: *mut *mut Frozen) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe { give_new(frozen, "frozen", || Ok(Frozen(object(fs, "fs")?.0.freeze()?))) })
}

/// Ends `extant_freeze`, and frees its object; null is none.
///
/// # Safety
/// `extant_freeze` gave it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_thaw(frozen: *mut Frozen) -> c_int {
    // SAFETY: as the caller promises.
    done(|| Ok(unsafe { take(frozen) }.map_or(Ok(()), |frozen| frozen.0.thaw())?))
}

/// Tells space and inodes of a file system.
///
/// # Safety
/// The file system is live, `usage` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_usage(fs: *const Fs, usage: *mut Usage) -> c_int {
    done(|| {
        // SAFETY: as the caller promises.
        let fs = &unsafe { object(fs, "fs") }?.0;
        let extant::Usage { blocks, free, available, inodes, inodes_free, .. } = fs.usage();
        let block_size = fs.block_size();
        let value = Usage { block_size, blocks, free, available, inodes, inodes_free };
        // SAFETY: as the caller promises.
        unsafe { give(usage, value, "usage") }
    })
}

/// Tells the work of recovery when a file system was opened.
///
/// # Safety
/// The file system is live, `recovery` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_recovery(fs: *const Fs, recovery: *mut Recovery) -> c_int {
    done(|| {
        // SAFETY: as the caller promises.
        let found = unsafe { object(fs, "fs") }?.0.recovery();
        let value = Recovery {
            was_in_use: found.was_in_use.into(),
            in_memory: found.in_memory.into(),
            skipped: found.skipped.is_some().into(),
            read_only: found.read_only.is_some().into(),
            transactions: found.transactions,
            blocks: found.blocks,
            orphans_freed: found.orphans_freed,
            orphans_truncated: found.orphans_truncated,
            orphans_invalid: found.orphans_invalid,
        };
        // SAFETY: as the caller promises.
        unsafe { give(recovery, value, "recovery") }
    })
}
