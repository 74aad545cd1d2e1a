//! Checksum functions of blocks.

use std::fmt;

/// The checksum function of a block, applied just before the block is frozen. It must read nothing
/// but its arguments.
#[derive(Clone, Copy)]
pub struct Seal {
    /// Called with the block's bytes, its number and `seed`.
    pub f: fn(&mut [u8], u64, u32),
    /// The initial value of the checksum.
    pub seed: u32,
}

impl Seal {
    /// For blocks without a checksum, or whose owner has computed it.
    pub const NONE: Seal = Seal { f: nothing, seed: 0 };

    pub(crate) fn is_none(self) -> bool {
        std::ptr::fn_addr_eq(self.f, Seal::NONE.f)
    }

    /// Returns the seal's name as one word, 0 for none. All functions belong to one program, so
    /// their distances fit into 32 bits; if one does not, the seal has no tag.
    pub(crate) fn tag(self) -> u64 {
        let distance = (self.f as usize).wrapping_sub(Seal::NONE.f as usize) as isize;
        i32::try_from(distance)
            .map_or(0, |distance| u64::from(distance as u32) << 32 | u64::from(self.seed))
    }
}

// Not inlined, so that it has one address. A function that shares the address does nothing either.
#[inline(never)]
fn nothing(_block: &mut [u8], _nr: u64, _seed: u32) {}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            f.write_str("Seal::NONE")
        } else {
            write!(f, "Seal(seed {:#x})", self.seed)
        }
    }
}
