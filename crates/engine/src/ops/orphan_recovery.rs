//! Recovery of orphan records: inodes without links are freed, interrupted truncations completed.

use super::Operations;
use crate::error::{Error, Result};
use crate::file;
use crate::inode::{Inode, OrphanAt};
use crate::orphan::{Orphans, SlotAt};
use extant_format::error::Corrupt;
use extant_format::types::InodeNr;
use std::sync::Arc;

/// The result of processing an orphan record.
enum Finished {
    /// It named nothing valid.
    Dropped,
    /// Its inode was cut to its size.
    Truncated,
    /// Its inode was freed.
    Freed,
    /// Its inode stays: it has holds of a process before.
    Adopted,
}

/// Records that are warned of one by one.
const MAX_WARNINGS: u64 = 20;

/// The orphan records found at open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrphanReport {
    /// Inodes freed.
    pub freed: u64,
    /// Inodes cut to their size.
    pub truncated: u64,
    /// Inodes without links that stay, since an opening before handed their holds over.
    pub adopted: u64,
    /// Records that named nothing valid.
    pub invalid: u64,
    /// Records that stay for the next recovery, since a structure that their inodes need could not
    /// be read.
    pub kept: u64,
}

impl Operations {
    /// Processes the orphan records of a crash: frees inodes without links, cuts the others to
    /// their size. Must run before any other use of the file system. A record stays if its inode
    /// needs a structure that cannot be read, and so do all others once the error policy stops
    /// changes: the next recovery finds them.
    ///
    /// # Errors
    /// None of the records: they are counted in the report. (The orphan file was read, and its
    /// errors returned, when it was opened.)
    pub(crate) fn process_orphans(&self) -> Result<OrphanReport> {
        let mut report = OrphanReport::default();
        self.process_list(&mut report);
        for (ino, slot) in self.st().orphans.recorded_in_file()? {
            self.process(ino, Some(slot), &mut report);
        }
        for (count, fate) in [(report.invalid, "dropped"), (report.kept, "kept")] {
            if count > MAX_WARNINGS {
                tracing::warn!(
                    "{count} orphan records were {fate}, of which {MAX_WARNINGS} were told"
                );
            }
        }
        Ok(report)
    }

    fn process_list(&self, report: &mut OrphanReport) {
        let st = self.st();
        // Each pass reads one further inode. None is recorded twice, and an invalid one cuts the
        // list, so the loop ends. It also ends at an unreadable inode, the only reference to the
        // rest of the list.
        while let Some(ino) = st.orphans.unread() {
            self.process(ino, None, report);
            if st.orphans.unread() == Some(ino) {
                return;
            }
        }
    }

    /// Processes the record in a slot, or the next one of the list.
    fn process(&self, ino: InodeNr, slot: Option<SlotAt>, report: &mut OrphanReport) {
        let st = self.st();
        let done =
            st.writable().and_then(|()| self.valid_orphan(ino)).and_then(|found| match found {
                Ok(inode) => {
                    st.orphans.adopt(&inode, slot);
                    self.finish(&inode)
                }
                Err(why) => {
                    // One by one as long as these are few: an image may have millions.
                    if report.invalid < MAX_WARNINGS {
                        tracing::warn!(ino = ino.0, "orphan record dropped: {why}");
                    }
                    st.begin(Orphans::CREDITS)?
                        .step(|step| st.orphans.drop_invalid(step, slot))
                        .map(|()| Finished::Dropped)
                }
            });
        match done {
            Ok(Finished::Dropped) => report.invalid += 1,
            Ok(Finished::Truncated) => report.truncated += 1,
            Ok(Finished::Freed) => report.freed += 1,
            Ok(Finished::Adopted) => report.adopted += 1,
            Err(why) => {
                if report.kept < MAX_WARNINGS {
                    tracing::error!(
                        ino = ino.0,
                        "the orphan's record is kept for the next recovery: {why}"
                    );
                }
                report.kept += 1;
                self.keep_record(&why);
            }
        }
    }

    /// Notes why a record stays, and obeys the error policy.
    fn keep_record(&self, why: &Error) {
        if matches!(why, Error::Corrupt(_) | Error::Io(_)) {
            self.st().note_damage(why);
        }
    }

    /// Frees the inode of a record, or cuts it to its size.
    fn finish(&self, inode: &Arc<Inode>) -> Result<Finished> {
        if inode.links() > 0 {
            return self.finish_truncate(inode).map(|()| Finished::Truncated);
        }
        if inode.held() {
            // Its record stays; the release of its last hold queues it for the reaper.
            self.vfs.inodes.lost_name(inode);
            return Ok(Finished::Adopted);
        }
        if inode.begin_free() {
            self.free(inode).map(|()| Finished::Freed)
        } else {
            Ok(Finished::Freed)
        }
    }

    fn finish_truncate(&self, inode: &Arc<Inode>) -> Result<()> {
        let st = self.st();
        let _lock = inode.rw.write();
        let size = inode.size();
        file::free_blocks(st, inode, size)?;
        st.begin(Orphans::CREDITS + 1)?.step(|step| st.orphans.remove(step, inode))
    }

    /// The inode of a record, or why the record cannot be right.
    ///
    /// # Errors
    /// `Corrupt` and `Io` if that cannot be judged.
    fn valid_orphan(&self, ino: InodeNr) -> Result<Result<Arc<Inode>, Corrupt>> {
        let st = self.st();
        let bad = |why| Ok(Err(Corrupt::new(why).at_inode(ino)));
        let first = st.geo.first_ino;
        if ino.0 < first || ino.0 > st.geo.inodes_count || !st.alloc.inode_in_use(ino)? {
            return bad("orphan record of an inode that is not in use");
        }
        let inode = Arc::clone(&*self.vfs.inodes.get(st, ino, true)?);
        let (links, truncatable) = (inode.links(), file::can_truncate(&inode));
        if links > 0 && !truncatable {
            return bad("orphan record of a linked inode without content");
        }
        match inode.orphan.get() {
            OrphanAt::None => Ok(Ok(inode)),
            _ => bad("second orphan record of an inode"),
        }
    }
}
