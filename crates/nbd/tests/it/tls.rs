//! TLS of the client: with nbdkit and qemu-nbd, and with servers and networks that are hostile.

use crate::hostile::{SIZE, greet, request, server, simple, swallow, usual};
use crate::servers::{Own, Program, args};
use extant_blocks::{BlockDevice, MemDevice};
use extant_nbd::{Address, NbdDevice, TlsServer};
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use extant_testkit::{Authority, Scratch, Validity};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const START_TLS: u32 = 5;
const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";
const CONSENT: &[u8] = b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x05\0\0\0\x01\0\0\0\0";

/// Makes an authority that has signed a server at this host and a client.
fn authority(scratch: &Scratch, name: &str) -> Authority {
    let authority = Authority::new(scratch.join(name));
    authority.sign("server", "DNS:localhost,DNS:disks.example,IP:127.0.0.1", Validity::Now);
    authority.sign("client", "DNS:client", Validity::Now);
    authority
}

fn address(socket: &Path, certificates: &Path, more: &str) -> Address {
    let (socket, dir) = (socket.display(), certificates.display());
    let text = format!("nbds+unix:///?socket={socket}&tls-certificates={dir}&timeout=10{more}");
    text.parse().unwrap()
}

/// Serves by nbdkit with TLS.
fn nbdkit(scratch: &Scratch, authority: &Authority, more: &[OsString]) -> Program {
    let dir = authority.dir().display();
    let tls = args!["--tls=require", format!("--tls-certificates={dir}")];
    Program::nbdkit(scratch, &[&tls[..], more].concat())
}

#[track_caller]
fn error_of(address: &Address) -> String {
    let opened = NbdDevice::open(address, false).map(|_| ());
    let error = opened.expect_err("no device").to_string();
    assert!(error.starts_with(&address.to_string()), "the error names the device: {error}");
    error
}

/// Makes a directory with `ca-cert.pem` alone.
fn trusting(scratch: &Scratch, authority: &Authority) -> PathBuf {
    let dir = scratch.dir("trusting");
    std::fs::copy(authority.dir().join("ca-cert.pem"), dir.join("ca-cert.pem")).unwrap();
    dir
}

#[test]
fn content_is_written_and_read_by_several_threads() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    let file = scratch.file("disk", 64 << 20);
    let program = nbdkit(&scratch, &authority, &args!["file", &file]);
    let device = NbdDevice::open(&address(&program.socket, authority.dir(), ""), false).unwrap();
    let device = Arc::new(device);
    let threads: Vec<_> = (0..8_u64)
        .map(|number| {
            let device = device.clone();
            std::thread::spawn(move || {
                let mut random = Rng::new(number);
                // Large enough that sockets are full in both directions.
                let data = random.bytes(8 << 20);
                let begin = number * (8 << 20);
                for (part, at) in data.chunks(1 << 20).zip((begin..).step_by(1 << 20)) {
                    device.write_all_at(part, at).unwrap();
                    let mut found = vec![0; part.len()];
                    device.read_exact_at(&mut found, at).unwrap();
                    assert!(found == part);
                }
                device.flush().unwrap();
                data
            })
        })
        .collect();
    let all: Vec<u8> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let mut found = vec![0; all.len()];
    device.read_exact_at(&mut found, 0).unwrap();
    assert!(found == all);
    drop(device);
    drop(program);
    assert!(std::fs::read(&file).unwrap() == all);
}

#[test]
fn qemu_nbd_is_a_server_with_tls() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    let file = scratch.file("disk", 4 << 20);
    let dir = authority.dir().display();
    let object = format!("tls-creds-x509,id=tls,endpoint=server,dir={dir},verify-peer=on");
    let more = args!["--object", object, "--tls-creds", "tls", "-f", "raw", &file];
    let program = Program::qemu_nbd(&scratch, &more);
    let device = NbdDevice::open(&address(&program.socket, authority.dir(), ""), false).unwrap();
    device.write_all_at(&[7; 4096], 8192).unwrap();
    device.flush().unwrap();
    drop(device);
    assert_eq!(std::fs::read(&file).unwrap()[8192..12288], [7; 4096]);
    let without = trusting(&scratch, &authority);
    let error = error_of(&address(&program.socket, &without, ""));
    assert!(error.contains("certificate"), "{error}");
}

