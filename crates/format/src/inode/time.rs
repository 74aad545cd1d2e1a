//! Time stamps of inodes: a signed 32-bit base, and an extra word with two epoch bits and
//! nanoseconds.

use super::Inode;
use super::raw::{RawInode, field_end};
use crate::types::Timestamp;
use zerocopy::little_endian::U32;

const EPOCH_MASK: u32 = 3;
const MAX_NSEC: u32 = 999_999_999;
const MIN_SEC: i64 = i32::MIN as i64;
const MAX_SEC: i64 = i32::MAX as i64;
const MAX_SEC_WITH_EPOCH: i64 = MAX_SEC + (3 << 32);

fn decode(base: u32, extra: Option<u32>) -> Timestamp {
    let extra = extra.unwrap_or(0);
    let epoch = i64::from(extra & EPOCH_MASK) << 32;
    Timestamp {
        sec: i64::from(base as i32).saturating_add(epoch),
        nsec: (extra >> 2).min(MAX_NSEC),
    }
}

fn encode_with_extra(time: Timestamp) -> (u32, u32) {
    let sec = time.sec.clamp(MIN_SEC, MAX_SEC_WITH_EPOCH);
    let base = sec as i32;
    let epoch = (sec.saturating_sub(base.into()) >> 32) as u32 & EPOCH_MASK;
    (base as u32, time.nsec.min(MAX_NSEC) << 2 | epoch)
}

fn encode_base(time: Timestamp) -> u32 {
    time.sec.clamp(MIN_SEC, MAX_SEC) as i32 as u32
}

fn store(time: Timestamp, base: &mut U32, extra: &mut U32, has_extra: bool) {
    if has_extra {
        let (low, high) = encode_with_extra(time);
        base.set(low);
        extra.set(high);
    } else {
        base.set(encode_base(time));
    }
}

impl Inode {
    fn extra(&self, word: U32, end: usize) -> Option<u32> {
        self.has_field(end).then(|| word.get())
    }

    pub(super) fn decode_times(&mut self, raw: &RawInode) {
        self.atime = decode(raw.atime.get(), self.extra(raw.atime_extra, field_end::ATIME_EXTRA));
        self.ctime = decode(raw.ctime.get(), self.extra(raw.ctime_extra, field_end::CTIME_EXTRA));
        self.mtime = decode(raw.mtime.get(), self.extra(raw.mtime_extra, field_end::MTIME_EXTRA));
        if self.has_field(field_end::CRTIME) {
            let extra = self.extra(raw.crtime_extra, field_end::CRTIME_EXTRA);
            self.crtime = Some(decode(raw.crtime.get(), extra));
        }
    }

    pub(super) fn encode_times(&self, raw: &mut RawInode) {
        store(
            self.atime,
            &mut raw.atime,
            &mut raw.atime_extra,
            self.has_field(field_end::ATIME_EXTRA),
        );
        store(
            self.ctime,
            &mut raw.ctime,
            &mut raw.ctime_extra,
            self.has_field(field_end::CTIME_EXTRA),
        );
        store(
            self.mtime,
            &mut raw.mtime,
            &mut raw.mtime_extra,
            self.has_field(field_end::MTIME_EXTRA),
        );
        if let Some(crtime) = self.crtime.filter(|_| self.has_crtime()) {
            let has_extra = self.has_field(field_end::CRTIME_EXTRA);
            store(crtime, &mut raw.crtime, &mut raw.crtime_extra, has_extra);
        }
    }

    /// Returns the time rounded and clamped to this inode's slot, as a later read returns it. Times
    /// out of range become the earliest or the latest second, with zero nanoseconds.
    pub fn storable_time(&self, time: Timestamp) -> Timestamp {
        self.storable(time, field_end::ATIME_EXTRA)
    }

    /// Returns a creation time as this inode's slot can hold it. The slot may hold less of it than
    /// of the other times, or none (`None`).
    pub fn storable_crtime(&self, time: Timestamp) -> Option<Timestamp> {
        self.has_crtime().then(|| self.storable(time, field_end::CRTIME_EXTRA))
    }

    /// A time whose extra word ends at this byte of the slot.
    fn storable(&self, time: Timestamp, extra_end: usize) -> Timestamp {
        if !self.has_field(extra_end) {
            return decode(encode_base(time), None);
        }
        match time.sec {
            ..=MIN_SEC => Timestamp { sec: MIN_SEC, nsec: 0 },
            MAX_SEC_WITH_EPOCH.. => Timestamp { sec: MAX_SEC_WITH_EPOCH, nsec: 0 },
            sec => Timestamp { sec, nsec: time.nsec.min(MAX_NSEC) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_reach_from_1901_to_2446() {
        for sec in [MIN_SEC, -1, 0, 1, MAX_SEC, MAX_SEC + 1, 1 << 32, 3 << 32, MAX_SEC_WITH_EPOCH] {
            let time = Timestamp::new(sec, 123_456_789);
            let (base, extra) = encode_with_extra(time);
            assert_eq!(decode(base, Some(extra)), time);
        }
        let (base, extra) = encode_with_extra(Timestamp::new(i64::MAX, 0));
        assert_eq!(decode(base, Some(extra)).sec, MAX_SEC_WITH_EPOCH);
    }

    #[test]
    fn without_the_extra_word_times_are_clamped() {
        assert_eq!(encode_base(Timestamp::new(1 << 40, 5)), i32::MAX as u32);
        assert_eq!(decode(0xFFFF_FFFF, None), Timestamp::new(-1, 0));
    }
}
