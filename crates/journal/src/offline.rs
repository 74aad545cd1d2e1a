//! Changes of a file system that nothing has open: wholly or not at all.
//!
//! The new contents of blocks become one transaction in the empty log, whose home blocks are
//! written at once. For example, a repair changes blocks 3 (a bitmap) and 40 (a directory). A power
//! cut before the commit record is durable leaves both old; after it, any recovery (of the kernel,
//! of e2fsck, of Extant) makes both new.
//!
//! # Order of writes
//! Each step is durable before the next one begins, but for step 3: start without commit record
//! and commit record without start both count for nothing.
//! 1. The superblock gets the mark that recovery may be needed. The log is still marked empty, so
//!    a recovery only removes the mark.
//! 2. The copies go to the log, zeroes to the places of the commit record and of a transaction
//!    after it. No older content of the log can be taken for a part of it then.
//! 3. The log's superblock gets start and sequence. A recovery finds no commit record.
//! 4. The commit record. It differs from the zeroes before it in its first sector only.
//! 5. The home blocks, and after a flush the superblock among them, with the mark of step 1. A
//!    program that is about to recover reads superblock and descriptors first: a superblock of more
//!    groups must not come before their descriptors.
//! 6. The log is marked empty.
//! 7. The mark of step 1 is removed.
//!
//! # Superblocks of another geometry
//! The kernel counts the groups before it replays the log, and goes on with that number. So a
//! superblock of more groups should not come out of the log.
//! [`OfflineChanges::commit_by_superblock`] writes the log completely (steps 2 to 4) while the
//! superblock has no mark: the kernel empties such a log, e2fsck asks, and replays all of it. The
//! step that counts is then the write of the new superblock with the mark.
//!
//! # A log in free blocks
//! Changes that exceed the log go through a larger one, which the caller formats in free blocks.
//! Steps 2 to 4 write it completely, while nothing refers to it. The step that counts is then the
//! write of the journal's inode, whose fields are within one sector. The changes must contain that
//! inode, and the bitmaps with the new log, since a kernel that replays it goes on to use it.

use crate::error::{Error, Result};
use crate::log::format::FormatLog;
use crate::log::record::{Record, blocks_needed};
use crate::log::{Log, LogFeatures, LogPlace};
use extant_blocks::{BlockDevice, Plug};
use extant_format::features::Incompat;
use extant_format::jbd2::{JournalFormat, JournalIncompat, JournalSuperblock, MIN_JOURNAL_BLOCKS};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock};
use extant_format::types::Timestamp;
use extant_sync::Arc;

/// A block and its new content.
pub type ChangedBlock = (u64, Arc<[u8]>);

/// The failure of a change, with the state in which it left the file system.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OfflineError {
    /// Nothing is changed, but for the mark that recovery may be needed if it could not be removed.
    #[error("nothing was changed: {0}")]
    Unchanged(Error),
    /// The log has the changes, or nothing is changed: a recovery completes or drops them.
    #[error("the changes are in the journal, and the next recovery completes them: {0}")]
    InLog(Error),
}

/// Changed blocks of a file system that nothing else has open, whose log is empty.
#[derive(Clone, Copy, Debug)]
pub struct OfflineChanges<'a> {
    /// The file system's device.
    pub device: &'a dyn BlockDevice,
    /// The blocks, in ascending order, each once and of the file system's block size.
    pub blocks: &'a [ChangedBlock],
    /// The time of the commit record.
    pub time: Timestamp,
}

/// The write that counts.
#[derive(Clone, Copy, Debug)]
enum Switch<'s> {
    /// The commit record.
    Record,
    /// A block of the inode table, with the journal's inode, which refers to another log.
    JournalInode(&'s ChangedBlock),
    /// The superblock among the changes.
    Superblock,
}

/// A transaction that is about to be written.
struct Pending<'p> {
    log: &'p Log,
    /// The log's superblock before and with the transaction.
    before: JournalSuperblock,
    with: JournalSuperblock,
    /// The copies for log and home blocks.
    copies: Vec<ChangedBlock>,
    record: Record,
}

