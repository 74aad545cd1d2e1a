//! The blocks of an inode's map, and the nodes of its extent tree: the root in the inode's body,
//! the others in the block cache.
//!
//! # Locking
//! The caller holds the inode's map lock, for writing where a [`Writer`] is used. No buffer is held
//! while another lock is taken.

use super::MapEnv;
use super::owner::{charge, check_charge};
use super::tree::{At, Expect, Nodes, NodesMut};
use super::verify::Owner;
use crate::alloc::{Claim, Purpose, Request};
use crate::error::{Errno, Error, Result};
use crate::groups::{Bitmap, Kind as Bits};
use crate::inode::{Inode, Step};
use extant_blocks::Buffer;
use extant_format::error::Corrupt;
use extant_format::extent::{Node, NodeMut, seal_extent_block};
use extant_format::inode::I_BLOCK_SIZE;
use extant_format::types::{BlockNr, GroupNr};
use extant_journal::Seal;
use extant_sync::atomic::Ordering;
use smallvec::SmallVec;
use std::sync::Arc;

/// Reads the nodes of an inode's tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) env: &'a MapEnv,
    pub(super) inode: &'a Inode,
}

impl<'a> Reader<'a> {
    pub fn new(env: &'a MapEnv, inode: &'a Inode) -> Self {
        Reader { env, inode }
    }

    fn owner(&self) -> Owner<'a> {
        let (env, inode) = (self.env, self.inode);
        Owner { geo: &env.geo, zone: env.groups.zone(), ino: inode.ino, seed: inode.seed }
    }

    /// Opens the root. It is verified once; later changes in memory are Extant's own.
    fn open_root<'b>(&self, bytes: &'b [u8]) -> Result<Node<'b>> {
        // Relaxed: the bytes come from under the body's lock, and a thread that finds the mark
        // unset verifies them again.
        if self.inode.root_verified.load(Ordering::Relaxed) {
            return Ok(Node::open(bytes).map_err(|e| e.at_inode(self.inode.ino))?);
        }
        let node = self.owner().open_root(bytes)?;
        self.inode.root_verified.store(true, Ordering::Relaxed);
        Ok(node)
    }

    pub(super) fn root(&self) -> [u8; I_BLOCK_SIZE] {
        self.inode.body().i_block
    }

    fn block(&self, nr: u64, expect: Expect) -> Result<Arc<Buffer>> {
        if !self.env.geo.data_range_valid(BlockNr(nr), 1) {
            return Err(Corrupt::new("extent index")
                .field("child block")
                .found(nr)
                .at_inode(self.inode.ino)
                .into());
        }
        self.env
            .cache
            .read(nr, |bytes| self.owner().check_block(nr, bytes, expect).map_err(Error::from))
    }
}

impl Nodes for Reader<'_> {
    fn view<R>(&self, at: At, expect: Expect, f: impl FnOnce(Node<'_>) -> R) -> Result<R> {
        match at {
            At::Root => Ok(f(self.open_root(&self.root())?)),
            At::Block(nr) => {
                let buffer = self.block(nr, expect)?;
                let bytes = buffer.read();
                Ok(f(self.owner().open_block(nr, &bytes, expect)?))
            }
        }
    }
}

/// Changes the nodes of an inode's tree within a handle.
#[derive(Debug)]
pub(super) struct Writer<'a, 'h, 'j> {
    pub(super) env: &'a MapEnv,
    pub(super) step: &'h mut Step<'j>,
    pub(super) inode: &'a Arc<Inode>,
    /// Where new nodes should lie.
    near: BlockNr,
    claims: Claims<'a>,
    /// Blocks that the next step reads, kept in memory until it has ended.
    held: SmallVec<[Arc<Buffer>; 4]>,
    /// The group whose bitmap is held since the last step.
    last_group: Option<GroupNr>,
    in_step: bool,
}

/// Blocks for new nodes. Unused blocks that were reserved with the file's pages return to that
/// reservation.
#[derive(Debug)]
struct Claims<'a> {
    inode: &'a Inode,
    list: SmallVec<[Claim; 2]>,
    /// How many of them are from the share.
    shared: usize,
}

