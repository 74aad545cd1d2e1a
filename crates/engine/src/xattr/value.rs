//! Values in attribute inodes, for values that do not fit in an inode's area or its block.
//!
//! For example, a value of 30,000 bytes of inode 12 becomes the content of inode 50, which has the
//! flag `EA_INODE` and the reference count 1. The entry of inode 12 names inode 50.
//!
//! # Invariants
//! - An attribute inode has no name: only entries refer to it. Its reference count is the number of
//!   entries that name it. The handle that removes the last entry frees it.
//! - Values never change: a new value gets a new inode.
//! - Before an entry changes, the values that may lose or gain a reference are opened and checked
//!   ([`Values`]). Damage is thus found before the first change: a damaged value loses its entry
//!   and keeps its inode, which a checker frees.

use super::area::Places;
use super::names::Key;
use super::{AttrEnv, Change, SIZE_MAX};
use crate::alloc::Alloc;
use crate::bounds::Remark;
use crate::error::{Errno, Error, Result};
use crate::extent::{self, ExtentState};
use crate::groups;
use crate::inode::{Inode, Step, Tx};
use crate::orphan::Orphans;
use crate::quota;
use crate::volume::SpaceRights;
use extant_format::error::Corrupt;
use extant_format::inode::{self as disk, InodeFlags};
use extant_format::types::{BlockNr, FileType, GroupNr, InodeNr};
use extant_format::{
    bitmap,
    xattr::{Entry, Value, value_crc},
};
use extant_journal::{Handle, Seal};
use std::ops::Range;
use std::sync::Arc;

/// Maximum sum of the values of one inode, in bytes, those in attribute inodes included. Only the
/// largest blocks hold enough names to exceed it.
const MAX_TOTAL: u64 = 32 << 20;

/// Attribute inodes kept in memory.
const KEPT: usize = 256;

/// Mode of attribute inodes.
const MODE: u16 = 0o600;

/// Reads the value of an attribute.
pub(super) fn read(env: &AttrEnv, owner: &Inode, attr: &Entry) -> Result<Vec<u8>> {
    match &attr.value {
        Value::Inline(value) => Ok(value.clone()),
        Value::EaInode { ino, size } => read_inode(env, owner, *ino, *size),
    }
}

/// Verifies that the values of an inode do not exceed [`MAX_TOTAL`], so that a program can collect
/// them. Several names may share one value, since the kernel stores equal values once: each name
/// counts.
pub(super) fn check_total(owner: &Inode, places: &Places) -> Result<()> {
    let in_inodes = places.all().filter(|attr| matches!(attr.value, Value::EaInode { .. }));
    let total: u64 = in_inodes.map(|attr| (attr.value.len() as u64).min(SIZE_MAX as u64)).sum();
    if total <= MAX_TOTAL {
        Ok(())
    } else {
        Err(Corrupt::new("attributes")
            .field("bytes of values")
            .found(total)
            .expected(MAX_TOTAL)
            .at_inode(owner.ino)
            .into())
    }
}

fn read_inode(env: &AttrEnv, owner: &Inode, ino: u32, size: u32) -> Result<Vec<u8>> {
    // As the kernel does: a value that no system call can carry is not read.
    if size as usize > SIZE_MAX {
        return Err(Errno::TooBig.into());
    }
    let nr = InodeNr(ino);
    // Not kept: only changes need the one inode in memory.
    let ea = known(env, nr)?.map_or_else(|| load(env, nr), Ok)?;
    let (own_size, hash) = {
        let body = ea.body();
        (body.size, body.ea_hash())
    };
    if own_size != u64::from(size) {
        return Err(Corrupt::new("attribute inode")
            .field("size")
            .found(own_size)
            .expected(size)
            .at_inode(ea.ino)
            .into());
    }
    let value = read_content(env, &ea, size as usize)?;
    let found = value_crc(env.geo.csum_seed, &value);
    if found != hash && !is_old_form(&ea, owner) {
        return Err(Corrupt::new("attribute inode")
            .field("value checksum")
            .found(hash)
            .expected(found)
            .at_inode(ea.ino)
            .into());
    }
    Ok(value)
}

