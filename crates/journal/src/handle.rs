//! An operation's part in the running transaction.

use crate::client::Seal;
use crate::error::{Error, Result};
use crate::gate::Refused;
use crate::members::Members;
use crate::shared::Core;
use crate::stats::count;
use crate::tid::Tid;
use extant_blocks::{Buffer, BufferWrite};
use extant_sync::levels::{self, Entered};
use extant_sync::{Arc, Level, shard_index};
use std::thread::panicking;

/// An open handle: what is changed through it becomes durable as a whole, with everything else in
/// its transaction. It belongs to the thread that started it. Dropping it stops it; if a panic
/// drops it, the journal is aborted.
#[must_use]
pub struct Handle<'a> {
    core: &'a Arc<Core>,
    tid: Tid,
    /// The shard of threads by which it entered.
    shard: usize,
    credits: u32,
    /// Counts what may have been a change.
    changes: u64,
    sync: bool,
    /// The thread panicked before it started the handle.
    panicked: bool,
    /// `None` only while the handle is between two transactions.
    level: Option<Entered>,
}

impl<'a> Handle<'a> {
    pub(crate) fn start(core: &'a Arc<Core>, credits: u32) -> Result<Handle<'a>> {
        let (level, shard) = (enter(core, shard_index(), credits)?, shard_index());
        Ok(Handle::entered(core, shard, credits, level))
    }

    pub(crate) fn start_unless_locked(
        core: &'a Arc<Core>,
        credits: u32,
    ) -> Result<Option<Handle<'a>>> {
        let shard = shard_index();
        let level = enter_where(core, shard, credits, || !core.updates_are_locked())?;
        Ok(level.map(|level| Handle::entered(core, shard, credits, level)))
    }

    fn entered(core: &'a Arc<Core>, shard: usize, credits: u32, level: Entered) -> Handle<'a> {
        Handle {
            core,
            tid: core.running(),
            shard,
            credits,
            changes: 0,
            sync: false,
            panicked: panicking(),
            level: Some(level),
        }
    }

    /// The transaction.
    #[inline]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// How many more blocks this handle may bring into the transaction.
    pub fn credits_left(&self) -> u32 {
        self.credits
    }

    /// How often a change was made through this handle, or begun: an operation that fails while
    /// this stands still has changed nothing.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Counts a change of what the client keeps of a block that joined the transaction before.
    #[inline]
    pub fn note_change(&mut self) {
        self.changes += 1;
    }

    /// Makes the block part of the transaction, without changing its bytes: the client writes them
    /// when the transaction freezes. Costs a credit the first time in a transaction.
    ///
    /// # Errors
    /// [`Error::NoCredits`] if this handle has none left and the transaction is full.
    #[inline]
    pub fn join(&mut self, buffer: &Arc<Buffer>) -> Result<()> {
        self.note_change();
        self.enlist(buffer)
    }

    /// As [`Handle::join`], but counts no change: the client announces one, and makes it later or
    /// never.
    ///
    /// # Errors
    /// As [`Handle::join`].
    #[inline]
    pub fn enlist(&mut self, buffer: &Arc<Buffer>) -> Result<()> {
        if buffer.tid() == self.tid.0 { Ok(()) } else { self.add(buffer, Seal::NONE) }
    }

    /// Makes the block part of the transaction and gives exclusive access to its bytes. `seal` is
    /// applied when the transaction freezes; [`Seal::NONE`] leaves an earlier one in place. A
    /// revoke of the block in this transaction is taken back. The handle must stay open until the
    /// access ends.
    ///
    /// # Errors
    /// As [`Handle::join`].
    #[inline]
    pub fn write<'b>(&mut self, buffer: &'b Arc<Buffer>, seal: Seal) -> Result<BufferWrite<'b>> {
        self.note_change();
        if !Members::has(self.tid, buffer, seal) {
            self.add(buffer, seal)?;
        }
        Ok(buffer.write_unlogged())
    }

    /// Paid before the block joins, so that the bound on the transaction holds at every moment.
    fn add(&mut self, buffer: &Arc<Buffer>, seal: Seal) -> Result<()> {
        let pays = buffer.tid() != self.tid.0;
        if pays {
            self.pay(1)?;
            // Before the block is seen to be in: who finds it there changes it without coming here,
            // and a sync that follows has to find that there is something to commit.
            self.note_content();
        }
        let joined = self.core.members.add(self.tid, buffer, seal);
        if pays && !joined {
            self.credits += 1;
        }
        Ok(())
    }

    /// The first change of a transaction sees to it that it is committed before long.
    fn note_content(&self) {
        if self.core.members.note_content() {
            self.core.control.arm(self.core.commit_interval);
        }
    }

    /// Blocks of metadata were freed: they leave the transaction and the cache, and no older copy
    /// of them will be replayed once the transaction is durable. Records cost a credit per block of
    /// the log that they fill.
    ///
    /// # Errors
    /// As [`Handle::join`]; nothing has changed then.
    pub fn revoke(&mut self, first: u64, count: u64) -> Result<()> {
        let core = self.core;
        let record = core.revokes_per_block();
        if let Some(per_block) = record {
            let (shard, members) = (self.shard, &core.members);
            // Each shard pays for its own, so that together they pay for no less than is needed.
            let before = members.promise_revokes(shard, count);
            self.pay(revoke_blocks(before, count, per_block))
                .inspect_err(|_| members.take_back(shard, count))?;
            self.note_content();
        }
        self.changes += 1;
        for nr in first..first.saturating_add(count) {
            // A block that joined has paid; its credit is free for another.
            if core.members.revoke(nr, record.is_some()) {
                self.credits += 1;
            }
        }
        core.cache.forget(first, count);
        crate::stats::count(&core.counters.local().revokes, count);
        Ok(())
    }

    fn pay(&mut self, credits: u32) -> Result<()> {
        if let Some(left) = self.credits.checked_sub(credits) {
            self.credits = left;
            return Ok(());
        }
        let missing = credits - self.credits;
        if !self.core.gate.reserve(self.shard, missing) {
            return Err(Error::NoCredits { wanted: credits, available: self.credits });
        }
        count(&self.core.counters.local().overdrawn, u64::from(missing));
        self.credits = 0;
        Ok(())
    }

    /// Asks for `credits` more in the same transaction. False if they do not fit;
    /// [`Handle::restart`] then helps.
    ///
    /// # Errors
    /// If the journal was aborted.
    pub fn extend(&mut self, credits: u32) -> Result<bool> {
        self.core.check()?;
        let fits = self.core.gate.reserve(self.shard, credits);
        if fits {
            self.credits = self.credits.saturating_add(credits);
        }
        Ok(fits)
    }

    /// Ends this handle's part in its transaction and goes on in one that has room for `credits`,
    /// which may be the same one. What was changed must be consistent. No lock further inward than
    /// a handle may be held.
    ///
    /// # Errors
    /// If the journal was aborted; the handle may then only be dropped.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        self.leave();
        let level = enter(self.core, self.shard, credits)?;
        (self.tid, self.credits, self.level) = (self.core.running(), credits, Some(level));
        Ok(())
    }

    /// Asks for a commit of the transaction once this handle stops; it does not wait for it.
    pub fn sync_on_stop(&mut self) {
        self.sync = true;
    }

    fn leave(&mut self) {
        if self.level.take().is_none() {
            return;
        }
        self.core.gate.leave(self.shard, std::mem::take(&mut self.credits));
        if self.sync {
            self.core.ask_commit(self.tid);
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // An operation that panicked may be half-done. The transaction can be committed once its
        // last handle has left it, so it is stopped before.
        if panicking() && !self.panicked && self.level.is_some() {
            self.core.abort_of_panic("a thread panicked in the middle of a change");
        }
        self.leave();
    }
}

