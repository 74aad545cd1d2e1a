//! An operation's part in the running transaction.

use crate::error::{Error, Result};
use crate::gate::Refused;
use crate::members::Members;
use crate::seal::Seal;
use crate::shared::Core;
use crate::stats::count;
use crate::tid::Tid;
use extant_blocks::{Buffer, BufferWrite};
use extant_sync::levels::{self, Entered};
use extant_sync::{Arc, Level, shard_index};
use std::thread::panicking;

/// An open handle: its changes become durable as a whole, together with the rest of its
/// transaction. It belongs to the thread that started it. Dropping the handle stops it. If a panic
/// drops it, the journal is aborted.
#[must_use]
pub struct Handle<'a> {
    core: &'a Arc<Core>,
    tid: Tid,
    /// The shard of the gate through which the handle entered.
    shard: usize,
    credits: u32,
    /// Number of possible changes.
    changes: u64,
    /// The thread was panicking before it started the handle.
    panicked: bool,
    /// `None` only while the handle is between two transactions.
    level: Option<Entered>,
}

impl<'a> Handle<'a> {
    pub(crate) fn start(core: &'a Arc<Core>, credits: u32) -> Result<Handle<'a>> {
        let shard = shard_index();
        let level = enter(core, shard, credits, Lacking::Fail)?;
        Ok(Handle::entered(core, shard, credits, level))
    }

    pub(crate) fn start_unless_locked(
        core: &'a Arc<Core>,
        credits: u32,
    ) -> Result<Option<Handle<'a>>> {
        let shard = shard_index();
        let may_wait = || !core.updates_are_locked();
        let level = enter_where(core, shard, credits, Lacking::Fail, may_wait)?;
        Ok(level.map(|level| Handle::entered(core, shard, credits, level)))
    }

