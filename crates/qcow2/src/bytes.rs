//! Fields of qcow2, which are big-endian.

/// Returns the 32-bit number at an offset; 0 beyond the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.copied().map_or(0, u32::from_be_bytes)
}

/// Returns the 64-bit number at an offset; 0 beyond the end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.copied().map_or(0, u64::from_be_bytes)
}

/// Returns the 64-bit numbers of a table.
pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64_at(word, 0)).collect()
}

/// Returns the bytes of a table of 64-bit numbers.
pub(crate) fn of_words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Appends a 32-bit number.
pub(crate) fn put_u32(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend_from_slice(&number.to_be_bytes());
}

/// Appends a 64-bit number.
pub(crate) fn put_u64(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes());
}

/// The reference counts in one block, each of `1 << order` bits.
pub(crate) struct Counts<'a> {
    pub bytes: &'a mut [u8],
    pub order: u32,
}

impl Counts<'_> {
    /// Returns the count at an index, which must be within the block. Counts of less than a byte
    /// begin at the least significant bit.
    pub fn get(&self, index: usize) -> u64 {
        match self.order {
            0..=2 => {
                let (byte, shift) = self.within(index);
                let mask = (1u16 << (1 << self.order)) - 1;
                u64::from((u16::from(self.bytes[byte]) >> shift) & mask)
            }
            order => {
                let len = 1 << (order - 3);
                let field = &self.bytes[index * len..][..len];
                field.iter().fold(0, |count, byte| (count << 8) | u64::from(*byte))
            }
        }
    }

    /// Sets the count at an index, which must be within the block, to 0 or 1.
    pub fn set(&mut self, index: usize, used: bool) {
        match self.order {
            0..=2 => {
                let (byte, shift) = self.within(index);
                let mask = (((1u16 << (1 << self.order)) - 1) << shift) as u8;
                self.bytes[byte] = (self.bytes[byte] & !mask) | (u8::from(used) << shift);
            }
            order => {
                let len = 1 << (order - 3);
                let field = &mut self.bytes[index * len..][..len];
                field.fill(0);
                field[len - 1] = u8::from(used);
            }
        }
    }

    fn within(&self, index: usize) -> (usize, u32) {
        let bit = index << self.order;
        (bit / 8, (bit % 8) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_every_width_are_kept_apart() {
        for order in 0..=6 {
            let mut bytes = [0; 64];
            let len = (64 * 8) >> order;
            let mut counts = Counts { bytes: &mut bytes, order };
            for index in (0..len).step_by(3) {
                counts.set(index, true);
            }
            counts.set(3, false);
            for index in 0..len {
                let expected = u64::from(index % 3 == 0 && index != 3);
                assert_eq!(counts.get(index), expected, "order {order}, index {index}");
            }
        }
    }

    #[test]
    fn counts_are_big_endian() {
        let mut bytes = [0; 8];
        let mut counts = Counts { bytes: &mut bytes, order: 4 };
        counts.set(1, true);
        assert_eq!(bytes, [0, 0, 0, 1, 0, 0, 0, 0]);
        bytes[0] = 1;
        assert_eq!(Counts { bytes: &mut bytes, order: 4 }.get(0), 256);
        assert_eq!(Counts { bytes: &mut [0b0100_0010], order: 0 }.get(6), 1);
        assert_eq!(Counts { bytes: &mut [0b0111_0010], order: 2 }.get(1), 7);
    }

    #[test]
    fn fields_beyond_the_end_are_zero() {
        assert_eq!(u32_at(&[0, 0, 1, 2, 3], 1), 0x0001_0203);
        assert_eq!((u32_at(&[1], 0), u64_at(&[1; 8], 1), u64_at(&[], usize::MAX)), (0, 0, 0));
        assert_eq!(words(&of_words(&[1, u64::MAX])), [1, u64::MAX]);
    }
}
