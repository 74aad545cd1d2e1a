//! The encoding of a transaction as blocks of the log.

use extant_blocks::Piece;
use extant_format::jbd2::{
    self, ChecksumMode, CommitBlock, DescriptorBuilder, JournalFormat, RevokeBuilder, Tag, TagFlags,
};
use extant_format::types::{BlockNr, Timestamp};
use extant_sync::Arc;

/// The blocks of the log for a transaction, in order.
pub(crate) struct Record {
    /// Revoke blocks, descriptors and copies.
    pub body: Vec<Piece<'static>>,
    /// The block written to the commit record's position before the record, if a part of the record
    /// would be taken for damage. With checksums, which cover the whole block, the record differs
    /// from zeroes only in its first sector, so over a block of zeroes a torn record is complete or
    /// absent.
    pub blank: Option<Vec<u8>>,
    /// The commit record.
    pub commit: Vec<u8>,
    /// Number of escaped copies.
    pub escapes: u64,
}

/// Returns the number of log blocks that a transaction needs.
pub(crate) fn blocks_needed(format: &JournalFormat, copies: usize, revokes: usize) -> u32 {
    let descriptors = copies.div_ceil(format.tags_per_block().max(1));
    let revoke_blocks = revokes.div_ceil(format.revokes_per_block().max(1));
    u32::try_from(copies + descriptors + revoke_blocks + 1).unwrap_or(u32::MAX)
}

impl Record {
    /// Builds the blocks of transaction `sequence`. `copies` are block numbers with their bytes.
    pub fn build(
        format: &JournalFormat,
        sequence: u32,
        copies: &[(u64, Arc<[u8]>)],
        revoked: &[u64],
        time: Timestamp,
    ) -> Record {
        let mut record =
            Record { body: Vec::new(), blank: None, commit: new_block(format), escapes: 0 };
        for revoked in revoked.chunks(format.revokes_per_block().max(1)) {
            record.add_revokes(format, sequence, revoked);
        }
        for copies in copies.chunks(format.tags_per_block().max(1)) {
            record.add_copies(format, sequence, copies);
        }
        CommitBlock { sequence, time }.encode(&mut record.commit, &of_commit(format), 0);
        record.blank = (format.checksums != ChecksumMode::None).then(|| new_block(format));
        record
    }

    fn add_revokes(&mut self, format: &JournalFormat, sequence: u32, revoked: &[u64]) {
        let mut block = new_block(format);
        let mut builder = RevokeBuilder::new(&mut block, format, sequence);
        for &nr in revoked {
            let fits = builder.push(BlockNr(nr));
            debug_assert!(fits, "chunks are as long as a revoke block has room");
        }
        builder.finish();
        self.body.push(block.into());
    }

    /// Adds a descriptor and the copies that it describes.
    fn add_copies(&mut self, format: &JournalFormat, sequence: u32, copies: &[(u64, Arc<[u8]>)]) {
        let mut descriptor = new_block(format);
        let mut builder = DescriptorBuilder::new(&mut descriptor, format, sequence);
        let mut pieces = Vec::with_capacity(copies.len());
        for (nr, bytes) in copies {
            let (piece, flags) = self.logged(bytes);
            let checksum = format.tag_checksum(sequence, &piece);
            let fits = builder.push(Tag { block: BlockNr(*nr), flags, checksum });
            debug_assert!(fits, "chunks are as long as a descriptor has room");
            pieces.push(piece);
        }
        builder.finish();
        self.body.push(descriptor.into());
        self.body.append(&mut pieces);
    }

    /// Returns the copy in the form for the log, escaped if necessary.
    fn logged(&mut self, bytes: &Arc<[u8]>) -> (Piece<'static>, TagFlags) {
        if !jbd2::needs_escape(bytes) {
            return (Arc::clone(bytes).into(), TagFlags::empty());
        }
        let mut copy = bytes.to_vec();
        jbd2::escape(&mut copy);
        self.escapes += 1;
        (copy.into(), TagFlags::ESCAPE)
    }
}

/// Returns the format of commit records. Checksums of version 1 would be over whole transactions;
/// every reader accepts a commit record that declares none.
fn of_commit(format: &JournalFormat) -> JournalFormat {
    let mut of_commit = *format;
    if of_commit.checksums == ChecksumMode::V1 {
        of_commit.checksums = ChecksumMode::None;
    }
    of_commit
}

