//! An inode as the owner of blocks: its kind of map, its `i_blocks`, and the purpose of its blocks.

use super::MapEnv;
use super::tree::LOGICAL_END;
use crate::alloc::Purpose;
use crate::error::Result;
use crate::inode::{Body, Inode, Step};
use crate::quota::Outcome;
use extant_format::error::Corrupt;
use extant_format::extent::{Header, NodeMut};
use extant_format::features::{Incompat, RoCompat};
use extant_format::indirect;
use extant_format::inode::{self as disk, InodeFlags};
use extant_format::types::FileType;
use extant_sync::atomic::Ordering;
use std::sync::Arc;

/// The kind of an inode's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An extent tree.
    Tree,
    /// Block pointers.
    Indirect,
    /// No map: the data lie in the inode.
    Inline,
}

impl Kind {
    pub fn of(inode: &Inode) -> Kind {
        let flags = inode.flags();
        if flags.contains(InodeFlags::INLINE_DATA) {
            Kind::Inline
        } else if flags.contains(InodeFlags::EXTENTS) {
            Kind::Tree
        } else {
            Kind::Indirect
        }
    }
}

/// Returns the purpose of an inode's data blocks: blocks that are logged in the journal are revoked
/// when they are freed.
pub(super) fn purpose(env: &MapEnv, inode: &Inode) -> Purpose {
    let logged = match inode.ftype {
        FileType::Directory | FileType::Symlink => true,
        _ => inode.logs_data(env) || inode.flags().contains(InodeFlags::EA_INODE),
    };
    if logged { Purpose::Metadata } else { Purpose::Data }
}

/// The block count, in sectors, above which an inode counts in blocks instead.
const MAX_SECTORS: u64 = (1 << 48) - 1;

/// Returns the block count of an inode, in sectors, after a change by `blocks` file-system blocks.
///
/// # Errors
/// `Corrupt` if that is below zero, or above the largest count of an inode.
fn count_after(env: &MapEnv, inode: &Inode, old: u64, blocks: i64) -> Result<u64> {
    let sectors = blocks.saturating_mul(env.geo.sectors_per_block().into());
    let most = if env.geo.ro_compat(RoCompat::HUGE_FILE) { MAX_SECTORS } else { u32::MAX.into() };
    let sum = old.checked_add_signed(sectors).filter(|sum| *sum <= most || *sum <= old);
    Ok(sum
        .ok_or_else(|| Corrupt::new("inode").field("block count").found(old).at_inode(inode.ino))?)
}

/// Checks, before a step, that [`charge`] can change the inode's block count by `blocks`.
///
/// # Errors
/// As [`charge`].
pub(super) fn check_charge(env: &MapEnv, inode: &Inode, blocks: i64) -> Result<()> {
    let old = inode.body().blocks;
    count_after(env, inode, old, blocks).map(drop)
}

/// Adds `blocks` (may be negative) file-system blocks to `i_blocks`.
///
/// # Errors
/// `Corrupt` if that would go below zero, or above the largest count of an inode.
pub fn charge(env: &MapEnv, step: &mut Step<'_>, inode: &Arc<Inode>, blocks: i64) -> Result<()> {
    // Before the handle counts a change.
    check_charge(env, inode, blocks)?;
    charge_checked(env, step, inode, blocks)
}

/// As [`charge`], after [`check_charge`].
pub(super) fn charge_checked(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    blocks: i64,
) -> Result<()> {
    loop {
        let mut body = step.edit(inode)?;
        let sum = count_after(env, inode, body.blocks, blocks)?;
        if charge_owners(env, step, inode, &body, blocks)? {
            body.blocks = sum;
            return Ok(());
        }
        let owners = env.quota.owners(inode.ino, &body);
        drop(body);
        env.quota.load(Some(step.handle()), owners)?;
    }
}

/// Charges the owners of an inode whose body is locked. Returns false if they must be read first.
fn charge_owners(
    env: &MapEnv,
    step: &Step<'_>,
    inode: &Inode,
    body: &Body,
    blocks: i64,
) -> Result<bool> {
    if !env.quota.is_on() {
        return Ok(true);
    }
    let (change, promised) = env.quota.booked(inode, blocks);
    // No limits here: they were checked when the space was promised, or the change can no longer be
    // refused.
    let done =
        env.quota.charge(Some(step.tid().0), env.quota.owners(inode.ino, body), change, false)?;
    if done == Outcome::Done {
        inode.promised.store(promised, Ordering::Relaxed);
    }
    Ok(done == Outcome::Done)
}

/// Gives a new inode an empty map: an extent root, or zeroed pointers where the file system has no
/// extents.
///
/// # Errors
/// Those of the journal.
pub fn init(env: &MapEnv, step: &mut Step<'_>, inode: &Arc<Inode>) -> Result<()> {
    let mut map = inode.map.write();
    map.changing();
    map.clear();
    init_body(env, &mut step.edit(inode)?.disk);
    Ok(())
}

/// As [`init`], for a body that no inode has yet.
pub fn init_body(env: &MapEnv, body: &mut disk::Inode) {
    body.flags.remove(InodeFlags::INLINE_DATA);
    if env.geo.incompat(Incompat::EXTENTS) {
        NodeMut::init(&mut body.i_block, 0);
        body.flags.insert(InodeFlags::EXTENTS);
    } else {
        body.i_block.fill(0);
        body.flags.remove(InodeFlags::EXTENTS);
    }
}

/// Returns whether the inode alone shows that it owns no block, neither for data nor for its map.
pub fn owns_nothing(inode: &Inode) -> bool {
    let body = inode.body();
    let empty = || {
        if body.flags.contains(InodeFlags::EXTENTS) {
            Header::parse(&body.i_block).is_ok_and(|root| root.depth == 0 && root.entries == 0)
        } else {
            body.i_block.iter().all(|byte| *byte == 0)
        }
    };
    let mapped = matches!(inode.ftype, FileType::Regular | FileType::Directory);
    body.blocks == 0 && !body.flags.contains(InodeFlags::INLINE_DATA) && (!mapped || empty())
}

/// Returns the number of logical blocks that the inode's kind of map can have.
pub fn max_blocks(env: &MapEnv, inode: &Inode) -> u64 {
    match Kind::of(inode) {
        Kind::Indirect => indirect::max_blocks(env.geo.block_size).min(LOGICAL_END),
        Kind::Tree | Kind::Inline => LOGICAL_END,
    }
}