    fn entered(core: &'a Arc<Core>, shard: usize, credits: u32, level: Entered) -> Handle<'a> {
        Handle {
            core,
            tid: core.running(),
            shard,
            credits,
            changes: 0,
            panicked: panicking(),
            level: Some(level),
        }
    }

    /// Returns the transaction.
    #[inline]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Returns how many more blocks this handle may join to the transaction.
    pub fn credits_left(&self) -> u32 {
        self.credits
    }

    /// Returns how often a change was made or begun through this handle. An operation that fails
    /// while this is unchanged has changed nothing.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Counts a change of a client's object whose block joined the transaction before.
    #[inline]
    pub fn note_change(&mut self) {
        self.changes += 1;
    }

    /// Joins the block to the transaction without changing its bytes: the client writes them when
    /// the transaction freezes. Costs a credit the first time in a transaction.
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

    /// Joins the block to the transaction and returns exclusive access to its bytes. `seal` is
    /// applied when the transaction freezes; [`Seal::NONE`] keeps an earlier one. Cancels a revoke
    /// of the block in this transaction. The handle must stay open until the access ends.
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

    /// Joins the block. The credit is paid first, so that the bound on the transaction holds at
    /// every moment.
    fn add(&mut self, buffer: &Arc<Buffer>, seal: Seal) -> Result<()> {
        let pays = buffer.tid() != self.tid.0;
        if pays {
            self.pay(1)?;
            // Must precede the block's visible membership: a thread that finds the block there
            // changes it without coming here, and a following sync must find that there is
            // something to commit.
            self.note_content();
        }
        let joined = self.core.members.add(self.tid, buffer, seal);
        if pays && !joined {
            self.credits += 1;
        }
        Ok(())
    }

    /// Notes that the transaction has content. The first change of a transaction arms the timer of
    /// its commit.
    fn note_content(&self) {
        if self.core.members.note_content() {
            self.core.control.arm(self.core.commit_interval);
        }
    }

    /// Revokes freed metadata blocks: they leave the transaction and the cache, and no older copy
    /// of them is replayed once the transaction is durable. Revoke records cost a credit for each
    /// block of the log that they fill.
    ///
    /// # Errors
    /// As [`Handle::join`]; nothing has changed then.
    pub fn revoke(&mut self, first: u64, count: u64) -> Result<()> {
        let core = self.core;
        let record = core.revokes_per_block();
        if let Some(per_block) = record {
            let (shard, members) = (self.shard, &core.members);
            // Each shard pays for its own records, so all shards together pay for at least as many
            // blocks as are needed.
            let before = members.promise_revokes(shard, count);
            self.pay(revoke_blocks(before, count, per_block))
                .inspect_err(|_| members.take_back(shard, count))?;
            self.note_content();
        }
        self.changes += 1;
        for nr in first..first.saturating_add(count) {
            // A block that joined has been paid for; its credit is returned to the handle.
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

    /// Requests `credits` more in the same transaction. Returns false if they do not fit; the
    /// caller may then use [`Handle::restart`].
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

    /// Leaves the transaction and enters one with space for `credits`, possibly the same. The
    /// changes so far must be consistent. The caller must hold no lock inward of a handle. Waits
    /// for a device without space, as long as that lasts.
    ///
    /// # Errors
    /// If the journal was aborted. The handle may then only be dropped.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        self.leave();
        // An operation is in the middle of its changes.
        let level = enter(self.core, self.shard, credits, Lacking::Wait)?;
        (self.tid, self.credits, self.level) = (self.core.running(), credits, Some(level));
        Ok(())
    }

    fn leave(&mut self) {
        if self.level.take().is_none() {
            return;
        }
        self.core.gate.leave(self.shard, std::mem::take(&mut self.credits));
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // The operation of a panicking thread may be incomplete. The transaction can be committed
        // once its last handle has left, so the journal is aborted before this one leaves.
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

/// The effect of a device without space on an entry that has to wait for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacking {
    /// The entry fails with [`Error::NoSpace`].
    Fail,
    /// The entry waits.
    Wait,
}

/// Enters the running transaction. Waits for a transaction being frozen, for credits and for log
/// space. The level is entered afterwards, since the caller may have to commit while it waits.
fn enter(core: &Arc<Core>, shard: usize, credits: u32, lacking: Lacking) -> Result<Entered> {
    enter_where(core, shard, credits, lacking, || true)?.ok_or_else(|| core.closed_error())
}

/// As [`enter`], but returns `None` if it would have to wait and `may_wait` returns false.
fn enter_where(
    core: &Arc<Core>,
    shard: usize,
    credits: u32,
    lacking: Lacking,
    may_wait: impl Fn() -> bool,
) -> Result<Option<Entered>> {
    levels::assert_may_take(Level::Handle);
    if credits > core.max_credits {
        return Err(Error::NoCredits { wanted: credits, available: core.max_credits });
    }
    let mut late = false;
    loop {
        // The epoch must be read before the attempt, so that a change after the attempt ends the
        // wait.
        let epoch = core.gate.epoch();
        match core.gate.try_enter(shard, credits) {
            Ok(()) => return Ok(Some(levels::enter(Level::Handle))),
            Err(Refused::Closed) => return Err(core.closed_error()),
            Err(_) if !may_wait() => return Ok(None),
            Err(Refused::Stopped) => {}
            Err(Refused::NoRoom) => {
                core.make_room(late);
                if lacking == Lacking::Fail
                    && let Some(error) = core.stall.any_error()
                {
                    // Other work may have made room all the same.
                    match core.gate.try_enter(shard, credits) {
                        Ok(()) => return Ok(Some(levels::enter(Level::Handle))),
                        Err(Refused::NoRoom) => return Err(error),
                        Err(Refused::Stopped | Refused::Closed) => {}
                    }
                }
            }
        }
        count(&core.counters.local().start_waits, 1);
        late = core.gate.wait_to_enter(credits, epoch);
    }
}

/// Returns how many more blocks revoke records fill when `count` records are added to `before`
/// others.
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
