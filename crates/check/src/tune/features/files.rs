//! Files and blocks of the file system itself that features add: orphan file, quota files, the
//! block of multi-mount protection.

use super::wanted::Wanted;
use super::wanted::changed_quotas;
use crate::maps::Run;
use crate::repair::{FreeSpace, RepairError, Round};
use extant_format::mmp::{MMP_MIN_CHECK_INTERVAL, MMP_SEQ_CLEAN, MMP_UPDATE_INTERVAL, Mmp};
use extant_format::quota::QuotaKind;
use extant_format::{BlockNr, Compat, Incompat, InodeFlags, InodeNr, RoCompat, Superblock, orphan};

/// Adds or removes the orphan file.
pub fn switch_orphan_file(round: &Round<'_>, wanted: &Wanted) -> Result<(), RepairError> {
    if wanted.removes(Compat::ORPHAN_FILE) {
        return round.drop_orphan_file(round.survey.volume.superblock.orphan_file_inum());
    }
    if !wanted.switches(Compat::ORPHAN_FILE) {
        return Ok(());
    }
    let geometry = round.geometry();
    let ino = round.take_inode()?;
    round.create_file(ino, InodeFlags::empty())?;
    let ratio = geometry.cluster_ratio();
    let count = orphan::default_blocks(geometry.blocks_count, ratio);
    let mut space = FreeSpace::new(&round.survey.claims, *geometry);
    let mut runs: Vec<Run> = Vec::new();
    let mut logical = 0u64;
    while logical < count {
        let clusters = count.saturating_sub(logical).div_ceil(u64::from(ratio.max(1)));
        let blocks = space.take(clusters).ok_or(RepairError::NoSpace)?;
        let len = blocks.end.saturating_sub(blocks.start).min(count.saturating_sub(logical));
        runs.push(Run { logical, physical: blocks.start, len, unwritten: false });
        logical = logical.saturating_add(len);
    }
    let seed = round.inode(ino)?.seed(geometry, ino);
    for nr in runs.iter().flat_map(Run::blocks) {
        round.put_empty(nr, seed)?;
    }
    round.write_map(ino, &runs)?;
    round.edit_inode(ino, |inode| {
        inode.size = count.saturating_mul(geometry.block_size.into());
    })?;
    round.draft.edit_super(|sb| {
        let mut features = sb.features();
        features.compat.insert(Compat::ORPHAN_FILE);
        sb.set_features(features);
        sb.set_orphan_file_inum(ino);
    })
}

/// Adds and removes quota files. The superblock has the feature if one is added, so that the survey
/// of the round has counted the usage.
pub fn switch_quotas(round: &Round<'_>, wanted: &Wanted) -> Result<(), RepairError> {
    for (kind, has) in changed_quotas(wanted) {
        if has {
            let ino = match kind {
                QuotaKind::User => InodeNr::USER_QUOTA,
                QuotaKind::Group => InodeNr::GROUP_QUOTA,
                QuotaKind::Project => round.take_inode()?,
            };
            round.create_file(ino, InodeFlags::IMMUTABLE)?;
            round.write_quota(kind, ino)?;
            round.draft.edit_super(|sb| set_inum(sb, kind, ino))?;
        } else {
            round.clear_inode(inum(&round.survey.volume.superblock, kind))?;
            round.draft.edit_super(|sb| set_inum(sb, kind, InodeNr::NONE))?;
        }
    }
    round.draft.edit_super(|sb| {
        let mut features = sb.features();
        features.ro_compat.set(RoCompat::QUOTA, wanted.has != [false; 3]);
        sb.set_features(features);
    })
}

/// Adds or removes the block of multi-mount protection. A new one is written before the superblock
/// names it. A removed one is free once the superblock does not name it any more, and from then on
/// no host writes it.
pub fn switch_mmp(round: &Round<'_>, wanted: &Wanted) -> Result<(), RepairError> {
    let Some(has) = wanted.mmp() else { return Ok(()) };
    let block = if has { round.allocate()? } else { 0 };
    let interval = match round.survey.volume.superblock.mmp_update_interval() {
        _ if !has => 0,
        0 => MMP_UPDATE_INTERVAL,
        interval => interval,
    };
    if has {
        let geometry = round.geometry();
        let check_interval = interval.max(MMP_MIN_CHECK_INTERVAL);
        let mmp = Mmp { seq: MMP_SEQ_CLEAN, check_interval, ..Mmp::default() };
        let mut bytes = vec![0; round.block_size()];
        mmp.encode(&mut bytes, geometry.metadata_csum.then_some(geometry.csum_seed));
        round.put(block, &bytes)?;
    }
    round.draft.edit_super(|sb| {
        let mut features = sb.features();
        features.incompat.set(Incompat::MMP, has);
        sb.set_features(features);
        sb.set_mmp_block(BlockNr(block));
        sb.set_mmp_update_interval(interval);
    })
}

fn inum(sb: &Superblock, kind: QuotaKind) -> InodeNr {
    match kind {
        QuotaKind::User => sb.usr_quota_inum(),
        QuotaKind::Group => sb.grp_quota_inum(),
        QuotaKind::Project => sb.prj_quota_inum(),
    }
}

fn set_inum(sb: &mut Superblock, kind: QuotaKind, ino: InodeNr) {
    match kind {
        QuotaKind::User => sb.set_usr_quota_inum(ino),
        QuotaKind::Group => sb.set_grp_quota_inum(ino),
        QuotaKind::Project => sb.set_prj_quota_inum(ino),
    }
}
