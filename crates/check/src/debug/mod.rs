//! Looks inside a file system, also a damaged one, that never write: [`Inspector`].
//!
//! An inspector shows structures as they lie on the device, with their checksums, and goes on
//! behind parts that cannot be read. For example, an extent block with a wrong magic costs a
//! problem in the list of extents, and the rest of the tree is listed.
//!
//! # Invariants
//! - Any bytes give values and problems, never a panic.
//! - A walk reads each distinct block once. Lists grow with the blocks of the device, not with
//!   numbers in the image.

mod content;
mod deleted;
mod directory;
mod free;
mod journal;
mod map;
mod metadata;
mod names;
mod owners;
mod places;
mod runs;
mod slots;
mod superblocks;
mod xattrs;

pub use content::ContentPiece;
pub use deleted::{DeletedFile, DeletedSource};
pub use directory::{DirectoryBlock, DirectoryPart, DirectoryRecord};
pub use free::FreeRunCounts;
pub use journal::{JournalLog, LoggedBlock, LoggedTransaction, TransactionState};
pub use map::{MapEntry, MapEntryKind, MapNode, MapPart};
pub use metadata::SavedMetadata;
pub use names::{FoundName, FoundNames};
pub use owners::{BlockOwner, FoundOwners};
pub use places::MetadataPlace;
pub use slots::{InodeSlot, InspectedBitmap, InspectedGroup};
pub use superblocks::SuperblockCopy;
pub use xattrs::{InodeXattrs, XattrPlace};

use crate::claims::ClaimMap;
use crate::passes::superblocks::Primary;
use crate::reader::Reader;
use crate::repair::{RepairError, listed_blocks};
use crate::substitute::Substitutes;
use crate::view::{Source, read_mmp};
use extant_blocks::BlockDevice;
use extant_format::mmp::Mmp;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{Compat, Corrupt, Geometry, Incompat, Superblock};
use extant_journal::recovery;
use slots::GroupState;
use std::io;
use std::sync::Arc;

/// The verdict on a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// The structure has none.
    Absent,
    /// It is that of the content.
    Right,
    /// It is another one.
    Wrong,
}

impl ChecksumState {
    fn of(has_checksum: bool, is_right: impl FnOnce() -> bool) -> ChecksumState {
        match has_checksum {
            true if is_right() => ChecksumState::Right,
            true => ChecksumState::Wrong,
            false => ChecksumState::Absent,
        }
    }

    /// Returns the name of the verdict.
    pub fn name(self) -> &'static str {
        match self {
            ChecksumState::Absent => "none",
            ChecksumState::Right => "right",
            ChecksumState::Wrong => "wrong",
        }
    }
}

/// The reason why a part of a file system cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InspectError(String);

impl InspectError {
    fn new(message: String) -> InspectError {
        InspectError(message)
    }
}

impl From<Corrupt> for InspectError {
    fn from(error: Corrupt) -> Self {
        InspectError(error.to_string())
    }
}

/// The state of the file system that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InspectOptions {
    /// Leave the journal alone: blocks are shown as they are.
    pub as_is: bool,
    /// Take the superblock from the copy in this block.
    pub superblock: Option<u64>,
}

/// A file system that is looked at.
pub struct Inspector {
    /// The device as it is.
    raw: Arc<dyn BlockDevice>,
    /// The device with copies of damaged parts, and with the changes of the journal.
    device: Arc<dyn BlockDevice>,
    journal: Option<Arc<dyn BlockDevice>>,
    superblock: Superblock,
    geometry: Geometry,
    groups: Vec<GroupState>,
    damage: Option<String>,
    notes: Vec<String>,
    /// The block of the copy that a caller has chosen as superblock.
    chosen: Option<u64>,
    /// The journal was replayed in memory.
    is_replayed: bool,
}

