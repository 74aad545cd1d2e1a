//! Usage by user, group and project, and its limits.
//!
//! The hidden quota files have a record for each owner. Blocks booked for an inode are added to the
//! usage of its owners in the handle that books them, so the files agree with the inodes after each
//! crash. For example, user 1000 writes 5 blocks of 4 KiB: the handle that maps them adds 20 KiB to
//! the record of user 1000, and to that of the file's group.
//!
//! # Invariants
//! - Memory is authoritative: a record is made from its owner once per transaction, at freeze.
//!   Until then its block is only joined to the transaction.
//! - An inode's usage and its owners change under the lock of its body. The body and the charges of
//!   its owners therefore agree.
//! - The usage of an owner is its own count and the changes that threads keep for it. Threads keep
//!   changes only for owners without limits; a change of an owner with limits is made at once, so
//!   that limits are exact.
//! - Space is *promised* (limits count it, files do not) from the moment that a write is accepted
//!   until its blocks are booked. An inode records its promised space, from which charges are
//!   subtracted first.
//! - A file that proves damaged is not used any more: nothing is counted, no limit applies, and the
//!   superblock says that the file system needs a check, which makes the file anew. An owner
//!   without a record though it has inodes, or with a record below its frees, costs only the check
//!   and its own count.
//!
//! # Locking
//! The body (InodeBody) > a thread's changes (Quota) > an owner (Leaf). None is held while a device
//! is read: a thread that misses an owner releases its locks, reads the owner, and starts again.

mod file;
mod owner;
mod shard_changes;

pub use file::{Growing, INSERT_CREDITS, QuotaFile};
pub use owner::{Change, Grace};

use crate::bounds::Remark;
use crate::error::{Error, Result};
use crate::groups::Groups;
use crate::inode::{Body, Inode};
use crate::volume::Volume;
use extant_blocks::Buffer;
use extant_format::error::Corrupt;
use extant_format::inode::InodeFlags;
use extant_format::quota::{QuotaKind, QuotaLimits, QuotaRecord, put_record, record_at};
use extant_format::types::InodeNr;
use extant_journal::{Freezer, Handle, Seal};
use extant_sync::atomic::{AtomicBool, Ordering};
use extant_sync::{Level, Mutex, Sharded};
use owner::Dquot;
use shard_changes::ShardChanges;
use std::sync::Arc;

/// The owners that are charged for an inode: the id of each counted kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners([Option<u32>; 3]);

impl Owners {
    /// Those of an inode of these ids, of kinds that are counted in `quotas`.
    pub fn new(quotas: &Quotas, (uid, gid, project): (u32, u32, u32)) -> Owners {
        let counted = |kind: QuotaKind, id| quotas.sound(kind).map(|_| id);
        Owners([
            counted(QuotaKind::User, uid),
            counted(QuotaKind::Group, gid),
            counted(QuotaKind::Project, project),
        ])
    }

    /// Each kind with its id.
    pub fn each(self) -> impl Iterator<Item = (QuotaKind, u32)> {
        QuotaKind::ALL.into_iter().zip(self.0).filter_map(|(kind, id)| Some((kind, id?)))
    }

    /// Those that `other` has not.
    fn without(self, other: Owners) -> Owners {
        let mut own = self.0;
        own.iter_mut()
            .zip(other.0)
            .filter(|(own, other)| **own == *other)
            .for_each(|(own, _)| *own = None);
        Owners(own)
    }

    fn is_empty(self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

/// The result of a change that may need an owner to be read first.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is made.
    Done,
    /// Nothing is changed: [`Quotas::load`], and try again.
    Absent,
}

/// Owners of the running transaction, with their kinds.
type DirtyOwners = Vec<(QuotaKind, Arc<Dquot>)>;

/// The quota files of a file system; it may have none.
#[derive(Debug)]
pub struct Quotas {
    vol: Arc<Volume>,
    groups: Arc<Groups>,
    files: [Option<QuotaFile>; 3],
    on: bool,
    /// The inodes that are the file system's own though their numbers are ordinary.
    hidden: [InodeNr; 5],
    kept: ShardChanges,
    /// Owners with records older than their state in memory.
    dirty: Sharded<Mutex<DirtyOwners>>,
    /// Limits apply to no owner.
    ignore_limits: AtomicBool,
}

impl Quotas {
    /// None if there are no files. A file that cannot be right is given up.
    pub fn new(
        vol: Arc<Volume>,
        groups: Arc<Groups>,
        places: Vec<(QuotaKind, InodeNr, Result<Vec<u64>>)>,
    ) -> Quotas {
        let sb = groups.superblock();
        // User and group quotas and the journal have reserved numbers, unless a hostile superblock
        // says otherwise.
        let [user, group] = [sb.usr_quota_inum(), sb.grp_quota_inum()];
        let journal = sb.journal_inum();
        let hidden = [user, group, sb.prj_quota_inum(), sb.orphan_file_inum(), journal];
        let mut quotas = Quotas {
            vol,
            groups,
            files: [None, None, None],
            on: false,
            hidden,
            kept: ShardChanges::default(),
            dirty: Sharded::new(|_| Mutex::new(Level::Leaf, Vec::new())),
            ignore_limits: AtomicBool::new(false),
        };
        for (kind, ino, blocks) in places {
            let opened = blocks.and_then(|blocks| QuotaFile::open(&quotas.vol, kind, ino, blocks));
            match (opened, quotas.files.get_mut(kind.index())) {
                (Ok(file), Some(place)) => *place = Some(file),
                (Err(e), _) => quotas.report(kind, &e),
                (Ok(_), None) => {}
            }
        }
        quotas.on = quotas.files.iter().any(Option::is_some);
        quotas
    }

