//! Features that are switched with the structures that they stand for.
//!
//! All changes are made in memory, over the device, and surveyed like a file system that is
//! checked. For example, `metadata_csum` seals each structure, and directories whose blocks have no
//! space for a checksum get more blocks; the survey then finds nothing.
//!
//! # Order of writes
//! Without another form of checksums, the changes are written as an [`Edit`]: new blocks first,
//! then one transaction through the log, or a larger one.
//!
//! A kernel decides by the superblock how checksums are verified, before it replays a log. So with
//! another form of checksums the write of the superblock counts
//! ([`OfflineChanges::commit_by_superblock`]). Structures that are read before the replay must be
//! valid under both superblocks then: descriptors, the journal's inode with its map ([`forms`]),
//! and the block of multi-mount protection, which is in no transaction ([`Site::parts`]). A log
//! that is too small gets a length that suffices before, and its own one afterwards, each time in a
//! step of its own. A file system without a journal has one for the time of the change.
//!
//! With a redo file a change that no journal makes whole is collected in memory
//! ([`Purpose::Collect`]), all steps of it, and written as [`crate::redo`] has it: then no journal
//! is made for it. Only the length of descriptors keeps its order (module `width`), behind the
//! record. Larger inodes are a change in several transactions (module `inode_size`).
//!
//! # Invariants
//! - A file system with damage is not changed.
//! - Nothing is written before the survey of the result has found nothing. A change in several
//!   transactions, as one of journal and features, is made in memory before ([`Site::rehearse`]): a
//!   lack of space is found then. If a device fails between, the error names the steps that are
//!   made and those that are not.

mod checksums;
mod directories;
mod files;
mod forms;
mod groups;
mod inode_size;
mod journal;
mod outside;
mod rewrite;
mod wanted;
mod width;

use wanted::Indexing;
pub use wanted::{JournalStep, Wanted};

use super::{JournalSize, Tunable, TuneChanges, TuneError, copy_of};
use crate::difference::{Difference, FreeBlocks, SaveRedo, now};
use crate::edit::{Edit, EditBase, EditError};
use crate::repair::{Draft, NewLogError, RepairError, RepairLevel, Round, Surveyor};
use crate::survey::Survey;
use crate::view::{View, mmp_block};
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::jbd2::MIN_JOURNAL_BLOCKS;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{Compat, Features, Geometry, Incompat, RoCompat, Superblock};
use extant_journal::Log;
use extant_journal::offline::{ChangedBlock, OfflineChanges, check_fit};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bound on the changes in memory, in bytes.
const MAX_BYTES: usize = 1 << 30;

/// Blocks more than those of a change, for which a log is made: its own bitmaps and descriptors.
const SPARE: usize = 256;

/// The encoding that `casefold` gets: UTF-8, version 12.1.
const UTF8_12_1: u16 = 1;

/// Encryption by AES-256 in the modes XTS and CTS, which file names and contents may have.
const ENCRYPTION: [u8; 4] = [1, 4, 0, 0];

/// The type of checksums.
const CRC32C: u8 = 1;

/// The half MD4 hash of names.
const HALF_MD4: u8 = 1;

/// Bound on the writes of several transactions in memory, in bytes: the changes, their copies in
/// logs, and both once more for another log.
const MAX_REHEARSED: usize = 4 << 30;

/// The devices of a change, and the way to survey them.
#[derive(Clone, Copy)]
pub struct Site<'s> {
    pub device: &'s Arc<dyn BlockDevice>,
    pub journal: Option<&'s Arc<dyn BlockDevice>>,
    /// The device that the journal moves to.
    pub new_journal: Option<&'s Arc<dyn BlockDevice>>,
    pub threads: usize,
    pub stop: &'s AtomicBool,
    pub purpose: Purpose,
}

/// The use of the writes of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// They are made on the devices.
    Make,
    /// They are made in memory, as they would be made on the devices: a lack of space is found.
    Rehearse,
    /// They are collected in memory, and a redo file makes them whole on the device. They need no
    /// order, and go through no log.
    Collect,
}

/// A part of a change that is made wholly or not at all.
#[derive(Clone, Copy)]
enum Step {
    Journal(JournalStep),
    Structures,
    /// The superblock and its copies.
    Marks,
    /// Another length of descriptors, wide or not.
    Width(bool),
    /// Another size of inodes, in bytes.
    InodeSize(u16),
}

