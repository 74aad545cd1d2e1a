//! Fast commits of a file system with quotas. This kernel may lack quota support, so the feature is
//! removed while the kernel writes. Its commits then contain no usage, as those of a kernel with
//! quota support.

use super::{STEPS, before};
use extant_engine::{Fs, OpenOptions, QuotaKind};
use extant_format::features::RoCompat;
use extant_hostile::atlas;
use extant_testkit::e2fsck;
use extant_testkit::image::Image;
use extant_testkit::kernel::{Mount, Shutdown};
use extant_testkit::tool::run;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::SystemTime;

const ARGS: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "4096",
    "-O",
    "fast_commit,^orphan_file,quota",
    "-J",
    "size=16,fast_commit_size=1024",
];

fn count(image: &Image, yes: bool) {
    let mut bytes = image.bytes();
    atlas::change_superblock(&mut bytes, |sb| {
        let mut features = sb.features();
        features.ro_compat.set(RoCompat::QUOTA, yes);
        sb.set_features(features);
    });
    fs::write(image.path(), bytes).expect("an image");
}

/// How many full commits there were, and the records of fast ones.
fn logged(image: &Image) -> (u32, u64) {
    let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).expect("open");
    fs.recovery().journal.map_or((0, 0), |found| (found.end, found.fast_records))
}

/// Files of several owners, more than the files have records for.
fn of_others(root: &Path) {
    for (n, ids) in [(100, 1000), (200, 1000), (100, 70_000)].into_iter().enumerate() {
        let path = root.join(format!("other{n}"));
        fs::write(&path, vec![n as u8; 20_000]).expect("written");
        chown(&path, Some(ids.0), Some(ids.1)).expect("given away");
        File::open(&path).and_then(|file| file.sync_all()).expect("synced");
    }
    fs::remove_file(root.join("old/8")).expect("removed");
    File::open(root.join("other0")).and_then(|file| file.sync_all()).expect("synced");
}

/// Returns images after each step, with usage that is right except for the fast commits.
fn states() -> Vec<(&'static str, Image)> {
    let image = Image::mke2fs(64 << 20, ARGS);
    image.leave_unjudged("it has quota files and does not say so; the states do");
    count(&image, false);
    let mount = Mount::new(image.path(), "");
    before(mount.path());
    mount.unmount();
    count(&image, true);
    e2fsck::repair(image.path());
    image.assert_clean();
    count(&image, false);
    let mount = Mount::new(image.path(), "commit=300");
    // The full commit that the fast ones follow. The first change writes the superblock, too,
    // without the feature: it is not to be replayed.
    for n in [3, 4] {
        File::open(mount.join(format!("old/{n}")))
            .and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH))
            .expect("a change");
        mount.sync();
        if n == 3 {
            run("fsfreeze", &[OsStr::new("-f"), mount.path().as_os_str()]).must_succeed();
            run("fsfreeze", &[OsStr::new("-u"), mount.path().as_os_str()]).must_succeed();
        }
    }
    // Images other than the states are like the first one.
    let unjudged = |copy: &Image| copy.leave_unjudged("it has quota files and does not say so");
    let copy = image.copy();
    unjudged(&copy);
    let begin = logged(&copy).0;
    let mut states = Vec::new();
    let all = std::iter::once(("others", of_others as fn(&Path))).chain(STEPS);
    for (name, step) in all {
        step(mount.path());
        let copy = image.copy();
        let (full, records) = logged(&copy);
        if full == begin && records > 0 {
            count(&copy, true);
            states.push((name, copy));
        } else {
            unjudged(&copy);
        }
    }
    mount.crash(Shutdown::NoFlushLog);
    states
}

#[test]
fn replayed_changes_are_counted_in_usage() {
    let states = states();
    assert!(states.len() > 6, "{}", states.len());
    for (step, image) in states {
        let fs =
            Fs::open(image.path(), &OpenOptions::new()).unwrap_or_else(|e| panic!("{step}: {e}"));
        assert_eq!(fs.recovery().read_only, None, "{step}");
        assert!(fs.recovery().journal.is_some_and(|found| found.fast_records > 0), "{step}");
        let other = fs.quota(QuotaKind::Group, 70_000).expect(step);
        assert_eq!((other.inodes, other.space), (1, 20_480), "{step}");
        fs.unmount().unwrap_or_else(|e| panic!("{step}: {e}"));
        if let e2fsck::Verdict::Complaints(lines) = e2fsck::check(image.path()) {
            panic!("{step}: {lines:#?}");
        }
    }
}
