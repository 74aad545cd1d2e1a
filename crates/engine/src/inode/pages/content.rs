//! A block's bytes in memory. A block that was a hole and is written in part needs memory for that
//! part only.

use extant_sync::{Frame, SlabPages};
use std::ops::Range;
use std::sync::Arc;

/// Size of the largest block of any file system, in bytes.
const MAX_BLOCK_SIZE: usize = 1 << 16;

static ZEROES: [u8; MAX_BLOCK_SIZE] = [0; MAX_BLOCK_SIZE];

/// A block's bytes; bytes that are not stored are zero. The result of [`share`](Self::share) is not
/// affected by later changes.
#[derive(Debug)]
pub struct Content {
    stored: Stored,
    /// Where the stored bytes begin.
    at: u32,
    /// Bytes of the block.
    size: u32,
}

#[derive(Debug)]
enum Stored {
    /// A part of a block, or a block as read.
    Bytes(Arc<[u8]>),
    /// A whole block that is not shared.
    Own(Frame),
    /// A whole block that may be shared.
    Shared(Arc<Frame>),
}

impl Stored {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Stored::Bytes(bytes) => bytes,
            Stored::Own(frame) => frame,
            Stored::Shared(frame) => frame,
        }
    }

    /// Returns the bytes for a change, or `None` if they are shared.
    #[inline]
    fn alone(&mut self) -> Option<&mut [u8]> {
        match self {
            Stored::Bytes(bytes) => Arc::get_mut(bytes),
            Stored::Own(frame) => Some(frame),
            Stored::Shared(frame) => Arc::get_mut(frame).map(|frame| &mut **frame),
        }
    }
}

impl Content {
    /// All bytes of a block, as read.
    pub fn whole(bytes: Arc<[u8]>) -> Content {
        let size = bytes.len() as u32;
        Content { stored: Stored::Bytes(bytes), at: 0, size }
    }

    /// `part` at `from` in a block of `size` bytes, which has to hold it; the rest is zero. Zeroes
    /// are stored if the part is long, or `more` will come.
    pub fn part(frames: &SlabPages, from: usize, part: &[u8], size: usize, more: bool) -> Content {
        debug_assert!(
            from + part.len() <= size && size <= MAX_BLOCK_SIZE,
            "a part lies within its block"
        );
        if more || part.len() > size / 2 {
            Content { stored: Stored::Own(frames.frame(from, part)), at: 0, size: size as u32 }
        } else {
            Content { stored: Stored::Bytes(part.into()), at: from as u32, size: size as u32 }
        }
    }

    /// Returns the same bytes for a reader.
    pub fn share(&mut self) -> Content {
        let stored = match std::mem::replace(&mut self.stored, Stored::Bytes(Arc::default())) {
            Stored::Own(frame) => Stored::Shared(Arc::new(frame)),
            other => other,
        };
        let shared = match &stored {
            Stored::Bytes(bytes) => Stored::Bytes(bytes.clone()),
            Stored::Shared(frame) => Stored::Shared(frame.clone()),
            Stored::Own(_) => Stored::Bytes(Arc::default()),
        };
        self.stored = stored;
        Content { stored: shared, ..*self }
    }

    /// Reads the count that a drop will change. Drops wait for the memory of their counts one after
    /// the other; reading several counts before waits for all of them at once.
    #[inline]
    pub fn look(&self) -> usize {
        match &self.stored {
            Stored::Bytes(bytes) => Arc::strong_count(bytes),
            Stored::Own(_) => 0,
            Stored::Shared(frame) => Arc::strong_count(frame),
        }
    }

    fn stored_range(&self) -> Range<usize> {
        self.at as usize..self.at as usize + self.stored.bytes().len()
    }

    /// Returns the stored bytes and their offset; the bytes before and behind are zero.
    pub fn stored(&self) -> (usize, &[u8]) {
        (self.at as usize, self.stored.bytes())
    }

    /// Returns zeroes for the bytes before the stored ones, and for those behind.
    pub fn around(&self) -> (&'static [u8], &'static [u8]) {
        let zeroes = |len: usize| ZEROES.get(..len).unwrap_or(&ZEROES);
        (
            zeroes(self.at as usize),
            zeroes((self.size as usize).saturating_sub(self.stored_range().end)),
        )
    }