impl Step {
    /// Returns the steps in their order. Structures are surveyed, and changed through the journal,
    /// while there is one.
    fn all(wanted: &Wanted) -> Vec<Step> {
        if let Some(is_wide) = wanted.width() {
            return vec![Step::Width(is_wide)];
        }
        if let Some(size) = wanted.inode_size {
            return vec![Step::InodeSize(size)];
        }
        let structures = if wanted.changes_structures() { Step::Structures } else { Step::Marks };
        match wanted.journal {
            Some(JournalStep::Remove) if wanted.changes_structures() => {
                vec![structures, Step::Journal(JournalStep::Remove)]
            }
            Some(step) => vec![Step::Journal(step), structures],
            None => vec![structures],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Step::Journal(JournalStep::Add(_)) => "the new journal",
            Step::Journal(JournalStep::Resize(_)) => "another length of the journal",
            Step::Journal(JournalStep::Inside(_)) => "the journal in the file system",
            Step::Journal(JournalStep::Outside) => "the journal on another device",
            Step::Journal(JournalStep::Remove) => "the removal of the journal",
            Step::Structures => "features and values",
            Step::Marks => "values of the superblock",
            Step::Width(_) => "the length of descriptors",
            Step::InodeSize(_) => "the size of inodes",
        }
    }
}

/// Adds the steps that are made, and those that are not, to an error behind the first step.
fn stopped(done: &[Step], left: &[Step], error: TuneError) -> TuneError {
    if done.is_empty() {
        return error;
    }
    let names =
        |steps: &[Step]| steps.iter().map(|step| step.name()).collect::<Vec<_>>().join(" and ");
    TuneError::Stopped { done: names(done), left: names(left), error: Box::new(error) }
}

/// Changes in memory, and the blocks that differ.
pub struct Parts {
    overlay: Arc<OverlayDevice>,
    difference: Difference,
}

impl Parts {
    /// Returns the changed blocks in use.
    fn used(&self) -> Result<Vec<ChangedBlock>, TuneError> {
        Ok(self.difference.used_contents(&*self.overlay)?)
    }

    /// Returns whether only the superblock and its copies differ.
    fn are_marks(&self, geometry: &Geometry) -> bool {
        let holder = SUPERBLOCK_OFFSET >> geometry.block_bits;
        let copies = geometry.super_groups().skip(1);
        let copies = copies.filter_map(|group| Some(geometry.super_block_of(group)?.0));
        let marks: BTreeSet<u64> = copies.chain([holder]).collect();
        self.difference.new.is_empty() && self.difference.used.iter().all(|nr| marks.contains(nr))
    }

    fn changes<'c>(&self, site: &'c Site<'_>, used: &'c [ChangedBlock]) -> OfflineChanges<'c> {
        OfflineChanges { device: &**site.device, blocks: used, time: now() }
    }

    /// Writes all blocks to a device in memory.
    fn collect(&self, site: &Site<'_>) -> Result<(), TuneError> {
        self.write_new(site)?;
        for (nr, bytes) in self.used()? {
            site.device.write_all_at(&bytes, nr.saturating_mul(bytes.len() as u64))?;
        }
        Ok(())
    }

    /// Writes the blocks that nothing reads before the change, durably.
    fn write_new(&self, site: &Site<'_>) -> Result<(), TuneError> {
        self.difference.write_new(&**site.device, &*self.overlay)?;
        Ok(site.device.flush()?)
    }
}

/// A planned change of structures.
struct Converted {
    draft: Draft,
    /// Blocks in use that no program reads while the file system is as it was.
    unread: Vec<Range<u64>>,
}