fn new_block(format: &JournalFormat) -> Vec<u8> {
    vec![0; format.block_size as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::jbd2::{BlockHeader, BlockType, CommitChecksum, RevokeRecords, Tags};

    const MODES: [ChecksumMode; 4] =
        [ChecksumMode::None, ChecksumMode::V1, ChecksumMode::V2, ChecksumMode::V3];

    fn block(byte: u8) -> Arc<[u8]> {
        Arc::from(vec![byte; 1024])
    }

    #[test]
    fn a_record_has_the_computed_length_and_all_blocks() {
        for (checksums, bit64) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
            let format = JournalFormat::new(1024, checksums, bit64, [3; 16]);
            for (copies, revokes) in [(0, 1), (1, 0), (60, 300), (125, 126), (500, 1)] {
                let copied: Vec<_> = (0..copies).map(|nr| (nr * 3, block(nr as u8))).collect();
                let revoked: Vec<u64> = (0..revokes).map(|nr| nr * 5).collect();
                let record = Record::build(&format, 9, &copied, &revoked, Timestamp::default());
                let needed = blocks_needed(&format, copied.len(), revoked.len());
                assert_eq!(record.body.len() as u32 + 1, needed, "{format:?}");
                assert!(CommitBlock::verify(&record.commit, &format), "{format:?}");
                let old = CommitBlock::v1_checksum(&record.commit) == CommitChecksum::Absent;
                assert!(old || checksums != ChecksumMode::V1, "{format:?}");
                assert_eq!(
                    read_back(&format, &record),
                    (copied.iter().map(|(nr, _)| *nr).collect(), revoked)
                );
            }
        }
    }

    /// Returns the numbers of the copies and of the revoked blocks.
    fn read_back(format: &JournalFormat, record: &Record) -> (Vec<u64>, Vec<u64>) {
        let (mut copied, mut revoked, mut data) = (Vec::new(), Vec::new(), 0);
        for piece in &record.body {
            if data > 0 {
                data -= 1;
                continue;
            }
            assert!(format.verify_tail(piece));
            match BlockHeader::parse(piece).unwrap().block_type {
                BlockType::Descriptor => {
                    let before = copied.len();
                    copied.extend(Tags::new(piece, format).map(|tag| tag.block.0));
                    data = copied.len() - before;
                }
                BlockType::Revoke => {
                    revoked.extend(RevokeRecords::parse(piece, format).unwrap().map(|nr| nr.0))
                }
                other => panic!("{other:?}"),
            }
        }
        (copied, revoked)
    }

    /// Sectors of 512 bytes are written atomically.
    #[test]
    fn a_torn_commit_record_over_zeroes_is_complete_or_absent() {
        for checksums in MODES {
            let format = JournalFormat::new(4096, checksums, true, [3; 16]);
            let record = Record::build(
                &format,
                9,
                &[(7, block(1))],
                &[],
                Timestamp { sec: 1 << 33, nsec: 999_999_999 },
            );
            assert_eq!(record.blank.is_some(), checksums != ChecksumMode::None);
            assert!(record.commit[..512].iter().any(|byte| *byte != 0));
            assert!(
                record.commit[512..]
                    .iter()
                    .chain(record.blank.iter().flatten())
                    .all(|byte| *byte == 0)
            );
        }
    }

    #[test]
    fn blocks_with_the_journal_magic_are_escaped() {
        let format = JournalFormat::new(1024, ChecksumMode::V3, true, [3; 16]);
        let mut bytes = vec![1; 1024];
        bytes[..4].copy_from_slice(&jbd2::JBD2_MAGIC.to_be_bytes());
        let copies = [(7, Arc::from(bytes.clone()))];
        let record = Record::build(&format, 9, &copies, &[], Timestamp::default());
        let tag = Tags::new(&record.body[0], &format).next().unwrap();
        assert_eq!((record.escapes, tag.flags.contains(TagFlags::ESCAPE)), (1, true));
        assert!(
            format.tag_matches(&tag, 9, &record.body[1]) && !jbd2::needs_escape(&record.body[1])
        );
        assert_eq!(copies[0].1[..], bytes, "the block itself is as it was");
    }
}
