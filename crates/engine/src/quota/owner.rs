//! Usage and limits of one user, group or project.

use crate::error::{Errno, Result};
use extant_format::quota::{LIMIT_UNIT, QuotaLimits, QuotaRecord};
use extant_journal::Tid;
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_sync::{Level, Mutex};

/// A change of usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Bytes that are booked.
    pub space: i64,
    /// Inodes.
    pub inodes: i64,
    /// Bytes that are promised: limits count them, the file does not.
    pub promised: i64,
}

impl Change {
    /// The change that takes this one back.
    pub fn reversed(self) -> Change {
        Change { space: -self.space, inodes: -self.inodes, promised: -self.promised }
    }

    pub(super) fn add(&mut self, other: Change) {
        // Bytes of one file system: no sum of them comes near the bounds of 64 bits, unless an
        // image lies.
        self.space = self.space.saturating_add(other.space);
        self.inodes = self.inodes.saturating_add(other.inodes);
        self.promised = self.promised.saturating_add(other.promised);
    }

    pub(super) fn is_none(self) -> bool {
        self == Change::default()
    }
}

/// How long soft limits may be exceeded, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// That of space.
    pub blocks: u32,
    /// That of inodes.
    pub inodes: u32,
}

/// An owner in memory.
#[derive(Debug)]
pub(super) struct Dquot {
    pub id: u32,
    /// The block with its record, and the byte where it begins.
    pub place: (u64, usize),
    /// Whether it has a limit: then every change is made at once, else threads keep theirs until
    /// the transaction freezes.
    pub limited: AtomicBool,
    /// Transaction in which it was last marked dirty (0: never).
    pub dirty_tid: AtomicU64,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    used: Change,
    limits: QuotaLimits,
    block_time: u64,
    inode_time: u64,
}

impl Dquot {
    pub fn new(record: &QuotaRecord, place: (u64, usize)) -> Dquot {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let state = State {
            used: Change {
                space: signed(record.space),
                inodes: signed(record.inodes),
                promised: 0,
            },
            limits: record.limits,
            block_time: record.block_time,
            inode_time: record.inode_time,
        };
        Dquot {
            id: record.id,
            place,
            limited: AtomicBool::new(!record.limits.is_none()),
            dirty_tid: AtomicU64::new(0),
            state: Mutex::new(Level::Leaf, state),
        }
    }

    /// Makes an owner without a record: its usage is counted here, and never written.
    pub fn unrecorded(id: u32) -> Dquot {
        Dquot::new(&QuotaRecord { id, ..QuotaRecord::default() }, (0, 0))
    }

    /// Returns whether this was marked dirty in a transaction.
    pub fn is_dirty_in(&self, tid: Tid) -> bool {
        self.dirty_tid.load(Ordering::Acquire) == tid.0
    }

    /// Returns the record for the file, and whether the usage is negative, because it was counted
    /// wrong before. A negative usage is stored as zero.
    pub fn record(&self) -> (QuotaRecord, bool) {
        let state = *self.state.lock();
        let known = |n: i64| u64::try_from(n).unwrap_or(0);
        let record = QuotaRecord {
            id: self.id,
            limits: state.limits,
            space: known(state.used.space),
            inodes: known(state.used.inodes),
            block_time: state.block_time,
            inode_time: state.inode_time,
        };
        (record, state.used.space < 0 || state.used.inodes < 0)
    }

    /// Whether nothing is promised that memory alone knows of.
    pub fn is_plain(&self) -> bool {
        self.state.lock().used.promised == 0
    }

    /// Adds a change without regard to the limits.
    pub fn add(&self, change: Change, clock: (u64, Grace)) {
        let mut state = self.state.lock();
        state.used.add(change);
        state.time(clock);
    }

    /// Adds a change if the limits allow its increases.
    ///
    /// # Errors
    /// EDQUOT.
    pub fn add_within(&self, change: Change, clock: (u64, Grace)) -> Result<()> {
        let mut state = self.state.lock();
        let mut next = *state;
        next.used.add(change);
        if change.space.saturating_add(change.promised) > 0 {
            let limits = (state.limits.block_hard.saturating_mul(LIMIT_UNIT), state.soft_space());
            check(next.total(), limits, state.block_time, clock.0)?;
        }
        if change.inodes > 0 {
            check(
                next.used.inodes,
                (state.limits.inode_hard, state.limits.inode_soft),
                state.inode_time,
                clock.0,
            )?;
        }
        next.time(clock);
        *state = next;
        Ok(())
    }

