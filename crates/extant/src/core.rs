//! The state that all handles of one open file system share.

use crate::error::{Error, ErrorKind, Op, Result};
use crate::types::Recovery;
use extant_engine as engine;
use extant_engine::{Errno, Node, Operations};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// One open file system. It is unmounted by `unmount`, or when the last handle goes.
#[derive(Debug)]
pub(crate) struct Core {
    pub ops: Arc<Operations>,
    /// `None` once unmounted. Read-locked while a freeze lasts.
    mounted: RwLock<Option<engine::Fs>>,
    closed: AtomicBool,
    pub recovery: Recovery,
}

impl Core {
    pub fn new(fs: engine::Fs) -> Arc<Core> {
        let (ops, recovery) = (fs.operations().clone(), Recovery::of(fs.recovery()));
        let closed = AtomicBool::new(false);
        Arc::new(Core { ops, mounted: RwLock::new(Some(fs)), closed, recovery })
    }

    /// Gives an engine's error the call and the inode (0 for none).
    #[inline]
    pub fn done<T>(&self, op: Op, inode: u32, done: engine::Result<T>) -> Result<T> {
        done.map_err(|error| self.error(error, op, inode))
    }

    #[cold]
    fn error(&self, error: engine::Error, op: Op, inode: u32) -> Error {
        match error {
            // An unmount has shut the journal down under a call that had begun.
            engine::Error::Aborted(_) if self.is_closed() => {
                Error::of(engine::Error::Unmounted, op, inode)
            }
            error => Error::of(error, op, inode),
        }
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Verifies that a handle belongs to this file system.
    pub fn owns(self: &Arc<Self>, other: &Arc<Core>, op: Op) -> Result<()> {
        if Arc::ptr_eq(self, other) {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::ForeignHandle, Errno::Xdev, op))
        }
    }

    /// Runs `f` with the engine's file system, which stays mounted meanwhile.
    pub fn with_mounted<R>(
        &self,
        op: Op,
        f: impl FnOnce(&engine::Fs) -> engine::Result<R>,
    ) -> Result<R> {
        let mounted = self.mounted.read().unwrap_or_else(PoisonError::into_inner);
        match &*mounted {
            Some(fs) => self.done(op, 0, f(fs)),
            None => Err(Error::new(ErrorKind::Unmounted, Errno::Stale, op)),
        }
    }

    pub fn unmount(&self) -> Result<()> {
        // Only a freeze holds the lock for longer than a moment. Waiting for it would never end if
        // the caller is the one to thaw.
        let fs = match self.mounted.try_write() {
            Ok(mut mounted) => mounted.take(),
            Err(std::sync::TryLockError::Poisoned(e)) => e.into_inner().take(),
            Err(std::sync::TryLockError::WouldBlock) => {
                return Err(Error::new(ErrorKind::Busy, Errno::Busy, Op::Unmount));
            }
        };
        let Some(fs) = fs else {
            return Err(Error::new(ErrorKind::Unmounted, Errno::Stale, Op::Unmount));
        };
        self.closed.store(true, Ordering::Release);
        fs.unmount().map_err(|error| Error::of(error, Op::Unmount, 0))
    }
}

/// An inode number as the format has it: 32 bits.
pub(crate) fn number(node: &Node) -> u32 {
    node.ino() as u32
}