impl Claims<'_> {
    /// Claims a cluster for the map; gives its place.
    fn add(&mut self, env: &MapEnv, goal: BlockNr, low: bool) -> Result<(BlockNr, u32)> {
        let (len, purpose) = (env.geo.cluster_ratio(), Purpose::Metadata);
        let reserved = self.inode.pages.take_from_share();
        let want = Request { goal, len, min: len, purpose, privileged: true, reserved, low };
        match env.alloc.claim(&want) {
            Ok(claim) => {
                let place = (claim.start, claim.len);
                self.list.push(claim);
                self.shared += usize::from(reserved);
                Ok(place)
            }
            Err(e) => {
                if reserved {
                    self.inode.pages.add_to_share(1);
                }
                Err(e)
            }
        }
    }

    /// One of them, to be booked.
    fn pop(&mut self) -> Option<Claim> {
        let claim = self.list.pop();
        self.shared = self.shared.min(self.list.len());
        claim
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        for claim in self.list.drain(..).take(self.shared) {
            if claim.into_reservation() > 0 {
                self.inode.pages.add_to_share(1);
            }
        }
    }
}

impl<'a, 'h, 'j> Writer<'a, 'h, 'j> {
    pub fn new(
        env: &'a MapEnv,
        step: &'h mut Step<'j>,
        inode: &'a Arc<Inode>,
        near: BlockNr,
    ) -> Self {
        Writer {
            env,
            step,
            inode,
            near,
            claims: Claims { inode, list: SmallVec::new(), shared: 0 },
            held: SmallVec::new(),
            last_group: None,
            in_step: false,
        }
    }

    pub(super) fn reader(&self) -> Reader<'a> {
        Reader::new(self.env, self.inode)
    }

    fn seal(&self) -> Seal {
        if self.env.geo.metadata_csum {
            Seal { f: seal_extent_block, seed: self.inode.seed }
        } else {
            Seal::NONE
        }
    }

    pub(super) fn with_root<R>(&mut self, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let mut body = self.step.edit(self.inode)?;
        Ok(f(&mut body.i_block))
    }

    /// Reads the bitmaps and descriptors of the groups in which blocks lie that are about to be
    /// booked or freed, and holds them for the next step.
    pub(super) fn hold_bitmaps(&mut self, start: BlockNr, len: u32) -> Result<()> {
        let geo = &self.env.geo;
        let (mut at, end) = (start, start.0.saturating_add(len.into()));
        while at.0 < end
            && let Some(g) = geo.group_of_block(at)
        {
            // The bitmap of a group with frees in this transaction is in memory.
            if !self.env.alloc.frees_in(self.step.handle().tid(), g)
                && self.last_group.replace(g) != Some(g)
            {
                if let Bitmap::Block(buffer) = self.env.groups.bitmap(g, Bits::Blocks)? {
                    self.held.push(buffer);
                }
                self.held.push(self.env.groups.desc_block(g)?);
            }
            at = BlockNr(
                geo.first_block_of_group(g).0.saturating_add(geo.blocks_in_group(g).into()),
            );
        }
        Ok(())
    }

    pub(super) fn hold_block(&mut self, buffer: Arc<Buffer>) {
        self.held.push(buffer);
    }

    /// Runs a step, which may be a part of another one: see [`NodesMut::step`]. A part that fails
    /// aborts if it has changed something itself; the end of the outermost step judges the rest.
    pub(super) fn in_step<R>(&mut self, change: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let before = self.step.changes();
        let is_part = std::mem::replace(&mut self.in_step, true);
        let done = change(self);
        self.in_step = is_part;
        if !is_part {
            self.held.clear();
            self.last_group = None;
        }
        self.step.end(before, done)
    }

    /// Claims blocks for the map's own use, so that there are `blocks` of them; `low` ones lie
    /// below 2^32.
    pub(super) fn claim_blocks(&mut self, blocks: usize, low: bool) -> Result<()> {
        if self.claims.list.len() >= blocks {
            return Ok(());
        }
        while self.claims.list.len() < blocks {
            let (start, len) = self.claims.add(self.env, self.near, low)?;
            self.hold_bitmaps(start, len)?;
        }
        check_charge(self.env, self.inode, self.claimed())
    }

    /// Returns the number of blocks claimed for the map's own use, for which the next step may
    /// charge the file.
    pub(super) fn claimed(&self) -> i64 {
        self.claims.list.iter().map(|claim| i64::from(claim.len)).sum()
    }

    /// Books a claimed block, with its whole cluster, within a step.
    pub(super) fn take_block(&mut self, low: bool) -> Result<BlockNr> {
        self.claim_blocks(1, low)?;
        let mut claim = self.claims.pop().ok_or(Errno::NoSpc)?;
        let ratio = self.env.geo.cluster_ratio();
        charge(self.env, self.step, self.inode, ratio.into())?;
        self.env.alloc.book(self.step.handle(), &mut claim, ratio)
    }

    /// Returns the cluster of a block of the map.
    fn cluster(&self, block: u64) -> (BlockNr, u32) {
        let ratio = self.env.geo.cluster_ratio();
        (BlockNr(block & !(u64::from(ratio) - 1)), ratio)
    }

    /// Reads the bitmaps that [`Self::free_block`] changes.
    pub(super) fn prepare_free(&mut self, block: u64) -> Result<()> {
        let (start, len) = self.cluster(block);
        self.hold_bitmaps(start, len)
    }

    /// Frees a block of the map, with its cluster, within a step.
    pub(super) fn free_block(&mut self, block: u64) -> Result<()> {
        let (start, len) = self.cluster(block);
        charge(self.env, self.step, self.inode, -i64::from(len))?;
        self.env.alloc.free(self.step.handle(), start, len, Purpose::Metadata)
    }
}

