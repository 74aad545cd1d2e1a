//! The former scope over which writeback collects writes. [`PLUG`] chooses one for the process.

use crate::store::Store;
use extant_sync::designs::Choice;

/// The scope over which the device writes of writeback are collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugged {
    /// Many files, as everywhere else: adjacent blocks of different files become one write.
    Batch,
    /// One file after the other.
    PerInode,
}

/// The chosen scope.
pub static PLUG: Choice<Plugged> = Choice::new(&[Plugged::Batch, Plugged::PerInode]);

/// Returns the most blocks of a batch.
pub fn max_blocks(st: &Store) -> usize {
    match PLUG.get() {
        Plugged::Batch => super::batch::max_blocks(st),
        Plugged::PerInode => 0,
    }
}
