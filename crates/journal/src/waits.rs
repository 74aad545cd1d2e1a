//! Waits for commits and for space in the log.

use crate::commit::{self, Outcome};
use crate::control::Waited;
use crate::error::Result;
use crate::passes;
use crate::shared::Core;
use crate::stall::Work;
use crate::stats::count;
use crate::tid::Tid;

impl Core {
    /// Asks for whatever lets a handle start that has no room. A pass of the checkpointer that
    /// comes too early for the transaction that is being committed is made up for by the one that
    /// its commit asks for. Where no thread is free for them, or none has come to it since the last
    /// attempt (`late`), the caller commits and checkpoints itself.
    pub fn make_room(&self, late: bool) {
        if self.deterministic {
            return self.make_room_now();
        }
        let (reserved, limit) = self.gate.reserved_and_limit();
        let late = self.stall.may_retry().unwrap_or(late);
        if reserved > 0 && (!self.ask_commit(self.running()) || late) {
            // Without a wait for one that another thread is at: its beginning makes room.
            if let Some(begun) = self.control.try_lead() {
                commit::attempt(self, begun);
            }
        }
        if let Some(logged) = &self.logged
            && limit < self.max_credits
            && (!logged.checkpoint.ask() || late)
        {
            passes::try_lead(self, logged);
        }
    }

    /// As [`Core::make_room`], but the space is available on return: commits and checkpoints are
    /// done here, so that the handle starts in the same transaction in each run. A failure closes
    /// the gate, which the caller checks next.
    fn make_room_now(&self) {
        if self.gate.reserved_and_limit().0 > 0 {
            let _ = self.wait(self.running());
        }
        if let Some(logged) = &self.logged
            && self.gate.reserved_and_limit().1 < self.max_credits
        {
            passes::wait_for_one(self, logged);
        }
    }

    /// Waits until `tid` is durable.
    ///
    /// # Errors
    /// A lack of space, after which the transaction still may become durable; those of a journal
    /// that is closed.
    pub fn wait(&self, tid: Tid) -> Result<()> {
        if self.control.durable() >= tid {
            return Ok(());
        }
        count(&self.counters.local().waits, 1);
        let tid = tid.min(self.running());
        let (mut first, mut tried) = (true, false);
        loop {
            let (waited, shared) = self.control.wait(tid, || self.running());
            if std::mem::take(&mut first) && shared {
                count(&self.counters.local().shared_waits, 1);
            }
            match waited {
                Waited::Durable => return Ok(()),
                Waited::Stopped => return Err(self.closed_error()),
                // The attempt of another thread may have begun before there was space.
                Waited::Stalled if !std::mem::replace(&mut tried, true) => continue,
                Waited::Stalled => {}
                Waited::Lead(begun) => match commit::attempt(self, begun) {
                    Outcome::Empty => return Ok(()),
                    Outcome::Durable | Outcome::Failed => continue,
                    Outcome::Stalled => {}
                },
            }
            // Unless another attempt has succeeded meanwhile.
            if let Some(error) = self.stall.error(Work::Commit) {
                return Err(error);
            }
        }
    }
}
