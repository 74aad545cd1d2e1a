//! Books claims and frees blocks, within handles.

use super::free_space::FreeSpace;
use super::free_space::Tree;
use super::free_space::{Bitmap, is_metadata};
use super::{Alloc, Claim, Purpose};
use crate::error::{Errno, Error, Result};
use crate::groups::{Kind, less, more};
use extant_blocks::Buffer;
use extant_format::bitmap;
use extant_format::error::Corrupt;
use extant_format::types::{BlockNr, GroupNr};
use extant_journal::{Handle, Seal, Tid};
use extant_space::Run;
use extant_sync::MutexGuard;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Blocks within one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub group: GroupNr,
    /// The first block, and how many.
    pub start: u64,
    pub len: u32,
    /// Their clusters.
    pub run: Run,
}

/// A few of them.
pub(super) type Parts = SmallVec<[Part; 8]>;

pub(super) fn bits(run: Run) -> Range<usize> {
    run.start as usize..run.end() as usize
}

impl Alloc {
    /// Books the first `len` blocks of the claim (rounded up to whole clusters) within `h`: bitmap,
    /// counts. The rest of the claim stays claimed. Returns the first booked block.
    ///
    /// # Errors
    /// EINVAL if the claim is shorter; `Corrupt` naming the group if the bitmap or the counts are
    /// wrong; `Io`.
    pub fn book(&self, h: &mut Handle<'_>, claim: &mut Claim, len: u32) -> Result<BlockNr> {
        if len == 0 || len > claim.len {
            return Err(Errno::Inval.into());
        }
        let (start, front) = (claim.start, claim.front(len));
        self.space.book(h, start, front)?;
        claim.advance(front);
        Ok(start)
    }

    /// Books the free blocks of a range within `h`, for any owner: replay must not allocate blocks
    /// that a record names as a file's. Costs [`Self::credits`].
    ///
    /// # Errors
    /// `Corrupt` if a block belongs to the file system's own metadata, or does not exist; `Io`.
    pub fn book_free(&self, h: &mut Handle<'_>, start: BlockNr, len: u32) -> Result<()> {
        let named = || Corrupt::new("blocks of a file").found(start.0);
        if !self.vol.geo.data_range_valid(start, len.into()) {
            return Err(named().expected(self.vol.geo.blocks_count).into());
        }
        let (mut at, end) = (start.0, start.0 + u64::from(len));
        while at < end {
            let part = self.part_in_group(at, end)?;
            let (g, run) = self.space.place(BlockNr(at), part).ok_or_else(named)?;
            if is_metadata(&self.vol.geo, &self.groups, g, at, part.into()) {
                return Err(named().field("belongs to the file system").at_group(g).into());
            }
            while let Some(mut claim) = FreeSpace::claim_within(&self.space, g, run)? {
                let len = claim.len;
                self.book(h, &mut claim, len)?;
            }
            at += u64::from(part);
        }
        Ok(())
    }

    /// Credits that booking or freeing a contiguous run of `blocks` blocks may cost.
    pub fn credits(&self, blocks: u32) -> u32 {
        let groups = 1 + blocks.saturating_sub(1).div_ceil(self.vol.geo.blocks_per_group);
        // For each group a bitmap and a descriptor; the superblock; a block of revoke records; the
        // owners' records.
        groups * 2 + 2 + self.vol.owner_credits()
    }

    /// Frees booked blocks (whole clusters) within `h`. They become allocatable when the
    /// transaction is durable. Metadata (or data that was logged) is revoked.
    ///
    /// # Errors
    /// `Corrupt` if a block is free already, belongs to the file system's own metadata, or does not
    /// exist; `Io`.
    pub fn free(
        &self,
        h: &mut Handle<'_>,
        start: BlockNr,
        len: u32,
        purpose: Purpose,
    ) -> Result<()> {
        self.free_all(h, &[(start, len)], purpose)
    }

