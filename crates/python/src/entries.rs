//! Entries of a directory, in parts.

use crate::call::detached;
use crate::owned::Owned;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Mutex, PoisonError};

/// Entries that one call returns.
const BATCH: usize = 1024;

/// A reader of a directory.
#[pyclass(frozen, module = "extant._extant")]
pub(crate) struct Entries(Mutex<Owned<extant::Entries>>);

impl Entries {
    pub(crate) fn new(entries: extant::Entries) -> Entries {
        Entries(Mutex::new(Owned::new(entries)))
    }
}

#[pymethods]
impl Entries {
    /// Returns the next entries: name, inode number, and type as the bits of `st_mode`, 0 where the
    /// directory keeps none. An empty list is the end.
    fn next_batch<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyBytes>, u32, u16)>> {
        let batch = detached(py, || {
            let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let entries = entries.get_mut()?.take(BATCH);
            Ok(entries.collect::<extant::Result<Vec<_>>>()?)
        })?;
        let entries = batch.into_iter().map(|entry| {
            let name = PyBytes::new(py, &entry.name);
            (name, entry.inode, entry.file_type.to_mode())
        });
        Ok(entries.collect())
    }
}
