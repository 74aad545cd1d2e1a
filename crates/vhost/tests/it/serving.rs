//! Requests of guests that keep to the rules.

use crate::Own;
use extant_blocks::{BlockDevice, Event, Fault, FaultDevice, MemDevice, Op, RecordingDevice};
use extant_testkit::rng::Rng;
use extant_testkit::vhost::{DATA, EVENT_IDX, FLUSH, FrontEnd, Queue, WRITE, kind, message, words};
use std::sync::Arc;

const ALL: u64 = u64::MAX;

fn disk(size: u64) -> Arc<MemDevice> {
    Arc::new(MemDevice::new(size))
}

fn served(device: Arc<dyn BlockDevice>) -> (Own, FrontEnd, Queue) {
    let own = Own::start(device, |server| server.queues(4));
    let front = FrontEnd::connect(&own.socket, ALL);
    let queue = front.start(0, 128);
    (own, front, queue)
}

#[test]
fn a_guest_reads_its_writes() {
    for mask in [ALL, !EVENT_IDX] {
        let disk = disk(8 << 20);
        let own = Own::start(disk.clone(), |server| server);
        let front = FrontEnd::connect(&own.socket, mask);
        let mut queue = front.start(0, 16);
        let data = Rng::new(3).bytes(1 << 20);
        queue.write(5, &data);
        assert!(queue.read(5, 1 << 20) == data);
        assert_eq!(disk.to_vec()[5 * 512..][..1 << 20], data);
        // More requests than the ring has descriptors, so that indexes begin anew.
        for round in 0..200_u64 {
            queue.write(round, &[round as u8; 512]);
            assert_eq!(queue.read(round, 512), [round as u8; 512]);
        }
        queue.flush();
    }
}