#[test]
fn clients_show_their_certificate_if_the_server_demands_it() {
    let scratch = Scratch::new();
    let (own, other) = (authority(&scratch, "own"), authority(&scratch, "other"));
    let program = nbdkit(&scratch, &own, &args!["--tls-verify-peer", "memory", "1M"]);
    NbdDevice::open(&address(&program.socket, own.dir(), ""), false).unwrap();
    let without = trusting(&scratch, &own);
    let error = error_of(&address(&program.socket, &without, ""));
    assert!(error.contains("client-cert.pem"), "{error}");
    // A client of another authority.
    for name in ["client-cert.pem", "client-key.pem"] {
        std::fs::copy(other.dir().join(name), without.join(name)).unwrap();
    }
    let error = error_of(&address(&program.socket, &without, ""));
    assert!(error.contains("certificate"), "{error}");
}

#[test]
fn a_server_that_is_another_one_is_refused() {
    let scratch = Scratch::new();
    let (own, other) = (authority(&scratch, "own"), authority(&scratch, "other"));
    let program = nbdkit(&scratch, &own, &args!["memory", "1M"]);
    let error = error_of(&address(&program.socket, other.dir(), ""));
    assert!(error.contains("no authority that is trusted here"), "{error}");
    let error = error_of(&address(&program.socket, own.dir(), "&tls-hostname=else.example"));
    assert!(error.contains("is not for else.example, but for"), "{error}");
    assert!(error.contains("disks.example") && error.contains("tls-hostname="), "{error}");
    for more in ["&tls-hostname=disks.example", "&tls-hostname=127.0.0.1"] {
        NbdDevice::open(&address(&program.socket, own.dir(), more), false).unwrap();
    }
    // Without a check.
    let any = address(&program.socket, other.dir(), "&tls-verify-peer=false");
    NbdDevice::open(&any, false).unwrap();
}

#[test]
fn certificates_out_of_their_time_are_refused() {
    for (validity, cause) in
        [(Validity::Past, "has expired"), (Validity::Future, "is not valid yet")]
    {
        let scratch = Scratch::new();
        let authority = Authority::new(scratch.join("authority"));
        authority.sign("server", "DNS:localhost", validity);
        let program = nbdkit(&scratch, &authority, &args!["memory", "1M"]);
        let error = error_of(&address(&program.socket, authority.dir(), ""));
        assert!(error.contains(cause) && error.contains("the clock here"), "{error}");
    }
}

#[test]
fn a_revoked_certificate_is_refused() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    let trusting = trusting(&scratch, &authority);
    authority.revoke("client");
    let list = trusting.join("ca-crl.pem");
    std::fs::copy(authority.dir().join("ca-crl.pem"), &list).unwrap();
    let program = nbdkit(&scratch, &authority, &args!["memory", "1M"]);
    NbdDevice::open(&address(&program.socket, &trusting, ""), false).unwrap();
    authority.revoke("server");
    std::fs::copy(authority.dir().join("ca-crl.pem"), &list).unwrap();
    let error = error_of(&address(&program.socket, &trusting, ""));
    assert!(error.contains("is revoked"), "{error}");
}

#[test]
fn missing_and_wrong_files_are_named() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    let socket = scratch.join("none");
    let dir = trusting(&scratch, &authority);
    let with = |name: &str, content: &[u8]| {
        std::fs::write(dir.join(name), content).unwrap();
        error_of(&address(&socket, &dir, ""))
    };
    let certificate = std::fs::read(authority.dir().join("client-cert.pem")).unwrap();
    let error = with("client-cert.pem", &certificate);
    assert!(error.contains("client-key.pem: No such file"), "{error}");
    let error = with("client-key.pem", b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n");
    assert!(error.contains("no private key without a passphrase"), "{error}");
    let other = std::fs::read(authority.dir().join("server-key.pem")).unwrap();
    let error = with("client-key.pem", &other);
    assert!(error.contains("client-cert.pem and client-key.pem"), "{error}");
    let error = with("ca-cert.pem", b"no certificate");
    assert!(error.contains("ca-cert.pem: it has no certificate in PEM"), "{error}");
    std::fs::remove_file(dir.join("ca-cert.pem")).unwrap();
    let error = error_of(&address(&socket, &dir, ""));
    assert!(error.contains("ca-cert.pem: No such file"), "{error}");
    let bad = address(&socket, authority.dir(), "&tls-hostname=a%20b");
    assert!(error_of(&bad).contains("can be in no certificate"));
}

