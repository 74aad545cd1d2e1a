//! The client beside the servers of others.

use crate::servers::{Program, address, args, open};
use extant_blocks::BlockDevice;
use extant_nbd::NbdDevice;
use extant_testkit::Scratch;
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use std::sync::Arc;

/// Writes and reads at random places, with flushes, beside a model. Returns the content.
fn exercise(device: &NbdDevice, seed: u64) -> Vec<u8> {
    let size = device.len() as usize;
    let block = device.alignment();
    let mut model = vec![0; size];
    device.read_exact_at(&mut model, 0).unwrap();
    let mut random = Rng::new(seed);
    for round in 0..300 {
        let at = random.below((size / block) as u64) as usize * block;
        let most = ((size - at) / block).min((700 << 10) / block);
        let len = (1 + random.below(most as u64) as usize) * block;
        match random.below(8) {
            0 => {
                device.write_zeroes(at as u64, len as u64).unwrap();
                model[at..at + len].fill(0);
            }
            1..5 => {
                let data = random.bytes(len);
                device.write_all_at(&data, at as u64).unwrap();
                model[at..at + len].copy_from_slice(&data);
            }
            _ => {
                let mut found = vec![0xaa; len];
                device.read_exact_at(&mut found, at as u64).unwrap();
                assert!(found == model[at..at + len], "round {round}: {len} bytes at {at}");
            }
        }
        if random.one_in(40) {
            device.flush().unwrap();
        }
    }
    device.flush().unwrap();
    model
}

#[test]
fn nbdkit_serves_memory_and_files() {
    let scratch = Scratch::new();
    let program = Program::nbdkit(&scratch, &args!["memory", "8M"]);
    let device = open(&address("", &program.socket, ""));
    exercise(&device, 1);
    device.discard(0, 1 << 20).unwrap();
    device.flush().unwrap();
    drop((device, program));
    let file = scratch.file("disk", 8 << 20);
    let program = Program::nbdkit(&scratch, &args!["file", &file]);
    let device = open(&address("", &program.socket, ""));
    let model = exercise(&device, 2);
    assert!(std::fs::read(&file).unwrap() == model);
}

#[test]
fn qemu_nbd_serves_raw_images_and_qcow2() {
    for format in ["raw", "qcow2"] {
        let scratch = Scratch::new();
        let file = scratch.join("disk");
        let create = args!["create", "-q", "-f", format, &file, "8M"];
        run("qemu-img", &create).must_succeed();
        let program = Program::qemu_nbd(&scratch, &args!["-f", format, "-e", "8", &file]);
        let device = open(&address("", &program.socket, ""));
        let model = exercise(&device, 3);
        drop((device, program));
        let raw = scratch.join("raw");
        run("qemu-img", &args!["convert", "-f", format, "-O", "raw", &file, &raw]).must_succeed();
        assert!(std::fs::read(&raw).unwrap() == model);
    }
}

#[test]
fn constraints_of_blocks_are_kept() {
    let scratch = Scratch::new();
    // nbdkit refuses requests that break them.
    let policy = args![
        "--filter=blocksize-policy",
        "memory",
        "8M",
        "blocksize-error-policy=error",
        "blocksize-minimum=4096",
        "blocksize-preferred=4096",
        "blocksize-maximum=65536"
    ];
    let program = Program::nbdkit(&scratch, &policy);
    let device = open(&address("", &program.socket, ""));
    assert_eq!(device.alignment(), 4096);
    exercise(&device, 4);
}

#[test]
fn servers_without_features_are_served() {
    for arguments in [
        &args!["--filter=nozero", "memory", "4M"][..],
        &args!["--filter=fua", "memory", "4M", "fuamode=discard"],
        &args!["--filter=noextents", "memory", "4M"],
        &args!["--filter=multi-conn", "memory", "4M", "multi-conn-mode=disable"],
        &args!["--no-sr", "memory", "4M"],
    ] {
        let scratch = Scratch::new();
        let program = Program::nbdkit(&scratch, arguments);
        let device = open(&address("", &program.socket, ""));
        exercise(&device, 5);
    }
}

#[test]
fn delays_and_errors_of_a_server_are_survived() {
    let scratch = Scratch::new();
    let delayed = args!["--filter=delay", "memory", "4M", "rdelay=2ms", "wdelay=2ms"];
    let program = Program::nbdkit(&scratch, &delayed);
    exercise(&open(&address("", &program.socket, "")), 6);
    drop(program);
    // The retry filter of the server hides the errors; without it they reach the caller.
    let hidden = args![
        "--filter=retry",
        "--filter=error",
        "memory",
        "4M",
        "error=EIO",
        "error-rate=1%",
        "retry-delay=1",
        "retry-exponential=no"
    ];
    let program = Program::nbdkit(&scratch, &hidden);
    exercise(&open(&address("", &program.socket, "")), 7);
    drop(program);
    let failing =
        args!["--filter=error", "memory", "4M", "error-pwrite=ENOSPC", "error-pwrite-rate=100%"];
    let program = Program::nbdkit(&scratch, &failing);
    let device = open(&address("", &program.socket, ""));
    device.write_all_at(&[1; 4096], 12288).unwrap();
    let error = device.flush().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(error.to_string().contains("write of 4096 bytes at 12288"), "{error}");
    // It was told once.
    device.flush().unwrap();
}

#[test]
fn holes_of_a_server_are_seen() {
    let scratch = Scratch::new();
    let file = scratch.file("disk", 64 << 20);
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::File::options().write(true).open(&file).unwrap(),
        &[7; 65536],
        32 << 20,
    )
    .unwrap();
    let kit = Program::nbdkit(&scratch, &args!["file", &file]);
    let qemu = Program::qemu_nbd(&scratch, &args!["-r", "-f", "raw", "-e", "8", &file]);
    for program in [&kit, &qemu] {
        let device = open(&address("", &program.socket, ""));
        assert_eq!(device.next_data(0).unwrap(), Some(32 << 20..(32 << 20) + 65536));
        assert_eq!(device.next_data((32 << 20) + 5).unwrap().unwrap().start, (32 << 20) + 5);
        assert_eq!(device.next_data((32 << 20) + 65536).unwrap(), None);
    }
}

#[test]
fn devices_of_one_address_share_a_client() {
    let scratch = Scratch::new();
    let file = scratch.file("disk", 1 << 20);
    // It takes one client, and ends with it.
    let socket = scratch.join("one");
    let once = args!["--socket", &socket, "-f", "raw", &file];
    let _program = Program::start("qemu-nbd", &once, socket.clone());
    let address = address("", &socket, "&timeout=5");
    let (one, two) = (Arc::new(open(&address)), Arc::new(open(&address)));
    let claim = one.claim(true).unwrap();
    assert_eq!(two.claim(false).unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
    drop(claim);
    one.write_all_at(&[7; 512], 0).unwrap();
    let mut found = [0; 512];
    two.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, [7; 512]);
}

#[test]
fn an_export_for_reading_only_is_not_written() {
    let scratch = Scratch::new();
    let program = Program::nbdkit(&scratch, &args!["--readonly", "memory", "1M"]);
    let device = open(&address("", &program.socket, ""));
    assert!(device.read_only());
    let error = device.write_all_at(&[1; 512], 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}
