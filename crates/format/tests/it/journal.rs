//! Transactions that debugfs wrote, in every form of tags that it can write.

use crate::fixture::{debugfs, tool};
use crate::image::Image;
use crate::walk::map;
use extant_format::jbd2::{
    self, BlockHeader, BlockType, ChecksumMode, CommitBlock, DescriptorBuilder, JBD2_MAGIC,
    JournalFormat, JournalSuperblock, RevokeBuilder, RevokeRecords, TagFlags, Tags,
};
use extant_format::types::BlockNr;
use std::fs::{self, File};

/// The log of an image: its superblock and the blocks after it.
struct Log {
    sb: JournalSuperblock,
    blocks: Vec<Vec<u8>>,
}

/// Lets debugfs log two blocks, the first of which needs escaping, and revoke one.
fn make(features: &str, open: &str) -> Log {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let path = dir.path().join("image");
    let data = dir.path().join("data");
    File::create(&path).and_then(|file| file.set_len(16 << 20)).expect("an image");
    tool(
        "mke2fs",
        &["-q", "-F", "-t", "ext4", "-b", "1024", "-O", features, &path.to_string_lossy()],
        &[0],
    );
    let mut bytes = vec![3; 2048];
    bytes[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
    fs::write(&data, bytes).expect("data");
    let data = data.display();
    debugfs(&path, &format!("jo {open}\njw -b 5000,5001 {data}\njw -r 5000,6000\njc\n"));
    let image = Image::open(&path);
    let ino = image.sb.journal_inum();
    let mut blocks: Vec<_> = map(&image, ino, &image.inode(ino))
        .blocks
        .values()
        .take(8)
        .map(|nr| image.block(*nr))
        .collect();
    let sb = JournalSuperblock::parse(&blocks.remove(0)).expect("a good journal superblock");
    Log { sb, blocks }
}

fn check(features: &str, open: &str, expected: (ChecksumMode, bool)) {
    let log = make(features, open);
    let format = log.sb.format();
    assert_eq!((format.checksums, format.bit64), expected);
    assert_eq!((log.sb.start(), log.sb.sequence()), (1, 1));
    check_descriptor(&log, &format);
    check_commit(&log.blocks[3], 1, &format);
    check_revoke(&log.blocks[4], &format);
    check_commit(&log.blocks[5], 2, &format);
    assert_eq!(BlockHeader::parse(&log.blocks[6]), None);
}

fn check_descriptor(log: &Log, format: &JournalFormat) {
    let block = &log.blocks[0];
    assert_eq!(
        BlockHeader::parse(block),
        Some(BlockHeader { block_type: BlockType::Descriptor, sequence: 1 })
    );
    assert!(format.verify_tail(block));
    let tags: Vec<_> = Tags::new(block, format).collect();
    assert_eq!(
        tags.iter().map(|tag| tag.block).collect::<Vec<_>>(),
        [BlockNr(5000), BlockNr(5001)]
    );
    assert_eq!(tags[0].flags, TagFlags::ESCAPE);
    assert_eq!(tags[1].flags, TagFlags::SAME_UUID | TagFlags::LAST);
    for (tag, logged) in tags.iter().zip(&log.blocks[1..]) {
        assert!(format.tag_matches(tag, 1, logged));
    }
    let mut first = log.blocks[1].clone();
    jbd2::unescape(&mut first);
    assert!(jbd2::needs_escape(&first));
    let mut again = vec![0; block.len()];
    let mut builder = DescriptorBuilder::new(&mut again, format, 1);
    assert!(tags.iter().all(|tag| builder.push(*tag)));
    builder.finish();
    assert_eq!(Tags::new(&again, format).collect::<Vec<_>>(), tags);
}

fn check_revoke(block: &[u8], format: &JournalFormat) {
    assert_eq!(
        BlockHeader::parse(block),
        Some(BlockHeader { block_type: BlockType::Revoke, sequence: 2 })
    );
    assert!(format.verify_tail(block));
    let revoked: Vec<_> =
        RevokeRecords::parse(block, format).expect("a good revoke block").collect();
    assert_eq!(revoked, [BlockNr(5000), BlockNr(6000)]);
    let mut again = vec![0; block.len()];
    let mut builder = RevokeBuilder::new(&mut again, format, 2);
    assert!(revoked.iter().all(|block| builder.push(*block)));
    builder.finish();
    assert_eq!(again, block);
}

fn check_commit(block: &[u8], sequence: u32, format: &JournalFormat) {
    assert!(CommitBlock::verify(block, format));
    let commit = CommitBlock::parse(block).expect("a commit block");
    assert_eq!(commit.sequence, sequence);
    let mut again = vec![0; block.len()];
    commit.encode(&mut again, format, 0);
    assert_eq!(again, block);
}

#[test]
fn logs_without_checksums() {
    check("^64bit,^metadata_csum", "", (ChecksumMode::None, false));
    check("64bit,^metadata_csum", "", (ChecksumMode::None, true));
}

#[test]
fn logs_with_checksums_of_version_2() {
    check("^64bit,metadata_csum", "-c -v 2", (ChecksumMode::V2, false));
    check("64bit,metadata_csum", "-c -v 2", (ChecksumMode::V2, true));
}

#[test]
fn logs_with_checksums_of_version_3() {
    check("^64bit,metadata_csum", "-c -v 3", (ChecksumMode::V3, false));
    check("64bit,metadata_csum", "-c -v 3", (ChecksumMode::V3, true));
}
