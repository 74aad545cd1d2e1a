//! Copies of the superblock and of group descriptors in place of damaged ones, in memory, so that a
//! damaged image can be read.
//!
//! For example, the first MiB of an image was overwritten. Its superblock and all descriptors come
//! from group 1 then, and all files whose content and inodes lie elsewhere can be read.
//!
//! Counts of copies are old, but readers need places only.

use crate::descriptors::{DescriptorCopies, RestoredBlock, groups_of, restorable, usable};
use crate::finding::Finding;
use crate::parallel::Workers;
use crate::passes::superblocks::Primary;
use crate::reader::Reader;
use crate::repair::{Chooser, RepairError, choose_superblock, copy_in_block, replaced};
use crate::view::Source;
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::superblock::SUPERBLOCK_OFFSET;
use extant_format::{BlockNr, Compat, Corrupt, Geometry, GroupNr, Incompat, Superblock};
use std::fmt;
use std::sync::Arc;

/// Bound on the replaced blocks, in bytes: the descriptors of 128 TiB in blocks of 4 KiB.
const MAX_BYTES: usize = 64 << 20;

/// The superblock that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Super {
    Intact,
    /// The primary one, whose checksum is wrong: no copy has another layout.
    Believed,
    Copied,
}

/// Treatment of descriptors without a usable copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Fails,
    Stays,
}

/// A device whose damaged superblock and descriptors are replaced by copies. Nothing is written to
/// the device below it.
#[derive(Debug)]
pub struct Substitutes {
    device: Arc<dyn BlockDevice>,
    superblock: Super,
    descriptors: u64,
    /// Damaged descriptors without a usable copy.
    lost: u64,
    missing: u64,
}

