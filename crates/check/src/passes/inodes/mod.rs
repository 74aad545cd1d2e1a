//! Inode tables: each inode's fields, map, data in the inode and attributes.
//!
//! Groups are scanned in parallel. All results but claims of blocks are merged in order. If two
//! owners claim a block, the winner depends on the threads, so the pass is repeated by one thread,
//! in the order of inode numbers: its findings are then the same for any number of threads.

mod blocks;
mod fields;
mod resize;
mod symlink;
mod values;
mod xattrs;

pub use blocks::{find_claimants, has_map};
pub use resize::WRONG_FLAGS;
pub use xattrs::{SharedBlocks, check_shared};

use crate::claims::ClaimMap;
use crate::facts::{Fact, Facts, InodeState};
use crate::finding::{Finding, FindingCode, FindingList, FindingPlace};
use crate::parallel::Workers;
use crate::passes::quota::Usage;
use crate::volume::Volume;
use extant_format::inode::{Inode, RawInode, verify_inode};
use extant_format::{Compat, FileType, GroupNr, InodeNr, RoCompat};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of an inode that every revision has.
const OLD_INODE_SIZE: usize = 128;

/// Maximum number of contested blocks that are looked for.
const MAX_CONTESTED: usize = 1 << 16;

/// The use of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A file with names.
    Ordinary,
    Root,
    BadBlocks,
    Resize,
    /// A regular file of the file system itself: journal, quota, orphans.
    Hidden,
    /// A reserved number without use.
    Reserved,
}

/// A directory that was found.
#[derive(Clone, Copy, Debug)]
pub struct DirRef {
    pub ino: InodeNr,
    /// Whether no other owner claimed a block of its map before, so that it is read. Maps that
    /// share blocks would be read again and again.
    pub readable: bool,
}

/// Results of the pass.
#[derive(Debug, Default)]
pub struct Inodes {
    pub facts: Facts,
    /// The directories, in the order of their numbers.
    pub dirs: Vec<DirRef>,
    /// Blocks of attributes, each with its number of owners and the first of them.
    pub shared: SharedBlocks,
    /// Number of attributes whose value is in an inode, by that inode.
    pub value_refs: BTreeMap<u32, u64>,
    /// The references that the inodes with values count.
    pub values: BTreeMap<u32, u64>,
    pub usage: Usage,
    /// Blocks where a claim met another one.
    pub contested: BTreeSet<u64>,
    pub findings: FindingList,
}

impl Inodes {
    /// Counts references to inodes with values.
    pub fn count_values(&mut self, refs: Vec<u32>) {
        for ino in refs {
            let count = self.value_refs.entry(ino).or_default();
            *count = count.saturating_add(1);
        }
    }

    fn merge(&mut self, scan: GroupScan) {
        self.findings.append(scan.findings);
        self.facts.push(scan.facts);
        self.dirs.extend(scan.dirs);
        scan.shared.into_iter().for_each(|(block, ino)| self.shared.add(block, ino));
        self.count_values(scan.value_refs);
        self.values.extend(scan.values);
        self.usage.merge(scan.usage);
        let room = MAX_CONTESTED.saturating_sub(self.contested.len());
        self.contested.extend(scan.contested.into_iter().take(room));
    }
}

/// Results for one group.
#[derive(Debug, Default)]
struct GroupScan {
    findings: FindingList,
    facts: Vec<Fact>,
    dirs: Vec<DirRef>,
    shared: Vec<(u64, InodeNr)>,
    value_refs: Vec<u32>,
    values: Vec<(u32, u64)>,
    usage: Usage,
    contested: Vec<u64>,
    /// The block of the resize inode's own map.
    resize_blocks: Vec<u64>,
}

/// The context of a scan.
#[derive(Clone, Copy)]
pub struct InodePass<'p> {
    pub volume: &'p Volume<'p>,
    /// Inodes whose removal or truncation is to be completed.
    pub orphans: &'p BTreeSet<u32>,
}

/// An inode that is in use.
struct Subject<'s> {
    ino: InodeNr,
    role: Role,
    slot: &'s [u8],
    raw: &'s RawInode,
    inode: &'s Inode,
}