#[test]
fn plain_and_encrypted_ends_tell_the_remedy() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    let program = nbdkit(&scratch, &authority, &args!["memory", "1M"]);
    let plain = crate::servers::address("", &program.socket, "&timeout=10");
    let error = error_of(&plain);
    assert!(error.contains("demands TLS") && error.contains("nbds+unix://"), "{error}");
    drop(program);
    let program = Program::nbdkit(&scratch, &args!["memory", "1M"]);
    let error = error_of(&address(&program.socket, authority.dir(), ""));
    assert!(error.contains("offers no TLS") && error.contains("nbd://"), "{error}");
}

#[test]
fn a_new_connection_is_encrypted_and_verified_as_the_first_one() {
    let scratch = Scratch::new();
    let (own, other) = (authority(&scratch, "own"), authority(&scratch, "other"));
    let file = scratch.file("disk", 1 << 20);
    let program = nbdkit(&scratch, &own, &args!["file", &file]);
    let device = NbdDevice::open(&address(&program.socket, own.dir(), ""), false).unwrap();
    device.write_all_at(&[1; 4096], 0).unwrap();
    device.flush().unwrap();
    device.write_all_at(&[2; 4096], 4096).unwrap();
    program.kill();
    let program = nbdkit(&scratch, &own, &args!["file", &file]);
    device.write_all_at(&[3; 4096], 8192).unwrap();
    device.flush().unwrap();
    let found = std::fs::read(&file).unwrap();
    assert!(found[..4096] == [1; 4096] && found[4096..8192] == [2; 4096]);
    assert!(found[8192..12288] == [3; 4096]);
    program.kill();
    // Another one in its place.
    let impostor = nbdkit(&scratch, &other, &args!["file", &file]);
    // It may be sent before the loss is noticed.
    let _ = device.write_all_at(&[4; 4096], 0);
    let error = device.flush().unwrap_err().to_string();
    assert!(error.contains("no authority that is trusted here"), "{error}");
    drop(impostor);
    assert!(std::fs::read(&file).unwrap()[..4096] == [1; 4096]);
}

/// Answers the first option of a client by `answer`, and returns the bytes that follow it.
fn consenting(
    answer: Vec<u8>,
) -> impl Fn(&mut UnixStream, usize) -> io::Result<()> + Send + Sync + 'static {
    move |stream, _| {
        stream.write_all(GREETING)?;
        stream.read_exact(&mut [0; 4])?;
        let mut option = [0; 16];
        stream.read_exact(&mut option)?;
        assert_eq!(option[8..12], START_TLS.to_be_bytes(), "TLS comes first");
        stream.write_all(&answer)?;
        swallow(stream)
    }
}

