//! Numbers of transactions.

use std::fmt;

/// The number of a transaction. The low 32 bits are the sequence on disk; the upper bits keep the
/// order when the sequence wraps. Never 0, which means "no transaction" in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub u64);

impl Tid {
    /// Returns the first transaction of a session, whose sequence on disk is `sequence`.
    pub(crate) fn first(sequence: u32) -> Tid {
        Tid((1 << 32) | u64::from(sequence))
    }

    /// Returns the sequence on disk.
    pub fn sequence(self) -> u32 {
        self.0 as u32
    }

    /// Returns the transaction after this one.
    pub fn next(self) -> Tid {
        Tid(self.0 + 1)
    }

    /// Returns the transaction before this one.
    pub fn previous(self) -> Tid {
        Tid(self.0 - 1)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sequence().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_wrap_and_tids_do_not() {
        let last = Tid::first(u32::MAX);
        assert_eq!(last.next().sequence(), 0);
        assert!(last.next() > last);
        assert_eq!(last.next().previous(), last);
    }
}
