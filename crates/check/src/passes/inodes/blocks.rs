//! Block maps of inodes: claims of blocks, sizes, rules of clusters.

use super::{GroupScan, InodePass, Role, Subject};
use crate::claims::ClaimMap;
use crate::finding::{Finding, FindingCode, FindingList, FindingPlace};
use crate::maps::{MapVisitor, Run, walk};
use crate::volume::Volume;
use extant_format::indirect::max_blocks;
use extant_format::inline::{self, INLINE_FIRST};
use extant_format::inode::{Inode, tail};
use extant_format::xattr::{NameIndex, Value, decode_inode_area};
use extant_format::{FileType, InodeFlags, InodeNr, RoCompat};
use std::collections::BTreeSet;

/// A visitor that claims the blocks of a map.
struct MapCheck<'m> {
    volume: &'m Volume<'m>,
    claims: &'m ClaimMap,
    place: FindingPlace,
    is_dir: bool,
    /// Clusters of data, and nodes of the map.
    clusters: u64,
    /// The block of the file after the last one, and after the last one that is written.
    end: u64,
    written_end: u64,
    /// The last cluster of the file and of the device.
    last: Option<(u64, u64)>,
    findings: &'m mut FindingList,
    contested: &'m mut Vec<u64>,
}

/// Returns whether the inode has a block map.
pub fn has_map(volume: &Volume<'_>, inode: &Inode) -> bool {
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        return false;
    }
    match inode.file_type() {
        FileType::Regular | FileType::Directory => true,
        FileType::Symlink => !inode.is_fast_symlink(&volume.reader.geometry),
        FileType::Unknown => inode.mode == 0,
        _ => false,
    }
}

impl MapCheck<'_> {
    /// Returns whether the range lies in metadata, which is reported.
    fn is_metadata(&mut self, run: &Run) -> bool {
        let taken = self.volume.metadata.first_claimed(run.blocks());
        if let Some(block) = taken {
            let place = self.place.block(block);
            self.findings.add(FindingCode::BlockInMetadata, place);
            self.contested.push(block);
        }
        taken.is_some()
    }

    fn claim(&mut self, run: &Run) -> bool {
        let taken = self.claims.claim(run.blocks());
        if let Some(block) = taken {
            let shared = self.volume.reader.geometry.ro_compat(RoCompat::SHARED_BLOCKS);
            if !shared {
                self.findings.add(FindingCode::MultiplyClaimed, self.place.block(block));
            }
            self.contested.push(block);
        }
        taken.is_none()
    }

    /// Returns the part of a run that begins in another cluster than the last run ended in.
    fn new_clusters(&mut self, run: Run) -> Option<Run> {
        let bits = self.volume.reader.geometry.cluster_bits;
        let cluster = |block: u64| block >> bits;
        let first = (cluster(run.logical), cluster(run.physical));
        let last = run.end().saturating_sub(1);
        let last_physical = run.blocks().end.saturating_sub(1);
        let joined = self.last == Some(first);
        self.last = Some((cluster(last), cluster(last_physical)));
        if !joined {
            return Some(run);
        }
        let next = first.1.saturating_add(1).checked_shl(bits)?;
        let skipped = next.saturating_sub(run.physical);
        let len = run.len.checked_sub(skipped).filter(|len| *len > 0)?;
        Some(Run { logical: run.logical.saturating_add(skipped), physical: next, len, ..run })
    }
}