    /// Sets the limits. The caller must add the changes that threads keep afterwards.
    pub fn set_limits(&self, limits: QuotaLimits, clock: (u64, Grace)) {
        let mut state = self.state.lock();
        state.limits = limits;
        state.time(clock);
        // Release: a thread that sees the mark sees the limits. Threads read it under their shard's
        // lock, which the caller takes after this.
        self.limited.store(!limits.is_none(), Ordering::Release);
    }
}

/// EDQUOT if `used` is above the hard limit, or above the soft one after its time. A limit of 0 is
/// none.
fn check(used: i64, (hard, soft): (u64, u64), until: u64, now: u64) -> Result<()> {
    let used = u64::try_from(used).unwrap_or(0);
    let above = |limit: u64| limit > 0 && used > limit;
    if above(hard) || above(soft) && until != 0 && now >= until {
        Err(Errno::DQuot.into())
    } else {
        Ok(())
    }
}

impl State {
    fn soft_space(&self) -> u64 {
        self.limits.block_soft.saturating_mul(LIMIT_UNIT)
    }

    fn total(&self) -> i64 {
        self.used.space.saturating_add(self.used.promised)
    }

    /// Grace begins when a soft limit is exceeded and ends when it is not.
    fn time(&mut self, (now, grace): (u64, Grace)) {
        let next = |used: i64, soft: u64, until: u64, grace: u32| match u64::try_from(used)
            .unwrap_or(0)
            > soft
        {
            true if soft > 0 && until == 0 => now.saturating_add(grace.into()).max(1),
            true if soft > 0 => until,
            _ => 0,
        };
        self.block_time = next(self.total(), self.soft_space(), self.block_time, grace.blocks);
        self.inode_time =
            next(self.used.inodes, self.limits.inode_soft, self.inode_time, grace.inodes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Grace = Grace { blocks: 10, inodes: 20 };

    fn limited() -> Dquot {
        let limits = QuotaLimits { block_hard: 8, block_soft: 4, inode_hard: 3, inode_soft: 1 };
        Dquot::new(&QuotaRecord { id: 7, limits, ..QuotaRecord::default() }, (0, 0))
    }

    #[test]
    fn hard_limits_count_reserved_space() {
        let owner = limited();
        let space = |promised, space| Change { promised, space, inodes: 0 };
        owner.add_within(space(8192, 0), (1, GRACE)).unwrap();
        assert!(owner.add_within(space(1, 0), (1, GRACE)).is_err());
        owner.add(space(-8192, 8192), (1, GRACE));
        assert!(owner.add_within(space(0, 1), (1, GRACE)).is_err());
        assert_eq!(owner.record().0.space, 8192);
        owner.add_within(space(0, -1), (1, GRACE)).unwrap();
        owner.add_within(space(1, 0), (1, GRACE)).unwrap();
    }

    #[test]
    fn soft_limits_hold_after_their_time() {
        let owner = limited();
        let one = Change { inodes: 1, ..Change::default() };
        owner.add_within(one, (100, GRACE)).unwrap();
        assert_eq!(owner.record().0.inode_time, 0);
        owner.add_within(one, (100, GRACE)).unwrap();
        assert_eq!(owner.record().0.inode_time, 120);
        assert!(owner.add_within(one, (120, GRACE)).is_err());
        owner.add_within(one, (119, GRACE)).unwrap();
        owner.add(Change { inodes: -2, ..Change::default() }, (130, GRACE));
        assert_eq!((owner.record().0.inode_time, owner.record().1), (0, false));
        owner.add(Change { inodes: -2, ..Change::default() }, (130, GRACE));
        let (record, wrong) = owner.record();
        assert!(wrong && record.inodes == 0, "less than nothing is told, and not stored");
    }
}