#[test]
fn the_configuration_describes_the_disk() {
    let own = Own::start(disk((8 << 20) + 100), |server| server.queues(3).serial(b"fork-7"));
    let front = FrontEnd::connect(&own.socket, ALL);
    let config = front.config(0, 60);
    assert_eq!(config[..8], 16384_u64.to_le_bytes());
    assert_eq!(config[20..24], 512_u32.to_le_bytes());
    assert_eq!(config[34..36], 3_u16.to_le_bytes());
    assert_eq!(front.queue_count(), 3);
    for feature in [1, 2, 6, 9, 10, 11, 12, 13, 14, 28, 29, 30, 32] {
        assert!(front.features & 1 << feature != 0, "feature {feature}");
    }
    assert!(front.features & 1 << 5 == 0);
    let mut queue = front.start(2, 64);
    assert_eq!(
        queue.execute(kind::GET_ID, 0, &[], 20),
        (0, b"fork-7\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec())
    );
    // A part of a configuration that is longer than the device's is an error without bytes.
    assert!(front.config(250, 10).is_empty() && front.config(u32::MAX, 4).is_empty());
}

#[test]
fn chains_may_have_any_form() {
    let (_own, front, mut queue) = served(disk(1 << 20));
    // The head in two pieces with data behind it, and data with the status.
    let data = [7; 1024];
    let head = [&1_u32.to_le_bytes()[..], &[0; 4], &4_u64.to_le_bytes(), &data].concat();
    use vm_memory::{Bytes, GuestAddress};
    front.memory.write_slice(&head, GuestAddress(DATA)).unwrap();
    let status = (DATA + (1 << 16), 1, WRITE);
    let chain = [(DATA, 9, 0), (DATA + 9, 500, 0), (DATA + 509, 531, 0), status];
    assert_eq!(queue.execute_chain(&chain).0, 0);
    let mut read = queue.request(DATA, kind::READ, 4, (&[], 1024));
    let (at, ..) = read[1];
    read.truncate(1);
    read.extend([(at, 1, WRITE), (at + 1, 1024, WRITE)]);
    queue.put_indirect(&read);
    queue.kick();
    assert_eq!(queue.wait().1, 1025);
    let mut bytes = [0; 1025];
    front.memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
    assert!(bytes[..1024] == data && bytes[1024] == 0);
}

#[test]
fn ranges_are_zeroed_and_discarded() {
    let disk = disk(1 << 20);
    disk.write_all_at(&[9; 1 << 20], 0).unwrap();
    let (_own, _front, mut queue) = served(disk.clone());
    let range = |sector: u64, count: u32, flags: u32| {
        [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat()
    };
    let two = [range(8, 8, 1), range(32, 1, 0)].concat();
    assert_eq!(queue.execute(kind::WRITE_ZEROES, 0, &two, 0).0, 0);
    assert_eq!(queue.execute(kind::DISCARD, 0, &range(64, 8, 0), 0).0, 0);
    let bytes = disk.to_vec();
    assert!(bytes[4096..8192].iter().chain(&bytes[16384..16896]).all(|byte| *byte == 0));
    assert!(bytes[..4096].iter().chain(&bytes[16896..32768]).all(|byte| *byte == 9));
    for (kind, ranges, status) in [
        (kind::WRITE_ZEROES, range(0, 1, 2), 2),
        (kind::DISCARD, range(0, 1, 1), 2),
        (kind::DISCARD, range(2040, 9, 0), 1),
        (kind::DISCARD, range(u64::MAX, 9, 0), 1),
        (kind::DISCARD, range(0, u32::MAX, 0), 1),
        // The second one is wrong: the first one is not done either.
        (kind::WRITE_ZEROES, [range(0, 1, 0), range(2048, 1, 0)].concat(), 1),
        (kind::WRITE_ZEROES, vec![0; 15], 1),
        (kind::WRITE_ZEROES, vec![0; 16 * 33], 1),
        (kind::WRITE_ZEROES, Vec::new(), 1),
    ] {
        assert_eq!(queue.execute(kind, 0, &ranges, 0).0, status, "{kind} {ranges:?}");
    }
    assert_eq!(disk.to_vec(), bytes);
}

/// Returns the positions of flushes among the events of a device.
fn flushes(device: &RecordingDevice<MemDevice>) -> Vec<bool> {
    device.log().iter().map(|event| matches!(event, Event::Flush)).collect()
}

#[test]
fn writes_of_a_guest_without_flushes_are_durable() {
    let device = Arc::new(RecordingDevice::new(MemDevice::new(1 << 20)));
    let own = Own::start(device.clone(), |server| server);
    let front = FrontEnd::connect(&own.socket, !FLUSH);
    let mut queue = front.start(0, 16);
    queue.write(0, &[1; 512]);
    assert_eq!(flushes(&device), [false, true]);
    drop(front);
    // With flushes, and with the cache turned off and on again.
    let front = FrontEnd::connect(&own.socket, ALL);
    let mut queue = front.start(0, 16);
    device.take_log();
    queue.write(0, &[2; 512]);
    assert_eq!(flushes(&device), [false]);
    let set = |on: u8| [words(&[32, 1, 0]), vec![on]].concat();
    front.tell(message::SET_CONFIG, &set(0), &[]);
    assert_eq!(front.config(32, 1), [0]);
    // The writes before are flushed with the change.
    assert_eq!(flushes(&device), [false, true]);
    queue.write(0, &[3; 512]);
    assert_eq!(flushes(&device), [false, true, false, true]);
    front.tell(message::SET_CONFIG, &set(1), &[]);
    queue.write(0, &[4; 512]);
    queue.flush();
    assert_eq!(flushes(&device), [false, true, false, true, false, true]);
    assert!(!front.attempt(message::SET_CONFIG, &set(2), &[]).unwrap());
}

#[test]
fn writes_reach_the_device_as_they_are() {
    let device = Arc::new(RecordingDevice::new(MemDevice::new(4 << 20)));
    let (own, _front, mut queue) = served(device.clone());
    for round in 0..100 {
        queue.write(round * 8, &[5; 4096]);
    }
    // One of many pieces is one write, too.
    let mut chain = queue.request(DATA, kind::WRITE, 2048, (&[6; 64 << 10], 0));
    let (at, ..) = chain.remove(1);
    (0..16).rev().for_each(|piece| chain.insert(1, (at + (piece << 12), 4096, 0)));
    assert_eq!(queue.execute_chain(&chain).0, 0);
    assert_eq!(device.log().len(), 101);
    own.stop().unwrap();
    assert_eq!(flushes(&device).last(), Some(&true), "the end flushes");
}

#[test]
fn errors_of_the_device_reach_the_guest() {
    let device = Arc::new(FaultDevice::new(MemDevice::new(1 << 20)));
    let (_own, _front, mut queue) = served(device.clone());
    for (op, kind, input) in
        [(Op::Read, kind::READ, 512), (Op::Write, kind::WRITE, 0), (Op::Flush, kind::FLUSH, 0)]
    {
        device.inject(Fault::new(op, 0));
        let output = if kind == kind::WRITE { vec![1; 512] } else { Vec::new() };
        assert_eq!(queue.execute(kind, 0, &output, input), (1, Vec::new()), "{op}");
        assert_eq!(queue.execute(kind, 0, &output, input).0, 0, "{op}");
    }
}

#[test]
fn a_disk_for_reading_only_is_not_written() {
    let disk = disk(1 << 20);
    let own = Own::start(disk.clone(), |server| server.read_only(true));
    let front = FrontEnd::connect(&own.socket, ALL);
    assert!(front.features & 1 << 5 != 0 && front.features & (1 << 13 | 1 << 14) == 0);
    let mut queue = front.start(0, 16);
    let range = [[0; 8], [1, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(queue.execute(kind::WRITE, 0, &[1; 512], 0).0, 1);
    assert_eq!(queue.execute(kind::WRITE_ZEROES, 0, &range, 0).0, 1);
    assert_eq!(queue.execute(kind::DISCARD, 0, &range, 0).0, 1);
    assert_eq!(queue.read(0, 512), [0; 512]);
    assert!(disk.to_vec().iter().all(|byte| *byte == 0));
}

#[test]
fn kicks_and_calls_are_left_out_when_they_are_not_wanted() {
    let own = Own::start(disk(1 << 20), |server| server);
    let front = FrontEnd::connect(&own.socket, !EVENT_IDX);
    let mut queue = front.start(0, 16);
    queue.want_calls(false);
    let chain = queue.request(DATA, kind::READ, 0, (&[], 512));
    queue.put(&chain);
    queue.kick();
    while queue.poll().is_none() {
        std::thread::yield_now();
    }
    assert!(!queue.is_called(std::time::Duration::ZERO));
    queue.want_calls(true);
    queue.put(&chain);
    queue.kick();
    assert!(queue.is_called(std::time::Duration::from_secs(60)));
}

#[test]
fn the_next_machine_is_served_after_the_last() {
    let disk = disk(1 << 20);
    let own = Own::start(disk.clone(), |server| server.once(false));
    for round in 1..10 {
        let front = FrontEnd::connect(&own.socket, ALL);
        let mut queue = front.start(0, 16);
        queue.write(0, &[round; 512]);
        // A reboot: the driver sets the ring up again.
        assert_eq!(front.stop(0), 1);
        let mut queue = front.start(0, 32);
        assert_eq!(queue.read(0, 512), [round; 512]);
        if round % 2 == 0 {
            // It ends amid a request.
            let chain = queue.request(DATA, kind::WRITE, 8, (&[round; 4096], 0));
            queue.put(&chain);
            queue.kick();
        }
    }
    own.stop().unwrap();
    let own = Own::start(disk, |server| server.once(true));
    // One that uses no queue does not count.
    drop(FrontEnd::connect(&own.socket, ALL));
    let front = FrontEnd::connect(&own.socket, ALL);
    front.start(0, 16).read(0, 512);
    drop(front);
    own.join().unwrap();
}

#[test]
fn a_stopped_ring_goes_on_where_it_was() {
    let (_own, front, mut queue) = served(disk(1 << 20));
    for round in 0..40 {
        let base = front.stop(0);
        assert_eq!(base, round * 3);
        for _ in 0..2 {
            let chain = queue.request(DATA, kind::READ, 0, (&[], 512));
            queue.put(&chain);
        }
        // Both wait, and are found without a kick.
        front.resume(&queue, base);
        assert_eq!((queue.wait().1, queue.wait().1), (513, 513));
        // New regions, while it runs.
        front.share();
        queue.read(0, 512);
    }
}
