//! Stores that fail for a while.

use crate::server::{Fault, Server};
use crate::{CHUNK, content, disk, in_directory, open, options, store};
use extant_blocks::BlockDevice;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// Stores a disk in a directory, and serves that.
fn served(dir: &Path) -> (Vec<u8>, Server) {
    let disk = disk(40);
    store(&disk, &in_directory(dir, "disk"), &options()).unwrap();
    (content(&disk), Server::of(dir))
}

#[test]
fn reads_outlast_short_faults() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, server) = served(dir.path());
    server.fails("/disk", Fault::Status(503), 2);
    server.fails("/chunks/", Fault::Status(500), 3);
    server.fails("/chunks/", Fault::Cut, 3);
    server.fails("/chunks/", Fault::Wrong, 1);
    server.fails("/chunks/", Fault::Slow(Duration::from_millis(300)), 2);
    let device = open(server.address("disk?timeout=20")).unwrap();
    assert_eq!(content(&device), bytes);
    // From memory.
    let before = server.requests();
    assert_eq!(content(&device), bytes);
    assert_eq!(server.requests(), before);
}

#[test]
fn small_reads_are_those_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, server) = served(dir.path());
    let device = open(server.address("disk")).unwrap();
    let mut random = extant_sync::SplitMix64::new(3);
    for _ in 0..300 {
        let at = random.below(bytes.len() as u64);
        let len = random.below((bytes.len() as u64 - at).min(3 * CHUNK) + 1);
        let mut part = vec![1; len as usize];
        device.read_exact_at(&mut part, at).unwrap();
        assert_eq!(part, bytes[at as usize..(at + len) as usize]);
    }
    let mut beyond = [0; 2];
    let error = device.read_exact_at(&mut beyond, device.len() - 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(device.write_all_at(&[1], 0).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn long_faults_are_errors_in_time_and_pass() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, server) = served(dir.path());
    let device = open(server.address("disk?timeout=1")).unwrap();
    for fault in [Fault::Status(503), Fault::Slow(Duration::from_secs(5)), Fault::Cut] {
        server.fails("/chunks/", fault, 1000);
        let begin = Instant::now();
        let mut part = [0; 10];
        let error = device.read_exact_at(&mut part, 0).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(4), "{fault:?}: {:?}", begin.elapsed());
        assert!(error.to_string().contains("/chunks/"), "{error}");
        server.recovers();
    }
    assert_eq!(content(&device), bytes);
}
