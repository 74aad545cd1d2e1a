//! Guests and front-ends that break the rules: each costs an error, and the next one is served.

use crate::Own;
use extant_blocks::{BlockDevice, MemDevice};
use extant_testkit::rng::Rng;
use extant_testkit::vhost::{
    ChainPiece, DATA, EVENT_IDX, FrontEnd, MEMORY, NEXT, Queue, TABLE, WRITE, kind, longs, message,
    words,
};
use rustix::pipe::pipe;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress};

const END: u64 = MEMORY as u64;

fn start() -> (Arc<MemDevice>, Own) {
    let disk = Arc::new(MemDevice::new(1 << 20));
    disk.write_all_at(&[0x55; 1 << 20], 0).unwrap();
    (disk.clone(), Own::start(disk, |server| server.queues(2)))
}

/// The server serves a machine that keeps to the rules.
#[track_caller]
fn assert_serves(own: &Own) {
    let front = FrontEnd::connect(&own.socket, u64::MAX);
    assert_eq!(front.start(1, 16).read(0, 512), [0x55; 512]);
}

#[test]
fn wrong_requests_are_errors() {
    let (disk, own) = start();
    let front = FrontEnd::connect(&own.socket, u64::MAX);
    let mut queue = front.start(0, 64);
    let sector = |sector: u64| (kind::READ, sector, 0, 512_u32, 1_u8);
    for (kind, sector, output, input, status) in [
        sector(2048),
        sector(u64::MAX),
        sector(u64::MAX / 512),
        sector(1 << 55),
        (kind::READ, 2047, 0, 1024, 1),
        (kind::READ, 0, 0, 100, 1),
        (kind::WRITE, 2048, 512, 0, 1),
        (kind::WRITE, 2047, 1024, 0, 1),
        (kind::WRITE, 0, 511, 0, 1),
        (99, 0, 0, 512, 2),
        (u32::MAX, 0, 0, 0, 2),
        // Nothing to transfer, and an identity that is too short for its place.
        (kind::READ, 0, 0, 0, 0),
        (kind::WRITE, 0, 0, 0, 0),
        (kind::GET_ID, 0, 0, 3, 0),
    ] {
        let (found, bytes) = queue.execute(kind, sector, &vec![1; output], input);
        assert_eq!(found, status, "{kind} {sector} {output} {input}");
        assert_eq!(bytes.len(), if kind == kind::GET_ID { 3 } else { 0 });
    }
    assert!(disk.to_vec().iter().all(|byte| *byte == 0x55), "nothing is written");
}

/// Chains whose status the server can find, as it is their last byte for the device.
#[test]
fn wrong_chains_are_errors_with_a_status() {
    let (disk, own) = start();
    let front = FrontEnd::connect(&own.socket, u64::MAX);
    let mut queue = front.start(0, 64);
    let head = (DATA, 16, 0);
    let status = (DATA + 4096, 1, WRITE);
    queue.request(DATA, kind::WRITE, 0, (&[1; 512], 0));
    let chains: &[&[ChainPiece]] = &[
        &[(DATA, 15, 0), status],
        &[(DATA, 0, 0), status],
        &[status],
        &[(END, 16, 0), status],
        &[(END - 8, 16, 0), status],
        &[(u64::MAX, 16, 0), status],
        &[(u64::MAX - 8, 16, 0), status],
        &[(DATA, 1 << 31, 0), status],
        &[head, (END, 512, 0), status],
        &[head, (DATA + 16, 512, 0), (1 << 63, 1 << 31, 0), status],
        &[head, (DATA + 16, u32::MAX, 0), (DATA + 16, u32::MAX, 0), status],
        // The header where the device writes, and data for it behind the status.
        &[(DATA, 16, WRITE), (DATA + 16, 512, 0), status],
        &[head, status, (DATA + 16, 512, 0)],
    ];
    for chain in chains {
        front.memory.write_obj(0xff_u8, GuestAddress(DATA + 4096)).unwrap();
        let since = queue.available();
        let used = queue.put(chain);
        queue.notify(since);
        assert_eq!(queue.wait().0, used, "{chain:?}");
        let found: u8 = front.memory.read_obj(GuestAddress(DATA + 4096)).unwrap();
        // A chain that ends early in the server's eyes may have no status there.
        assert!(found == 1 || found == 0xff, "{found} {chain:?}");
        assert!(chain.len() > 2 || found == 1, "{chain:?}");
    }
    assert!(disk.to_vec().iter().all(|byte| *byte == 0x55), "nothing is written");
    assert_eq!(queue.read(8, 512), [0x55; 512]);
}