fn read_content(env: &AttrEnv, ea: &Inode, size: usize) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    for lblk in 0..size.div_ceil(env.block_size()) as u32 {
        let run = extent::lookup(env, ea, lblk, 1)?;
        if run.state != ExtentState::Written {
            return Err(Corrupt::new("attribute inode")
                .field("hole")
                .found(lblk)
                .at_inode(ea.ino)
                .into());
        }
        let buf = env.cache.read::<Error>(run.pblk.0, |_| Ok(()))?;
        let bytes = buf.read();
        let take = (size - value.len()).min(bytes.len());
        value.extend_from_slice(&bytes[..take]);
    }
    Ok(value)
}

/// Returns whether an attribute inode has the form of Lustre, without checksum and count. Such an
/// inode names its only owner instead, and the owner's block count excludes its blocks.
fn is_old_form(ea: &Inode, owner: &Inode) -> bool {
    ea.generation == owner.generation && ea.body().ea_parent() == owner.ino.0
}

/// Returns the inode with this number if it is in memory.
///
/// # Errors
/// `Corrupt` if it was freed: an entry of a damaged image still names it.
fn known(env: &AttrEnv, ino: InodeNr) -> Result<Option<Arc<Inode>>> {
    let known = env.attrs.inodes.lock().find(ino);
    match known {
        Some(ea) if ea.gone() => Err(wrong(ino, "freed inode").into()),
        other => Ok(other),
    }
}

/// Reads the inode from its slot.
fn load(env: &AttrEnv, ino: InodeNr) -> Result<Arc<Inode>> {
    let loaded = Inode::load(env, ino)?;
    if !loaded.flags().contains(InodeFlags::EA_INODE) {
        return Err(wrong(ino, "flags").into());
    }
    // A freed inode. Another one that has the number now may not be written yet.
    if loaded.links() == 0 {
        return Err(wrong(ino, "links").found(0u32).into());
    }
    Ok(loaded)
}

/// Returns the one inode in memory with this number, to change it, and loads it if needed. Its
/// number is in use: the slot of a freed inode may not show that it was freed.
fn open(env: &AttrEnv, ino: InodeNr) -> Result<Arc<Inode>> {
    loop {
        let departures = env.attrs.inodes.lock().departures();
        if let Some(ea) = known(env, ino)? {
            return Ok(ea);
        }
        if !env.alloc.inode_in_use(ino)? {
            return Err(wrong(ino, "freed inode is free").into());
        }
        let loaded = load(env, ino)?;
        let mut values = env.attrs.inodes.lock();
        if let Some(ea) = values.insert_loaded(loaded, departures) {
            values.shrink(KEPT);
            return Ok(ea);
        }
    }
}

fn wrong(ino: InodeNr, field: &'static str) -> Corrupt {
    Corrupt::new("attribute inode").field(field).at_inode(ino)
}

/// The inode of a new value, which no entry names yet. The owners are charged for it.
pub(super) struct NewValue {
    ea: Arc<Inode>,
    /// Number of inodes charged: none if the owners are charged for the inode of an old value.
    pub paid: i64,
}

impl NewValue {
    /// Charges the owners, takes a number and makes the inode in memory.
    ///
    /// # Errors
    /// EDQUOT, ENOSPC, `Corrupt`, `Io`; nothing is changed then.
    pub fn make(change: &Change<'_>, tx: &mut Tx<'_>, value: &[u8]) -> Result<NewValue> {
        let Change { env, inode: owner, .. } = *change;
        let paid = charge_inode(change, tx)?;
        let made = new_inode(env, tx, owner, value);
        if made.is_err() {
            tx.obtain(|h| charge_inodes(env, h, owner, -paid, false))?;
        }
        Ok(NewValue { ea: made?, paid })
    }

