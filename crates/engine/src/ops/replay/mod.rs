//! Replay of fast commits: changes of files and names since the last full commit, of which the log
//! records the results.
//!
//! For example, the records of one fast commit say that inode 12 has blocks 500 to 503 at logical
//! block 0, and that directory 2 has a name `a` for it. The replay maps these blocks and adds the
//! name.
//!
//! # Invariants
//! - No other thread uses the file system meanwhile, and its device keeps writes in memory: an
//!   error discards the whole replay, and a complete replay becomes durable at once.
//! - The blocks of files in all records are booked before the first record is applied, so that none
//!   of them becomes a directory or a node of an extent tree meanwhile.
//! - A record may assign a block before its owner loses it, and a block may change owners several
//!   times. No block is therefore freed before all records are applied; then the blocks without an
//!   owner are. A transaction that ends during the replay frees nothing.
//! - A record may already be applied: the kernel may have replayed a part of the log before.

mod inodes;
mod ranges;

use super::Operations;
use crate::dir::{self, NewName};
use crate::error::{Error, Result};
use crate::inode::{OrphanAt, Step};
use crate::orphan::Orphans;
use crate::vfs::InodeRef;
use extant_format::error::Corrupt;
use extant_format::jbd2::FastCommitTag;
use extant_format::types::InodeNr;
use std::collections::BTreeSet;

/// The entry that a record adds: the name of a new inode, or a further name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Added {
    Created,
    Linked,
}

/// A record that cannot be right.
fn bad(what: &'static str, ino: InodeNr) -> Error {
    Corrupt::new("fast commit").field(what).at_inode(ino).into()
}

