//! Contradictions between superblock and log, and logs that are of no use.

use super::RepairError;
use super::draft::Round;
use crate::finding::Finding;
use crate::maps::{Run, Runs};
use crate::passes::superblocks::Primary;
use crate::view::{Source, journal_extents};
use extant_blocks::BlockDevice;
use extant_format::extent::Node;
use extant_format::{Compat, Incompat, InodeFlags, InodeNr};
use extant_journal::offline::reset_log;
use extant_journal::{FormatLog, Log, LogExtent, format_log};
use std::sync::Arc;

/// Mode of the journal: a regular file of root alone.
pub(super) const MODE: u16 = 0o100_600;

impl Round<'_> {
    /// Opens the log in the file system.
    pub(super) fn inside_log(&self) -> Option<Log> {
        let volume = &self.survey.volume;
        let superblock = volume.superblock.clone();
        let primary = Primary { superblock, geometry: volume.reader.geometry };
        let device: Arc<dyn BlockDevice> = self.draft.device.clone();
        let source = Source { device: &device, journal: None, as_is: true };
        source.open_log(&primary).ok().flatten()
    }

    /// Resolves contradictions; a log that cannot be opened is dropped with the feature.
    pub fn repair_journal(&self, found: &[Finding]) -> Result<(), RepairError> {
        for finding in found {
            match finding.place.field {
                Some("needs_recovery without a journal") => {
                    self.edit_features(|_, incompat| incompat.remove(Incompat::RECOVER))?;
                }
                Some("journal inode without a journal") => {
                    self.draft.edit_super(|sb| sb.set_journal_inum(InodeNr::NONE))?;
                }
                Some(
                    "journal in the file system and outside" | "journal device without a journal",
                ) => {
                    self.draft.edit_super(|sb| {
                        sb.set_journal_uuid([0; 16]);
                        sb.set_journal_dev(0);
                    })?;
                }
                _ => self.reset_log()?,
            }
        }
        Ok(())
    }

    /// Writes the superblock of an empty log; drops a journal whose inode has no usable map.
    fn reset_log(&self) -> Result<(), RepairError> {
        if let Some(log) = self.inside_log() {
            self.draft.mark_changed();
            return reset_log(&log).map_err(RepairError::Journal);
        }
        let superblock = &self.survey.volume.superblock;
        let ino = superblock.journal_inum();
        if self.restore_map(ino)? {
            return Ok(());
        }
        if ino == InodeNr::NONE {
            return Err(RepairError::Unsupported("a journal outside of the file system"));
        }
        // The number may be a file's, which is no log.
        let usual = self.inode(InodeNr::JOURNAL).is_ok_and(|inode| inode.is_regular());
        if ino != InodeNr::JOURNAL && usual {
            return self.draft.edit_super(|sb| sb.set_journal_inum(InodeNr::JOURNAL));
        }
        match journal_extents(&self.survey.volume.reader, ino) {
            Ok(extents) if is_gapless(&extents) && self.is_unshared(ino, &extents)? => {
                self.format_log(&extents)
            }
            _ => self.drop_journal(ino),
        }
    }

    /// Returns whether nothing but the journal has the blocks of its map.
    fn is_unshared(&self, ino: InodeNr, extents: &[LogExtent]) -> Result<bool, RepairError> {
        let volume = &self.survey.volume;
        let runs = Runs::of(&volume.reader, ino, &self.inode(ino)?);
        let in_cluster = u64::from(self.geometry().cluster_ratio()).saturating_sub(1);
        let nodes = runs.nodes().map(|block| (block, 1));
        let mut all = extents.iter().map(|extent| (extent.physical, extent.len)).chain(nodes);
        Ok(all.all(|(start, len)| {
            let blocks = start..start.saturating_add(len.into());
            let clusters = start & !in_cluster..blocks.end;
            volume.metadata.first_claimed(blocks).is_none()
                && self.survey.inodes.contested.range(clusters).next().is_none()
        }))
    }

    /// Takes the map of the journal from the superblock, which has a copy, if that is another one
    /// and leads to a log. The copy may be old, and its blocks may be a file's. Returns whether the
    /// map was taken.
    fn restore_map(&self, ino: InodeNr) -> Result<bool, RepairError> {
        let backup = self.survey.volume.superblock.journal_backup();
        let (Some(backup), InodeNr::JOURNAL, Ok(inode)) = (backup, ino, self.inode(ino)) else {
            return Ok(false);
        };
        let is_tree = Node::parse(&backup.i_block, None).is_ok();
        let mut restored = inode.clone();
        restored.i_block = backup.i_block;
        restored.size = backup.size;
        restored.flags.set(InodeFlags::EXTENTS, is_tree);
        let volume = &self.survey.volume;
        let runs = Runs::of(&volume.reader, ino, &restored);
        let is_own = |run: &Run| volume.metadata.first_claimed(run.blocks()).is_none();
        let is_usable = !runs.damaged && !runs.runs.is_empty() && runs.runs.iter().all(is_own);
        let is_same = inode.i_block == restored.i_block && inode.size == restored.size;
        if is_same || !is_usable {
            return Ok(false);
        }
        let slot = self.slot(ino)?;
        self.edit_inode(ino, |inode| {
            inode.mode = MODE;
            inode.links = 1;
            inode.dtime = 0;
            inode.size = restored.size;
            inode.i_block = restored.i_block;
            inode.flags.set(InodeFlags::EXTENTS, is_tree);
        })?;
        let is_log = self.inside_log().is_some();
        if !is_log {
            self.put_slot(ino, &slot)?;
        }
        Ok(is_log)
    }

    /// Makes an empty journal in the blocks of the old one.
    fn format_log(&self, extents: &[LogExtent]) -> Result<(), RepairError> {
        let blocks = extents.iter().map(|extent| extent.len).fold(0, u32::saturating_add);
        let mut how = FormatLog::new(self.geometry().block_size, blocks);
        // Blocks of the old log may have any sequence up to now.
        how.sequence = self.now;
        self.draft.mark_changed();
        format_log(&*self.draft.device, extents, &how).map_err(RepairError::Journal)
    }

    /// Drops a journal, and the orphan file, which needs one. An ordinary file remains.
    fn drop_journal(&self, ino: InodeNr) -> Result<(), RepairError> {
        if self.geometry().compat(Compat::ORPHAN_FILE) {
            self.drop_orphan_file(self.survey.volume.superblock.orphan_file_inum())?;
        }
        self.draft.edit_super(|sb| {
            sb.set_journal_inum(InodeNr::NONE);
            sb.set_journal_backup(None);
        })?;
        let features = Compat::HAS_JOURNAL | Compat::FAST_COMMIT;
        self.edit_features(|compat, _| compat.remove(features))?;
        if ino.0 < self.geometry().first_ino { self.clear_inode(ino) } else { Ok(()) }
    }

    pub(super) fn edit_features(
        &self,
        edit: impl FnOnce(&mut Compat, &mut Incompat),
    ) -> Result<(), RepairError> {
        self.draft.edit_super(|sb| {
            let mut features = sb.features();
            edit(&mut features.compat, &mut features.incompat);
            sb.set_features(features);
        })
    }
}

/// Returns whether extents follow each other without a gap.
fn is_gapless(extents: &[LogExtent]) -> bool {
    let mut next = 0;
    extents.iter().all(|extent| {
        let follows = extent.logical == next;
        next = extent.logical.saturating_add(extent.len);
        follows
    })
}