    /// Whether anything is counted.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Sets whether limits apply to no owner.
    pub fn ignore_limits(&self, yes: bool) {
        // Relaxed: a switch that guards nothing; a write that is under way may still meet limits.
        self.ignore_limits.store(yes, Ordering::Relaxed);
    }

    fn limits_bind(&self) -> bool {
        !self.ignore_limits.load(Ordering::Relaxed)
    }

    /// The file of a kind, if it is counted.
    pub fn sound(&self, kind: QuotaKind) -> Option<&QuotaFile> {
        self.files.get(kind.index())?.as_ref().filter(|file| file.is_sound())
    }

    /// Returns whether an inode is the file system's own, for which no owner is charged.
    pub fn is_hidden(&self, ino: InodeNr) -> bool {
        ino != InodeNr::ROOT && (ino.0 < self.vol.geo.first_ino || self.hidden.contains(&ino))
    }

    /// Returns the owners that are charged for an inode.
    pub fn owners(&self, ino: InodeNr, body: &Body) -> Owners {
        if !self.on || self.is_hidden(ino) || body.flags.contains(InodeFlags::EA_INODE) {
            return Owners::default();
        }
        Owners::new(self, (body.uid, body.gid, body.projid))
    }

    fn clock(&self, file: &QuotaFile) -> (u64, Grace) {
        (u64::try_from(self.vol.clock.now().sec).unwrap_or(0), file.grace())
    }

    /// Reads owners that are not at hand in this thread, and marks all dirty in the handle's
    /// transaction if there is one. Costs a credit for each. One that has no record is charged in
    /// memory only.
    ///
    /// # Errors
    /// Those of the journal.
    pub fn load(&self, h: Option<&mut Handle<'_>>, owners: Owners) -> Result<()> {
        let mut h = h;
        for (kind, id) in owners.each() {
            let Some(file) = self.sound(kind) else { continue };
            let owner = match file.owner(id) {
                Ok(Some(owner)) => {
                    if let Some(h) = &mut h
                        && !owner.is_dirty_in(h.tid())
                    {
                        // A step may be under way, which must not fail for a record that cannot be
                        // read.
                        match file.record_block(&owner) {
                            Ok(block) => self.mark(h, file, (&owner, &block))?,
                            Err(e) => {
                                self.report(kind, &e);
                                continue;
                            }
                        }
                    }
                    owner
                }
                Ok(None) => match self.without_record(file, id) {
                    Some(owner) => {
                        // Release, as where a record is marked; nothing is to be written.
                        h.iter().for_each(|h| owner.dirty_tid.store(h.tid().0, Ordering::Release));
                        owner
                    }
                    None => continue,
                },
                Err(e) => {
                    self.report(kind, &e);
                    continue;
                }
            };
            self.kept.bring(kind, owner, |owner, change| owner.add(change, self.clock(file)));
        }
        Ok(())
    }

    /// Marks an owner with its record in `block` dirty in the handle's transaction.
    fn mark(
        &self,
        h: &mut Handle<'_>,
        file: &QuotaFile,
        (owner, block): (&Arc<Dquot>, &Arc<Buffer>),
    ) -> Result<()> {
        if file.mark(h, owner, block)? {
            self.dirty.local().lock().push((file.kind, owner.clone()));
        }
        Ok(())
    }

    /// Handles an owner of an inode without a record: its usage is not stored, and the file system
    /// needs a check. Returns `None` if there are too many such owners, which ends the use of the
    /// file.
    fn without_record(&self, file: &QuotaFile, id: u32) -> Option<Arc<Dquot>> {
        let missing = Corrupt::new(file.kind.file_name())
            .field("no record of id")
            .found(id)
            .at_inode(file.ino);
        let Some((owner, first)) = file.without_record(id) else {
            self.report(file.kind, &missing.into());
            return None;
        };
        if first {
            if self.vol.remarks.tells(Remark::Owner) {
                tracing::error!("the usage of {id} is charged to no owner: {missing}");
            }
            self.groups.note(&missing.into());
        }
        Some(owner)
    }

