//! All passes over one view, and their results.

use crate::claims::ClaimMap;
use crate::finding::Findings;
use crate::parallel::Workers;
use crate::passes::bitmaps::{self, InUse};
use crate::passes::connectivity::{self, ValueCounts};
use crate::passes::directories::{Dir, DirPass};
use crate::passes::inodes::{InodePass, Inodes, check_shared, find_claimants};
use crate::passes::{orphans, protection, quota, superblocks};
use crate::progress::{CheckProgress, CheckStage};
use crate::reader::Reader;
use crate::view::View;
use crate::volume::Volume;
use extant_format::RoCompat;

/// Results of the passes that a repair goes on from.
pub struct Survey<'v> {
    pub volume: Volume<'v>,
    /// The clusters in use.
    pub claims: ClaimMap,
    pub inodes: Inodes,
    /// All directories in the order of their numbers.
    pub dirs: Vec<Dir>,
}

/// A run of all passes.
pub struct Passes<'w, 'p> {
    /// Orphans are damage.
    pub as_is: bool,
    pub workers: Workers<'w>,
    pub progress: Option<&'p mut dyn FnMut(CheckProgress)>,
}

impl Passes<'_, '_> {
    /// Runs the passes over a view. `None` if they were interrupted.
    pub fn run<'v>(mut self, view: &'v View, findings: &mut Findings<'_>) -> Option<Survey<'v>> {
        superblocks::check_fields(&view.primary, self.as_is, findings);
        let reader = Reader::new(&*view.device, view.primary.geometry);
        superblocks::check_copies(&reader, &view.primary.superblock, findings);
        let volume = Volume::load(reader, view.primary.superblock.clone(), findings);
        protection::check(&volume, findings);
        let survey = self.content(volume, view.replayed, findings);
        if survey.is_none() || self.workers.stopped() {
            findings.interrupt();
            return None;
        }
        survey
    }

    fn content<'v>(
        &mut self,
        volume: Volume<'v>,
        replayed: bool,
        findings: &mut Findings<'_>,
    ) -> Option<Survey<'v>> {
        let workers = self.workers;
        let (claims, inodes) = self.inodes(&volume, findings)?;
        let pass = DirPass { volume: &volume, facts: &inodes.facts };
        let mut done = self.counter(CheckStage::Directories, inodes.dirs.len());
        let dirs = pass.run(workers, &inodes.dirs, findings, &mut done);
        drop(done);
        if workers.stopped() {
            return None;
        }
        connectivity::check_paths(&dirs, findings);
        let values = ValueCounts { stored: &inodes.values, found: &inodes.value_refs };
        connectivity::check_links(&volume, workers, &inodes.facts, values, findings);
        let in_use = InUse { claims: &claims, facts: &inodes.facts };
        let free = bitmaps::check(&volume, workers, in_use, findings);
        if workers.stopped() {
            return None;
        }
        bitmaps::check_totals(&volume, replayed, free, findings);
        quota::check(&volume, &inodes.usage, findings);
        Some(Survey { volume, claims, inodes, dirs })
    }

    fn inodes(
        &mut self,
        volume: &Volume<'_>,
        findings: &mut Findings<'_>,
    ) -> Option<(ClaimMap, Inodes)> {
        let workers = self.workers;
        let orphans = orphans::collect(volume, !self.as_is, findings);
        let pass = InodePass { volume, orphans: &orphans };
        let mut done = self.counter(CheckStage::Inodes, volume.groups.len());
        let (claims, mut inodes) = pass.run(workers, &mut done);
        drop(done);
        if workers.stopped() {
            return None;
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
        volume.claim_doubtful(&claims, findings);
        Some((claims, inodes))
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