    /// Writes the value, each run of its blocks in a step. Returns the entry that names it.
    pub fn write(&self, change: &Change<'_>, tx: &mut Tx<'_>, value: &[u8]) -> Result<Entry> {
        let Change { env, ref key, .. } = *change;
        write_content(env, tx, &self.ea, value)?;
        let (ino, crc) = (self.ea.ino.0, value_crc(env.geo.csum_seed, value));
        Ok(Entry::in_inode(key.index, key.suffix, ino, value.len() as u32, crc))
    }

    /// Frees the inode, for which no entry was stored, and charges the owners no longer.
    pub fn take_back(&self, change: &Change<'_>, step: &mut Step<'_>) -> Result<()> {
        destroy(change.env, step, &self.ea)?;
        charge_inodes(change.env, step.handle(), change.inode, -self.paid, false)
    }
}

fn new_inode(
    env: &AttrEnv,
    tx: &mut Tx<'_>,
    owner: &Arc<Inode>,
    value: &[u8],
) -> Result<Arc<Inode>> {
    let near = owner.near();
    let ino = tx.obtain(|h| env.alloc.new_inode(h, near, FileType::Regular))?;
    let ea = Inode::fresh(env, ino, new_body(env, owner, value));
    if let Err(e) = tx.touch_new(&ea) {
        tx.obtain(|h| env.alloc.free_inode(h, ino, FileType::Regular, true))?;
        return Err(e);
    }
    env.attrs.inodes.lock().insert_new(ea.clone());
    Ok(ea)
}

fn new_body(env: &AttrEnv, owner: &Inode, value: &[u8]) -> disk::Inode {
    let mut body = disk::Inode::new(&env.geo, FileType::Regular.to_mode() | MODE, env.now());
    {
        let owner = owner.body();
        (body.uid, body.gid) = (owner.uid, owner.gid);
    }
    body.flags.insert(InodeFlags::EA_INODE);
    body.links = 1;
    body.generation = env.rng.next_u32();
    body.size = value.len() as u64;
    body.set_ea_refcount(1);
    body.set_ea_hash(value_crc(env.geo.csum_seed, value));
    body
}

fn write_content(env: &AttrEnv, tx: &mut Tx<'_>, ea: &Arc<Inode>, value: &[u8]) -> Result<()> {
    tx.step(|step| extent::init(env, step, ea))?;
    let size = env.block_size();
    let count = value.len().div_ceil(size) as u32;
    let mut lblk = 0;
    while lblk < count {
        lblk += tx.step(|step| {
            let run = extent::allocate(env, step, ea, lblk..count, ExtentState::Written)?;
            for i in 0..run.len.min(count - lblk) {
                let at = (lblk + i) as usize * size;
                let chunk = &value[at..value.len().min(at + size)];
                let buf = env.cache.fresh(run.pblk.0 + u64::from(i));
                step.write(&buf, Seal::NONE)?[..chunk.len()].copy_from_slice(chunk);
            }
            Ok(run.len.max(1))
        })?;
    }
    Ok(())
}

/// Updates the owner's block count and the inode usage when its attribute is replaced by `new`. The
/// block count includes the clusters of values in attribute inodes, except for those of the old
/// form. `paid` is the number of inodes that its owners are charged for already.
pub(super) fn charge(
    change: &Change<'_>,
    step: &mut Step<'_>,
    new: Option<&Entry>,
    paid: i64,
) -> Result<()> {
    let Change { env, inode: owner, places, ref key } = *change;
    let old: Vec<&Entry> = places.all().filter(|entry| entry.is(key.index, key.suffix)).collect();
    let inodes = new.map_or(0, inodes_of) - old.iter().map(|entry| inodes_of(entry)).sum::<i64>();
    let counted = old.iter().filter(|entry| !places.values.is_old_form(entry));
    let blocks = new.map_or(0, |entry| blocks_of(env, entry))
        - counted.map(|entry| blocks_of(env, entry)).sum::<i64>();
    charge_inodes(env, step.handle(), owner, inodes - paid, false)?;
    if blocks == 0 { Ok(()) } else { extent::charge(env, step, owner, blocks) }
}

