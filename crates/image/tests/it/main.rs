//! Images of trees, against e2fsck and the kernel.

mod build;
mod exact;
mod helpers;
mod verity;