    /// Frees several runs of blocks, as [`Alloc::free`] does each. After an error about one the
    /// others are freed all the same.
    ///
    /// # Errors
    /// The first of theirs.
    pub fn free_all(
        &self,
        h: &mut Handle<'_>,
        runs: &[(BlockNr, u32)],
        purpose: Purpose,
    ) -> Result<()> {
        self.free_by_group(runs, |parts| self.space.free(h, parts, purpose))
    }

    /// Frees the parts of each group by `free`. After an error about one group the others are freed
    /// all the same.
    pub(super) fn free_by_group(
        &self,
        runs: &[(BlockNr, u32)],
        mut free: impl FnMut(&[Part]) -> Result<()>,
    ) -> Result<()> {
        let mut parts = Parts::new();
        let mut result = Ok(());
        for (start, len) in runs {
            result = result.and(self.parts(*start, *len, &mut parts));
        }
        for of_group in parts.chunk_by(|a, b| a.group == b.group) {
            result = result.and(free(of_group));
        }
        result
    }

    /// The parts of a run that is to be freed by the groups in which they lie.
    fn parts(&self, start: BlockNr, len: u32, parts: &mut Parts) -> Result<()> {
        if !self.vol.geo.data_range_valid(start, len.into()) {
            return Err(Corrupt::new("freed blocks")
                .found(start.0)
                .expected(self.vol.geo.blocks_count)
                .into());
        }
        let (mut at, end) = (start.0, start.0 + u64::from(len));
        if self.replay_frees.defer(at..end) {
            return Ok(());
        }
        while at < end {
            let len = self.part_in_group(at, end)?;
            let nowhere = || Corrupt::new("freed block").found(at);
            let (group, run) = self.space.place(BlockNr(at), len).ok_or_else(nowhere)?;
            parts.push(Part { group, start: at, len, run });
            at += u64::from(len);
        }
        Ok(())
    }

    /// Blocks from `at` up to `end` that lie in one group.
    pub(super) fn part_in_group(&self, at: u64, end: u64) -> Result<u32> {
        let geo = &self.vol.geo;
        let g =
            geo.group_of_block(BlockNr(at)).ok_or_else(|| Corrupt::new("freed block").found(at))?;
        let group_end = geo.first_block_of_group(g).0 + u64::from(geo.blocks_in_group(g));
        Ok((end.min(group_end) - at) as u32)
    }

    /// Records that a transaction is durable: its frees may be allocated again.
    pub fn committed(&self, tid: Tid) {
        self.space.committed(tid);
    }
}

impl FreeSpace {
    fn book(&self, h: &mut Handle<'_>, start: BlockNr, len: u32) -> Result<()> {
        let nowhere = || Corrupt::new("claim").found(start.0);
        let (g, run) = self.place(start, len).ok_or_else(nowhere)?;
        let _bitmap = self.lock_bitmap(g)?;
        let buffer = self.groups.bitmap_block(h, g, Kind::Blocks)?;
        let free = bitmap::all_zeros(&buffer.read(), bits(run));
        if !free {
            return Err(Corrupt::new("block bitmap")
                .field("used block was claimed")
                .found(start.0)
                .at_group(g)
                .into());
        }
        self.groups.bitmap_changed(h, g, Kind::Blocks)?;
        self.groups
            .edit(h, g, |desc| less(&mut desc.free_clusters, run.len, "free clusters", g))?;
        bitmap::set_range(&mut h.write(&buffer, Seal::NONE)?, bits(run));
        self.with_tree_of(g, |tree, place| _ = tree.held.remove(place(run)));
        Ok(())
    }

    /// Frees data clusters of a group.
    pub(super) fn free_clusters(&self, h: &mut Handle<'_>, group: GroupNr, run: Run) -> Result<()> {
        let start = self.vol.geo.block_of_bit(group, run.start).0;
        let len = run.len.saturating_mul(self.cluster_ratio());
        self.free(h, &[Part { group, start, len, run }], Purpose::Data)
    }