/// Executes a chain as it is written in the table, without a status to look at.
fn answered(queue: &mut Queue, head: u16) {
    let since = queue.available();
    queue.offer(head);
    queue.notify(since);
    assert_eq!(queue.wait(), (head, 0));
}

#[test]
fn chains_without_an_end_are_used_up() {
    let (_disk, own) = start();
    let front = FrontEnd::connect(&own.socket, u64::MAX);
    let mut queue = front.start(0, 64);
    // Loops of one and two, an index behind the table.
    queue.describe(50, (DATA, 16, NEXT), 50);
    answered(&mut queue, 50);
    queue.describe(50, (DATA, 16, NEXT), 51);
    queue.describe(51, (DATA, 16, NEXT), 50);
    answered(&mut queue, 50);
    queue.describe(51, (DATA, 16, NEXT), 64);
    answered(&mut queue, 50);
    // Tables: outside of memory, of a wrong length, empty, one in another, one with a loop.
    let table = DATA + (1 << 20);
    for (address, len) in [(END, 32), (u64::MAX - 15, 32), (table, 31), (table, 0), (table, !15)] {
        queue.describe(50, (address, len, TABLE), 0);
        answered(&mut queue, 50);
    }
    let descriptor = |address: u64, len: u32, flags: u16, next: u16| {
        let (len, flags, next) = (len.to_le_bytes(), flags.to_le_bytes(), next.to_le_bytes());
        [&address.to_le_bytes()[..], &len, &flags, &next].concat()
    };
    for content in [descriptor(table, 32, TABLE, 0), descriptor(DATA, 16, NEXT, 0)] {
        front.memory.write_slice(&content, GuestAddress(table)).unwrap();
        queue.describe(50, (table, 32, TABLE), 0);
        answered(&mut queue, 50);
    }
    // Chains that are long without a loop.
    let many = descriptor(DATA, 1, NEXT, 0);
    for slot in 0..65535_u32 {
        let next = [&many[..14], &((slot + 1) as u16).to_le_bytes()].concat();
        front.memory.write_slice(&next, GuestAddress(table + 16 * u64::from(slot))).unwrap();
    }
    queue.describe(50, (table, 65535 * 16, TABLE), 0);
    answered(&mut queue, 50);
    assert_eq!(queue.read(0, 512), [0x55; 512]);
}

#[test]
fn wrong_rings_stop_and_others_go_on() {
    for mask in [u64::MAX, !EVENT_IDX] {
        let (_disk, own) = start();
        let front = FrontEnd::connect(&own.socket, mask);
        let (mut queue, mut other) = (front.start(0, 64), front.start(1, 64));
        queue.read(0, 512);
        // An index that is too far ahead, and one that goes back.
        queue.announce(40_000);
        queue.kick();
        assert_eq!(other.read(0, 512), [0x55; 512]);
        front.stop(0);
        let mut queue = front.start(0, 64);
        queue.read(0, 512);
        queue.announce(0);
        queue.kick();
        assert_eq!(other.read(0, 512), [0x55; 512]);
        front.stop(0);
        // A head that is no descriptor.
        let mut queue = front.start(0, 64);
        queue.offer(64);
        queue.kick();
        front.stop(0);
        assert_eq!(front.start(0, 64).read(0, 512), [0x55; 512]);
    }
}

