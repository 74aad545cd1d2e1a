//! Block devices that share bytes: a disk and its parts, and the file behind a loop device.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

/// Returns whether writes to a block device change the bytes of another file or device.
pub fn shares_bytes(disk: &Metadata, other: &Metadata) -> bool {
    let disk = disk.rdev();
    if !other.file_type().is_block_device() {
        let file = backing_file(disk).and_then(|file| fs::metadata(file).ok());
        return file.is_some_and(|file| (file.dev(), file.ino()) == (other.dev(), other.ino()));
    }
    let other = other.rdev();
    disk == other || whole(disk) == Some(other) || whole(other) == Some(disk)
}

/// Returns the directory with the properties of a disk.
fn properties(disk: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(disk), rustix::fs::minor(disk));
    format!("/sys/dev/block/{major}:{minor}").into()
}

/// Returns the disk that has a part; `None` for a whole disk.
fn whole(part: u64) -> Option<u64> {
    let properties = properties(part);
    if !properties.join("partition").exists() {
        return None;
    }
    let text = fs::read_to_string(properties.join("../dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the path of the file that a loop device, or one that has this part, maps.
fn backing_file(disk: u64) -> Option<PathBuf> {
    let disk = whole(disk).unwrap_or(disk);
    let text = fs::read_to_string(properties(disk).join("loop/backing_file")).ok()?;
    Some(text.trim_end_matches('\n').into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_testkit::Image;
    use extant_testkit::kernel::Loop;

    #[test]
    fn a_loop_device_shares_bytes_with_itself_and_its_file() {
        let (image, other) = (Image::blank(1 << 20), Image::blank(1 << 20));
        let (disk, other_disk) =
            (Loop::attach(image.path(), false), Loop::attach(other.path(), false));
        let of = |path: &std::path::Path| fs::metadata(path).unwrap();
        let found = of(disk.device());
        assert!(shares_bytes(&found, &found) && shares_bytes(&found, &of(image.path())));
        assert!(!shares_bytes(&found, &of(other.path())));
        assert!(!shares_bytes(&found, &of(other_disk.device())));
    }
}
