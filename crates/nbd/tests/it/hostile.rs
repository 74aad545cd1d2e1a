//! Servers that lie: an error with a cause, no panic, no wait without an end.

use crate::servers::address;
use extant_blocks::BlockDevice;
use extant_nbd::NbdDevice;
use extant_testkit::Scratch;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

pub const SIZE: u64 = 1 << 20;
const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";
const REPLY: u64 = 0x0003_e889_0455_65a9;
const SIMPLE: u32 = 0x6744_6698;
const CHUNK: u32 = 0x668e_33ef;
const GO: u32 = 7;
const ACK: u32 = 1;
const INFO: u32 = 3;
/// Flush, trim, zeroes.
pub const FLAGS: u16 = 1 | 4 | 32 | 64;

fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn option_reply(number: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let head = [&REPLY.to_be_bytes()[..], &number.to_be_bytes(), &kind.to_be_bytes()].concat();
    bytes(&[&head, &(data.len() as u32).to_be_bytes(), data])
}

fn info(size: u64, flags: u16) -> Vec<u8> {
    option_reply(GO, INFO, &bytes(&[&[0, 0], &size.to_be_bytes(), &flags.to_be_bytes()]))
}

fn blocks(min: u32, max: u32) -> Vec<u8> {
    let sizes = [min, 4096, max].map(u32::to_be_bytes).concat();
    option_reply(GO, INFO, &bytes(&[&[0, 3], &sizes]))
}

pub fn simple(error: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
    bytes(&[&SIMPLE.to_be_bytes(), &error.to_be_bytes(), &cookie.to_be_bytes(), data])
}

fn chunk(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u32;
    let head = [&CHUNK.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()].concat();
    bytes(&[&head, &cookie.to_be_bytes(), &len.to_be_bytes(), payload])
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub command: u16,
    pub cookie: u64,
}

pub fn request(stream: &mut UnixStream) -> io::Result<Request> {
    let mut head = [0; 28];
    stream.read_exact(&mut head)?;
    let cookie = u64::from_be_bytes(head[8..16].try_into().unwrap());
    let command = u16::from_be_bytes(head[6..8].try_into().unwrap());
    let len = u32::from_be_bytes(head[24..28].try_into().unwrap());
    if command == 1 {
        io::copy(&mut stream.take(len.into()), &mut io::sink())?;
    }
    Ok(Request { command, cookie })
}

/// Answers options until the export is open. `go` are the replies to that, `structured` grants
/// chunks.
pub fn greet(stream: &mut UnixStream, structured: bool, go: &[u8]) -> io::Result<()> {
    stream.write_all(GREETING)?;
    stream.read_exact(&mut [0; 4])?;
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let number = u32::from_be_bytes(head[8..12].try_into().unwrap());
        let len = u32::from_be_bytes(head[12..16].try_into().unwrap());
        io::copy(&mut stream.take(len.into()), &mut io::sink())?;
        match number {
            GO => return stream.write_all(go),
            8 if structured => stream.write_all(&option_reply(8, ACK, &[]))?,
            other => stream.write_all(&option_reply(other, (1 << 31) | 1, &[]))?,
        }
    }
}

pub fn usual(size: u64) -> Vec<u8> {
    with_flags(size, FLAGS)
}

/// Returns the replies to the request for an export of these properties.
pub fn with_flags(size: u64, flags: u16) -> Vec<u8> {
    [info(size, flags), option_reply(GO, ACK, &[])].concat()
}

/// Serves each connection by `serve`, which gets its number; an error of it ends the connection.
pub fn server(
    scratch: &Scratch,
    serve: impl Fn(&mut UnixStream, usize) -> io::Result<()> + Send + Sync + 'static,
) -> PathBuf {
    let socket = scratch.join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let serve = std::sync::Arc::new(serve);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (mut stream, serve) = (stream.unwrap(), serve.clone());
            std::thread::spawn(move || {
                let _ = serve(&mut stream, number);
            });
        }
    });
    socket
}

/// Opens the export of such a server, and uses it. Returns the first error.
#[track_caller]
fn error_of(
    serve: impl Fn(&mut UnixStream, usize) -> io::Result<()> + Send + Sync + 'static,
    act: impl FnOnce(&NbdDevice) -> io::Result<()>,
) -> String {
    let scratch = Scratch::new();
    let socket = server(&scratch, serve);
    let address = address("x", &socket, "&timeout=1");
    let used = NbdDevice::open(&address, false).and_then(|device| act(&device));
    let error = used.expect_err("the server lies").to_string();
    assert!(error.starts_with(&address.to_string()), "the error names the device: {error}");
    error
}

fn read(device: &NbdDevice) -> io::Result<()> {
    device.read_exact_at(&mut [0; 4096], 8192)
}