#[test]
fn rings_at_wrong_places_are_refused() {
    let (_disk, own) = start();
    let front = FrontEnd::connect(&own.socket, u64::MAX);
    let user = 0x7000_0000_0000_u64;
    let mut queue = front.start(0, 16);
    front.stop(0);
    let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let refuses = |size: u32, places: [u64; 3]| {
        let [descriptors, used, available] = places;
        let sized = front.attempt(message::SET_VRING_NUM, &words(&[0, size]), &[]).unwrap();
        let body = [words(&[0, 0]), longs(&[descriptors, used, available, 0])].concat();
        front.tell(message::SET_VRING_ADDR, &body, &[]);
        let kicks = front.attempt(message::SET_VRING_KICK, &longs(&[0]), &[kick.as_fd()]).unwrap();
        front.stop(0);
        assert!(!(sized && kicks), "{size} {places:x?}");
    };
    let places = [user, user + 4096, user + 8192];
    for size in [0, 3, 17, 65535, 65536, 1 << 31, u32::MAX] {
        refuses(size, places);
    }
    for wrong in [0, u64::MAX, user + END, user + END - 2, user + 1, user - 1] {
        for part in 0..3 {
            let mut places = places;
            places[part] = wrong;
            refuses(16, places);
        }
    }
    front.resume(&queue, 0);
    assert_eq!(queue.read(0, 512), [0x55; 512]);
}

#[test]
fn wrong_regions_are_refused() {
    let (_disk, own) = start();
    let front = FrontEnd::connect(&own.socket, u64::MAX);
    let mut queue = front.start(0, 16);
    let (pipe, _other) = pipe().unwrap();
    let (file, pipe) = (front.file().as_fd(), pipe.as_fd());
    let add = |place: [u64; 4], fds: &[std::os::fd::BorrowedFd<'_>]| {
        let body = [longs(&[0]), longs(&place)].concat();
        front.attempt(message::ADD_MEM_REG, &body, fds).unwrap()
    };
    for place in [
        [END, 0, END, 0],
        [END, 4096, END, END],
        [END, END, END, 4096],
        [END, 4096, END, 1],
        [END, 4096, END, u64::MAX],
        [END, u64::MAX, END, 0],
        [END, 4096, u64::MAX, 0],
        [u64::MAX - 4095, 8192, END, 0],
        // Over the present one.
        [0, 4096, END, 0],
        [END - 4096, 8192, END, 0],
    ] {
        assert!(!add(place, &[file]), "{place:x?}");
    }
    assert!(!add([END, 4096, END, 0], &[pipe]));
    assert!(!add([END, 4096, END, 0], &[]));
    let remove = [longs(&[0]), longs(&[END, 4096, 0, 0])].concat();
    assert!(!front.attempt(message::REM_MEM_REG, &remove, &[]).unwrap());
    let table = [words(&[2, 0]), longs(&[0, 4096, 0, 0]), longs(&[0, 4096, 0, 0])].concat();
    assert!(!front.attempt(message::SET_MEM_TABLE, &table, &[file, file]).unwrap());
    assert!(!front.attempt(message::SET_MEM_TABLE, &table, &[file]).unwrap());
    assert!(!front.attempt(message::SET_MEM_TABLE, &words(&[1, 0]), &[file]).unwrap());
    // Nothing has changed. 31 more fit.
    assert_eq!(queue.read(0, 512), [0x55; 512]);
    for number in 0..40 {
        let place = [END + number * 4096, 4096, (1 << 60) + number * 4096, 0];
        assert_eq!(add(place, &[file]), number < 31, "{number}");
    }
    // The memory cannot be cut off below the server.
    assert!(front.file().set_len(0).is_err());
}

/// Sends bytes, and waits for the end of the connection.
fn ended(own: &Own, bytes: &[u8]) {
    let mut stream = UnixStream::connect(&own.socket).unwrap();
    stream.write_all(bytes).unwrap();
    let mut rest = Vec::new();
    // With bytes that it has not read, the server's end is a reset.
    let _ = stream.read_to_end(&mut rest);
}