impl std::fmt::Debug for Handle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle")
            .field("tid", &self.tid)
            .field("credits", &self.credits)
            .finish_non_exhaustive()
    }
}

/// Enters the running transaction, waiting for locked transactions, credits and log space. The
/// level is entered afterwards, since the caller may have to commit on the way.
fn enter(core: &Arc<Core>, shard: usize, credits: u32) -> Result<Entered> {
    enter_where(core, shard, credits, || true)?.ok_or_else(|| core.closed_error())
}

/// As [`enter`]; gives nothing where it would have to wait and `may_wait` is false.
fn enter_where(
    core: &Arc<Core>,
    shard: usize,
    credits: u32,
    may_wait: impl Fn() -> bool,
) -> Result<Option<Entered>> {
    levels::assert_may_take(Level::Handle);
    if credits > core.max_credits {
        return Err(Error::NoCredits { wanted: credits, available: core.max_credits });
    }
    loop {
        let epoch = core.gate.epoch();
        match core.gate.try_enter(shard, credits) {
            Ok(()) => return Ok(Some(levels::enter(Level::Handle))),
            Err(Refused::Closed) => return Err(core.closed_error()),
            Err(_) if !may_wait() => return Ok(None),
            Err(Refused::Stopped) => {}
            Err(Refused::NoRoom) => core.make_room(),
        }
        count(&core.counters.local().start_waits, 1);
        core.gate.wait_to_enter(credits, epoch);
    }
}

/// How many more blocks revoke records fill when `count` join `before` others.
fn revoke_blocks(before: u64, count: u64, per_block: u32) -> u32 {
    let per_block = u64::from(per_block);
    let after = before.saturating_add(count).div_ceil(per_block);
    u32::try_from(after - before.div_ceil(per_block)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::revoke_blocks;

    #[test]
    fn revokes_are_paid_by_the_block() {
        assert_eq!(revoke_blocks(0, 1, 100), 1);
        assert_eq!(revoke_blocks(1, 99, 100), 0);
        assert_eq!(revoke_blocks(1, 100, 100), 1);
        assert_eq!(revoke_blocks(0, u64::MAX, 100), u32::MAX);
    }
}