fn write(device: &NbdDevice) -> io::Result<()> {
    device.write_all_at(&[1; 4096], 8192)?;
    device.flush()
}

/// Reads until the client has gone.
pub fn swallow(stream: &mut UnixStream) -> io::Result<()> {
    io::copy(stream, &mut io::sink()).map(|_| ())
}

#[test]
fn handshakes_that_are_none_are_refused() {
    let old = b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0\0\0\0\0\0\0\0\0";
    for (greeting, cause) in [
        (&b"SSH-2.0-OpenSSH and more text"[..], "no server of NBD"),
        (old, "oldstyle"),
        (b"NBDMAGICIHAVEOPT\0\0", "fixed newstyle"),
        (b"NBDMAGICxxxxxxxx\0\x03", "its greeting is unknown"),
        (b"NBDM", "closed the connection"),
    ] {
        let serve = move |stream: &mut UnixStream, _: usize| stream.write_all(greeting);
        let error = error_of(serve, read);
        assert!(error.contains(cause), "{error}");
    }
}

#[test]
fn a_silent_server_is_not_waited_for() {
    let error = error_of(|stream, _| swallow(stream), read);
    assert!(error.contains("the handshake took longer than 1 s"), "{error}");
    // A byte at a time.
    let drip = |stream: &mut UnixStream, _: usize| {
        for byte in GREETING.iter().cycle() {
            stream.write_all(&[*byte])?;
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        Ok(())
    };
    let error = error_of(drip, read);
    assert!(error.contains("the handshake took longer than 1 s"), "{error}");
}

#[test]
fn descriptions_that_cannot_be_are_refused() {
    let ack = option_reply(GO, ACK, &[]);
    let mut huge = option_reply(GO, INFO, &[]);
    huge[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    let text = vec![b'x'; 4096];
    for (go, cause) in [
        (vec![info(u64::MAX, FLAGS), ack.clone()], "has 18446744073709551615 bytes"),
        (vec![info(SIZE, FLAGS & !1), ack.clone()], "no flags"),
        (vec![ack.clone()], "no size"),
        (vec![info(SIZE, FLAGS), blocks(3, 1 << 20), ack.clone()], "smallest block has 3"),
        (vec![info(SIZE, FLAGS), blocks(1 << 20, 1 << 20), ack.clone()], "smallest block"),
        (vec![info(SIZE, FLAGS), blocks(512, 256), ack.clone()], "largest request has 256"),
        (vec![huge], "4294967295 bytes"),
        (vec![info(SIZE, FLAGS); 1000], "very many replies"),
        (vec![option_reply(GO, 77, &[])], "unknown type"),
        (vec![option_reply(6, ACK, &[])], "was not asked for"),
        (vec![option_reply(GO, (1 << 31) | 6, &text)], "no such export"),
        (vec![option_reply(GO, (1 << 31) | 5, b"certificates")], "demands TLS"),
        (vec![option_reply(GO, (1 << 31) | 99, b"\x1b[31mred")], "the error 99"),
    ] {
        let go = go.concat();
        let error = error_of(move |stream, _| greet(stream, false, &go), read);
        assert!(error.contains(cause), "{error}");
        assert!(!error.contains('\x1b') && error.len() < 9000, "{error}");
    }
}

/// Answers the first request of each connection by bytes that `answer` makes of it.
fn answering(
    structured: bool,
    answer: impl Fn(Request) -> Vec<u8> + Send + Sync + 'static,
) -> impl Fn(&mut UnixStream, usize) -> io::Result<()> + Send + Sync + 'static {
    move |stream, _| {
        greet(stream, structured, &usual(SIZE))?;
        let asked = request(stream)?;
        stream.write_all(&answer(asked))?;
        swallow(stream)
    }
}

#[test]
fn answers_to_other_requests_end_the_device() {
    let data = [7; 4096];
    let error = error_of(answering(false, move |of| simple(0, of.cookie + 1, &data)), read);
    assert!(error.contains("a request that was not made"), "{error}");
    let twice =
        move |of: Request| [simple(0, of.cookie, &data), simple(0, of.cookie, &data)].concat();
    let error = error_of(answering(false, twice), |device| {
        // The first read has its answer, and the second request finds the second one.
        read(device)?;
        read(device)
    });
    assert!(error.contains("or twice"), "{error}");
    let error = error_of(answering(false, |_| vec![0xff; 64]), read);
    assert!(error.contains("a reply is unknown"), "{error}");
    // Chunks that were not agreed on.
    let error = error_of(answering(false, |of| chunk(1, 0, of.cookie, &[])), write);
    assert!(error.contains("a reply is unknown"), "{error}");
}

#[test]
fn chunks_beyond_their_request_end_the_device() {
    let at = |offset: u64, len: usize| bytes(&[&offset.to_be_bytes(), &vec![7; len]]);
    let mut endless = chunk(1, 1, 1, &[]);
    endless[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    endless.extend(8192_u64.to_be_bytes());
    for (answer, cause) in [
        (chunk(1, 1, 1, &at(8192, 4097)), "beyond its request"),
        (chunk(1, 1, 1, &at(0, 4096)), "before its request"),
        (chunk(1, 1, 1, &at(8192, 2048)), "missing"),
        ([chunk(0, 1, 1, &at(8192, 4096)), chunk(1, 1, 1, &at(8192, 4096))].concat(), "twice"),
        (endless, "beyond its request"),
        (chunk(1, 0, 1, &[]), "missing"),
        (chunk(1, 5, 1, &[0; 12]), "another request"),
        (chunk(1, 99, 1, &[0; 12]), "the type 99"),
        (chunk(1, 1 << 15 | 1, 1, &[0; 6]), "an error is none"),
        (chunk(1, 1 << 15 | 1, 1, &[0, 0, 0, 5, 255, 255]), "another length"),
        (simple(0, 1, &[7; 4096]), "a read has a simple reply"),
    ] {
        let error = error_of(answering(true, move |_| answer.clone()), read);
        assert!(error.contains(cause), "{error}");
    }
}

#[test]
fn a_server_that_answers_nothing_is_not_waited_for() {
    let serve = |stream: &mut UnixStream, _: usize| {
        greet(stream, true, &usual(SIZE))?;
        swallow(stream)
    };
    let error = error_of(serve, read);
    assert!(error.contains("has not answered for 1 s"), "{error}");
    let error = error_of(serve, write);
    assert!(error.contains("has not answered for 1 s"), "{error}");
    // One that takes no data either.
    let serve = |stream: &mut UnixStream, _: usize| {
        greet(stream, true, &usual(SIZE))?;
        std::thread::sleep(std::time::Duration::from_secs(3600));
        drop(stream.flush());
        Ok(())
    };
    let error = error_of(serve, |device| {
        (0..64).try_for_each(|_| device.write_all_at(&vec![1; SIZE as usize], 0))?;
        device.flush()
    });
    assert!(error.contains("for 1 s") || error.contains("in time"), "{error}");
}

#[test]
fn a_server_that_always_ends_is_not_asked_forever() {
    let serve = |stream: &mut UnixStream, _: usize| {
        greet(stream, true, &usual(SIZE))?;
        request(stream).map(|_| ())
    };
    let error = error_of(serve, read);
    assert!(error.contains("closed the connection"), "{error}");
    let error = error_of(serve, write);
    assert!(error.contains("closed the connection"), "{error}");
}

#[test]
fn a_shrunken_export_is_refused() {
    let serve = |stream: &mut UnixStream, number: usize| {
        greet(stream, false, &usual(if number == 0 { SIZE } else { SIZE / 2 }))?;
        let asked = request(stream)?;
        stream.write_all(&simple(0, asked.cookie, &[7; 4096]))
    };
    let error = error_of(serve, |device| {
        read(device)?;
        read(device)
    });
    assert!(error.contains("it has 524288 bytes now, and had 1048576"), "{error}");
}

#[test]
fn a_write_that_cannot_be_repeated_ends_the_device() {
    // The first session takes the write, and ends at the flush; the second one refuses the write.
    let serve = |stream: &mut UnixStream, number: usize| {
        greet(stream, false, &usual(SIZE))?;
        let asked = request(stream)?;
        if number == 0 {
            stream.write_all(&simple(0, asked.cookie, &[]))?;
            return request(stream).map(|_| ());
        }
        stream.write_all(&simple(28, asked.cookie, &[]))?;
        swallow(stream)
    };
    let error = error_of(serve, write);
    assert!(error.contains("cannot be repeated"), "{error}");
}

#[test]
fn errors_of_the_server_are_told_with_their_place() {
    let error = error_of(answering(false, |of| simple(5, of.cookie, &[])), read);
    assert!(error.contains("read of 4096 bytes at 8192"), "{error}");
    let full = |of: Request| {
        chunk(1, 1 << 15 | 1, of.cookie, &bytes(&[&28_u32.to_be_bytes(), &[0, 4], b"full"]))
    };
    let error = error_of(answering(true, full), write);
    assert!(error.contains("write of 4096 bytes at 8192") && error.contains("full"), "{error}");
}

#[test]
fn extents_without_progress_end_a_search_for_data() {
    // Without the context there is no question.
    let scratch = Scratch::new();
    let socket = server(&scratch, |stream, _| {
        greet(stream, true, &usual(SIZE))?;
        swallow(stream)
    });
    let device = NbdDevice::open(&address("x", &socket, "&timeout=1"), false).unwrap();
    assert_eq!(device.next_data(5).unwrap(), Some(5..SIZE));
    assert_eq!(device.next_data(SIZE).unwrap(), None);
}
