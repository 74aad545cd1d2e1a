//! ext4 in user space: open, create, read, write, recover.
#![forbid(unsafe_code)]
