//! Caches in directories.

use crate::server::{Fault, Server};
use crate::{content, disk, in_directory, open, options, store};
use std::fs;
use std::path::Path;

fn size(dir: &Path) -> u64 {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn chunks_are_kept_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(40);
    store(&disk, &in_directory(dir.path(), "disk"), &options()).unwrap();
    let server = Server::of(dir.path());
    let cache = dir.path().join("cache");
    let place = server.address(&format!("disk?timeout=1&cache={}", cache.display()));
    assert_eq!(content(&open(&place).unwrap()), content(&disk));
    // Without the store's chunks.
    server.fails("/chunks/", Fault::Status(404), u64::MAX);
    assert_eq!(content(&open(&place).unwrap()), content(&disk));
    // Damaged ones are fetched again, and replaced.
    for entry in fs::read_dir(&cache).unwrap() {
        fs::write(entry.unwrap().path(), b"damaged").unwrap();
    }
    let device = open(&place).unwrap();
    let mut start = [0; 4];
    extant_blocks::BlockDevice::read_exact_at(&device, &mut start, 0).unwrap_err();
    server.recovers();
    assert_eq!(content(&device), content(&disk));
    server.fails("/chunks/", Fault::Status(404), u64::MAX);
    assert_eq!(content(&open(&place).unwrap()), content(&disk));
}

#[test]
fn a_cache_has_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(200);
    store(&disk, &in_directory(dir.path(), "disk"), &options()).unwrap();
    let cache = dir.path().join("cache");
    let bound = 4000;
    let more = format!("?cache={}&cache-size={bound}", cache.display());
    let place = in_directory(dir.path(), "disk").to_string() + &more;
    assert_eq!(content(&open(&place).unwrap()), content(&disk));
    let used = size(&cache);
    // Threads that add at the same moment exceed it by a chunk each.
    assert!(used > 0 && used < bound + 16 * 300, "{used}");
    fs::write(cache.join("other"), vec![1; 10_000]).unwrap();
    open(&place).unwrap();
    assert!(cache.join("other").exists(), "a file of another program");
}
