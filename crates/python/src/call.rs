//! Calls without the lock of the interpreter.

use crate::failure::{Failure, Result};
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work` without the lock of the interpreter. Other threads of Python run meanwhile. This one
/// runs no code in Python: handlers of signals and the collection of garbage might call the file
/// system whose locks `work` holds.
///
/// # Errors
/// The failure of `work`, or its panic, as an `extant.Error`.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    // The engine expects panics of callers' devices, so its state is valid after one.
    match py.detach(|| catch_unwind(AssertUnwindSafe(work))) {
        Ok(done) => done.map_err(|failure| failure.raise(py)),
        Err(panic) => Err(Failure::panicked(&*panic).raise(py)),
    }
}

/// Panics in a call, for a test of the border.
#[pyfunction]
#[pyo3(name = "_panic_in_call")]
pub(crate) fn panic_in_call(py: Python<'_>) -> PyResult<()> {
    detached(py, || std::panic::panic_any("asked for"))
}
