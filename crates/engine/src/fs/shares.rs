//! One bound on the memory for caches of many file systems.
//!
//! A [`MemoryPool`] of 256 MiB lends bytes to each file system of a runtime. A file system begins
//! with [`MIN_SHARE`]. When its caches have evicted an eighth of its share, its task asks for half
//! as much again. The pool lends bytes that are free, then those of idle file systems beyond their
//! minimum, then those of busy ones beyond the fair share: the bytes that are left beside the
//! minima of the idle, divided by the number of busy ones. A file system is busy if it was one of
//! those that asked in the last two rounds, that is in the last `2 * members` requests.
//!
//! For example, one reader has grown to the whole pool. A second one evicts, asks and gets bytes of
//! the first until both have 128 MiB. When the second one evicts no more, the first one's requests
//! make it idle, and take its bytes back down to the minimum.
//!
//! # Invariants
//! The shares together are at most the pool's bytes, as long as these are enough for the minima.
//!
//! # Locking
//! One lock (Leaf) for all shares, taken when a file system is opened or closed and by requests,
//! never by an operation. Each file system's own task resizes its caches, with no lock held. A file
//! system whose share was lowered keeps its bytes until its task has run.

use super::assemble::{CACHE_SHARE, PAGE_SHARE, VFS_SHARE};
use crate::ops::Operations;
use extant_sync::scheduler::{Lane, NextRun, TaskOwner};
use extant_sync::{Level, MemoryPressure, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The least share of a file system.
pub(super) const MIN_SHARE: u64 = 4 << 20;

/// A file system asks for memory when it has evicted this part of its share.
const PRESSURE_PART: u64 = 8;

/// Until dirty pages of a file system whose share was lowered are looked at again.
const WHILE_DIRTY: Duration = Duration::from_secs(1);

/// The memory that file systems share.
#[derive(Debug)]
pub(super) struct MemoryPool {
    total: u64,
    shares: Mutex<Shares>,
}

/// The shares of all file systems, by number.
#[derive(Debug, Default)]
struct Shares {
    requests: u64,
    next: u64,
    members: BTreeMap<u64, Share>,
}

#[derive(Debug, Default)]
struct Share {
    bytes: u64,
    /// The number of its last request, 0 for none.
    asked: u64,
    pressure: Arc<MemoryPressure>,
}

impl Shares {
    /// Raises the share of a member as far as the rule allows. Calls `lowered` for each member that
    /// gives bytes.
    fn ask(&mut self, total: u64, member: u64, mut lowered: impl FnMut(&Share)) {
        self.requests += 1;
        let now = self.requests;
        let Some(asker) = self.members.get_mut(&member) else { return };
        asker.asked = now;
        let mine = asker.bytes;
        let wanted = mine + (mine / 2).max(MIN_SHARE);
        let since = now.saturating_sub(2 * self.members.len() as u64);
        let is_busy = |share: &Share| share.asked > since;
        let busy = self.members.values().filter(|share| is_busy(share)).count() as u64;
        let minima = (self.members.len() as u64 - busy) * MIN_SHARE;
        let fair = (total.saturating_sub(minima) / busy.max(1)).max(MIN_SHARE);
        let lent: u64 = self.members.values().map(|share| share.bytes).sum();
        let mut bytes = wanted.min(mine + total.saturating_sub(lent));
        for (from_busy, keep, enough) in
            [(false, MIN_SHARE, wanted), (true, fair, wanted.min(fair))]
        {
            let others = self.members.iter_mut().filter(|(number, _)| **number != member);
            for (_, share) in others.filter(|(_, share)| is_busy(share) == from_busy) {
                let given = share.bytes.saturating_sub(keep).min(enough.saturating_sub(bytes));
                if given > 0 {
                    share.bytes -= given;
                    bytes += given;
                    lowered(share);
                }
            }
        }
        if let Some(asker) = self.members.get_mut(&member) {
            asker.bytes = bytes;
        }
    }

    /// Lends the minimum to a new member, and returns its number.
    fn join(
        &mut self,
        total: u64,
        pressure: Arc<MemoryPressure>,
        lowered: impl FnMut(&Share),
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        self.members.insert(number, Share { pressure, ..Share::default() });
        self.ask(total, number, lowered);
        if let Some(share) = self.members.get_mut(&number) {
            // Beyond the total if that is too small for the minima of all.
            share.bytes = share.bytes.max(MIN_SHARE);
            share.asked = 0;
        }
        number
    }
}

impl MemoryPool {
    pub fn new(total: u64) -> MemoryPool {
        MemoryPool { total, shares: Mutex::new(Level::Leaf, Shares::default()) }
    }

    /// The bytes for all file systems.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The bytes that are lent.
    pub fn lent(&self) -> u64 {
        self.shares.lock().members.values().map(|share| share.bytes).sum()
    }

    /// Changes the shares, and wakes the tasks of members that gave bytes.
    fn change<R>(&self, f: impl FnOnce(&mut Shares, &mut Vec<Arc<MemoryPressure>>) -> R) -> R {
        let mut lowered = Vec::new();
        let result = f(&mut self.shares.lock(), &mut lowered);
        lowered.iter().for_each(|pressure| pressure.bell().ring());
        result
    }

    fn ask(&self, member: u64) {
        self.change(|shares, lowered| {
            shares.ask(self.total, member, |share| lowered.push(share.pressure.clone()));
        });
    }

    fn bytes_of(&self, member: u64) -> u64 {
        self.shares.lock().members.get(&member).map_or(MIN_SHARE, |share| share.bytes)
    }
}

/// A file system's part in a pool, until this is dropped.
#[derive(Debug)]
pub(super) struct PoolMember {
    pool: Arc<MemoryPool>,
    number: u64,
    pressure: Arc<MemoryPressure>,
}

impl PoolMember {
    /// Bounds the caches of a file system by a share of the pool.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn join(
        pool: &Arc<MemoryPool>,
        ops: &Arc<Operations>,
        owner: &TaskOwner,
    ) -> std::io::Result<PoolMember> {
        owner.scheduler().start()?;
        let pressure = Arc::new(MemoryPressure::default());
        let number = pool.change(|shares, lowered| {
            shares.join(pool.total, pressure.clone(), |share| lowered.push(share.pressure.clone()))
        });
        let member = PoolMember { pool: pool.clone(), number, pressure: pressure.clone() };
        resize(ops, pool.bytes_of(number), &pressure);
        ops.st().pages.watch(pressure.clone());
        ops.st().cache.watch(pressure.clone());
        let (pool, ops, watched) = (pool.clone(), Arc::downgrade(ops), Arc::downgrade(&pressure));
        let task =
            owner.task(Lane::General, "memory", move || match (ops.upgrade(), watched.upgrade()) {
                (Some(ops), Some(pressure)) => adjust(&pool, number, &ops, &pressure),
                _ => NextRun::Never,
            });
        pressure.bell().set(task, Duration::ZERO);
        Ok(member)
    }
}

