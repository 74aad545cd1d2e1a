//! Calls without the lock of the interpreter.

use crate::failure::{Failure, Result};
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

thread_local! {
    /// Whether this thread was asked whether it handles signals.
    static ASKED: Cell<bool> = const { Cell::new(false) };
    /// The exception of a signal's handler, such as `KeyboardInterrupt`, which ends the call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs `work` without the lock of the interpreter. Other threads of Python run meanwhile.
///
/// # Errors
/// The failure of `work`, or its panic, as an `extant.Error`; the exception of a signal's handler,
/// which ends long operations early.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    watch_signals(py)?;
    // After a panic the engine refuses changes; its own locks are without poison.
    let done = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    if let Some(raised) = RAISED.take() {
        return Err(raised);
    }
    match done {
        Ok(done) => done.map_err(|failure| failure.raise(py)),
        Err(panic) => Err(Failure::panicked(&*panic).raise(py)),
    }
}

/// Has long operations of the main thread ask now and then for signals, which Python handles there.
fn watch_signals(py: Python<'_>) -> PyResult<()> {
    if ASKED.replace(true) {
        return Ok(());
    }
    let threading = py.import("threading")?;
    let this = threading.call_method0("get_ident")?;
    if this.eq(threading.call_method0("main_thread")?.getattr("ident")?)? {
        extant::set_interrupt(Some(Arc::new(is_interrupted)));
    }
    Ok(())
}

/// Returns whether a handler of a signal raised an exception, which is kept.
fn is_interrupted() -> bool {
    Python::attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    })
}

/// Panics in a call, for a test of the border.
#[pyfunction]
#[pyo3(name = "_panic_in_call")]
pub(crate) fn panic_in_call(py: Python<'_>) -> PyResult<()> {
    detached(py, || std::panic::panic_any("asked for"))
}
