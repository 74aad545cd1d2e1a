//! Targets of symbolic links.

use super::{GroupScan, InodePass, Subject};
use crate::finding::{Finding, FindingCode};
use crate::maps::Runs;
use extant_format::InodeFlags;
use extant_format::inode::{FAST_SYMLINK_MAX, TARGET_HEAD, encrypted_target};

/// Returns whether the bytes are a target of `size` bytes: without a zero, and with one after it.
fn is_target(bytes: &[u8], size: usize) -> bool {
    bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()) == size
}

/// Returns whether the bytes are an encrypted target; `size` includes its length prefix.
fn is_encrypted_target(bytes: &[u8], size: usize) -> bool {
    let target = encrypted_target(bytes).filter(|target| !target.is_empty());
    target.is_some_and(|target| target.len().saturating_add(TARGET_HEAD) == size)
}

impl InodePass<'_> {
    /// Checks the target of a symbolic link in `i_block`. Other inodes without a map have none.
    pub(super) fn check_fast_symlink(&self, subject: &Subject<'_>, scan: &mut GroupScan) {
        let inode = subject.inode;
        if !inode.is_symlink() {
            return;
        }
        let size = usize::try_from(inode.size).unwrap_or(usize::MAX);
        let encrypted = inode.flags.contains(InodeFlags::ENCRYPT);
        let valid = (1..=FAST_SYMLINK_MAX).contains(&size)
            && !inode.flags.contains(InodeFlags::EXTENTS)
            && if encrypted {
                is_encrypted_target(&inode.i_block, size)
            } else {
                is_target(&inode.i_block, size)
            };
        self.report_target(subject, valid, scan);
    }

    /// Checks the target of a symbolic link in the inode and its attributes.
    pub(super) fn check_target(&self, subject: &Subject<'_>, target: &[u8], scan: &mut GroupScan) {
        let size = usize::try_from(subject.inode.size).unwrap_or(usize::MAX);
        let encrypted = subject.inode.flags.contains(InodeFlags::ENCRYPT);
        let valid = if encrypted {
            is_encrypted_target(target, size)
        } else {
            size > 0 && target.len() == size && is_target(target, size)
        };
        self.report_target(subject, valid, scan);
    }

    /// Checks the target of a symbolic link in a block of its own, the only one of the map.
    pub(super) fn check_slow_symlink(&self, subject: &Subject<'_>, end: u64, scan: &mut GroupScan) {
        let (inode, reader) = (subject.inode, &self.volume.reader);
        let size = usize::try_from(inode.size).unwrap_or(usize::MAX);
        let runs = Runs::of(reader, subject.ino, inode);
        let first = runs.runs.first().filter(|run| run.logical == 0 && end == 1);
        let bytes = first.and_then(|run| reader.block(run.physical));
        let valid = bytes.is_some_and(|bytes| {
            if inode.flags.contains(InodeFlags::ENCRYPT) {
                size <= bytes.len() && is_encrypted_target(&bytes, size)
            } else {
                size > 0 && size < bytes.len() && is_target(&bytes, size)
            }
        });
        self.report_target(subject, valid, scan);
    }

    fn report_target(&self, subject: &Subject<'_>, valid: bool, scan: &mut GroupScan) {
        if !valid || subject.raw.size_high.get() != 0 {
            let finding = Finding::new(FindingCode::Symlink, subject.place());
            scan.findings.push(finding.found(subject.inode.size));
        }
    }
}
