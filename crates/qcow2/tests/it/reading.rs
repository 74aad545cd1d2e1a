//! Disks as they are read, compared with QEMU.

use crate::images::*;
use extant_blocks::BlockDevice;
use extant_qcow2::Qcow2Device;
use extant_testkit::Scratch;
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use std::sync::Arc;

#[test]
fn images_of_qemu_read_as_qemu_reads_them() {
    let scratch = Scratch::new();
    let bytes = pattern(1, (9 << 20) + 512);
    let kinds: [&[&str]; 9] = [
        &[],
        &["-o", "compat=0.10"],
        &["-o", "cluster_size=512"],
        &["-o", "cluster_size=2M"],
        &["-o", "refcount_bits=1"],
        &["-o", "refcount_bits=64,cluster_size=4k"],
        &["-c"],
        &["-c", "-o", "compression_type=zstd"],
        &["-c", "-o", "compat=0.10,cluster_size=4k"],
    ];
    for (number, options) in kinds.into_iter().enumerate() {
        let image = converted(&scratch, &format!("{number}.qcow2"), &bytes, options);
        let device = open(&image, true);
        assert_eq!(device.len(), bytes.len() as u64);
        assert!(content(&device) == bytes, "{options:?}");
        assert_data_ranges(&device, &bytes);
        let mut rng = Rng::new(number as u64);
        for _ in 0..200 {
            let from = rng.below(bytes.len() as u64) as usize;
            let to = from + rng.below(100_000.min((bytes.len() - from) as u64)) as usize;
            let mut part = vec![1; to - from];
            device.read_exact_at(&mut part, from as u64).unwrap();
            assert!(part == bytes[from..to], "{options:?}: {from} to {to}");
        }
    }
}

#[test]
fn clusters_that_are_kept_for_later_read_as_zeroes() {
    let scratch = Scratch::new();
    for (number, kind) in ["metadata", "falloc", "full"].into_iter().enumerate() {
        let image = scratch.join(format!("{number}.qcow2"));
        empty(&image, &format!("preallocation={kind}"), 5 << 20);
        assert_eq!(content(&open(&image, true)), vec![0; 5 << 20], "{kind}");
    }
}

#[test]
fn overlays_show_their_backing_files() {
    let scratch = Scratch::new();
    let (raw, bytes) = (scratch.join("base.raw"), pattern(2, 3 << 20));
    std::fs::write(&raw, &bytes).unwrap();
    let (middle, top) = (scratch.join("middle.qcow2"), scratch.join("top.qcow2"));
    let create = ["create", "-q", "-f", "qcow2", "-F"];
    // The middle one is longer than the base, the top one is shorter than the middle one.
    let of_raw = ["raw", "-b", text(&raw), text(&middle), "5M"];
    qemu(&[&create[..], &of_raw].concat());
    let of_middle = ["qcow2", "-b", text(&middle), "-o", "cluster_size=4k", text(&top), "4M"];
    qemu(&[&create[..], &of_middle].concat());
    for (image, commands) in [
        (&middle, ["write -P 7 1M 70k", "write -z 2M 128k"]),
        (&top, ["write -P 9 100k 4k", "write -z 1M 4k"]),
    ] {
        let [first, second] = commands;
        let args = ["-f", "qcow2", "-c", first, "-c", second, text(image)];
        run("qemu-io", &args).must_succeed();
    }
    let opened = Qcow2Device::open(file(&middle, true), Some(file(&raw, true)), true).unwrap();
    let of_middle = content(&opened);
    let name = opened.backing_name().unwrap();
    assert_eq!((&*name.name, name.format.as_deref()), (text(&raw).as_bytes(), Some("raw")));
    let opened = Qcow2Device::open(file(&top, true), Some(Arc::new(opened)), true).unwrap();
    let of_top = content(&opened);
    assert_data_ranges(&opened, &of_top);
    // QEMU respects the locks.
    drop(opened);
    assert!(of_middle == disk(&scratch, &middle));
    assert!(of_top == disk(&scratch, &top));
}

#[test]
fn a_backing_file_is_named_by_the_caller_alone() {
    let scratch = Scratch::new();
    let (raw, image) = (scratch.file("base.raw", 1 << 20), scratch.join("o.qcow2"));
    qemu(&["create", "-q", "-f", "qcow2", "-F", "raw", "-b", text(&raw), text(&image)]);
    let error = Qcow2Device::open(file(&image, true), None, true).unwrap_err().to_string();
    assert!(error.contains(text(&raw)) && error.contains("--backing FILE"), "{error}");
    let alone = scratch.join("alone.qcow2");
    empty(&alone, "cluster_size=64k", 1 << 20);
    let error = Qcow2Device::open(file(&alone, true), Some(file(&raw, true)), true).unwrap_err();
    assert!(error.to_string().contains("leave --backing out"), "{error}");
}
