//! Access times.

use super::{Attr, Node, Operations};
use crate::error::Result;
use extant_format::inode::InodeFlags;
use extant_format::types::Timestamp;

/// Which reads change the time of the last access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// The first after a change of the inode or its content, and the first after a day
    /// (`relatime`).
    #[default]
    Relative,
    /// All (`strictatime`).
    Always,
}

/// Seconds after which an access is noted again.
const DAY: i64 = 86_400;

/// A kernel that keeps times itself has a clock that ticks this late at most.
const TICK_NANOS: i128 = 10_000_000;

/// Credits of a change of an inode.
const CREDITS: u32 = 1;

impl AccessTimes {
    fn are_due(self, attr: &Attr, now: Timestamp) -> bool {
        let at = |t: Timestamp| i128::from(t.sec) * 1_000_000_000 + i128::from(t.nsec);
        match self {
            AccessTimes::Always => at(attr.atime) != at(now),
            AccessTimes::Relative => {
                let changed = at(attr.mtime).max(at(attr.ctime)) + TICK_NANOS;
                at(attr.atime) <= changed || now.sec - attr.atime.sec >= DAY
            }
        }
    }
}

impl Operations {
    /// The content of an inode was read: notes the time, if it is one of those that are noted, and
    /// says whether it was. No other time changes. Nothing is noted where nothing may be changed,
    /// and of inodes with the flag `noatime`.
    ///
    /// # Errors
    /// Those of the journal; ESTALE if the inode is gone.
    pub fn accessed(&self, node: &Node, which: AccessTimes) -> Result<bool> {
        self.own(node)?;
        let (st, inode) = (self.st(), &node.0);
        let attr = node.attr();
        let now = st.now();
        let silent = attr.flags & InodeFlags::NOATIME.bits() != 0;
        if silent || !which.are_due(&attr, now) || st.writable().is_err() {
            return Ok(false);
        }
        let _lock = inode.read_lock()?;
        let mut h = st.start(CREDITS)?;
        inode.edit(st, &mut h)?.atime = now;
        Ok(true)
    }
}
