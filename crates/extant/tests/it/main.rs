//! Integration tests of the public library.

mod errors;
mod examples;
mod handles;
mod memory;
mod paths;

use extant::{Fs, mkfs};
use extant_testkit::Memory;
use std::sync::Arc;

/// A new file system, judged by e2fsck when it goes.
fn new() -> Fs {
    let device = Arc::new(Memory::new(32 << 20));
    Fs::options().create_on(device, &mkfs::Options::default()).unwrap()
}
