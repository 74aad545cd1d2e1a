//! Bounds on the data that is read out of an image.

use extant_engine::Fs;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often blocks that may be shared are copied, on average.
const MAX_SHARING: u64 = 8;

/// Bytes of holes that are copied as zeroes, for each byte of the device.
const MAX_HOLES: u64 = 8;

/// The bytes that may be read, and those admitted so far.
#[derive(Debug)]
pub struct Budget {
    max_data: u64,
    // Both relaxed: each sum bounds itself by its own value, and publishes no other data.
    admitted: AtomicU64,
    /// Bytes of holes admitted so far, where they are copied as zeroes.
    holes: AtomicU64,
}

impl Budget {
    /// Makes a budget without a bound.
    pub fn unlimited() -> Budget {
        Budget { max_data: u64::MAX, admitted: AtomicU64::new(0), holes: AtomicU64::new(0) }
    }

    /// Makes the budget of reading each file of an image once: the bytes of its device, since each
    /// block belongs to one inode, and those of a shortened image are there only once. Where blocks
    /// may be shared (`shared_blocks`), [`MAX_SHARING`] times as much.
    pub fn of(fs: &Fs) -> Budget {
        let sb = fs.superblock();
        let bytes = sb.blocks_count().saturating_mul(sb.block_size().into());
        let bytes = bytes.min(fs.device_len());
        let shares = sb.features().names().iter().any(|name| name == "shared_blocks");
        let max_data = if shares { bytes.saturating_mul(MAX_SHARING) } else { bytes };
        Budget { max_data, ..Budget::unlimited() }
    }

    /// Asks to read so many bytes of data more.
    ///
    /// # Errors
    /// The files hold more data than the image can hold in blocks of its own.
    pub fn admit(&self, bytes: u64) -> Result<(), &'static str> {
        add_within(&self.admitted, bytes, self.max_data).ok_or(
            "corrupt: the files hold more data than the device: inodes share blocks; `e2fsck \
             -fy` on a copy of the image separates them",
        )
    }

    /// Returns whether so many bytes of data more would be admitted now: a thread that reads ahead
    /// must not read more than the image can hold.
    pub fn admits(&self, bytes: u64) -> bool {
        self.admitted.load(Ordering::Relaxed).saturating_add(bytes) <= self.max_data
    }

    /// Asks to copy so many bytes of holes more as zeroes.
    ///
    /// # Errors
    /// The holes take more than [`MAX_HOLES`] times the bytes of the device: a small image may
    /// have any number of long files without data.
    pub fn admit_holes(&self, bytes: u64) -> Result<(), &'static str> {
        add_within(&self.holes, bytes, self.max_data.saturating_mul(MAX_HOLES)).ok_or(
            "the holes of sparse files would take more than 8 times the bytes of the device as \
             zeroes; `export --tar` keeps holes",
        )
    }
}

/// Adds to a sum that stays within `max`. Refused bytes do not count: a smaller file may fit.
fn add_within(sum: &AtomicU64, bytes: u64, max: u64) -> Option<()> {
    let fits = |before: u64| before.checked_add(bytes).filter(|sum| *sum <= max);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_bytes_leave_space_for_others() {
        let budget = Budget { max_data: 10, ..Budget::unlimited() };
        assert!(budget.admit(11).is_err());
        assert!(budget.admit(u64::MAX).is_err());
        assert!(budget.admit(10).is_ok());
        assert!(budget.admit(1).is_err());
    }
}
