//! Disks that are written, compared with a model and judged by QEMU.

use crate::images::*;
use extant_blocks::{BlockDevice, MemDevice, StrictDevice};
use extant_qcow2::{Qcow2Device, create, write_image};
use extant_testkit::Scratch;
use extant_testkit::rng::Rng;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Makes a random change of a device and of the bytes that it must have.
pub fn change(device: &dyn BlockDevice, model: &mut [u8], rng: &mut Rng, longest: u64) {
    try_change(device, model, rng, longest).unwrap();
}

/// Makes a random change that may fail: the bytes are those of the device then.
pub fn try_change(
    device: &dyn BlockDevice,
    model: &mut [u8],
    rng: &mut Rng,
    longest: u64,
) -> std::io::Result<()> {
    let len = model.len() as u64;
    let from = rng.below(len);
    let to = from + rng.below(longest.min(len - from) + 1);
    let range = from as usize..to as usize;
    let done = match rng.below(8) {
        0 => device.write_zeroes(from, to - from).map(|()| model[range.clone()].fill(0)),
        1 => {
            let done = device.discard(from, to - from);
            // Unknown bytes from now on.
            device.read_exact_at(&mut model[range.clone()], from).unwrap();
            done
        }
        2 => return device.flush(),
        _ => {
            let data = rng.bytes(range.len());
            let done = device.write_all_at(&data, from);
            done.map(|()| model[range.clone()].copy_from_slice(&data))
        }
    };
    if done.is_err() {
        device.read_exact_at(&mut model[range], from).unwrap();
    }
    done
}

#[test]
fn random_changes_are_those_of_a_model() {
    let scratch = Scratch::new();
    let base = scratch.join("base.raw");
    fs::write(&base, pattern(3, (1 << 20) + 4096 + 512)).unwrap();
    for (number, options) in [
        "cluster_size=512",
        "cluster_size=512,refcount_bits=64",
        "cluster_size=4k,refcount_bits=1",
        "cluster_size=64k",
        "cluster_size=2M",
    ]
    .into_iter()
    .enumerate()
    {
        for overlays in [false, true] {
            let image = scratch.join(format!("{number}-{overlays}.qcow2"));
            let size = (2 << 20) + 512;
            let below = || overlays.then(|| file(&base, true) as Arc<dyn BlockDevice>);
            let mut model = vec![0; size];
            if overlays {
                let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-o", options, "-b"];
                let places = [text(&base), text(&image), &size.to_string()];
                qemu(&[&create[..], &places].concat());
                let bytes = fs::read(&base).unwrap();
                model[..bytes.len()].copy_from_slice(&bytes);
            } else {
                empty(&image, options, size as u64);
            }
            let mut rng = Rng::new(number as u64);
            for _ in 0..4 {
                let device = Qcow2Device::open(file(&image, false), below(), false).unwrap();
                assert!(content(&device) == model, "{options}");
                for _ in 0..40 {
                    change(&device, &mut model, &mut rng, 300_000);
                }
                assert!(content(&device) == model, "{options}");
                assert_data_ranges(&device, &model);
                device.flush().unwrap();
                drop(device);
                assert_clean(&image);
                assert!(disk(&scratch, &image) == model, "{options}");
            }
        }
    }
}

#[test]
fn the_refcount_table_moves_when_it_is_full() {
    let scratch = Scratch::new();
    let image = scratch.join("i.qcow2");
    // A table of 64 blocks, each for 64 clusters of 512 bytes: 2 MiB.
    empty(&image, "cluster_size=512,refcount_bits=64", 16 << 20);
    let device = open(&image, false);
    let bytes = pattern(4, 16 << 20).iter().map(|byte| byte | 1).collect::<Vec<u8>>();
    for (number, part) in bytes.chunks(1 << 20).enumerate() {
        device.write_all_at(part, (number << 20) as u64).unwrap();
        device.flush().unwrap();
    }
    drop(device);
    assert_clean(&image);
    assert!(content(&open(&image, false)) == bytes);
}

#[test]
fn threads_that_write_parts_of_one_cluster_lose_no_change() {
    let scratch = Scratch::new();
    let image = scratch.join("i.qcow2");
    empty(&image, "cluster_size=64k", 8 << 20);
    let device = open(&image, false);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                for number in 0..512 {
                    let at = (number * 4 + thread) * 4096;
                    device.write_all_at(&[thread as u8 + 1; 4096], at).unwrap();
                    if number % 64 == 0 {
                        device.flush().unwrap();
                    }
                }
            });
        }
    });
    for (number, part) in content(&device).chunks(4096).enumerate() {
        assert_eq!(part, [number as u8 % 4 + 1; 4096], "part {number}");
    }
    drop(device);
    assert_clean(&image);
}

#[test]
fn freed_clusters_are_taken_again() {
    let scratch = Scratch::new();
    let image = scratch.join("i.qcow2");
    empty(&image, "cluster_size=64k", 64 << 20);
    let device = open(&image, false);
    for round in 0..20u8 {
        device.write_all_at(&vec![round; 8 << 20], u64::from(round % 8) << 23).unwrap();
        device.flush().unwrap();
        device.discard(u64::from(round % 8) << 23, 8 << 20).unwrap();
        device.flush().unwrap();
    }
    drop(device);
    assert_clean(&image);
    assert!(fs::metadata(&image).unwrap().len() < 20 << 20);
}

