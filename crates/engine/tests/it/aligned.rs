//! File systems on devices that take whole blocks only, smaller and larger than their own.

use extant_blocks::{SignatureKind, StrictDevice, identify};
use extant_engine::mkfs::{Options, Preset, make};
use extant_engine::{File, Follow, Fs, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::Memory;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Sizes of files in bytes, around the borders of blocks of 1, 4 and 16 KiB.
const SIZES: [usize; 9] = [0, 1, 511, 1024, 1500, 4095, 4097, 16_383, 70_000];

/// Returns content of `len` bytes that differs among files.
fn content(file: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + file * 13) as u8).collect()
}

fn open_file(fs: &Fs, name: &str, direct: bool) -> File {
    let node = fs.resolve(format!("/{name}"), Follow::Yes).unwrap();
    fs.open_file(&node, OpenFlags { write: true, direct, ..OpenFlags::default() }).unwrap()
}

fn make_file(fs: &Fs, name: &str, bytes: &[u8], direct: bool) {
    let root = fs.root().unwrap();
    fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).unwrap();
    let file = open_file(fs, name, direct);
    let mut at = 0;
    // Pieces whose borders are not those of blocks.
    for piece in bytes.chunks(1536) {
        assert_eq!(file.write_at(at, piece).unwrap(), piece.len());
        at += piece.len() as u64;
    }
    file.sync().unwrap();
}

fn assert_content(fs: &Fs, name: &str, expected: &[u8]) {
    let file = open_file(fs, name, false);
    let mut bytes = vec![0xaa; expected.len() + 10];
    let read = file.read_at(0, &mut bytes).unwrap();
    assert_eq!((read, &bytes[..read]), (expected.len(), expected), "content of {name}");
}

/// Makes files, stops as a crash does, recovers, changes the files, and compares all of them.
fn use_file_system(block_size: u32, alignment: usize, features: &str) {
    let memory = Arc::new(Memory::new(64 * MIB));
    let device = Arc::new(StrictDevice::new(memory.clone(), alignment));
    let mut options = Options { block_size: Some(block_size), ..Options::preset(Preset::Ext4) };
    options.apply_features(features).unwrap();
    make(&*device, &options).unwrap();
    assert_eq!(identify(&*device).unwrap().kind, SignatureKind::Ext);

    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    for (file, size) in SIZES.into_iter().enumerate() {
        make_file(&fs, &format!("cached{file}"), &content(file, size), false);
        make_file(&fs, &format!("direct{file}"), &content(file + 100, size), true);
    }
    fs.shut_down().unwrap();
    drop(fs);

    let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
    for (file, size) in SIZES.into_iter().enumerate() {
        assert_content(&fs, &format!("cached{file}"), &content(file, size));
        assert_content(&fs, &format!("direct{file}"), &content(file + 100, size));
        let cut = size / 3;
        open_file(&fs, &format!("cached{file}"), false).set_len(cut as u64).unwrap();
        open_file(&fs, &format!("cached{file}"), false).set_len(size as u64).unwrap();
        let mut expected = content(file, size);
        expected[cut..].fill(0);
        assert_content(&fs, &format!("cached{file}"), &expected);
    }
    fs.trim(0..u64::MAX, 1).unwrap();
    fs.unmount().unwrap();
}

#[test]
fn a_device_of_large_blocks_holds_file_systems_of_small_ones() {
    use_file_system(1024, 4096, "");
    use_file_system(4096, 16_384, "");
}

#[test]
fn a_device_of_small_blocks_holds_file_systems_of_large_ones() {
    use_file_system(4096, 512, "");
    use_file_system(4096, 4096, "");
}

#[test]
fn blocks_of_the_device_are_changed_in_part_by_all_kinds_of_file_systems() {
    use_file_system(1024, 4096, "^has_journal");
    use_file_system(1024, 4096, "inline_data,bigalloc,^resize_inode");
    use_file_system(2048, 16_384, "^extent,^64bit,^metadata_csum");
}
