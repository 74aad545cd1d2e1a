//! Errors of writeback, reported once to every open file.
//!
//! One word has a counter, a mark that an open file has seen the current error, and the error. An
//! open file keeps the counter that it last saw; a different counter means a new error. An unseen
//! error is also reported to files opened after it.

use crate::error::Result;
use extant_sync::atomic::{AtomicU64, Ordering};
use std::io;

const SEEN: u64 = 1 << 31;
const ERRNO: u64 = SEEN - 1;
const ONE: u64 = 1 << 32;

/// Largest number of an error that callers get. The kernel takes no answer with a larger one.
const MAX_ERRNO: u64 = 511;
const EIO: u64 = 5;

/// The number of its inode's newest error that an open file has seen.
pub type ErrorCursor = u32;

/// The number of errors so far.
fn count(word: u64) -> ErrorCursor {
    (word >> 32) as u32
}

/// The errors of one inode.
#[derive(Debug, Default)]
pub struct ErrorSeq(AtomicU64);

impl ErrorSeq {
    /// Notes an error.
    pub fn record(&self, errno: i32) {
        let errno = u64::from(errno.unsigned_abs()) & ERRNO;
        let next = |word: u64| Some((word & !(SEEN | ERRNO)).wrapping_add(ONE) | errno);
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    /// The errors as a word, for another process that goes on with the inode.
    pub fn word(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Takes the errors over from another process. A number that is none of an error becomes EIO.
    pub fn set_word(&self, word: u64) {
        let errno = if word & ERRNO > MAX_ERRNO { EIO } else { word & ERRNO };
        self.0.store(word & !ERRNO | errno, Ordering::Release);
    }

    /// The cursor of a file opened now.
    pub fn sample(&self) -> ErrorCursor {
        let word = self.0.load(Ordering::Acquire);
        let unseen = word & ERRNO != 0 && word & SEEN == 0;
        count(word).wrapping_sub(u32::from(unseen))
    }

    /// The error since `since`, if there is one, and moves the cursor behind it.
    pub fn check(&self, since: &mut ErrorCursor) -> Result<()> {
        let word = self.0.load(Ordering::Acquire);
        if word & ERRNO == 0 || count(word) == *since {
            return Ok(());
        }
        // A failed exchange means a newer error, which the next check tells.
        let _ = self.0.compare_exchange(word, word | SEEN, Ordering::AcqRel, Ordering::Acquire);
        *since = count(word);
        Err(io::Error::from_raw_os_error((word & ERRNO) as i32).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(result: Result<()>) -> i32 {
        result.map_or_else(|e| e.errno(), |()| 0)
    }

    #[test]
    fn each_cursor_is_told_once() {
        let seq = ErrorSeq::default();
        let (mut a, mut b) = (seq.sample(), seq.sample());
        assert_eq!(errno(seq.check(&mut a)), 0);
        seq.record(28);
        assert_eq!(errno(seq.check(&mut a)), 28);
        assert_eq!(errno(seq.check(&mut a)), 0);
        assert_eq!(errno(seq.check(&mut b)), 28);
        assert_eq!(errno(seq.check(&mut b)), 0);
        seq.record(5);
        assert_eq!(errno(seq.check(&mut a)), 5);
        assert_eq!(errno(seq.check(&mut b)), 5);
    }

    #[test]
    fn an_unseen_error_is_told_to_later_openers() {
        let seq = ErrorSeq::default();
        seq.record(5);
        let mut late = seq.sample();
        assert_eq!(errno(seq.check(&mut late)), 5);
        let mut later = seq.sample();
        assert_eq!(errno(seq.check(&mut later)), 0);
    }
    #[test]
    fn errors_of_another_process_are_ones_that_callers_can_get() {
        for (word, told) in [(ONE | 28, 28), (ONE | 512, 5), (ONE | ERRNO, 5), (ONE, 0)] {
            let seq = ErrorSeq::default();
            seq.set_word(word);
            assert_eq!(errno(seq.check(&mut 0)), told, "{word:x}");
        }
    }
}