/// Verifies, before the first change, that the owner's block count covers the blocks that it loses
/// with the attribute `key`: the blocks of its value, and an attribute block without other entries.
///
/// # Errors
/// `Corrupt`.
pub(super) fn check_count(
    env: &AttrEnv,
    owner: &Inode,
    places: &Places,
    key: &Key<'_>,
) -> Result<()> {
    let old = places
        .all()
        .filter(|entry| entry.is(key.index, key.suffix) && !places.values.is_old_form(entry));
    let values: u64 = old.map(|entry| blocks_of(env, entry).unsigned_abs()).sum();
    let alone = matches!(places.in_block(), [only] if only.is(key.index, key.suffix));
    let lost = values + if alone { u64::from(env.geo.cluster_ratio()) } else { 0 };
    let counted = owner.body().blocks;
    if counted / u64::from(env.geo.sectors_per_block()) >= lost {
        Ok(())
    } else {
        Err(Corrupt::new("inode").field("block count").found(counted).at_inode(owner.ino).into())
    }
}

/// Charges the owners for the inode of a new value, unless they are charged for the inode of an old
/// one. Returns the number of inodes charged.
///
/// # Errors
/// EDQUOT; nothing is changed then.
fn charge_inode(change: &Change<'_>, tx: &mut Tx<'_>) -> Result<i64> {
    let Change { env, inode: owner, places, ref key } = *change;
    let old =
        places.all().filter(|entry| entry.is(key.index, key.suffix)).map(inodes_of).sum::<i64>();
    let more = (1 - old).max(0);
    let bound = !tx.rights().ignore_limits;
    tx.obtain(|h| charge_inodes(env, h, owner, more, bound))?;
    Ok(more)
}

/// Changes the inode usage of the owners by `inodes`.
///
/// # Errors
/// EDQUOT if `bound`; nothing is changed then.
pub(super) fn charge_inodes(
    env: &AttrEnv,
    h: &mut Handle<'_>,
    owner: &Inode,
    inodes: i64,
    bound: bool,
) -> Result<()> {
    if inodes == 0 || !env.quota.is_on() {
        return Ok(());
    }
    // No thread changes the owners meanwhile: that requires the inode's lock.
    let owners = env.quota.owners(owner.ino, &owner.body());
    env.quota.charge_within(h, owners, quota::Change { inodes, ..Default::default() }, bound)
}

/// Returns the number of inodes that the owners are charged for the value of an attribute.
pub(super) fn inodes_of(entry: &Entry) -> i64 {
    i64::from(matches!(entry.value, Value::EaInode { .. }))
}

/// Checks whether the limits allow a value of `len` bytes, without a lasting reservation.
pub(super) fn check_limits(change: &Change<'_>, rights: SpaceRights, len: usize) -> Result<()> {
    let Change { env, inode: owner, .. } = *change;
    let blocks = (len.div_ceil(env.block_size()) as u32).next_multiple_of(env.geo.cluster_ratio());
    env.quota.promise(owner, blocks, !rights.ignore_limits)?;
    env.quota.release_reservation(owner, blocks.into());
    Ok(())
}

fn blocks_of(env: &AttrEnv, entry: &Entry) -> i64 {
    match entry.value {
        Value::EaInode { size, .. } => {
            let blocks = u64::from(size).div_ceil(env.block_size() as u64);
            blocks.next_multiple_of(u64::from(env.geo.cluster_ratio())) as i64
        }
        Value::Inline(_) => 0,
    }
}

/// Values that entries name, kept in memory while this exists. Damaged values are left out.
#[derive(Default)]
pub(super) struct Values(Vec<Opened>);

struct Opened {
    ea: Arc<Inode>,
    old_form: bool,
}

