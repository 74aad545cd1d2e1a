//! Orphans: inodes that were deleted, or are to be shortened, while they were open. They are in a
//! list through the inodes, or in the slots of the orphan file.

use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::maps::Runs;
use crate::volume::Volume;
use extant_format::inode::{Inode, RawInode};
use extant_format::{Compat, InodeNr, RoCompat, orphan};
use std::collections::BTreeSet;

/// Maximum number of orphans.
const MAX_ORPHANS: usize = 1 << 20;

/// Maximum number of blocks of the orphan file.
const MAX_BLOCKS: u64 = 1 << 16;

/// Returns the orphans. Without recovery there are none: their state is damage then.
pub fn collect(volume: &Volume<'_>, recovered: bool, findings: &mut Findings<'_>) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    if volume.reader.geometry.compat(Compat::ORPHAN_FILE) {
        match file_slots(volume, findings) {
            Some(slots) if recovered => found.extend(slots),
            Some(slots) => {
                for ino in slots {
                    let place = FindingPlace::inode(InodeNr(ino)).field("orphan file");
                    findings.report(Finding::new(FindingCode::OrphanRecord, place));
                }
            }
            None => {
                let place = FindingPlace::inode(volume.superblock.orphan_file_inum());
                findings.report(Finding::new(FindingCode::OrphanRecord, place));
            }
        }
    } else if volume.superblock.ro_compat().contains(RoCompat::ORPHAN_PRESENT) {
        let place = FindingPlace::default().field("orphan_present");
        findings.report(Finding::new(FindingCode::OrphanRecord, place));
    }
    if recovered {
        walk_list(volume, &mut found, findings);
    }
    let bad: Vec<u32> = found.iter().copied().filter(|ino| !is_orphan(volume, *ino)).collect();
    for ino in bad {
        let place = FindingPlace::inode(InodeNr(ino)).field("orphan");
        findings.report(Finding::new(FindingCode::OrphanRecord, place));
        found.remove(&ino);
    }
    found
}

/// Returns whether the inode may be an orphan: an ordinary one with a mode.
fn is_orphan(volume: &Volume<'_>, ino: u32) -> bool {
    let slot = volume.slot(InodeNr(ino));
    let ordinary = ino >= volume.reader.geometry.first_ino;
    ordinary && slot.is_some_and(|slot| RawInode::read(&slot).mode.get() != 0)
}

fn walk_list(volume: &Volume<'_>, found: &mut BTreeSet<u32>, findings: &mut Findings<'_>) {
    let mut listed = BTreeSet::new();
    let mut next = volume.superblock.last_orphan().0;
    while next != 0 {
        let slot = volume.slot(InodeNr(next));
        let Some(slot) = slot.filter(|_| listed.len() < MAX_ORPHANS && listed.insert(next)) else {
            let place = FindingPlace::inode(InodeNr(next)).field("next orphan");
            findings.report(Finding::new(FindingCode::OrphanRecord, place));
            break;
        };
        next = RawInode::read(&slot).dtime.get();
    }
    found.extend(listed);
}

/// Returns the inodes in the slots of the orphan file; `None` if it is damaged.
fn file_slots(volume: &Volume<'_>, findings: &mut Findings<'_>) -> Option<Vec<u32>> {
    let ino = volume.superblock.orphan_file_inum();
    let geometry = &volume.reader.geometry;
    let inode = Inode::decode_unverified(&volume.slot(ino)?, geometry, ino).ok()?;
    if !inode.is_regular() || inode.links == 0 {
        return None;
    }
    let runs = Runs::of(&volume.reader, ino, &inode);
    let count = (inode.size >> geometry.block_bits).min(MAX_BLOCKS);
    let blocks = runs.blocks(count).filter(|_| !runs.damaged && count > 0)?;
    let seed = inode.seed(geometry, ino);
    let mut slots = Vec::new();
    for block in blocks {
        let bytes = volume.reader.block(block)?;
        if let Err(error) = orphan::verify(&bytes, block, seed, geometry.metadata_csum) {
            let place = FindingPlace::inode(ino);
            findings.report(Finding::corrupt(FindingCode::OrphanRecord, place, &error));
        }
        let room = MAX_ORPHANS.saturating_sub(slots.len());
        slots.extend(orphan::used(&bytes).map(|(_, ino)| ino).take(room));
    }
    Some(slots)
}
