//! Power cuts played from a recording.

use extant_blocks::{BlockDevice, Event, MemDevice, Op, RecordingDevice, SparseDevice, replay};
use extant_blocks::{Fault, FaultDevice};
use std::io::IoSlice;
use std::sync::Arc;

fn bytes(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn the_whole_log_gives_the_same_image() {
    let base = SparseDevice::new(1 << 20);
    base.write_all_at(b"before", 100).unwrap();
    let device = RecordingDevice::new(base.fork());
    device.mark("begin");
    device.write_all_at(b"one", 5000).unwrap();
    device.write_vectored_at(&[IoSlice::new(b"tw"), IoSlice::new(b"o")], 6000).unwrap();
    device.flush().unwrap();
    device.write_zeroes(100, 3).unwrap();
    device.discard(5000, 1).unwrap();
    device.set_len(1 << 19).unwrap();
    let log = device.log();
    let write = |offset, data: &[u8]| Event::Write { offset, data: Arc::from(data) };
    assert_eq!(
        log,
        [
            Event::Mark("begin".into()),
            write(5000, b"one"),
            write(6000, b"two"),
            Event::Flush,
            Event::Zero { offset: 100, len: 3 },
            Event::Discard { offset: 5000, len: 1 },
            Event::SetLen(1 << 19),
        ]
    );
    let again = base.fork();
    replay(&log, &again).unwrap();
    assert_eq!(bytes(&again), bytes(&device));
    let cut = base.fork();
    replay(&log[..3], &cut).unwrap();
    assert_eq!(&bytes(&cut)[100..106], b"before");
    assert_eq!(&bytes(&cut)[6000..6003], b"two");
    assert_eq!(device.take_log().len(), 7);
    assert_eq!(device.log(), []);
}

#[test]
fn a_failed_flush_promises_nothing() {
    let device = RecordingDevice::new(FaultDevice::new(MemDevice::new(100)));
    device.inner().inject(Fault::new(Op::Flush, 0));
    device.write_all_at(&[1], 0).unwrap();
    assert!(device.flush().is_err());
    device.flush().unwrap();
    device.write_all_at(&[2], 0).unwrap();
    let flushes: Vec<bool> = device.log().iter().map(|event| *event == Event::Flush).collect();
    assert_eq!(flushes, [false, true, false]);
}

#[test]
fn a_flush_covers_the_writes_logged_before_it() {
    let device = RecordingDevice::new(MemDevice::new(4096));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                for n in 0..50u8 {
                    device.write_all_at(&[n], thread).unwrap();
                    device.flush().unwrap();
                    device.mark(format!("{thread} {n}"));
                }
            });
        }
    });
    let log = device.log();
    for (place, event) in log.iter().enumerate() {
        let Event::Mark(label) = event else { continue };
        let (thread, n) =
            label.split_once(' ').map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap())).unwrap();
        let last_flush = log[..place].iter().rposition(|event| *event == Event::Flush).unwrap();
        let write = Event::Write { offset: thread, data: Arc::from([n]) };
        assert!(
            log[..last_flush].contains(&write),
            "{label} is not covered by a flush before its mark"
        );
    }
}
