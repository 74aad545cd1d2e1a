//! Detection of images that the kernel uses through a loop device.
//!
//! The journal of such an image would be live: replaying it, or writing anything, would destroy the
//! mounted file system. The backing file of a loop device is in `/sys`, and mounts are in
//! `/proc/self/mountinfo`. Mounts in other namespaces, and other holders, are detected by failing
//! to open the loop device exclusively.

use super::claim::Extent;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Sizes and offsets in `/sys` are in sectors of this many bytes, for any disk.
const SECTOR: u64 = 512;

/// Attempts of an exclusive open before it counts as refused, since another program's own attempt
/// takes a moment.
const LOOKS: u32 = 4;

/// A loop device or one of its partitions, and the part of the file that it maps.
struct Node {
    name: String,
    /// Major and minor number, as `7:0`.
    number: String,
    extent: Extent,
}

/// Returns how the kernel uses an extent of a file through a loop device, if it does.
pub(super) fn find(path: &Path, metadata: &Metadata, extent: Extent) -> Option<String> {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let loops = loop_devices().filter(|sys| backed_by(sys, path, metadata));
    let mut nodes = loops.flat_map(|sys| nodes(&sys)).filter(|node| node.extent.overlaps(&extent));
    nodes.find_map(|node| in_use(&node, &mounts))
}

/// Returns the directories of loop devices in `/sys`.
fn loop_devices() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_bytes().starts_with(b"loop"))
        .map(|entry| entry.path())
}

/// Returns whether a loop device maps the file, by its identity or, if that is unavailable, by its
/// path.
fn backed_by(sys: &Path, path: &Path, metadata: &Metadata) -> bool {
    let Ok(backing) = fs::read(sys.join("loop/backing_file")) else { return false };
    let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
    let backing = PathBuf::from(OsString::from_vec(backing.to_vec()));
    match fs::metadata(&backing) {
        Ok(other) => (other.dev(), other.ino()) == (metadata.dev(), metadata.ino()),
        Err(_) => path.canonicalize().is_ok_and(|path| path == backing),
    }
}

/// Returns the partitions of a loop device, or the device if it has none.
fn nodes(sys: &Path) -> Vec<Node> {
    let Some(whole) = whole_node(sys) else { return Vec::new() };
    let entries = fs::read_dir(sys).into_iter().flatten().flatten();
    let partitions: Vec<Node> =
        entries.filter_map(|entry| partition_node(&entry.path(), &whole)).collect();
    if partitions.is_empty() { vec![whole] } else { partitions }
}

fn whole_node(sys: &Path) -> Option<Node> {
    let start = number_in(&sys.join("loop/offset"))?;
    let len = number_in(&sys.join("loop/sizelimit")).filter(|len| *len > 0);
    node(sys, Extent { start, len })
}

fn partition_node(sys: &Path, whole: &Node) -> Option<Node> {
    number_in(&sys.join("partition"))?;
    let start =
        number_in(&sys.join("start"))?.saturating_mul(SECTOR).saturating_add(whole.extent.start);
    let len = number_in(&sys.join("size"))?.saturating_mul(SECTOR);
    node(sys, Extent { start, len: Some(len) })
}

fn node(sys: &Path, extent: Extent) -> Option<Node> {
    let name = sys.file_name()?.to_string_lossy().into_owned();
    let number = fs::read_to_string(sys.join("dev")).ok()?.trim().to_string();
    Some(Node { name, number, extent })
}

fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn in_use(node: &Node, mounts: &str) -> Option<String> {
    let device = format!("/dev/{}", node.name);
    if let Some(point) = mount_point(mounts, &node.number) {
        return Some(format!("the kernel has mounted it at {point} through {device}"));
    }
    is_held(Path::new(&device))
        .then(|| format!("the kernel or another program holds {device} over it"))
}

/// Returns the mount point of a device from the text of mountinfo: the third field is the device's
/// number, the fifth the mount point.
fn mount_point(mounts: &str, number: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next()? == number).then(|| fields.nth(1).map(str::to_string))?
    })
}

/// Returns whether a block device cannot be opened exclusively. One that cannot be opened at all
/// counts as free, since its state is unknown.
pub(super) fn is_held(device: &Path) -> bool {
    let look = || {
        OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::EXCL | OFlags::NONBLOCK).bits() as i32)
            .open(device)
    };
    let refused = |result: io::Result<fs::File>| {
        result.err().and_then(|error| Errno::from_io_error(&error)) == Some(Errno::BUSY)
    };
    (0..LOOKS).all(|look_nr| {
        if look_nr > 0 {
            sleep(Duration::from_millis(20));
        }
        refused(look())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found_by_number() {
        let mounts = "22 1 254:0 / / rw - ext4 /dev/vda rw\n40 22 7:3 / /mnt/a rw shared:1 - ext4 \
        /dev/loop3 rw\nbad";
        assert_eq!(mount_point(mounts, "7:3").as_deref(), Some("/mnt/a"));
        assert_eq!(mount_point(mounts, "7:30"), None);
        assert_eq!(mount_point("1 2 7:3", "7:3"), None);
    }
}
