//! Devices in memory, compared with plain bytes.

use extant_blocks::{BlockDevice, MemDevice, OverlayDevice, Plug, SparseDevice};
use proptest::prelude::*;
use std::sync::Arc;

const LEN: u64 = 5 * 4096 + 123;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u8),
    Zero(u64, u64),
    Read(u64, usize),
    SetLen(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = 0..LEN + 2000;
    let step = prop_oneof![
        4 => (
            place.clone(),
            0..9000usize,
            0..3u8,
        ).prop_map(|(at, len, byte)| Step::Write(at, len, byte)),
        2 => (place.clone(), 0..LEN).prop_map(|(at, len)| Step::Zero(at, len)),
        2 => (place.clone(), 0..9000usize).prop_map(|(at, len)| Step::Read(at, len)),
        1 => place.prop_map(Step::SetLen),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Runs the steps on a device and on a vector with the same contents.
fn agree(device: &dyn BlockDevice, mut model: Vec<u8>, steps: &[Step]) {
    for step in steps {
        let end = model.len() as u64;
        match *step {
            Step::Write(at, len, byte) => {
                let fits = at + len as u64 <= end;
                assert_eq!(device.write_all_at(&vec![byte; len], at).is_ok(), fits);
                if fits {
                    model[at as usize..][..len].fill(byte);
                }
            }
            Step::Zero(at, len) => {
                let fits = at + len <= end;
                assert_eq!(device.write_zeroes(at, len).is_ok(), fits);
                if fits {
                    model[at as usize..][..len as usize].fill(0);
                }
            }
            Step::Read(at, len) => {
                let mut bytes = vec![0xee; len];
                let fits = at + len as u64 <= end;
                assert_eq!(device.read_exact_at(&mut bytes, at).is_ok(), fits);
                if fits {
                    assert_eq!(bytes, model[at as usize..][..len]);
                }
            }
            Step::SetLen(len) => {
                if device.set_len(len).is_ok() {
                    model.resize(len as usize, 0);
                }
            }
        }
        assert_eq!(device.len(), model.len() as u64);
    }
    assert_same(device, &model);
}

fn assert_same(device: &dyn BlockDevice, model: &[u8]) {
    let mut bytes = vec![0; model.len()];
    device.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == model);
    let mut at = 0;
    while let Some(data) = device.next_data(at).unwrap() {
        assert!(model[at as usize..data.start as usize].iter().all(|byte| *byte == 0));
        at = data.end;
    }
    assert!(model[at as usize..].iter().all(|byte| *byte == 0));
}

#[test]
fn zeroes_behind_the_end_are_an_error_though_there_are_none() {
    agree(&MemDevice::new(LEN), vec![0; LEN as usize], &[Step::SetLen(0), Step::Zero(1, 0)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_plain_bytes(steps in steps()) {
        agree(&MemDevice::new(LEN), vec![0; LEN as usize], &steps);
    }

    #[test]
    fn sparse_memory_is_plain_bytes(steps in steps()) {
        let device = SparseDevice::new(LEN);
        agree(&device, vec![0; LEN as usize], &steps);
        let mut bytes = vec![0; device.len() as usize];
        device.read_exact_at(&mut bytes, 0).unwrap();
        let pages = bytes.chunks(4096).filter(|page| page.iter().any(|byte| *byte != 0)).count();
        prop_assert_eq!(device.bytes_held(), pages as u64 * 4096);
        let copy = SparseDevice::copy_of(&device).unwrap();
        assert_same(&copy, &bytes);
    }

    #[test]
    fn an_overlay_leaves_its_base(
        steps in steps(),
        block_size in prop_oneof![Just(512usize), Just(1024), Just(4096)],
    ) {
        let content: Vec<u8> = (0..LEN).map(|n| (n % 250) as u8).collect();
        let base = Arc::new(MemDevice::from_bytes(&content));
        let overlay = OverlayDevice::new(base.clone(), block_size, 1 << 20);
        agree(&overlay, content.clone(), &steps);
        prop_assert!(base.to_vec() == content);
    }

    #[test]
    fn a_plug_writes_all_additions(pieces in proptest::collection::vec(
        (0..20_000u64, 0..300usize, any::<u8>()),
        0..80,
    )) {
        let device = MemDevice::new(32_768);
        let mut model = vec![0; 32_768];
        let mut plug = Plug::new(&device);
        for (at, len, byte) in pieces {
            plug.add(at, vec![byte; len]);
            model[at as usize..][..len].fill(byte);
        }
        let stats = plug.finish().unwrap();
        prop_assert!(stats.requests <= stats.pieces);
        prop_assert!(device.to_vec() == model);
    }
}

#[test]
fn threads_share_a_sparse_device() {
    let device = SparseDevice::new(1 << 40);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                for n in 0..500u64 {
                    let at = (n * 4 + thread) * 1000;
                    device.write_all_at(&[thread as u8 + 1; 1000], at).unwrap();
                }
            });
        }
    });
    let mut bytes = vec![0; 2_000_000];
    device.read_exact_at(&mut bytes, 0).unwrap();
    assert!(
        bytes
            .chunks(1000)
            .enumerate()
            .all(|(n, chunk)| chunk.iter().all(|byte| *byte as usize == n % 4 + 1))
    );
}
