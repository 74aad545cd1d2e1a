//! Partition tables, valid and hostile.

use extant_blocks::{BlockDevice, MemDevice, OpenOptions, SparseDevice, StrictDevice, partition};
use proptest::prelude::*;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// Makes an MBR of entries: type, first sector, number of sectors.
pub fn mbr(entries: &[(u8, u32, u32)]) -> [u8; 512] {
    let mut table = [0; 512];
    for (entry, (kind, first, count)) in table[446..].chunks_mut(16).zip(entries) {
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..16].copy_from_slice(&count.to_le_bytes());
    }
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    table
}

fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// Writes a GUID table with its copy. Partitions are given by first and last sector.
pub fn write_gpt(device: &dyn BlockDevice, sector: u64, partitions: &[(u64, u64)]) {
    let mut array = vec![0u8; 128 * 128];
    for (entry, (first, last)) in array.chunks_mut(128).zip(partitions) {
        entry[..16].fill(if *last == 0 { 0 } else { 0x11 });
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
    }
    let end = device.len() / sector;
    let array_sectors = (array.len() as u64).div_ceil(sector);
    device.write_all_at(&mbr(&[(0xee, 1, u32::MAX)]), 0).unwrap();
    for (this, other, array_at) in [(1, end - 1, 2), (end - 1, 1, end - 1 - array_sectors)] {
        let mut header = vec![0u8; 92];
        header[..8].copy_from_slice(b"EFI PART");
        header[8..12].copy_from_slice(&0x1_0000u32.to_le_bytes());
        header[12..16].copy_from_slice(&92u32.to_le_bytes());
        let fields = [
            (24, this),
            (32, other),
            (40, 2 + array_sectors),
            (48, end - 2 - array_sectors),
            (72, array_at),
        ];
        for (at, value) in fields {
            header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        header[80..84].copy_from_slice(&128u32.to_le_bytes());
        header[84..88].copy_from_slice(&128u32.to_le_bytes());
        header[88..92].copy_from_slice(&crc32(&array).to_le_bytes());
        let sum = crc32(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        device.write_all_at(&header, this * sector).unwrap();
        device.write_all_at(&array, array_at * sector).unwrap();
    }
}

fn found(device: &dyn BlockDevice, number: u32) -> Option<(u64, u64)> {
    match partition::find(device, number, None) {
        Ok(range) => Some((range.start, range.end)),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            None
        }
    }
}

#[test]
fn primary_and_logical_partitions() {
    let device = SparseDevice::new(1 << 20);
    device
        .write_all_at(&mbr(&[(0x83, 10, 20), (0, 0, 0), (0x05, 100, 500), (0x83, 2000, 100)]), 0)
        .unwrap();
    device.write_all_at(&mbr(&[(0x83, 2, 8), (0x05, 50, 60)]), 100 * 512).unwrap();
    device.write_all_at(&mbr(&[(0x82, 1, 9)]), 150 * 512).unwrap();
    assert_eq!(found(&device, 1), Some((10 * 512, 30 * 512)));
    assert_eq!(found(&device, 5), Some((102 * 512, 110 * 512)));
    assert_eq!(found(&device, 6), Some((151 * 512, 160 * 512)));
    // Absent, unused, the chain itself, beyond the end, past the chain.
    assert_eq!([0, 2, 3, 4, 7, u32::MAX].map(|number| found(&device, number)), [None; 6]);
}

#[test]
fn a_chain_that_bites_its_tail_ends() {
    let device = SparseDevice::new(1 << 20);
    device.write_all_at(&mbr(&[(0x05, 100, 500)]), 0).unwrap();
    device.write_all_at(&mbr(&[(0x05, 0, 500)]), 100 * 512).unwrap();
    assert_eq!(found(&device, 5), None);
    // With a partition in it, the chain is as long as the bound.
    device.write_all_at(&mbr(&[(0x05, 0, 500), (0x83, 1, 1)]), 100 * 512).unwrap();
    assert_eq!(found(&device, 6), Some((101 * 512, 102 * 512)));
    assert_eq!(found(&device, 4000), None);
}

#[test]
fn guid_tables_of_both_sector_sizes() {
    for sector in [512, 4096] {
        let device = SparseDevice::new(4 << 20);
        write_gpt(&device, sector, &[(100, 199), (0, 0), (300, 299), (200, 1 << 40), (200, 200)]);
        device.write_all_at(&[0], 0).unwrap();
        let expected = [
            Some((100 * sector, 200 * sector)),
            None,
            None,
            Some((200 * sector, 201 * sector)),
            None,
        ];
        assert_eq!([1, 3, 4, 5, 129].map(|number| found(&device, number)), expected);
        // The copy serves when the header is damaged.
        device.write_all_at(&[0xff], sector + 20).unwrap();
        assert_eq!(found(&device, 1), expected[0]);
        device.write_all_at(&[0xff], device.len() - sector + 20).unwrap();
        assert_eq!(found(&device, 1), None);
    }
}

#[test]
fn a_partition_is_opened_alone() {
    let (_directory, path) = crate::image::image(4 << 20);
    let whole = OpenOptions::new(&path).open().unwrap();
    write_gpt(&whole, 512, &[(2048, 4095), (4096, 6143)]);
    drop(whole);
    let first = OpenOptions::new(&path).partition(1).open().unwrap();
    let second =
        OpenOptions::new(&path).partition(2).open().expect("partitions do not hinder each other");
    assert_eq!((first.start(), first.len(), second.start()), (1 << 20, 1 << 20, 2 << 20));
    assert_eq!(
        OpenOptions::new(&path).partition(2).open().unwrap_err().kind(),
        ErrorKind::ResourceBusy
    );
    assert_eq!(OpenOptions::new(&path).open().unwrap_err().kind(), ErrorKind::ResourceBusy);
    first.write_all_at(&[1; 512], (1 << 20) - 512).unwrap();
    assert!(first.write_all_at(&[1; 512], 1 << 20).is_err());
    assert_eq!(first.set_len(100).unwrap_err().kind(), ErrorKind::Unsupported);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(8 << 20).unwrap();
    assert_eq!(first.refresh_len().unwrap(), 1 << 20, "it ends where it did");
}

#[test]
fn an_image_at_an_offset_ends_where_another_partition_may_begin() {
    let (_directory, path) = crate::image::image(4 << 20);
    let ranges = |offsets: &[u64]| {
        offsets
            .iter()
            .map(|&offset| OpenOptions::new(&path).offset(offset << 20).open().unwrap())
            .map(|device| device.len() >> 20)
            .collect::<Vec<_>>()
    };
    assert_eq!(ranges(&[1, 2, 3]), [3, 2, 1], "no table");
    let whole = |write: &dyn Fn(&dyn BlockDevice)| write(&OpenOptions::new(&path).open().unwrap());
    // MiB 1 is a partition, and so is MiB 3, as the second of the chain in the MBR.
    whole(&|device| write_gpt(device, 512, &[(6144, 7000), (2048, 4095)]));
    assert_eq!(ranges(&[0, 1, 2]), [1, 1, 1], "GPT");
    let first = OpenOptions::new(&path).offset(1 << 20).open().unwrap();
    assert_eq!(first.set_len(2 << 20).unwrap_err().kind(), ErrorKind::Unsupported);
    drop(first);
    whole(&|device| {
        device.write_all_at(&mbr(&[(0x83, 2048, 2048), (0x05, 4096, 4096)]), 0).unwrap();
        device.write_all_at(&mbr(&[(0x83, 1024, 16), (0x05, 1024, 512)]), 4096 * 512).unwrap();
        device.write_all_at(&mbr(&[(0x83, 1024, 1024)]), 5120 * 512).unwrap();
    });
    assert_eq!(ranges(&[1, 3]), [1, 0], "MBR");
    // The first partition of the chain ends behind the disk.
    let beyond = mbr(&[(0x83, 1024, 1 << 20), (0x05, 1024, 512)]);
    whole(&|device| device.write_all_at(&beyond, 4096 * 512).unwrap());
    assert_eq!(ranges(&[2, 3]), [1, 0], "MBR with an invalid partition");
    // Another boot sector with the same signature is no table.
    whole(&|device| device.write_all_at(&[0x55; 480], 0).unwrap());
    assert_eq!(ranges(&[1, 3]), [3, 1], "a boot sector");
}

#[test]
fn small_and_empty_devices_have_no_table() {
    for len in [0, 1, 511, 512, 1024] {
        assert_eq!(found(&MemDevice::new(len), 1), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn hostile_tables_give_a_range_within_the_device_or_an_error(
        changes in proptest::collection::vec((0..40_000usize, any::<u8>()), 0..20),
        entries in proptest::collection::vec(
            (prop_oneof![Just(5u8), Just(0x83), any::<u8>()], 0..3000u32, any::<u32>()),
            0..4,
        ),
        gpt in any::<bool>(),
        number in 0..10u32,
    ) {
        let device = MemDevice::new(1 << 20);
        if gpt {
            write_gpt(&device, 512, &[(100, 199)]);
        } else {
            (0..3).for_each(|n| device.write_all_at(&mbr(&entries), n * 100 * 512).unwrap());
        }
        for (at, byte) in changes {
            device.write_all_at(&[byte], at as u64).unwrap();
        }
        if let Some((start, end)) = found(&device, number) {
            prop_assert!(start < end && end <= device.len());
        }
    }
}

/// Returns the partitions that `partx` finds in an image: number, start and end in bytes.
fn by_partx(path: &Path) -> Vec<(u32, u64, u64)> {
    let output = Command::new("partx").args(["-g", "-o", "NR,START,SECTORS"]).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("partx (package util-linux): {error}"));
    let lines = String::from_utf8(output.stdout).unwrap();
    let partition = |line: &str| {
        let fields: Vec<u64> =
            line.split_whitespace().map(|field| field.parse().unwrap()).collect();
        (fields[0] as u32, fields[1] * 512, (fields[1] + fields[2]) * 512)
    };
    lines.lines().map(partition).collect()
}

fn assert_partx_agrees(write: impl Fn(&dyn BlockDevice), unlike: &[u32], expected: usize) {
    let (_directory, path) = crate::image::image(8 << 20);
    write(&OpenOptions::new(&path).open().unwrap());
    let ours = |number| {
        let device = OpenOptions::new(&path).partition(number).open().ok()?;
        Some((number, device.start(), device.start() + device.len()))
    };
    let theirs: Vec<_> =
        by_partx(&path).into_iter().filter(|(number, ..)| !unlike.contains(number)).collect();
    assert_eq!((1..20).filter_map(ours).collect::<Vec<_>>(), theirs);
    assert_eq!(theirs.len(), expected);
}

#[test]
fn partx_finds_the_same_partitions() {
    assert_partx_agrees(
        |device| write_gpt(device, 512, &[(2048, 4095), (0, 0), (4096, 8191)]),
        &[],
        2,
    );
    let classic = |device: &dyn BlockDevice| {
        let table = mbr(&[(0x83, 64, 1000), (0x05, 4096, 8192), (0x83, 2048, 100)]);
        device.write_all_at(&table, 0).unwrap();
        device.write_all_at(&mbr(&[(0x83, 16, 100), (0x05, 1024, 512)]), 4096 * 512).unwrap();
        device.write_all_at(&mbr(&[(0x82, 8, 64)]), (4096 + 1024) * 512).unwrap();
    };
    // Number 2 is the chain itself, which cannot be opened as a partition.
    assert_partx_agrees(classic, &[2], 4);
}

#[test]
fn partitions_are_found_on_a_device_that_takes_whole_blocks_only() {
    let memory = MemDevice::new(8 << 20);
    memory.write_all_at(&mbr(&[(0x83, 2048, 4096)]), 0).unwrap();
    let device = StrictDevice::new(memory, 4096);
    assert_eq!(partition::find(&device, 1, None).unwrap(), 2048 * 512..6144 * 512);
}
