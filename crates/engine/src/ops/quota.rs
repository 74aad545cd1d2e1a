//! Quotas: records of owners, changes of owners, and queries and changes of usage and limits.

use super::{Node, Operations};
use crate::error::{Errno, Error, Result};
use crate::inode::{Inode, Step};
use crate::quota::{self, Change, Grace, Outcome, Owners, QuotaFile};
use crate::{extent, xattr};
use extant_format::features::RoCompat;
use extant_format::inode::InodeFlags;
use extant_format::quota::{QuotaKind, QuotaLimits, QuotaRecord};
use extant_sync::atomic::Ordering;
use std::sync::Arc;

/// Credits of adding a block to a quota file, beside those of its map: the block and the inode.
const GROWTH_CREDITS: u32 = 2;

/// Owners of an inode; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ownership {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub project: Option<u32>,
}

impl Operations {
    /// Returns the usage and limits of an owner, all zero if it has no record. Uncommitted changes
    /// count.
    ///
    /// # Errors
    /// `Unsupported` if the file system does not count for this kind, or its file is wrong;
    /// `Corrupt`, `Io`.
    pub fn quota(&self, kind: QuotaKind, id: u32) -> Result<QuotaRecord> {
        let file = self.quota_file(kind)?;
        let record = self.record_corruption(self.st().quota.usage(file, id))?;
        Ok(record.unwrap_or(QuotaRecord { id, ..QuotaRecord::default() }))
    }

    /// Returns the usage and limits of all owners of a kind, in the order of their ids.
    ///
    /// # Errors
    /// As [`Operations::quota`].
    pub fn quotas(&self, kind: QuotaKind) -> Result<Vec<QuotaRecord>> {
        let file = self.quota_file(kind)?;
        let ids = self.record_corruption(self.st().quota.ids(file))?;
        ids.into_iter().map(|id| self.quota(kind, id)).collect()
    }

    /// Sets an owner's limits. Grace time begins where a soft limit is exceeded already.
    ///
    /// # Errors
    /// As [`Operations::quota`]; EROFS, ENOSPC.
    pub fn set_quota(&self, kind: QuotaKind, id: u32, limits: QuotaLimits) -> Result<()> {
        let st = self.st();
        st.writable()?;
        let file = self.quota_file(kind)?;
        self.with_space(|| {
            if !st.quota.is_known(file, id)? {
                self.add_owner(file, id)?;
            }
            st.begin(st.owner_credits())?
                .step(|step| st.quota.set_limits(step.handle(), file, id, limits))
        })
    }

    /// For how many seconds soft limits of blocks and of inodes may be exceeded.
    ///
    /// # Errors
    /// `Unsupported` if the file system does not count for this kind.
    pub fn quota_grace(&self, kind: QuotaKind) -> Result<(u32, u32)> {
        let grace = self.quota_file(kind)?.grace();
        Ok((grace.blocks, grace.inodes))
    }

    /// Sets for how many seconds soft limits of blocks and of inodes may be exceeded, from the next
    /// time that one is.
    ///
    /// # Errors
    /// As [`Operations::quota`]; EROFS.
    pub fn set_quota_grace(&self, kind: QuotaKind, (blocks, inodes): (u32, u32)) -> Result<()> {
        let st = self.st();
        st.writable()?;
        let file = self.quota_file(kind)?;
        let mut growing = file.growing().lock();
        let grace = Grace { blocks, inodes };
        st.begin(1)?.step(|step| st.quota.set_grace(step.handle(), file, &mut growing, grace))
    }

    fn quota_file(&self, kind: QuotaKind) -> Result<&QuotaFile> {
        self.alive()?;
        let missing =
            || Error::Unsupported(format!("counting without a sound {}", kind.file_name()));
        self.st().quota.sound(kind).ok_or_else(missing)
    }

    /// The project that an inode belongs to.
    ///
    /// # Errors
    /// EXDEV for a node of another file system, ESTALE after the unmount.
    pub fn project(&self, node: &Node) -> Result<u32> {
        self.own(node)?;
        Ok(node.0.body().projid)
    }

