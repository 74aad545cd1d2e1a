//! Block devices and the block cache.