fn new_image(path: &Path) -> Arc<dyn BlockDevice> {
    fs::write(path, []).unwrap();
    file(path, false)
}

#[test]
fn new_images_are_clean_and_the_same_each_time() {
    let scratch = Scratch::new();
    let bytes = pattern(5, (70 << 20) + 1024);
    let source = MemDevice::from_bytes(&bytes);
    let images = ["a", "b"].map(|name| scratch.join(name));
    for image in &images {
        write_image(&source, &*new_image(image), &mut |_| ()).unwrap();
        assert_clean(image);
    }
    assert!(disk(&scratch, &images[0]) == bytes);
    assert!(content(&open(&images[0], false)) == bytes);
    let [first, second] = images.map(|image| fs::read(image).unwrap());
    assert!(first == second && first.len() < bytes.len());
}

#[test]
fn empty_images_of_every_size_are_clean() {
    let scratch = Scratch::new();
    for size in [512, 1 << 20, (1 << 40) + 512, 1 << 50, 1 << 60] {
        let image = scratch.join(format!("{size}.qcow2"));
        create(&*new_image(&image), size, None).unwrap();
        assert_clean(&image);
        let device = open(&image, false);
        assert_eq!((device.len(), device.next_data(0).unwrap()), (size, None));
        device.write_all_at(&[7; 512], size - 512).unwrap();
        let mut end = [0; 512];
        device.read_exact_at(&mut end, size - 512).unwrap();
        assert_eq!(end, [7; 512]);
        drop(device);
        assert_clean(&image);
    }
    let file = MemDevice::new(0);
    assert!(create(&file, 0, None).is_err() && create(&file, u64::MAX, None).is_err());
}

#[test]
fn new_overlays_name_their_base() {
    let scratch = Scratch::new();
    let (base, image) = (scratch.join("base.raw"), scratch.join("o.qcow2"));
    fs::write(&base, pattern(6, 1 << 20)).unwrap();
    let named = Some((text(&base).as_bytes(), "raw"));
    create(&*new_image(&image), 1 << 20, named).unwrap();
    assert_clean(&image);
    assert!(disk(&scratch, &image) == fs::read(&base).unwrap());
    let device = Qcow2Device::open(file(&image, false), Some(file(&base, true)), false).unwrap();
    device.write_all_at(&[8; 100], 70_000).unwrap();
    device.write_zeroes(200_000, 100_000).unwrap();
    let bytes = content(&device);
    drop(device);
    assert_clean(&image);
    assert!(disk(&scratch, &image) == bytes);
    // Into the base.
    let layer = Qcow2Device::open_layer(file(&image, true)).unwrap();
    layer.commit_to(&*file(&base, false), &mut |_| ()).unwrap();
    assert!(fs::read(&base).unwrap() == bytes);
    let short = MemDevice::new(512);
    assert!(layer.commit_to(&short, &mut |_| ()).is_err());
    let long = Some((&[b'x'; 1024][..], "raw"));
    assert!(create(&MemDevice::new(0), 1 << 20, long).is_err());
}

/// Disks with sectors of 4096 bytes, for example.
#[test]
fn devices_that_take_whole_blocks_alone_are_used() {
    let scratch = Scratch::new();
    let (base, image) = (scratch.join("base.raw"), scratch.join("o.qcow2"));
    fs::write(&base, pattern(14, 300 << 10)).unwrap();
    let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-o", "cluster_size=512", "-b"];
    qemu(&[&create[..], &[text(&base), text(&image)]].concat());
    let strict = |path: &Path, read_only| Arc::new(StrictDevice::new(file(path, read_only), 4096));
    let below = strict(&base, true);
    let device = Qcow2Device::open(strict(&image, false), Some(below), false).unwrap();
    let mut model = fs::read(&base).unwrap();
    let mut rng = Rng::new(14);
    for _ in 0..100 {
        change(&device, &mut model, &mut rng, 9000);
    }
    assert!(content(&device) == model);
    drop(device);
    assert_clean(&image);
    assert!(disk(&scratch, &image) == model);
    let layer = Qcow2Device::open_layer(strict(&image, true)).unwrap();
    layer.commit_to(&*strict(&base, false), &mut |_| ()).unwrap();
    assert!(fs::read(&base).unwrap() == model);
    let (packed, source) = (scratch.join("packed.qcow2"), strict(&base, true));
    fs::write(&packed, []).unwrap();
    write_image(&*source, &*strict(&packed, false), &mut |_| ()).unwrap();
    assert_clean(&packed);
    assert!(disk(&scratch, &packed) == model);
}

#[test]
fn readers_write_nothing() {
    let scratch = Scratch::new();
    let image = scratch.join("i.qcow2");
    empty(&image, "cluster_size=64k", 1 << 20);
    let before = fs::read(&image).unwrap();
    let device = open(&image, true);
    assert!(device.read_only() && device.write_all_at(&[1], 0).is_err());
    assert!(device.write_zeroes(0, 1).is_err() && device.discard(0, 1).is_err());
    device.flush().unwrap();
    drop(device);
    assert_eq!(fs::read(&image).unwrap(), before);
}
