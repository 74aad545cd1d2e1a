//! Hash trees, against veritysetup(8).

use crate::helpers::{built, every_kind, options};
use extant_blocks::{BlockDevice, OpenOptions};
use extant_image::{VerityOptions, VerityTree};
use extant_testkit::Scratch;
use extant_testkit::tool::{Printed, run};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const UUID: [u8; 16] = *b"a tree of hashes";

fn verity_options(data: u32, hash: u32, salt: &[u8]) -> VerityOptions {
    let mut options = VerityOptions::default();
    (options.data_block_size, options.hash_block_size) = (data, hash);
    (options.salt, options.uuid) = (salt.to_vec(), UUID);
    options
}

/// Appends a tree to the first `len` bytes of a file; returns the root hash and the tree's offset.
fn append(path: &Path, len: u64, options: &VerityOptions) -> (String, u64) {
    let tree = VerityTree::new(len, options).unwrap();
    let offset = tree.offset_behind_data();
    let device = OpenOptions::new(path).open().unwrap();
    device.set_len(offset + tree.bytes()).unwrap();
    let root = tree.write(&device, &device, offset, &AtomicBool::new(false)).unwrap();
    (root.iter().map(|byte| format!("{byte:02x}")).collect(), offset)
}

fn verify(path: &Path, root: &str, offset: u64) -> Printed {
    let place = format!("--hash-offset={offset}");
    let path = path.as_os_str();
    run(
        "veritysetup",
        &["verify".into(), path.into(), path.into(), root.into(), OsString::from(place)],
    )
}

/// Each size at which a level gets a block more, and those beside it.
#[test]
fn trees_of_all_sizes_are_verified() {
    let scratch = Scratch::new();
    for (data, hash, sizes) in [
        (4096u32, 4096u32, &[1u64, 2, 127, 128, 129, 16_384, 16_385][..]),
        (1024, 4096, &[1, 128, 129, 4000]),
        (4096, 512, &[1, 16, 17, 255, 256, 257, 4096, 4097]),
        (512, 1024, &[3, 31, 32, 33, 1024, 1025]),
        (4096, 65_536, &[1, 2047, 2048, 2049]),
        (65_536, 4096, &[1, 129]),
    ] {
        for blocks in sizes {
            let path = scratch.join("data");
            let file = File::create(&path).unwrap();
            let len = blocks * u64::from(data);
            file.set_len(len).unwrap();
            let text: Vec<u8> = (0..5000u32).flat_map(u32::to_le_bytes).collect();
            for at in [0, len / 2, len.saturating_sub(20_000)] {
                let part = &text[..text.len().min((len - at) as usize)];
                file.write_all_at(part, at).unwrap();
            }
            for salt in [&b""[..], &[0xab; 32], &[1; 256]] {
                let (root, offset) = append(&path, len, &verity_options(data, hash, salt));
                let printed = verify(&path, &root, offset);
                assert_eq!(printed.code, 0, "{data} {hash} {blocks}: {printed}");
            }
        }
    }
}

/// With the same parameters, veritysetup(8) makes the same bytes.
#[test]
fn trees_are_those_of_veritysetup() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7 % 251) as u8).collect();
    let len = bytes.len() as u64 / 4096 * 4096;
    std::fs::write(&data, &bytes[..len as usize]).unwrap();
    let theirs = scratch.join("theirs");
    let uuid = "--uuid=61207472-6565-206f-6620-686173686573";
    let [from, to] = [&data, &theirs].map(OsString::from);
    run("veritysetup", &["format".into(), from, to, "--salt=0102".into(), uuid.into()])
        .must_succeed();
    let (_, offset) = append(&data, len, &verity_options(4096, 4096, &[1, 2]));
    let ours = std::fs::read(&data).unwrap();
    assert!(ours[offset as usize..] == std::fs::read(&theirs).unwrap());
}

#[test]
fn a_changed_byte_is_found() {
    let (image, facts) = built(&every_kind(), &options(1024, "^has_journal"));
    let (root, offset) = append(image.path(), facts.bytes, &verity_options(1024, 4096, b"salt"));
    verify(image.path(), &root, offset).must_succeed();
    let file = File::options().write(true).open(image.path()).unwrap();
    file.write_all_at(b"x", facts.bytes - 1).unwrap();
    assert_ne!(verify(image.path(), &root, offset).code, 0);
}
