//! Real FUSE mounts.

mod mounts;
