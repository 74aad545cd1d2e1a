//! Cached content: reads, writes, and pages filled from the device.

pub(super) mod fill;
pub(super) mod read;
pub(super) mod write;
