//! Transaction handles, and the steps within them that alone may change anything.
//!
//! A handle ([`Tx`]) is a number of credits in the running transaction. It writes nothing itself.
//! Changes are made in steps ([`Step`]), of which each leads from one consistent state to the next.
//! Appending a block to a directory is one step, for example: the block is booked, mapped,
//! formatted and counted in the size. Between two steps a commit may come, and the handle may go on
//! in another transaction ([`Tx::restart`]).
//!
//! # Invariants
//! - A step that fails after its first change aborts the journal, for every error: half a step
//!   never becomes durable. A lack of space is no exception. Space, nodes of maps, quota records
//!   and the blocks that a step reads must therefore be obtained before its first change.
//! - A panic within a step aborts the journal when it drops the handle.
//! - A step is not interrupted: signals for the caller are seen between steps.

use super::{BodyMut, Inode, InodeTable};
use crate::bounds::uninterrupted;
use crate::error::Result;
use crate::volume::SpaceRights;
use extant_blocks::{Buffer, BufferWrite};
use extant_journal::{Handle, Seal, Tid};
use std::sync::Arc;

/// An open transaction handle: credits, and the right to go on in another transaction.
#[derive(Debug)]
#[must_use]
pub struct Tx<'a> {
    step: Step<'a>,
}

/// The only writer. Callers get one from a [`Tx`], for the time of a step.
#[derive(Debug)]
pub struct Step<'a> {
    table: &'a InodeTable,
    handle: Handle<'a>,
    /// Rights of the caller to space.
    rights: SpaceRights,
}

impl InodeTable {
    /// Opens a handle that may change at most `credits` blocks.
    ///
    /// # Errors
    /// EROFS, EIO after a shutdown, and those of the journal.
    pub fn begin(&self, credits: u32) -> Result<Tx<'_>> {
        Ok(Tx::new(self, self.vol.start(credits)?))
    }

    /// As [`InodeTable::begin`]; nothing where a frozen file system would have to be waited for.
    ///
    /// # Errors
    /// As [`InodeTable::begin`].
    pub fn begin_unless_locked(&self, credits: u32) -> Result<Option<Tx<'_>>> {
        let handle = self.vol.journal.start_unless_locked(credits)?;
        Ok(handle.map(|handle| Tx::new(self, handle)))
    }
}

