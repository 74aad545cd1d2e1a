//! The content of files in an image: the ranges with data, read by several threads.

use super::dest::next_data;
use crate::ordered;
use extant_engine::{Extent, File as ImageFile, Fs, Node, OpenFlags, Result};
use std::io;

/// Bytes read at a time.
pub const PIECE: u64 = 1 << 20;

/// Bytes of pieces that are read ahead.
const AHEAD: u64 = 16 << 20;

/// A range of bytes: its start, and the first byte behind it.
pub type Range = (u64, u64);

/// A file open for reading, with its map.
pub struct Content {
    file: ImageFile,
    /// Ranges that have data, in order.
    pub parts: Vec<Range>,
    /// Bytes of the file.
    pub len: u64,
}

impl Content {
    /// Opens a file and finds its data.
    ///
    /// # Errors
    /// Those of opening, and a corrupt map: a block that is in two places of the file.
    pub fn open(fs: &Fs, node: &Node) -> Result<Content> {
        let file = fs.open_file(node, OpenFlags { direct: true, ..OpenFlags::default() })?;
        let (len, mut parts, mut at) = (file.len(), Vec::new(), 0);
        while let Some((start, stop)) = next_data(&file, at, len)? {
            parts.push((start, stop));
            at = stop;
        }
        Ok(Content { file, parts, len })
    }

    /// Returns the extents that have bytes on the device, in order.
    ///
    /// # Errors
    /// A corrupt map.
    pub fn extents(&self) -> Result<Vec<Extent>> {
        let mut found = Vec::new();
        self.file.extents(0, self.len, |extent| {
            let flags = extent.flags;
            if !(flags.unwritten || flags.inline || flags.delayed) {
                found.push(*extent);
            }
            true
        })?;
        Ok(found)
    }

    /// Returns the bytes of all data.
    pub fn stored(&self) -> u64 {
        self.parts.iter().map(|(start, stop)| stop - start).sum()
    }

    /// Reads a range, which must be below the length of the file.
    ///
    /// # Errors
    /// Those of reading, as text, and content that ends within the range.
    pub fn read(&self, (start, stop): Range) -> Result<Vec<u8>, String> {
        let mut data = vec![0; usize::try_from(stop - start).map_err(|e| e.to_string())?];
        let mut done = 0;
        while done < data.len() {
            match self.file.read_at(start + done as u64, &mut data[done..]) {
                Ok(0) => return Err("content ends early".into()),
                Ok(len) => done += len,
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(data)
    }

    /// Returns the data within a range: the ranges, widened to whole multiples of `align` within
    /// the file and this range, whose start must be such a multiple.
    pub fn within(&self, (start, stop): Range, align: u64) -> Vec<Range> {
        let first = self.parts.partition_point(|part| part.1 <= start);
        let mut found: Vec<Range> = Vec::new();
        for part in self.parts[first..].iter().take_while(|part| part.0 < stop) {
            let from = part.0.max(start) / align * align;
            let to = part.1.min(stop).next_multiple_of(align).min(stop);
            match found.last_mut() {
                Some(last) if last.1 >= from => last.1 = to,
                _ => found.push((from, to)),
            }
        }
        found
    }

    /// Returns the pieces that have data: each from a multiple of [`PIECE`] to the next, or to the
    /// end of the file.
    pub fn pieces(&self) -> impl Iterator<Item = Range> {
        let mut last = None;
        pieces(&self.parts).map(|(start, _)| start / PIECE).filter_map(move |number| {
            let start = number * PIECE;
            (last.replace(number) != Some(number))
                .then(|| (start, start.saturating_add(PIECE).min(self.len)))
        })
    }

    /// Calls `work` for each of the ranges, by `threads` threads, and `consume` for each result in
    /// order.
    ///
    /// # Errors
    /// Those of `consume`.
    pub fn each<R: Send>(
        &self,
        threads: usize,
        ranges: impl Iterator<Item = Range>,
        work: impl Fn(Range) -> R + Sync,
        consume: impl FnMut(R) -> io::Result<()>,
    ) -> io::Result<()> {
        ordered::run((threads, AHEAD), work, consume, |pusher| {
            let mut ranges = ranges;
            ranges.try_for_each(|(start, stop)| pusher.push((start, stop), stop - start))
        })
    }
}

/// Splits ranges at the multiples of [`PIECE`].
pub fn pieces(parts: &[Range]) -> impl Iterator<Item = Range> {
    parts.iter().flat_map(|&(start, stop)| {
        let mut at = start;
        std::iter::from_fn(move || {
            let end = (at / PIECE + 1).saturating_mul(PIECE).min(stop);
            let piece = (at, end);
            at = end;
            (piece.0 < piece.1).then_some(piece)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_split_at_whole_pieces() {
        let split = |parts: &[Range]| pieces(parts).collect::<Vec<_>>();
        assert_eq!(split(&[(0, 10), (20, 30)]), [(0, 10), (20, 30)]);
        assert_eq!(
            split(&[(5, 2 * PIECE + 1)]),
            [(5, PIECE), (PIECE, 2 * PIECE), (2 * PIECE, 2 * PIECE + 1)]
        );
        assert_eq!(split(&[(u64::MAX - 1, u64::MAX)]), [(u64::MAX - 1, u64::MAX)]);
        assert!(split(&[]).is_empty());
    }
}
