//! Waits for commits and for space in the log.

use crate::commit::{self, Outcome};
use crate::control::Waited;
use crate::error::Result;
use crate::passes;
use crate::shared::Core;
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
    pub fn wait(&self, tid: Tid) -> Result<()> {
        if self.control.durable() >= tid {
            return Ok(());
        }
        count(&self.counters.local().waits, 1);
        let tid = tid.min(self.running());
        let mut first = true;
        loop {
            let (waited, shared) = self.control.wait(tid, || self.running());
            if std::mem::take(&mut first) && shared {
                count(&self.counters.local().shared_waits, 1);
            }
            match waited {
                Waited::Durable => return Ok(()),
                Waited::Stopped => return Err(self.closed_error()),
                Waited::Lead(begun) => {
                    if commit::attempt(self, begun) == Outcome::Empty {
                        return Ok(());
                    }
                }
            }
        }
    }
}