    /// A file is wrong: it is given up, and the file system needs a check.
    pub fn report(&self, kind: QuotaKind, why: &Error) {
        let first =
            self.files.get(kind.index()).and_then(Option::as_ref).is_none_or(QuotaFile::disable);
        if first {
            tracing::error!(
                "the {} is wrong, so usage is counted and limited there no more: {why}",
                kind.file_name()
            );
            self.groups.note(why);
        }
    }

    /// Charges owners within the transaction `tid`, or promises them space without one (`None`). If
    /// `bound`, limits apply to increases. Kinds with a damaged file are not changed.
    ///
    /// # Errors
    /// EDQUOT; nothing is changed then.
    pub fn charge(
        &self,
        tid: Option<u64>,
        owners: Owners,
        change: Change,
        bound: bool,
    ) -> Result<Outcome> {
        self.transfer(tid, (Owners::default(), owners), change, bound)
    }

    /// Moves the usage of an inode from the owners `from` to `to`. Owners in both are not changed.
    ///
    /// # Errors
    /// EDQUOT; nothing is changed then.
    pub fn transfer(
        &self,
        tid: Option<u64>,
        (from, to): (Owners, Owners),
        change: Change,
        bound: bool,
    ) -> Result<Outcome> {
        let (gone, new) = (from.without(to), to.without(from));
        if gone.is_empty() && new.is_empty() || change.is_none() {
            return Ok(Outcome::Done);
        }
        let bound = bound && self.limits_bind();
        // Owners that are at hand stay so until the lock is released.
        let mut kept = self.kept.local();
        let at_hand = |(kind, id)| self.sound(kind).is_none() || kept.has(kind, id, tid);
        if !gone.each().chain(new.each()).all(at_hand) {
            return Ok(Outcome::Absent);
        }
        let mut done = Owners::default();
        for (kind, id) in new.each() {
            let Some(file) = self.sound(kind) else { continue };
            if !bound {
                kept.add(kind, id, change, || self.clock(file));
            } else if let Err(e) = kept.add_within(kind, id, change, || self.clock(file)) {
                for (kind, id) in done.each() {
                    kept.add(kind, id, change.reversed(), || self.clock(file));
                }
                return Err(e);
            }
            done.0.get_mut(kind.index()).into_iter().for_each(|own| *own = Some(id));
        }
        for (kind, id) in gone.each() {
            let Some(file) = self.sound(kind) else { continue };
            kept.add(kind, id, change.reversed(), || self.clock(file));
        }
        Ok(Outcome::Done)
    }

    /// As [`Quotas::charge`] within a handle, for owners that no other thread changes meanwhile.
    ///
    /// # Errors
    /// EDQUOT, those of the journal.
    pub fn charge_within(
        &self,
        h: &mut Handle<'_>,
        owners: Owners,
        change: Change,
        bound: bool,
    ) -> Result<()> {
        while self.charge(Some(h.tid().0), owners, change, bound)? == Outcome::Absent {
            self.load(Some(h), owners)?;
        }
        Ok(())
    }

    /// Promises an inode space for `blocks` blocks. If `bound`, limits apply. A charge takes from
    /// the promise; [`Self::release_reservation`] releases the rest.
    ///
    /// # Errors
    /// EDQUOT.
    pub fn promise(&self, inode: &Inode, blocks: u32, bound: bool) -> Result<()> {
        if !self.on || blocks == 0 {
            return Ok(());
        }
        let change = Change { promised: self.bytes(blocks.into()), ..Change::default() };
        loop {
            let owners = {
                let body = inode.body();
                let owners = self.owners(inode.ino, &body);
                if self.charge(None, owners, change, bound)? == Outcome::Done {
                    // Relaxed: the body is locked, as at each place that changes or reads it.
                    inode.promised.fetch_add(blocks.into(), Ordering::Relaxed);
                    return Ok(());
                }
                owners
            };
            self.load(None, owners)?;
        }
    }

    /// Releases space promised to an inode for `blocks` blocks, as far as it was not charged
    /// meanwhile.
    pub fn release_reservation(&self, inode: &Inode, blocks: u64) {
        if !self.on || blocks == 0 {
            return;
        }
        loop {
            let owners = {
                let body = inode.body();
                let owners = self.owners(inode.ino, &body);
                // Relaxed: changed under the body's lock only.
                let promised = inode.promised.load(Ordering::Relaxed);
                let left = promised.saturating_sub(blocks);
                let change =
                    Change { promised: -self.bytes((promised - left) as i64), ..Change::default() };
                match self.charge(None, owners, change, false) {
                    Ok(Outcome::Absent) => owners,
                    _ => return inode.promised.store(left, Ordering::Relaxed),
                }
            };
            if self.load(None, owners).is_err() {
                return;
            }
        }
    }

