//! Images that are made to do harm: each is an error that names the object, the cause and a remedy.

use crate::images::*;
use extant_blocks::{BlockDevice, MemDevice};
use extant_qcow2::{Qcow2Device, create};
use extant_testkit::Scratch;
use extant_testkit::tool::run;
use std::fs;
use std::sync::Arc;

const CLUSTER: u64 = 1 << 16;

/// An image of 4 MiB with three clusters of data, and the places of its tables.
struct Victim {
    bytes: Vec<u8>,
    l1: usize,
    l2: usize,
    reftable: usize,
    counts: usize,
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn set(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

fn set_short(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn victim() -> Victim {
    let scratch = Scratch::new();
    let mut content = vec![0; 4 << 20];
    content[..3 << 16].fill(7);
    let image = converted(&scratch, "i.qcow2", &content, &[]);
    let bytes = fs::read(image).unwrap();
    let offset = |at| (number(&bytes, at) & 0x00ff_ffff_ffff_fe00) as usize;
    let (l1, reftable) = (offset(40), offset(48));
    let (l2, counts) = (offset(l1), offset(reftable));
    Victim { l1, l2, reftable, counts, bytes }
}

/// Opens an image, and reads all of it.
fn read(bytes: &[u8], read_only: bool) -> Result<Qcow2Device, String> {
    let file = Arc::new(MemDevice::from_bytes(bytes));
    let device = Qcow2Device::open(file, None, read_only).map_err(|error| error.to_string())?;
    let mut content = vec![0; (device.len() as usize).min(4 << 20)];
    device.read_exact_at(&mut content, 0).map_err(|error| error.to_string())?;
    Ok(device)
}

/// Damages the image. A reader must refuse it with these words; with none it reads it. A writer
/// must refuse it with `or` then, or with the same words.
#[track_caller]
fn refused(damage: impl FnOnce(&mut Victim), words: &str, or: &str) {
    let mut victim = victim();
    damage(&mut victim);
    let found = read(&victim.bytes, true);
    match (&found, words) {
        (Ok(_), "") => {}
        (Err(error), words) if !words.is_empty() => {
            assert!(error.contains(words), "{error}");
            assert!(error.starts_with("memory: qcow2: ") && error.contains("; "), "{error}");
        }
        _ => panic!("{found:?}, and not `{words}`"),
    }
    let error = read(&victim.bytes, false).expect_err("no writer");
    let words = if or.is_empty() { words } else { or };
    assert!(error.contains(words) && error.contains("; "), "{error}");
}

#[test]
fn undamaged_images_are_read_and_written() {
    let Victim { bytes, .. } = victim();
    read(&bytes, true).unwrap();
    read(&bytes, false).unwrap();
}

#[test]
fn headers_with_impossible_fields_are_refused() {
    refused(|v| v.bytes.truncate(40), "no header", "");
    refused(|v| v.bytes[0] = 0, "no header", "");
    refused(|v| set_short(&mut v.bytes, 4, 4), "version 4", "");
    for bits in [0, 8, 22, 63, u32::MAX] {
        refused(|v| set_short(&mut v.bytes, 20, bits), "clusters of 2^", "");
    }
    for size in [0, 1 << 63, u64::MAX] {
        refused(|v| set(&mut v.bytes, 24, size), "a disk of", "");
    }
    refused(|v| set(&mut v.bytes, 24, (1 << 63) - 1), "needs an L1 table", "");
    for entries in [0, u32::MAX] {
        refused(|v| set_short(&mut v.bytes, 36, entries), "L1 table", "");
    }
    // 32 MiB behind the end of the file.
    refused(|v| set_short(&mut v.bytes, 36, 4 << 20), "ends beyond the file", "");
    refused(|v| set_short(&mut v.bytes, 56, u32::MAX), "refcount table of", "");
    refused(|v| set_short(&mut v.bytes, 96, 7), "refcounts of 2^7", "");
    for len in [0, 103, 108, u32::MAX] {
        refused(|v| set_short(&mut v.bytes, 100, len), "a header of", "");
    }
    for place in [40, 48] {
        for offset in [0, 512, u64::MAX] {
            refused(|v| set(&mut v.bytes, place, offset), "table begins at", "");
        }
    }
    refused(|v| set(&mut v.bytes, 40, 1 << 62), "ends beyond the file", "");
    refused(|v| set(&mut v.bytes, 48, 1 << 62), "", "ends beyond the file");
    refused(
        |v| {
            set(&mut v.bytes, 8, u64::MAX);
            set_short(&mut v.bytes, 16, 5);
        },
        "the name of its backing file",
        "",
    );
}

#[test]
fn features_that_are_not_supported_are_refused() {
    for (bit, words) in [(2, "external data file"), (4, "subclusters"), (5, "unknown"), (63, "unk")]
    {
        refused(|v| set(&mut v.bytes, 72, 1 << bit), words, "");
    }
    refused(|v| set_short(&mut v.bytes, 32, 2), "encrypted", "");
    // Only read.
    for bit in [0, 1] {
        refused(|v| set(&mut v.bytes, 72, 1 << bit), "", "marked as dirty or corrupt");
    }
    refused(|v| set_short(&mut v.bytes, 60, 1), "", "1 snapshots");
    refused(|v| set(&mut v.bytes, 88, 1), "", "bitmaps");
    refused(
        |v| {
            set(&mut v.bytes, 72, 1 << 3);
            v.bytes[104] = 9;
        },
        "kind of compression",
        "",
    );
}

#[test]
fn tables_that_refer_to_themselves_harm_nothing() {
    let copied = |offset: usize| offset as u64 | 1 << 63;
    // Reading takes two steps whatever they refer to. Writing needs one use of each cluster.
    refused(|v| set(&mut v.bytes, v.l1, copied(v.l1)), "", "another use");
    refused(|v| set(&mut v.bytes, v.l1, copied(v.reftable)), "", "another use");
    refused(|v| set(&mut v.bytes, v.l2, copied(v.l2)), "", "another use");
    refused(|v| set(&mut v.bytes, v.l2, copied(v.l1)), "", "another use");
    refused(|v| set(&mut v.bytes, v.l2, copied(v.counts)), "", "another use");
    refused(
        |v| {
            let other = number(&v.bytes, v.l2 + 8);
            set(&mut v.bytes, v.l2, other);
        },
        "",
        "another use",
    );
    refused(|v| set(&mut v.bytes, v.reftable, v.reftable as u64), "", "another use");
    refused(|v| set(&mut v.bytes, v.reftable + 8, v.counts as u64), "", "another use");
    refused(|v| set(&mut v.bytes, 48, v.l1 as u64), "", "another use");
}

#[test]
fn entries_that_refer_to_impossible_places_are_refused() {
    for entry in [1 << 63 | 512, 1 << 55, (1 << 63) + (1 << 40)] {
        refused(|v| set(&mut v.bytes, v.l1, entry), "a table refers to", "");
        refused(|v| set(&mut v.bytes, v.l2, entry), "a table refers to", "");
    }
    refused(|v| set(&mut v.bytes, v.l1, 1 << 56), "a table has the entry", "");
    refused(|v| set(&mut v.bytes, v.l2, 2), "an L2 table has the entry", "");
    refused(|v| set(&mut v.bytes, v.reftable, 1 << 40), "", "a table refers to");
    refused(|v| set(&mut v.bytes, v.reftable, 1 << 63), "", "the refcount table has");
    // Compressed clusters behind the end, and such as are none.
    refused(|v| set(&mut v.bytes, v.l2, 1 << 62 | 1 << 50), "beyond the end", "compressed");
    refused(|v| set(&mut v.bytes, v.l2, 1 << 62 | 5), "cannot be expanded", "compressed");
}

#[test]
fn refcounts_that_are_wrong_are_only_read() {
    refused(|v| set(&mut v.bytes, v.reftable, 0), "", "have no refcount");
    refused(|v| v.bytes[v.counts + 1] = 0, "", "have no refcount");
    refused(|v| v.bytes[v.counts + 1] = 2, "", "refcount 2 and one use");
    refused(|v| v.bytes[v.l2] &= 0x7f, "", "marked as shared");
    refused(|v| v.bytes[v.l1] &= 0x7f, "", "marked as shared");
}

#[test]
fn a_refused_image_is_not_changed() {
    let Victim { mut bytes, counts, .. } = victim();
    bytes.truncate(bytes.len() - 100);
    // The last cluster is written as a whole, once the image has been found to be consistent.
    let good = Arc::new(MemDevice::from_bytes(&bytes));
    drop(Qcow2Device::open(good.clone(), None, false).unwrap());
    assert_eq!(good.len(), bytes.len() as u64 + 100);
    bytes[counts + 1] = 2;
    let bad = Arc::new(MemDevice::from_bytes(&bytes));
    Qcow2Device::open(bad.clone(), None, false).unwrap_err();
    assert!(bad.to_vec() == bytes, "the file was changed");
}

#[test]
fn a_damaged_overlay_leaves_its_base_unchanged() {
    let scratch = Scratch::new();
    let content = vec![7; 4 * CLUSTER as usize];
    let mut bytes = fs::read(converted(&scratch, "i.qcow2", &content, &["-c"])).unwrap();
    let l2 = number(&bytes, number(&bytes, 40) as usize) & 0x00ff_ffff_ffff_fe00;
    // The last cluster, after good ones.
    let entry = number(&bytes, l2 as usize + 3 * 8);
    assert!(entry & 1 << 62 != 0, "{entry:#x} is not compressed");
    bytes[(entry & ((1 << 54) - 1)) as usize] = 0xff;
    let layer = Qcow2Device::open_layer(Arc::new(MemDevice::from_bytes(&bytes))).unwrap();
    let base = MemDevice::new(content.len() as u64);
    let error = layer.commit_to(&base, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("cannot be expanded"), "{error}");
    assert!(base.to_vec().iter().all(|byte| *byte == 0), "the base was changed");
}

#[test]
fn remedies_are_possible() {
    let error = |damage: &dyn Fn(&mut Victim)| {
        let mut victim = victim();
        damage(&mut victim);
        read(&victim.bytes, true).unwrap_err()
    };
    // QEMU opens none of these, so that `qemu-img check` repairs none.
    let scratch = Scratch::new();
    let damages: [&dyn Fn(&mut Victim); 6] = [
        &|v| set_short(&mut v.bytes, 20, 22),
        &|v| set_short(&mut v.bytes, 36, 0),
        &|v| set_short(&mut v.bytes, 56, u32::MAX),
        &|v| set_short(&mut v.bytes, 96, 7),
        &|v| set_short(&mut v.bytes, 100, 103),
        &|v| set(&mut v.bytes, 40, 512),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let error = error(damage);
        assert!(error.contains("only another copy") && !error.contains("check"), "{error}");
        let mut victim = victim();
        damage(&mut victim);
        let image = scratch.join("i.qcow2");
        fs::write(&image, &victim.bytes).unwrap();
        let check = ["check", "-r", "all", "-f", "qcow2", text(&image)];
        let printed = run("qemu-img", &check);
        assert_eq!(printed.code, 1, "{number}: {printed}");
    }
    assert!(error(&|v| set(&mut v.bytes, 24, 0)).contains("qemu-img resize"));
    let name = Some((&[b'x'; 1024][..], "raw"));
    let error = create(&MemDevice::new(0), 1 << 20, name).unwrap_err().to_string();
    assert!(error.contains("has 1024 bytes, and 1023 are") && error.contains("symlink"), "{error}");
}

#[test]
fn holes_of_a_huge_file_cost_nothing() {
    // Tables of 8 GiB, all in holes of the file.
    const TABLES: u64 = 1 << 17;
    let scratch = Scratch::new();
    let path = scratch.file("i.qcow2", 16 << 30);
    let file = file(&path, false);
    let mut bytes = victim().bytes;
    set_short(&mut bytes, 36, TABLES as u32);
    let place = 1 << 30;
    set(&mut bytes, 24, TABLES << 29);
    set(&mut bytes, 40, place);
    file.write_all_at(&bytes, 0).unwrap();
    let entry = |number: u64| ((4 << 30) + number * CLUSTER) | 1 << 63;
    let entries: Vec<u8> = (0..TABLES).flat_map(|n| entry(n).to_be_bytes()).collect();
    file.write_all_at(&entries, place).unwrap();
    let reader = Qcow2Device::open(file.clone(), None, true).unwrap();
    assert_eq!(reader.next_data(0).unwrap(), None);
    let error = Qcow2Device::open(file, None, false).unwrap_err().to_string();
    assert!(error.contains("have no refcount"), "{error}");
}
