//! jbd2: handles, group commit, checkpoint, recovery.
//!
//! A [`Journal`] turns changes of cached blocks into transactions. Operations start a [`Handle`],
//! let it know each block before they change it, and drop it; a thread commits the transaction as a
//! whole, another brings committed copies home. The objects that blocks are made from are written
//! into them when the transaction freezes, by the journal's [`Client`]. [`recovery`] replays a log
//! that was left by a crash.
//!
//! What is assumed of devices, and why each point of failure is harmless, is in `docs/journal.md`.
#![forbid(unsafe_code)]

mod checkpoint;
mod client;
mod commit;
mod control;
mod error;
mod flush;
mod gate;
mod handle;
mod journal;
mod log;
mod members;
pub mod recovery;
mod shared;
mod stats;
mod tid;

pub use client::{Client, Freezer, Seal};
pub use error::{Error, Result};
pub use flush::WriteStamp;
pub use handle::Handle;
pub use journal::{Config, Journal, UpdatesLock};
pub use log::{
    Log, LogExtent, LogFeatures, LogPlace,
    format::{FormatLog, format_log},
};
pub use stats::Stats;
pub use tid::Tid;

/// The examples of the README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
