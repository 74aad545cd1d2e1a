//! The first block of an inode whose map is about to begin: small files and directories that leave
//! their inode.
//!
//! The block is claimed, and all that mapping it reads is brought into memory, before the step that
//! takes the content out of the inode. A lack of space or an unreadable bitmap changes nothing.

use super::MapEnv;
use super::map::{Placement, insert_claim};
use super::owner::{check_charge, purpose};
use crate::alloc::{Claim, Request, Small};
use crate::error::Result;
use crate::groups::{Bitmap, Kind as Bits};
use crate::inode::{Inode, Step};
use crate::volume::SpaceRights;
use extant_blocks::Buffer;
use extant_format::features::Incompat;
use extant_format::types::BlockNr;
use smallvec::SmallVec;
use std::sync::Arc;

/// A claimed cluster for the first block, with the blocks that mapping it reads. It is free again
/// when this is dropped.
#[derive(Debug)]
pub struct FirstBlock {
    claim: Claim,
    /// Kept in memory until the block is mapped.
    _held: SmallVec<[Arc<Buffer>; 4]>,
}

impl FirstBlock {
    /// Makes a claim, for which the inode's owners were promised space, the first block.
    ///
    /// # Errors
    /// `Corrupt`, `Io`; ENOSPC does not come after this.
    pub fn new(env: &MapEnv, inode: &Inode, claim: Claim) -> Result<FirstBlock> {
        check_charge(env, inode, claim.len.into())?;
        let mut held = SmallVec::new();
        if let Some(g) = env.geo.group_of_block(claim.start) {
            if let Bitmap::Block(buffer) = env.groups.bitmap(g, Bits::Blocks)? {
                held.push(buffer);
            }
            held.push(env.groups.desc_block(g)?);
        }
        Ok(FirstBlock { claim, _held: held })
    }

    /// The block on the device.
    pub fn start(&self) -> BlockNr {
        self.claim.start
    }
}

/// Claims the first block of a directory whose content is in its inode. Does not wait for space.
///
/// # Errors
/// ENOSPC, EDQUOT, `Corrupt`, `Io`.
pub fn claim_first(env: &MapEnv, inode: &Inode, rights: SpaceRights) -> Result<FirstBlock> {
    let ratio = env.geo.cluster_ratio();
    let request = Request {
        goal: env.alloc.inode_goal(inode.ino),
        len: ratio,
        min: ratio,
        purpose: purpose(env, inode),
        privileged: false,
        reserved: false,
        low: !env.geo.incompat(Incompat::EXTENTS),
    };
    env.quota.promise(inode, ratio, !rights.ignore_limits)?;
    let small = env.alloc.claim_small(Small::Directory, &request);
    let claimed = small.map_or_else(|| env.alloc.claim(&request), Ok);
    claimed
        .and_then(|claim| FirstBlock::new(env, inode, claim))
        .inspect_err(|_| env.quota.release_reservation(inode, ratio.into()))
}

/// Maps the first block of an inode with an empty map, written, within a step.
///
/// # Errors
/// Those of the journal; `Corrupt`.
pub fn map_first(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    first: FirstBlock,
) -> Result<BlockNr> {
    let FirstBlock { mut claim, _held } = first;
    let place = claim.start;
    let at = Placement { lblk: 0, offset: 0, len: 1 };
    insert_claim(env, step, inode, at, &mut claim)?;
    Ok(place)
}
