//! The holds that keep an object without a name alive, and the end of the object, in one word.
//!
//! For example, an unlinked file that two threads have open has two holds. The thread that releases
//! the last one ends the file.
//!
//! # Invariants
//! - The end begins for exactly one caller, and only while there is no hold. From then on, no hold
//!   is granted.
//! - Suppose that a thread removes an object's last name and then tries to end the object, and that
//!   each thread that releases the last hold then checks whether a name is left. Then one of the
//!   threads ends the object, or learns that it must.
//!
//! # Memory order
//! An attempt to end is a read-modify-write even where it changes nothing, and so is a release of
//! holds; both acquire and release. One of the two comes first in the modification order of the
//! word. If the release comes first, the attempt to end sees that no hold is left. If the attempt
//! comes first, it synchronizes with the release, so the releasing thread then sees that the name
//! is gone.

use crate::atomic::{AtomicU64, Ordering};

/// Bit: the object is being ended; no hold is granted.
const ENDING: u64 = 1 << 63;

/// Bit: the object has ended.
const ENDED: u64 = 1 << 62;

/// The number of holds and the state of the end. See the module's documentation.
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

    /// Adds `n` holds. Returns false if the end has begun.
    pub fn hold(&self, n: u64) -> bool {
        let step = |v: u64| if v & ENDING == 0 { v.checked_add(n) } else { None };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok()
    }

    /// Releases `n` holds. Returns true if none is left and the end has not begun.
    pub fn release(&self, n: u64) -> bool {
        let step = |v: u64| if v & ENDING == 0 { Some(v.saturating_sub(n)) } else { None };
        matches!(self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, step), Ok(v) if v <= n)
    }

    /// Drops all holds.
    pub fn drop_holds(&self) {
        let _ = self.0.fetch_and(ENDING | ENDED, Ordering::AcqRel);
    }

    /// Begins the end if there is no hold. Returns true for exactly one caller.
    pub fn begin_end(&self) -> bool {
        // A word with holds is written back unchanged: a failed comparison would not be a release.
        let step = |v: u64| Some(if v == 0 { ENDING } else { v });
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, step) == Ok(0)
    }

    /// Undoes [`Self::begin_end`].
    pub fn cancel_end(&self) {
        let _ = self.0.fetch_and(!ENDING, Ordering::AcqRel);
    }

    /// Marks the object as ended.
    pub fn end(&self) {
        let _ = self.0.fetch_or(ENDING | ENDED, Ordering::AcqRel);
    }

    /// Returns whether the object has ended.
    pub fn ended(&self) -> bool {
        self.word() & ENDED != 0
    }

    /// Returns whether the end has begun.
    #[inline]
    pub fn ending(&self) -> bool {
        self.word() & ENDING != 0
    }

    /// Returns the number of holds.
    pub fn holds(&self) -> u64 {
        self.word() & !(ENDING | ENDED)
    }

    /// Returns whether there is a hold.
    pub fn held(&self) -> bool {
        self.holds() != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_object_ends_once_and_without_holds() {
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