impl OfflineChanges<'_> {
    /// Returns whether the log can take these changes.
    pub fn fit(&self, log: &Log) -> bool {
        check_fit(log, self.blocks.len()).is_ok()
    }

    /// Checks, without a write, that the log can take these changes.
    ///
    /// # Errors
    /// [`OfflineError::Unchanged`], as [`OfflineChanges::commit`].
    pub fn check(&self, log: &Log) -> std::result::Result<(), OfflineError> {
        self.prepare(log).map(|_| ()).map_err(OfflineError::Unchanged)
    }

    /// Makes the changes through the file system's log. Does nothing without changes.
    ///
    /// # Errors
    /// [`OfflineError::Unchanged`] for a log that is not empty, is too small or cannot be written,
    /// for changes of the log's own blocks, and for I/O errors before the commit record;
    /// [`OfflineError::InLog`] for later ones.
    pub fn commit(&self, log: &Log) -> std::result::Result<(), OfflineError> {
        self.commit_at(log, Switch::Record)
    }

    /// Makes the changes, with a superblock of another geometry among them, through the file
    /// system's log. Structures that the new superblock refers to, and that a program reads before
    /// the replay, must be on the device.
    ///
    /// # Errors
    /// As [`OfflineChanges::commit`]; [`OfflineError::Unchanged`] without the superblock.
    pub fn commit_by_superblock(&self, log: &Log) -> std::result::Result<(), OfflineError> {
        self.commit_at(log, Switch::Superblock)
    }

    /// Makes the changes through a log in free blocks. `switch` is a block of the inode table that
    /// differs from the one on the device in the journal's inode only, which refers to `log`. The
    /// file system's own log must be empty.
    ///
    /// # Errors
    /// As [`OfflineChanges::commit`].
    pub fn commit_by_switch(
        &self,
        log: &Log,
        switch: &ChangedBlock,
    ) -> std::result::Result<(), OfflineError> {
        self.commit_at(log, Switch::JournalInode(switch))
    }

    fn commit_at(&self, log: &Log, switch: Switch<'_>) -> std::result::Result<(), OfflineError> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        let pending = self.prepare(log).map_err(OfflineError::Unchanged)?;
        if let Err(error) = self.put_in_log(&pending, switch) {
            // The commit record was not written, so the rest does not count.
            let undone = pending.write_superblock(&pending.before);
            let undone = undone.and_then(|()| pending.flush());
            if undone.is_err() && matches!(switch, Switch::Superblock) {
                // The log may be complete, and e2fsck replays it.
                return Err(OfflineError::InLog(error));
            }
            if undone.is_ok() {
                let _ = self.mark(false);
            }
            return Err(OfflineError::Unchanged(error));
        }
        self.finish(&pending, switch).map_err(OfflineError::InLog)
    }

    fn prepare<'p>(&self, log: &'p Log) -> Result<Pending<'p>> {
        if log.needs_recovery() {
            return Err(Error::NeedsRecovery);
        }
        let wide = self.blocks.last().is_some_and(|(nr, _)| *nr > u64::from(u32::MAX));
        let mut with = log.prepare(LogFeatures { checksums: None, bit64: wide })?;
        check_format(log, &with.format(), self.blocks.len())?;
        let own = log.own_blocks();
        let is_own = |nr: u64| own.iter().any(|(start, end)| (*start..*end).contains(&nr));
        if self.blocks.iter().any(|(nr, _)| is_own(*nr)) {
            return Err(Error::Unsupported("changing blocks of the log through the log"));
        }
        let sequence = log.superblock().sequence().wrapping_add(1);
        with.set_start(with.first());
        with.set_sequence(sequence);
        with.set_head(0);
        let copies = self.marked_copies(log.block_size())?;
        let record = Record::build(&with.format(), sequence, &copies, &[], self.time);
        Ok(Pending { log, before: log.superblock().clone(), with, copies, record })
    }

    /// Returns the changed blocks, with the mark of step 1 in the superblock.
    fn marked_copies(&self, block_size: usize) -> Result<Vec<ChangedBlock>> {
        let holder = SUPERBLOCK_OFFSET / block_size.max(1) as u64;
        let within = (SUPERBLOCK_OFFSET % block_size.max(1) as u64) as usize;
        let mut copies = self.blocks.to_vec();
        for (nr, bytes) in &mut copies {
            if bytes.len() != block_size {
                return Err(Error::Unsupported("changes of a part of a block"));
            }
            if *nr == holder {
                let mut block = bytes.to_vec();
                mark_recovery(&mut block[within..within + SUPERBLOCK_SIZE], true)?;
                *bytes = block.into();
            }
        }
        Ok(copies)
    }

    /// Steps 1 to 3, where the commit record is the write that counts. Otherwise the log is
    /// complete before it is marked as not empty.
    fn put_in_log(&self, pending: &Pending<'_>, switch: Switch<'_>) -> Result<()> {
        match switch {
            Switch::Superblock => drop(self.superblock(pending)?),
            Switch::Record | Switch::JournalInode(_) => self.mark(true)?,
        }
        pending.write_body()?;
        if !matches!(switch, Switch::Record) {
            pending.write_commit()?;
        }
        pending.flush()?;
        pending.write_superblock(&pending.with)?;
        if !matches!(switch, Switch::Record) {
            pending.flush()?;
        }
        Ok(())
    }

    /// The write that counts, and steps 5 to 7.
    fn finish(&self, pending: &Pending<'_>, switch: Switch<'_>) -> Result<()> {
        let size = pending.log.block_size() as u64;
        match switch {
            Switch::Record => pending.write_commit()?,
            Switch::JournalInode((nr, bytes)) => {
                self.device.write_all_at(bytes, nr.saturating_mul(size))?;
            }
            Switch::Superblock => {
                self.device.write_all_at(&self.superblock(pending)?, SUPERBLOCK_OFFSET)?;
                self.device.flush()?;
            }
        }
        pending.flush()?;
        if pending.log.place() == LogPlace::External {
            self.device.flush()?;
        }
        let holder = SUPERBLOCK_OFFSET / size.max(1);
        for is_last in [false, true] {
            let mut plug = Plug::new(self.device);
            for (nr, bytes) in pending.copies.iter().filter(|(nr, _)| (*nr == holder) == is_last) {
                plug.add(nr.saturating_mul(size), &bytes[..]);
            }
            if !plug.is_empty() {
                plug.finish()?;
                self.device.flush()?;
            }
        }
        pending.mark_empty()?;
        self.mark(false)
    }

    /// Returns the marked superblock among the changes.
    fn superblock(&self, pending: &Pending<'_>) -> Result<[u8; SUPERBLOCK_SIZE]> {
        let size = pending.log.block_size() as u64;
        let (holder, within) = (SUPERBLOCK_OFFSET / size, (SUPERBLOCK_OFFSET % size) as usize);
        let block = pending.copies.iter().find(|(nr, _)| *nr == holder);
        let bytes = block.and_then(|(_, bytes)| bytes.get(within..within + SUPERBLOCK_SIZE));
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or(Error::Unsupported("changes without a superblock"))
    }

    /// Sets or removes the mark that recovery may be needed.
    fn mark(&self, needed: bool) -> Result<()> {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        self.device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
        mark_recovery(&mut bytes, needed)?;
        self.device.write_all_at(&bytes, SUPERBLOCK_OFFSET)?;
        Ok(self.device.flush()?)
    }

    /// Makes the changes without a log, the superblock's block last. A power cut leaves a part of
    /// the changes, in a file system that is marked as not cleanly unmounted.
    ///
    /// # Errors
    /// I/O errors; a part of the changes may be made then.
    pub fn write_in_place(&self, block_size: u32) -> Result<()> {
        let holder = SUPERBLOCK_OFFSET / u64::from(block_size.max(1));
        let unmarked = self.mark_unclean()?;
        for is_last in [false, true] {
            let mut plug = Plug::new(self.device);
            for (nr, bytes) in self.blocks.iter().filter(|(nr, _)| (*nr == holder) == is_last) {
                plug.add(nr.saturating_mul(u64::from(block_size)), &bytes[..]);
            }
            plug.finish()?;
            self.device.flush()?;
        }
        if self.blocks.iter().all(|(nr, _)| *nr != holder) {
            self.device.write_all_at(&unmarked, SUPERBLOCK_OFFSET)?;
            self.device.flush()?;
        }
        Ok(())
    }

    /// Marks the file system as not cleanly unmounted. Returns the superblock before.
    fn mark_unclean(&self) -> Result<[u8; SUPERBLOCK_SIZE]> {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        self.device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
        if let Ok(mut superblock) = Superblock::parse_unverified(&bytes) {
            superblock.set_state(superblock.state() - State::VALID);
            self.device.write_all_at(&superblock.seal(), SUPERBLOCK_OFFSET)?;
            self.device.flush()?;
        }
        Ok(bytes)
    }
}

