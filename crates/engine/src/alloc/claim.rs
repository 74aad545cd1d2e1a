//! Blocks taken in memory.

use super::free_space::FreeSpace;
use super::prealloc::Prealloc;
use extant_format::types::BlockNr;
use std::sync::Arc;

/// Blocks taken in memory. Dropped without [`book`](super::Alloc::book), they go back; dropping
/// takes a group's lock.
#[derive(Debug)]
pub struct Claim {
    space: Arc<FreeSpace>,
    /// First block (cluster aligned on bigalloc).
    pub start: BlockNr,
    /// Blocks (whole clusters).
    pub len: u32,
    /// The preallocation that this was taken from, and its name there.
    of: Option<(Arc<Prealloc>, u32)>,
}

impl Claim {
    pub(super) fn new(space: Arc<FreeSpace>, start: BlockNr, len: u32) -> Claim {
        Claim { space, start, len, of: None }
    }

    /// Makes a claim of a part of a preallocation, which is informed when the claim ends.
    pub(super) fn of_prealloc(
        space: Arc<FreeSpace>,
        start: BlockNr,
        len: u32,
        file: Arc<Prealloc>,
        key: u32,
    ) -> Claim {
        Claim { space, start, len, of: Some((file, key)) }
    }

    /// The caller owns the space from here on.
    pub(super) fn into_parts(mut self) -> (BlockNr, u32) {
        (self.start, std::mem::take(&mut self.len))
    }

    /// Lets the place go and keeps the space: gives how many blocks are reserved instead, as by
    /// [`reserve`](super::Alloc::reserve).
    pub fn into_reservation(mut self) -> u32 {
        let len = std::mem::take(&mut self.len);
        if len > 0 { self.space.unplace(self.start, len) } else { 0 }
    }

    /// Takes the first `len` blocks, rounded up to whole clusters, off the claim as a claim of
    /// their own; all of them if there are not more.
    pub fn split(&mut self, len: u32) -> Claim {
        let front = self.front(len);
        let claim = Claim::new(self.space.clone(), self.start, front);
        self.advance(front);
        claim
    }

    /// Whether `next` follows on the device within the group, and neither comes from a
    /// preallocation.
    pub fn is_followed_by(&self, next: &Claim) -> bool {
        let group =
            |claim: &Claim| self.space.place(claim.start, claim.len).map(|(group, _)| group);
        let adjacent = self.start.0 + u64::from(self.len) == next.start.0;
        adjacent && self.of.is_none() && next.of.is_none() && group(self) == group(next)
    }

    /// Takes over an [adjacent](Self::is_followed_by) claim; another one is returned.
    pub fn join(&mut self, mut next: Claim) {
        if self.is_followed_by(&next) {
            self.len += std::mem::take(&mut next.len);
        }
    }

    /// How many blocks the first `len` blocks are in whole clusters.
    pub(super) fn front(&self, len: u32) -> u32 {
        len.checked_next_multiple_of(self.space.cluster_ratio()).unwrap_or(self.len).min(self.len)
    }

    /// Gives up the first `len` blocks, which have another owner now.
    pub(super) fn advance(&mut self, len: u32) {
        self.start.0 += u64::from(len);
        self.len -= len;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.len > 0 {
            self.space.give_back(self.start, self.len);
        }
        if let Some((file, key)) = self.of.take() {
            file.finish(key);
        }
    }
}
