//! Small reads near each other, which are read together.

use crate::servers::{Own, address, open};
use extant_blocks::{BlockDevice, MemDevice, forward_device};
use extant_testkit::Scratch;
use extant_testkit::rng::Rng;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SIZE: u64 = (4 << 20) + 3 * BLOCK;
const BLOCK: u64 = 4096;

/// A disk that counts its reads, and their bytes.
#[derive(Debug)]
struct Counted {
    disk: MemDevice,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl Counted {
    fn new() -> Arc<Counted> {
        let disk = MemDevice::new(SIZE);
        disk.write_all_at(&Rng::new(1).bytes(SIZE as usize), 0).unwrap();
        Arc::new(Counted { disk, reads: AtomicU64::new(0), bytes: AtomicU64::new(0) })
    }

    /// Returns the reads, and their bytes, since the last call.
    fn take(&self) -> (u64, u64) {
        (self.reads.swap(0, Ordering::SeqCst), self.bytes.swap(0, Ordering::SeqCst))
    }
}

impl BlockDevice for Counted {
    forward_device!(self => self.disk; len, write_all_at, flush);

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.bytes.fetch_add(buf.len() as u64, Ordering::SeqCst);
        self.disk.read_exact_at(buf, offset)
    }
}

#[test]
fn small_reads_in_order_are_few_requests_and_far_ones_read_no_more_than_their_bytes() {
    let scratch = Scratch::new();
    let disk = Counted::new();
    let own = Own::start(disk.clone(), scratch.join("s"), |server| server);
    let device = open(&address("", &own.socket, ""));
    disk.take();
    let bytes = disk.disk.to_vec();
    let mut buf = [0; BLOCK as usize];
    for offset in (0..4 << 20).step_by(512 << 10) {
        device.read_exact_at(&mut buf, offset).unwrap();
        assert!(buf[..] == bytes[offset as usize..][..buf.len()]);
    }
    assert_eq!(disk.take(), (8, 8 * BLOCK));
    for offset in (1 << 20..2 << 20).step_by(BLOCK as usize) {
        device.read_exact_at(&mut buf, offset).unwrap();
        assert!(buf[..] == bytes[offset as usize..][..buf.len()], "at {offset}");
    }
    let (reads, _) = disk.take();
    assert!(reads <= 8, "{reads} reads of 1 MiB");
    // The end of the export is no whole window.
    let mut tail = [0; 100];
    device.read_exact_at(&mut tail, SIZE - 100).unwrap();
    device.read_exact_at(&mut tail, SIZE - 100).unwrap();
    assert!(tail[..] == bytes[SIZE as usize - 100..]);
}

/// Each thread reads its own blocks as it wrote them last, beside blocks of the other one.
#[test]
fn written_blocks_are_read_beside_the_writes_of_others() {
    let scratch = Scratch::new();
    let disk = Counted::new();
    let own = Own::start(disk, scratch.join("s"), |server| server);
    let device = open(&address("", &own.socket, ""));
    let work = |thread: u64| {
        let mut rng = Rng::new(thread);
        let mut written = vec![None; (1 << 20) / BLOCK as usize];
        for step in 0..3000u64 {
            let at = rng.below(written.len() as u64 / 2) * 2 + thread;
            let mut buf = [0; BLOCK as usize];
            if rng.below(3) == 0 {
                let byte = step as u8;
                device.write_all_at(&[byte; BLOCK as usize], at * BLOCK).unwrap();
                written[at as usize] = Some(byte);
            } else if let Some(byte) = written[at as usize] {
                device.read_exact_at(&mut buf, at * BLOCK).unwrap();
                assert!(buf.iter().all(|found| *found == byte), "block {at} in step {step}");
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(0));
        scope.spawn(|| work(1));
    });
}