    /// Returns the change of an owner's usage when an inode's block count changes by `blocks`, less
    /// promised space, and the space that stays promised. The caller must hold the lock of the
    /// body.
    pub fn booked(&self, inode: &Inode, blocks: i64) -> (Change, u64) {
        let promised = inode.promised.load(Ordering::Relaxed);
        let kept = promised.min(u64::try_from(blocks).unwrap_or(0));
        (
            Change { space: self.bytes(blocks), inodes: 0, promised: -self.bytes(kept as i64) },
            promised - kept,
        )
    }

    /// Bytes of so many blocks.
    pub fn bytes(&self, blocks: i64) -> i64 {
        blocks.saturating_mul(self.vol.geo.block_size.into())
    }

    /// Writes the records of dirty owners into their blocks. No handle is open.
    ///
    /// # Errors
    /// Those of the journal, and `Io`.
    pub fn freeze(&self, out: &mut Freezer<'_>) -> Result<()> {
        if !self.on {
            return Ok(());
        }
        self.settle();
        let dirty: Vec<_> =
            self.dirty.iter().flat_map(|list| std::mem::take(&mut *list.lock())).collect();
        for (kind, owner) in dirty {
            let Some(file) = self.sound(kind) else { continue };
            let (record, wrong) = owner.record();
            if wrong && !file.is_without_record(owner.id) {
                // From now on this is known of it.
                let _ = file.without_record(owner.id);
                let why = self.negative(file, owner.id);
                if self.vol.remarks.tells(Remark::Owner) {
                    tracing::error!("the usage of {} is counted wrong: {why}", owner.id);
                }
                self.groups.note(&why.into());
            }
            let buffer = file.record_block(&owner)?;
            let mut bytes = out.write(&buffer, Seal::NONE)?;
            // A place is that of a record: as if its block began where the first one would be.
            let block =
                owner.place.1.checked_sub(record_at(0)).and_then(|from| bytes.get_mut(from..));
            put_record(block.unwrap_or_default(), 0, &record);
        }
        Ok(())
    }

    fn negative(&self, file: &QuotaFile, id: u32) -> Corrupt {
        Corrupt::new(file.kind.file_name())
            .field("less than nothing is used by id")
            .found(id)
            .at_inode(file.ino)
    }

    /// Adds the changes that threads keep to the owners.
    fn settle(&self) {
        self.kept.settle(|kind, owner, change| {
            if let Some(file) = self.sound(kind) {
                owner.add(change, self.clock(file));
            }
        });
    }

    /// Returns the usage and limits of an owner, or `None` if it has no record.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn usage(&self, file: &QuotaFile, id: u32) -> Result<Option<QuotaRecord>> {
        let Some(owner) = file.owner(id)? else { return Ok(None) };
        self.settle();
        match owner.record() {
            (record, false) => Ok(Some(record)),
            (_, true) => Err(self.negative(file, id).into()),
        }
    }

    /// Owners that have a record.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn ids(&self, file: &QuotaFile) -> Result<Vec<u32>> {
        file.ids()
    }

    /// Sets the limits of an owner, which has a record.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, those of the journal.
    pub fn set_limits(
        &self,
        h: &mut Handle<'_>,
        file: &QuotaFile,
        id: u32,
        limits: QuotaLimits,
    ) -> Result<()> {
        let missing = || {
            Corrupt::new(file.kind.file_name())
                .field("no record of id")
                .found(id)
                .at_inode(file.ino)
        };
        let owner = file.owner(id)?.ok_or_else(missing)?;
        self.mark(h, file, (&owner, &file.record_block(&owner)?))?;
        owner.set_limits(limits, self.clock(file));
        // Adds the changes that threads kept before they saw the limits.
        self.settle();
        Ok(())
    }

    /// Sets for how long soft limits may be exceeded.
    ///
    /// # Errors
    /// `Io`, those of the journal.
    pub fn set_grace(
        &self,
        h: &mut Handle<'_>,
        file: &QuotaFile,
        growing: &mut Growing,
        grace: Grace,
    ) -> Result<()> {
        file.set_grace(growing, h, grace)
    }

    /// Whether an owner has a record.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn is_known(&self, file: &QuotaFile, id: u32) -> Result<bool> {
        if self.kept.local().has(file.kind, id, None) {
            return Ok(true);
        }
        Ok(file.owner(id)?.is_some() || file.is_without_record(id))
    }
}
