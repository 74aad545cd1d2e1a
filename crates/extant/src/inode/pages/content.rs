//! A block's bytes in memory. A block that was a hole and is written in part needs memory for that part only.

use std::ops::Range;
use std::sync::Arc;

/// The largest block of any file system.
const MOST: usize = 1 << 16;

static ZEROES: [u8; MOST] = [0; MOST];

/// A block's bytes; what is not stored is zero. Copies share what is stored, and a change leaves them as they are.
#[derive(Clone, Debug)]
pub struct Content {
    stored: Arc<[u8]>,
    /// Where the stored bytes begin.
    at: u32,
    /// Bytes of the block.
    size: u32,
}

impl Content {
    /// All bytes of a block, as read.
    pub fn whole(bytes: Arc<[u8]>) -> Content {
        let size = bytes.len() as u32;
        Content { stored: bytes, at: 0, size }
    }

    /// `part` at `from` in a block of `size` bytes, which has to hold it; the rest is zero. Zeroes are stored if the part is
    /// long, or `more` will come.
    pub fn part(from: usize, part: &[u8], size: usize, more: bool) -> Content {
        debug_assert!(from + part.len() <= size && size <= MOST, "a part lies within its block");
        let size32 = size as u32;
        let mut content = match (more || part.len() > size / 2) && part.len() < size {
            true => Content { stored: zeroed(size), at: 0, size: size32 },
            false => return Content { stored: part.into(), at: from as u32, size: size32 },
        };
        content.write(from, part);
        content
    }

    fn stored_range(&self) -> Range<usize> {
        self.at as usize..self.at as usize + self.stored.len()
    }

    /// What is stored and where; the bytes before and behind are zero.
    pub fn stored(&self) -> (usize, &Arc<[u8]>) {
        (self.at as usize, &self.stored)
    }

    /// Zeroes for what lies before the stored bytes, and behind them.
    pub fn around(&self) -> (&'static [u8], &'static [u8]) {
        let zeroes = |len: usize| ZEROES.get(..len).unwrap_or(&ZEROES);
        (zeroes(self.at as usize), zeroes((self.size as usize).saturating_sub(self.stored_range().end)))
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
            && let Some(bytes) = self.stored.get(both.start - stored.start..both.end - stored.start)
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
        self.stored.get(both).is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0))
    }

    /// Overwrites bytes; what would go over the end of the block is left out.
    pub fn write(&mut self, from: usize, part: &[u8]) {
        let stored = self.stored_range();
        let (base, bytes) = match from >= stored.start && from + part.len() <= stored.end {
            true => (stored.start, Arc::make_mut(&mut self.stored)),
            false => (0, self.bytes_mut()),
        };
        let len = bytes.len().saturating_sub(from - base).min(part.len());
        if let (Some(to), Some(part)) = (bytes.get_mut(from - base..from - base + len), part.get(..len)) {
            to.copy_from_slice(part);
        }
    }

    /// All bytes for changing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.stored.len() < self.size() {
            let mut all = zeroed(self.size());
            if let Some(to) = Arc::get_mut(&mut all).and_then(|all| all.get_mut(self.stored_range())) {
                to.copy_from_slice(&self.stored);
            }
            (self.stored, self.at) = (all, 0);
        }
        Arc::make_mut(&mut self.stored)
    }
}

fn zeroed(size: usize) -> Arc<[u8]> {
    std::iter::repeat_n(0, size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(content: &Content) -> Vec<u8> {
        let mut all = vec![9; content.size()];
        assert_eq!(content.copy_to(0, &mut all), content.size());
        let (before, behind) = content.around();
        assert_eq!([before, content.stored().1.as_ref(), behind].concat(), all);
        all
    }

    #[test]
    fn parts_grow_into_blocks() {
        for (from, len, then, more) in [(0, 4, 4, 4), (8, 4, 0, 2), (3, 1, 3, 1), (0, 16, 5, 3), (2, 10, 0, 16)] {
            let mut model = vec![0; 16];
            let mut content = Content::part(from, &vec![1; len], 16, false);
            model[from..from + len].fill(1);
            assert_eq!(bytes(&content), model);
            let before = content.clone();
            content.write(then, &vec![2; more]);
            assert_eq!(bytes(&before), model);
            model[then..then + more].fill(2);
            assert_eq!(bytes(&content), model);
            for start in 0..16 {
                let mut part = [7; 4];
                let copied = content.copy_to(start, &mut part);
                assert_eq!(part[..copied], model[start..(start + 4).min(16)]);
                let range = start..(start + 4).min(16);
                assert_eq!(content.is_zero(range.clone()), model[range].iter().all(|b| *b == 0));
            }
            content.bytes_mut()[15] = 3;
            model[15] = 3;
            assert_eq!(bytes(&content), model);
        }
    }

    #[test]
    fn a_part_takes_little_memory() {
        assert_eq!(Content::part(100, &[1; 10], 4096, false).stored().1.len(), 10);
        assert_eq!(Content::part(100, &[1; 3000], 4096, false).stored().1.len(), 4096);
        assert_eq!(Content::part(100, &[1; 10], 4096, true).stored().1.len(), 4096);
    }
}
