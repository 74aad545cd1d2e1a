//! The final judgement of an image: all programs that can read it must agree on its content.
//!
//! `e2fsck` has no complaints; `dumpe2fs` and `e2freefrag` have the same counts; the kernel mounts
//! the image, and its tree is, file by file, the one that Extant reads. An image with a log to
//! replay is first read by Extant as it is, then recovered by `e2fsck`. The recovered image is
//! judged, and must contain the tree that Extant read.
//!
//! The judgement is automatic: dropping a [`Scratch`](crate::Scratch) judges all images in it that
//! were written to.

use crate::dumpe2fs::{self, Dump};
use crate::fsck::{self, Verdict};
use crate::kernel::Mount;
use crate::tree::Manifest;
use extant_engine::device::FileOptions;
use extant_engine::{Fs, OpenOptions};
use std::path::Path;
use std::sync::Arc;

/// Property of an image that keeps the kernel from reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// A feature.
    Feature(&'static str),
    /// Blocks larger than this number of bytes.
    BlocksAbove(u64),
}

/// Properties that some kernels do not support, with reasons. If this kernel does not, trees are
/// not compared. A test demonstrates each.
pub const BEYOND_THE_KERNEL: [(Sign, &str); 3] = [
    (Sign::BlocksAbove(4096), "a block does not fit into a page"),
    (Sign::Feature("casefold"), "it is built without CONFIG_UNICODE"),
    (
        Sign::Feature("verity"),
        "it is built without CONFIG_FS_VERITY, and opens no file that has a hash tree",
    ),
];

/// Returns the reason why the kernel cannot read an image, if any.
#[track_caller]
pub fn beyond_the_kernel(image: &Path) -> Option<&'static str> {
    beyond(&dumpe2fs::header(image))
}

fn beyond(header: &Dump) -> Option<&'static str> {
    let features = header.features();
    let shows = |sign: &Sign| match sign {
        Sign::Feature(name) => features.contains(*name),
        Sign::BlocksAbove(bytes) => header.number("Block size") > *bytes,
    };
    BEYOND_THE_KERNEL.iter().find(|(sign, _)| shows(sign) && !is_known(sign)).map(|(_, why)| *why)
}

/// Returns whether this machine's kernel reports support for `sign`.
fn is_known(sign: &Sign) -> bool {
    let name = match sign {
        Sign::Feature(name) => name,
        Sign::BlocksAbove(_) => "blocksize_gt_pagesize",
    };
    Path::new("/sys/fs/ext4/features").join(name).exists()
}

/// Judges an image as it is, and changes nothing: one that needs its log replayed is not clean.
#[track_caller]
pub fn judge(image: &Path) -> Verdict {
    match fsck::check_by_all(image, &[]) {
        Verdict::Clean => judge_trees(image, &dumpe2fs::header(image)),
        complaints => complaints,
    }
}

#[track_caller]
fn judge_trees(image: &Path, header: &Dump) -> Verdict {
    if beyond(header).is_some() {
        return Verdict::Clean;
    }
    compare_trees(image, image).map_or_else(|line| Verdict::Complaints(vec![line]), Verdict::of)
}

/// Judges an image at the end of its use: recovers it first if its log needs replay.
#[track_caller]
pub fn judge_at_last(image: &Path) -> Verdict {
    let header = dumpe2fs::header(image);
    // For images of both writers: the kernel leaves extent trees higher than necessary.
    let judge = || match fsck::check_by_all(image, &["-E", "no_optimize_extents"]) {
        Verdict::Clean => judge_trees(image, &header),
        complaints => complaints,
    };
    if !needs_recovery(&header) {
        return judge();
    }
    let held = match read_by_extant(image) {
        Ok(held) => held,
        Err(why) => return Verdict::Complaints(vec![format!("before recovery: {why}")]),
    };
    let verdict = match recover(image, &header) {
        Verdict::Clean => judge(),
        complaints => complaints,
    };
    match (verdict, read_by_extant(image)) {
        (Verdict::Clean, Ok(now)) => Verdict::of(differences(&header, held, now)),
        (Verdict::Clean, Err(why)) => Verdict::Complaints(vec![format!("after recovery: {why}")]),
        (complaints, _) => complaints,
    }
}

/// Compares the trees before and after recovery. The replay of a name of a fast commit changes the
/// directory, and thus its times.
fn differences(header: &Dump, before: Manifest, after: Manifest) -> Vec<String> {
    if header.features().contains("fast_commit") {
        before.without_directory_times().diff(&after.without_directory_times())
    } else {
        before.diff(&after)
    }
}

/// Recovers an image by `e2fsck`. Fast commits are recovered by Extant, since `e2fsck` 1.47.0
/// replays only the simplest.
fn recover(image: &Path, header: &Dump) -> Verdict {
    if !header.features().contains("fast_commit") {
        return fsck::recover_and(image, |image| fsck::check_with(image, &[]));
    }
    let recovered = Fs::open(image, &OpenOptions::new().memory(64 << 20)).and_then(Fs::unmount);
    recovered.map_or_else(
        |e| Verdict::Complaints(vec![format!("Extant does not recover it: {e}")]),
        |()| Verdict::Clean,
    )
}

/// Returns whether the superblock requires recovery: a log to replay, orphans to free, or a
/// recorded error, which only a check with write access may clear.
fn needs_recovery(header: &Dump) -> bool {
    let features = header.features();
    let orphans =
        features.contains("orphan_present") || header.values.contains_key("First orphan inode");
    features.contains("needs_recovery")
        || orphans
        || header.value("Filesystem state").contains("with errors")
}

fn read_by_extant(image: &Path) -> Result<Manifest, String> {
    // Without a lock: another descriptor may hold it for a moment after a close.
    let device =
        FileOptions::new(image).read_only(true).lock(false).open().map_err(|e| e.to_string())?;
    let options = OpenOptions::new().memory(64 << 20).read_only(true);
    let fs = Fs::open_device(Arc::new(device), &options)
        .map_err(|e| format!("Extant does not open it: {e}"))?;
    let held = Manifest::read(&fs).map_err(|why| format!("Extant does not read it: {why}"))?;
    fs.unmount().map_err(|e| format!("Extant does not close it: {e}"))?;
    Ok(held)
}

/// Returns the differences between the tree that Extant reads from `ours` and the kernel's tree of
/// `theirs`.
#[track_caller]
fn compare_trees(ours: &Path, theirs: &Path) -> Result<Vec<String>, String> {
    let held = read_by_extant(ours)?;
    let mount = Mount::try_new(theirs, "ro,noload")?;
    let walked = Manifest::walk(mount.path());
    mount.unmount();
    Ok(walked
        .diff(&held)
        .into_iter()
        .map(|line| format!("the kernel and Extant: {line}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FeatureSet, debugfs};

    #[test]
    fn trees_that_differ_are_found_different() {
        let image = FeatureSet::named("default").make_sized(12 << 20);
        let mount = Mount::new(image.path(), "");
        std::fs::write(mount.join("file"), [b'a'; 5000]).expect("a file");
        mount.unmount();
        assert_eq!(compare_trees(image.path(), image.path()), Ok(vec![]));
        for (field, said) in
            [("mode 0100600", "mode"), ("mtime 20200101", "mtime"), ("size 4999", "content")]
        {
            let other = image.copy();
            other.leave_unjudged("it is changed by debugfs");
            debugfs::write(other.path(), &format!("set_inode_field /file {field}"));
            let found = compare_trees(image.path(), other.path()).expect("both are read");
            assert!(found.len() == 1 && found[0].contains(said), "{field}: {found:?}");
        }
    }
}
