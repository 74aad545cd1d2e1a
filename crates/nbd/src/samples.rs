//! Some durable content of an export, by which a new connection tells that it is the same one.
//!
//! For example, a read returns block 2, and a write of block 5 is flushed. Both blocks are kept
//! until they are written again. A server that comes back must have the same content there, before
//! writes are repeated. Another disk of the same size does not have it.

use std::collections::VecDeque;
use std::ops::Range;

/// Samples at most, and those of reads among them.
const MAX_SAMPLES: usize = 8;
const MAX_OF_READS: usize = 4;

/// Bytes of one sample, unless blocks are larger.
const BYTES: usize = 4096;

/// Content of a range that no write under way or without a flush overlaps.
#[derive(Clone, Debug)]
pub struct Sample {
    pub offset: u64,
    pub bytes: Vec<u8>,
    of_read: bool,
}

impl Sample {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

/// The samples, the oldest first.
#[derive(Debug, Default)]
pub struct Samples(VecDeque<Sample>);

impl Samples {
    /// Adds the beginning of content of whole blocks.
    pub fn add(&mut self, offset: u64, data: &[u8], min_block: u32, of_read: bool) {
        let Some(bytes) = beginning(data, min_block) else { return };
        let sample = Sample { offset, bytes: bytes.to_vec(), of_read };
        self.forget(&sample.range());
        self.0.push_back(sample);
        if self.0.len() > MAX_SAMPLES {
            self.0.pop_front();
        }
    }

    /// Returns whether a read may add one.
    pub fn lack_reads(&self) -> bool {
        self.0.iter().filter(|sample| sample.of_read).count() < MAX_OF_READS
            && self.0.len() < MAX_SAMPLES
    }

    /// Forgets those that a write changes.
    pub fn forget(&mut self, range: &Range<u64>) {
        self.0.retain(|sample| {
            let of_sample = sample.range();
            of_sample.end <= range.start || range.end <= of_sample.start
        });
    }

    /// Returns all of them.
    pub fn all(&self) -> Vec<Sample> {
        self.0.iter().cloned().collect()
    }
}

/// Returns the part of content that a sample keeps; `None` if it tells nothing, as zeroes do.
pub fn beginning(data: &[u8], min_block: u32) -> Option<&[u8]> {
    let bytes = data.get(..data.len().min(BYTES.max(min_block as usize)))?;
    bytes.iter().any(|byte| *byte != 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(samples: &Samples) -> Vec<u64> {
        samples.all().iter().map(|sample| sample.offset).collect()
    }

    #[test]
    fn samples_are_few_and_end_with_a_write() {
        let mut samples = Samples::default();
        samples.add(0, &[0; 512], 512, true);
        assert!(samples.all().is_empty(), "zeroes tell nothing");
        for block in 0..4 {
            assert!(samples.lack_reads());
            samples.add(block << 20, &[7; 9000], 1, true);
        }
        assert!(!samples.lack_reads());
        assert_eq!(samples.all()[0].bytes.len(), BYTES);
        samples.forget(&(BYTES as u64..1 << 20));
        assert_eq!(offsets(&samples), [0, 1 << 20, 2 << 20, 3 << 20]);
        samples.forget(&((1 << 20) + 4095..(2 << 20) + 1));
        assert_eq!(offsets(&samples), [0, 3 << 20]);
        assert!(samples.lack_reads());
        // The newest content of a place counts.
        samples.add(100, &[8; 512], 1, false);
        assert_eq!(offsets(&samples), [3 << 20, 100]);
        (0..20).for_each(|block| samples.add((9 + block) << 20, &[1; 512], 1, false));
        assert_eq!(offsets(&samples).len(), MAX_SAMPLES);
    }
}
