//! `e2fsck` as the judge of an image, with a sample of images judged by the other programs, too.

pub use crate::counts::Summary;
pub use crate::fsck::{Verdict, check_by_all, check_with, check_within, repair};

use crate::{fsck, judge};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Sampling of [`check`]: one in the first number of images is also checked by the other programs,
/// one in the second by all judges with the kernel's mount. Campaigns have too many states for
/// more.
const SAMPLE: (usize, usize) = (4, 50);

/// Runs `e2fsck -fn`, which changes nothing. An image that needs its journal replayed is not clean.
/// The first image of a process, and some later ones, are judged as by
/// [`judge`](judge::judge()), more as by [`check_by_all`].
#[track_caller]
pub fn check(image: &Path) -> Verdict {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: only the count matters; it publishes no other data.
    match SEEN.fetch_add(1, Relaxed) {
        nth if nth % SAMPLE.1 == 0 => judge::judge(image),
        nth if nth % SAMPLE.0 == 0 => check_by_all(image, &[]),
        _ => check_with(image, &[]),
    }
}

/// Repairs the traces of a crash, as `fsck::recover_and` does, and checks again by [`check`].
pub fn recover(image: &Path) -> Verdict {
    fsck::recover_and(image, check)
}
