//! Losses of single connections, and of the trust in a server, while the server goes on.

use crate::hostile::{FLAGS, Request, SIZE, greet, request, server, simple, swallow, with_flags};
use crate::servers::{Own, Relay, address, open};
use extant_blocks::{BlockDevice, MemDevice};
use extant_nbd::NbdDevice;
use extant_testkit::Scratch;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const MULTI_CONN: u16 = 256;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// Answers a request with success, and a read with equal bytes.
fn accept(stream: &mut UnixStream, asked: Request, byte: u8) -> io::Result<()> {
    let data: &[u8] = if asked.command == READ { &[byte; 4096] } else { &[] };
    stream.write_all(&simple(0, asked.cookie, data))
}

/// Accepts requests until the client ends.
fn serve(stream: &mut UnixStream, byte: u8) -> io::Result<()> {
    loop {
        let asked = request(stream)?;
        accept(stream, asked, byte)?;
    }
}

/// A server of two connections at a time, which loses the idle one at the first write. It executes
/// that write some time after the end of the client's side, and closes the connection then, if
/// `closes`. Returns the events in their order.
fn lossy(scratch: &Scratch, closes: bool) -> (NbdDevice, Arc<Mutex<Vec<&'static str>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let first: Arc<Mutex<Vec<(usize, UnixStream)>>> = Arc::default();
    let of_server = events.clone();
    let socket = server(scratch, move |stream, number| {
        greet(stream, false, &with_flags(SIZE, FLAGS | MULTI_CONN))?;
        if number >= 2 {
            let asked = request(stream)?;
            if asked.command == WRITE {
                of_server.lock().unwrap().push("repeated");
            }
            accept(stream, asked, 0)?;
            return serve(stream, 0);
        }
        first.lock().unwrap().push((number, stream.try_clone()?));
        request(stream)?;
        for (other, its_stream) in first.lock().unwrap().iter() {
            if *other != number {
                its_stream.shutdown(Shutdown::Both)?;
            }
        }
        swallow(stream)?;
        if !closes {
            std::thread::sleep(Duration::from_secs(3600));
        }
        std::thread::sleep(Duration::from_millis(500));
        of_server.lock().unwrap().push("executed");
        stream.shutdown(Shutdown::Both)
    });
    let device = open(&address("x", &socket, "&timeout=5&connections=2"));
    (device, events)
}

#[test]
fn a_write_is_not_repeated_while_the_first_one_may_still_be_executed() {
    let scratch = Scratch::new();
    let (device, events) = lossy(&scratch, true);
    device.write_all_at(&[1; 4096], 0).unwrap();
    device.flush().unwrap();
    assert_eq!(*events.lock().unwrap(), ["executed", "repeated"]);
}

#[test]
fn a_lost_connection_without_an_end_ends_the_device() {
    let scratch = Scratch::new();
    let (device, events) = lossy(&scratch, false);
    device.write_all_at(&[1; 4096], 0).unwrap();
    let error = device.flush().unwrap_err().to_string();
    assert!(error.contains("may still execute"), "{error}");
    assert!(device.read_exact_at(&mut [0; 512], 0).is_err());
    assert!(events.lock().unwrap().is_empty());
}

#[test]
fn a_slow_server_is_no_lost_one() {
    // All writes together take longer than the timeout, and no single one does.
    let scratch = Scratch::new();
    let socket = server(&scratch, |stream, _| {
        greet(stream, false, &with_flags(SIZE, FLAGS))?;
        loop {
            let asked = request(stream)?;
            std::thread::sleep(Duration::from_millis(if asked.command == WRITE { 250 } else { 0 }));
            accept(stream, asked, 0)?;
        }
    });
    let device = open(&address("x", &socket, "&timeout=1"));
    (0..10).for_each(|block| device.write_all_at(&[1; 4096], block << 12).unwrap());
    device.flush().unwrap();
}

#[test]
fn connections_that_are_not_greeted_do_not_use_up_the_time() {
    // One connection at a time is served, and the others are left without a word.
    let scratch = Scratch::new();
    let served = Arc::new(AtomicBool::new(false));
    let sessions = AtomicUsize::new(0);
    let socket = server(&scratch, move |stream, _| {
        if served.swap(true, Ordering::SeqCst) {
            return swallow(stream);
        }
        let is_first = sessions.fetch_add(1, Ordering::SeqCst) == 0;
        greet(stream, false, &with_flags(SIZE, FLAGS | MULTI_CONN))?;
        let done = loop {
            let asked = match request(stream) {
                Ok(asked) if is_first && asked.command == FLUSH => break Ok(()),
                Ok(asked) => asked,
                Err(error) => break Err(error),
            };
            accept(stream, asked, 0)?;
        };
        served.store(false, Ordering::SeqCst);
        done
    });
    let device = open(&address("x", &socket, "&timeout=3"));
    // More than may be under way at once.
    (0..600).for_each(|block| device.write_all_at(&[1; 512], 512 * block).unwrap());
    device.flush().unwrap();
}

/// A disk whose writes wait until it is opened.
#[derive(Debug)]
struct Gated {
    disk: MemDevice,
    /// Writes that wait, and whether the gate is open.
    gate: Mutex<(usize, bool)>,
    changed: Condvar,
    written: AtomicUsize,
}

impl Gated {
    fn new() -> Arc<Gated> {
        let (gate, changed, written) = (Mutex::default(), Condvar::new(), AtomicUsize::new(0));
        Arc::new(Gated { disk: MemDevice::new(SIZE), gate, changed, written })
    }

    fn wait_for(&self, waiting: usize) {
        let gate = self.gate.lock().unwrap();
        drop(self.changed.wait_while(gate, |gate| gate.0 < waiting).unwrap());
    }

