//! Descriptor blocks: tags with the home locations of the log blocks that follow.

use super::{BlockHeader, BlockType, ChecksumMode, HEADER_SIZE, JournalFormat, TAG_UUID_SIZE};
use crate::bytes::{be16, be32, put_be16, put_be32, put_bytes};
use crate::types::BlockNr;
use bitflags::bitflags;

bitflags! {
    /// Flags of a tag.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct TagFlags: u16 {
        /// The logged block began like a journal block; its first four bytes are zeroed.
        const ESCAPE = 0x1;
        /// No UUID follows the tag.
        const SAME_UUID = 0x2;
        /// The block was deleted by this transaction (never used).
        const DELETED = 0x4;
        /// The last tag of the descriptor.
        const LAST = 0x8;
    }
}

/// One block of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// The block's home in the file system.
    pub block: BlockNr,
    /// Flags; a writer need only set [`TagFlags::ESCAPE`].
    pub flags: TagFlags,
    /// Checksum of the logged bytes, from [`JournalFormat::tag_checksum`].
    pub checksum: u32,
}

fn decode_tag(bytes: &[u8], format: &JournalFormat) -> Tag {
    let v3 = format.checksums == ChecksumMode::V3;
    let high = if format.bit64 { be32(bytes, 8) } else { 0 };
    let checksum = match format.checksums {
        ChecksumMode::V3 => be32(bytes, 12),
        ChecksumMode::V2 => u32::from(be16(bytes, 4)),
        ChecksumMode::None | ChecksumMode::V1 => 0,
    };
    let flags = if v3 { be32(bytes, 4) as u16 } else { be16(bytes, 6) };
    Tag {
        block: BlockNr(u64::from(high) << 32 | u64::from(be32(bytes, 0))),
        flags: TagFlags::from_bits_retain(flags),
        checksum,
    }
}

fn encode_tag(bytes: &mut [u8], tag: &Tag, format: &JournalFormat) {
    bytes.fill(0);
    put_be32(bytes, 0, tag.block.0 as u32);
    if format.checksums == ChecksumMode::V3 {
        put_be32(bytes, 4, u32::from(tag.flags.bits()));
        put_be32(bytes, 12, tag.checksum);
    } else {
        put_be16(bytes, 4, tag.checksum as u16);
        put_be16(bytes, 6, tag.flags.bits());
    }
    if format.bit64 {
        put_be32(bytes, 8, (tag.block.0 >> 32) as u32);
    }
}

/// The tags of a descriptor block, in the order of the log blocks that follow it.
///
/// Ends at the tag marked last, or if no further tag fits the block.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    rest: Option<&'a [u8]>,
    format: JournalFormat,
}

impl<'a> Tags<'a> {
    /// Reads the tags of a block that is known to be a descriptor; see [`BlockHeader`] and
    /// [`JournalFormat::verify_tail`].
    pub fn new(block: &'a [u8], format: &JournalFormat) -> Tags<'a> {
        let end = block.len().saturating_sub(format.tail_size());
        Tags { rest: block.get(HEADER_SIZE..end), format: *format }
    }
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let (bytes, rest) = self.rest?.split_at_checked(self.format.tag_size())?;
        let tag = decode_tag(bytes, &self.format);
        self.rest = if tag.flags.contains(TagFlags::LAST) {
            None
        } else if tag.flags.contains(TagFlags::SAME_UUID) {
            Some(rest)
        } else {
            rest.get(TAG_UUID_SIZE..)
        };
        Some(tag)
    }
}

/// Gives the tags of a descriptor block other checksums, and seals the block. `renew` gets the
/// number of a tag, from 0 on, and returns its checksum.
pub fn renew_checksums(
    block: &mut [u8],
    format: &JournalFormat,
    renew: &mut dyn FnMut(usize, &Tag) -> u32,
) {
    let end = block.len().saturating_sub(format.tail_size());
    let mut found = Vec::new();
    let mut tags = Tags::new(block, format);
    loop {
        let left = tags.rest.map_or(0, <[u8]>::len);
        let Some(tag) = tags.next() else { break };
        found.push((end.saturating_sub(left), tag));
    }
    for (n, (start, mut tag)) in found.into_iter().enumerate() {
        tag.checksum = renew(n, &tag);
        let end = start.saturating_add(format.tag_size());
        encode_tag(crate::bytes::part_mut(block, start, end), &tag, format);
    }
    format.seal_tail(block);
}

/// Writes a descriptor block.
#[derive(Debug)]
pub struct DescriptorBuilder<'a> {
    block: &'a mut [u8],
    format: JournalFormat,
    next: usize,
    last: Option<(usize, Tag)>,
}

impl<'a> DescriptorBuilder<'a> {
    /// Starts a descriptor of transaction `sequence` in `block`, which is overwritten.
    pub fn new(
        block: &'a mut [u8],
        format: &JournalFormat,
        sequence: u32,
    ) -> DescriptorBuilder<'a> {
        block.fill(0);
        BlockHeader { block_type: BlockType::Descriptor, sequence }.encode(block);
        DescriptorBuilder { block, format: *format, next: HEADER_SIZE, last: None }
    }

    /// Returns whether no further tag fits.
    pub fn is_full(&self) -> bool {
        self.end_after_next() > self.block.len().saturating_sub(self.format.tail_size())
    }

    /// Returns whether it has no tag yet.
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    fn end_after_next(&self) -> usize {
        let uuid = if self.last.is_none() { TAG_UUID_SIZE } else { 0 };
        self.next.saturating_add(self.format.tag_size()).saturating_add(uuid)
    }

    /// Adds a tag and sets its flags for UUIDs and the end; returns `false` if the tag does not
    /// fit.
    #[must_use]
    pub fn push(&mut self, tag: Tag) -> bool {
        if self.is_full() {
            return false;
        }
        let size = self.format.tag_size();
        let start = self.next;
        self.next = self.end_after_next();
        let mut tag = tag;
        tag.flags.remove(TagFlags::LAST);
        tag.flags.set(TagFlags::SAME_UUID, self.last.is_some());
        if self.last.is_none() {
            let uuid = self.format.uuid;
            put_bytes(self.block, start.saturating_add(size), &uuid);
        }
        self.write(start, &tag);
        self.last = Some((start, tag));
        true
    }

    fn write(&mut self, start: usize, tag: &Tag) {
        let end = start.saturating_add(self.format.tag_size());
        encode_tag(crate::bytes::part_mut(self.block, start, end), tag, &self.format);
    }

    /// Marks the last tag and writes the block's checksum.
    pub fn finish(mut self) {
        if let Some((start, mut tag)) = self.last {
            tag.flags.insert(TagFlags::LAST);
            self.write(start, &tag);
        }
        self.format.seal_tail(self.block);
    }
}