impl Nodes for Writer<'_, '_, '_> {
    fn view<R>(&self, at: At, expect: Expect, f: impl FnOnce(Node<'_>) -> R) -> Result<R> {
        self.reader().view(at, expect, f)
    }
}

impl NodesMut for Writer<'_, '_, '_> {
    fn change<R>(&mut self, at: At, f: impl FnOnce(NodeMut<'_>) -> R) -> Result<R> {
        let At::Block(nr) = at else {
            return self.with_root(|bytes| Ok(f(NodeMut::open(bytes)?)))?;
        };
        let buffer = self.reader().block(nr, Expect::ROOT)?;
        let mut bytes = self.step.write(&buffer, self.seal())?;
        Ok(f(NodeMut::open(&mut bytes)?))
    }

    fn format<R>(&mut self, at: At, depth: u16, f: impl FnOnce(NodeMut<'_>) -> R) -> Result<R> {
        let At::Block(nr) = at else {
            return self.with_root(|bytes| f(NodeMut::init(bytes, depth)));
        };
        let buffer = self.env.cache.fresh(nr);
        let mut bytes = self.step.write(&buffer, self.seal())?;
        Ok(f(NodeMut::init(&mut bytes, depth)))
    }

    fn prepare(&mut self, blocks: usize) -> Result<()> {
        self.claim_blocks(blocks, false)
    }

    fn create(&mut self) -> Result<u64> {
        Ok(self.take_block(false)?.0)
    }

    fn release(&mut self, block: u64) -> Result<()> {
        self.free_block(block)
    }

    fn hold(&mut self, at: At, expect: Expect) -> Result<()> {
        if let At::Block(nr) = at {
            let buffer = self.reader().block(nr, expect)?;
            self.hold_block(buffer);
        }
        Ok(())
    }

    fn prepare_release(&mut self, block: u64) -> Result<()> {
        self.prepare_free(block)
    }

    fn step<R>(&mut self, change: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        self.in_step(change)
    }

    fn optional_step(&mut self, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<bool> {
        let before = self.step.changes();
        match self.in_step(change) {
            Err(e) if self.step.changes() == before => {
                tracing::debug!("an extent tree stays larger than it must be: {e}");
                Ok(false)
            }
            done => done.map(|()| true),
        }
    }
}
