//! The used units of a preallocation: a count while they are used from the front, a bitmap
//! afterwards.

use std::ops::Range;

#[derive(Clone, Debug)]
pub(super) enum Used {
    /// This many units from the front.
    Front(u32),
    /// The units whose bit is set.
    Map(Box<[u64]>),
}

/// Returns the bits of `range` within the word `index`.
fn mask(range: &Range<u32>, index: u32) -> u64 {
    let (from, to) =
        (range.start.max(index * 64) - index * 64, range.end.min(index * 64 + 64) - index * 64);
    (u64::MAX << from) & (u64::MAX >> (64 - to))
}

impl Used {
    /// Returns the bytes besides the value itself.
    pub fn bytes(&self) -> usize {
        match self {
            Used::Front(_) => 0,
            Used::Map(words) => size_of_val(&**words),
        }
    }

    /// Returns the first unit at or behind `from` and below `len` that is used (`used`) or unused;
    /// otherwise `len`.
    pub fn next(&self, from: u32, len: u32, used: bool) -> u32 {
        let words = match self {
            Used::Front(front) if used => return if from < *front { from } else { len },
            Used::Front(front) => return from.max(*front).min(len),
            Used::Map(words) => words,
        };
        let mut at = from;
        while at < len {
            let word = words.get(at as usize / 64).copied().unwrap_or_default();
            let word = (if used { word } else { !word }) & (u64::MAX << (at % 64));
            if word != 0 {
                return ((at & !63) + word.trailing_zeros()).min(len);
            }
            at = (at & !63) + 64;
        }
        len
    }

    /// Marks units of a preallocation of `len` units as used. They must be unused.
    pub fn mark(&mut self, range: Range<u32>, len: u32) {
        if range.is_empty() {
            return;
        }
        match self {
            Used::Front(front) if *front == range.start => *front = range.end,
            Used::Front(front) => {
                let front = 0..*front;
                *self = Used::Map(vec![0; len.div_ceil(64) as usize].into());
                self.mark(front, len);
                self.mark(range, len);
            }
            Used::Map(words) => {
                for index in range.start / 64..range.end.div_ceil(64) {
                    if let Some(word) = words.get_mut(index as usize) {
                        *word |= mask(&range, index);
                    }
                }
            }
        }
    }
}
