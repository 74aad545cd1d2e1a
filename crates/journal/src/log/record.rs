//! A transaction as blocks of the log.

use extant_blocks::Piece;
use extant_format::jbd2::{self, CommitBlock, DescriptorBuilder, JournalFormat, RevokeBuilder, Tag, TagFlags};
use extant_format::types::{BlockNr, Timestamp};
use extant_sync::Arc;

/// The blocks of the log that a transaction becomes, in their order.
pub(crate) struct Record {
    /// Revoke blocks, descriptors and copies.
    pub body: Vec<Piece<'static>>,
    /// The commit record.
    pub commit: Vec<u8>,
    /// How many copies had to be escaped.
    pub escapes: u64,
}

/// How many blocks of the log a transaction needs.
pub(crate) fn blocks_needed(format: &JournalFormat, copies: usize, revokes: usize) -> u32 {
    let descriptors = copies.div_ceil(format.tags_per_block().max(1));
    let revoke_blocks = revokes.div_ceil(format.revokes_per_block().max(1));
    u32::try_from(copies + descriptors + revoke_blocks + 1).unwrap_or(u32::MAX)
}

impl Record {
    /// Builds the blocks of transaction `sequence`: `copies` are block numbers with their bytes.
    pub fn build(
        format: &JournalFormat,
        sequence: u32,
        copies: &[(u64, Arc<[u8]>)],
        revoked: &[u64],
        time: Timestamp,
    ) -> Record {
        let mut record = Record { body: Vec::new(), commit: new_block(format), escapes: 0 };
        for revoked in revoked.chunks(format.revokes_per_block().max(1)) {
            record.add_revokes(format, sequence, revoked);
        }
        for copies in copies.chunks(format.tags_per_block().max(1)) {
            record.add_copies(format, sequence, copies);
        }
        CommitBlock { sequence, time }.encode(&mut record.commit, format, 0);
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

    /// A descriptor and the copies it describes.
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

    /// The copy as it goes into the log.
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

fn new_block(format: &JournalFormat) -> Vec<u8> {
    vec![0; format.block_size as usize]
}
