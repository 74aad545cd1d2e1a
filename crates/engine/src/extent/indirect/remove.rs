//! Unmaps blocks from the end of a range towards its start.

use super::PointersMut;
use crate::error::Result;
use crate::extent::tree::At;
use extant_format::indirect::{DIRECT, IND, TIND, pointer, put_pointer};
use std::ops::Range;

/// The caller's part in a removal: bounds and frees of the unmapped blocks.
pub(in crate::extent) trait Removal<N: PointersMut> {
    /// Returns whether a run of `len` blocks, to which a pointer still leads, may be freed now.
    ///
    /// # Errors
    /// Those of reading the bitmaps that the free needs.
    fn may_free(&mut self, nodes: &mut N, first: u32, len: u32) -> Result<bool>;

    /// Subtracts blocks that are about to be unmapped from the owner's usage.
    fn uncharge(&mut self, nodes: &mut N, len: u32) -> Result<()>;

    /// Frees blocks to which no pointer leads any more.
    fn free(&mut self, nodes: &mut N, first: u32, len: u32) -> Result<()>;

    /// Records that all blocks of the range from `lblk` on are unmapped, and that pointer blocks
    /// without pointers are freed.
    fn reached(&mut self, lblk: u64);
}

/// Unmaps the blocks of `range` from its end. Returns the block down to which all are unmapped.
pub(in crate::extent) fn remove<N: PointersMut>(
    nodes: &mut N,
    range: Range<u64>,
    how: &mut impl Removal<N>,
) -> Result<u64> {
    let per_block = u64::from(nodes.per_block());
    let mut first = DIRECT as u64 + per_block + per_block.pow(2);
    for slot in (IND..=TIND).rev() {
        let levels = (slot - IND) as u32;
        let tree = Array {
            at: At::Root,
            levels: levels + 1,
            base: first,
            slots: slot..slot + 1,
            span: per_block.pow(levels + 1),
        };
        if let Some(reached) = tree.remove(nodes, &range, how)? {
            return Ok(reached);
        }
        first -= per_block.pow(levels);
    }
    let direct = Array { at: At::Root, levels: 0, base: 0, slots: 0..DIRECT, span: 1 };
    Ok(direct.remove(nodes, &range, how)?.unwrap_or(range.start))
}

/// A pointer that is not zero.
#[derive(Clone, Copy)]
struct Pointer {
    slot: usize,
    /// The block that it leads to.
    block: u32,
}

/// Adjacent pointers of one level in one block or inode.
struct Array {
    at: At,
    /// Levels of pointer blocks below: 0 if the pointers lead to data.
    levels: u32,
    /// Logical block of the first pointer.
    base: u64,
    slots: Range<usize>,
    /// Logical blocks per pointer.
    span: u64,
}

impl Array {
    /// Unmaps the array's part of `range`. Returns `None` if all of it is unmapped, else the block
    /// down to which it is.
    fn remove<N: PointersMut>(
        &self,
        nodes: &mut N,
        range: &Range<u64>,
        how: &mut impl Removal<N>,
    ) -> Result<Option<u64>> {
        let count = (self.slots.end - self.slots.start) as u64;
        let low = (range.start.saturating_sub(self.base) / self.span).min(count) as usize;
        let high = range.end.saturating_sub(self.base).div_ceil(self.span).min(count) as usize;
        let mut rest = self.slots.start + low..self.slots.start + high;
        while let Some(last) = self.last(nodes, &rest)? {
            let (stopped, next) = match self.levels {
                0 => self.remove_run(nodes, rest.start..last.slot + 1, how)?,
                _ => (self.remove_below(nodes, last, range, how)?, last.slot),
            };
            if stopped.is_some() {
                return Ok(stopped);
            }
            rest.end = next;
        }
        Ok(None)
    }

    /// Returns the last pointer of the slots that is not zero.
    fn last<N: PointersMut>(&self, nodes: &N, slots: &Range<usize>) -> Result<Option<Pointer>> {
        let slots = slots.clone();
        nodes.view(self.at, |bytes| {
            let mut all = slots.rev().map(|slot| Pointer { slot, block: pointer(bytes, slot) });
            all.find(|found| found.block != 0)
        })
    }

    fn block_of(&self, slot: usize) -> u64 {
        self.base + (slot - self.slots.start) as u64 * self.span
    }

    /// Unmaps and frees the contiguous run that ends with the slots. Returns the run's first slot,
    /// and the block where the removal stopped, if it did.
    fn remove_run<N: PointersMut>(
        &self,
        nodes: &mut N,
        slots: Range<usize>,
        how: &mut impl Removal<N>,
    ) -> Result<(Option<u64>, usize)> {
        let start = nodes.view(self.at, |bytes| run_start(bytes, &slots))?;
        let len = (slots.end - start) as u32;
        let first = nodes.view(self.at, |bytes| pointer(bytes, start))?;
        if !how.may_free(nodes, first, len)? {
            return Ok((Some(self.block_of(slots.end)), start));
        }
        nodes.hold(self.at)?;
        let cleared = slots.end;
        nodes.step(|nodes| {
            how.uncharge(nodes, len)?;
            nodes
                .change(self.at, |bytes| (start..cleared).for_each(|n| put_pointer(bytes, n, 0)))?;
            how.free(nodes, first, len)
        })?;
        how.reached(self.block_of(start));
        Ok((None, start))
    }

    /// Unmaps the part of `range` below one pointer, and frees the pointer block if it is empty
    /// afterwards.
    fn remove_below<N: PointersMut>(
        &self,
        nodes: &mut N,
        Pointer { slot, block }: Pointer,
        range: &Range<u64>,
        how: &mut impl Removal<N>,
    ) -> Result<Option<u64>> {
        let (at, per_block) = (At::Block(block.into()), nodes.per_block() as usize);
        let span = self.span / per_block as u64;
        let child = Array {
            at,
            levels: self.levels - 1,
            base: self.block_of(slot),
            slots: 0..per_block,
            span,
        };
        if let Some(reached) = child.remove(nodes, range, how)? {
            return Ok(Some(reached));
        }
        if child.last(nodes, &child.slots)?.is_none() {
            // A removal that stops here must return to this pointer block, so one block counts as
            // mapped.
            how.reached(child.base.saturating_add(1));
            if !how.may_free(nodes, block, 1)? {
                return Ok(Some(child.base.saturating_add(self.span).min(range.end)));
            }
            nodes.hold(self.at)?;
            nodes.prepare_release(block)?;
            nodes.step(|nodes| {
                nodes.change(self.at, |bytes| put_pointer(bytes, slot, 0))?;
                nodes.release(block)
            })?;
            how.reached(child.base);
        }
        Ok(None)
    }
}

/// Returns the first slot of the run of ascending pointers that ends with the slots.
fn run_start(bytes: &[u8], slots: &Range<usize>) -> usize {
    let continues = |n: &usize| {
        pointer(bytes, *n) != 0 && pointer(bytes, *n).checked_add(1) == Some(pointer(bytes, n + 1))
    };
    let last = slots.end.saturating_sub(1);
    last - (slots.start..last).rev().take_while(continues).count()
}
