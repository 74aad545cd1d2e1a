//! The interface between the journal and its client.

use crate::error::{Error, Result};
use crate::members::Members;
use crate::seal::Seal;
use crate::tid::Tid;
use extant_blocks::{Buffer, BufferWrite};
use extant_format::types::Timestamp;
use extant_sync::Arc;

/// The owner of the in-memory objects of the blocks. The journal's threads call it, and the thread
/// that met the error calls `aborted`. No journal lock is held, but the client must neither start
/// handles nor wait for commits.
pub trait Client: Send + Sync {
    /// Writes every in-memory object that is dirty in `tid` into its block. No handle of `tid` is
    /// open, and its successor has not opened.
    ///
    /// # Errors
    /// Those of reading blocks that are not cached. An error aborts the journal.
    fn freeze(&self, tid: Tid, out: &mut Freezer<'_>) -> Result<()>;

    /// Writes the data that must be on the device before `tid` is durable: the flush before its
    /// commit record covers them. `tid` is frozen and its successor has opened. The client must
    /// note each write with [`Journal::note_data_write`](crate::Journal::note_data_write).
    ///
    /// # Errors
    /// [`Error::NoSpace`], after which it is called again for the same transaction. Any other error
    /// of the writes aborts the journal.
    fn write_ordered(&self, _tid: Tid) -> Result<()> {
        Ok(())
    }

    /// Called once for each transaction that is committed because its time has come, before the
    /// commit begins. A client with work that belongs to the transaction begins it on another
    /// thread, without waiting, and returns true. The commit then begins when the client calls
    /// [`Journal::prepared`](crate::Journal::prepared), or a second later.
    fn prepare(&self) -> bool {
        false
    }

    /// Called when `tid` is durable: the blocks that it freed may be allocated again.
    fn committed(&self, tid: Tid);

    /// Called once when the journal is aborted, on the thread that met the error, under any locks
    /// that the thread holds.
    fn aborted(&self, why: &Error);

    /// Returns the time for commit records; `None` for the system's.
    fn now(&self) -> Option<Timestamp> {
        None
    }
}

/// The client's access to blocks while a transaction is frozen.
#[derive(Debug)]
pub struct Freezer<'a> {
    pub(crate) tid: Tid,
    pub(crate) members: &'a Members,
    /// The number of blocks that may still join besides those that handles have joined.
    pub(crate) spare: u32,
}

impl Freezer<'_> {
    /// Returns the transaction that is being frozen.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Returns exclusive access to the bytes of a block of the transaction, and sets its seal;
    /// [`Seal::NONE`] keeps the seal of earlier writes in this transaction. A block that no handle
    /// has joined becomes a member, within a small limit.
    ///
    /// # Errors
    /// [`Error::NoCredits`] if too many blocks join this way.
    pub fn write<'b>(&mut self, buffer: &'b Arc<Buffer>, seal: Seal) -> Result<BufferWrite<'b>> {
        if self.members.add(self.tid, buffer, seal) {
            self.spare =
                self.spare.checked_sub(1).ok_or(Error::NoCredits { wanted: 1, available: 0 })?;
        }
        Ok(buffer.write_unlogged())
    }
}
