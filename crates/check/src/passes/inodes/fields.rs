//! Fields of an inode: mode, flags, times, and those that must be zero.

use super::{GroupScan, InodePass, Role, Subject};
use crate::finding::{Finding, FindingCode};
use extant_format::indirect::pointer;
use extant_format::inode::Inode;
use extant_format::{Compat, FileType, Incompat, InodeFlags, InodeNr, RoCompat};

/// The least extra size that an inode with any may have.
const MIN_EXTRA_ISIZE: u16 = 4;

/// Flags of block maps.
const MAP_FLAGS: InodeFlags = InodeFlags::EXTENTS.union(InodeFlags::INDEX);

/// Returns whether the inode holds the value of an attribute.
pub fn is_value(inode: &Inode) -> bool {
    inode.flags.contains(InodeFlags::EA_INODE)
}

impl InodePass<'_> {
    /// Checks the fields. Returns whether the rest of the inode can be checked.
    pub(super) fn check_fields(&self, subject: &Subject<'_>, scan: &mut GroupScan) -> bool {
        let going_on = match subject.role {
            Role::Reserved => self.check_reserved(subject, scan),
            Role::BadBlocks => {
                self.check_bad_blocks(subject, scan);
                true
            }
            Role::Root if !subject.inode.is_dir() => {
                scan.findings.add(FindingCode::RootInode, subject.place().field("mode"));
                false
            }
            Role::Hidden if !subject.inode.is_regular() => {
                scan.findings.add(FindingCode::InodeMode, subject.place());
                false
            }
            _ => self.check_type(subject, scan),
        };
        if !going_on {
            return false;
        }
        self.check_zero_fields(subject, scan);
        self.check_flags(subject, scan);
        self.check_deletion(subject, scan);
        true
    }

    /// Checks an inode that is reserved and has no use. It has no map, whatever `i_block` holds.
    fn check_reserved(&self, subject: &Subject<'_>, scan: &mut GroupScan) -> bool {
        let inode = subject.inode;
        let valid = match subject.ino {
            InodeNr::BOOT_LOADER => !inode.is_dir(),
            InodeNr::JOURNAL | InodeNr::USER_QUOTA | InodeNr::GROUP_QUOTA => {
                inode.links == 0 && inode.blocks == 0 && pointer(&inode.i_block, 0) == 0
            }
            _ => inode.mode == 0,
        };
        if !valid {
            scan.findings.add(FindingCode::ReservedInode, subject.place());
        } else if inode.mode == 0 {
            if inode.flags.contains(InodeFlags::CASEFOLD) {
                scan.findings.add(FindingCode::InodeFlag, subject.place());
            }
            let ratio = u64::from(self.volume.reader.geometry.cluster_ratio());
            let clusters = self.check_xattrs(subject, scan).clusters;
            self.check_block_count(subject, clusters.saturating_mul(ratio), scan);
            if subject.raw.size_high.get() != 0 {
                scan.findings.add(FindingCode::InodeSize, subject.place());
            }
        }
        valid && inode.mode != 0
    }

    /// The list of bad blocks has nothing but blocks.
    fn check_bad_blocks(&self, subject: &Subject<'_>, scan: &mut GroupScan) {
        let inode = subject.inode;
        let numbers = [inode.mode.into(), inode.uid, inode.gid, inode.links.into()];
        if numbers.iter().any(|number| *number != 0) || inode.file_acl != 0 {
            scan.findings.add(FindingCode::ReservedInode, subject.place());
        }
    }

    fn check_type(&self, subject: &Subject<'_>, scan: &mut GroupScan) -> bool {
        let inode = subject.inode;
        let mode = |scan: &mut GroupScan| {
            let finding = Finding::new(FindingCode::InodeMode, subject.place());
            scan.findings.push(finding.found(inode.mode));
        };
        match inode.file_type() {
            FileType::Unknown => mode(scan),
            FileType::Regular | FileType::Directory | FileType::Symlink => return true,
            _ => {
                if inode.flags.intersects(MAP_FLAGS | InodeFlags::INLINE_DATA) {
                    mode(scan);
                }
                if inode.size != 0 || subject.raw.size_high.get() != 0 {
                    let finding = Finding::new(FindingCode::InodeSize, subject.place());
                    scan.findings.push(finding.values(inode.size, 0u64));
                }
                return true;
            }
        }
        false
    }

    /// Checks the fields that are zero in this file system.
    fn check_zero_fields(&self, subject: &Subject<'_>, scan: &mut GroupScan) {
        let (raw, geometry) = (subject.raw, &self.volume.reader.geometry);
        let wide_dirs = geometry.incompat(Incompat::LARGEDIR);
        let narrow_blocks = !geometry.ro_compat(RoCompat::HUGE_FILE);
        let narrow_acl = !geometry.incompat(Incompat::BIT64);
        let short_dir = subject.inode.is_dir() && !wide_dirs;
        let linux = self.volume.superblock.creator_os() == 0;
        let fields = [
            ("fragment address", raw.obsolete_faddr.get(), true),
            ("high part of the block count", raw.blocks_high.get().into(), narrow_blocks && linux),
            (
                "high part of the attribute block",
                raw.file_acl_high.get().into(),
                narrow_acl && linux,
            ),
            ("high part of the size", raw.size_high.get(), short_dir),
        ];
        for (field, found, applies) in fields {
            if applies && found != 0 {
                let finding = Finding::new(FindingCode::InodeField, subject.place().field(field));
                scan.findings.push(finding.values(found, 0u64));
            }
        }
        let extra = subject.inode.extra_isize;
        if (1..MIN_EXTRA_ISIZE).contains(&extra) {
            let place = subject.place().field("extra size");
            let finding = Finding::new(FindingCode::InodeField, place);
            scan.findings.push(finding.values(extra, MIN_EXTRA_ISIZE));
        }
    }

    fn check_deletion(&self, subject: &Subject<'_>, scan: &mut GroupScan) {
        let named = matches!(subject.role, Role::Ordinary | Role::Hidden | Role::Root);
        if named && subject.inode.dtime != 0 && !self.orphans.contains(&subject.ino.0) {
            let finding = Finding::new(FindingCode::DeletionTime, subject.place());
            scan.findings.push(finding.values(subject.inode.dtime, 0u64));
        }
    }

    fn check_flags(&self, subject: &Subject<'_>, scan: &mut GroupScan) {
        let (inode, geometry) = (subject.inode, &self.volume.reader.geometry);
        let kind = inode.file_type();
        let special = !matches!(kind, FileType::Regular | FileType::Directory);
        let is_dir = kind == FileType::Directory;
        let rules = [
            (InodeFlags::EXTENTS, geometry.incompat(Incompat::EXTENTS)),
            (InodeFlags::INLINE_DATA, geometry.incompat(Incompat::INLINE_DATA)),
            (InodeFlags::CASEFOLD, geometry.incompat(Incompat::CASEFOLD) && is_dir),
            (InodeFlags::INDEX, geometry.compat(Compat::DIR_INDEX) && is_dir),
            (InodeFlags::IMAGIC, geometry.compat(Compat::IMAGIC_INODES)),
            (InodeFlags::COMPRBLK, false),
            (InodeFlags::IMMUTABLE, !special || subject.role != Role::Ordinary),
            (InodeFlags::APPEND, !special || subject.role != Role::Ordinary),
        ];
        for (flag, allowed) in rules {
            if inode.flags.contains(flag) && !allowed {
                let finding = Finding::new(FindingCode::InodeFlag, subject.place());
                scan.findings.push(finding.found(flag.bits()));
            }
        }
        let both = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
        if inode.flags.contains(both) {
            let finding = Finding::new(FindingCode::InodeFlag, subject.place());
            scan.findings.push(finding.found(both.bits()));
        }
    }
}
