//! Group descriptors of 64 bytes in place of 32, and back: the feature `64bit`.
//!
//! No log can make this change: a program reads superblock and descriptors before it replays one,
//! and a descriptor is valid under one of the two superblocks only.
//!
//! # Order of writes
//! 1. The superblock is marked as not clean.
//! 2. The descriptors are written. Their copies are the old ones, and so is the superblock: after a
//!    power cut here, descriptors have wrong checksums, and a repair takes the copies.
//! 3. The write of the new superblock counts.
//! 4. All else is written, which a repair derives from superblock and descriptors: the list of
//!    blocks that are kept for descriptors, and the copies.
//! 5. The mark goes.
//!
//! For example, 40 groups with blocks of 1 KiB have 2 blocks of descriptors of 32 bytes, and 3 of
//! 64. The third is the first of those that `resize_inode` keeps, in each group with copies.
//!
//! With a redo file, this order stays, behind the record: a repair has its way also without the
//! file.
//!
//! # Invariants
//! - No other structure moves. Without a kept block for each further one, nothing is changed.
//! - Descriptors have checksums, by which step 2 is noticed.

use super::{Site, copies};
use crate::difference::SaveRedo;
use crate::redo::RedoRecord;
use crate::repair::{Draft, RepairLevel, Round};
use crate::tune::{Tunable, TuneChanges, TuneError};
use extant_blocks::BlockDevice;
use extant_format::group_desc::GroupFlags;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State};
use extant_format::{Compat, Geometry, GroupNr, Incompat, Superblock};
use extant_journal::offline::ChangedBlock;
use std::io;

/// Bytes of a wide descriptor.
const WIDE: u16 = 64;

fn refused<T>(why: &str) -> Result<T, TuneError> {
    Err(TuneError::Unsupported(format!("the feature 64bit {why}")))
}

/// Gives descriptors 64 bytes, or 32, and sets further values of the superblock. `save` makes a
/// record of the change durable, if it is to be completed after a power cut.
pub fn change(
    site: &Site<'_>,
    changes: &TuneChanges,
    is_wide: bool,
    save: Option<&mut SaveRedo<'_>>,
) -> Result<(), TuneError> {
    let tunable = Tunable::open(site.device, site.journal)?;
    let old = tunable.primary.geometry;
    check(&old, is_wide)?;
    let superblock = superblock(tunable.with_values(changes)?, &old, is_wide)?;
    let new = Geometry::new(&superblock)?;
    let draft = site.draft(&old);
    {
        let view = site.surveyor().view(&draft)?;
        let survey = site.whole(&view)?;
        let round = Round::new(&survey, &draft, RepairLevel::Safe);
        let table = descriptors(&round, &new)?;
        draft.write(start(&new), &table)?;
        draft.edit_super(|sb| *sb = superblock)?;
    }
    site.surveyor().finish(&draft)?;
    copies(site, &draft)?;
    let parts = site.parts(&tunable, &draft, &[])?;
    let used = parts.used()?;
    parts.write_new(site)?;
    if let Some(save) = save {
        let (new, overlay) = (&parts.difference.new, &*parts.overlay);
        save(&RedoRecord::of(&**site.device, overlay, (new, used.clone()), old.block_size)?)?;
    }
    write(site, &draft, (&old, &new), &used)
}

fn check(old: &Geometry, is_wide: bool) -> Result<(), TuneError> {
    if old.incompat(Incompat::META_BG) {
        return refused("is not switched with meta_bg, whose descriptors lie in their groups");
    }
    if !old.has_group_checksums() {
        return refused(
            "takes checksums of descriptors, by which a power cut is noticed: set uninit_bg or \
             metadata_csum first",
        );
    }
    if is_wide && !old.incompat(Incompat::EXTENTS) {
        return refused("takes the feature extent, which e2fsck asks for: set that first");
    }
    if !is_wide && old.blocks_count > u64::from(u32::MAX) {
        return refused("stays: the file system has more than 2^32 blocks");
    }
    if old.groups_count > 1 && old.super_groups().count() < 2 {
        return refused("is not switched without a copy of the descriptors");
    }
    Ok(())
}