#[test]
fn wrong_messages_end_the_connection() {
    let (_disk, own) = start();
    for head in [
        [1, 0, 0],
        [1, 2, 0],
        [1, 5, 0],
        [1, 1, u32::MAX],
        [1, 1, 4097],
        [0, 1, 0],
        [2, 1, 0],
        [5, 1, 0],
        [6, 1, 0],
        [77, 1, 0],
        [u32::MAX, 1, 0],
    ] {
        ended(&own, &words(&head));
    }
    for request in 0..60 {
        for body in [&[0xff; 4][..], &[0xff; 8], &[0xff; 40], &[0xff; 300]] {
            // Known ones with too much in them may be accepted.
            let mut stream = UnixStream::connect(&own.socket).unwrap();
            stream
                .write_all(&[words(&[request, 1, body.len() as u32]), body.to_vec()].concat())
                .unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
    // A message that ends within.
    drop(UnixStream::connect(&own.socket).unwrap().write_all(&words(&[1, 1])));
    assert_serves(&own);
}

#[test]
fn random_messages_end_the_connection_at_worst() {
    let (_disk, own) = start();
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut stream = UnixStream::connect(&own.socket).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        for _ in 0..20 {
            let request = rng.below(42) as u32;
            let len = 4 * rng.below(20) as usize;
            let body = rng.bytes(len);
            let body: Vec<u8> =
                body.iter().map(|byte| if rng.below(3) > 0 { 0 } else { *byte }).collect();
            if stream.write_all(&[words(&[request, 1, body.len() as u32]), body].concat()).is_err()
            {
                break;
            }
        }
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_serves(&own);
}

#[test]
fn too_many_descriptors_end_the_connection() {
    let (_disk, own) = start();
    let front = FrontEnd::connect(&own.socket, u64::MAX);
    let file = front.file().as_fd();
    front.send(message::SET_OWNER, &[], &[file; 16]);
    assert!(front.receive(message::SET_OWNER).is_err());
    assert_serves(&own);
}

/// A call that is full, or is another file, stops no thread of the server.
#[test]
fn events_that_are_none_are_refused_or_ignored() {
    let (_disk, own) = start();
    let front = FrontEnd::connect(&own.socket, u64::MAX);
    let (_read, write) = pipe().unwrap();
    let number = longs(&[0]);
    let mut queue = front.start(0, 64);
    front.tell(message::SET_VRING_CALL, &number, &[write.as_fd()]);
    for _ in 0..20_000 {
        let chain = queue.request(DATA, kind::READ, 0, (&[], 512));
        queue.put(&chain);
        queue.kick();
        while queue.poll().is_none() {
            std::thread::yield_now();
        }
    }
    let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    front.tell(message::SET_VRING_CALL, &number, &[full.as_fd()]);
    let chain = queue.request(DATA, kind::READ, 0, (&[], 512));
    queue.put(&chain);
    queue.kick();
    while queue.poll().is_none() {
        std::thread::yield_now();
    }
    let kick = longs(&[0]);
    let file = File::open("/dev/null").unwrap();
    assert!(!front.attempt(message::SET_VRING_KICK, &kick, &[front.file().as_fd()]).unwrap());
    assert!(!front.attempt(message::SET_VRING_KICK, &longs(&[0x100]), &[]).unwrap());
    assert!(!front.attempt(message::SET_VRING_KICK, &longs(&[2]), &[file.as_fd()]).unwrap());
    assert!(!front.attempt(message::SET_VRING_CALL, &number, &[]).unwrap());
    drop(front);
    assert_serves(&own);
}

/// Random content of the rings and of the descriptors, while the server uses them.
#[test]
fn random_rings_harm_the_guest_alone() {
    let (disk, own) = start();
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let front =
            FrontEnd::connect(&own.socket, if seed % 2 == 0 { u64::MAX } else { !EVENT_IDX });
        let queue = front.start(0, 64);
        for _ in 0..40 {
            let noise: Vec<u8> = rng.bytes(512).iter().map(|byte| byte & 0x0f).collect();
            front.memory.write_slice(&noise, GuestAddress(16 * rng.below(64))).unwrap();
            front.memory.write_slice(&noise, GuestAddress(DATA + rng.below(4096))).unwrap();
            for slot in 0..8 {
                let flags = rng.below(8) as u16;
                let (address, len) = (DATA + rng.below(8192), rng.below(5000) as u32);
                queue.describe(slot, (address, len, flags), rng.below(10) as u16);
            }
            queue.announce(rng.below(80) as u16);
            queue.kick();
        }
        front.stop(0);
    }
    assert_eq!(disk.len(), 1 << 20);
    let front = FrontEnd::connect(&own.socket, u64::MAX);
    front.start(1, 16).read(0, 512);
}