#[test]
fn bytes_in_the_clear_after_the_consent_end_the_handshake() {
    let reply = |number: u32, kind: u32, data: &[u8]| {
        let head = [CONSENT[..8].to_vec(), number.to_be_bytes().to_vec()].concat();
        [&head[..], &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
    };
    // All that a server without TLS would answer, sent at once with the consent.
    let injected = [CONSENT.to_vec(), reply(8, (1 << 31) | 1, &[]), usual(SIZE)].concat();
    for (answer, cause) in [
        (injected, "broke the protocol of TLS"),
        ([CONSENT, &[0; 64]].concat(), "broke the protocol of TLS"),
        ([CONSENT, b"HTTP/1.1 400 Bad Request\r\n\r\n"].concat(), "broke the protocol of TLS"),
        (reply(START_TLS, 1, b"more"), "its consent to TLS is unknown"),
        (reply(START_TLS, 3, &[0; 12]), "its consent to TLS is unknown"),
        (reply(START_TLS, (1 << 31) | 2, b"\x1b[31mnone"), "offers no TLS"),
        (reply(7, 1, &[]), "was not asked for"),
    ] {
        let scratch = Scratch::new();
        let authority = Authority::new(scratch.join("authority"));
        let socket = server(&scratch, consenting(answer));
        let error = error_of(&address(&socket, authority.dir(), ""));
        assert!(error.contains(cause) && !error.contains('\x1b'), "{error}");
    }
}

#[test]
fn a_handshake_of_tls_without_an_end_is_not_waited_for() {
    for answer in [CONSENT.to_vec(), [CONSENT, b"\x16\x03\x03\x40\0"].concat()] {
        let scratch = Scratch::new();
        let authority = Authority::new(scratch.join("authority"));
        let socket = server(&scratch, consenting(answer));
        let address = address(&socket, authority.dir(), "&timeout=1");
        let error = error_of(&address);
        assert!(error.contains("the handshake took longer than 1 s"), "{error}");
    }
}

#[test]
fn nothing_is_asked_of_a_server_without_tls() {
    let scratch = Scratch::new();
    let authority = Authority::new(scratch.join("authority"));
    // It would serve each option but the first.
    let socket = server(&scratch, |stream, _| {
        greet(stream, false, &usual(SIZE))?;
        let asked = request(stream)?;
        stream.write_all(&simple(0, asked.cookie, &[7; 4096]))
    });
    let error = error_of(&address(&socket, authority.dir(), ""));
    assert!(error.contains("offers no TLS"), "{error}");
}

/// Relays a client to a server. Of the bytes from the server it flips one, behind `after` of them,
/// on the first connection.
fn flipping(socket: PathBuf, to: PathBuf, after: usize) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            // The socket of a program exists a moment before it listens.
            let mut tries = std::iter::repeat_with(|| UnixStream::connect(&to));
            let (mut client, mut server) =
                (client.unwrap(), tries.find_map(Result::ok).expect("an endless row"));
            let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = io::copy(&mut up, &mut server);
                let _ = server.shutdown(Shutdown::Write);
            });
            std::thread::spawn(move || {
                let (mut buffer, mut passed) = ([0; 1000], 0);
                while let Ok(count @ 1..) = down.read(&mut buffer) {
                    if number == 0 && (passed..passed + count).contains(&after) {
                        buffer[after - passed] ^= 1;
                    }
                    passed += count;
                    if client.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                let _ = client.shutdown(Shutdown::Write);
            });
        }
    });
}

#[test]
fn a_byte_that_the_network_changes_is_never_read() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    let file = scratch.join("disk");
    let content = Rng::new(5).bytes(4 << 20);
    std::fs::write(&file, &content).unwrap();
    let program = nbdkit(&scratch, &authority, &args!["file", &file]);
    let relay = scratch.join("relay");
    // Within the data, after the handshake.
    flipping(relay.clone(), program.socket.clone(), 1 << 20);
    let device =
        NbdDevice::open(&address(&relay, authority.dir(), "&connections=1"), false).unwrap();
    let mut found = vec![0; content.len()];
    // The connection is lost, and the rest read over another one.
    device.read_exact_at(&mut found, 0).unwrap();
    assert!(found == content);
}

