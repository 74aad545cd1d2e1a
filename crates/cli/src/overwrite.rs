//! Content of a device that a new file system would overwrite.

use crate::failure::{At, Failure, Result};
use crate::text::{shown, uuid};
use extant_engine::OpenOptions;
use extant_engine::device::{
    BlockDevice, FileOptions, ImageFormat, ImageSpec, Place, identify, image_spec, is_remote,
};
use extant_engine::format::Superblock;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// Where the superblock lies in an image, and its length, in bytes.
const SUPERBLOCK: (u64, usize) = (1024, 1024);

/// Asks on a terminal before something known on the device of `path` is overwritten; elsewhere `-F`
/// must be given.
///
/// # Errors
/// The answer was no, or there is no terminal.
pub fn check(device: &dyn BlockDevice, path: &Path) -> Result {
    check_image(device, &image_spec(path))
}

/// As [`check`], for an image in a format.
///
/// # Errors
/// As [`check`].
pub fn check_image(device: &dyn BlockDevice, image: &ImageSpec) -> Result {
    let Some(found) = found(device, image) else { return Ok(()) };
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Failure::new(format_args!("{found}; -F overwrites it")));
    }
    if confirmed(&format!("{found}. Overwrite it? (y/N) "))? {
        return Ok(());
    }
    let name = shown(image.to_string().as_bytes());
    Err(Failure::new(format_args!("{name}: nothing was changed")))
}

/// Describes content that would be overwritten: a file system that begins at the place of the new
/// one, or, for an offset in a disk, the content of the disk.
fn found(device: &dyn BlockDevice, image: &ImageSpec) -> Option<String> {
    let name = shown(image.to_string().as_bytes());
    if let Some(found) = identify(device) {
        return Some(format!("{name} holds {}{}", found.name, identity(device)));
    }
    let (Place::Offset(_), ImageFormat::Raw) = (image.place, image.format) else { return None };
    let found = if is_remote(&image.path) {
        let disk = OpenOptions::new().read_only(true).device_of(&ImageSpec::whole(&image.path));
        identify(&*disk.ok()?)
    } else {
        identify(&FileOptions::new(&image.path).read_only(true).lock(false).open().ok()?)
    };
    found.map(|found| format!("{name} lies in a disk that holds {}", found.name))
}

/// Returns label, UUID and last mount point of an existing ext4 file system, as far as its
/// superblock can be read.
fn identity(device: &dyn BlockDevice) -> String {
    let (offset, len) = SUPERBLOCK;
    let mut bytes = vec![0; len];
    let read = device.read_exact_at(&mut bytes, offset).ok();
    let Some(there) = read.and_then(|()| Superblock::parse(&bytes).ok()) else {
        return String::new();
    };
    let mounted = match there.last_mounted() {
        path if path.is_empty() => String::new(),
        path => format!(", last mounted on {}", shown(path.as_bytes())),
    };
    format!(
        " (label \"{}\", UUID {}{mounted})",
        shown(there.volume_name().as_bytes()),
        uuid(there.uuid())
    )
}

/// Asks on the terminal; only an answer that begins with `y` means yes.
fn confirmed(question: &str) -> Result<bool> {
    let mut out = std::io::stderr().lock();
    write!(out, "{question}").and_then(|()| out.flush()).at("standard error")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).at("standard input")?;
    Ok(answer.trim_start().starts_with(['y', 'Y']))
}