impl Drop for PoolMember {
    fn drop(&mut self) {
        self.pressure.bell().stop();
        self.pool.shares.lock().members.remove(&self.number);
    }
}

/// The task of a file system: asks for memory after evictions, and applies the share.
fn adjust(pool: &MemoryPool, number: u64, ops: &Operations, pressure: &MemoryPressure) -> NextRun {
    pressure.bell().begin();
    if pressure.is_high() {
        pool.ask(number);
    }
    resize(ops, pool.bytes_of(number), pressure);
    let st = ops.st();
    // Pages that are dirty or under writeback cannot be dropped yet.
    if st.pages.bytes() > st.pages.limit() && !st.is_written() {
        NextRun::After(WHILE_DIRTY)
    } else {
        NextRun::WhenWoken
    }
}

/// Divides a share among the caches. Evictions from now on count as pressure.
fn resize(ops: &Operations, bytes: u64, pressure: &MemoryPressure) {
    let st = ops.st();
    st.pages.set_limit(bytes / PAGE_SHARE);
    st.pages.shrink();
    st.cache.set_capacity(usize::try_from(bytes / CACHE_SHARE).unwrap_or(usize::MAX));
    ops.vfs.set_memory(bytes / VFS_SHARE);
    pressure.reset(bytes / PRESSURE_PART);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn join(shares: &mut Shares, total: u64) -> u64 {
        shares.join(total, Arc::default(), |_| ())
    }

    fn bytes(shares: &Shares) -> Vec<u64> {
        shares.members.values().map(|share| share.bytes).collect()
    }

    fn sum(shares: &Shares) -> u64 {
        bytes(shares).iter().sum()
    }

    #[test]
    fn one_busy_member_gets_all_but_the_minima() {
        let mut shares = Shares::default();
        let members: Vec<u64> = (0..10).map(|_| join(&mut shares, 64 * MIB)).collect();
        for _ in 0..40 {
            shares.ask(64 * MIB, members[3], |_| ());
        }
        let expected = 64 * MIB - 9 * MIN_SHARE;
        assert_eq!(shares.members[&members[3]].bytes, expected);
        assert!(bytes(&shares).iter().filter(|&&share| share == MIN_SHARE).count() == 9);
    }

    #[test]
    fn busy_members_come_to_equal_shares() {
        let total = 1024 * MIB;
        let mut shares = Shares::default();
        let members: Vec<u64> = (0..50).map(|_| join(&mut shares, total)).collect();
        for _ in 0..100 {
            shares.ask(total, members[0], |_| ());
        }
        for _ in 0..40 {
            for &member in &members {
                shares.ask(total, member, |_| ());
                assert!(sum(&shares) <= total, "the bound holds");
            }
        }
        let (fair, shares) = (total / 50, bytes(&shares));
        assert!(shares.iter().all(|&share| share.abs_diff(fair) < MIB), "{shares:?}");
    }

    #[test]
    fn a_member_that_became_idle_gives_its_share_back() {
        let total = 64 * MIB;
        let mut shares = Shares::default();
        let (one, other) = (join(&mut shares, total), join(&mut shares, total));
        for _ in 0..20 {
            shares.ask(total, one, |_| ());
            shares.ask(total, other, |_| ());
        }
        assert_eq!(shares.members[&other].bytes, total / 2);
        let mut lowered = 0;
        for _ in 0..20 {
            shares.ask(total, one, |_| lowered += 1);
        }
        assert!(lowered > 0, "the giver is told");
        assert_eq!(bytes(&shares), [total - MIN_SHARE, MIN_SHARE]);
    }

    #[test]
    fn each_has_its_minimum_in_a_pool_that_is_too_small() {
        let total = 8 * MIB;
        let mut shares = Shares::default();
        let members: Vec<u64> = (0..20).map(|_| join(&mut shares, total)).collect();
        members.iter().for_each(|&member| shares.ask(total, member, |_| ()));
        assert!(bytes(&shares).iter().all(|&share| share == MIN_SHARE), "{:?}", bytes(&shares));
    }
}
