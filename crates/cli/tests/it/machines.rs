//! Images as disks of virtual machines.

use crate::args;
use crate::program::{EXTANT, await_that, done, refused};
use crate::remotes::Serving;
use extant_testkit::tool::run;
use extant_testkit::vhost::{DATA, FrontEnd, Queue, kind};
use extant_testkit::{Scratch, e2fsck};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Bytes of a request.
const PART: usize = 1 << 20;

/// Serves an image by the program under test.
fn serve(scratch: &Scratch, image: &Path, more: &[OsString]) -> Serving {
    let socket = scratch.join("vhost");
    let args = args!["--quiet", "serve-vhost", image, "--socket", &socket];
    Serving::start(Path::new(EXTANT), &[&args[..], more].concat(), socket)
}

fn machine(server: &Serving) -> (FrontEnd, Queue) {
    let front = FrontEnd::connect(&server.socket, u64::MAX);
    let queue = front.start(0, 128);
    (front, queue)
}

/// Reads a whole disk.
fn content(queue: &mut Queue, len: usize) -> Vec<u8> {
    let sectors = (0..len).step_by(PART).map(|at| (at as u64 / 512, PART.min(len - at) as u32));
    sectors.flat_map(|(sector, len)| queue.read(sector, len)).collect()
}

/// Writes the blocks of a disk that differ.
fn change(queue: &mut Queue, old: &[u8], new: &[u8]) {
    for (number, (old, new)) in old.chunks(4096).zip(new.chunks(4096)).enumerate() {
        if old != new {
            queue.write(number as u64 * 8, new);
        }
    }
}

/// Makes a file system with a file, and an overlay of it.
fn overlay(scratch: &Scratch) -> (PathBuf, PathBuf, Vec<OsString>) {
    let (base, overlay) = (scratch.join("base"), scratch.join("overlay"));
    let top = scratch.dir("top");
    fs::write(top.join("file"), "of the base").unwrap();
    done(&args!["build", &base, &top, "--free", "16M"]);
    done(&args!["overlay", "create", &overlay, "--backing", &base]);
    let format = args!["--format", "qcow2", "--backing", &base];
    (base, overlay, format.to_vec())
}

/// Makes the changes of a machine in its overlay: a file, by a copy of the disk.
fn put_file(scratch: &Scratch, queue: &mut Queue, len: usize, name: &str) {
    let old = content(queue, len);
    let (copy, source) = (scratch.join("copy"), scratch.join("source"));
    fs::write(&copy, &old).unwrap();
    fs::write(&source, vec![7; 3 << 20]).unwrap();
    done(&args!["put", &copy, &source, format!("/{name}")]);
    change(queue, &old, &fs::read(&copy).unwrap());
}

/// The overlay holds a clean file system with a file.
fn assert_holds(scratch: &Scratch, overlay: &Path, base: &Path, name: &str) {
    let flat = scratch.join("flat");
    let _ = fs::remove_file(&flat);
    run("qemu-img", &args!["check", "-f", "qcow2", overlay]).must_succeed();
    run("qemu-img", &args!["rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", base, overlay])
        .must_succeed();
    let convert = args!["convert", "-f", "qcow2", "-O", "raw", overlay, &flat];
    run("qemu-img", &convert).must_succeed();
    e2fsck::check(&flat).assert_clean();
    assert!(done(&args!["cat", &flat, format!("/{name}")]).stdout == vec![7; 3 << 20]);
    assert_eq!(done(&args!["cat", &flat, "/file"]).text(), "of the base");
}

#[test]
fn a_machine_changes_its_overlay_alone() {
    let scratch = Scratch::new();
    let (base, overlay, format) = overlay(&scratch);
    let before = fs::read(&base).unwrap();
    let server = serve(&scratch, &overlay, &format);
    assert_eq!(fs::metadata(&server.socket).unwrap().permissions().mode() & 0o777, 0o600);
    let (front, mut queue) = machine(&server);
    assert_eq!(queue.execute(kind::GET_ID, 0, &[], 20).1[..8], *b"overlay\0");
    put_file(&scratch, &mut queue, before.len(), "new");
    queue.flush();
    refused(&[&args!["mkdir"][..], &format, &args![&overlay, "/x"]].concat(), 1, "in use");
    drop(front);
    let socket = server.socket.clone();
    server.end();
    assert!(!socket.exists(), "the socket is removed");
    assert_holds(&scratch, &overlay, &base, "new");
    assert!(fs::read(&base).unwrap() == before);
}

#[test]
fn killed_machines_and_servers_lose_nothing_that_was_flushed() {
    let scratch = Scratch::new();
    let (base, overlay, format) = overlay(&scratch);
    let len = fs::metadata(&base).unwrap().len() as usize;
    let server = serve(&scratch, &overlay, &format);
    let (front, mut queue) = machine(&server);
    put_file(&scratch, &mut queue, len, "one");
    // The machine ends amid a request.
    let chain = queue.request(DATA, kind::READ, 0, (&[], 1 << 20));
    queue.put(&chain);
    queue.kick();
    drop(front);
    let (_front, mut queue) = machine(&server);
    put_file(&scratch, &mut queue, len, "two");
    queue.flush();
    let socket = server.socket.clone();
    server.kill();
    await_that("the end of the socket's name", || !socket.exists());
    assert_holds(&scratch, &overlay, &base, "one");
    assert_holds(&scratch, &overlay, &base, "two");
}

#[test]
fn a_disk_for_reading_only_stays_as_it_is() {
    let scratch = Scratch::new();
    let (base, ..) = overlay(&scratch);
    let before = fs::read(&base).unwrap();
    let more = args!["--read-only", "--once", "--queues", "3", "--serial", "seven"];
    let mut server = serve(&scratch, &base, &more);
    let (front, mut queue) = machine(&server);
    assert_eq!(front.queue_count(), 3);
    assert_eq!(queue.execute(kind::GET_ID, 0, &[], 20).1[..6], *b"seven\0");
    assert!(content(&mut queue, before.len()) == before);
    assert_eq!(queue.execute(kind::WRITE, 0, &[1; 512], 0).0, 1);
    drop(front);
    server.await_end();
    assert!(fs::read(&base).unwrap() == before);
}

#[test]
fn wrong_arguments_are_refused() {
    let scratch = Scratch::new();
    let file = scratch.file("disk", 1 << 20);
    let at = scratch.join("socket");
    refused(&args!["serve-vhost", &file, "--socket", &file], 1, "exists; remove it");
    refused(&args!["serve-vhost", scratch.join("missing"), "--socket", &at], 1, "No such file");
    let serial = args!["serve-vhost", &file, "--socket", &at, "--serial", "x".repeat(21)];
    refused(&serial, 1, "at most 20");
    refused(&args!["serve-vhost", &file, "--socket", &at, "--queues", "0"], 2, "1..=64");
    assert!(!at.exists());
}