impl Site<'_> {
    fn surveyor(&self) -> Surveyor<'_> {
        Surveyor { journal: self.journal, threads: self.threads, stop: self.stop }
    }

    fn draft(&self, geometry: &Geometry) -> Draft {
        let size = geometry.block_size as usize;
        Draft::new(Arc::new(OverlayDevice::new(self.device.clone(), size, MAX_BYTES)))
    }

    /// Surveys a file system without damage.
    fn whole<'v>(&self, view: &'v View) -> Result<Survey<'v>, TuneError> {
        let (survey, found) = self.surveyor().survey(view)?;
        match found.first() {
            Some(finding) => Err(TuneError::Damage(Box::new(*finding))),
            None => Ok(survey),
        }
    }

    /// Returns a function that tells whether nothing on the device refers to a block.
    fn new_blocks(&self, tunable: &Tunable<'_>) -> impl FnMut(u64) -> bool {
        let mut bitmaps = FreeBlocks::new(&**self.device, tunable.primary.geometry).verified();
        // Hosts read and write the block of multi-mount protection regardless of the log, of which
        // a replay would undo a claim. Its content is valid before the change, too.
        let mmp = mmp_block(&tunable.primary.superblock);
        move |nr| bitmaps.is_free(nr) || mmp == Some(nr)
    }

    /// Compares a draft with the device.
    fn parts(
        &self,
        tunable: &Tunable<'_>,
        draft: &Draft,
        unread: &[Range<u64>],
    ) -> Result<Parts, TuneError> {
        let geometry = tunable.primary.geometry;
        let own = tunable.log.as_ref().map(Log::own_blocks).unwrap_or_default();
        let mut is_free = self.new_blocks(tunable);
        let mut is_new = |nr| is_free(nr) || unread.iter().any(|part| part.contains(&nr));
        let (device, size) = (&**self.device, geometry.block_size);
        let difference = Difference::between(device, &draft.device, size, &own, &mut is_new)?;
        Ok(Parts { overlay: draft.device.clone(), difference })
    }

    /// Makes the changes.
    pub fn make(&self, changes: &TuneChanges, wanted: &Wanted) -> Result<Superblock, TuneError> {
        self.check(wanted)?;
        let steps = Step::all(wanted);
        if wanted.changes_structures() && steps.len() > 1 {
            self.rehearse(&|site: &Site<'_>| site.carry_out(changes, wanted, &steps))?;
        }
        self.carry_out(changes, wanted, &steps)?;
        let mut bytes = [0; SUPERBLOCK_SIZE];
        self.device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
        Ok(Superblock::parse(&bytes)?)
    }

    /// Makes several transactions in memory, so that only a failure of a device can end them
    /// halfway.
    fn rehearse(&self, work: &dyn Fn(&Site<'_>) -> Result<(), TuneError>) -> Result<(), TuneError> {
        if self.purpose != Purpose::Make {
            return Ok(());
        }
        let size = Tunable::open(self.device, self.journal)?.primary.geometry.block_size;
        let over = |device: &Arc<dyn BlockDevice>, unit: u32| -> Arc<dyn BlockDevice> {
            Arc::new(OverlayDevice::new(device.clone(), unit as usize, MAX_REHEARSED))
        };
        let device = over(self.device, size);
        let journal = self.journal.map(|journal| over(journal, size));
        let new_journal = self.new_journal.map(|journal| over(journal, size));
        let site = Site {
            device: &device,
            journal: journal.as_ref(),
            new_journal: new_journal.as_ref(),
            purpose: Purpose::Rehearse,
            ..*self
        };
        // Nothing of it is made.
        work(&site).map_err(|error| match error {
            TuneError::Stopped { error, .. }
            | TuneError::JournalStays(error)
            | TuneError::JournalNamed(error) => *error,
            error => error,
        })
    }

    fn carry_out(
        &self,
        changes: &TuneChanges,
        wanted: &Wanted,
        steps: &[Step],
    ) -> Result<(), TuneError> {
        let mut site = *self;
        for (n, step) in steps.iter().enumerate() {
            let made = match step {
                Step::Journal(JournalStep::Add(size) | JournalStep::Inside(size)) => {
                    journal::add(&site, *size)
                }
                Step::Journal(JournalStep::Resize(bytes)) => journal::resize(&site, *bytes),
                Step::Journal(JournalStep::Remove) => journal::remove(&site),
                Step::Journal(JournalStep::Outside) => {
                    outside::move_to(&site, changes.journal_device.unwrap_or(0))
                }
                Step::Structures => site.change_structures(changes, wanted),
                Step::Marks => site.change_marks(changes, wanted),
                Step::Width(is_wide) => width::change(&site, changes, *is_wide, None),
                Step::InodeSize(size) => inode_size::change(&site, changes, *size),
            };
            let (done, left) = steps.split_at(n);
            made.map_err(|error| stopped(done, left, error))?;
            if matches!(step, Step::Journal(JournalStep::Outside)) {
                site.journal = site.new_journal;
            }
        }
        Ok(())
    }

    /// Returns whether the writes are collected in memory.
    fn collects(&self) -> bool {
        self.purpose == Purpose::Collect
    }

    /// Changes the length of descriptors as [`Site::make`] does. `save` must make the record
    /// durable before the first write of a block in use.
    pub fn make_width(
        &self,
        (changes, wanted): (&TuneChanges, &Wanted),
        is_wide: bool,
        save: &mut SaveRedo<'_>,
    ) -> Result<(), TuneError> {
        self.check(wanted)?;
        width::change(self, changes, is_wide, Some(save))
    }

    /// Refuses impossible changes before the first write.
    fn check(&self, wanted: &Wanted) -> Result<(), TuneError> {
        let refuse = |why: &str| Err(TuneError::Unsupported(why.into()));
        if wanted.width().is_some() && wanted.changes_more_than_width() {
            return refuse(
                "the feature 64bit together with others: change it in a call of its own",
            );
        }
        if wanted.inode_size.is_some() && wanted.changes_more_than_inode_size() {
            return refuse(
                "the size of inodes together with features, journals or quota files: change it in \
                 a call of its own",
            );
        }
        if wanted.changes_seed() {
            return refuse(
                "the feature metadata_csum_seed stays: the seed is not that of the UUID, which \
                 `^metadata_csum` and then `metadata_csum` change",
            );
        }
        Ok(())
    }

    /// Changes only the superblock, if anything of it is left to change.
    fn change_marks(&self, changes: &TuneChanges, wanted: &Wanted) -> Result<(), TuneError> {
        let tunable = Tunable::open(self.device, self.journal)?;
        let present = &tunable.primary.superblock;
        let new = with_marks(tunable.with_values(changes)?, wanted.new);
        let bytes = |sb: &Superblock| {
            let mut sb = sb.clone();
            sb.set_wtime(0);
            sb.seal()
        };
        match bytes(present) == bytes(&new) {
            true => Ok(()),
            false if self.collects() => tunable.write_in_place(&sealed(new)),
            false => tunable.write(&sealed(new)),
        }
    }

    fn change_structures(&self, changes: &TuneChanges, wanted: &Wanted) -> Result<(), TuneError> {
        let tunable = Tunable::open(self.device, self.journal)?;
        let converted = self.convert(&tunable, changes, wanted)?;
        let parts = self.parts(&tunable, &converted.draft, &converted.unread)?;
        let used = parts.difference.used.len();
        if !wanted.changes_checksums() && parts.are_marks(&tunable.primary.geometry) {
            return self.change_marks(changes, wanted);
        }
        if self.collects() {
            return parts.collect(self);
        }
        if !tunable.primary.superblock.compat().contains(Compat::HAS_JOURNAL) {
            self.rehearse(&|site: &Site<'_>| site.with_journal(changes, wanted, used))?;
            return self.with_journal(changes, wanted, used);
        }
        if !wanted.changes_checksums() {
            let base =
                EditBase { device: self.device, journal: self.journal, threads: self.threads };
            return Ok(Edit::plan(base, converted.draft.device)?.apply(false)?);
        }
        let log = tunable.log.as_ref().ok_or(EditError::JournalMissing)?;
        if check_fit(log, used).is_ok() {
            return forms::write(self, &tunable, &parts);
        }
        self.rehearse(&|site: &Site<'_>| site.change_structures(changes, wanted))?;
        let longer = log.superblock_for(used.saturating_add(SPARE));
        let longer = longer.map_err(TuneError::Journal)?.max_len();
        let before = log.superblock().max_len();
        journal::resize_to(self, &tunable, longer)?;
        let made = self.convert_and_write(changes, wanted);
        let back = Tunable::open(self.device, self.journal)
            .and_then(|tunable| journal::resize_to(self, &tunable, before));
        with_log_back(made, back, Step::Structures)
    }

    /// Makes the change through a journal that the file system has meanwhile.
    fn with_journal(
        &self,
        changes: &TuneChanges,
        wanted: &Wanted,
        used: usize,
    ) -> Result<(), TuneError> {
        let tunable = Tunable::open(self.device, self.journal)?;
        // A block of records has those of at least 62 others.
        let blocks = used.saturating_add(used / 32).saturating_add(SPARE) as u64;
        let blocks = blocks.max(MIN_JOURNAL_BLOCKS.into());
        let size = blocks << tunable.primary.geometry.block_bits;
        journal::add(self, JournalSize::Bytes(size))?;
        let made = self.convert_and_write(changes, wanted);
        let removed = journal::remove(self);
        with_log_back(made, removed, Step::Structures)
    }

    /// Plans and makes the change through the log, which takes it.
    fn convert_and_write(&self, changes: &TuneChanges, wanted: &Wanted) -> Result<(), TuneError> {
        let tunable = Tunable::open(self.device, self.journal)?;
        let converted = self.convert(&tunable, changes, wanted)?;
        let parts = self.parts(&tunable, &converted.draft, &converted.unread)?;
        forms::write(self, &tunable, &parts)
    }

    /// Makes all changes but those of the journal in memory.
    fn convert(
        &self,
        tunable: &Tunable<'_>,
        changes: &TuneChanges,
        wanted: &Wanted,
    ) -> Result<Converted, TuneError> {
        let draft = self.draft(&tunable.primary.geometry);
        let mut unread = Vec::new();
        let features = wanted.features_without_files(&tunable.primary.superblock);
        let marked = with_marks(tunable.with_values(changes)?, features);
        {
            let view = self.surveyor().view(&draft)?;
            let mut survey = self.whole(&view)?;
            if wanted.removes(Compat::DIR_INDEX) {
                let round = Round::new(&survey, &draft, RepairLevel::Safe);
                directories::remove_indexes(&round)?;
            }
            let new = Geometry::new(&marked)?;
            if wanted.changes_checksums() {
                self.convert_checksums(&mut survey, &draft, &new, &mut unread)?;
            }
            draft.edit_super(|sb| *sb = marked)?;
        }
        let switches_mmp = wanted.mmp().is_some();
        if wanted.had != wanted.has || wanted.switches(Compat::ORPHAN_FILE) || switches_mmp {
            self.surveyor().finish(&draft)?;
            let view = self.surveyor().view(&draft)?;
            let survey = self.whole(&view)?;
            let round = Round::new(&survey, &draft, RepairLevel::Safe);
            files::switch_orphan_file(&round, wanted)?;
            files::switch_quotas(&round, wanted)?;
            files::switch_mmp(&round, wanted)?;
        }
        if wanted.rewrites() {
            self.rewrite(&draft, wanted)?;
        }
        self.surveyor().finish(&draft)?;
        copies(self, &draft)?;
        Ok(Converted { draft, unread })
    }

    /// Gives files and directories another form.
    fn rewrite(&self, draft: &Draft, wanted: &Wanted) -> Result<(), TuneError> {
        self.surveyor().finish(draft)?;
        if wanted.converts_files {
            let view = self.surveyor().view(draft)?;
            let survey = self.whole(&view)?;
            rewrite::to_extents(&Round::new(&survey, draft, RepairLevel::Safe))?;
        }
        // Blocks of pointers are free for indexes then.
        self.surveyor().finish(draft)?;
        if let Some(indexing) = wanted.indexes {
            let view = self.surveyor().view(draft)?;
            let survey = self.whole(&view)?;
            let round = Round::new(&survey, draft, RepairLevel::Safe);
            rewrite::index_directories(&round, indexing == Indexing::All)?;
        }
        Ok(())
    }

    /// Gives all structures the checksums of another geometry, which has them in the same places.
    fn convert_checksums(
        &self,
        survey: &mut Survey<'_>,
        draft: &Draft,
        new: &Geometry,
        unread: &mut Vec<Range<u64>>,
    ) -> Result<(), TuneError> {
        let old = survey.volume.reader.geometry;
        let mut left = Vec::new();
        {
            let round = Round::new(survey, draft, RepairLevel::Safe);
            if old.has_group_checksums() && !new.has_group_checksums() {
                groups::initialize(&round, unread)?;
            }
            if old.metadata_csum != new.metadata_csum {
                left = directories::convert(&round, new)?;
            }
        }
        survey.volume.reader.geometry = *new;
        let round = Round::new(survey, draft, RepairLevel::Safe);
        for directory in left {
            round.write_directory(directory)?;
        }
        Ok(checksums::reseal(&round, &old)?)
    }
}

impl Wanted {
    /// Returns the new features with the present files of the file system, the present journal and
    /// the present block of multi-mount protection.
    /// A quota file that is to be added has its feature, so that a survey counts the usage.
    fn features_without_files(&self, present: &Superblock) -> Features {
        let mut features = self.new;
        let kept = Compat::ORPHAN_FILE | Compat::HAS_JOURNAL;
        features.compat =
            features.compat.difference(kept) | present.features().compat.intersection(kept);
        let counts = self.has != [false; 3] || self.had != [false; 3];
        features.ro_compat.set(RoCompat::QUOTA, counts);
        features.incompat.set(Incompat::MMP, self.old.incompat.contains(Incompat::MMP));
        features
    }
}

/// Returns a superblock with other features, and the fields that these bring.
fn with_marks(mut sb: Superblock, features: Features) -> Superblock {
    let (old, seed) = (sb.features(), sb.fs_seed());
    let added =
        |feature: Incompat| features.incompat.contains(feature) && !old.incompat.contains(feature);
    if added(Incompat::ENCRYPT) {
        sb.set_encrypt_algos(ENCRYPTION);
    }
    if added(Incompat::CASEFOLD) {
        sb.set_encoding(UTF8_12_1);
        sb.set_encoding_flags(0);
    }
    let has_seed = features.incompat.contains(Incompat::CSUM_SEED);
    if added(Incompat::CSUM_SEED) || !has_seed {
        sb.set_checksum_seed(if has_seed { seed } else { 0 });
    }
    let compat = features.compat.difference(old.compat);
    if compat.contains(Compat::DIR_INDEX) && sb.def_hash_version() == 0 {
        sb.set_def_hash_version(HALF_MD4);
    }
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        sb.set_checksum_type(CRC32C);
    } else {
        // A checksum without the feature looks like a feature that was lost.
        sb.raw_mut().checksum.set(0);
    }
    if features != Features::default() {
        sb.upgrade_revision();
    }
    sb.set_features(features);
    sb
}

/// Returns the outcome of a change through a journal that the file system had for it.
fn with_log_back(
    made: Result<(), TuneError>,
    back: Result<(), TuneError>,
    step: Step,
) -> Result<(), TuneError> {
    match (made, back) {
        (made, Ok(())) => made,
        (Ok(()), Err(error)) => Err(TuneError::JournalStays(Box::new(error))),
        (Err(error), Err(_)) => Err(TuneError::Stopped {
            done: "another journal".into(),
            left: step.name().into(),
            error: Box::new(error),
        }),
    }
}

fn sealed(mut sb: Superblock) -> Superblock {
    sb.seal();
    sb
}

/// Makes the copies of superblock and descriptors those of a draft.
fn copies(site: &Site<'_>, draft: &Draft) -> Result<(), TuneError> {
    let primary = site.surveyor().view(draft)?.primary;
    let geometry = primary.geometry;
    let size = u64::from(geometry.block_size);
    for group in geometry.super_groups().skip(1) {
        let Some(nr) = geometry.super_block_of(group) else { continue };
        draft.write(nr.0.saturating_mul(size), &copy_of(&primary.superblock, group))?;
    }
    for index in 0..geometry.desc_blocks {
        let block = draft.read(geometry.gdt_block(index).0.saturating_mul(size), size as usize)?;
        for copy in geometry.gdt_backups(index) {
            draft.write(copy.0.saturating_mul(size), &block)?;
        }
    }
    Ok(())
}

impl From<RepairError> for TuneError {
    fn from(error: RepairError) -> Self {
        match error {
            RepairError::NoSpace => TuneError::NoSpace,
            RepairError::Io(error) => TuneError::Io(error),
            RepairError::Corrupt(error) => TuneError::Corrupt(error),
            error => TuneError::Failed(error),
        }
    }
}

impl From<NewLogError> for TuneError {
    fn from(error: NewLogError) -> Self {
        match error {
            NewLogError::Damage(finding) => TuneError::Damage(Box::new(finding)),
            NewLogError::Unmovable(finding) => TuneError::Remaining(Box::new(finding)),
            NewLogError::NoPlace(_) => TuneError::NoSpace,
            NewLogError::Unsettled => {
                RepairError::Unsupported("numbers that change in each round").into()
            }
            NewLogError::Repair(error) => error.into(),
        }
    }
}
