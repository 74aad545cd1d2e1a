//! Who keeps an object alive that has no name any more, and who ends it: one word.
//!
//! # Invariants
//! - Ending begins for exactly one caller, and only while nobody holds the object; from then on
//!   nobody gets a hold.
//! - Let somebody take an object's last name away and then try to end it, and let each holder that
//!   lets go last look whether it has a name. Then one of them ends it, or knows that it has to.
//!
//! # Memory order
//! Trying to end is a read-modify-write even where it changes nothing, and so is letting go; both
//! acquire and release. Of the two one comes first in the order of the word's changes. If that is
//! the letting go, who tries to end sees that nobody holds the object. If it is the try, it is
//! released to who lets go, who then sees that the name is gone.

use crate::atomic::{AtomicU64, Ordering};

/// Bit: the object is being ended; no new holder.
const ENDING: u64 = 1 << 63;

/// Bit: the object has ended.
const ENDED: u64 = 1 << 62;

/// See the module's description.
#[derive(Debug)]
pub struct HoldState(AtomicU64);

impl Default for HoldState {
    fn default() -> Self {
        HoldState(AtomicU64::new(0))
    }
}

impl HoldState {
    #[inline]
    fn word(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Holds the object `n` times; false once its end has begun.
    pub fn hold(&self, n: u64) -> bool {
        let step = |v: u64| if v & ENDING == 0 { v.checked_add(n) } else { None };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok()
    }

    /// Gives `n` holds back; true if none is left, and the object has not begun to end.
    pub fn release(&self, n: u64) -> bool {
        let step = |v: u64| if v & ENDING == 0 { Some(v.saturating_sub(n)) } else { None };
        matches!(self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, step), Ok(v) if v <= n)
    }

    /// Forgets all holders.
    pub fn drop_holds(&self) {
        let _ = self.0.fetch_and(ENDING | ENDED, Ordering::AcqRel);
    }

    /// Begins the end if nobody holds the object; true for exactly one caller.
    pub fn begin_end(&self) -> bool {
        // What is held is written back as it is: a comparison that fails would be no release.
        let step = |v: u64| Some(if v == 0 { ENDING } else { v });
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, step) == Ok(0)
    }

    /// Takes [`Self::begin_end`] back.
    pub fn cancel_end(&self) {
        let _ = self.0.fetch_and(!ENDING, Ordering::AcqRel);
    }

    /// The object has ended.
    pub fn end(&self) {
        let _ = self.0.fetch_or(ENDING | ENDED, Ordering::AcqRel);
    }

    /// Whether it has ended.
    pub fn ended(&self) -> bool {
        self.word() & ENDED != 0
    }

    /// Whether its end has begun.
    #[inline]
    pub fn ending(&self) -> bool {
        self.word() & ENDING != 0
    }

    /// How many hold it.
    pub fn holds(&self) -> u64 {
        self.word() & !(ENDING | ENDED)
    }

    /// Whether somebody holds it.
    pub fn held(&self) -> bool {
        self.holds() != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_ends_once_and_unheld() {
        let life = HoldState::default();
        assert!(life.hold(2) && life.holds() == 2 && life.held() && !life.begin_end());
        assert!(!life.release(1) && life.release(1) && !life.held());
        assert!(life.begin_end() && !life.begin_end() && !life.hold(1) && !life.release(1));
        life.cancel_end();
        assert!(life.hold(1));
        life.drop_holds();
        assert!(life.begin_end() && !life.ended());
        life.end();
        assert!(life.ended() && life.ending() && !life.hold(1));
    }
}
