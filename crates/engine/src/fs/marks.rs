//! Marks in the superblock: mounted, closed properly, has errors.
//!
//! # Invariants
//! Each mark is durable when the call returns. A file system that is opened for writing is marked
//! before its first change, and marked as closed after its last one.

use super::{OpenOptions, superblocks};
use crate::error::Result;
use crate::store::Store;
use crate::volume::superblock_seconds;
use extant_blocks::BlockDevice;
use extant_format::features::{Compat, Incompat, RoCompat};
use extant_format::superblock::{State, SuperFlags, Superblock};
use std::ffi::c_char;

/// Whether this machine's C counts bytes above 127 as positive, as the kernel that runs on it does.
const UNSIGNED_CHARS: bool = c_char::MAX as i32 == 255;

/// Removes the mark of a mounted file system after an opening that failed before any other change.
/// If that cannot be written, the mark stays.
pub(super) fn unmark(dev: &dyn BlockDevice, mut sb: Superblock) {
    if let Err(e) = superblocks::write_superblock(dev, &mut sb) {
        tracing::error!("the superblock could not be written back: {e}");
    }
}

/// Whether the file system was closed properly: no orphan record is live.
pub(super) fn is_closed(sb: &Superblock) -> bool {
    !sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT)
        && !sb.incompat().contains(Incompat::RECOVER)
        && sb.state().contains(State::VALID)
        && !sb.state().contains(State::ERROR)
}

/// A file system has errors until it is checked: those of a journal that was aborted, and those
/// that the superblock named before an older copy from the log took its place.
pub(super) fn note_errors(dev: &dyn BlockDevice, before: &Superblock, errno: i32) -> Result<()> {
    if errno == 0 && !before.state().contains(State::ERROR) {
        return Ok(());
    }
    let (mut sb, _) = superblocks::superblock(dev)?;
    sb.set_state(sb.state() | State::ERROR);
    if let (Some(error), None) = (before.last_error(), sb.last_error()) {
        sb.record_error(&error);
    }
    superblocks::write_superblock(dev, &mut sb)
}

/// Before the first change: says on the device that recovery may be needed.
pub(super) fn mark_mounted(
    dev: &dyn BlockDevice,
    sb: &mut Superblock,
    journal: bool,
    options: &OpenOptions,
) -> Result<()> {
    let mut features = sb.features();
    if journal {
        features.incompat |= Incompat::RECOVER;
    } else {
        sb.set_state(sb.state() & !State::VALID);
    }
    if features.compat.contains(Compat::ORPHAN_FILE) {
        features.ro_compat |= RoCompat::ORPHAN_PRESENT;
    }
    sb.set_features(features);
    if sb.unsigned_hash().is_none() {
        // The first writer decides how bytes above 127 are hashed in names.
        sb.set_flags(
            sb.flags()
                | if UNSIGNED_CHARS { SuperFlags::UNSIGNED_HASH } else { SuperFlags::SIGNED_HASH },
        );
    }
    if options.count_mount {
        sb.set_mtime(superblock_seconds(&*options.clock));
        sb.set_mnt_count(sb.mnt_count().saturating_add(1));
    }
    if let Some(path) = &options.mount_point {
        sb.set_last_mounted(path.as_bytes());
    }
    superblocks::write_superblock(dev, sb)
}

/// After everything was written: says on the device that nothing is left to do.
pub fn mark_clean(st: &Store, state: State) -> Result<()> {
    let mut sb = st.groups.superblock();
    let mut features = sb.features();
    features.incompat.remove(Incompat::RECOVER);
    if st.orphans.is_empty() {
        features.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
    }
    sb.set_features(features);
    sb.set_state(sb.state() | state & State::VALID);
    sb.set_wtime(superblock_seconds(&*st.clock));
    superblocks::write_superblock(&*st.dev, &mut sb)
}

/// After a freeze: says on the device again that recovery may be needed. Handles must be stopped.
/// If it cannot be said, all changes end. Does nothing after a shutdown, which ends all writes.
pub fn mark_in_use(st: &Store) -> Result<()> {
    if st.is_shut_down() {
        return Ok(());
    }
    superblocks::write_superblock(&*st.dev, &mut st.groups.superblock()).inspect_err(|error| {
        tracing::error!(
            "the superblock could not be marked as in use, so nothing is changed any more: check \
             the device, then mount it anew: {error}"
        );
        st.journal.abort(error.errno());
    })
}

/// After an error that stopped all changes: the next one to look is told.
pub fn mark_error(st: &Store) -> Result<()> {
    let (mut sb, _) = superblocks::superblock(&*st.dev)?;
    let noted = st.groups.superblock();
    sb.set_state(sb.state() | State::ERROR);
    if let Some(error) = noted.last_error() {
        sb.record_error(&error);
    }
    superblocks::write_superblock(&*st.dev, &mut sb)
}