    /// Assigns an inode to a project (FS_IOC_FSSETXATTR). Callers must check permissions.
    ///
    /// # Errors
    /// EOPNOTSUPP if the file system or the inode has no room for it, EDQUOT, EROFS, EPERM for an
    /// immutable inode.
    pub fn set_project(&self, node: &Node, project: u32) -> Result<()> {
        self.own(node)?;
        let st = self.st();
        st.writable()?;
        let inode = &node.0;
        if inode.body().projid == project {
            return Ok(());
        }
        if !st.geo.ro_compat(RoCompat::PROJECT) || !inode.body().has_projid() {
            return Err(Errno::OpNotSupp.into());
        }
        // The lock is taken for each attempt: between two of them the reaper frees inodes, and
        // commits are waited for.
        self.with_space(|| {
            let _lock = self.lock_thawed(|| inode.write_lock())?;
            if inode.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
                return Err(Errno::Perm.into());
            }
            self.change_owner(inode, Ownership { project: Some(project), ..Ownership::default() })
        })
    }

    /// Whether a change of owners moves usage.
    pub(super) fn moves_usage(&self, inode: &Inode, to: Ownership) -> bool {
        let body = inode.body();
        let other = |new: Option<u32>, old: u32| new.is_some_and(|new| new != old);
        self.st().quota.is_on()
            && (other(to.uid, body.uid)
                || other(to.gid, body.gid)
                || other(to.project, body.projid))
    }

    /// Changes owners, and moves the usage from the old ones to the new ones. The inode must be
    /// locked for writing.
    pub(super) fn change_owner(&self, inode: &Arc<Inode>, to: Ownership) -> Result<()> {
        let st = self.st();
        let inodes = xattr::inode_usage(st, inode)?;
        let ids = {
            let body = inode.body();
            (
                to.uid.unwrap_or(body.uid),
                to.gid.unwrap_or(body.gid),
                to.project.unwrap_or(body.projid),
            )
        };
        let new = if st.quota.owners(inode.ino, &inode.body()) == Owners::default() {
            Owners::default()
        } else {
            Owners::new(&st.quota, ids)
        };
        self.know(new)?;
        let mut tx = st.begin(1 + 2 * st.owner_credits())?;
        tx.touch(inode)?;
        // Once more if the owners left this thread's shard meanwhile.
        while tx.step(|step| self.hand_over(step, inode, new, (ids, inodes)))? == Outcome::Absent {
            let old = st.quota.owners(inode.ino, &inode.body());
            tx.obtain(|h| st.quota.load(Some(h), old))?;
            tx.obtain(|h| st.quota.load(Some(h), new))?;
        }
        Ok(())
    }

    /// Changes the owners of an inode with `inodes` inodes, and moves its usage to them. Changes
    /// nothing if an owner must be read first.
    fn hand_over(
        &self,
        step: &mut Step<'_>,
        inode: &Arc<Inode>,
        new: Owners,
        (ids, inodes): ((u32, u32, u32), i64),
    ) -> Result<Outcome> {
        let (st, tid) = (self.st(), step.tid().0);
        step.try_edit(inode, |body| {
            let now = st.now();
            let old = st.quota.owners(inode.ino, body);
            let sectors = i64::try_from(body.blocks / u64::from(st.geo.sectors_per_block()))
                .unwrap_or(i64::MAX);
            let promised = i64::try_from(inode.promised.load(Ordering::Relaxed)).unwrap_or(0);
            let (space, promised) = (st.quota.bytes(sectors), st.quota.bytes(promised));
            let change = Change { space, inodes, promised };
            let done = st.quota.transfer(Some(tid), (old, new), change, true)?;
            if done == Outcome::Done {
                (body.uid, body.gid, body.projid) = ids;
                body.ctime = now;
            }
            Ok(done)
        })
    }

    /// Gives owners records where they have none: before a handle is open in which they are
    /// charged.
    ///
    /// # Errors
    /// ENOSPC, those of the journal. A file that is wrong is given up, which is no error of the
    /// caller.
    pub(super) fn know(&self, owners: Owners) -> Result<()> {
        let quotas = &self.st().quota;
        for (kind, id) in owners.each() {
            let Some(file) = quotas.sound(kind) else { continue };
            let known = match quotas.is_known(file, id) {
                Ok(true) => continue,
                Ok(false) => self.add_owner(file, id),
                Err(e) => Err(e),
            };
            match known {
                Err(e @ (Error::Corrupt(_) | Error::Io(_))) => quotas.report(kind, &e),
                other => other?,
            }
        }
        Ok(())
    }

    /// Returns the owners that are charged for a new inode, each with a record.
    pub(super) fn new_owners(&self, ids: (u32, u32, u32)) -> Result<Owners> {
        let quotas = &self.st().quota;
        if !quotas.is_on() {
            return Ok(Owners::default());
        }
        let owners = Owners::new(quotas, ids);
        self.know(owners)?;
        Ok(owners)
    }

    fn add_owner(&self, file: &QuotaFile, id: u32) -> Result<()> {
        let st = self.st();
        let mut growing = file.growing().lock();
        let inode = match &growing.inode {
            Some(inode) => inode.clone(),
            None => Inode::load(st, file.ino).map(|inode| growing.inode.insert(inode).clone())?,
        };
        // Each block in a handle of its own: together they may cost more than a small log grants. A
        // file with free blocks is sound.
        while file.is_full(&growing) {
            let mut tx = st.begin(GROWTH_CREDITS + extent::credits(st, &inode, 1))?;
            tx.touch(&inode)?;
            tx.step(|step| self.grow_quota_file(step, file, &inode))?;
        }
        let mut tx = st.begin(quota::INSERT_CREDITS + 1)?;
        tx.touch(&inode)?;
        tx.step(|step| {
            // First, since it finds a wrong file before it changes anything.
            file.insert(&mut growing, step.handle(), id)?;
            // The new record may lie behind the end of the file, in its last block.
            set_whole_size(step, file, &inode, st.geo.block_size)
        })
    }

    /// Adds a block to a quota file. ENOSPC if there is none: nothing has changed then.
    fn grow_quota_file(
        &self,
        step: &mut Step<'_>,
        file: &QuotaFile,
        inode: &Arc<Inode>,
    ) -> Result<()> {
        let st = self.st();
        let next = file.len()..file.len() + 1;
        let run = extent::allocate(st, step, inode, next, extent::ExtentState::Written)?;
        file.add_block(step.handle(), run.pblk.0)?;
        set_whole_size(step, file, inode, st.geo.block_size)
    }
}

/// Sets the size of a quota file to that of its blocks. Other tools end it after its last record.
fn set_whole_size(
    step: &mut Step<'_>,
    file: &QuotaFile,
    inode: &Arc<Inode>,
    block_size: u32,
) -> Result<()> {
    let size = u64::from(file.len()) * u64::from(block_size);
    if inode.size() < size {
        step.edit(inode)?.size = size;
    }
    Ok(())
}
