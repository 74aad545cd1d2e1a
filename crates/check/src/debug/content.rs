//! Content of files.

use super::runs::ClaimedRuns;
use super::{InodeSlot, Inspector};
use crate::claims::ClaimMap;
use crate::maps::Run;
use extant_format::inline::join;
use extant_format::xattr::{NameIndex, Value, decode_inode_area};
use extant_format::{InodeFlags, inode};
use std::io;

/// Blocks that are read at once.
const PIECE_BLOCKS: u64 = 64;

/// A piece of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentPiece<'a> {
    /// Bytes.
    Data(&'a [u8]),
    /// So many zeroes that are not stored.
    Hole(u64),
}

/// Receiver of pieces.
type Sink<'s> = &'s mut dyn FnMut(ContentPiece<'_>) -> io::Result<()>;

impl Inspector {
    /// Hands the content of a file, a symbolic link or a directory to `sink`, in order. Parts that
    /// cannot be read are holes. Returns the problems.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn content(
        &self,
        slot: &InodeSlot,
        sink: &mut dyn FnMut(ContentPiece<'_>) -> io::Result<()>,
    ) -> io::Result<Vec<String>> {
        self.content_within(slot, &self.no_claims(), sink)
    }

    /// As [`Inspector::content`], but for nodes of the map that have a claim. The others are
    /// claimed.
    pub(super) fn content_within(
        &self,
        slot: &InodeSlot,
        nodes: &ClaimMap,
        sink: Sink<'_>,
    ) -> io::Result<Vec<String>> {
        let inode = &slot.inode;
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            let (bytes, problem) = self.inline_content(slot);
            sink(ContentPiece::Data(&bytes))?;
            return Ok(problem.into_iter().collect());
        }
        if let Some(target) = inode.fast_symlink(&self.geometry) {
            sink(ContentPiece::Data(target))?;
            return Ok(Vec::new());
        }
        if !slot.has_map(&self.geometry) {
            return Ok(vec![format!("inode {} has no content", slot.ino)]);
        }
        let map = ClaimedRuns::of(&self.reader(), slot, nodes);
        let mut problems = Vec::new();
        if map.damaged {
            problems.push(format!("the map of inode {} is damaged: parts are missing", slot.ino));
        }
        let mut pieces = Pieces { inspector: self, at: 0, size: inode.size, sink, problems };
        let claims = self.no_claims();
        for run in &map.runs {
            if let Some(block) = claims.claim(run.blocks()) {
                let message = format!("block {block} is twice in the file: the rest is left out");
                pieces.problems.push(message);
                break;
            }
            pieces.run(run)?;
        }
        pieces.finish()
    }

    /// Returns the content of an inline file, and the reason why a part of it is missing.
    pub(super) fn inline_content(&self, slot: &InodeSlot) -> (Vec<u8>, Option<String>) {
        let inode = &slot.inode;
        let area = inode::tail(&slot.bytes, &self.geometry, inode);
        let attributes = decode_inode_area(area);
        let problem = attributes.as_ref().err().map(ToString::to_string);
        let rest = attributes.unwrap_or_default().into_iter().find_map(|entry| {
            let is_data = entry.is(NameIndex::SYSTEM, NameIndex::INLINE_DATA_NAME);
            match entry.value {
                Value::Inline(bytes) if is_data => Some(bytes),
                _ => None,
            }
        });
        (join(&inode.i_block, &rest.unwrap_or_default(), inode.size), problem)
    }
}

struct Pieces<'p, 's> {
    inspector: &'p Inspector,
    /// Bytes that were given.
    at: u64,
    size: u64,
    sink: Sink<'s>,
    problems: Vec<String>,
}

impl Pieces<'_, '_> {
    fn hole_to(&mut self, end: u64) -> io::Result<()> {
        let end = end.min(self.size);
        let len = end.saturating_sub(self.at);
        if len > 0 {
            (self.sink)(ContentPiece::Hole(len))?;
            self.at = end;
        }
        Ok(())
    }

    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = self.size.saturating_sub(self.at).min(bytes.len() as u64);
        if let Some(bytes) = bytes.get(..len as usize).filter(|bytes| !bytes.is_empty()) {
            (self.sink)(ContentPiece::Data(bytes))?;
            self.at = self.at.saturating_add(len);
        }
        Ok(())
    }

    fn run(&mut self, run: &Run) -> io::Result<()> {
        let (reader, bits) = (self.inspector.reader(), self.inspector.geometry.block_bits);
        let start = run.logical.checked_shl(bits).unwrap_or(u64::MAX);
        if start < self.at || run.unwritten {
            return Ok(());
        }
        self.hole_to(start)?;
        let on_device = reader.device_blocks().saturating_sub(run.physical).min(run.len);
        let mut done = 0u64;
        while done < on_device && self.at < self.size {
            let count = on_device.saturating_sub(done).min(PIECE_BLOCKS);
            let mut buffer = vec![0; (count << bits) as usize];
            let first = run.physical.saturating_add(done);
            if !reader.read(first, &mut buffer) {
                for (block, part) in (first..).zip(buffer.chunks_mut(1 << bits)) {
                    if !reader.read(block, part) {
                        part.fill(0);
                        self.problems.push(format!("block {block} cannot be read"));
                    }
                }
            }
            self.data(&buffer)?;
            done = done.saturating_add(count);
        }
        if on_device < run.len {
            let first = run.physical.saturating_add(on_device);
            self.problems.push(format!("blocks from {first} on are behind the end of the device"));
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<Vec<String>> {
        self.hole_to(self.size)?;
        Ok(self.problems)
    }
}
