//! The native part of the Python package `extant`.
//!
//! The modules in `python/extant` have the interface that programs see. They encode paths as bytes
//! and make Python's own file objects over `file::File`. This crate has the calls below them.
//!
//! # Invariants
//! - Each call that may wait for a device or a lock runs in `call::detached`, without the lock of
//!   the interpreter. So a thread that has this lock never waits for the engine, and the engine's
//!   jobs never need it. No code in Python runs within such a call.
//! - A panic below ends as an `extant.Error`, not as a `PanicException`.
//! - Objects do nothing in a forked process, not even when they are dropped (`owned`).
#![forbid(unsafe_code)]

mod build;
mod call;
mod check;
mod entries;
mod failure;
mod file;
mod image;
mod make;
mod owned;
mod volume;

use pyo3::prelude::*;
use pyo3::wrap_pyfunction;

/// The native part of the package `extant`, without an interface of its own.
#[pymodule]
fn _extant(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<volume::Volume>()?;
    module.add_class::<volume::Freeze>()?;
    module.add_class::<file::File>()?;
    module.add_class::<entries::Entries>()?;
    module.add_function(wrap_pyfunction!(volume::open_volume, module)?)?;
    module.add_function(wrap_pyfunction!(check::check, module)?)?;
    module.add_function(wrap_pyfunction!(make::mkfs, module)?)?;
    module.add_function(wrap_pyfunction!(make::parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(build::build, module)?)?;
    module.add_function(wrap_pyfunction!(call::panic_in_call, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
