//! The free runs of a bitmap, found a word at a time.

use crate::Run;

const WORD: u32 = u64::BITS;

/// Returns the word of the bits from `index * 64` on. Bits beyond the bitmap are set.
#[inline]
fn word(bitmap: &[u8], index: usize) -> u64 {
    let tail = bitmap.get(index * 8..).unwrap_or(&[]);
    match tail.first_chunk::<8>() {
        Some(bytes) => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        None => tail.iter().rev().fold(u64::MAX, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// Calls `each` with the free runs of a group, from its start to its end: the maximal runs of clear
/// bits among the first `len` bits. Bits beyond `bitmap` count as used.
///
/// The cost is a few instructions for each word and each run.
#[inline]
pub fn free_runs(bitmap: &[u8], len: u32, mut each: impl FnMut(Run)) {
    let words = len.div_ceil(WORD) as usize;
    let mut start = 0;
    // All ones while the bits before the word are free.
    let mut inside = 0u64;
    for index in 0..words {
        let mut free = !word(bitmap, index);
        if index + 1 == words && !len.is_multiple_of(WORD) {
            free &= u64::MAX >> (WORD - len % WORD);
        }
        // The bits at which free and used units meet.
        let mut edges = free ^ (free << 1 | inside & 1);
        while edges != 0 {
            let at = index as u32 * WORD + edges.trailing_zeros();
            if inside == 0 {
                start = at;
            } else {
                each(Run { start, len: at - start });
            }
            inside = !inside;
            edges &= edges - 1;
        }
    }
    if inside != 0 {
        each(Run { start, len: len - start });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plainly(bitmap: &[u8], len: u32) -> Vec<Run> {
        let free = |bit: u32| {
            bitmap.get(bit as usize / 8).is_some_and(|byte| byte & (1 << (bit % 8)) == 0)
        };
        let mut runs: Vec<Run> = Vec::new();
        for bit in (0..len).filter(|bit| free(*bit)) {
            match runs.last_mut() {
                Some(run) if run.end() == bit => run.len += 1,
                _ => runs.push(Run { start: bit, len: 1 }),
            }
        }
        runs
    }

    fn found(bitmap: &[u8], len: u32) -> Vec<Run> {
        let mut runs = Vec::new();
        free_runs(bitmap, len, |run| runs.push(run));
        runs
    }

    proptest! {
        #[test]
        fn runs_equal_those_of_single_bits(
            bytes in prop::collection::vec(
                prop_oneof![Just(0u8), Just(0xFF), any::<u8>()],
                0..64,
            ), len in 0u32..600,
        ) {
            prop_assert_eq!(found(&bytes, len), plainly(&bytes, len));
        }
    }

    #[test]
    fn whole_words_are_one_run() {
        assert_eq!(found(&[0; 4096], 32768), [Run { start: 0, len: 32768 }]);
        assert_eq!(found(&[0; 16], 128), [Run { start: 0, len: 128 }]);
        assert_eq!(found(&[0xFF; 16], 128), []);
        assert_eq!(found(&[0; 4], 100), [Run { start: 0, len: 32 }]);
        assert_eq!(found(&[], 0), []);
    }
}
