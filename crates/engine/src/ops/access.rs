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
    /// while the file system is frozen, while another thread changes the content, and of inodes
    /// with the flag `noatime`.
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
        // A reader must not wait for a thaw, nor for a writer that holds the lock and waits for it.
        let Some(_lock) = inode.rw.try_read() else { return Ok(false) };
        inode.check_not_freed()?;
        let Some(mut tx) = st.begin_unless_locked(CREDITS)? else { return Ok(false) };
        tx.step(|step| {
            step.edit(inode)?.atime = now;
            Ok(true)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{SetAttr, TimeSet};
    use crate::{Fs, NodeKind, OpenOptions};
    use extant_testkit::{FeatureSet, Memory};
    use std::sync::Arc;

    /// A writer may wait for a thaw with the lock of the content: a reader does not wait for it.
    #[test]
    fn an_access_is_noted_without_a_wait_for_a_writer() {
        let image = FeatureSet::named("default").make();
        let device = Arc::new(Memory::from_bytes(&image.bytes()));
        let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let node = fs.create(&root, b"file", 0o644, NodeKind::File).unwrap();
        // An access within the clock's tick of the creation would change nothing.
        let past = Some(TimeSet::At(Timestamp { sec: 0, nsec: 0 }));
        fs.set_attr(&node, &SetAttr { atime: past, ..SetAttr::default() }).unwrap();
        let writer = node.0.write_lock().unwrap();
        assert!(!fs.accessed(&node, AccessTimes::Always).unwrap());
        drop(writer);
        assert!(fs.accessed(&node, AccessTimes::Always).unwrap());
        drop((root, node));
        fs.unmount().unwrap();
    }
}
