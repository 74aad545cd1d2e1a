//! Effects of a change of content on the inode: times, set-id bits, the size on disk.

use crate::error::Result;
use crate::inode::{Body, Inode, Step};
use crate::store::Store;
use extant_format::features::{Features, RoCompat};
use extant_format::types::{MODE_SETGID, MODE_SETUID, Timestamp};
use std::ops::Range;
use std::sync::Arc;

/// Times are not renewed within this, as a kernel's clock ticks would not.
const TICK_NANOS: i128 = 4_000_000;

/// Group execute permission: without it the set-group-ID bit means something else.
const GROUP_EXEC: u16 = 0o010;

/// Files beyond this size need the feature `large_file`.
const LARGE: u64 = i32::MAX as u64;

/// Credits of [`stamp`] and [`grow_disk_size`].
pub(super) const CREDITS: u32 = 2;

/// The effects of a change of content on the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// Set-user-ID and set-group-ID are taken away.
    pub strip: bool,
    /// Times are set. Not for content from a cache that keeps the file's times itself, and would
    /// not learn of others.
    pub times: bool,
}

impl Note {
    /// Times only.
    pub const TIMES: Note = Note { strip: false, times: true };
}

/// Whether a change of content now has to be noted in the inode.
pub(super) fn due(st: &Store, inode: &Inode, note: Note) -> bool {
    let now = nanos(st.now());
    let body = inode.body();
    let fresh = |t: Timestamp| (0..TICK_NANOS).contains(&(now - nanos(t)));
    note.times && !(fresh(body.mtime) && fresh(body.ctime))
        || note.strip && body.mode != strip_mode(body.mode)
}

fn nanos(t: Timestamp) -> i128 {
    i128::from(t.sec) * 1_000_000_000 + i128::from(t.nsec)
}

/// A mode without set-user-ID, and without set-group-ID where that means the group.
pub fn strip_mode(mode: u16) -> u16 {
    let without = mode & !MODE_SETUID;
    if mode & GROUP_EXEC != 0 { without & !MODE_SETGID } else { without }
}

/// Notes a change of content made now.
pub(super) fn stamp(st: &Store, body: &mut Body, note: Note) {
    if note.times {
        let now = st.now();
        body.mtime = now;
        body.ctime = now;
    }
    if note.strip {
        body.mode = strip_mode(body.mode);
    }
}

/// Notes that a file was emptied that was empty.
pub(super) fn note_emptied(st: &Store, inode: &Arc<Inode>) -> Result<()> {
    st.begin(CREDITS)?.step(|step| {
        stamp(st, &mut *step.edit(inode)?, Note::TIMES);
        inode.note_datasync(step);
        Ok(())
    })
}

/// Notes a change of content in a handle of its own, unless it was noted just before.
pub(super) fn note_change(st: &Store, inode: &Arc<Inode>, note: Note) -> Result<()> {
    if !due(st, inode, note) {
        return Ok(());
    }
    st.begin(CREDITS)?.step(|step| {
        stamp(st, &mut *step.edit(inode)?, note);
        Ok(())
    })
}

/// Raises the size on disk to `size`. True if it was smaller.
pub(super) fn grow_disk_size(
    st: &Store,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    size: u64,
) -> Result<bool> {
    let grows = inode.body().size < size;
    if grows {
        set_disk_size(st, step, inode, size)?;
    }
    Ok(grows)
}

/// Sets the size on disk.
pub(super) fn set_disk_size(
    st: &Store,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    size: u64,
) -> Result<()> {
    if size > LARGE && !st.geo.ro_compat(RoCompat::LARGE_FILE) {
        note_large_file(st, step)?;
    }
    step.edit(inode)?.size = size;
    inode.note_datasync(step);
    Ok(())
}

/// Sets the size on disk, and notes a change of content made now.
pub(super) fn resize(st: &Store, step: &mut Step<'_>, inode: &Arc<Inode>, size: u64) -> Result<()> {
    if size > LARGE && !st.geo.ro_compat(RoCompat::LARGE_FILE) {
        note_large_file(st, step)?;
    }
    let mut body = step.edit(inode)?;
    body.size = size;
    stamp(st, &mut body, Note::TIMES);
    drop(body);
    inode.note_datasync(step);
    Ok(())
}

/// The first large file turns the feature on.
fn note_large_file(st: &Store, step: &mut Step<'_>) -> Result<()> {
    let added = Features { ro_compat: RoCompat::LARGE_FILE, ..Features::default() };
    if !st.groups.superblock().features().ro_compat.contains(RoCompat::LARGE_FILE) {
        st.groups.edit_superblock(step.handle(), |sb| sb.add_features(added))?;
    }
    Ok(())
}

/// The bytes between the end of a file of `size` bytes and the end of its last block; empty if the
/// file ends with a block.
pub(super) fn tail(st: &Store, size: u64) -> Range<u64> {
    size..size.checked_next_multiple_of(st.geo.block_size.into()).unwrap_or(size)
}