impl Values {
    /// Opens and checks the values that the entries name. Records damage in the superblock and
    /// applies the error policy.
    ///
    /// # Errors
    /// `Io`; a value that cannot be read is not damaged.
    pub fn open<'a>(
        env: &AttrEnv,
        owner: &Inode,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> Result<Values> {
        let mut values = Values::default();
        for ino in entries.filter_map(inode_of) {
            if values.find(ino).is_some() {
                continue;
            }
            match Opened::new(env, owner, ino) {
                Ok(opened) => values.0.push(opened),
                // A damaged value is left out: the change goes on without it, and its inode stays
                // allocated.
                Err(e @ Error::Corrupt(_)) => {
                    if env.remarks.tells(Remark::Value) {
                        tracing::error!(
                            ino = owner.ino.0,
                            "attribute value is damaged, its inode is left to e2fsck: {e}"
                        );
                    }
                    env.note_damage(&e);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(values)
    }

    fn find(&self, ino: u32) -> Option<&Opened> {
        self.0.iter().find(|opened| opened.ea.ino.0 == ino)
    }

    fn is_old_form(&self, entry: &Entry) -> bool {
        inode_of(entry).and_then(|ino| self.find(ino)).is_some_and(|opened| opened.old_form)
    }

    /// Raises the reference count of a value for one more entry.
    pub fn retain(&self, step: &mut Step<'_>, ino: u32) -> Result<()> {
        let Some(opened) = self.find(ino) else { return Ok(()) };
        let mut body = step.edit(&opened.ea)?;
        let count = body.ea_refcount();
        body.set_ea_refcount(count.saturating_add(1));
        Ok(())
    }

    /// Lowers the reference count of a value by one entry. The last one frees the inode.
    pub fn release(&self, env: &AttrEnv, step: &mut Step<'_>, ino: u32) -> Result<()> {
        let Some(opened) = self.find(ino) else { return Ok(()) };
        if !opened.old_form {
            let mut body = step.edit(&opened.ea)?;
            let count = body.ea_refcount();
            if count > 1 {
                body.set_ea_refcount(count - 1);
                return Ok(());
            }
        }
        destroy(env, step, &opened.ea)
    }

    /// Returns the credits of freeing the value of this entry.
    pub fn credits(&self, env: &AttrEnv, entry: &Entry) -> u32 {
        let Some(opened) = inode_of(entry).and_then(|ino| self.find(ino)) else { return 0 };
        let blocks =
            u32::try_from(block_count(env, &opened.ea)).unwrap_or(u32::MAX).min(extent_limit(env));
        END_CREDITS + extent::credits_of_new(env, blocks) + extent::credits(env, &opened.ea, blocks)
    }
}

impl Opened {
    fn new(env: &AttrEnv, owner: &Inode, ino: u32) -> Result<Opened> {
        let ea = open(env, InodeNr(ino))?;
        let old_form = is_old_form(&ea, owner);
        let (count, size) = {
            let body = ea.body();
            (body.ea_refcount(), body.size)
        };
        let wrong = |field| wrong(ea.ino, field);
        if count == 0 && !old_form {
            return Err(wrong("reference count").found(0u32).into());
        }
        if size > SIZE_MAX as u64 {
            return Err(wrong("size").found(size).into());
        }
        if !env.alloc.inode_in_use(ea.ino)? {
            return Err(wrong("freed inode is free").into());
        }
        for run in extent::pieces(env, &ea, 0, block_count(env, &ea) as usize + 1)? {
            check_used(env, ("attribute inode", ea.ino), run.pblk, run.len)?;
        }
        Ok(Opened { ea, old_form })
    }
}

/// Verifies that the blocks of a value, or an attribute block, exist and are in use, so that
/// freeing them cannot fail halfway.
pub(super) fn check_used(
    env: &AttrEnv,
    (what, ino): (&'static str, InodeNr),
    start: BlockNr,
    len: u32,
) -> Result<()> {
    let wrong = |at: BlockNr| Corrupt::new(what).field("block").at_inode(ino).at_block(at.0);
    if !env.geo.data_range_valid(start, len.into()) {
        return Err(wrong(start).found(start.0).into());
    }
    let (mut at, end) = (start.0, start.0 + u64::from(len));
    while at < end {
        // One group at a time, since each has a bitmap of its own.
        let group = env.geo.group_of_block(BlockNr(at)).ok_or_else(|| wrong(BlockNr(at)))?;
        let first = env.geo.first_block_of_group(group).0;
        let next = end.min(first + u64::from(env.geo.blocks_per_group));
        let bits = |nr: u64| ((nr - first) >> env.geo.cluster_bits) as usize;
        if !used_in(env, group, bits(at)..bits(next - 1) + 1)? {
            return Err(wrong(BlockNr(at)).into());
        }
        at = next;
    }
    Ok(())
}

fn used_in(env: &AttrEnv, group: GroupNr, clusters: Range<usize>) -> Result<bool> {
    let bits = env.groups.bitmap(group, groups::Kind::Blocks)?;
    Ok(bits.with(|bits| bitmap::all_ones(bits, clusters)))
}

/// Returns the inode that holds an attribute's value.
pub(super) fn inode_of(entry: &Entry) -> Option<u32> {
    match entry.value {
        Value::EaInode { ino, .. } => Some(ino),
        Value::Inline(_) => None,
    }
}

/// Frees an attribute inode. If the handle lacks the credits, the inode becomes an orphan, and the
/// reaper frees the rest.
fn destroy(env: &AttrEnv, step: &mut Step<'_>, ea: &Arc<Inode>) -> Result<()> {
    let mut end = block_count(env, ea);
    while end > 0 {
        let needed = extent::credits(env, ea, extent_limit(env)) + END_CREDITS;
        let missing = needed.saturating_sub(step.credits_left());
        if missing > 0 && !step.extend(missing)? {
            return leave_orphan(env, step, ea);
        }
        end = extent::remove(env, step, ea, 0..end)?;
    }
    mark_deleted(env, step, ea)?;
    ea.end_free();
    env.alloc.free_inode(step.handle(), ea.ino, FileType::Regular, false)?;
    env.attrs.forget(ea);
    Ok(())
}

/// Sets the fields of a freed inode.
fn mark_deleted(env: &AttrEnv, step: &mut Step<'_>, ea: &Arc<Inode>) -> Result<()> {
    let now = u32::try_from(env.now().sec).unwrap_or(u32::MAX).max(1);
    let mut body = step.edit(ea)?;
    body.set_ea_refcount(0);
    body.links = 0;
    body.size = 0;
    body.dtime = now;
    Ok(())
}

fn leave_orphan(env: &AttrEnv, step: &mut Step<'_>, ea: &Arc<Inode>) -> Result<()> {
    {
        let mut body = step.edit(ea)?;
        body.set_ea_refcount(0);
        body.links = 0;
    }
    env.orphans.add(step, ea)?;
    env.attrs.left.lock().push(ea.clone());
    Ok(())
}

fn block_count(env: &AttrEnv, ea: &Inode) -> u64 {
    ea.size().div_ceil(env.block_size() as u64)
}

/// Returns the credits of a [`NewValue`] of `len` bytes.
pub(super) fn create_credits(env: &AttrEnv, len: usize) -> u32 {
    let blocks = len.div_ceil(env.block_size()) as u32;
    Alloc::INODE_CREDITS + 1 + blocks + extent::credits_of_new(env, blocks) + 2
}

/// Returns the credits of [`Values::release`] for a value with blocks in one run: those of others
/// are asked for as they are needed.
pub(super) fn release_credits(env: &AttrEnv) -> u32 {
    extent::credits_of_new(env, 1) + env.alloc.credits(extent_limit(env)) + END_CREDITS
}

/// Credits of the end of a value, after or instead of the freeing of its blocks: its number, its
/// slot, a block of revoke records, and an orphan record.
const END_CREDITS: u32 = Alloc::INODE_CREDITS + 2 + Orphans::CREDITS;

fn extent_limit(env: &AttrEnv) -> u32 {
    (super::SIZE_MAX.div_ceil(env.block_size())) as u32
}
