//! Records that are ranges of a file's blocks.

use super::{Operations, bad};
use crate::alloc;
use crate::error::Result;
use crate::extent::{self, ExtentState, Run};
use crate::inode::Inode;
use crate::vfs::InodeRef;
use extant_format::extent::Leaf;
use extant_format::inode::InodeFlags;
use extant_format::jbd2::FcRange;
use extant_format::types::{BlockNr, InodeNr};
use std::ops::Range;
use std::sync::Arc;

/// Most blocks that are booked or freed within one handle.
const MAX_AT_ONCE: u32 = 1 << 15;

impl Operations {
    /// Keeps the blocks of an extent that is to come.
    pub(super) fn book_range(&self, leaf: &Leaf) -> Result<()> {
        self.book_run(BlockNr(leaf.pblk), leaf.len.into())
    }

    fn book_run(&self, start: BlockNr, len: u32) -> Result<()> {
        let st = self.st();
        self.in_parts(start.0..start.0.saturating_add(len.into()), |start, len| {
            st.begin(st.alloc.credits(len))?
                .step(|step| st.alloc.book_free(step.handle(), start, len))
        })
    }

    /// Calls `each` for parts of a run of blocks, each of which a handle has credits for in the
    /// smallest log.
    fn in_parts(
        &self,
        run: Range<u64>,
        mut each: impl FnMut(BlockNr, u32) -> Result<()>,
    ) -> Result<()> {
        let st = self.st();
        let mut most = MAX_AT_ONCE;
        while most > 1 && st.alloc.credits(most) > st.journal.max_credits() / 2 {
            most /= 2;
        }
        let mut at = run.start;
        while at < run.end {
            let len = (run.end - at).min(most.into()) as u32;
            each(BlockNr(at), len)?;
            at += u64::from(len);
        }
        Ok(())
    }

    pub(super) fn replay_added_range(&self, ino: InodeNr, leaf: &Leaf) -> Result<()> {
        let inode = self.mapped(ino)?;
        if leaf.len == 0 || leaf.end() > extent::max_blocks(self.st(), &inode) {
            return Err(bad("extent", ino));
        }
        let state = if leaf.unwritten { ExtentState::Unwritten } else { ExtentState::Written };
        let (mut at, end) = (leaf.lblk, leaf.lblk + u32::from(leaf.len));
        while at < end {
            let pblk = BlockNr(leaf.pblk + u64::from(at - leaf.lblk));
            at = self.map_part(&inode, Run { lblk: at, len: end - at, pblk, state })?;
        }
        Ok(())
    }

    /// Maps the first part of a run, as far as the present map has one state there. Returns the end
    /// of that part.
    fn map_part(&self, inode: &Arc<Inode>, wanted: Run) -> Result<u32> {
        let st = self.st();
        let found = extent::lookup(st, inode, wanted.lblk, wanted.len)?;
        let len = found.len.clamp(1, wanted.len).min(extent::most_at_once(st, inode));
        let range = wanted.lblk..wanted.lblk + len;
        if found.is_mapped() && found.pblk == wanted.pblk {
            if found.state != wanted.state {
                self.convert(inode, range.clone(), wanted.state)?;
            }
            return Ok(range.end);
        }
        if found.is_mapped() {
            self.unmap(inode, u64::from(range.start)..u64::from(range.end))?;
        }
        let mapped = st
            .begin(extent::credits(st, inode, len))?
            .step(|step| extent::insert_booked(st, step, inode, Run { len, ..wanted }))?;
        Ok(range.start + mapped)
    }

    fn convert(&self, inode: &Arc<Inode>, mut range: Range<u32>, state: ExtentState) -> Result<()> {
        let st = self.st();
        while !range.is_empty() {
            range.start = st
                .begin(extent::credits(st, inode, 1))?
                .step(|step| extent::convert(st, step, inode, range.clone(), state))?;
        }
        Ok(())
    }

    pub(super) fn replay_removed_range(&self, removed: &FcRange) -> Result<()> {
        let inode = self.mapped(removed.ino)?;
        let start = u64::from(removed.first.0);
        let end = (start + u64::from(removed.len)).min(extent::max_blocks(self.st(), &inode));
        self.unmap(&inode, start..end)
    }

    fn unmap(&self, inode: &Arc<Inode>, mut range: Range<u64>) -> Result<()> {
        let st = self.st();
        while !range.is_empty() {
            range.end = st
                .begin(extent::removal_credits(st, inode))?
                .step(|step| extent::remove(st, step, inode, range.clone()))?;
        }
        Ok(())
    }

    /// Returns an inode with a map.
    fn mapped(&self, ino: InodeNr) -> Result<InodeRef> {
        let inode = self.replayed(ino)?.ok_or_else(|| bad("inode", ino))?;
        let extents = inode.flags().contains(InodeFlags::EXTENTS);
        if extents && !inode.is_dir() { Ok(inode) } else { Err(bad("inode without extents", ino)) }
    }

    /// Books all that an inode's extents name, as far as it is free, and adds it to `owned`.
    pub(super) fn book_mapped(
        &self,
        inode: &Arc<Inode>,
        owned: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        let st = self.st();
        if !inode.flags().contains(InodeFlags::EXTENTS) {
            return Ok(());
        }
        let (mut at, end) = (0, extent::max_blocks(st, inode));
        while let Some(lblk) = u32::try_from(at).ok().filter(|_| at < end) {
            let run = extent::lookup(st, inode, lblk, u32::MAX - lblk)?;
            if run.is_mapped() {
                self.book_run(run.pblk, run.len)?;
                owned.push(run.pblk.0..run.pblk.0 + u64::from(run.len));
            }
            at += u64::from(run.len.max(1));
        }
        Ok(())
    }

    /// Frees the blocks that files lost during the replay, except those in `owned`.
    pub(super) fn free_unowned(&self, owned: Vec<Range<u64>>) -> Result<()> {
        let st = self.st();
        for run in alloc::without(&st.alloc.take_deferred_frees(), &alloc::in_order(owned)) {
            self.in_parts(run, |start, len| {
                st.begin(st.alloc.credits(len))?
                    .step(|step| st.alloc.free_used(step.handle(), start, len))
            })?;
        }
        Ok(())
    }
}
