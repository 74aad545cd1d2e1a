//! The choice of the superblock to go on with, where a checksum does not tell.
//!
//! The copies contradict a damaged superblock, but they also contradict one that was changed since:
//! programs change features and numbers without a change of the copies. So each contradicted fact
//! is tried: it is taken from the copies if a survey with it finds less damage than one without it.
//!
//! For example, one flipped bit makes 1280 reserved descriptor blocks of 256. A survey finds blocks
//! of files in metadata then. With the number of the copies it finds nothing, and no file is lost.
//! The copies do not know of a journal that was added later, either. Without it a survey finds
//! blocks that nothing uses, so the journal remains.
//!
//! Descriptors without checksums are tried in the same way: places of bitmaps and tables.

use super::draft::Draft;
use super::facts::{Fact, JOURNAL, differing};
use super::guesses::{guesses, names_device};
use super::open::{choose_superblock, is_usable, parse_primary};
use super::stage::is_lossy;
use super::superblock::{copies_of, corrected};
use super::{MAX_BYTES, RepairError};
use crate::descriptors::{
    ContestedGroup, RestoredBlock, contested, restorable, with_places, with_root,
};
use crate::finding::{Finding, FindingCode as Code, Findings, Severity};
use crate::parallel::Workers;
use crate::reader::Reader;
use crate::survey::Passes;
use crate::view::Source;
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::superblock::SUPERBLOCK_OFFSET;
use extant_format::{Compat, Geometry, Incompat, InodeNr, Superblock};
use std::sync::Arc;

/// Maximum number of surveys.
const MAX_TRIALS: usize = 32;

/// Groups beyond this number are tried together.
const MAX_GROUPS: usize = 8;

/// Weight of the loss of all files.
const ALL: u64 = 1 << 40;

/// Weight of damage whose repair loses data, beside 1 for other damage.
const LOSS: u64 = 16;

/// The superblock and the descriptors to go on with.
pub struct Choice {
    pub superblock: Superblock,
    /// Something of the primary superblock comes from a copy, or is inferred.
    pub replaced: bool,
    /// The first fact that was replaced.
    pub field: Option<&'static str>,
    /// Blocks of descriptors with places from copies.
    pub descriptors: Vec<RestoredBlock>,
}

/// A device whose superblock is chosen.
pub struct Chooser<'c> {
    pub device: &'c Arc<dyn BlockDevice>,
    /// The external journal, if there is one.
    pub journal: Option<&'c Arc<dyn BlockDevice>>,
    pub workers: Workers<'c>,
}

/// A superblock with places of groups, and the damage that a survey with these finds.
#[derive(Clone)]
struct Trial {
    superblock: Superblock,
    groups: Vec<ContestedGroup>,
    weight: u64,
    field: Option<&'static str>,
}

