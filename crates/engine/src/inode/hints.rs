//! What was seen of an inode, for guesses of what is asked for next.

use extant_sync::atomic::{AtomicU8, Ordering};

/// One thing that may have been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hint {
    /// It was loaded before anybody asked for it, and nobody has since.
    Ahead = 1,
    /// A directory: a name was asked for whose inode was not in memory.
    Missed = 2,
    /// A directory: what it has names for was loaded ahead, or is being loaded.
    LookedThrough = 4,
    /// A directory: a listing has given it out.
    Listed = 8,
}

/// What was seen. Nothing else hangs on it.
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
            !hints.is_set(Hint::Missed) && hints.is_set(Hint::Listed) && !hints.is_set(Hint::Ahead)
        );
    }
}