    /// Bytes of the block.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Copies the bytes from `from` on, as many as both have.
    pub fn copy_to(&self, from: usize, buf: &mut [u8]) -> usize {
        let len = self.size().saturating_sub(from).min(buf.len());
        let Some(buf) = buf.get_mut(..len) else { return 0 };
        let stored = self.stored_range();
        let both = stored.start.max(from)..stored.end.min(from + len);
        if both.len() < len {
            buf.fill(0);
        }
        if !both.is_empty()
            && let Some(to) = buf.get_mut(both.start - from..both.end - from)
            && let Some(bytes) =
                self.stored.bytes().get(both.start - stored.start..both.end - stored.start)
        {
            to.copy_from_slice(bytes);
        }
        len
    }

    /// Whether the bytes of `range` are zero.
    pub fn is_zero(&self, range: Range<usize>) -> bool {
        let stored = self.stored_range();
        let (start, end) = (range.start.max(stored.start), range.end.min(stored.end));
        let both = start.saturating_sub(stored.start)..end.saturating_sub(stored.start);
        self.stored.bytes().get(both).is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0))
    }

    /// Overwrites bytes. Bytes beyond the end of the block are ignored.
    pub fn write(&mut self, frames: &SlabPages, from: usize, part: &[u8]) {
        let len = self.size().saturating_sub(from).min(part.len());
        let Some(part) = part.get(..len) else { return };
        let stored = self.stored_range();
        let inside = from >= stored.start && from + len <= stored.end;
        if !inside || self.stored.alone().is_none() {
            let frame = frames.frame(stored.start, self.stored.bytes());
            (self.stored, self.at) = (Stored::Own(frame), 0);
        }
        let at = from - self.at as usize;
        if let Some(to) = self.stored.alone().and_then(|bytes| bytes.get_mut(at..at + len)) {
            to.copy_from_slice(part);
        }
    }

    /// Zeroes bytes.
    pub fn clear(&mut self, frames: &SlabPages, range: Range<usize>) {
        let stored = self.stored_range();
        let both = range.start.max(stored.start)..range.end.min(stored.end);
        if let Some(zeroes) = ZEROES.get(..both.len()).filter(|zeroes| !zeroes.is_empty()) {
            self.write(frames, both.start, zeroes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(content: &Content) -> Vec<u8> {
        let mut all = vec![9; content.size()];
        assert_eq!(content.copy_to(0, &mut all), content.size());
        let (before, behind) = content.around();
        assert_eq!([before, content.stored().1, behind].concat(), all);
        all
    }

    #[test]
    fn parts_grow_into_blocks() {
        const BLOCK: usize = 1024;
        let frames = SlabPages::new(BLOCK);
        for (from, len, then, more) in
            [(0, 4, 4, 4), (8, 4, 0, 2), (3, 1, 3, 1), (0, BLOCK, 5, 3), (2, 10, 0, BLOCK)]
        {
            let mut model = vec![0; BLOCK];
            let mut content = Content::part(&frames, from, &vec![1; len], BLOCK, false);
            model[from..from + len].fill(1);
            assert_eq!(bytes(&content), model);
            let before = content.share();
            content.write(&frames, then, &vec![2; more]);
            assert_eq!(bytes(&before), model);
            model[then..then + more].fill(2);
            assert_eq!(bytes(&content), model);
            for start in 0..16 {
                let mut part = [7; 4];
                let copied = content.copy_to(start, &mut part);
                assert_eq!(part[..copied], model[start..start + 4]);
                let range = start..start + 4;
                assert_eq!(content.is_zero(range.clone()), model[range].iter().all(|b| *b == 0));
            }
            content.write(&frames, BLOCK - 1, &[3, 4]);
            model[BLOCK - 1] = 3;
            assert_eq!(bytes(&content), model);
            let before = content.share();
            content.clear(&frames, 1..7);
            assert_eq!(bytes(&before), model);
            model[1..7].fill(0);
            assert_eq!(bytes(&content), model);
        }
    }

    #[test]
    fn a_part_takes_little_memory() {
        let frames = SlabPages::new(4096);
        let stored =
            |len, more| Content::part(&frames, 100, &vec![1; len], 4096, more).stored().1.len();
        assert_eq!((stored(10, false), stored(3000, false), stored(10, true)), (10, 4096, 4096));
        let mut content = Content::part(&frames, 100, &[1; 10], 4096, false);
        content.clear(&frames, 0..105);
        assert_eq!(
            (content.stored().1.len(), content.is_zero(0..105), content.is_zero(104..106)),
            (10, true, false)
        );
    }
}