impl Pending<'_> {
    fn write_body(&self) -> Result<()> {
        let (device, mut at) = (self.log.device(), self.with.first());
        for piece in &self.record.body {
            device.write_all_at(piece, self.log.offset(at)?)?;
            at = self.log.after(at);
        }
        let blank = vec![0; self.log.block_size()];
        device.write_all_at(&blank, self.log.offset(at)?)?;
        Ok(device.write_all_at(&blank, self.log.offset(self.log.after(at))?)?)
    }

    fn write_commit(&self) -> Result<()> {
        // The capacity exceeds the record's length, so the log does not wrap.
        let at = self.with.first().saturating_add(self.record.body.len() as u32);
        Ok(self.log.device().write_all_at(&self.record.commit, self.log.offset(at)?)?)
    }

    fn write_superblock(&self, superblock: &JournalSuperblock) -> Result<()> {
        self.log.write_superblock(superblock)
    }

    fn mark_empty(&self) -> Result<()> {
        let mut superblock = self.with.clone();
        superblock.set_start(0);
        superblock.set_head(superblock.first());
        superblock.set_sequence(superblock.sequence().wrapping_add(1));
        self.write_superblock(&superblock)?;
        self.flush()
    }

    fn flush(&self) -> Result<()> {
        Ok(self.log.device().flush()?)
    }
}

