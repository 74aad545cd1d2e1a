//! Usage of owners against the quota files.

use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::maps::Runs;
use crate::volume::Volume;
use extant_format::inode::Inode;
use extant_format::quota::{
    BLOCK, LEVELS, QuotaHeader, QuotaKind, QuotaRecord, ROOT, pointer, records,
};
use extant_format::{Geometry, InodeNr, RoCompat};
use std::collections::{BTreeMap, BTreeSet};

/// Space in bytes and inodes, by owner.
#[derive(Debug, Default)]
pub struct Usage {
    owners: BTreeMap<(QuotaKind, u32), (u64, u64)>,
}

impl Usage {
    /// Counts an inode for its owners, where usage is counted: its bytes, and the number of inodes
    /// with the ones that hold its attributes.
    pub fn add(&mut self, inode: &Inode, (bytes, inodes): (u64, u64), geometry: &Geometry) {
        if !geometry.ro_compat(RoCompat::QUOTA) {
            return;
        }
        let owners = [
            (QuotaKind::User, inode.uid),
            (QuotaKind::Group, inode.gid),
            (QuotaKind::Project, inode.projid),
        ];
        owners.into_iter().for_each(|owner| self.count(owner, bytes, inodes));
    }

    fn count(&mut self, owner: (QuotaKind, u32), bytes: u64, inodes: u64) {
        let (space, number) = self.owners.entry(owner).or_default();
        *space = space.saturating_add(bytes);
        *number = number.saturating_add(inodes);
    }

    /// Returns the owners of a kind, each with bytes and inodes.
    pub fn of(&self, kind: QuotaKind) -> impl Iterator<Item = (u32, (u64, u64))> + '_ {
        self.owners.range((kind, 0)..=(kind, u32::MAX)).map(|((_, id), used)| (*id, *used))
    }

    pub fn merge(&mut self, other: Usage) {
        for (owner, (bytes, inodes)) in other.owners {
            self.count(owner, bytes, inodes);
        }
    }
}

/// Maximum number of blocks of a quota file that are read.
const MAX_BLOCKS: u64 = 1 << 20;

/// Compares the quota files with the usage that was found.
pub fn check(volume: &Volume<'_>, usage: &Usage, findings: &mut Findings<'_>) {
    if !volume.reader.geometry.ro_compat(RoCompat::QUOTA) {
        return;
    }
    let sb = &volume.superblock;
    let files = [sb.usr_quota_inum(), sb.grp_quota_inum(), sb.prj_quota_inum()];
    for (kind, ino) in QuotaKind::ALL.into_iter().zip(files) {
        if ino == InodeNr::NONE {
            continue;
        }
        let place = FindingPlace::inode(ino);
        match read_records(volume, kind, ino) {
            Some(found) => compare(kind, place, &found, usage, findings),
            None => findings.report(Finding::new(FindingCode::QuotaFile, place)),
        }
    }
}

/// Returns the records of a quota file by owner; `None` if it is damaged.
pub fn read_records(
    volume: &Volume<'_>,
    kind: QuotaKind,
    ino: InodeNr,
) -> Option<BTreeMap<u32, QuotaRecord>> {
    QuotaFile::open(volume, kind, ino)?.records(volume)
}

fn compare(
    kind: QuotaKind,
    place: FindingPlace,
    found: &BTreeMap<u32, QuotaRecord>,
    usage: &Usage,
    findings: &mut Findings<'_>,
) {
    let used: BTreeMap<u32, (u64, u64)> = usage.of(kind).collect();
    let ids: BTreeSet<u32> = used.keys().chain(found.keys()).copied().collect();
    for id in ids {
        let (bytes, inodes) = used.get(&id).copied().unwrap_or_default();
        let record = found.get(&id).copied().unwrap_or_default();
        for (field, found, expected) in
            [("space", record.space, bytes), ("inodes", record.inodes, inodes)]
        {
            if found != expected {
                let finding = Finding::new(FindingCode::QuotaUsage, place.field(field));
                findings.report(finding.values(found, expected));
            }
        }
    }
}

struct QuotaFile {
    blocks: Vec<u64>,
    header: QuotaHeader,
}

impl QuotaFile {
    /// Opens a file; `None` if it is damaged.
    fn open(volume: &Volume<'_>, kind: QuotaKind, ino: InodeNr) -> Option<QuotaFile> {
        let geometry = &volume.reader.geometry;
        let inode = Inode::decode_unverified(&volume.slot(ino)?, geometry, ino).ok()?;
        let count = inode.size.div_ceil(geometry.block_size.into());
        let runs = Runs::of(&volume.reader, ino, &inode);
        let blocks = runs.blocks(count.min(MAX_BLOCKS)).filter(|_| !runs.damaged)?;
        let per_block = u64::from(geometry.block_size) >> BLOCK.trailing_zeros();
        let capacity = (blocks.len() as u64).saturating_mul(per_block);
        let first = volume.reader.block(*blocks.first()?)?;
        let header = QuotaHeader::decode(first.get(..BLOCK)?, kind, capacity).ok()?;
        Some(QuotaFile { blocks, header })
    }

    fn block(&self, volume: &Volume<'_>, number: u32) -> Option<Vec<u8>> {
        let at = u64::from(number).checked_mul(BLOCK as u64)?;
        let geometry = &volume.reader.geometry;
        let block = self.blocks.get(usize::try_from(at >> geometry.block_bits).ok()?)?;
        let bytes = volume.reader.block(*block)?;
        let within = (at & u64::from(geometry.block_size.saturating_sub(1))) as usize;
        bytes.get(within..within.checked_add(BLOCK)?).map(<[u8]>::to_vec)
    }

    /// Returns all records by owner; `None` if the tree is damaged. Each block is read once.
    fn records(&self, volume: &Volume<'_>) -> Option<BTreeMap<u32, QuotaRecord>> {
        let mut found = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut left = vec![(ROOT, 0)];
        while let Some((number, level)) = left.pop() {
            let bytes = self.block(volume, number)?;
            if level == LEVELS {
                found.extend(records(&bytes).map(|(_, record)| (record.id, record)));
                continue;
            }
            for slot in 0..256 {
                let child = pointer(&bytes, slot);
                if child == 0 {
                    continue;
                }
                if !self.header.has(child) {
                    return None;
                }
                // Slots of the last level share blocks of records.
                let new = seen.insert(child);
                if new {
                    left.push((child, level.saturating_add(1)));
                } else if level.saturating_add(1) != LEVELS {
                    return None;
                }
            }
        }
        Some(found)
    }
}