#[test]
fn a_writer_at_a_full_socket_leaves_the_reader_alone() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    // It executes a request only after a while, so that those behind it fill the socket.
    let slow = args!["--filter=delay", "memory", "64M", "rdelay=20ms", "wdelay=20ms"];
    let program = nbdkit(&scratch, &authority, &[&args!["--threads=1"][..], &slow].concat());
    let device =
        NbdDevice::open(&address(&program.socket, authority.dir(), "&connections=1"), false)
            .unwrap();
    let device = Arc::new(device);
    let threads: Vec<_> = (0..4_u64)
        .map(|number| {
            let device = device.clone();
            std::thread::spawn(move || {
                let data = vec![number as u8 + 1; 4 << 20];
                device.write_all_at(&data, number * (16 << 20)).unwrap();
                let mut found = vec![0; data.len()];
                device.read_exact_at(&mut found, number * (16 << 20)).unwrap();
                assert!(found == data);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    device.flush().unwrap();
}

/// Serves a device in memory by this crate's server.
fn own(scratch: &Scratch, authority: &Authority, verify: bool) -> (Own, Arc<MemDevice>) {
    let disk = Arc::new(MemDevice::new(16 << 20));
    let dir = authority.dir();
    let own = Own::start(disk.clone(), scratch.join("own"), |server| {
        server.secured(TlsServer::load(dir, verify).unwrap())
    });
    (own, disk)
}

#[test]
fn clients_of_others_use_the_server_with_tls() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    for verify in [false, true] {
        let (own, disk) = own(&scratch, &authority, verify);
        let bytes = Rng::new(2).bytes(16 << 20);
        std::fs::write(scratch.join("in"), &bytes).unwrap();
        let dir = authority.dir();
        let uri = address(&own.socket, dir, "&tls-hostname=localhost").to_string();
        let uri = uri.replace("&timeout=10", "");
        let info = run("nbdinfo", &args![&uri]).must_succeed().text();
        assert!(info.contains("newstyle-fixed with TLS, using structured packets"), "{info}");
        run("nbdcopy", &args!["--flush", scratch.join("in"), &uri]).must_succeed();
        assert!(disk.to_vec() == bytes);
        let creds = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", dir.display());
        let (socket, raw) = (own.socket.display(), scratch.join("raw"));
        let image = format!("driver=nbd,path={socket},tls-creds=tls,tls-hostname=localhost");
        let convert = args!["convert", "--object", creds, "--image-opts", image, "-O", "raw", &raw];
        run("qemu-img", &convert).must_succeed();
        assert!(std::fs::read(&raw).unwrap() == bytes);
        own.stop();
    }
}

#[test]
fn client_and_server_of_this_crate_transfer_encrypted() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    let (own, disk) = own(&scratch, &authority, true);
    let device = NbdDevice::open(&address(&own.socket, authority.dir(), ""), false).unwrap();
    let bytes = Rng::new(3).bytes(16 << 20);
    device.write_all_at(&bytes, 0).unwrap();
    device.flush().unwrap();
    assert!(disk.to_vec() == bytes);
    let mut found = vec![0; bytes.len()];
    device.read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes);
    drop(device);
    let error = error_of(&address(&own.socket, &trusting(&scratch, &authority), ""));
    assert!(error.contains("client-cert.pem"), "{error}");
    let error = error_of(&crate::servers::address("", &own.socket, "&timeout=10"));
    assert!(error.contains("demands TLS"), "{error}");
    own.stop();
}

#[test]
fn options_in_the_clear_have_no_effect_on_a_server_with_tls() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    let (own, _) = own(&scratch, &authority, false);
    let option = |number: u32, data: &[u8]| {
        let head = [b"IHAVEOPT", &number.to_be_bytes()[..]].concat();
        [&head[..], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let begin = || {
        let mut client = UnixStream::connect(&own.socket).unwrap();
        client.read_exact(&mut [0; 18]).unwrap();
        client.write_all(&[0, 0, 0, 3]).unwrap();
        client
    };
    let mut client = begin();
    for number in [3, 6, 7, 8, 10, 99] {
        client.write_all(&option(number, &[0; 6])).unwrap();
        let mut answer = [0; 20];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer[12..16], ((1_u32 << 31) | 5).to_be_bytes(), "option {number}");
        let len = u32::from_be_bytes(answer[16..].try_into().unwrap());
        client.read_exact(&mut vec![0; len as usize]).unwrap();
    }
    client.write_all(&option(1, &[])).unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "an export is opened in the clear");
    // Behind the start of TLS, in the same packet.
    let mut client = begin();
    let both = [option(START_TLS, &[]), option(7, &[0; 6]), option(1, &[])].concat();
    client.write_all(&both).unwrap();
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert!(answer.starts_with(CONSENT), "{answer:?}");
    // An alert of TLS at most.
    assert!(answer[CONSENT.len()..].first().is_none_or(|kind| *kind == 21), "{answer:?}");
    own.stop();
}
