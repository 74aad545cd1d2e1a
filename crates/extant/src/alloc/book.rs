//! Books claims and frees blocks, within handles.

use super::blocks::Blocks;
use super::group::{Bitmap, is_metadata};
use super::tree::Tree;
use super::{Alloc, Claim, Purpose};
use crate::error::{Errno, Result};
use crate::groups::{Kind, less};
use extant_blocks::Buffer;
use extant_format::bitmap;
use extant_format::error::Corrupt;
use extant_format::types::{BlockNr, GroupNr};
use extant_journal::{Handle, Seal, Tid};
use extant_space::Run;
use extant_sync::MutexGuard;
use std::ops::Range;
use std::sync::Arc;

fn bits(run: Run) -> Range<usize> {
    run.start as usize..run.end() as usize
}

impl Alloc {
    /// Books the first `len` blocks of the claim (rounded up to whole clusters) within `h`: bitmap, counts. The rest of
    /// the claim stays claimed. Returns the first booked block.
    ///
    /// # Errors
    /// EINVAL if the claim is shorter; `Corrupt` naming the group if the bitmap or the counts are wrong; `Io`.
    pub fn book(&self, h: &mut Handle<'_>, claim: &mut Claim, len: u32) -> Result<BlockNr> {
        if len == 0 || len > claim.len {
            return Err(Errno::Inval.into());
        }
        let (start, front) = (claim.start, claim.front(len));
        self.blocks.book(h, start, front)?;
        claim.advance(front);
        Ok(start)
    }

    /// Books those of the blocks that are free within `h`, whoever is to own them: what replay finds named as a file's
    /// must not be given to another. Costs [`Self::credits`].
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
            let (g, run) = self.blocks.place(BlockNr(at), part).ok_or_else(named)?;
            if is_metadata(&self.vol.geo, &self.groups, g, at, part.into()) {
                return Err(named().field("belongs to the file system").at_group(g).into());
            }
            while let Some(mut claim) = Blocks::claim_within(&self.blocks, g, run)? {
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
        // For each group a bitmap and a descriptor; the superblock; a block of revoke records; the owners' records.
        groups * 2 + 2 + self.vol.owner_credits()
    }

    /// Frees booked blocks (whole clusters) within `h`. They become allocatable when the transaction is durable.
    /// Metadata (or data that was logged) is revoked.
    ///
    /// # Errors
    /// `Corrupt` if a block is free already, belongs to the file system's own metadata, or does not exist; `Io`.
    pub fn free(&self, h: &mut Handle<'_>, start: BlockNr, len: u32, purpose: Purpose) -> Result<()> {
        if !self.vol.geo.data_range_valid(start, len.into()) {
            return Err(Corrupt::new("freed blocks").found(start.0).expected(self.vol.geo.blocks_count).into());
        }
        let mut at = start.0;
        let end = start.0 + u64::from(len);
        if self.withheld.keep(at..end) {
            return Ok(());
        }
        while at < end {
            let part = self.part_in_group(at, end)?;
            self.blocks.free(h, BlockNr(at), part, purpose)?;
            at += u64::from(part);
        }
        Ok(())
    }

    /// Blocks from `at` up to `end` that lie in one group.
    pub(super) fn part_in_group(&self, at: u64, end: u64) -> Result<u32> {
        let geo = &self.vol.geo;
        let g = geo.group_of_block(BlockNr(at)).ok_or_else(|| Corrupt::new("freed block").found(at))?;
        let group_end = geo.first_block_of_group(g).0 + u64::from(geo.blocks_in_group(g));
        Ok((end.min(group_end) - at) as u32)
    }

    /// A transaction is durable: what it freed may be allocated again.
    pub fn committed(&self, tid: Tid) {
        self.blocks.committed(tid);
    }
}