/// Checks that the log can take a transaction of so many blocks, its end included.
///
/// # Errors
/// [`Error::NoCredits`].
pub fn check_fit(log: &Log, blocks: usize) -> Result<()> {
    check_format(log, &log.superblock().format(), blocks)
}

fn check_format(log: &Log, format: &JournalFormat, blocks: usize) -> Result<()> {
    // A block after the commit record stays zero.
    let wanted = blocks_needed(format, blocks, 0).saturating_add(1);
    let available = log.capacity();
    if wanted > available { Err(Error::NoCredits { wanted, available }) } else { Ok(()) }
}

impl Log {
    /// Returns the superblock of an empty log with the features of this one, long enough for
    /// changes of so many blocks.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a log on a device of its own, one of version 1, and a length
    /// beyond 32 bits.
    pub fn superblock_for(&self, blocks: usize) -> Result<JournalSuperblock> {
        if self.place() == LogPlace::External {
            return Err(Error::Unsupported("another length of an external journal"));
        }
        // Numbers of 64 bits take the most space.
        let format = self.prepare(LogFeatures { checksums: None, bit64: true })?.format();
        let superblock = self.superblock();
        let wanted = blocks_needed(&format, blocks, 0).saturating_add(1);
        let wanted = wanted.saturating_add(superblock.first()).max(MIN_JOURNAL_BLOCKS);
        let mut longest = superblock.clone();
        longest.set_max_len(u32::MAX);
        let len = wanted.saturating_add(longest.fast_commit_blocks());
        if len == u32::MAX {
            return Err(Error::Unsupported("so long a journal"));
        }
        self.superblock_of_length(len)
    }

