//! Parts of an open file system, which belong to the process that opened it.

use crate::failure::{Failure, Result};
use pyo3::prelude::*;
use std::process;

/// A part of an open file system.
///
/// A fork copies the memory of the engine without its threads, with its locks in any state. The
/// copy must neither be used, nor closed: it would write to the device that the parent still writes
/// to. So in another process each use is refused, and dropping it does nothing.
#[derive(Debug)]
pub(crate) struct Owned<T: Send> {
    /// `None` while it is dropped.
    value: Option<T>,
    pid: u32,
}

impl<T: Send> Owned<T> {
    /// Takes a value that this process has opened.
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned { value: Some(value), pid: process::id() }
    }

    /// Returns the value.
    pub(crate) fn get(&self) -> Result<&T> {
        self.check()?;
        self.value.as_ref().ok_or_else(closed)
    }

    /// Returns the value to change it.
    pub(crate) fn get_mut(&mut self) -> Result<&mut T> {
        self.check()?;
        self.value.as_mut().ok_or_else(closed)
    }

    /// Takes the value out.
    pub(crate) fn into_inner(mut self) -> Result<T> {
        self.check()?;
        self.value.take().ok_or_else(closed)
    }

    fn check(&self) -> Result<()> {
        if self.pid == process::id() {
            return Ok(());
        }
        Err(Failure::stale(format!(
            "the file system was opened by process {}; a forked process must open it anew",
            self.pid
        )))
    }
}

fn closed() -> Failure {
    Failure::stale("the object is closed")
}

impl<T: Send> Drop for Owned<T> {
    fn drop(&mut self) {
        let mut value = self.value.take();
        if self.pid != process::id() {
            std::mem::forget(value);
            return;
        }
        // The last handle of a file system unmounts it; other threads run meanwhile. Without an
        // interpreter, at its end, there is no lock to give up.
        Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}