impl MapVisitor for MapCheck<'_> {
    fn enter(&mut self, block: u64) -> bool {
        self.clusters = self.clusters.saturating_add(1);
        let run = Run { logical: 0, physical: block, len: 1, unwritten: false };
        !self.is_metadata(&run) && self.claim(&run)
    }

    fn run(&mut self, run: Run) {
        let geometry = self.volume.reader.geometry;
        self.end = self.end.max(run.end());
        if !run.unwritten {
            self.written_end = self.written_end.max(run.end());
        } else if self.is_dir {
            self.findings.add(FindingCode::DirectoryBlock, self.place.logical(run.logical));
        }
        let mask = u64::from(geometry.cluster_ratio()).saturating_sub(1);
        if (run.logical ^ run.physical) & mask != 0 {
            let place = self.place.logical(run.logical).block(run.physical);
            self.findings.add(FindingCode::Misaligned, place);
        }
        let Some(run) = self.new_clusters(run) else { return };
        let last = run.blocks().end.saturating_sub(1) >> geometry.cluster_bits;
        let first = run.physical >> geometry.cluster_bits;
        let count = last.saturating_sub(first).saturating_add(1);
        self.clusters = self.clusters.saturating_add(count);
        if !self.is_metadata(&run) {
            self.claim(&run);
        }
    }

    fn bad(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

impl InodePass<'_> {
    /// Checks the map, or the data in the inode, and claims its blocks. Returns the number of
    /// clusters of data and map.
    pub(super) fn check_map(
        &self,
        subject: &Subject<'_>,
        claims: &ClaimMap,
        scan: &mut GroupScan,
    ) -> u64 {
        let inode = subject.inode;
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            self.check_inline(subject, scan);
            return 0;
        }
        if !has_map(self.volume, inode) {
            self.check_fast_symlink(subject, scan);
            return 0;
        }
        let contested = scan.contested.len();
        let mut check = MapCheck {
            volume: self.volume,
            claims,
            place: subject.place(),
            is_dir: inode.is_dir(),
            clusters: 0,
            end: 0,
            written_end: 0,
            last: None,
            findings: &mut scan.findings,
            contested: &mut scan.contested,
        };
        walk(&self.volume.reader, subject.ino, inode, &mut check);
        let (clusters, end, written_end) = (check.clusters, check.end, check.written_end);
        let is_own = scan.contested.len() == contested;
        match inode.file_type() {
            FileType::Directory => self.check_dir_size(subject, end, scan),
            // A map that shares blocks is not read again: many inodes may share it.
            FileType::Symlink if is_own => self.check_slow_symlink(subject, end, scan),
            FileType::Symlink => {}
            _ if subject.role != Role::BadBlocks => {
                self.check_file_size(subject, written_end, scan);
            }
            _ => {}
        }
        clusters
    }

    fn bad_size(&self, subject: &Subject<'_>, expected: u64, scan: &mut GroupScan) {
        let finding = Finding::new(FindingCode::InodeSize, subject.place());
        scan.findings.push(finding.values(subject.inode.size, expected));
    }

    fn check_dir_size(&self, subject: &Subject<'_>, end: u64, scan: &mut GroupScan) {
        let expected = end.saturating_mul(self.volume.reader.geometry.block_size.into());
        if subject.inode.size != expected || end == 0 {
            self.bad_size(subject, expected, scan);
        }
    }

    /// Written blocks must not lie past the end. Maps bound the size.
    fn check_file_size(&self, subject: &Subject<'_>, written_end: u64, scan: &mut GroupScan) {
        let geometry = &self.volume.reader.geometry;
        let (inode, block) = (subject.inode, u64::from(geometry.block_size));
        let least = written_end.saturating_sub(1).saturating_mul(block);
        if inode.size < least && !inode.flags.contains(InodeFlags::VERITY) {
            self.bad_size(subject, written_end.saturating_mul(block), scan);
        }
        let by_extents = inode.flags.contains(InodeFlags::EXTENTS);
        let blocks = if by_extents { (1 << 32) - 1 } else { max_blocks(geometry.block_size) };
        let most = blocks.saturating_mul(block);
        if inode.size > most {
            self.bad_size(subject, written_end.saturating_mul(block), scan);
        }
        self.check_large(subject, scan);
    }

    /// Files of 2 GiB need a feature.
    pub(super) fn check_large(&self, subject: &Subject<'_>, scan: &mut GroupScan) {
        let is_large = subject.inode.is_regular() && subject.inode.size >= 1 << 31;
        if is_large && !self.volume.reader.geometry.ro_compat(RoCompat::LARGE_FILE) {
            let place = subject.place().field("large_file");
            scan.findings.add(FindingCode::SuperblockField, place);
        }
    }

    /// Checks data in the inode. A directory's size is all the space that it has.
    fn check_inline(&self, subject: &Subject<'_>, scan: &mut GroupScan) {
        let (inode, geometry) = (subject.inode, &self.volume.reader.geometry);
        let entries = decode_inode_area(tail(subject.slot, geometry, inode)).unwrap_or_default();
        let data = NameIndex::INLINE_DATA_NAME;
        let Some(rest) = entries.iter().find(|entry| entry.is(NameIndex::SYSTEM, data)) else {
            let place = subject.place().field("system.data");
            scan.findings.add(FindingCode::InlineData, place);
            return;
        };
        let capacity = INLINE_FIRST.saturating_add(rest.value.len()) as u64;
        let fits = if inode.is_dir() { inode.size == capacity } else { inode.size <= capacity };
        if inode.is_symlink()
            && let Value::Inline(rest) = &rest.value
        {
            let target = inline::join(&inode.i_block, rest, inode.size);
            self.check_target(subject, &target, scan);
        }
        if !fits {
            let finding = Finding::new(FindingCode::InlineData, subject.place().field("size"));
            scan.findings.push(finding.values(inode.size, capacity));
        }
    }
}

/// A visitor that looks for contested blocks in a map. Nodes are read once in the whole search.
struct Search<'s> {
    contested: &'s BTreeSet<u64>,
    nodes: &'s ClaimMap,
    cluster_bits: u32,
    found: BTreeSet<u64>,
}

impl Search<'_> {
    fn look(&mut self, run: &Run) {
        let first = run.physical >> self.cluster_bits << self.cluster_bits;
        self.found.extend(self.contested.range(first..run.blocks().end.max(first)));
    }
}

impl MapVisitor for Search<'_> {
    fn enter(&mut self, block: u64) -> bool {
        self.look(&Run { logical: 0, physical: block, len: 1, unwritten: false });
        self.nodes.claim(block..block.saturating_add(1)).is_none()
    }

    fn run(&mut self, run: Run) {
        self.look(&run);
    }

    fn bad(&mut self, _: Finding) {}
}

/// Finds all owners of contested blocks, in the order of inode numbers, and reports each.
pub fn find_claimants(volume: &Volume<'_>, contested: &BTreeSet<u64>, findings: &mut FindingList) {
    let nodes = ClaimMap::of_blocks(&volume.reader.geometry, volume.groups.len());
    for group in volume.reader.groups() {
        volume.each_slot(group, &mut |ino, slot| {
            let Ok(inode) = Inode::decode_unverified(slot, &volume.reader.geometry, ino) else {
                return;
            };
            let used = inode.links > 0 || ino.0 < volume.reader.geometry.first_ino;
            if !used || ino == InodeNr::RESIZE {
                return;
            }
            let cluster_bits = volume.reader.geometry.cluster_bits;
            let found = BTreeSet::new();
            let mut search = Search { contested, nodes: &nodes, cluster_bits, found };
            if has_map(volume, &inode) {
                walk(&volume.reader, ino, &inode, &mut search);
            }
            if contested.contains(&inode.file_acl) {
                search.found.insert(inode.file_acl);
            }
            for block in search.found {
                let place = FindingPlace::inode(ino).block(block).field("claimant");
                findings.add(FindingCode::MultiplyClaimed, place);
            }
        });
    }
}
