//! Archives that are made byte for byte, with and without damage.

use super::*;
use crate::ahead::Ahead;
use crate::digest::Hashing;
use crate::stream::{Section, Sequential};
use std::fs::File;
use std::sync::Arc;

/// Makes a header with a checksum.
pub(crate) fn header(name: &str, kind: u8, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000644");
    block[108..115].copy_from_slice(b"0001750");
    block[116..123].copy_from_slice(b"0000144");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[136..147].copy_from_slice(b"14371555400");
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    sum(&mut block);
    block
}

/// Sets the checksum.
fn sum(block: &mut [u8; BLOCK]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

fn edited(mut block: [u8; BLOCK], at: usize, bytes: &[u8]) -> [u8; BLOCK] {
    block[at..at + bytes.len()].copy_from_slice(bytes);
    sum(&mut block);
    block
}

fn padded(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    data.resize(data.len().next_multiple_of(BLOCK), 0);
    data
}

fn record(key: &str, value: &str) -> String {
    let body = key.len() + value.len() + 3;
    let len = (1..).map(|digits| body + digits).find(|len| len.to_string().len() + body == *len);
    format!("{} {key}={value}\n", len.unwrap())
}

/// Makes an extended header of a kind with these records.
fn extended(kind: u8, records: &[(&str, &str)]) -> Vec<u8> {
    let body: String = records.iter().map(|(key, value)| record(key, value)).collect();
    [&header("pax", kind, body.len() as u64)[..], &padded(body.as_bytes())].concat()
}

fn archive(parts: &[&[u8]]) -> Vec<u8> {
    [parts.concat(), vec![0; 2 * BLOCK]].concat()
}

/// Reads an archive; each member with its data.
fn read(bytes: &[u8]) -> Result<Vec<(Member, Vec<u8>)>> {
    read_from(Sequential(bytes), EndMark::Required)
}

fn read_from(stream: impl Stream, end_mark: EndMark) -> Result<Vec<(Member, Vec<u8>)>> {
    let mut reader = TarReader::new(stream, end_mark);
    let mut members = Vec::new();
    while let Some(member) = reader.next_member()? {
        let mut data = Vec::new();
        reader.copy_data(&mut data)?;
        members.push((member, data));
    }
    Ok(members)
}

/// Counts the members of an archive whose digest is known, whose data are passed over.
fn pass(stream: impl Stream) -> Result<usize> {
    let mut reader = TarReader::new(stream, EndMark::Optional);
    let mut members = 0;
    while reader.next_member()?.is_some() {
        members += 1;
    }
    Ok(members)
}

fn one(parts: &[&[u8]]) -> Member {
    let mut members = read(&archive(parts)).unwrap();
    assert_eq!(members.len(), 1);
    members.pop().unwrap().0
}

fn refused(parts: &[&[u8]]) -> (String, Option<u64>) {
    let error = read(&archive(parts)).expect_err("the archive is refused");
    (error.to_string(), error.offset())
}

#[test]
fn a_header_gives_all_attributes() {
    let bytes = archive(&[&header("dir/file", b'0', 5), &padded(b"hello"), &header("dir/", 0, 0)]);
    let members = read(&bytes).unwrap();
    let (file, data) = &members[0];
    assert_eq!((&file.path[..], &data[..]), (&b"dir/file"[..], &b"hello"[..]));
    assert_eq!((file.mode, file.uid, file.gid, file.mtime.sec), (0o644, 1000, 100, 0o14371555400));
    let data = FileData { size: 5, offset: 512, stored: 5, ranges: None };
    assert_eq!(file.kind, MemberKind::File(data));
    assert_eq!((members[1].0.offset, &members[1].0.kind), (1024, &MemberKind::Directory));
}

#[test]
fn the_prefix_of_ustar_is_a_part_of_the_name() {
    let block = edited(header("name", b'0', 0), 345, b"a/long/prefix");
    assert_eq!(one(&[&block]).path, b"a/long/prefix/name");
    // Headers of GNU have times there.
    let block = edited(block, 257, b"ustar  \0");
    assert_eq!(one(&[&block]).path, b"name");
}

#[test]
fn large_and_negative_numbers_are_in_base_256() {
    let block = edited(header("f", b'0', 0), 108, &[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xfe]);
    let block = edited(block, 136, &[0xff; 12]);
    let member = one(&[&block]);
    assert_eq!((member.uid, member.mtime.sec), (u32::MAX - 1, -1));
}

#[test]
fn a_signed_checksum_is_taken() {
    let mut block = header("caf\u{e9}", b'0', 0);
    block[148..156].fill(b' ');
    let sum: i64 = block.iter().map(|byte| i64::from(*byte as i8)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    assert_eq!(one(&[&block]).path, "caf\u{e9}".as_bytes());
}

#[test]
fn long_names_of_gnu_replace_those_of_the_header() {
    let name = "n".repeat(300);
    let long = |kind, text: &str| {
        [&header("././@LongLink", kind, text.len() as u64)[..], &padded(text.as_bytes())].concat()
    };
    let member = one(&[&long(b'K', "target\0"), &long(b'L', &name), &header("n", b'2', 0)]);
    assert_eq!((member.path, member.offset), (name.into_bytes(), 0));
    assert_eq!(member.kind, MemberKind::Symlink(b"target".to_vec()));
}

#[test]
fn records_count_for_one_member_or_for_all() {
    let bytes = archive(&[
        &extended(b'g', &[("uid", "5"), ("gid", "6"), ("mtime", "7.25")]),
        &extended(b'x', &[("uid", "8"), ("path", "long"), ("SCHILY.xattr.user.k", "v")]),
        &header("short", b'0', 0),
        &header("second", b'0', 0),
        &extended(b'x', &[("uid", "")]),
        &header("third", b'0', 0),
    ]);
    let members = read(&bytes).unwrap();
    let found: Vec<_> = members.iter().map(|(m, _)| (&m.path[..], m.uid, m.gid)).collect();
    assert_eq!(found, [(&b"long"[..], 8, 6), (b"second", 5, 6), (b"third", 1000, 6)]);
    assert_eq!(members[0].0.mtime, Timestamp::new(7, 250_000_000));
    assert_eq!(members[0].0.xattrs, [(b"user.k".to_vec(), b"v".to_vec())]);
    assert!(members[1].0.xattrs.is_empty());
}

#[test]
fn the_size_of_a_record_counts_for_the_data() {
    // The header says 0, and the data look like a member: the attack on readers that believe it.
    let inner = header("smuggled", b'0', 0);
    let bytes = archive(&[&extended(b'x', &[("size", "512")]), &header("f", b'0', 0), &inner]);
    let members = read(&bytes).unwrap();
    assert_eq!(members.len(), 1);
    assert_eq!(members[0].1, inner);
    let (cause, offset) =
        refused(&[&extended(b'x', &[("size", "512")]), &header("f", b'0', 7), &inner]);
    assert!(cause.contains("f: at byte 1024: the size is 7 in the header and 512"), "{cause}");
    assert_eq!(offset, Some(1024));
}

const SPARSE: [Range; 2] = [Range { start: 512, len: 512 }, Range { start: 4096, len: 3 }];

#[track_caller]
fn assert_sparse(parts: &[&[u8]], offset: u64) {
    let bytes = archive(&[&parts.concat(), &padded(&[b'x'; 515])[..]]);
    let members = read(&bytes).unwrap();
    assert_eq!(members.len(), 1);
    assert_eq!((&members[0].0.path[..], &members[0].1[..]), (&b"name"[..], &[b'x'; 515][..]));
    let data = FileData { size: 8192, offset, stored: 515, ranges: Some(SPARSE.to_vec()) };
    assert_eq!(members[0].0.kind, MemberKind::File(data));
}

#[test]
fn sparse_files_have_four_forms() {
    let pair = ["512", "512", "4096", "3"];
    let zero_zero = [
        ("GNU.sparse.size", "8192"),
        ("GNU.sparse.numblocks", "2"),
        ("GNU.sparse.offset", pair[0]),
        ("GNU.sparse.numbytes", pair[1]),
        ("GNU.sparse.offset", pair[2]),
        ("GNU.sparse.numbytes", pair[3]),
    ];
    assert_sparse(&[&extended(b'x', &zero_zero), &header("name", b'0', 515)], 1536);
    let zero_one = [
        ("GNU.sparse.size", "8192"),
        ("GNU.sparse.numblocks", "2"),
        ("GNU.sparse.name", "name"),
        ("GNU.sparse.map", "512,512,4096,3"),
    ];
    assert_sparse(&[&extended(b'x', &zero_one), &header("./GNU/name", b'0', 515)], 1536);
    let one_zero = [
        ("GNU.sparse.major", "1"),
        ("GNU.sparse.minor", "0"),
        ("GNU.sparse.name", "name"),
        ("GNU.sparse.realsize", "8192"),
    ];
    let map = padded(b"3\n512\n512\n4096\n3\n8192\n0\n");
    let block = header("GNUSparseFile.0/name", b'0', 512 + 515);
    assert_sparse(&[&extended(b'x', &one_zero), &block, &map], 2048);

    let mut block = edited(header("name", b'S', 515), 257, b"ustar  \0");
    let numbers = |numbers: [u64; 4]| numbers.map(|n| format!("{n:011o}\0")).concat();
    block = edited(block, 386, numbers([512, 512, 4096, 3]).as_bytes());
    block = edited(block, 483, b"00000020000\0");
    assert_sparse(&[&block], 512);
    // The second range in a block of its own.
    block = edited(edited(block, 386 + 24, &[0; 24]), 482, &[1]);
    let mut more = [0; BLOCK];
    more[..24].copy_from_slice(&numbers([4096, 3, 0, 0]).as_bytes()[..24]);
    assert_sparse(&[&block, &more], 1024);
}

#[test]
fn wrong_maps_are_refused() {
    let sparse = |map: &str, size: &str| {
        let records = [("GNU.sparse.size", size), ("GNU.sparse.map", map)];
        refused(&[&extended(b'x', &records), &header("f", b'0', 512), &[0; 512]]).0
    };
    for (map, size, cause) in [
        ("0,512", "100", "exceeds the 100 bytes"),
        ("512,256,0,256", "8192", "does not fill its last block"),
        ("512,512,0,0", "8192", "overlap at byte 0"),
        ("0,1024", "8192", "have 1024 bytes, the archive 512"),
        ("18446744073709551615,512", "8192", "exceeds the 8192 bytes"),
        ("0", "8192", "GNU.sparse.map is malformed"),
    ] {
        let found = sparse(map, size);
        assert!(found.contains(cause), "{map}: {found}");
    }
    let records =
        [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9")];
    for (map, cause) in [("400\n", "more than its map has bytes"), ("1\n1x", "has no number")] {
        let block = header("f", b'0', 512);
        let found = refused(&[&extended(b'x', &records), &block, &padded(map.as_bytes())]).0;
        assert!(found.contains(cause), "{map}: {found}");
    }
}

#[test]
fn hostile_archives_are_refused_with_their_byte() {
    let long = [&header("L", b'L', 2)[..], &padded(b"b\0")].concat();
    let path = extended(b'x', &[("path", "a")]);
    let file = header("f", b'0', 0);
    let wrong_sum = {
        let mut block = file;
        block[0] = b'g';
        block
    };
    let cases: [(&[&[u8]], &str, u64); 12] = [
        (&[&file, &wrong_sum], "the checksum is", 512),
        (&[b"#!/bin/sh", &[b'x'; 503]], "no tar archive", 0),
        (&[&long, &path, &file], "the member has two names: a and b", 2048),
        (&[&long, &long, &file], "two long names", 1024),
        (&[&path, &path, &file], "two extended headers", 1024),
        (&[&path], "the member of an extension is missing", 0),
        (&[&header("d", b'5', 1), &[0; 512]], "has content", 0),
        (&[&header("l", b'1', 1), &[0; 512]], "has content", 0),
        (&[&header("q", b'Q', 0)], "the type `Q` is not known", 0),
        (&[&header("x", b'x', 9 << 20)], "an extension of 9437184 bytes", 0),
        (&[&header("", b'0', 0)], "a member without a name", 0),
        (&[&edited(file, 108, b"0x10")], "the field uid is no number", 0),
    ];
    for (parts, cause, offset) in cases {
        let (found, at) = refused(parts);
        assert!(found.contains(cause), "{found}");
        assert_eq!(at, Some(offset), "{found}");
    }
}

#[test]
fn each_truncation_is_an_error_or_the_end_of_a_member() {
    let whole =
        archive(&[&extended(b'x', &[("path", "long")]), &header("f", b'0', 700), &[b'x'; 1024]]);
    for len in 0..whole.len() - BLOCK {
        let end_is_there = len >= whole.len() - BLOCK;
        assert_eq!(read(&whole[..len]).is_ok(), end_is_there, "{len} bytes");
    }
    assert_eq!(read(&whole[..whole.len() - BLOCK]).unwrap().len(), 1);
}

/// The library of Go writes padding with the next member, and reads archives without it. An end
/// inside of content, or of a header, is a truncation.
#[test]
fn an_archive_with_a_digest_may_end_after_the_content_of_its_last_member() {
    let whole =
        archive(&[&extended(b'x', &[("path", "long")]), &header("f", b'0', 700), &[b'x'; 1024]]);
    let (content, end) = (3 * BLOCK, 3 * BLOCK + 700);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("archive");
    let borders = [BLOCK, 2 * BLOCK, content, end, content + 1024, content + 1024 + BLOCK];
    let lens = borders.iter().flat_map(|at| [at - 1, *at, at + 1]).chain([end + 100, 1, 1000]);
    for len in lens {
        let part = &whole[..len];
        std::fs::write(&file, part).unwrap();
        let open = || Section::new(Arc::new(File::open(&file).unwrap()), 0, len as u64);
        let ahead = || Ahead::new(std::io::Cursor::new(part.to_vec())).unwrap();
        let hashing = || Hashing::new(Sequential(part), true);
        let passed = [pass(Sequential(part)), pass(open()), pass(ahead()), pass(hashing())];
        let read =
            [read_from(Sequential(part), EndMark::Optional), read_from(open(), EndMark::Optional)];
        let read = read.map(|read| read.map(|members| members[0].1.clone()));
        let is_whole = (end..=content + 1024).contains(&len) || len >= content + 1024 + BLOCK;
        for found in passed {
            assert_eq!(found.ok(), is_whole.then_some(1), "{len} bytes");
        }
        for found in read {
            assert_eq!(found.ok(), is_whole.then(|| vec![b'x'; 700]), "{len} bytes");
        }
    }
    // An extension belongs to a member.
    let extension = extended(b'x', &[("path", "long")]);
    let error = read_from(Sequential(&extension[..BLOCK + 13]), EndMark::Optional).unwrap_err();
    assert!(error.to_string().contains("the member of an extension is missing"), "{error}");
}
