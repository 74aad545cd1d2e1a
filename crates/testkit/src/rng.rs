//! A small seeded generator, so that a failing test can be run again.

use extant_sync::SplitMix64;
use std::collections::VecDeque;

/// SplitMix64: one word of state, equal sequences for equal seeds. What it gives may be laid down
/// by bytes that are taken first, so that whoever makes the bytes decides each choice.
#[derive(Debug, Clone)]
pub struct Rng {
    numbers: SplitMix64,
    taken_first: VecDeque<u8>,
}

impl Rng {
    /// A generator; equal seeds give equal sequences.
    pub fn new(seed: u64) -> Self {
        Self { numbers: SplitMix64::new(seed), taken_first: VecDeque::new() }
    }

    /// A generator whose first numbers are made of `bytes`: as few for each as its bound asks for.
    /// Then it goes on as that of seed 1.
    pub fn laid_down(bytes: &[u8]) -> Self {
        Self { taken_first: bytes.iter().copied().collect(), ..Self::new(1) }
    }

    /// Bytes that are still to be taken.
    pub fn left(&self) -> usize {
        self.taken_first.len()
    }

    fn take(&mut self, count: usize) -> Option<u64> {
        let bytes = self.taken_first.drain(..count.min(self.taken_first.len()));
        bytes.rev().map(u64::from).reduce(|high, low| high << 8 | low)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        if let Some(number) = self.take(8) {
            return number;
        }
        self.numbers.next_u64()
    }

    /// A number in `0..bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let bytes = (u64::BITS - bound.saturating_sub(1).leading_zeros()).div_ceil(8) as usize;
        match bound {
            0 => 0,
            // Bytes are left for choices that there are.
            1 if self.left() > 0 => 0,
            _ => self.take(bytes).unwrap_or_else(|| self.next_u64()) % bound,
        }
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `items`.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        assert!(!items.is_empty(), "nothing to pick from");
        &items[self.below(items.len() as u64) as usize]
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lay_choices_down() {
        let mut rng = Rng::laid_down(&[7, 1, 2, 200, 5]);
        assert_eq!(
            [rng.below(10), rng.below(60_000), rng.below(256), rng.below(1), rng.below(70_000)],
            [7, 513, 200, 0, 5]
        );
        assert_eq!((rng.left(), rng.next_u64()), (0, Rng::new(1).next_u64()));
    }
}