/// Returns the superblock with the feature, and with as many blocks less for further descriptors as
/// there are more descriptors.
fn superblock(mut sb: Superblock, old: &Geometry, is_wide: bool) -> Result<Superblock, TuneError> {
    let counts = (sb.blocks_count(), sb.r_blocks_count(), sb.free_blocks_count());
    let mut features = sb.features();
    features.incompat.set(Incompat::BIT64, is_wide);
    sb.set_features(features);
    sb.set_desc_size(if is_wide { WIDE } else { 0 });
    sb.set_blocks_count(counts.0);
    sb.set_r_blocks_count(counts.1);
    sb.set_free_blocks_count(counts.2);
    sb.set_reserved_gdt_blocks(0);
    let new = Geometry::new(&sb)?;
    if !features.compat.contains(Compat::RESIZE_INODE) {
        return if new.desc_blocks > old.desc_blocks {
            refused("takes blocks that resize_inode keeps for descriptors, and there are none")
        } else {
            Ok(sb)
        };
    }
    let kept = old.desc_blocks.saturating_add(old.reserved_gdt_blocks.into());
    let Some(left) = kept.checked_sub(new.desc_blocks) else {
        return refused("takes more blocks than resize_inode keeps for descriptors");
    };
    // The list of these has one block.
    let most = old.block_size / 4;
    sb.set_reserved_gdt_blocks(u16::try_from(left.min(most)).unwrap_or(u16::MAX));
    Ok(sb)
}

fn start(geometry: &Geometry) -> u64 {
    geometry.gdt_block(0).0.saturating_mul(geometry.block_size.into())
}

/// Returns the table of descriptors in the form of a geometry.
fn descriptors(round: &Round<'_>, new: &Geometry) -> Result<Vec<u8>, TuneError> {
    let len = (new.desc_blocks as usize).saturating_mul(new.block_size as usize);
    let mut table = vec![0; len];
    let slots = table.chunks_exact_mut(new.desc_size.into());
    for (slot, nr) in slots.zip(0..new.groups_count) {
        let mut desc = round.desc(GroupNr(nr))?;
        // Wide ones have all bits of the checksums of bitmaps.
        (desc.block_bitmap_csum, desc.inode_bitmap_csum) = (0, 0);
        if !desc.has_flag(new, GroupFlags::BLOCK_UNINIT) {
            desc.seal_block_bitmap(&round.block(desc.block_bitmap)?, new);
        }
        if !desc.has_flag(new, GroupFlags::INODE_UNINIT) {
            desc.seal_inode_bitmap(&round.block(desc.inode_bitmap)?, new);
        }
        desc.encode(slot, new, GroupNr(nr));
    }
    Ok(table)
}

/// Writes all blocks in the order of the module's head.
fn write(
    site: &Site<'_>,
    draft: &Draft,
    (old, new): (&Geometry, &Geometry),
    used: &[ChangedBlock],
) -> Result<(), TuneError> {
    let size = u64::from(old.block_size);
    let holder = SUPERBLOCK_OFFSET >> old.block_bits;
    let first = old.gdt_block(0).0;
    let table = first..first.saturating_add(old.desc_blocks.max(new.desc_blocks).into());
    let put = |wanted: &dyn Fn(u64) -> bool| -> io::Result<()> {
        for (nr, bytes) in used.iter().filter(|(nr, _)| wanted(*nr)) {
            site.device.write_all_at(bytes, nr.saturating_mul(size))?;
        }
        site.device.flush()
    };
    let mark = |bytes: &[u8]| -> Result<(), TuneError> {
        let mut sb = Superblock::parse_unverified(bytes)?;
        sb.set_state(sb.state().difference(State::VALID));
        site.device.write_all_at(&sb.seal(), SUPERBLOCK_OFFSET)?;
        Ok(site.device.flush()?)
    };
    let mut before = [0; SUPERBLOCK_SIZE];
    site.device.read_exact_at(&mut before, SUPERBLOCK_OFFSET)?;
    let after = draft.read(SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE)?;
    mark(&before)?;
    let unfinished = |error| TuneError::Unfinished(Box::new(error));
    put(&|nr| table.contains(&nr)).map_err(|error| unfinished(error.into()))?;
    mark(&after).map_err(unfinished)?;
    put(&|nr| !table.contains(&nr) && nr != holder).map_err(|error| unfinished(error.into()))?;
    put(&|nr| nr == holder).map_err(|error| unfinished(error.into()))
}
