//! Images of QEMU, and its verdicts.

use extant_blocks::{BlockDevice, FileDevice, OpenOptions};
use extant_qcow2::Qcow2Device;
use extant_testkit::Scratch;
use extant_testkit::rng::Rng;
use extant_testkit::tool::{Printed, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Exit code of `qemu-img check` for leaks alone.
const LEAKS: i32 = 3;

/// Runs qemu-img, which must succeed.
pub fn qemu(args: &[&str]) -> Printed {
    run("qemu-img", args).must_succeed()
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path of a test")
}

/// Makes an empty image with options of qemu-img.
pub fn empty(path: &Path, options: &str, bytes: u64) {
    qemu(&["create", "-q", "-f", "qcow2", "-o", options, text(path), &bytes.to_string()]);
}

/// Makes an image of raw content with options of qemu-img.
pub fn converted(scratch: &Scratch, name: &str, content: &[u8], options: &[&str]) -> PathBuf {
    let (raw, image) = (scratch.join(format!("{name}.raw")), scratch.join(name));
    fs::write(&raw, content).expect("a raw image");
    let begin = ["convert", "-q", "-f", "raw", "-O", "qcow2"];
    qemu(&[&begin[..], options, &[text(&raw), text(&image)]].concat());
    image
}

/// Asserts that an image is consistent, and has no leaks.
#[track_caller]
pub fn assert_clean(image: &Path) {
    let printed = run("qemu-img", &["check", "-f", "qcow2", text(image)]);
    assert_eq!(printed.code, 0, "{printed}");
}

/// Asserts that an image is consistent. Leaks are none of its faults.
#[track_caller]
pub fn assert_consistent(image: &Path) {
    let printed = run("qemu-img", &["check", "-f", "qcow2", text(image)]);
    assert!([0, LEAKS].contains(&printed.code), "{printed}");
}

/// Returns the disk of an image as QEMU reads it.
pub fn disk(scratch: &Scratch, image: &Path) -> Vec<u8> {
    let raw = scratch.join("converted.raw");
    qemu(&["convert", "-q", "-f", "qcow2", "-O", "raw", text(image), text(&raw)]);
    let bytes = fs::read(&raw).expect("the raw image");
    fs::remove_file(raw).expect("its end");
    bytes
}

pub fn file(path: &Path, read_only: bool) -> Arc<FileDevice> {
    Arc::new(OpenOptions::new(path).read_only(read_only).open().expect("an image file"))
}

/// Opens an image file without a backing file.
pub fn open(path: &Path, read_only: bool) -> Qcow2Device {
    Qcow2Device::open(file(path, read_only), None, read_only).expect("an image")
}

/// Returns the whole disk.
pub fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_exact_at(&mut bytes, 0).expect("the disk");
    bytes
}

/// Returns content with holes, zeroes and data of all sizes.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = vec![0; len];
    let mut at = 0;
    while at < len {
        let part = (rng.between(1, 200_000) as usize).min(len - at);
        if rng.one_in(2) {
            // Repeated, so that it can be compressed.
            let unit = rng.bytes(512);
            bytes[at..at + part].iter_mut().zip(unit.iter().cycle()).for_each(|(to, by)| *to = *by);
        }
        at += part;
    }
    bytes
}

/// Asserts that data lies nowhere but where the device says.
pub fn assert_data_ranges(device: &dyn BlockDevice, bytes: &[u8]) {
    let mut at = 0;
    while let Some(data) = device.next_data(at).expect("data") {
        assert!(data.start >= at && data.start < data.end && data.end <= device.len(), "{data:?}");
        let hole = &bytes[at as usize..data.start as usize];
        assert!(hole.iter().all(|byte| *byte == 0), "a hole before {data:?} has data");
        at = data.end;
    }
    assert!(bytes[at as usize..].iter().all(|byte| *byte == 0), "the hole at the end has data");
}
