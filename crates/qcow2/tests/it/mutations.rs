//! Random damage: no panic, no hang.

use crate::images::*;
use extant_blocks::{BlockDevice, MemDevice};
use extant_qcow2::Qcow2Device;
use extant_testkit::Scratch;
use extant_testkit::rng::Rng;
use std::sync::Arc;

/// Reads and writes an image as far as it allows it.
fn use_image(bytes: &[u8], read_only: bool, rng: &mut Rng) {
    let file = Arc::new(MemDevice::from_bytes(bytes));
    let below = rng.one_in(2).then(|| Arc::new(MemDevice::new(1 << 20)) as Arc<dyn BlockDevice>);
    let Ok(device) = Qcow2Device::open(file, below, read_only) else { return };
    let len = device.len();
    let mut buf = vec![0; 70_000.min(len as usize)];
    for at in [0, len / 2, len - buf.len() as u64] {
        let _ = device.read_exact_at(&mut buf, at);
    }
    let mut at = 0;
    for _ in 0..100 {
        let Ok(Some(data)) = device.next_data(at) else { break };
        assert!(data.start >= at && data.end > data.start && data.end <= len);
        at = data.end;
    }
    for _ in 0..6 {
        let at = rng.below(len);
        let part = (len - at).min(rng.between(1, 70_000));
        let _ = match rng.below(4) {
            0 => device.write_zeroes(at, part),
            1 => device.discard(at, part),
            2 => device.flush(),
            _ => device.write_all_at(&vec![1; part as usize], at),
        };
    }
    let _ = device.flush();
}

#[test]
fn mutated_images_harm_nothing() {
    let scratch = Scratch::new();
    let content = pattern(8, 300_000);
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for (number, options) in [
        &["-o", "cluster_size=512"][..],
        &["-o", "cluster_size=4k,refcount_bits=2"],
        &["-c", "-o", "cluster_size=4k"],
        &["-c", "-o", "cluster_size=64k,compression_type=zstd"],
    ]
    .into_iter()
    .enumerate()
    {
        let image = converted(&scratch, &format!("{number}.qcow2"), &content, options);
        seeds.push(std::fs::read(image).unwrap());
    }
    let overlay = scratch.join("o.qcow2");
    let backing = ["-F", "raw", "-b", "/nowhere", "-u", "-o", "cluster_size=512"];
    let create = ["create", "-q", "-f", "qcow2"];
    qemu(&[&create[..], &backing, &[text(&overlay), "300k"]].concat());
    seeds.push(std::fs::read(overlay).unwrap());
    let mut rng = Rng::new(9);
    for round in 0..4000 {
        let mut bytes = rng.pick(&seeds).clone();
        for _ in 0..rng.between(1, 6) {
            // Most tables lie at the beginning.
            let end = if rng.one_in(2) { 120 } else { bytes.len().min(20_000) };
            let at = rng.below(end as u64) as usize;
            let by = [rng.next_u64() as u8, 0, 0xff, 1 << rng.below(8)];
            bytes[at] = *rng.pick(&by);
        }
        if rng.one_in(10) {
            bytes.truncate(rng.below(bytes.len() as u64) as usize);
        }
        use_image(&bytes, round % 2 == 0, &mut rng);
    }
}
