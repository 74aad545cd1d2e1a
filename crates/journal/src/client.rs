//! The interface between the journal and its client.

use crate::error::{Error, Result};
use crate::members::Members;
use crate::tid::Tid;
use extant_blocks::{Buffer, BufferWrite};
use extant_format::types::Timestamp;
use extant_sync::Arc;
use std::fmt;

/// The checksum function of a block, applied just before the block is frozen. It must read nothing
/// but its arguments.
#[derive(Clone, Copy)]
pub struct Seal {
    /// Called with the block's bytes, its number and `seed`.
    pub f: fn(&mut [u8], u64, u32),
    /// The initial value of the checksum.
    pub seed: u32,
}

impl Seal {
    /// For blocks without a checksum, or whose owner has computed it.
    pub const NONE: Seal = Seal { f: nothing, seed: 0 };

    pub(crate) fn is_none(self) -> bool {
        std::ptr::fn_addr_eq(self.f, Seal::NONE.f)
    }

    /// Returns the seal's name as one word, 0 for none. All functions belong to one program, so
    /// their distances fit into 32 bits; if one does not, the seal has no tag.
    pub(crate) fn tag(self) -> u64 {
        let distance = (self.f as usize).wrapping_sub(Seal::NONE.f as usize) as isize;
        i32::try_from(distance)
            .map_or(0, |distance| u64::from(distance as u32) << 32 | u64::from(self.seed))
    }
}

// Not inlined, so that it has one address. A function that shares the address does nothing either.
#[inline(never)]
fn nothing(_block: &mut [u8], _nr: u64, _seed: u32) {}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            f.write_str("Seal::NONE")
        } else {
            write!(f, "Seal(seed {:#x})", self.seed)
        }
    }
}

/// The owner of the in-memory objects of the blocks. The journal's threads call it, and the thread
/// that met the error calls `aborted`. No journal lock is held, but the client must neither start
/// handles nor wait for commits.
pub trait Client: Send + Sync {
    /// Writes every in-memory object that is dirty in `tid` into its block. No handle of `tid` is
    /// open, and its successor has not opened. An error aborts the journal.
    fn freeze(&self, tid: Tid, out: &mut Freezer<'_>) -> Result<()>;

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
