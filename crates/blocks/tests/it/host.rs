//! Copies between files by the host.

use extant_blocks::{BlockDevice, FileDevice, HostBytes, MemDevice, OpenOptions};
use std::fs::{self, File};
use std::io::ErrorKind;

/// A file of bytes that differ by their place.
fn source() -> (File, Vec<u8>) {
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &bytes).unwrap();
    (file.reopen().unwrap(), bytes)
}

fn device(len: u64) -> FileDevice {
    let device = FileDevice::of_file(tempfile::tempfile().unwrap()).unwrap();
    device.set_len(len).unwrap();
    device
}

#[test]
fn bytes_of_a_file_are_copied_to_a_device_and_within_it() {
    let ((file, bytes), device) = (source(), device(1 << 20));
    let from = HostBytes::new(&file, 5).skip(2).unwrap();
    assert_eq!(device.copy_from_host(from, 3, 200_000).unwrap(), 200_000);
    let own = device.host_bytes().unwrap().skip(3).unwrap();
    assert_eq!(device.copy_from_host(own, 700_001, 200_000).unwrap(), 200_000);
    let mut found = vec![0; 1 << 20];
    device.read_exact_at(&mut found, 0).unwrap();
    let mut expected = vec![0; 1 << 20];
    for at in [3, 700_001] {
        expected[at..at + 200_000].copy_from_slice(&bytes[7..200_007]);
    }
    assert!(found == expected);
}

/// A part of a file is a device of its own.
#[test]
fn places_count_from_the_device() {
    let (file, bytes) = source();
    let target = tempfile::NamedTempFile::new().unwrap();
    target.as_file().set_len(1 << 20).unwrap();
    let part = OpenOptions::new(target.path()).offset(8192).open().unwrap();
    assert_eq!(part.copy_from_host(HostBytes::new(&file, 0), 100, 1000).unwrap(), 1000);
    assert!(fs::read(target.path()).unwrap()[8292..9292] == bytes[..1000]);
    let own = part.host_bytes().unwrap().skip(100).unwrap();
    let other = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(own.copy_to(other.as_file(), 0, 1000), 1000);
    assert!(fs::read(other.path()).unwrap() == bytes[..1000]);
    let beyond = part.copy_from_host(HostBytes::new(&file, 0), part.len() - 999, 1000).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::InvalidInput);
}

#[test]
fn the_caller_copies_what_the_host_does_not() {
    let ((file, bytes), device) = (source(), device(1 << 20));
    let end = bytes.len() as u64;
    let last = HostBytes::new(&file, end - 10);
    assert_eq!(device.copy_from_host(last, 0, 4096).unwrap(), 10, "the file ends");
    assert_eq!(device.copy_from_host(last.skip(100).unwrap(), 0, 4096).unwrap(), 0);
    assert!(last.skip(u64::MAX).is_none());
    let far = HostBytes::new(&file, u64::MAX);
    assert_eq!(device.copy_from_host(far, 0, 4096).unwrap(), 0, "no file is so long");
    let unreadable = File::options().write(true).open("/dev/null").unwrap();
    assert_eq!(device.copy_from_host(HostBytes::new(&unreadable, 0), 0, 4096).unwrap(), 0);
    let memory = MemDevice::new(4096);
    assert!(memory.host_bytes().is_none());
    assert_eq!(memory.copy_from_host(HostBytes::new(&file, 0), 0, 4096).unwrap(), 0);
}

#[test]
fn a_device_for_reading_is_not_written() {
    let (file, _) = source();
    let target = tempfile::NamedTempFile::new().unwrap();
    target.as_file().set_len(8192).unwrap();
    let device = OpenOptions::new(target.path()).read_only(true).open().unwrap();
    let refused = device.copy_from_host(HostBytes::new(&file, 0), 0, 4096).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert!(fs::read(target.path()).unwrap().iter().all(|byte| *byte == 0));
}
