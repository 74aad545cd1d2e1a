//! The jbd2 journal: handles, group commit, checkpoint, recovery.
//!
//! A [`Journal`] combines changes of cached blocks into transactions. An operation starts a
//! [`Handle`], declares each block through it before changing the block, and drops it. One thread
//! commits the transaction as a whole; another writes committed copies home. When the transaction
//! freezes, the journal's [`Client`] writes its in-memory objects into their blocks. [`recovery`]
//! replays a log that a crash left.
//!
//! For example, a create joins an inode table block and a directory block to transaction 7. The
//! commit writes both to the log, then the commit record. The checkpoint writes both to their home
//! locations later.
//!
//! `docs/design/journal.md` states the assumptions about devices, and argues each point of failure.
#![forbid(unsafe_code)]

mod checkpoint;
mod client;
mod commit;
mod control;
mod error;
mod flush;
mod gate;
mod handle;
mod home;
mod journal;
mod log;
mod members;
pub mod offline;
mod passes;
pub mod recovery;
mod seal;
mod shared;
mod stall;
mod stats;
mod tid;
mod waits;

pub use client::{Client, Freezer};
pub use error::{Error, Result};
pub use flush::WriteStamp;
pub use handle::Handle;
pub use journal::{Config, Journal, UpdatesLock};
pub use log::{
    Log, LogExtent, LogFeatures, LogPlace,
    format::{FormatLog, format_log},
};
pub use seal::Seal;
pub use stats::Stats;
pub use tid::Tid;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
