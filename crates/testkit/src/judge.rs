//! The closing judgement of an image: whether all programs that can read it are of one opinion
//! about it.
//!
//! `e2fsck` finds nothing; `dumpe2fs`, `debugfs` and `e2freefrag` count what it counted; the kernel
//! mounts the image, and its tree is, file by file, the one that Extant reads. An image whose log
//! was not replayed is read by Extant as it is first, then recovered by `e2fsck`: what comes out is
//! judged, and holds the tree that Extant read.
//!
//! Nobody has to ask for it: a [`Scratch`](crate::Scratch) judges the images in it that were
//! written to, when it goes.

use crate::dumpe2fs;
use crate::fsck::{self, Verdict};
use crate::kernel::Mount;
use crate::tree::Manifest;
use extant_engine::device::FileOptions;
use extant_engine::{Fs, OpenOptions};
use std::path::Path;
use std::sync::Arc;

/// Where an image says what keeps the kernel from walking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// A feature.
    Feature(&'static str),
    /// Blocks of more than so many bytes.
    BlocksAbove(u64),
}

/// Images that some kernels do not mount, or do not read, and why; where this one does not, the
/// tree is not compared. A test shows each.
pub const BEYOND_THE_KERNEL: [(Sign, &str); 3] = [
    (Sign::BlocksAbove(4096), "a block does not fit into a page"),
    (Sign::Feature("casefold"), "it is built without CONFIG_UNICODE"),
    (
        Sign::Feature("verity"),
        "it is built without CONFIG_FS_VERITY, and opens no file that has a hash tree",
    ),
];

/// Why the kernel cannot say what an image holds, if so.
#[track_caller]
pub fn beyond_the_kernel(image: &Path) -> Option<&'static str> {
    let header = dumpe2fs::header(image);
    let features = header.features();
    let shows = |sign: &Sign| match sign {
        Sign::Feature(name) => features.contains(*name),
        Sign::BlocksAbove(bytes) => header.number("Block size") > *bytes,
    };
    BEYOND_THE_KERNEL.iter().find(|(sign, _)| shows(sign) && !is_known(sign)).map(|(_, why)| *why)
}

/// Whether this machine's kernel says that it knows what `sign` stands for.
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
    judge_after(image, fsck::check_by_all(image, &[]))
}

#[track_caller]
fn judge_after(image: &Path, checked: Verdict) -> Verdict {
    match checked {
        Verdict::Clean => compare_trees(image, image)
            .map_or_else(|line| Verdict::Complaints(vec![line]), Verdict::of),
        complaints => complaints,
    }
}

/// Judges an image that is not needed any more: one whose log was not replayed is recovered, and
/// judged then.
#[track_caller]
pub fn judge_at_last(image: &Path) -> Verdict {
    // Whoever wrote it: the kernel leaves trees of extents higher than they need to be.
    let judge =
        |image| judge_after(image, fsck::check_by_all(image, &["-E", "no_optimize_extents"]));
    if !needs_recovery(image) {
        return judge(image);
    }
    let held = match read_by_extant(image) {
        Ok(held) => held,
        Err(why) => return Verdict::Complaints(vec![format!("before recovery: {why}")]),
    };
    let verdict = match recover(image) {
        Verdict::Clean => judge(image),
        complaints => complaints,
    };
    match (verdict, read_by_extant(image)) {
        (Verdict::Clean, Ok(now)) => Verdict::of(differences(image, held, now)),
        (Verdict::Clean, Err(why)) => Verdict::Complaints(vec![format!("after recovery: {why}")]),
        (complaints, _) => complaints,
    }
}

/// Whoever replays an entry of a fast commit changes the directory then: its time is his.
fn differences(image: &Path, before: Manifest, after: Manifest) -> Vec<String> {
    if dumpe2fs::header(image).features().contains("fast_commit") {
        before.without_directory_times().diff(&after.without_directory_times())
    } else {
        before.diff(&after)
    }
}

/// Recovers an image: by `e2fsck`, but for fast commits, of which it replays the simplest only
/// (1.47.0 gives up at many).
fn recover(image: &Path) -> Verdict {
    if !dumpe2fs::header(image).features().contains("fast_commit") {
        return fsck::recover_and(image, |image| fsck::check_with(image, &[]));
    }
    let recovered = Fs::open(image, &OpenOptions::new().memory(64 << 20)).and_then(Fs::unmount);
    recovered.map_or_else(
        |e| Verdict::Complaints(vec![format!("Extant does not recover it: {e}")]),
        |()| Verdict::Clean,
    )
}

/// Whether the superblock says that the log has to be replayed, that orphans wait to be freed, or
/// that an error was met, after which nobody but a check that may write goes on.
fn needs_recovery(image: &Path) -> bool {
    let header = dumpe2fs::header(image);
    let features = header.features();
    let orphans =
        features.contains("orphan_present") || header.values.contains_key("First orphan inode");
    features.contains("needs_recovery")
        || orphans
        || header.value("Filesystem state").contains("with errors")
}

fn read_by_extant(image: &Path) -> Result<Manifest, String> {
    // Somebody may still hold what is closed.
    let device =
        FileOptions::new(image).read_only(true).lock(false).open().map_err(|e| e.to_string())?;
    let options = OpenOptions::new().memory(64 << 20).read_only(true);
    let fs = Fs::open_device(Arc::new(device), &options)
        .map_err(|e| format!("Extant does not open it: {e}"))?;
    let held = Manifest::read(&fs).map_err(|why| format!("Extant does not read it: {why}"))?;
    fs.unmount().map_err(|e| format!("Extant does not close it: {e}"))?;
    Ok(held)
}

/// Where what Extant reads of one image and what the kernel walks of the other differ.
#[track_caller]
fn compare_trees(ours: &Path, theirs: &Path) -> Result<Vec<String>, String> {
    if beyond_the_kernel(theirs).is_some() {
        return Ok(Vec::new());
    }
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
