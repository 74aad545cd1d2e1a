//! `e2fsck` as the judge of an image. Now and then the other programs are asked, too.

pub use crate::counts::Summary;
pub use crate::fsck::{Verdict, check_by_all, check_with, repair};

use crate::{fsck, judge};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Of so many images that [`check`] sees, one is looked at by the other programs, too, and of so
/// many one is judged by all, the kernel's mount among them: states of campaigns are many.
const SAMPLE: (usize, usize) = (4, 50);

/// Runs `e2fsck -fn`, which changes nothing. An image that needs its journal replayed is not clean.
/// The first image of a process, and some later ones, are judged as by
/// [`judge`](judge::judge()), more as by [`check_by_all`].
#[track_caller]
pub fn check(image: &Path) -> Verdict {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    // Only a count: nothing is made visible by it.
    match SEEN.fetch_add(1, Relaxed) {
        nth if nth % SAMPLE.1 == 0 => judge::judge(image),
        nth if nth % SAMPLE.0 == 0 => check_by_all(image, &[]),
        _ => check_with(image, &[]),
    }
}

/// Repairs the traces of a crash, as [`fsck::recover_and`] does, and checks again by [`check`].
pub fn recover(image: &Path) -> Verdict {
    fsck::recover_and(image, check)
}
