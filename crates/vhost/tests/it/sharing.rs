//! Requests beside each other.

use crate::Own;
use extant_blocks::{BlockDevice, MemDevice, forward_device};
use extant_testkit::rng::Rng;
use extant_testkit::vhost::{DATA, EVENT_IDX, FrontEnd, kind};
use std::io;
use std::sync::{Arc, Condvar, Mutex};

/// A device whose reads at 0 and flushes wait until `count` of them have come.
#[derive(Debug)]
struct Meeting {
    inner: MemDevice,
    count: usize,
    came: Mutex<usize>,
    all: Condvar,
}

impl Meeting {
    fn new(count: usize) -> Arc<Meeting> {
        let (came, all) = (Mutex::new(0), Condvar::new());
        Arc::new(Meeting { inner: MemDevice::new(1 << 20), count, came, all })
    }

    fn meet(&self) {
        let mut came = self.came.lock().unwrap();
        *came += 1;
        self.all.notify_all();
        drop(self.all.wait_while(came, |came| *came < self.count).unwrap());
    }
}

impl BlockDevice for Meeting {
    forward_device!(self => self.inner; len, write_all_at);

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if offset == 0 {
            self.meet();
        }
        self.inner.read_exact_at(buf, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.meet();
        Ok(())
    }
}

#[test]
fn a_flush_delays_no_read() {
    for mask in [u64::MAX, !EVENT_IDX] {
        // The flush returns when the read, which comes later, is executed.
        let own = Own::start(Meeting::new(2), |server| server);
        let front = FrontEnd::connect(&own.socket, mask);
        let mut queue = front.start(0, 16);
        for (at, kind, input) in [(DATA, kind::FLUSH, 0), (DATA + (1 << 20), kind::READ, 512)] {
            let chain = queue.request(at, kind, 0, (&[], input));
            let since = queue.available();
            queue.put(&chain);
            queue.notify(since);
        }
        queue.wait();
        queue.wait();
    }
}

#[test]
fn slow_requests_of_one_ring_are_executed_beside_each_other() {
    let own = Own::start(Meeting::new(8), |server| server);
    let front = FrontEnd::connect(&own.socket, u64::MAX);
    let mut queue = front.start(0, 64);
    for number in 0..8 {
        let chain = queue.request(DATA + (number << 12), kind::FLUSH, 0, (&[], 0));
        queue.put(&chain);
    }
    queue.kick();
    for _ in 0..8 {
        queue.wait();
    }
}

#[test]
fn many_requests_of_all_queues_find_their_data() {
    let disk = Arc::new(MemDevice::new(8 << 20));
    let bytes = Rng::new(5).bytes(8 << 20);
    disk.write_all_at(&bytes, 0).unwrap();
    let own = Own::start(disk, |server| server.queues(4));
    let front = FrontEnd::connect(&own.socket, u64::MAX);
    let queues: Vec<_> = (0..4).map(|index| front.start(index, 128)).collect();
    std::thread::scope(|scope| {
        for (number, mut queue) in queues.into_iter().enumerate() {
            let (bytes, front) = (&bytes, &front);
            scope.spawn(move || {
                use vm_memory::{Bytes, GuestAddress};
                let mut rng = Rng::new(number as u64);
                for _ in 0..200 {
                    let since = queue.available();
                    let base = DATA + ((number as u64) << 24);
                    let sectors: Vec<u64> = (0..16).map(|_| rng.below(16000)).collect();
                    let mut heads = std::collections::HashMap::new();
                    for (slot, sector) in sectors.iter().enumerate() {
                        let at = base + ((slot as u64) << 16);
                        let chain = queue.request(at, kind::READ, *sector, (&[], 4096));
                        heads.insert(queue.put(&chain), (at + 16, *sector as usize * 512));
                    }
                    queue.notify(since);
                    for _ in &sectors {
                        let (head, len) = queue.wait();
                        let (at, from) = heads[&head];
                        let mut found = vec![0; 4097];
                        front.memory.read_slice(&mut found, GuestAddress(at)).unwrap();
                        assert!(len == 4097 && found[..4096] == bytes[from..][..4096]);
                        assert_eq!(found[4096], 0);
                    }
                }
            });
        }
    });
}