impl Subject<'_> {
    fn place(&self) -> FindingPlace {
        FindingPlace::inode(self.ino)
    }
}

impl InodePass<'_> {
    /// Scans all groups. Calls `done` after each group.
    pub fn run(&self, workers: Workers<'_>, done: &mut dyn FnMut()) -> (ClaimMap, Inodes) {
        let (claims, inodes) = self.scan(workers, done);
        if inodes.contested.is_empty() || workers.threads == 1 {
            return (claims, inodes);
        }
        self.scan(Workers { threads: 1, ..workers }, &mut || ())
    }

    fn scan(&self, workers: Workers<'_>, done: &mut dyn FnMut()) -> (ClaimMap, Inodes) {
        let count = self.volume.groups.len();
        let claims = ClaimMap::of_clusters(&self.volume.reader.geometry, count);
        self.volume.claim_metadata(&claims);
        let mut inodes = Inodes::default();
        let take = |_, scan| {
            inodes.merge(scan);
            done();
        };
        workers.run(count, |group| self.group(GroupNr(group as u32), &claims), take);
        (claims, inodes)
    }

    fn group(&self, group: GroupNr, claims: &ClaimMap) -> GroupScan {
        let mut scan = GroupScan::default();
        let unreadable = self.volume.each_slot(group, &mut |ino, slot| {
            let fact = self.inode(ino, slot, claims, &mut scan);
            scan.facts.push(fact);
        });
        for block in unreadable {
            let place = FindingPlace::group(group).block(block).field("inode table");
            scan.findings.add(FindingCode::Unreadable, place);
        }
        scan
    }

    fn role(&self, ino: InodeNr) -> Role {
        let sb = &self.volume.superblock;
        let geometry = &self.volume.reader.geometry;
        let quota = geometry.ro_compat(RoCompat::QUOTA);
        // One with an ordinary number has a name, such as `/.journal`.
        let has_hidden_journal =
            geometry.compat(Compat::HAS_JOURNAL) && sb.journal_inum().0 < geometry.first_ino;
        let hidden = [
            (has_hidden_journal, sb.journal_inum()),
            (geometry.compat(Compat::ORPHAN_FILE), sb.orphan_file_inum()),
            (quota, sb.usr_quota_inum()),
            (quota, sb.grp_quota_inum()),
            (quota, sb.prj_quota_inum()),
        ];
        match ino {
            InodeNr::ROOT => Role::Root,
            InodeNr::BAD_BLOCKS => Role::BadBlocks,
            InodeNr::RESIZE => Role::Resize,
            _ if hidden.contains(&(true, ino)) => Role::Hidden,
            _ if ino.0 < geometry.first_ino => Role::Reserved,
            _ => Role::Ordinary,
        }
    }

    /// Checks a slot of the table. Returns the facts about its inode.
    fn inode(&self, ino: InodeNr, slot: &[u8], claims: &ClaimMap, scan: &mut GroupScan) -> Fact {
        let orphan = self.orphans.contains(&ino.0);
        // A slot that was never used has no checksum. Most slots of many tables are such ones.
        let old = slot.get(..OLD_INODE_SIZE).unwrap_or(slot);
        let blank = *old == [0; OLD_INODE_SIZE];
        if blank && !orphan && ino.0 >= self.volume.reader.geometry.first_ino {
            return Fact::default();
        }
        let (raw, role) = (RawInode::read(slot), self.role(ino));
        let kind = FileType::from_mode(raw.mode.get());
        self.check_old_orphan(ino, &raw, scan);
        if let (false, Err(error)) = (blank, verify_inode(slot, &self.volume.reader.geometry, ino))
        {
            let place = FindingPlace::inode(ino);
            scan.findings.push(Finding::corrupt(FindingCode::InodeChecksum, place, &error));
        }
        if raw.links.get() == 0 && !orphan && matches!(role, Role::Ordinary | Role::Hidden) {
            if raw.mode.get() != 0 && raw.dtime.get() == 0 {
                scan.findings.add(FindingCode::DeletionTime, FindingPlace::inode(ino));
            }
            return Fact::default();
        }
        let inode = match Inode::decode_unverified(slot, &self.volume.reader.geometry, ino) {
            Ok(inode) => inode,
            Err(_) if role == Role::Reserved => {
                return Fact::new(raw.links.get(), kind, InodeState::Hidden);
            }
            Err(error) => {
                let place = FindingPlace::inode(ino);
                scan.findings.push(Finding::corrupt(FindingCode::InodeField, place, &error));
                let named = matches!(role, Role::Ordinary | Role::Root);
                let state = if named { InodeState::Used } else { InodeState::Hidden };
                return Fact::new(raw.links.get(), kind, state);
            }
        };
        let subject = Subject { ino, role, slot, raw: &raw, inode: &inode };
        self.in_use(&subject, claims, scan);
        if orphan {
            scan.findings.add(FindingCode::Orphan, FindingPlace::inode(ino));
        }
        let state = match role {
            Role::Ordinary if orphan && raw.links.get() == 0 => InodeState::Orphan,
            Role::Ordinary if fields::is_value(&inode) => InodeState::Value,
            Role::Ordinary | Role::Root => InodeState::Used,
            _ => InodeState::Hidden,
        };
        Fact::new(raw.links.get(), kind, state)
    }

    /// Reports an inode whose deletion time is the number of another inode, as of a broken list of
    /// orphans. File systems from times with such small numbers are left out.
    fn check_old_orphan(&self, ino: InodeNr, raw: &RawInode, scan: &mut GroupScan) {
        let sb = &self.volume.superblock;
        let count = sb.inodes_count();
        let is_ambiguous = |time: u64| time < u64::from(count);
        let made = sb.mkfs_time();
        let unknown =
            is_ambiguous(sb.wtime()) || is_ambiguous(sb.mtime()) || made != 0 && is_ambiguous(made);
        let listed = self.orphans.contains(&ino.0);
        if !unknown && !listed && (1..count).contains(&raw.dtime.get()) {
            let place = FindingPlace::inode(ino).field("next orphan");
            let finding = Finding::new(FindingCode::OrphanRecord, place);
            scan.findings.push(finding.found(raw.dtime.get()));
        }
    }

    fn in_use(&self, subject: &Subject<'_>, claims: &ClaimMap, scan: &mut GroupScan) {
        if subject.role == Role::Resize {
            self.check_resize(subject, scan);
            for block in std::mem::take(&mut scan.resize_blocks) {
                let taken = claims.claim(block..block.saturating_add(1));
                if let Some(block) = taken {
                    let place = subject.place().block(block);
                    scan.findings.add(FindingCode::MultiplyClaimed, place);
                }
                scan.contested.extend(taken);
            }
            return;
        }
        if !self.check_fields(subject, scan) {
            return;
        }
        let charge = self.check_xattrs(subject, scan);
        let before = scan.contested.len();
        let clusters = self.check_map(subject, claims, scan);
        let ratio = u64::from(self.volume.reader.geometry.cluster_ratio());
        let blocks = clusters.saturating_add(charge.clusters).saturating_mul(ratio);
        if subject.role != Role::BadBlocks {
            self.check_block_count(subject, blocks, scan);
        }
        if subject.inode.file_type() == FileType::Directory {
            let readable = scan.contested.len() == before;
            scan.dirs.push(DirRef { ino: subject.ino, readable });
        }
        if fields::is_value(subject.inode) {
            scan.values.push((subject.ino.0, subject.inode.ea_refcount()));
            // A map that shares blocks is not read again: many inodes may share it.
            if scan.contested.len() == before {
                self.check_content(subject, scan);
            }
        } else if matches!(subject.role, Role::Ordinary | Role::Root) {
            let bytes = blocks.saturating_mul(self.volume.reader.geometry.block_size.into());
            let inodes = charge.inodes.saturating_add(1);
            scan.usage.add(subject.inode, (bytes, inodes), &self.volume.reader.geometry);
        }
    }

    fn check_block_count(&self, subject: &Subject<'_>, blocks: u64, scan: &mut GroupScan) {
        let sectors = self.volume.reader.geometry.sectors_per_block();
        let expected = blocks.saturating_mul(sectors.into());
        if subject.inode.blocks != expected {
            let finding = Finding::new(FindingCode::InodeBlocks, subject.place());
            scan.findings.push(finding.values(subject.inode.blocks, expected));
        }
    }
}
