//! Blocks claimed ahead of a growing file, so that writes that follow each other lie next to each other on the device.
//!
//! # Invariants
//! - A window is a claim for the logical blocks from `lblk` on, none of which was mapped when it was made. Where blocks
//!   were mapped since by other means, the window is not asked, and its part goes back with the rest.
//! - Windows start at clusters' starts.

use super::map;
use super::space::Want;
use crate::alloc::Claim;
use crate::inode::{Inode, Work};
use crate::store::Store;
use std::sync::Arc;

/// Windows of one file; the oldest goes.
const MAX_WINDOWS: usize = 32;

/// Largest window in bytes.
const MAX_BYTES: u64 = 8 << 20;

#[derive(Debug)]
struct Window {
    lblk: u32,
    claim: Claim,
}

#[derive(Debug, Default)]
struct Windows(Vec<Window>);

fn windows(work: &mut Work) -> Option<&mut Windows> {
    work.as_mut()?.downcast_mut::<Windows>()
}

fn add(work: &mut Work, lblk: u32, claim: Claim) {
    if claim.len == 0 {
        return;
    }
    if windows(work).is_none() {
        *work = Some(Box::new(Windows::default()));
    }
    if let Some(Windows(list)) = windows(work) {
        if list.len() >= MAX_WINDOWS {
            list.remove(0);
        }
        list.push(Window { lblk, claim });
    }
}

/// Up to `len` claimed blocks for the logical blocks from `lblk` on, if a window has them. Both are multiples of a
/// cluster.
pub(super) fn take(work: &mut Work, lblk: u32, len: u32) -> Option<Claim> {
    let Windows(list) = windows(work)?;
    let at = list.iter().position(|w| lblk >= w.lblk && lblk - w.lblk < w.claim.len)?;
    let Window { lblk: start, mut claim } = list.remove(at);
    if lblk > start {
        let before = claim.split(lblk - start);
        add(work, start, before);
    }
    let taken = claim.split(len.min(claim.len));
    add(work, lblk.saturating_add(taken.len), claim);
    Some(taken)
}

/// Keeps what `claim` has beyond the need; gives the needed part.
pub(super) fn keep_rest(work: &mut Work, want: Want, mut claim: Claim) -> Claim {
    if claim.len <= want.need {
        return claim;
    }
    let needed = claim.split(want.need);
    add(work, want.lblk.saturating_add(want.need), claim);
    needed
}

/// Drops all windows of the inode whose `work` it is; true if there were any.
pub(super) fn clear(st: &Store, inode: &Inode, work: &mut Work) -> bool {
    st.pool.forget_ahead(inode);
    work.take().is_some()
}

/// Gives everything claimed ahead back.
pub(super) fn release(st: &Store, inode: &Arc<Inode>) {
    if inode.pages.holds_ahead() {
        clear(st, inode, &mut inode.pages.work.lock());
    }
}

/// Blocks worth claiming behind `end` (a block number) of a file that grows to `size` bytes and had `old` before: up to
/// the next power of two of the size, or of the largest window.
pub(super) fn extra(st: &Store, end: u32, size: u64, old: u64) -> u32 {
    let target = if old == 0 { size } else { size.saturating_add(1) };
    let window = target.checked_next_power_of_two().unwrap_or(MAX_BYTES).clamp(1, MAX_BYTES);
    let window = window.max(st.geo.block_size.into());
    let end_byte = map::byte(st, end);
    let rounded = end_byte.div_ceil(window).saturating_mul(window);
    let extra = (rounded - end_byte.min(rounded)) >> st.geo.block_bits;
    let mask = u64::from(st.geo.cluster_ratio()) - 1;
    u32::try_from(extra & !mask).unwrap_or(0).min(map::END - end)
}
