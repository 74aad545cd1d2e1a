//! What the journal tells those above it, and what it asks of them.

use crate::error::{Error, Result};
use crate::members::Members;
use crate::tid::Tid;
use extant_blocks::{Buffer, BufferWrite};
use extant_format::types::Timestamp;
use extant_sync::Arc;
use std::fmt;

/// Gives a block its checksum just before it is frozen. It must not read anything but its
/// arguments.
#[derive(Clone, Copy)]
pub struct Seal {
    /// Called with the block's bytes, its number and `seed`.
    pub f: fn(&mut [u8], u64, u32),
    /// Where the checksum's chain starts.
    pub seed: u32,
}

impl Seal {
    /// The block carries no checksum, or its owner has computed it.
    pub const NONE: Seal = Seal { f: nothing, seed: 0 };

    pub(crate) fn is_none(self) -> bool {
        std::ptr::fn_addr_eq(self.f, Seal::NONE.f)
    }

    /// Names the seal in one word, 0 for none. The functions are those of one program, so their
    /// distances fit into half of it; should they not, the seal has no tag.
    pub(crate) fn tag(self) -> u64 {
        let distance = (self.f as usize).wrapping_sub(Seal::NONE.f as usize) as isize;
        i32::try_from(distance)
            .map_or(0, |distance| u64::from(distance as u32) << 32 | u64::from(self.seed))
    }
}

// Not inlined, so that it has one address. Should another function share it, that one does nothing
// either.
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

/// The owner of the in-memory objects that blocks are made from. Called by the journal's threads,
/// and `aborted` by whoever met the error; no journal lock is held, but the client must not start
/// handles nor wait for commits.
pub trait Client: Send + Sync {
    /// No handle of `tid` is open and its successor has not opened: write every in-memory object
    /// that is dirty in `tid` into its block. An error aborts the journal.
    fn freeze(&self, tid: Tid, out: &mut Freezer<'_>) -> Result<()>;

    /// `tid` is durable: what it freed may be allocated again.
    fn committed(&self, tid: Tid);

    /// Nothing will be committed any more. Called once, on the thread that met the error, with
    /// whatever locks it holds.
    fn aborted(&self, why: &Error);

    /// The time that commit records are given; `None` is the system's.
    fn now(&self) -> Option<Timestamp> {
        None
    }
}

/// Gives the client its blocks while a transaction is frozen.
#[derive(Debug)]
pub struct Freezer<'a> {
    pub(crate) tid: Tid,
    pub(crate) members: &'a Members,
    /// How many blocks may still join beyond those that handles have joined.
    pub(crate) spare: u32,
}

impl Freezer<'_> {
    /// The transaction that is being frozen.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Exclusive access to the bytes of a block of the transaction, and how it is sealed;
    /// [`Seal::NONE`] leaves the seal that it got earlier in this transaction. A block that no
    /// handle joined becomes part of the transaction, as long as few do.
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