impl Substitutes {
    /// Looks for damage that copies can replace. `journal` is the external journal, if there is
    /// one.
    ///
    /// # Errors
    /// [`RepairError::NoSuperblock`] if neither the superblock nor a copy is usable, a corruption
    /// for a descriptor without a usable copy, and those of the device.
    pub fn of(
        device: &Arc<dyn BlockDevice>,
        journal: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<Substitutes, RepairError> {
        let chosen = choose_superblock(&**device)?;
        Substitutes::with(chosen, device, journal, Lost::Fails)
    }

    /// As [`Substitutes::of`], or as [`Substitutes::at`] for the copy in a block. Descriptors
    /// without a usable copy stay as they are.
    ///
    /// # Errors
    /// As these, but for lost descriptors.
    pub(crate) fn as_far_as_possible(
        block: Option<u64>,
        device: &Arc<dyn BlockDevice>,
        journal: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<Substitutes, RepairError> {
        let chosen = match block {
            Some(block) => {
                let copy = copy_in_block(&**device, block).ok_or(RepairError::NoSuperblock)?;
                (copy, true)
            }
            None => choose_superblock(&**device)?,
        };
        Substitutes::with(chosen, device, journal, Lost::Stays)
    }

    /// Takes the superblock from its copy in a block of the file system, whatever the primary one
    /// says. `journal` is the external journal, if there is one.
    ///
    /// # Errors
    /// [`RepairError::NoSuperblock`] if the block has no valid copy, a corruption for a descriptor
    /// without a usable copy, and those of the device.
    pub fn at(
        block: u64,
        device: &Arc<dyn BlockDevice>,
        journal: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<Substitutes, RepairError> {
        let copy = copy_in_block(&**device, block).ok_or(RepairError::NoSuperblock)?;
        Substitutes::with((copy, true), device, journal, Lost::Fails)
    }

    fn with(
        (mut superblock, is_copy): (Superblock, bool),
        device: &Arc<dyn BlockDevice>,
        journal: Option<&Arc<dyn BlockDevice>>,
        lost: Lost,
    ) -> Result<Substitutes, RepairError> {
        let geometry = Geometry::new(&superblock)?;
        let len = geometry.blocks_count.saturating_mul(geometry.block_size.into());
        let missing = len.saturating_sub(device.len());
        let size = geometry.block_size as usize;
        let overlay = Arc::new(OverlayDevice::new(device.clone(), size, MAX_BYTES));
        let read = match superblock.verify_checksum() {
            _ if is_copy => Super::Copied,
            Ok(()) => Super::Intact,
            Err(_) => Super::Believed,
        };
        if read != Super::Intact {
            put_superblock(&overlay, &superblock, geometry)?;
        }
        let (descriptors, lost) = replace_descriptors(&overlay, &geometry, lost)?;
        if is_copy && needs_recovery(&overlay, journal, &superblock, geometry) {
            mark(&mut superblock);
            put_superblock(&overlay, &superblock, geometry)?;
        }
        Ok(Substitutes { device: overlay, superblock: read, descriptors, lost, missing })
    }

    /// Looks for damage that would hide all other damage from a check: a superblock of no use, and
    /// impossible places in descriptors. Returns the device to go on with, and the damage.
    pub(crate) fn for_check(
        device: &Arc<dyn BlockDevice>,
        journal: Option<&Arc<dyn BlockDevice>>,
        workers: Workers<'_>,
    ) -> Option<(Arc<dyn BlockDevice>, Vec<Finding>)> {
        let choice = Chooser { device, journal, workers }.choose().ok()?;
        let (mut superblock, is_copy) = (choice.superblock, choice.replaced);
        let geometry = Geometry::new(&superblock).ok()?;
        let size = geometry.block_size;
        let overlay = Arc::new(OverlayDevice::new(device.clone(), size as usize, MAX_BYTES));
        let mut found = Vec::new();
        let mut put = |blocks: Vec<RestoredBlock>| {
            for block in blocks {
                let offset = block.nr.saturating_mul(size.into());
                overlay.write_all_at(&block.bytes, offset).ok()?;
                found.extend(block.findings());
            }
            Some(())
        };
        put(choice.descriptors)?;
        put(restorable(&Reader::new(&*overlay, geometry)))?;
        if !is_copy && found.is_empty() {
            return None;
        }
        if is_copy {
            put_superblock(&overlay, &superblock, geometry).ok()?;
            if needs_recovery(&overlay, journal, &superblock, geometry) {
                mark(&mut superblock);
                put_superblock(&overlay, &superblock, geometry).ok()?;
            }
            found.insert(0, replaced(&**device, choice.field));
        }
        Some((overlay, found))
    }

    /// Returns the device to read from. It is as long as the damaged one, which may be too short.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    /// Returns whether the device ends before the file system does.
    pub fn is_short(&self) -> bool {
        self.missing > 0
    }

    /// Returns whether nothing was replaced and nothing is missing.
    pub fn is_empty(&self) -> bool {
        let is_whole = self.descriptors == 0 && self.lost == 0 && self.missing == 0;
        self.superblock == Super::Intact && is_whole
    }
}

/// Lists replaced and missing parts.
impl fmt::Display for Substitutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let superblock = match self.superblock {
            Super::Intact => None,
            Super::Believed => Some("the superblock is used in spite of its checksum".to_owned()),
            Super::Copied => Some("the superblock is replaced by a copy".to_owned()),
        };
        let descriptors = (self.descriptors > 0).then(|| {
            format!("{} of the group descriptors are replaced by copies", self.descriptors)
        });
        let missing =
            (self.missing > 0).then(|| format!("the last {} bytes are missing", self.missing));
        let lost = (self.lost > 0)
            .then(|| format!("{} group descriptors are damaged and have no copy", self.lost));
        let parts = [superblock, descriptors, lost, missing];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

/// Returns whether the log has changes. A copy of the superblock does not tell.
fn needs_recovery(
    device: &Arc<OverlayDevice>,
    journal: Option<&Arc<dyn BlockDevice>>,
    superblock: &Superblock,
    geometry: Geometry,
) -> bool {
    let device: Arc<dyn BlockDevice> = device.clone();
    let primary = Primary { superblock: superblock.clone(), geometry };
    let has_journal = superblock.compat().contains(Compat::HAS_JOURNAL);
    let source = Source { device: &device, journal, as_is: true };
    let log = has_journal.then(|| source.open_log(&primary).ok().flatten()).flatten();
    log.is_some_and(|log| log.needs_recovery())
}

/// Writes the block of the primary superblock as a whole: its old bytes may be unreadable.
fn put_superblock(
    overlay: &OverlayDevice,
    superblock: &Superblock,
    geometry: Geometry,
) -> Result<(), RepairError> {
    let reader = Reader::new(overlay, geometry);
    let nr = SUPERBLOCK_OFFSET >> geometry.block_bits;
    let start = nr << geometry.block_bits;
    let mut block = reader.block(nr).unwrap_or_else(|| reader.buffer());
    let place = block.iter_mut().skip(SUPERBLOCK_OFFSET.saturating_sub(start) as usize);
    place.zip(superblock.encode()).for_each(|(to, from)| *to = from);
    Ok(overlay.write_all_at(&block, start)?)
}

fn mark(superblock: &mut Superblock) {
    let mut features = superblock.features();
    features.incompat.insert(Incompat::RECOVER);
    superblock.set_features(features);
}

/// Replaces damaged descriptors. Returns their number, and that of those without a usable copy.
fn replace_descriptors(
    device: &OverlayDevice,
    geometry: &Geometry,
    treatment: Lost,
) -> Result<(u64, u64), RepairError> {
    let reader = Reader::new(device, *geometry);
    let (mut replaced, mut lost) = (0u64, 0u64);
    for index in 0..geometry.desc_blocks {
        let BlockNr(nr) = geometry.gdt_block(index);
        if treatment == Lost::Stays && nr >= reader.device_blocks() {
            // Nothing is left of the descriptors behind the end of the device.
            break;
        }
        let mut block = reader.block(nr).unwrap_or_else(|| reader.buffer());
        let is_bad = |group: &GroupNr| usable(&block, geometry, *group).is_none();
        let bad: Vec<GroupNr> = groups_of(geometry, index).filter(is_bad).collect();
        if bad.is_empty() {
            continue;
        }
        let copies = DescriptorCopies::read(&reader, index);
        let before = replaced;
        for group in bad {
            let error = || Corrupt::new("group descriptor, and all its copies").at_group(group);
            let (_, offset) = geometry.desc_location(group);
            let (copy, raw) = (copies.find(geometry, group), block.get_mut(offset..));
            match (copy, raw) {
                (Some(copy), Some(raw)) => {
                    copy.encode(raw, geometry, group);
                    replaced = replaced.saturating_add(1);
                }
                _ if treatment == Lost::Stays => lost = lost.saturating_add(1),
                _ => return Err(error().into()),
            }
        }
        if replaced > before {
            device.write_all_at(&block, nr.saturating_mul(geometry.block_size.into()))?;
        }
    }
    Ok((replaced, lost))
}
