//! Checks of an ext4 file system that never write: each defect is a [`Finding`]. [`repair`] removes
//! them, [`tune`] changes the superblock's values, and [`resize`] the size. [`edit`] writes changes
//! that the engine made in memory. [`Trim`] finds the blocks of an undamaged file system that hold
//! nothing. [`Substitutes`] lets readers open an image whose superblock or descriptors are damaged.
//! [`debug`] shows the structures of an image one by one.
//!
//! The crate reads the device itself, below the engine, since the engine stops at the first
//! corruption. A pass reports a defect and goes on with the structures that do not depend on it.
//!
//! [`Check`] takes a superblock of no use, and impossible places in descriptors, from copies in
//! memory. It replays the journal there, as readers do, and then runs its passes: superblock and
//! descriptors, inode tables with maps and attributes, directories, paths and counts of links,
//! bitmaps and counts, quotas. `docs/design/check.md` explains each of them.
//!
//! # Invariants
//! - Any bytes give findings, never a panic. Work and memory are bounded by the blocks of the
//!   device, not by numbers in the image: groups that begin past the device's end are not visited,
//!   and a block that maps share is read once.
//! - Findings, and their order, are the same for any number of threads.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod claims;
mod codes;
pub mod debug;
mod descriptors;
mod difference;
pub mod edit;
mod facts;
mod finding;
mod identity;
mod maps;
mod parallel;
mod passes;
mod planned;
mod progress;
mod reader;
mod redo;
pub mod repair;
pub mod resize;
mod substitute;
mod survey;
mod trim;
pub mod tune;
mod view;
mod volume;

pub use finding::{CheckSummary, Finding, FindingCode, FindingPlace, PlannedRepair, Severity};
pub use identity::{UuidError, set_uuid};
pub use progress::{CheckProgress, CheckStage};
pub use redo::{RedoError, RedoRecord, finish_redo};
pub use substitute::Substitutes;
pub use trim::{Trim, TrimError, TrimPlan};

use extant_blocks::BlockDevice;
use finding::Findings;
use parallel::Workers;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use survey::Passes;
use view::Source;

/// A check of the file system on a device.
pub struct Check<'c> {
    device: Arc<dyn BlockDevice>,
    journal: Option<Arc<dyn BlockDevice>>,
    as_is: bool,
    threads: usize,
    stop: Arc<AtomicBool>,
    progress: Option<&'c mut dyn FnMut(CheckProgress)>,
}

impl<'c> Check<'c> {
    /// Makes a check of the whole device, with one thread.
    pub fn new(device: Arc<dyn BlockDevice>) -> Check<'c> {
        let stop = Arc::new(AtomicBool::new(false));
        Check { device, journal: None, as_is: false, threads: 1, stop, progress: None }
    }

    /// Sets the device of the journal, for file systems with an external one.
    #[must_use]
    pub fn journal(mut self, device: Arc<dyn BlockDevice>) -> Self {
        self.journal = Some(device);
        self
    }

    /// Leaves the journal alone, so that the blocks of the device are checked as they are. Orphans
    /// count as damage then.
    #[must_use]
    pub fn as_is(mut self, as_is: bool) -> Self {
        self.as_is = as_is;
        self
    }

    /// Sets the number of threads; 0 counts as 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets a flag that ends the check early. [`CheckSummary::interrupted`] tells that.
    #[must_use]
    pub fn interrupt(mut self, flag: Arc<AtomicBool>) -> Self {
        self.stop = flag;
        self
    }

    /// Sets a receiver of progress.
    #[must_use]
    pub fn progress(mut self, receiver: &'c mut dyn FnMut(CheckProgress)) -> Self {
        self.progress = Some(receiver);
        self
    }

    /// Runs the check and hands each finding to `sink`.
    pub fn run(mut self, sink: &mut dyn FnMut(Finding)) -> CheckSummary {
        let mut findings = Findings::new(sink);
        let journal = self.journal.as_ref();
        let stop = Arc::clone(&self.stop);
        let workers = Workers { threads: self.threads, stop: &stop };
        if let Some((device, found)) = Substitutes::for_check(&self.device, journal, workers) {
            found.into_iter().for_each(|finding| findings.report(finding));
            self.device = device;
        }
        let source = Source { device: &self.device, journal, as_is: self.as_is };
        if let Some(view) = source.view(&mut findings) {
            let passes = Passes { as_is: self.as_is, workers, progress: self.progress.take() };
            passes.run(&view, &mut findings);
        }
        findings.summary()
    }
}

impl std::fmt::Debug for Check<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Check");
        out.field("device", &self.device.name()).field("as_is", &self.as_is);
        out.field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
