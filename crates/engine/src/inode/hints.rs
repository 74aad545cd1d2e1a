//! Hints about the use of an inode, for guesses of the next requests.

use extant_sync::atomic::{AtomicU8, Ordering};

/// One thing that may have been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hint {
    /// It was prefetched, and no request has asked for it since.
    Prefetched = 1,
    /// A directory: a lookup of one of its names met an inode that was not in memory.
    Missed = 2,
    /// A directory: the inodes of its names were prefetched, or are being prefetched.
    LookedThrough = 4,
    /// A directory: a listing has given it out.
    Listed = 8,
}

/// The hints of an inode. No result depends on them.
#[derive(Debug, Default)]
pub struct Hints(AtomicU8);

impl Hints {
    /// Whether it was seen. Relaxed, here and below: nothing is reached by it.
    pub fn is_set(&self, hint: Hint) -> bool {
        self.0.load(Ordering::Relaxed) & hint as u8 != 0
    }

    /// Notes it; whether it was noted before.
    pub fn set(&self, hint: Hint) -> bool {
        self.is_set(hint) || self.0.fetch_or(hint as u8, Ordering::Relaxed) & hint as u8 != 0
    }

    /// Takes it back; whether it was noted, which of several at once one is told.
    pub fn clear(&self, hint: Hint) -> bool {
        self.is_set(hint) && self.0.fetch_and(!(hint as u8), Ordering::Relaxed) & hint as u8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_noted_by_itself() {
        let hints = Hints::default();
        assert!(!hints.set(Hint::Missed));
        assert!(hints.set(Hint::Missed));
        assert!(!hints.set(Hint::Listed));
        assert!(hints.clear(Hint::Missed));
        assert!(!hints.clear(Hint::Missed));
        assert!(
            !hints.is_set(Hint::Missed)
                && hints.is_set(Hint::Listed)
                && !hints.is_set(Hint::Prefetched)
        );
    }
}
