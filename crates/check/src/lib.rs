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
mod read_test;
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
pub use read_test::{ReadTest, ReadTestResult};
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
    in_use: bool,
    threads: usize,
    stop: Arc<AtomicBool>,
    progress: Option<&'c mut dyn FnMut(CheckProgress)>,
    reads_all: bool,
}

impl<'c> Check<'c> {
    /// Makes a check of the whole device, with one thread.
    pub fn new(device: Arc<dyn BlockDevice>) -> Check<'c> {
        let stop = Arc::new(AtomicBool::new(false));
        let (as_is, in_use, reads_all) = (false, false, false);
        let (journal, progress) = (None, None);
        Check { device, journal, as_is, in_use, threads: 1, stop, progress, reads_all }
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

    /// Checks a file system that another program uses: the blocks of the device as they are, in
    /// which there may be orphans. Changes meanwhile may count as damage.
    #[must_use]
    pub fn in_use(mut self, in_use: bool) -> Self {
        self.in_use = in_use;
        self
    }

    /// Reads all blocks, too, also those that nothing uses, and reports those that cannot be read
    /// and are not listed as bad.
    #[must_use]
    pub fn read_test(mut self, reads_all: bool) -> Self {
        self.reads_all = reads_all;
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
        let source = Source { device: &self.device, journal, as_is: self.as_is || self.in_use };
        if let Some(view) = source.view(&mut findings) {
            let progress: Option<&mut dyn FnMut(CheckProgress)> = match &mut self.progress {
                Some(progress) => Some(&mut **progress),
                None => None,
            };
            let as_is = self.as_is && !self.in_use;
            let passes = Passes { as_is, workers, progress };
            if passes.run(&view, &mut findings).is_some() && self.reads_all {
                self.read_all(&mut findings);
            }
        }
        findings.summary()
    }

    fn read_all(&mut self, findings: &mut Findings<'_>) {
        let test = ReadTest { device: &*self.device, threads: self.threads, stop: &self.stop };
        let progress = &mut self.progress;
        let read = test.run(&mut |done, total| {
            if let Some(progress) = progress {
                progress(CheckProgress { stage: CheckStage::Blocks, done, total });
            }
        });
        match read {
            Ok(result) => {
                for run in
                    result.unlisted.chunk_by(|block, next| block.checked_add(1) == Some(*next))
                {
                    let first = run.first().copied().unwrap_or_default();
                    let place = FindingPlace::default().block(first).field("blocks");
                    let finding = Finding::new(FindingCode::Unreadable, place);
                    findings.report(finding.found(run.len() as u64));
                }
            }
            Err(repair::RepairError::Interrupted) => findings.interrupt(),
            Err(_) => {
                let place = FindingPlace::default().field("read test");
                findings.report(Finding::new(FindingCode::Unreadable, place));
            }
        }
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
