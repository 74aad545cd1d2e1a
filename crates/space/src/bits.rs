//! Bits of a bitmap as it is on the disk: bit `n` is bit `n % 8` of byte `n / 8`, and set means used.
//!
//! Bits behind the end of the slice read as used and cannot be changed.

use std::ops::Range;

/// Whether a bit is set.
pub fn get(bitmap: &[u8], bit: u32) -> bool {
    bitmap.get(bit as usize / 8).is_none_or(|byte| byte & (1 << (bit % 8)) != 0)
}

/// Sets a bit. False if it was set already, or does not exist.
pub fn set(bitmap: &mut [u8], bit: u32) -> bool {
    let clear = !get(bitmap, bit);
    if let (true, Some(byte)) = (clear, bitmap.get_mut(bit as usize / 8)) {
        *byte |= 1 << (bit % 8);
    }
    clear
}

/// Clears a bit. False if it was clear already, or does not exist.
pub fn clear(bitmap: &mut [u8], bit: u32) -> bool {
    match bitmap.get_mut(bit as usize / 8) {
        Some(byte) if *byte & (1 << (bit % 8)) != 0 => {
            *byte &= !(1 << (bit % 8));
            true
        }
        _ => false,
    }
}

/// The first bit of the range that is set (`used`) or clear; `None` if there is none.
pub fn find(bitmap: &[u8], range: Range<u32>, used: bool) -> Option<u32> {
    let skip = if used { 0x00 } else { 0xFF };
    let mut bit = range.start;
    while bit < range.end {
        if bit.is_multiple_of(8) && bitmap.get(bit as usize / 8) == Some(&skip) {
            bit = bit.saturating_add(8);
        } else if get(bitmap, bit) == used {
            return Some(bit);
        } else {
            bit += 1;
        }
    }
    None
}

/// Sets (`used`) or clears all bits of the range. Those that were so already, or do not exist, are left.
pub fn fill(bitmap: &mut [u8], range: Range<u32>, used: bool) {
    let mut bit = range.start;
    while bit < range.end {
        let whole = bit.is_multiple_of(8) && range.end - bit >= 8;
        match bitmap.get_mut(bit as usize / 8) {
            None => return,
            Some(byte) if whole => *byte = if used { 0xFF } else { 0 },
            Some(byte) if used => *byte |= 1 << (bit % 8),
            Some(byte) => *byte &= !(1 << (bit % 8)),
        }
        bit += if whole { 8 } else { 1 };
    }
}

/// How many bits of the range are clear.
pub fn count_clear(bitmap: &[u8], range: Range<u32>) -> u32 {
    let (mut bit, mut count) = (range.start, 0);
    while bit < range.end {
        let byte = bitmap.get(bit as usize / 8);
        match byte {
            Some(byte) if bit.is_multiple_of(8) && range.end - bit >= 8 => {
                count += byte.count_zeros();
                bit += 8;
            }
            _ => {
                count += u32::from(!get(bitmap, bit));
                bit += 1;
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bits_behind_the_end_are_used() {
        let mut bitmap = [0u8; 2];
        assert!(get(&bitmap, 16));
        assert!(!set(&mut bitmap, 16));
        assert!(!clear(&mut bitmap, 16));
        assert_eq!(count_clear(&bitmap, 0..100), 16);
        assert_eq!(find(&bitmap, 0..100, true), Some(16));
        assert_eq!(find(&bitmap, 16..100, false), None);
        fill(&mut bitmap, 3..100, true);
        assert_eq!(bitmap, [0xF8, 0xFF]);
    }

    proptest! {
        #[test]
        fn ranges_agree_with_single_bits(bytes: Vec<u8>, a in 0u32..200, b in 0u32..200, used: bool) {
            let range = a..b;
            let single = range.clone().find(|bit| get(&bytes, *bit) == used);
            prop_assert_eq!(find(&bytes, range.clone(), used), single);
            let clear = range.clone().filter(|bit| !get(&bytes, *bit)).count();
            prop_assert_eq!(count_clear(&bytes, range.clone()) as usize, clear);
            let (mut fast, mut slow) = (bytes.clone(), bytes);
            fill(&mut fast, range.clone(), used);
            for bit in range {
                if used { set(&mut slow, bit); } else { super::clear(&mut slow, bit); }
            }
            prop_assert_eq!(fast, slow);
        }
    }
}