impl Chooser<'_> {
    /// Chooses the superblock, and descriptors without checksums.
    ///
    /// # Errors
    /// [`RepairError::NoSuperblock`] if neither the superblock nor a copy is usable.
    pub fn choose(&self) -> Result<Choice, RepairError> {
        if let Some((primary, is_corrected)) = parse_primary(&**self.device)
            && !(primary.has_checksum() && primary.verify_checksum().is_ok())
            && corrected(&primary).is_none()
        {
            let copies = copies_of(&**self.device, &primary);
            let sealed = copies.first().unwrap_or(&primary).has_checksum();
            let tried = || self.try_facts(&primary, &copies, is_corrected);
            if (!sealed || copies.is_empty())
                && let Some(trial) = tried()
            {
                return Ok(self.chosen(trial, &primary, is_corrected));
            }
        }
        let (superblock, replaced) = choose_superblock(&**self.device)?;
        Ok(Choice { superblock, replaced, field: None, descriptors: Vec::new() })
    }

    fn chosen(&self, trial: Trial, primary: &Superblock, is_corrected: bool) -> Choice {
        let descriptors = Geometry::new(&trial.superblock)
            .map(|geometry| with_places(&Reader::new(&**self.device, geometry), &trial.groups));
        Choice {
            replaced: is_corrected || trial.superblock.as_bytes() != primary.as_bytes(),
            superblock: trial.superblock,
            field: trial.field,
            descriptors: descriptors.unwrap_or_default(),
        }
    }

    /// Tries each fact that copies, or other facts, contradict. `None` if nothing is contradicted,
    /// or nothing is usable.
    fn try_facts(
        &self,
        primary: &Superblock,
        copies: &[Superblock],
        is_corrected: bool,
    ) -> Option<Trial> {
        if !is_corrected
            && is_usable(primary)
            && self.doubts(primary, copies).is_empty()
            && self.doubtful_groups(primary).is_empty()
        {
            return None;
        }
        let mut left = MAX_TRIALS;
        let mut best = self.first(primary, copies, &mut left)?;
        for (fact, source) in self.doubts(&best.superblock, copies) {
            if best.weight == 0 || left == 0 {
                break;
            }
            let mut superblock = best.superblock.clone();
            fact.take(&mut superblock, &source);
            let field = best.field.or(Some(fact.name));
            if let Some(trial) = self.trial(superblock, Vec::new(), field, &mut left)
                && trial.weight < best.weight
            {
                best = trial;
            }
        }
        self.try_groups(&mut best, &mut left);
        // An unknown feature may be newer than all copies: it is only taken for a flipped bit if
        // nothing else is wrong then.
        let is_new = !is_usable(primary) && primary.rev_level() <= 1;
        let is_new = is_new && Geometry::new(primary).is_ok() && !is_corrected;
        Some(best).filter(|best| !is_new || best.weight == 0)
    }

    /// Returns the facts that no copy confirms, each with a superblock that has another one.
    fn doubts(&self, sb: &Superblock, copies: &[Superblock]) -> Vec<(Fact, Superblock)> {
        if copies.is_empty() {
            return guesses(&**self.device, sb);
        }
        let mut doubts: Vec<(Fact, Superblock)> = Vec::new();
        for copy in copies {
            for fact in contradicted(sb, copy) {
                let confirmed = copies.iter().any(|copy| fact.is_same(sb, copy));
                let known = |(other, source): &(Fact, Superblock)| {
                    other.is_like(&fact) && fact.is_same(source, copy)
                };
                if !confirmed && !doubts.iter().any(known) {
                    doubts.push((fact, copy.clone()));
                }
            }
        }
        doubts
    }

    /// Returns the groups without checksums whose copies tell of other places.
    fn doubtful_groups(&self, sb: &Superblock) -> Vec<ContestedGroup> {
        match Geometry::new(sb) {
            Ok(geometry) if !geometry.has_group_checksums() => {
                let reader = Reader::new(&**self.device, geometry);
                let groups = contested(&reader);
                if groups.is_empty() { with_root(&reader).into_iter().collect() } else { groups }
            }
            _ => Vec::new(),
        }
    }

    /// Returns the primary superblock if it is usable; otherwise with all facts of a copy but those
    /// without which there is less damage.
    fn first(
        &self,
        primary: &Superblock,
        copies: &[Superblock],
        left: &mut usize,
    ) -> Option<Trial> {
        if let Some(trial) = self.trial(primary.clone(), Vec::new(), None, left) {
            return Some(trial);
        }
        let Some(copy) = copies.first() else {
            let guesses = guesses(&**self.device, primary).into_iter();
            let trials = guesses.filter_map(|(fact, source)| {
                let mut superblock = primary.clone();
                fact.take(&mut superblock, &source);
                self.trial(superblock, Vec::new(), Some(fact.name), left)
            });
            return trials.min_by_key(|trial| trial.weight);
        };
        let facts = contradicted(primary, copy);
        let mut merged = primary.clone();
        facts.iter().for_each(|fact| fact.take(&mut merged, copy));
        let name = facts.first().map(|fact| fact.name);
        let mut best = self.trial(merged, Vec::new(), name, left)?;
        for fact in facts {
            let mut superblock = best.superblock.clone();
            fact.take(&mut superblock, primary);
            match self.trial(superblock, Vec::new(), name, left) {
                Some(trial) if trial.weight <= best.weight => best = trial,
                _ => {}
            }
        }
        Some(best)
    }

    /// Tries the places that copies of descriptors tell.
    fn try_groups(&self, best: &mut Trial, left: &mut usize) {
        if best.weight == 0 {
            return;
        }
        let groups = self.doubtful_groups(&best.superblock);
        let size = if groups.len() > MAX_GROUPS { groups.len() } else { 1 };
        for part in groups.chunks(size) {
            let groups = [&best.groups[..], part].concat();
            let trial = self.trial(best.superblock.clone(), groups, best.field, left);
            if let Some(trial) = trial.filter(|trial| trial.weight < best.weight) {
                *best = trial;
            }
        }
    }

    /// Surveys the file system with a superblock; `None` if that is of no use.
    fn trial(
        &self,
        superblock: Superblock,
        groups: Vec<ContestedGroup>,
        field: Option<&'static str>,
        left: &mut usize,
    ) -> Option<Trial> {
        let geometry = Geometry::new(&superblock).ok()?;
        *left = left.checked_sub(1)?;
        let device = self.draft(&superblock, &geometry, &groups)?;
        let mut weight = 0u64;
        let mut sink = |finding: Finding| {
            weight = weight.saturating_add(weigh(&finding, &superblock, &geometry));
        };
        let mut findings = Findings::new(&mut sink);
        let source = Source { device: &device, journal: self.journal, as_is: false };
        let view = source.view(&mut findings)?;
        let passes = Passes { as_is: false, workers: self.workers, progress: None };
        passes.run(&view, &mut findings)?;
        Some(Trial { superblock, groups, weight, field })
    }

    /// Returns the device with a superblock and descriptors in memory.
    fn draft(
        &self,
        superblock: &Superblock,
        geometry: &Geometry,
        groups: &[ContestedGroup],
    ) -> Option<Arc<dyn BlockDevice>> {
        let size = geometry.block_size;
        let overlay = OverlayDevice::new(self.device.clone(), size as usize, MAX_BYTES);
        let draft = Draft::new(Arc::new(overlay));
        draft.write(SUPERBLOCK_OFFSET, &superblock.encode()).ok()?;
        let put = |block: RestoredBlock| {
            draft.write(block.nr.saturating_mul(size.into()), &block.bytes).ok()
        };
        let reader = Reader::new(&*draft.device, *geometry);
        with_places(&reader, groups).into_iter().try_for_each(put)?;
        restorable(&reader).into_iter().try_for_each(put)?;
        Some(draft.device)
    }
}

