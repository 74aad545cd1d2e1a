//! The start of a change: superblock and log, and the file systems that are refused.

use super::TuneError;
use crate::passes::superblocks::Primary;
use crate::view::{Source, read_mmp};
use extant_blocks::BlockDevice;
use extant_format::mmp::MMP_SEQ_CLEAN;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State};
use extant_format::{Compat, Corrupt, Features, Geometry, Incompat, RoCompat, Superblock};
use extant_journal::Log;
use std::sync::Arc;

/// Features of file systems that are not written, or not at all.
const NO_INCOMPAT: Incompat =
    Incompat::COMPRESSION.union(Incompat::DIRDATA).union(Incompat::JOURNAL_DEV);
const NO_RO_COMPAT: RoCompat = RoCompat::HAS_SNAPSHOT
    .union(RoCompat::REPLICA)
    .union(RoCompat::READONLY)
    .union(RoCompat::SHARED_BLOCKS);

/// A file system whose superblock can be changed.
pub struct Tunable<'a> {
    pub device: &'a Arc<dyn BlockDevice>,
    pub journal: Option<&'a Arc<dyn BlockDevice>>,
    pub primary: Primary,
    /// The empty log; `None` without a journal, or if it is on a device that is not at hand.
    pub log: Option<Log>,
}

impl<'a> Tunable<'a> {
    /// Opens the file system. Only reads.
    pub fn open(
        device: &'a Arc<dyn BlockDevice>,
        journal: Option<&'a Arc<dyn BlockDevice>>,
    ) -> Result<Tunable<'a>, TuneError> {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
        let superblock = Superblock::parse(&bytes)?;
        check_features(&superblock.features())?;
        if superblock.rev_level() > 1 {
            return Err(TuneError::Unsupported(format!("revision {}", superblock.rev_level())));
        }
        let geometry = Geometry::new(&superblock)?;
        let blocks = device.len() >> geometry.block_bits;
        if blocks < geometry.blocks_count {
            let short = Corrupt::new("image, shorter than its file system").field("blocks");
            return Err(short.found(geometry.blocks_count).expected(blocks).into());
        }
        let mut tunable =
            Tunable { device, journal, primary: Primary { superblock, geometry }, log: None };
        tunable.check_in_use()?;
        tunable.check_state()?;
        tunable.log = tunable.open_log()?;
        Ok(tunable)
    }

    /// Refuses a file system that another host uses.
    fn check_in_use(&self) -> Result<(), TuneError> {
        let Primary { superblock, geometry } = &self.primary;
        match read_mmp(&**self.device, superblock, geometry)?.transpose()? {
            Some(mmp) if mmp.seq != MMP_SEQ_CLEAN => Err(TuneError::InUse),
            _ => Ok(()),
        }
    }

    /// Refuses a file system that must be recovered or repaired first.
    fn check_state(&self) -> Result<(), TuneError> {
        let sb = &self.primary.superblock;
        if sb.incompat().contains(Incompat::RECOVER) {
            return Err(TuneError::NeedsRecovery);
        }
        let state = sb.state();
        if state.contains(State::ERROR) || !state.contains(State::VALID) {
            return Err(TuneError::HasErrors);
        }
        Ok(())
    }

    /// Opens the log, which must be empty and without an error.
    pub fn open_log(&self) -> Result<Option<Log>, TuneError> {
        if !self.primary.superblock.compat().contains(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        let source = Source { device: self.device, journal: self.journal, as_is: true };
        let log = source.open_log(&self.primary).map_err(TuneError::Journal)?;
        match &log {
            Some(log) if log.needs_recovery() => Err(TuneError::NeedsRecovery),
            Some(log) if log.errno() != 0 => Err(TuneError::HasErrors),
            _ => Ok(log),
        }
    }
}

/// Refuses features with which a file system is not written.
fn check_features(features: &Features) -> Result<(), TuneError> {
    let incompat = Incompat::from_bits_retain(
        features.incompat.unknown() | (features.incompat & NO_INCOMPAT).bits(),
    );
    let ro_compat = RoCompat::from_bits_retain(
        features.ro_compat.unknown() | (features.ro_compat & NO_RO_COMPAT).bits(),
    );
    let names = [incompat.names(), ro_compat.names()].concat();
    if names.is_empty() {
        return Ok(());
    }
    let names = names.join(", ");
    Err(TuneError::Unsupported(format!("a file system with feature {names} is not changed")))
}
