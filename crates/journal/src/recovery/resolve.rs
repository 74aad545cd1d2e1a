//! The second and third pass: determines the revoked copies, and each block's newest copy among the
//! others.

use super::scan::{Copy, Found};
use super::{Damage, Dropped, Outcome};
use crate::error::Result;
use crate::log::Log;
use extant_format::Corrupt;
use extant_format::jbd2::{JournalIncompat, RevokeRecords, tid_geq, tid_gt};
use rustc_hash::FxHashMap;

/// For each block with a copy, the last transaction that revoked it.
type Revoked = FxHashMap<u64, Option<u32>>;

/// Returns the copies to replay, one for each block, in order of blocks, with verified checksums.
pub(super) fn copies(
    log: &Log,
    found: &mut Found,
    outcome: &mut Outcome,
    damage: Damage,
) -> Result<Vec<Copy>> {
    let mut revoked = revokes(log, found)?;
    if damage == Damage::IsSkipped {
        drop_bad(log, found)?;
    } else if let Err(bad) = verify(log, found, &revoked)? {
        let last = outcome.first.wrapping_add(found.transactions.len() as u32).wrapping_sub(1);
        let forgivable = log.superblock().incompat().contains(JournalIncompat::ASYNC_COMMIT);
        if !forgivable || bad.sequence != last {
            let error = Corrupt::new("journalled block").field("checksum").found(u64::from(bad.at));
            return Err(error.at_block(bad.block).into());
        }
        found.drop_last(Dropped::Incomplete);
        revoked = revokes(log, found)?;
    }
    let mut newest: FxHashMap<u64, Copy> = FxHashMap::default();
    for copy in &found.copies {
        if is_revoked(&revoked, copy) {
            outcome.revoked += 1;
        } else {
            newest.insert(copy.block, *copy);
        }
    }
    let mut copies: Vec<Copy> = newest.into_values().collect();
    copies.sort_unstable_by_key(|copy| copy.block);
    Ok(copies)
}

/// Reads the revoke blocks. Only blocks with a copy are kept, which bounds the table by the log's
/// length.
fn revokes(log: &Log, found: &Found) -> Result<Revoked> {
    let mut revoked: Revoked = found.copies.iter().map(|copy| (copy.block, None)).collect();
    let (format, mut block) = (log.superblock().format(), vec![0; log.block_size()]);
    for revoke in &found.revokes {
        log.read(revoke.at, &mut block)?;
        for nr in RevokeRecords::parse(&block, &format)? {
            if let Some(last) = revoked.get_mut(&nr.0)
                && last.is_none_or(|last| tid_gt(revoke.sequence, last))
            {
                *last = Some(revoke.sequence);
            }
        }
    }
    Ok(revoked)
}

/// Returns whether a copy is revoked. A block that was written after its revoke in the same
/// transaction has no revoke record there, so equal sequences mean revoked.
fn is_revoked(revoked: &Revoked, copy: &Copy) -> bool {
    revoked.get(&copy.block).copied().flatten().is_some_and(|last| tid_geq(last, copy.sequence))
}

/// Drops the copies with a wrong checksum. An older copy of the same block may remain.
fn drop_bad(log: &Log, found: &mut Found) -> Result<()> {
    let (format, mut block) = (log.superblock().format(), vec![0; log.block_size()]);
    let mut kept = Vec::new();
    for copy in &found.copies {
        log.read(copy.at, &mut block)?;
        let is_good =
            !format.has_crc32c() || format.tag_checksum(copy.sequence, &block) == copy.checksum;
        kept.extend(is_good.then_some(*copy));
    }
    found.copies = kept;
    Ok(())
}

/// Verifies the copies that are not revoked. Returns the first bad one.
fn verify(log: &Log, found: &Found, revoked: &Revoked) -> Result<std::result::Result<(), Copy>> {
    let (format, mut block) = (log.superblock().format(), vec![0; log.block_size()]);
    if !format.has_crc32c() {
        return Ok(Ok(()));
    }
    for copy in found.copies.iter().filter(|copy| !is_revoked(revoked, copy)) {
        log.read(copy.at, &mut block)?;
        if format.tag_checksum(copy.sequence, &block) != copy.checksum {
            return Ok(Err(*copy));
        }
    }
    Ok(Ok(()))
}