    fn open(&self) {
        self.gate.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl BlockDevice for Gated {
    fn len(&self) -> u64 {
        SIZE
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.read_exact_at(buf, offset)
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut gate = self.gate.lock().unwrap();
        gate.0 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(gate, |gate| !gate.1).unwrap());
        self.written.fetch_add(1, Ordering::SeqCst);
        self.disk.write_all_at(data, offset)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

fn send(stream: &mut UnixStream, command: u16, offset: u64, len: u32) {
    let head = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0], &command.to_be_bytes()].concat();
    let tail = [&7_u64.to_be_bytes()[..], &offset.to_be_bytes(), &len.to_be_bytes()].concat();
    let data = vec![9; if command == WRITE { len as usize } else { 0 }];
    stream.write_all(&[head, tail, data].concat()).unwrap();
}

/// Opens the default export by the old option.
fn open_raw(own: &Own) -> UnixStream {
    let mut stream = UnixStream::connect(&own.socket).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&[0, 0, 0, 3]).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    stream
}

#[test]
fn the_server_forgets_requests_of_a_lost_connection() {
    const DISC: u16 = 2;
    /// Requests that are executed at once.
    const RUNNING: usize = 4;
    for in_order in [false, true] {
        let scratch = Scratch::new();
        let disk = Gated::new();
        let own = Own::start(disk.clone(), scratch.join("s"), |server| server);
        let mut stream = open_raw(&own);
        (0..20).for_each(|block| send(&mut stream, WRITE, 512 * block, 512));
        disk.wait_for(RUNNING);
        if in_order {
            send(&mut stream, DISC, 0, 0);
        }
        stream.shutdown(Shutdown::Write).unwrap();
        // Time for the server to see the end, as nothing tells of it.
        std::thread::sleep(Duration::from_millis(300));
        disk.open();
        // The end on the wire comes after all requests that are executed.
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).unwrap();
        let expected = if in_order { 20 } else { RUNNING };
        assert_eq!(disk.written.load(Ordering::SeqCst), expected);
        assert_eq!(answers.len(), 16 * expected);
    }
}

#[test]
fn another_disk_of_the_same_size_is_not_written() {
    for seen in ["read", "flushed"] {
        let scratch = Scratch::new();
        let relay = Relay::start(scratch.join("relay"));
        let serve = |byte: u8| {
            let disk = Arc::new(MemDevice::new(1 << 20));
            disk.write_all_at(&vec![byte; 1 << 20], 0).unwrap();
            let server = Own::start(disk.clone(), scratch.join("server"), |server| server);
            relay.join(&server.socket);
            (disk, server)
        };
        let (_, server) = serve(1);
        let device = open(&address("", relay.socket(), "&timeout=5"));
        if seen == "read" {
            device.read_exact_at(&mut [0; 4096], 8192).unwrap();
        } else {
            device.write_all_at(&[3; 4096], 8192).unwrap();
            device.flush().unwrap();
        }
        device.write_all_at(&[4; 4096], 0).unwrap();
        device.read_exact_at(&mut [0; 4096], 0).unwrap();
        relay.cut();
        server.stop();
        let (other, _server) = serve(2);
        let error = device.flush().expect_err(seen).to_string();
        assert!(error.contains("the export is another one"), "{error}");
        assert!(other.to_vec().iter().all(|byte| *byte == 2), "it was written");
    }
}

/// A disk with a cache, from which a failed flush drops all writes, as operating systems do.
#[derive(Debug)]
struct Careless {
    cached: MemDevice,
    durable: MemDevice,
    dirty: Mutex<Vec<(u64, usize)>>,
    fails: AtomicBool,
}

impl Careless {
    fn new() -> Arc<Careless> {
        let disk = || MemDevice::new(8 << 20);
        let (dirty, fails) = (Mutex::default(), AtomicBool::new(true));
        Arc::new(Careless { cached: disk(), durable: disk(), dirty, fails })
    }
}

impl BlockDevice for Careless {
    fn len(&self) -> u64 {
        self.cached.len()
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.cached.read_exact_at(buf, offset)
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.dirty.lock().unwrap().push((offset, data.len()));
        self.cached.write_all_at(data, offset)
    }
    fn flush(&self) -> io::Result<()> {
        let dirty = std::mem::take(&mut *self.dirty.lock().unwrap());
        if self.fails.swap(false, Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(5));
        }
        for (offset, len) in dirty {
            let mut data = vec![0; len];
            self.cached.read_exact_at(&mut data, offset)?;
            self.durable.write_all_at(&data, offset)?;
        }
        Ok(())
    }
}

#[test]
fn a_failed_flush_is_told_and_its_writes_are_sent_again() {
    for by_itself in [true, false] {
        let scratch = Scratch::new();
        let disk = Careless::new();
        let own = Own::start(disk.clone(), scratch.join("s"), |server| server);
        let device = open(&address("", &own.socket, "&timeout=5"));
        // With more than 64 MiB the device flushes by itself, within a write of any caller.
        for round in 0..if by_itself { 100 } else { 8 } {
            let data = vec![round as u8 + 1; 1 << 20];
            if device.write_all_at(&data, (round % 8) << 20).is_err() {
                device.write_all_at(&data, (round % 8) << 20).unwrap();
            }
        }
        let error = device.flush().expect_err("the flush that failed is told").to_string();
        assert!(error.contains("os error 5") || error.contains("Input/output"), "{error}");
        device.flush().unwrap();
        assert!(disk.durable.to_vec() == disk.cached.to_vec(), "by itself: {by_itself}");
    }
}