impl<'a> Tx<'a> {
    fn new(table: &'a InodeTable, handle: Handle<'a>) -> Tx<'a> {
        Tx { step: Step { table, handle, rights: SpaceRights::default() } }
    }

    /// Changes on behalf of a caller with these rights.
    pub fn with_rights(mut self, rights: SpaceRights) -> Tx<'a> {
        self.step.rights = rights;
        self
    }

    /// The caller's rights to space.
    pub fn rights(&self) -> SpaceRights {
        self.step.rights
    }

    /// Runs a step. An error after its first change aborts the journal.
    ///
    /// # Errors
    /// Those of the step.
    pub fn step<R>(&mut self, change: impl FnOnce(&mut Step<'a>) -> Result<R>) -> Result<R> {
        self.step.step(change)
    }

    /// Runs several steps of which all or none must become durable, though they may be committed
    /// one after the other: an error after the first change of the first one aborts the journal.
    ///
    /// # Errors
    /// Those of the steps.
    pub fn sequence<R>(&mut self, steps: impl FnOnce(&mut Tx<'a>) -> Result<R>) -> Result<R> {
        let before = self.step.changes();
        let done = uninterrupted(|| steps(self));
        self.step.end(before, done)
    }

    /// Obtains something of the modules below before a step: an inode number, the records of
    /// owners. Blocks may join the transaction. An error must mean that nothing was obtained.
    ///
    /// # Errors
    /// Those of `obtain`.
    pub fn obtain<R>(&mut self, obtain: impl FnOnce(&mut Handle<'a>) -> Result<R>) -> Result<R> {
        obtain(&mut self.step.handle)
    }

    /// Reads the slot of an inode that the next step edits, and makes it part of the transaction.
    /// Changes nothing.
    ///
    /// # Errors
    /// ESTALE if the inode has been freed; `Corrupt`, `Io`.
    pub fn touch(&mut self, inode: &Arc<Inode>) -> Result<()> {
        self.step.touch(inode)
    }

    /// As [`Tx::touch`], an inode that is being made and that no other thread knows yet.
    ///
    /// # Errors
    /// `Corrupt`, `Io`; the slot is as it was then.
    pub fn touch_new(&mut self, inode: &Arc<Inode>) -> Result<()> {
        let Step { table, handle, .. } = &mut self.step;
        table.dirty.mark_new(table, handle, inode)
    }

    /// As [`Inode::note_datasync`], for a new inode.
    pub fn note_datasync(&self, inode: &Inode) {
        inode.note_datasync(&self.step);
    }

    /// How many more blocks may be changed.
    pub fn credits_left(&self) -> u32 {
        self.step.credits_left()
    }

    /// See [`Step::extend`].
    ///
    /// # Errors
    /// If the journal was aborted.
    pub fn extend(&mut self, credits: u32) -> Result<bool> {
        self.step.extend(credits)
    }

    /// Goes on in a transaction that has room for `credits`, which may be the same one. No lock
    /// further inward than a handle may be held.
    ///
    /// # Errors
    /// If the journal was aborted; the handle may then only be dropped.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        Ok(self.step.handle.restart(credits)?)
    }

    /// Makes sure of credits, in a new transaction if need be.
    ///
    /// # Errors
    /// As [`Tx::restart`].
    pub fn with_credits(&mut self, credits: u32) -> Result<()> {
        if self.credits_left() >= credits || self.extend(credits)? {
            Ok(())
        } else {
            self.restart(credits)
        }
    }
}

impl<'a> Step<'a> {
    /// The body of an inode for changing. ESTALE if the inode has been freed: its slot may be
    /// another's.
    ///
    /// # Errors
    /// ESTALE, `Corrupt`, `Io`.
    pub fn edit<'i>(&mut self, inode: &'i Arc<Inode>) -> Result<BodyMut<'i>> {
        self.touch(inode)?;
        self.handle.note_change();
        Ok(inode.body_mut())
    }

    /// As [`Tx::touch`].
    ///
    /// # Errors
    /// As [`Tx::touch`].
    pub fn touch(&mut self, inode: &Arc<Inode>) -> Result<()> {
        self.table.dirty.mark(self.table, &mut self.handle, inode)
    }

    /// Changes the body of an inode that was touched before. An error of `change` must mean that it
    /// has changed nothing.
    ///
    /// # Errors
    /// As [`Step::edit`], and those of `change`.
    pub fn try_edit<R>(
        &mut self,
        inode: &Arc<Inode>,
        change: impl FnOnce(&mut BodyMut<'_>) -> Result<R>,
    ) -> Result<R> {
        self.touch(inode)?;
        let done = change(&mut inode.body_mut())?;
        self.handle.note_change();
        Ok(done)
    }

    /// Exclusive access to the bytes of a block. `seal` is applied when the transaction freezes;
    /// [`Seal::NONE`] leaves an earlier one in place.
    ///
    /// # Errors
    /// Those of the journal.
    #[inline]
    pub fn write<'b>(&mut self, buffer: &'b Arc<Buffer>, seal: Seal) -> Result<BufferWrite<'b>> {
        Ok(self.handle.write(buffer, seal)?)
    }

    /// The handle, for modules below the inode: space, groups, quota.
    pub fn handle(&mut self) -> &mut Handle<'a> {
        &mut self.handle
    }

    /// The caller's rights to space.
    pub fn rights(&self) -> SpaceRights {
        self.rights
    }

    /// The slots of inodes.
    pub fn table(&self) -> &'a InodeTable {
        self.table
    }

    /// The transaction.
    pub fn tid(&self) -> Tid {
        self.handle.tid()
    }

    /// How many more blocks may be changed.
    pub fn credits_left(&self) -> u32 {
        self.handle.credits_left()
    }

    /// Asks for `credits` more in the same transaction. False if they do not fit.
    ///
    /// # Errors
    /// If the journal was aborted.
    pub fn extend(&mut self, credits: u32) -> Result<bool> {
        Ok(self.handle.extend(credits)?)
    }

    /// Returns the number of changes made or begun. A step that fails has changed nothing if this
    /// number is the same as before it.
    pub fn changes(&self) -> u64 {
        self.handle.changes()
    }

    /// Runs a step within this one, as [`Tx::step`].
    ///
    /// # Errors
    /// Those of the step.
    pub fn step<R>(&mut self, change: impl FnOnce(&mut Step<'a>) -> Result<R>) -> Result<R> {
        let before = self.changes();
        let done = uninterrupted(|| change(self));
        self.end(before, done)
    }

    /// Ends a step that began when the handle counted `before` changes.
    pub fn end<R>(&self, before: u64, done: Result<R>) -> Result<R> {
        done.inspect_err(|e| {
            if self.changes() != before {
                self.table.abort(e);
            }
        })
    }
}
