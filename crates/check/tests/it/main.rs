//! Findings on images of `mke2fs`, undamaged and damaged, with e2fsck as the judge.

mod groups;