impl Inspector {
    /// Opens the file system on a device; `journal` is the device of an external journal.
    ///
    /// # Errors
    /// [`RepairError::NoSuperblock`] if neither the superblock nor a copy is usable, and those of
    /// the device.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        journal: Option<Arc<dyn BlockDevice>>,
        options: InspectOptions,
    ) -> Result<Inspector, RepairError> {
        let (block, external) = (options.superblock, journal.as_ref());
        let found = Substitutes::as_far_as_possible(block, &device, external)?;
        let damage = (!found.is_empty()).then(|| found.to_string());
        let view = found.device();
        let Primary { superblock, geometry } =
            read_superblock(&*view).ok_or(RepairError::NoSuperblock)?;
        let mut inspector = Inspector {
            raw: device,
            device: view,
            journal,
            superblock,
            geometry,
            groups: Vec::new(),
            damage,
            notes: Vec::new(),
            chosen: options.superblock,
            is_replayed: false,
        };
        if !options.as_is {
            inspector.replay();
        }
        inspector.read_descriptors();
        Ok(inspector)
    }

    /// Replays the journal in memory. The blocks are shown as they are if that is not possible.
    fn replay(&mut self) {
        let sb = &self.superblock;
        let has_journal = sb.compat().contains(Compat::HAS_JOURNAL);
        if !has_journal || !sb.incompat().contains(Incompat::RECOVER) {
            return;
        }
        let primary = Primary { superblock: sb.clone(), geometry: self.geometry };
        let source = Source { device: &self.device, journal: self.journal.as_ref(), as_is: true };
        let log = match source.open_log(&primary) {
            Ok(Some(log)) => log,
            Ok(None) => {
                let missing = "the external journal is not named: its changes are missing";
                return self.notes.push(missing.into());
            }
            Err(error) => return self.without_replay(&error.to_string()),
        };
        let blocks = self.device.len() >> self.geometry.block_bits;
        let replay = match recovery::scan(&log, blocks) {
            Ok(replay) => replay,
            Err(error) => return self.without_replay(&error.to_string()),
        };
        if !replay.fast_commits().is_empty() {
            self.notes.push("the fast commits of the journal are not replayed".into());
        }
        let device = replay.overlay(self.device.clone());
        let Some(Primary { superblock, geometry }) = read_superblock(&*device) else {
            return self.without_replay("it has a superblock of no use");
        };
        (self.device, self.superblock, self.geometry) = (device, superblock, geometry);
        self.is_replayed = true;
    }

    fn without_replay(&mut self, why: &str) {
        let message = format!("the journal cannot be replayed ({why}): its changes are missing");
        self.notes.push(message);
    }

    /// Returns the copies that are used in place of damaged parts, in words.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// Returns remarks on the journal.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the length of the device in bytes.
    pub fn device_len(&self) -> u64 {
        self.raw.len()
    }

    /// Returns the content of a block.
    ///
    /// # Errors
    /// There is no such block, or it cannot be read.
    pub fn block(&self, block: u64) -> Result<Vec<u8>, InspectError> {
        let count = self.geometry.blocks_count;
        if block >= count {
            let last = count.saturating_sub(1);
            return Err(InspectError(format!("block {block} does not exist: the last is {last}")));
        }
        let unreadable = || InspectError(format!("block {block} cannot be read"));
        self.reader().block(block).ok_or_else(unreadable)
    }

    /// Reads the block of multi-mount protection; `None` without one.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn mmp(&self) -> Result<Option<Mmp>, InspectError> {
        let read = read_mmp(&*self.device, &self.superblock, &self.geometry);
        let unreadable = |error: io::Error| InspectError::new(error.to_string());
        Ok(read.map_err(unreadable)?.transpose()?)
    }

    /// Returns the blocks that are listed as bad, in order.
    ///
    /// # Errors
    /// The inode of the list is of no use.
    pub fn bad_blocks(&self) -> Result<Vec<u64>, InspectError> {
        Ok(listed_blocks(&self.reader())?.into_iter().collect())
    }

    fn reader(&self) -> Reader<'_> {
        Reader::new(&*self.device, self.geometry)
    }

    fn has_checksums(&self) -> bool {
        self.geometry.metadata_csum
    }

    /// Returns a map without claims, whose units are blocks.
    fn no_claims(&self) -> ClaimMap {
        ClaimMap::of_blocks(&self.bounded_geometry(), self.groups.len())
    }
}

impl std::fmt::Debug for Inspector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Inspector");
        out.field("device", &self.raw.name()).field("damage", &self.damage).finish_non_exhaustive()
    }
}

/// Reads the primary superblock, whose features may be unknown.
fn read_superblock(device: &dyn BlockDevice) -> Option<Primary> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).ok()?;
    let superblock = Superblock::parse_unverified(&bytes).ok()?;
    let geometry = Geometry::new(&superblock).ok()?;
    Some(Primary { superblock, geometry })
}
