//! Bits of allocation bitmaps, a 64-bit word at a time.
//!
//! # Invariants
//! Bit n is bit n % 8 of byte n / 8. Every function is total. Bits past the end of the bytes are
//! neither zero nor one: searches stop at the end, counts exclude these bits, and changes do not
//! affect them.

use crate::bytes::{part, part_mut};
use std::ops::Range;

const WORD_BITS: usize = 64;

fn bits_in(bits: &[u8]) -> usize {
    bits.len().saturating_mul(8)
}

fn clip(bits: &[u8], range: Range<usize>) -> Range<usize> {
    let end = range.end.min(bits_in(bits));
    range.start.min(end)..end
}

/// Returns the 64-bit word whose first bit is `index * 64`; bits past the end are zero.
#[inline]
pub fn word(bits: &[u8], index: usize) -> u64 {
    let tail = bits.get(index.saturating_mul(8)..).unwrap_or(&[]);
    match tail.first_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => u64::from_le_bytes(crate::bytes::array(tail, 0)),
    }
}

/// Copies the bits of `value` that are set in `mask` to the word whose first bit is `index * 64`.
pub fn put_word(bits: &mut [u8], index: usize, value: u64, mask: u64) {
    let new = (word(bits, index) & !mask) | (value & mask);
    let end = bits.len();
    let bytes = part_mut(bits, index.saturating_mul(8), end);
    for (byte, new) in bytes.iter_mut().zip(new.to_le_bytes()) {
        *byte = new;
    }
}

/// Returns whether bit `n` is set; `false` past the end.
#[inline]
pub fn test(bits: &[u8], n: usize) -> bool {
    bits.get(n / 8).is_some_and(|byte| byte & (1 << (n % 8)) != 0)
}

/// Sets bit `n` and returns whether it was set before.
#[inline]
pub fn set(bits: &mut [u8], n: usize) -> bool {
    let was = test(bits, n);
    if let Some(byte) = bits.get_mut(n / 8) {
        *byte |= 1 << (n % 8);
    }
    was
}

/// Clears bit `n` and returns whether it was set before.
#[inline]
pub fn clear(bits: &mut [u8], n: usize) -> bool {
    let was = test(bits, n);
    if let Some(byte) = bits.get_mut(n / 8) {
        *byte &= !(1 << (n % 8));
    }
    was
}

fn find(bits: &[u8], range: Range<usize>, flip: u64) -> Option<usize> {
    let range = clip(bits, range);
    if range.is_empty() {
        return None;
    }
    let mut index = range.start / WORD_BITS;
    let mut value = (word(bits, index) ^ flip) & (u64::MAX << (range.start % WORD_BITS));
    if value == 0 {
        index = index.saturating_add(1);
        // Skip whole words without a match. The last word may be shorter, at the end of the bytes.
        let words = bits.get(index.saturating_mul(8)..).unwrap_or(&[]).as_chunks::<8>().0;
        let skipped = words.iter().take_while(|bytes| u64::from_le_bytes(**bytes) == flip).count();
        index = index.saturating_add(skipped);
        value = word(bits, index) ^ flip;
    }
    let found = index.saturating_mul(WORD_BITS).saturating_add(value.trailing_zeros() as usize);
    (found < range.end).then_some(found)
}

/// Returns the first clear bit at or after `from` and before `end`.
pub fn find_next_zero(bits: &[u8], from: usize, end: usize) -> Option<usize> {
    find(bits, from..end, u64::MAX)
}

/// Returns the first set bit at or after `from` and before `end`.
pub fn find_next_one(bits: &[u8], from: usize, end: usize) -> Option<usize> {
    find(bits, from..end, 0)
}

/// Returns the first run of clear bits at or after `from` and before `end`.
pub fn next_zero_run(bits: &[u8], from: usize, end: usize) -> Option<Range<usize>> {
    let start = find_next_zero(bits, from, end)?;
    let stop = find_next_one(bits, start, end).unwrap_or_else(|| end.min(bits_in(bits)));
    Some(start..stop)
}

/// Returns the number of set bits in the range.
pub fn count_ones(bits: &[u8], range: Range<usize>) -> usize {
    let range = clip(bits, range);
    if range.is_empty() {
        return 0;
    }
    let end = range.end.saturating_sub(1);
    let (first, last) = (range.start / WORD_BITS, end / WORD_BITS);
    let head = u64::MAX << (range.start % WORD_BITS);
    let tail = u64::MAX >> ((WORD_BITS - 1).saturating_sub(end % WORD_BITS));
    if first == last {
        return (word(bits, first) & head & tail).count_ones() as usize;
    }
    let inner = part(bits, first.saturating_add(1).saturating_mul(8), last.saturating_mul(8))
        .as_chunks::<8>()
        .0;
    let inner: u32 = inner.iter().map(|bytes| u64::from_le_bytes(*bytes).count_ones()).sum();
    let ends = [word(bits, first) & head, word(bits, last) & tail].map(u64::count_ones);
    ends.into_iter().fold(inner, u32::saturating_add) as usize
}

