//! Checks of an ext4 file system that never write: each defect is a [`Finding`].
//!
//! The crate reads the device itself, below the engine, since the engine stops at the first
//! corruption. A pass reports a defect and goes on with the structures that do not depend on it.
//!
//! [`Check`] replays the journal in memory, as readers do, and then runs its passes: superblock and
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
mod facts;
mod finding;
mod maps;
mod parallel;
mod passes;
mod reader;
mod repair;
mod view;
mod volume;

pub use finding::{CheckSummary, Finding, FindingCode, FindingPlace, PlannedRepair, Severity};

use extant_blocks::BlockDevice;
use extant_format::RoCompat;
use finding::Findings;
use parallel::Workers;
use passes::bitmaps::{self, InUse};
use passes::connectivity::{self, ValueCounts};
use passes::directories::DirPass;
use passes::inodes::{InodePass, check_shared, find_claimants};
use passes::{orphans, protection, quota, superblocks};
use reader::Reader;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use view::{Source, View};
use volume::Volume;

/// The part of a check that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CheckStage {
    /// Inode tables; the parts are groups.
    Inodes,
    /// Directories; the parts are directories.
    Directories,
}

/// Progress of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CheckProgress {
    /// The stage that runs.
    pub stage: CheckStage,
    /// Parts of the stage that are done.
    pub done: u64,
    /// Parts of the stage.
    pub total: u64,
}

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
        let source =
            Source { device: &self.device, journal: self.journal.as_ref(), as_is: self.as_is };
        if let Some(view) = source.view(&mut findings) {
            self.check(&view, &mut findings);
        }
        findings.summary()
    }

    fn check(&mut self, view: &View, findings: &mut Findings<'_>) {
        let stop = Arc::clone(&self.stop);
        let workers = Workers { threads: self.threads, stop: &stop };
        superblocks::check_fields(&view.primary, self.as_is, findings);
        let reader = Reader::new(&*view.device, view.primary.geometry);
        superblocks::check_copies(&reader, &view.primary.superblock, findings);
        let volume = Volume::load(reader, view.primary.superblock.clone(), findings);
        protection::check(&volume, findings);
        let orphans = orphans::collect(&volume, !self.as_is, findings);
        let pass = InodePass { volume: &volume, orphans: &orphans };
        self.check_content(pass, view.replayed, workers, findings);
        if workers.stopped() {
            findings.interrupt();
        }
    }

    fn check_content(
        &mut self,
        pass: InodePass<'_>,
        replayed: bool,
        workers: Workers<'_>,
        findings: &mut Findings<'_>,
    ) {
        let volume = pass.volume;
        let mut done = self.counter(CheckStage::Inodes, volume.groups.len());
        let (claims, mut inodes) = pass.run(workers, &mut done);
        drop(done);
        if workers.stopped() {
            return;
        }
        let (mut found, refs, contested) = check_shared(volume, workers, &inodes.shared, &claims);
        inodes.contested.extend(contested);
        inodes.count_values(refs);
        findings.report_all(std::mem::take(&mut inodes.findings));
        let shared = volume.reader.geometry.ro_compat(RoCompat::SHARED_BLOCKS);
        if !inodes.contested.is_empty() && !shared {
            find_claimants(volume, &inodes.contested, &mut found);
        }
        findings.report_all(found);
        let pass = DirPass { volume, facts: &inodes.facts };
        let mut done = self.counter(CheckStage::Directories, inodes.dirs.len());
        let dirs = pass.run(workers, &inodes.dirs, findings, &mut done);
        drop(done);
        if workers.stopped() {
            return;
        }
        connectivity::check_paths(&dirs, findings);
        let values = ValueCounts { stored: &inodes.values, found: &inodes.value_refs };
        connectivity::check_links(volume, workers, &inodes.facts, values, findings);
        let in_use = InUse { claims: &claims, facts: &inodes.facts };
        let free = bitmaps::check(volume, workers, in_use, findings);
        if !workers.stopped() {
            bitmaps::check_totals(volume, replayed, free, findings);
            quota::check(volume, &inodes.usage, findings);
        }
    }

    /// Returns a function that counts the parts of a stage for the receiver of progress.
    fn counter(&mut self, stage: CheckStage, total: usize) -> impl FnMut() {
        let (mut done, total) = (0u64, total as u64);
        let progress = &mut self.progress;
        move || {
            done = done.saturating_add(1);
            if let Some(progress) = progress {
                progress(CheckProgress { stage, done, total });
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
