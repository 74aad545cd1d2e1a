use super::*;
use crate::types::{BlockNr, Timestamp};

const MODES: [ChecksumMode; 4] =
    [ChecksumMode::None, ChecksumMode::V1, ChecksumMode::V2, ChecksumMode::V3];

fn formats() -> impl Iterator<Item = JournalFormat> {
    MODES
        .into_iter()
        .flat_map(|mode| [false, true].map(|bit64| JournalFormat::new(1024, mode, bit64, [7; 16])))
}

#[test]
fn tag_sizes_are_those_of_the_format() {
    let sizes: Vec<_> = formats().map(|format| format.tag_size()).collect();
    assert_eq!(sizes, [8, 12, 8, 12, 10, 14, 16, 16]);
}

#[test]
fn descriptors_round_trip_in_every_format() {
    for format in formats() {
        let mut block = vec![0xAA; 1024];
        let mut builder = DescriptorBuilder::new(&mut block, &format, 77);
        let mut pushed = Vec::new();
        let high = if format.bit64 { 5 << 32 } else { 0 };
        for n in 0.. {
            let checksum = format.tag_checksum(77, &[n as u8; 16]);
            let tag = Tag { block: BlockNr(high + n), flags: TagFlags::ESCAPE, checksum };
            if !builder.push(tag) {
                break;
            }
            pushed.push(tag);
        }
        builder.finish();
        assert_eq!(pushed.len(), format.tags_per_block());
        assert!(format.verify_tail(&block));
        let read: Vec<_> = Tags::new(&block, &format).collect();
        assert_eq!(read.len(), pushed.len());
        for (n, (found, tag)) in read.iter().zip(&pushed).enumerate() {
            assert_eq!((found.block, found.checksum), (tag.block, tag.checksum));
            assert!(format.tag_matches(found, 77, &[n as u8; 16]));
            assert_eq!(found.flags.contains(TagFlags::LAST), n + 1 == pushed.len());
        }
        assert_eq!(BlockHeader::parse(&block).unwrap().sequence, 77);
    }
}

#[test]
fn revokes_round_trip_in_every_format() {
    for format in formats() {
        let mut block = vec![0xAA; 1024];
        let mut builder = RevokeBuilder::new(&mut block, &format, 3);
        let count = (0..).take_while(|n| builder.push(BlockNr(100 + n))).count();
        builder.finish();
        assert_eq!(count, format.revokes_per_block());
        assert!(format.verify_tail(&block));
        let read: Vec<_> =
            RevokeRecords::parse(&block, &format).unwrap().map(|block| block.0).collect();
        assert_eq!(read, (100..100 + count as u64).collect::<Vec<_>>());
        crate::bytes::put_be32(&mut block, 12, 5000);
        assert!(RevokeRecords::parse(&block, &format).is_err());
    }
}

#[test]
fn commits_round_trip_in_every_format() {
    for format in formats() {
        let mut block = vec![0xAA; 1024];
        let commit = CommitBlock { sequence: 9, time: Timestamp::new(1_700_000_000, 5) };
        commit.encode(&mut block, &format, 0x1234);
        assert_eq!(CommitBlock::parse(&block), Some(commit));
        assert!(CommitBlock::verify(&block, &format));
        let v1 = CommitBlock::v1_checksum(&block);
        if format.checksums == ChecksumMode::V1 {
            assert_eq!(v1, CommitChecksum::Crc32(0x1234));
        }
        block[900] ^= 1;
        assert_eq!(CommitBlock::verify(&block, &format), !format.has_crc32c());
    }
}

#[test]
fn escaping_hides_the_magic() {
    let mut block = vec![0u8; 64];
    assert!(!escape(&mut block));
    unescape(&mut block);
    let original = block.clone();
    assert!(escape(&mut block));
    assert!(!needs_escape(&block));
    unescape(&mut block);
    assert_eq!(block, original);
}

#[test]
fn superblock_round_trips_and_is_checked() {
    let mut sb = JournalSuperblock::new(4096, 8192, [3; 16]);
    sb.set_incompat(JournalIncompat::CSUM_V3 | JournalIncompat::BIT64 | JournalIncompat::REVOKE);
    let bytes = sb.seal();
    let read = JournalSuperblock::parse(&bytes).unwrap();
    assert_eq!(read.format(), JournalFormat::new(4096, ChecksumMode::V3, true, [3; 16]));
    assert_eq!(read.encode(), bytes);
    let mut damaged = bytes;
    damaged[0x10] ^= 1;
    assert!(JournalSuperblock::parse(&damaged).is_err());
    sb.set_incompat(JournalIncompat::CSUM_V3 | JournalIncompat::CSUM_V2);
    assert!(JournalSuperblock::parse(&sb.seal()).is_err());
}

#[test]
fn fast_commit_area_lies_at_the_end() {
    let mut sb = JournalSuperblock::new(4096, 8192, [3; 16]);
    assert_eq!((sb.log_end(), sb.fast_commit_area()), (8192, None));
    sb.set_incompat(JournalIncompat::FAST_COMMIT);
    assert_eq!((sb.log_end(), sb.fast_commit_area()), (7936, Some(7937..8192)));
    sb.set_num_fc_blks(8000);
    assert_eq!((sb.log_end(), sb.fast_commit_area()), (8192, None));
}

#[test]
fn transaction_numbers_wrap() {
    assert!(tid_gt(1, u32::MAX));
    assert!(!tid_gt(5, 5));
    assert!(tid_geq(5, 5));
    assert!(!tid_geq(u32::MAX, 1));
}

#[test]
fn fast_commit_records_are_read_up_to_a_valid_tail() {
    let mut block = vec![0u8; 1024];
    let mut at = 0;
    let mut put = |kind: u16, value: &[u8]| {
        block[at..at + 2].copy_from_slice(&kind.to_le_bytes());
        block[at + 2..at + 4].copy_from_slice(&(value.len() as u16).to_le_bytes());
        block[at + 4..at + 4 + value.len()].copy_from_slice(value);
        at += 4 + value.len();
    };
    put(9, &[0, 0, 0, 0, 6, 0, 0, 0]);
    put(4, b"\x02\0\0\0\x0c\0\0\0name");
    put(8, &[6, 0, 0, 0, 0, 0, 0, 0]);
    let checksum = crc32c_raw(0, &block[..at - 4]);
    block[at - 4..at].copy_from_slice(&checksum.to_le_bytes());
    let tags: Vec<_> = FastCommitTags::new(&block, 0).take(3).collect();
    assert_eq!(tags[0], FastCommitTag::Head(0, 6));
    assert_eq!(tags[1], FastCommitTag::Link(2u32.into(), 12u32.into(), b"name"));
    assert!(matches!(tags[2], FastCommitTag::Tail(tail) if tail.valid_for(6)));
    // Not of another transaction, nor with any byte changed.
    let is_valid = |block: &[u8], tid| {
        let mut tails = FastCommitTags::new(block, 0).take(3);
        tails.any(|tag| matches!(tag, FastCommitTag::Tail(tail) if tail.valid_for(tid)))
    };
    assert!(is_valid(&block, 6) && !is_valid(&block, 5) && !is_valid(&block, 7));
    for changed in 0..at {
        let mut other = block.clone();
        other[changed] ^= 0x10;
        assert!(!is_valid(&other, 6), "byte {changed}");
    }
}
