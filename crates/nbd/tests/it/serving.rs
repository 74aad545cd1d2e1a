//! The server beside the clients of others.

use crate::servers::{Own, address, args};
use extant_blocks::{BlockDevice, MemDevice};
use extant_testkit::Scratch;
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

fn disk(size: u64) -> Arc<MemDevice> {
    Arc::new(MemDevice::new(size))
}

#[test]
fn nbdinfo_describes_the_export() {
    let scratch = Scratch::new();
    let disk = disk(64 << 20);
    disk.write_all_at(&[7; 65536], 1 << 20).unwrap();
    let own = Own::start(disk, scratch.join("s"), |server| server.export("disk"));
    let uri = address("disk", &own.socket, "").to_string();
    let printed = run("nbdinfo", &args![&uri]).must_succeed().text();
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 67108864",
        "base:allocation",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "is_read_only: false",
        "block_size_maximum: 33554432",
    ] {
        assert!(printed.contains(line), "no `{line}` in: {printed}");
    }
    let map = run("nbdinfo", &args!["--map", &uri]).must_succeed().text();
    let extents: Vec<Vec<&str>> =
        map.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(extents.len(), 3, "{map}");
    assert_eq!(extents[1][..3], ["1048576", "65536", "0"], "{map}");
    let list = run("nbdinfo", &args!["--list", uri.replace("/disk?", "/?")]).must_succeed().text();
    assert!(list.contains("export=\"disk\""), "{list}");
    let wrong = run("nbdinfo", &args![uri.replace("/disk?", "/other?")]);
    assert!(wrong.errors().contains("No such file or directory for export"), "{wrong}");
}

#[test]
fn nbdcopy_writes_and_reads_over_several_connections() {
    let scratch = Scratch::new();
    let bytes = Rng::new(1).bytes(16 << 20);
    std::fs::write(scratch.join("in"), &bytes).unwrap();
    let disk = disk(16 << 20);
    let own = Own::start(disk.clone(), scratch.join("s"), |server| server);
    let uri = address("", &own.socket, "").to_string();
    run("nbdcopy", &args!["--flush", scratch.join("in"), &uri]).must_succeed();
    assert!(disk.to_vec() == bytes);
    run("nbdcopy", &args![&uri, scratch.join("out")]).must_succeed();
    assert!(std::fs::read(scratch.join("out")).unwrap() == bytes);
}

#[test]
fn qemu_reads_writes_zeroes_and_discards() {
    let scratch = Scratch::new();
    let disk = disk(4 << 20);
    disk.write_all_at(&vec![9; 4 << 20], 0).unwrap();
    let own = Own::start(disk.clone(), scratch.join("s"), |server| server.export("disk"));
    let uri = address("disk", &own.socket, "").to_string();
    let io = |command: &str| {
        let printed = run("qemu-io", &args!["-f", "raw", "-c", command, &uri]).must_succeed();
        assert!(!printed.text().contains("failed"), "{printed}");
    };
    io("write -P 5 1M 64k");
    io("write -f -P 6 2M 512");
    io("write -z 512k 4k");
    io("discard 3M 64k");
    io("read -P 5 1M 64k");
    io("read -P 0 512k 4k");
    io("flush");
    let bytes = disk.to_vec();
    assert_eq!((bytes[1 << 20], bytes[2 << 20], bytes[512 << 10]), (5, 6, 0));
    let image = scratch.join("copy");
    run("qemu-img", &args!["convert", "-f", "raw", "-O", "raw", &uri, &image]).must_succeed();
    assert!(std::fs::read(image).unwrap() == disk.to_vec());
}