impl Operations {
    /// Applies the records of fast commits, and frees the inodes that they leave without a name.
    pub(crate) fn replay_fast_commits<'a>(
        &self,
        records: impl Iterator<Item = FastCommitTag<'a>> + Clone,
    ) -> Result<()> {
        if self.st().geo.cluster_ratio() > 1 {
            return Err(Error::Unsupported(
                "replaying fast commits on a file system with clusters".into(),
            ));
        }
        self.st().alloc.defer_frees();
        // In memory as long as their records may be asked for.
        let _orphans = self.adopt_orphans()?;
        for record in records.clone() {
            if let FastCommitTag::AddRange(_, leaf) = record {
                self.book_range(&leaf)?;
            }
        }
        let mut touched = BTreeSet::new();
        for record in records {
            self.replay_record(&record, &mut touched)?;
        }
        self.finish_replay(&touched)
    }

    fn replay_record(
        &self,
        record: &FastCommitTag<'_>,
        touched: &mut BTreeSet<InodeNr>,
    ) -> Result<()> {
        match *record {
            FastCommitTag::AddRange(ino, leaf) => {
                touched.insert(ino);
                self.replay_added_range(ino, &leaf)
            }
            FastCommitTag::DelRange(range) => {
                touched.insert(range.ino);
                self.replay_removed_range(&range)
            }
            FastCommitTag::Create(parent, ino, name) => {
                touched.insert(ino);
                self.replay_name(parent, ino, name, Added::Created)
            }
            FastCommitTag::Link(parent, ino, name) => {
                touched.insert(ino);
                self.replay_name(parent, ino, name, Added::Linked)
            }
            FastCommitTag::Unlink(parent, ino, name) => {
                touched.insert(ino);
                self.replay_removed_name(parent, ino, name)
            }
            FastCommitTag::Inode(ino, slot) => {
                touched.insert(ino);
                self.replay_inode(ino, slot)
            }
            FastCommitTag::Pad
            | FastCommitTag::Tail(_)
            | FastCommitTag::Head(..)
            | FastCommitTag::Unknown(_) => Ok(()),
        }
    }

    /// Ties orphan records to their inodes: some may be freed, or get a name again. Those of the
    /// list are recorded anew, since the list is made to be read from its head, one at a time.
    fn adopt_orphans(&self) -> Result<Vec<InodeRef>> {
        let st = self.st();
        let mut adopted = Vec::new();
        for (ino, slot) in st.orphans.recorded_in_file()? {
            if let Some(inode) = self.replayed(ino)? {
                st.orphans.adopt(&inode, Some(slot));
                adopted.push(inode);
            }
        }
        while let Some(ino) = st.orphans.unread() {
            let Some(inode) =
                self.replayed(ino)?.filter(|inode| inode.orphan.get() == OrphanAt::None)
            else {
                break;
            };
            st.orphans.adopt(&inode, None);
            let mut tx = st.begin(2 * Orphans::CREDITS)?;
            tx.step(|step| {
                st.orphans.remove(step, &inode)?;
                st.orphans.add(step, &inode)
            })?;
            drop(tx);
            adopted.push(inode);
        }
        Ok(adopted)
    }

    /// The inode of a number that is in use.
    fn replayed(&self, ino: InodeNr) -> Result<Option<InodeRef>> {
        let st = self.st();
        let reserved = ino.0 < st.geo.first_ino && ino != InodeNr::ROOT;
        if reserved || ino.0 > st.geo.inodes_count {
            return Err(bad("inode", ino));
        }
        if !st.alloc.inode_in_use(ino)? {
            return Ok(None);
        }
        match self.vfs.inodes.get(st, ino, true) {
            Ok(inode) => Ok(Some(inode)),
            // A number that was booked by a replay that did not come to its slot.
            Err(Error::Corrupt(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn replayed_dir(&self, ino: InodeNr) -> Result<InodeRef> {
        self.replayed(ino)?.filter(|dir| dir.is_dir()).ok_or_else(|| bad("directory", ino))
    }

    fn replay_name(&self, parent: InodeNr, ino: InodeNr, name: &[u8], added: Added) -> Result<()> {
        let st = self.st();
        let dir = self.replayed_dir(parent)?;
        let inode = self.replayed(ino)?.ok_or_else(|| bad("named inode", ino))?;
        let mut tx =
            st.begin(dir::insert_credits(st, &dir) + dir::insert_credits(st, &inode) + 2)?;
        // The records name no blocks of directories: `.` and `..` are made here.
        if added == Added::Created && inode.is_dir() && inode.size() == 0 {
            tx.step(|step| dir::init(st, step, &inode, parent))?;
        }
        let named = |step: &mut Step<'_>| {
            if added == Added::Linked {
                let mut body = step.edit(&inode)?;
                body.links = body.links.saturating_add(1);
            }
            self.touch_dir(step, &dir, i32::from(inode.is_dir()))
        };
        let ftype = inode.ftype;
        match dir::lookup(st, &dir, name)? {
            Some(found) if found.ino == ino => Ok(()),
            Some(_) => tx.step(|step| {
                dir::replace(st, step, &dir, name, (ino, ftype))?;
                named(step)
            }),
            None => dir::insert(st, &mut tx, &dir, NewName { name, ino, ftype, slot: None }, named),
        }
    }

    fn replay_removed_name(&self, parent: InodeNr, ino: InodeNr, name: &[u8]) -> Result<()> {
        let st = self.st();
        let dir = self.replayed_dir(parent)?;
        if dir::lookup(st, &dir, name)?.is_none_or(|found| found.ino != ino) {
            return Ok(());
        }
        let mut tx = st.begin(dir::CHANGE_CREDITS + 2)?;
        let inode = self.replayed(ino)?;
        tx.step(|step| {
            dir::remove(st, step, &dir, name)?;
            let Some(inode) = inode else { return self.touch_dir(step, &dir, 0) };
            {
                let mut body = step.edit(&inode)?;
                body.links = if inode.is_dir() { 0 } else { body.links.saturating_sub(1) };
            }
            self.touch_dir(step, &dir, -i32::from(inode.is_dir()))
        })
    }

    /// Frees inodes without a name, books the blocks of all other touched inodes, and frees blocks
    /// without an owner.
    fn finish_replay(&self, touched: &BTreeSet<InodeNr>) -> Result<()> {
        let mut owned = Vec::new();
        for ino in touched {
            let Some(inode) = self.replayed(*ino)? else { continue };
            let links = inode.links();
            match links {
                0 => self.free_replayed(&inode)?,
                _ => self.book_mapped(&inode, &mut owned)?,
            }
        }
        self.free_unowned(owned)
    }
}
