//! Stores that lie.

use crate::server::{Fault, Server};
use crate::{CHUNK, chunks_in, content, disk, in_directory, open, options, store};
use extant_blocks::BlockDevice;
use extant_store::{ChunkDigest, MAX_MANIFEST};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

fn served(dir: &Path) -> Server {
    store(&disk(8), &in_directory(dir, "disk"), &options()).unwrap();
    Server::of(dir)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(done: io::Result<T>, texts: &[&str]) {
    let error = done.unwrap_err().to_string();
    assert!(texts.iter().all(|text| error.contains(text)), "{error}");
}

fn first_chunk(dir: &Path) -> PathBuf {
    let hex = ChunkDigest::of(&content(&disk(8))[..CHUNK as usize]).hex();
    dir.join("chunks").join(&hex[..2]).join(&hex)
}

#[test]
fn wrong_bytes_are_errors_that_name_the_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    let chunk = first_chunk(dir.path());
    let name = chunk.file_name().unwrap().to_str().unwrap().to_owned();
    let whole = fs::read(&chunk).unwrap();
    let other =
        fs::read(chunks_in(dir.path()).into_iter().find(|path| *path != chunk).unwrap()).unwrap();
    for bad in [&whole[..whole.len() / 2], b"", &other, &[0; 100], &[&whole[..], b"x"].concat()] {
        fs::write(&chunk, bad).unwrap();
        let device = open(server.address("disk")).unwrap();
        let mut buf = [0x77; 512];
        let read = device.read_exact_at(&mut buf, 100);
        refused(read, &["chunk http://", &name]);
        assert_eq!(buf, [0x77; 512]);
    }
    fs::remove_file(&chunk).unwrap();
    let device = open(server.address("disk")).unwrap();
    refused(device.read_exact_at(&mut [0; 1], 0), &["no such object", &name]);
    fs::write(&chunk, whole).unwrap();
    device.read_exact_at(&mut [0; 1], 0).unwrap();
}

#[test]
fn manifests_that_lie_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    let file = dir.path().join("disk");
    let whole = fs::read(&file).unwrap();
    refused(open(server.address("none")), &["no such object", "/none"]);
    fs::write(&file, b"no manifest").unwrap();
    refused(open(server.address("disk")), &["/disk", "no image that `extant push` has stored"]);
    let sealed = |place: usize, with: &[u8]| {
        let mut bytes = whole.clone();
        bytes[place..place + with.len()].copy_from_slice(with);
        let end = bytes.len() - 32;
        let digest = ChunkDigest::of(&bytes[..end]).hex();
        for (byte, at) in bytes[end..].iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&digest[at..at + 2], 16).unwrap();
        }
        fs::write(&file, bytes).unwrap();
        open(server.address("disk"))
    };
    refused(sealed(16, &(1u64 << 63).to_le_bytes()), &["its image has"]);
    refused(sealed(16, &CHUNK.to_le_bytes()), &["not in the image"]);
    refused(sealed(24, &u64::MAX.to_le_bytes()), &["fewer runs"]);
    // A shorter image: the last chunk has more bytes than it should.
    let shorter = sealed(16, &(7 * CHUNK + 10).to_le_bytes()).unwrap();
    refused(shorter.read_exact_at(&mut [0; 10], 7 * CHUNK), &["more than 10 bytes"]);
    let longer = sealed(16, &(100 * CHUNK).to_le_bytes()).unwrap();
    refused(longer.read_exact_at(&mut [0; 10], 7 * CHUNK), &["fewer than 4096 bytes"]);
    let mut end = [1; 10];
    longer.read_exact_at(&mut end, 99 * CHUNK).unwrap();
    assert_eq!(end, [0; 10]);
}

#[test]
fn endless_and_redirected_answers_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path());
    server.fails("/disk", Fault::Zeroes(MAX_MANIFEST + 1), 1);
    refused(open(server.address("disk?timeout=60")), &["more than 268435456 bytes"]);
    server.recovers();
    server.fails("/disk", Fault::Status(302), 100);
    refused(open(server.address("disk?timeout=2")), &["/disk"]);
    server.recovers();
    let device = open(server.address("disk?timeout=5")).unwrap();
    for fault in [Fault::Endless, Fault::Zeroes(100 << 20), Fault::Status(403), Fault::Status(404)]
    {
        server.fails("/chunks/", fault, 100);
        refused(device.read_exact_at(&mut [0; 1], 0), &["/chunks/"]);
        server.recovers();
    }
    let nobody = open("http://127.0.0.1:1/disk?timeout=1").unwrap_err();
    assert_ne!(nobody.kind(), ErrorKind::NotFound);
}