    /// Returns the superblock of an empty log of `len` blocks with the features of this one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a log on a device of its own, and one of version 1.
    pub fn superblock_of_length(&self, len: u32) -> Result<JournalSuperblock> {
        if self.place() == LogPlace::External {
            return Err(Error::Unsupported("another length of an external journal"));
        }
        self.prepare(LogFeatures::default())?;
        let mut superblock = self.superblock().clone();
        superblock.set_max_len(len);
        superblock.set_start(0);
        superblock.set_head(superblock.first());
        superblock.set_errno(0);
        Ok(superblock)
    }
}

/// Sets or removes the mark in a superblock, and seals it. The bytes stay as they are if the mark
/// does.
fn mark_recovery(bytes: &mut [u8], needed: bool) -> Result<()> {
    let mut superblock = Superblock::parse_unverified(bytes)?;
    let mut features = superblock.features();
    if features.incompat.contains(Incompat::RECOVER) == needed {
        return Ok(());
    }
    features.incompat.set(Incompat::RECOVER, needed);
    superblock.set_features(features);
    bytes.copy_from_slice(&superblock.seal());
    Ok(())
}

/// Writes the superblock of an empty log over a log that cannot be replayed, and flushes. Its
/// transactions are lost.
///
/// # Errors
/// I/O errors.
pub fn reset_log(log: &Log) -> Result<()> {
    let old = log.superblock();
    let mut new = FormatLog::new(old.block_size(), old.max_len()).superblock();
    new.set_first(old.first());
    new.set_uuid(old.uuid());
    new.set_num_fc_blks(old.num_fc_blks());
    let known = JournalIncompat::from_bits_truncate(old.incompat().bits());
    new.set_incompat(known - JournalIncompat::ASYNC_COMMIT);
    if log.place() == LogPlace::External {
        new.raw_mut().users = old.raw().users;
        new.set_nr_users(old.nr_users());
    }
    // Above the sequence of every transaction that the log may hold.
    new.set_sequence(old.sequence().wrapping_add(old.max_len()).wrapping_add(1));
    log.write_superblock(&new)?;
    Ok(log.device().flush()?)
}

/// Replaces a user in the superblock of an empty log, and flushes. Does nothing if it has no such
/// user.
///
/// # Errors
/// I/O errors.
pub fn replace_user(log: &Log, old: [u8; 16], new: [u8; 16]) -> Result<()> {
    let mut superblock = log.superblock().clone();
    let count = superblock.users().len();
    let users = superblock.raw_mut().users.iter_mut().take(count);
    users.filter(|user| **user == old).for_each(|user| *user = new);
    if superblock.users() == log.superblock().users() {
        return Ok(());
    }
    log.write_superblock(&superblock)?;
    Ok(log.device().flush()?)
}

/// Makes a file system the only user in the superblock of an empty log, and flushes.
///
/// # Errors
/// I/O errors; [`Error::Unsupported`] for the log of another file system.
pub fn set_user(log: &Log, user: [u8; 16]) -> Result<()> {
    let mut superblock = log.superblock().clone();
    match superblock.users() {
        [] => {}
        [known] if *known == user => return Ok(()),
        _ => return Err(Error::Unsupported("a journal of several file systems")),
    }
    superblock.raw_mut().users.iter_mut().take(1).for_each(|place| *place = user);
    superblock.set_nr_users(1);
    log.write_superblock(&superblock)?;
    Ok(log.device().flush()?)
}

/// Removes a user from the superblock of an empty log, and flushes. Does nothing if it has no such
/// user.
///
/// # Errors
/// I/O errors.
pub fn remove_user(log: &Log, user: [u8; 16]) -> Result<()> {
    let mut superblock = log.superblock().clone();
    let kept: Vec<[u8; 16]> =
        superblock.users().iter().copied().filter(|known| *known != user).collect();
    if kept.len() == superblock.users().len() {
        return Ok(());
    }
    let places = superblock.raw_mut().users.iter_mut();
    let list = kept.iter().copied().chain(std::iter::repeat([0; 16]));
    places.zip(list).for_each(|(place, user)| *place = user);
    superblock.set_nr_users(kept.len() as u32);
    log.write_superblock(&superblock)?;
    Ok(log.device().flush()?)
}