impl Blocks {
    fn book(&self, h: &mut Handle<'_>, start: BlockNr, len: u32) -> Result<()> {
        let nowhere = || Corrupt::new("claim").found(start.0);
        let (g, run) = self.place(start, len).ok_or_else(nowhere)?;
        let _bitmap = self.lock_bitmap(g)?;
        let buffer = self.groups.bitmap_block(h, g, Kind::Blocks)?;
        let free = bitmap::all_zeros(&buffer.read(), bits(run));
        if !free {
            return Err(Corrupt::new("block bitmap").field("used block was claimed").found(start.0).at_group(g).into());
        }
        self.groups.bitmap_changed(h, g, Kind::Blocks)?;
        self.groups.edit(h, g, |desc| less(&mut desc.free_clusters, run.len, "free clusters", g))?;
        bitmap::set_range(&mut h.write(&buffer, Seal::NONE)?, bits(run));
        self.with_tree_of(g, |tree, place| tree.held.remove(place(run)));
        Ok(())
    }

    /// Frees blocks within one group.
    pub(super) fn free(&self, h: &mut Handle<'_>, start: BlockNr, len: u32, purpose: Purpose) -> Result<()> {
        let nowhere = || Corrupt::new("freed block").found(start.0);
        let (g, run) = self.place(start, len).ok_or_else(nowhere)?;
        if is_metadata(&self.vol.geo, &self.groups, g, start.0, len.into()) {
            return Err(nowhere().field("belongs to the file system").at_group(g).into());
        }
        let _bitmap = self.lock_bitmap(g)?;
        let buffer = self.groups.bitmap_block(h, g, Kind::Blocks)?;
        let used = bitmap::all_ones(&buffer.read(), bits(run));
        // Held before it looks free: while the bitmap is locked nobody makes free space of it. What is used and free at once is so only
        // if the image lets two groups share a bitmap.
        if !used || !self.with_tree_of(g, |tree, place| !tree.free.overlaps(place(run)) && tree.held.add(place(run))) {
            return Err(nowhere().field("is free already").at_group(g).into());
        }
        let freed = self.clear(h, g, start, (len, run), purpose, &buffer);
        match freed {
            Ok(()) => self.defer(h.tid(), g, run),
            Err(_) => {
                self.with_tree_of(g, |tree, place| tree.held.remove(place(run)));
            }
        }
        freed
    }

    /// Clears the bits of blocks that are freed.
    fn clear(
        &self,
        h: &mut Handle<'_>,
        g: GroupNr,
        start: BlockNr,
        (len, run): (u32, Run),
        purpose: Purpose,
        buffer: &Arc<Buffer>,
    ) -> Result<()> {
        self.groups.bitmap_changed(h, g, Kind::Blocks)?;
        if purpose == Purpose::Metadata {
            h.revoke(start.0, len.into())?;
        }
        self.groups.edit(h, g, |desc| self.more(&mut desc.free_clusters, run.len, g))?;
        bitmap::clear_range(&mut h.write(buffer, Seal::NONE)?, bits(run));
        Ok(())
    }

    /// Locks a group's bitmap.
    ///
    /// # Errors
    /// `Corrupt` if there is no such group, or its bitmap cannot be trusted.
    fn lock_bitmap(&self, g: GroupNr) -> Result<MutexGuard<'_, Bitmap>> {
        let bad = || Corrupt::new("block bitmap").at_group(g);
        let bitmap = self.bitmaps.get(g.index()).ok_or_else(bad)?.lock();
        if bitmap.bad { Err(bad().into()) } else { Ok(bitmap) }
    }

    /// Runs `f` on the group's tree, with what makes units of the tree from clusters of the group. False if there is no such
    /// group.
    fn with_tree_of(&self, g: GroupNr, f: impl FnOnce(&mut Tree, &dyn Fn(Run) -> Run) -> bool) -> bool {
        let slot = self.trees.get(self.shape.tree_of(g) as usize);
        slot.is_some_and(|slot| f(&mut slot.lock(), &|run| self.shape.place(g, run)))
    }

    fn more(&self, count: &mut u32, by: u32, g: GroupNr) -> Result<()> {
        let most = self.vol.geo.clusters_in_group(g);
        let sum = count.saturating_add(by);
        if sum > most {
            let error = Corrupt::new("group descriptor").field("free clusters").found(sum);
            return Err(error.expected(most).at_group(g).into());
        }
        *count = sum;
        Ok(())
    }
}
