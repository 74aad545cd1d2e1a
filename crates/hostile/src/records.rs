//! Synthetic fast commits: records as stored in the area, and the area with its tails.

use extant_format::checksum::crc32c_raw;
use extant_format::extent::Leaf;
use extant_format::jbd2::JournalSuperblock;
use std::ops::Range;

const HEADER: usize = 4;
/// Blocks of a file are mapped.
pub const ADD_RANGE: u16 = 1;
/// Blocks of a file are unmapped.
pub const DEL_RANGE: u16 = 2;
/// A name of a new inode.
pub const CREATE: u16 = 3;
/// A removed name.
pub const UNLINK: u16 = 5;
/// An inode's slot.
pub const INODE: u16 = 6;
/// Padding to the end of the block.
pub const PAD: u16 = 7;
/// The end of a commit, with its checksum.
pub const TAIL: u16 = 8;
/// The beginning of the area.
pub const HEAD: u16 = 9;

/// A record: its kind and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its kind, such as [`CREATE`].
    pub kind: u16,
    /// Its bytes, without kind and length.
    pub value: Vec<u8>,
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Record {
    /// Makes the head of an area whose commits follow the transaction before `tid`.
    pub fn head(tid: u32) -> Record {
        Record { kind: HEAD, value: words(&[0, tid]) }
    }

    /// Makes a record of mapped blocks of an inode.
    pub fn add_range(ino: u32, leaf: Leaf) -> Record {
        let mut value = words(&[ino, leaf.lblk]);
        value.extend(leaf.len.to_le_bytes());
        value.extend(((leaf.pblk >> 32) as u16).to_le_bytes());
        value.extend((leaf.pblk as u32).to_le_bytes());
        Record { kind: ADD_RANGE, value }
    }

    /// Makes a record of unmapped logical blocks of an inode.
    pub fn del_range(ino: u32, range: Range<u32>) -> Record {
        Record { kind: DEL_RANGE, value: words(&[ino, range.start, range.end - range.start]) }
    }

    /// Makes a record of a name; `kind` is one of create, link, unlink.
    pub fn name(kind: u16, parent: u32, ino: u32, name: &str) -> Record {
        let mut value = words(&[parent, ino]);
        value.extend(name.as_bytes());
        Record { kind, value }
    }

    /// Makes a record of an inode's slot.
    pub fn inode(ino: u32, slot: &[u8]) -> Record {
        let mut value = words(&[ino]);
        value.extend(slot);
        Record { kind: INODE, value }
    }

    /// Makes the tail of a commit; [`write()`] computes its value.
    pub fn tail() -> Record {
        Record { kind: TAIL, value: Vec::new() }
    }
}

/// Returns the valid records of an area's blocks, in order, without padding and with empty tails.
pub fn read<'a>(blocks: impl Iterator<Item = &'a [u8]>) -> Vec<Record> {
    let mut found: Vec<Record> = Vec::new();
    for block in blocks {
        let mut at = 0;
        while let Some(header) = block.get(at..at + HEADER) {
            let kind = u16::from_le_bytes([header[0], header[1]]);
            let len = usize::from(u16::from_le_bytes([header[2], header[3]]));
            let Some(value) =
                block.get(at + HEADER..at + HEADER + len).filter(|_| (1..=HEAD).contains(&kind))
            else {
                return found;
            };
            match kind {
                PAD => {}
                TAIL => found.push(Record::tail()),
                _ => found.push(Record { kind, value: value.to_vec() }),
            }
            at += HEADER + len;
        }
    }
    found
}

/// Writes records into blocks of an area: no record crosses a block, and tails are valid for `tid`.
/// Records that do not fit are left out.
pub fn write<'a>(records: &[Record], tid: u32, blocks: impl Iterator<Item = &'a mut [u8]>) {
    let mut records = records.iter().peekable();
    let mut sum = 0;
    for block in blocks {
        block.fill(0);
        let mut at = 0;
        while let Some(record) = records.next_if(|record| at + room(record) <= block.len()) {
            let mut value = record.value.clone();
            if record.kind == TAIL {
                value = tid.to_le_bytes().to_vec();
                let header = [record.kind.to_le_bytes(), 8u16.to_le_bytes()].concat();
                sum = crc32c_raw(crc32c_raw(sum, &header), &value);
                value.extend(std::mem::take(&mut sum).to_le_bytes());
            }
            let bytes = bytes(record.kind, &value);
            if record.kind != TAIL {
                sum = crc32c_raw(sum, &bytes);
            }
            block[at..at + bytes.len()].copy_from_slice(&bytes);
            at += bytes.len();
        }
        // A record larger than a block would stop all later ones.
        let _too_long = records.next_if(|record| at == 0 && room(record) > block.len());
        if records.peek().is_some() && at + HEADER <= block.len() {
            let pad = bytes(PAD, &vec![0; block.len() - at - HEADER]);
            sum = crc32c_raw(sum, &pad);
            block[at..].copy_from_slice(&pad);
        }
    }
}

fn room(record: &Record) -> usize {
    HEADER + if record.kind == TAIL { 8 } else { record.value.len() }
}

fn bytes(kind: u16, value: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
}

/// Enables fast commits in the journal at these bytes of an image.
pub fn enable(image: &mut [u8], journal: Range<usize>) {
    const INCOMPAT: usize = 0x28;
    const FAST_COMMIT: u8 = 0x20;
    image[journal.start + INCOMPAT + 3] |= FAST_COMMIT;
    let mut sb = JournalSuperblock::parse_unverified(&image[journal.clone()]).expect("a journal");
    let sealed = sb.seal();
    image[journal.start..journal.start + sealed.len()].copy_from_slice(&sealed);
}

#[test]
fn written_records_are_read() {
    let leaf = Leaf { lblk: 3, pblk: 7 << 32 | 9, len: 2, unwritten: false };
    let many = (0..60).map(|n| Record::name(CREATE, 2, 12 + n, "a name"));
    let records: Vec<Record> =
        [Record::head(5), Record::add_range(12, leaf), Record::del_range(12, 3..9)]
            .into_iter()
            .chain(many)
            .chain([Record::tail()])
            .collect();
    let mut area = vec![0; 4096];
    write(&records, 5, area.chunks_mut(512));
    assert_eq!(read(area.chunks(512)), records);
}
