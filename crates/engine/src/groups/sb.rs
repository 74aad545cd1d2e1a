//! The superblock in memory.

use super::Groups;
use crate::error::{Error, Result};
use extant_blocks::Buffer;
use extant_format::superblock::{ErrorRecord, SUPERBLOCK_OFFSET, State, Superblock};
use extant_format::types::InodeNr;
use extant_journal::Handle;
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_sync::{Level, Mutex};
use std::sync::Arc;

/// The fields, and when they were last part of a transaction.
#[derive(Debug)]
pub(super) struct SuperState {
    pub fields: Mutex<Superblock>,
    pub tid: AtomicU64,
    /// An error was noted that is to reach the device with the next change of any group.
    pub noted: AtomicBool,
}

impl SuperState {
    pub fn new(sb: Superblock) -> SuperState {
        SuperState {
            fields: Mutex::new(Level::SuperBlock, sb),
            tid: AtomicU64::new(0),
            noted: AtomicBool::new(false),
        }
    }
}

/// Classes of errors as the superblock's records have them.
const UNKNOWN: u8 = 1;
const IO: u8 = 2;
const BAD_CHECKSUM: u8 = 4;
const CORRUPT: u8 = 5;

impl Groups {
    /// KiB that were ever written to the file system: all writes of this process to its device
    /// count.
    fn kbytes_written(&self) -> u64 {
        self.written_before.saturating_add(self.vol.mounted.written() / 1024)
    }

    /// KiB that were written since the superblock was last part of a transaction.
    pub fn kbytes_unrecorded(&self) -> u64 {
        self.kbytes_written().saturating_sub(self.sb.fields.lock().kbytes_written())
    }

    /// The superblock as it is now: a copy, with the sums of all groups as its counts.
    pub fn superblock(&self) -> Superblock {
        let mut sb = self.sb.fields.lock().clone();
        sb.set_free_blocks_count(self.free_clusters() << self.vol.geo.cluster_bits);
        sb.set_free_inodes_count(u32::try_from(self.free_inodes()).unwrap_or(u32::MAX));
        sb.set_kbytes_written(self.kbytes_written());
        sb
    }

    /// Changes the superblock within `h`. Costs a credit.
    ///
    /// # Errors
    /// Those of the journal, and `Io`.
    pub fn edit_superblock<R>(
        &self,
        h: &mut Handle<'_>,
        f: impl FnOnce(&mut Superblock) -> R,
    ) -> Result<R> {
        self.join_superblock(h)?;
        Ok(f(&mut self.sb.fields.lock()))
    }

    /// Notes an error in the superblock: it needs a check. It reaches the device with the next
    /// change of a group or of the superblock, at the latest when the file system is closed.
    pub fn record_error(&self, record: &ErrorRecord) {
        let mut sb = self.sb.fields.lock();
        let state = sb.state() | State::ERROR;
        sb.set_state(state);
        sb.record_error(record);
        self.sb.noted.store(true, Ordering::Release);
    }

    /// Notes an error that was met in the superblock, with its coordinates and the time.
    pub fn note(&self, error: &Error) {
        let mut record = ErrorRecord {
            time: u64::try_from(self.vol.now().sec).unwrap_or(0),
            ..ErrorRecord::default()
        };
        match error {
            Error::Corrupt(corrupt) => {
                record.errcode =
                    if corrupt.field_name() == Some("checksum") { BAD_CHECKSUM } else { CORRUPT };
                record.ino = corrupt.inode().unwrap_or_default();
                record.block = corrupt.block().unwrap_or_default();
                record.func = corrupt.what().into();
            }
            Error::Io(_) => record.errcode = IO,
            _ => record.errcode = UNKNOWN,
        }
        self.record_error(&record);
    }

    /// Names the first inode of the orphan list, in the transaction that is being frozen, which
    /// some handle joined the superblock to.
    pub fn set_last_orphan(&self, ino: InodeNr) {
        self.sb.fields.lock().set_last_orphan(ino);
    }

    /// Makes the superblock part of the handle's transaction. Costs a credit.
    ///
    /// # Errors
    /// Those of the journal, and `Io`.
    pub fn join_superblock(&self, h: &mut Handle<'_>) -> Result<()> {
        let tid = h.tid().0;
        if self.sb.tid.load(Ordering::Acquire) != tid {
            h.join(&self.superblock_block()?)?;
            self.sb.tid.store(tid, Ordering::Release);
        }
        Ok(())
    }

    /// Number of the block that holds the superblock.
    pub fn superblock_nr(&self) -> u64 {
        SUPERBLOCK_OFFSET / self.vol.block_size() as u64
    }

    pub(super) fn superblock_block(&self) -> Result<Arc<Buffer>> {
        self.vol.cache.read::<Error>(self.superblock_nr(), |_| Ok(()))
    }
}