    /// Frees blocks of one group.
    fn free(&self, h: &mut Handle<'_>, parts: &[Part], purpose: Purpose) -> Result<()> {
        let Some(g) = parts.first().map(|part| part.group) else { return Ok(()) };
        let own =
            |part: &Part| is_metadata(&self.vol.geo, &self.groups, g, part.start, part.len.into());
        let (own, others): (Parts, Parts) = parts.iter().copied().partition(own);
        let _bitmap = self.lock_bitmap(g)?;
        let buffer = self.groups.bitmap_block(h, g, Kind::Blocks)?;
        let (used, wrong) = used(g, &others, &buffer);
        if !used.is_empty() {
            self.clear(h, &used, purpose, &buffer)?;
            self.defer(h.tid(), g, used.iter().map(|part| part.run));
        }
        // Its other clear bits may be a file's blocks, too.
        let wrong = wrong.inspect_err(|error| self.disable_group(g, error));
        match own.first() {
            Some(part) => Err(wrong_free(g, part.start, "belongs to the file system")),
            None => wrong,
        }
    }

    /// Clears the bits of blocks of one group that are freed. `buffer` has the group's bitmap.
    fn clear(
        &self,
        h: &mut Handle<'_>,
        parts: &[Part],
        purpose: Purpose,
        buffer: &Arc<Buffer>,
    ) -> Result<()> {
        let Some(g) = parts.first().map(|part| part.group) else { return Ok(()) };
        let sum = parts.iter().map(|part| part.run.len).sum();
        let most = self.vol.geo.clusters_in_group(g);
        self.groups.join(h, g)?;
        if purpose == Purpose::Metadata {
            parts.iter().try_for_each(|part| h.revoke(part.start, part.len.into()))?;
        }
        self.groups.edit_with_bitmap(h, g, Kind::Blocks, |desc| {
            more(&mut desc.free_clusters, sum, most, g)
        })?;
        let mut bytes = h.write(buffer, Seal::NONE)?;
        parts.iter().for_each(|part| bitmap::clear_range(&mut bytes, bits(part.run)));
        Ok(())
    }

    /// Locks a group's bitmap.
    ///
    /// # Errors
    /// `Corrupt` if there is no such group, or its bitmap cannot be trusted.
    pub(super) fn lock_bitmap(&self, g: GroupNr) -> Result<MutexGuard<'_, Bitmap>> {
        let bad = || Corrupt::new("block bitmap").at_group(g);
        let bitmap = self.bitmaps.get(g.index()).ok_or_else(bad)?.lock();
        if bitmap.bad { Err(bad().into()) } else { Ok(bitmap) }
    }

    /// Runs `f` on the group's tree, with a function that converts clusters of the group into units
    /// of the tree. Does nothing if there is no such group.
    pub(super) fn with_tree_of(&self, g: GroupNr, f: impl FnOnce(&mut Tree, &dyn Fn(Run) -> Run)) {
        if let Some(slot) = self.trees.get(self.shape.tree_of(g) as usize) {
            f(&mut slot.lock(), &|run| self.shape.place(g, run));
        }
    }
}

/// Returns the used blocks among those given, in order and each once, and the error of the first
/// other one. The caller must hold the lock of the bitmap until the frees are listed, so that no
/// thread makes free space of them before they are durable.
pub(super) fn used(g: GroupNr, parts: &[Part], buffer: &Buffer) -> (Parts, Result<()>) {
    let mut used = Parts::from_slice(parts);
    used.sort_unstable_by_key(|part| part.start);
    let (mut free, mut end) = (None, 0);
    let bytes = buffer.read();
    used.retain(|part| {
        let is_used = part.run.start >= end && bitmap::all_ones(&bytes, bits(part.run));
        if is_used {
            end = part.run.end();
        } else {
            free.get_or_insert(part.start);
        }
        is_used
    });
    (used, free.map_or(Ok(()), |start| Err(wrong_free(g, start, "is free already"))))
}

/// Blocks that cannot be freed.
pub(super) fn wrong_free(g: GroupNr, start: u64, why: &'static str) -> Error {
    Corrupt::new("freed block").found(start).field(why).at_group(g).into()
}