/// Returns the facts of a superblock that a copy contradicts. A copy without a journal may be older
/// than the journal: it does not contradict one that more than the feature speaks for.
fn contradicted(sb: &Superblock, copy: &Superblock) -> Vec<Fact> {
    let has_map = sb.journal_inum() == InodeNr::JOURNAL && sb.journal_backup().is_some();
    let has_more = has_map || names_device(sb) || sb.incompat().contains(Incompat::RECOVER);
    let in_copy = copy.compat().contains(Compat::HAS_JOURNAL);
    let is_kept = sb.compat().contains(Compat::HAS_JOURNAL) && has_more && !in_copy;
    let facts = differing(sb, copy).into_iter();
    facts.filter(|fact| !is_kept || fact.name != JOURNAL).collect()
}

/// Returns the weight of a damage: that of a table is the number of its inodes. A journal on a
/// device that is not at hand, and a part of the device that is missing, are no wrong facts.
fn weigh(finding: &Finding, sb: &Superblock, geometry: &Geometry) -> u64 {
    match finding.code {
        _ if finding.severity() == Severity::Note => 0,
        Code::JournalDeviceMissing if names_device(sb) => 0,
        Code::DeviceTooShort => 0,
        Code::RootInode => ALL,
        Code::DescriptorField | Code::MetadataOverlap => geometry.inodes_per_group.into(),
        Code::MoreFindings => finding.found.unwrap_or(1).saturating_mul(LOSS),
        _ if finding.severity() == Severity::Fatal => ALL,
        _ if is_lossy(finding) => LOSS,
        _ => 1,
    }
}
