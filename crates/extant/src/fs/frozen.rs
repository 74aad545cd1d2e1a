//! Freezing, as a guard without a lifetime.

use crate::core::Core;
use crate::error::{Error, ErrorKind, Op, Result};
use extant_engine as engine;
use extant_engine::Errno;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// A frozen file system: no byte of its device changes, and the device holds a clean file system.
/// Calls that change something wait; calls that read go on, but reads of a file may wait with a
/// write to the same file. So the thread that thaws must not read files that others write
/// meanwhile. It thaws by [`Frozen::thaw`], or when this is dropped, by any thread.
/// [`Fs::unmount`](crate::Fs::unmount) fails meanwhile with [`Busy`](ErrorKind::Busy).
///
/// The lock belongs to a thread of its own, so that the guard may go to other threads.
#[derive(Debug)]
#[must_use = "the file system thaws when the guard is dropped"]
pub struct Frozen {
    // Dropping the sender tells the thread to thaw.
    hold: Option<Sender<()>>,
    thread: Option<JoinHandle<engine::Result<()>>>,
    core: Arc<Core>,
}

impl Frozen {
    pub(super) fn new(core: &Arc<Core>) -> Result<Frozen> {
        let (hold, held) = channel();
        let (tell, told) = channel();
        let mounted = core.clone();
        let thread = Builder::new()
            .name("extant-freeze".into())
            .spawn(move || freeze(&mounted, &tell, &held))
            .map_err(|error| core.done(Op::Freeze, 0, Err::<(), _>(error.into())).unwrap_err())?;
        let frozen = Frozen { hold: Some(hold), thread: Some(thread), core: core.clone() };
        match told.recv() {
            Ok(Ok(())) => Ok(frozen),
            Ok(Err(error)) => Err(error),
            // The thread panicked.
            Err(_) => Err(Error::new(ErrorKind::Other, Errno::Io, Op::Freeze)),
        }
    }

    /// Thaws the file system: changes go on. See [`Fs::freeze`](crate::Fs::freeze) for an example.
    ///
    /// # Errors
    /// `Device` if the superblock could not be marked as in use. Nothing can be changed any more
    /// then.
    pub fn thaw(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.hold = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        match thread.join() {
            Ok(done) => self.core.done(Op::Thaw, 0, done),
            Err(_) => Err(Error::new(ErrorKind::Other, Errno::Io, Op::Thaw)),
        }
    }
}

/// The thread of a guard: freezes, tells the outcome, waits for the guard to go, and thaws.
fn freeze(core: &Core, tell: &Sender<Result<()>>, held: &Receiver<()>) -> engine::Result<()> {
    let mut thawed = Ok(());
    let frozen = core.with_mounted(Op::Freeze, |fs| {
        let frozen = fs.freeze()?;
        // Neither end can be gone before the guard is.
        let _ = tell.send(Ok(()));
        let _ = held.recv();
        thawed = frozen.thaw();
        Ok(())
    });
    if let Err(error) = frozen {
        let _ = tell.send(Err(error));
    }
    thawed
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // `thaw` is for callers that handle the error.
        let _ = self.end();
    }
}