#[test]
fn a_server_for_reading_only_is_not_written() {
    let scratch = Scratch::new();
    let disk = disk(1 << 20);
    let own = Own::start(disk.clone(), scratch.join("s"), |server| server.read_only(true));
    let uri = address("", &own.socket, "").to_string();
    let printed = run("nbdinfo", &args![&uri]).must_succeed().text();
    assert!(printed.contains("is_read_only: true"), "{printed}");
    let write = run("qemu-io", &args!["-f", "raw", "-c", "write -P 5 0 4k", &uri]);
    assert!(write.code != 0 && disk.to_vec().iter().all(|byte| *byte == 0), "{write}");
    // A client that does not ask.
    let mut stream = opened(&own);
    stream.write_all(&request(1, 7, 0, 512)).unwrap();
    stream.write_all(&[5; 512]).unwrap();
    assert_eq!(reply(&mut stream), (1, 7));
    assert!(disk.to_vec().iter().all(|byte| *byte == 0));
}

#[test]
fn a_server_ends_with_its_last_client() {
    let scratch = Scratch::new();
    let own = Own::start(disk(1 << 20), scratch.join("s"), |server| server.once(true));
    // No client: the handshake is not done.
    drop(UnixStream::connect(&own.socket).unwrap());
    let (one, two) = (opened(&own), opened(&own));
    drop(one);
    drop(two);
    own.join();
}

/// A connection to a server, in the transmission phase, by the option of older clients.
fn opened(own: &Own) -> UnixStream {
    let mut stream = UnixStream::connect(&own.socket).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&3_u32.to_be_bytes()).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    stream
}

fn request(command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let head = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0], &command.to_be_bytes()].concat();
    [&head[..], &cookie.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Returns the error and the cookie of a simple reply.
fn reply(stream: &mut UnixStream) -> (u32, u64) {
    let mut head = [0; 16];
    stream.read_exact(&mut head).unwrap();
    let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
    (error, u64::from_be_bytes(head[8..].try_into().unwrap()))
}

#[test]
fn wrong_requests_are_errors() {
    const READ: u16 = 0;
    const WRITE: u16 = 1;
    const TRIM: u16 = 4;
    let scratch = Scratch::new();
    let own = Own::start(disk(1 << 20), scratch.join("s"), |server| server);
    let mut stream = opened(&own);
    for (command, offset, len, error) in [
        (READ, 1 << 20, 1, 22),
        (READ, u64::MAX, 2, 22),
        (READ, 0, 0, 22),
        (READ, 0, u32::MAX, 75),
        (TRIM, 0, (1 << 20) + 1, 22),
        (6, 1 << 20, 1, 28),
        (99, 0, 1, 22),
    ] {
        stream.write_all(&request(command, 5, offset, len)).unwrap();
        assert_eq!(reply(&mut stream), (error, 5), "{command} {offset} {len}");
    }
    stream.write_all(&request(WRITE, 6, u64::MAX - 1, 3)).unwrap();
    stream.write_all(b"abc").unwrap();
    assert_eq!(reply(&mut stream), (28, 6));
    // A write that no memory should be taken for ends the connection, and a wrong magic.
    stream.write_all(&request(WRITE, 6, 0, u32::MAX)).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    let mut stream = opened(&own);
    stream.write_all(&[0xff; 28]).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    // The server goes on.
    let mut stream = opened(&own);
    stream.write_all(&request(3, 9, 0, 0)).unwrap();
    assert_eq!(reply(&mut stream), (0, 9));
}

#[test]
fn wrong_handshakes_end_the_connection() {
    let scratch = Scratch::new();
    let own = Own::start(disk(1 << 20), scratch.join("s"), |server| server);
    for option in [
        &b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff"[..],
        b"JUNKJUNK\0\0\0\x07\0\0\0\0",
        b"IHAVEOPT\0\0\0\x01\0\0\0\x03abc",
    ] {
        let mut stream = UnixStream::connect(&own.socket).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        stream.write_all(option).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "{option:?}");
    }
    for option in
        [&b"IHAVEOPT\0\0\0\x07\0\0\0\x04\xff\xff\xff\xff"[..], b"IHAVEOPT\0\0\0\x63\0\0\0\0"]
    {
        let mut stream = UnixStream::connect(&own.socket).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        stream.write_all(option).unwrap();
        let mut head = [0; 20];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(head[12], 0x80, "an error: {head:?}");
    }
}