/// Returns the number of clear bits in the range.
pub fn count_zeros(bits: &[u8], range: Range<usize>) -> usize {
    let clipped = clip(bits, range);
    clipped.len().saturating_sub(count_ones(bits, clipped))
}

/// Returns whether every bit of the range exists and is set.
pub fn all_ones(bits: &[u8], range: Range<usize>) -> bool {
    range.end <= bits_in(bits) && find_next_zero(bits, range.start, range.end).is_none()
}

/// Returns whether every bit of the range exists and is clear.
pub fn all_zeros(bits: &[u8], range: Range<usize>) -> bool {
    range.end <= bits_in(bits) && find_next_one(bits, range.start, range.end).is_none()
}

fn change(bits: &mut [u8], range: Range<usize>, value: u8) {
    let range = clip(bits, range);
    if range.is_empty() {
        return;
    }
    let end = range.end.saturating_sub(1);
    let (first, last) = (range.start / 8, end / 8);
    let head = 0xFFu8 << (range.start % 8);
    let tail = 0xFFu8 >> 7usize.saturating_sub(end % 8);
    let mix = |byte: &mut u8, mask: u8| *byte = (*byte & !mask) | (value & mask);
    match bits.get_mut(first..=last) {
        Some([only]) => mix(only, head & tail),
        Some([start, inner @ .., end]) => {
            mix(start, head);
            inner.fill(value);
            mix(end, tail);
        }
        _ => {}
    }
}

/// Sets every bit of the range.
pub fn set_range(bits: &mut [u8], range: Range<usize>) {
    change(bits, range, 0xFF);
}

/// Clears every bit of the range.
pub fn clear_range(bits: &mut [u8], range: Range<usize>) {
    change(bits, range, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slow_count(bits: &[u8], range: Range<usize>) -> usize {
        range.filter(|n| test(bits, *n)).count()
    }

    proptest! {
        #[test]
        fn agrees_with_single_bits(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(0xFF), any::<u8>()], 0..40),
            from in 0usize..400,
            len in 0usize..400,
        ) {
            let end = from + len;
            let limit = bytes.len() * 8;
            let range = from.min(limit)..end.min(limit);
            prop_assert_eq!(
                find_next_zero(&bytes, from, end),
                range.clone().find(|n| !test(&bytes, *n)),
            );
            prop_assert_eq!(
                find_next_one(&bytes, from, end),
                range.clone().find(|n| test(&bytes, *n)),
            );
            prop_assert_eq!(count_ones(&bytes, from..end), slow_count(&bytes, range.clone()));
            prop_assert_eq!(
                count_zeros(&bytes, from..end),
                range.len() - slow_count(&bytes, range.clone()),
            );
            let mut ranged = bytes.clone();
            let mut single = bytes.clone();
            set_range(&mut ranged, from..end);
            range.clone().for_each(|n| { set(&mut single, n); });
            prop_assert_eq!(&ranged, &single);
            prop_assert!(all_ones(&ranged, range.clone()));
            clear_range(&mut ranged, from..end);
            range.clone().for_each(|n| { clear(&mut single, n); });
            prop_assert_eq!(&ranged, &single);
            prop_assert!(all_zeros(&ranged, range));
        }
    }

    #[test]
    fn words_are_put_where_they_were_found() {
        let mut bits = [0xFFu8; 11];
        put_word(&mut bits, 0, 0x0123_4567_89AB_CDEF, u64::MAX);
        put_word(&mut bits, 1, 0, 0xFF00_00F0);
        assert_eq!((word(&bits, 0), word(&bits, 1)), (0x0123_4567_89AB_CDEF, 0x00FF_FF0F));
        put_word(&mut bits, 2, 0, u64::MAX);
        assert_eq!(bits[8..], [0x0F, 0xFF, 0xFF]);
    }

    #[test]
    fn runs_of_zeros() {
        let bits = [0b1110_0111, 0b0000_0001];
        assert_eq!(next_zero_run(&bits, 0, 16), Some(3..5));
        assert_eq!(next_zero_run(&bits, 5, 16), Some(9..16));
        assert_eq!(next_zero_run(&bits, 5, 99), Some(9..16));
        assert_eq!(next_zero_run(&bits, 5, 9), None);
    }

    #[test]
    fn past_the_end_is_nothing() {
        let mut bits = [0u8; 2];
        assert!(!set(&mut bits, 16));
        assert!(!test(&bits, usize::MAX));
        assert!(!all_zeros(&bits, 0..17));
        set_range(&mut bits, 8..usize::MAX);
        assert_eq!(bits, [0, 0xFF]);
    }
}
