//! An open file with a position, as `io.RawIOBase` needs it.

use crate::call::detached;
use crate::failure::Result;
use crate::owned::Owned;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open file. Closing it while another thread reads or writes lets that call end first.
#[pyclass(frozen, module = "extant._extant")]
pub(crate) struct File {
    /// `None` once closed. Locked for moments only.
    file: Mutex<Option<Arc<Owned<extant::File>>>>,
    /// Locked while a call reads or writes at it, without the lock of the interpreter.
    position: Mutex<u64>,
    appends: bool,
}

impl File {
    /// Takes an open file. A position at the end is that of files that are opened to append.
    pub(crate) fn new(file: extant::File, appends: bool) -> File {
        let position = if appends { file.len() } else { 0 };
        let file = Mutex::new(Some(Arc::new(Owned::new(file))));
        File { file, position: Mutex::new(position), appends }
    }

    fn open(&self) -> PyResult<Arc<Owned<extant::File>>> {
        let file = lock(&self.file).clone();
        file.ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }

    /// Runs `work` with the file and its position.
    fn with_position<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&extant::File, &mut u64) -> Result<T> + Send,
    ) -> PyResult<T> {
        let file = self.open()?;
        detached(py, || work(file.get()?, &mut lock(&self.position)))
    }
}

#[pymethods]
impl File {
    /// Reads at most `size` bytes at the position, or all behind it if `size` is negative.
    fn read<'py>(&self, py: Python<'py>, size: i64) -> PyResult<Bound<'py, PyBytes>> {
        let left = self.with_position(py, |file, at| Ok(file.len().saturating_sub(*at)))?;
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        read_bytes(py, left.min(size), |buf| {
            self.with_position(py, |file, at| {
                let read = file.read_at(buf, *at)?;
                *at += read as u64;
                Ok(read)
            })
        })
    }

    /// Reads at most `size` bytes at an offset.
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        size: u64,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.open()?;
        let left = detached(py, || Ok(file.get()?.len().saturating_sub(offset)))?;
        read_bytes(py, left.min(size), |buf| {
            detached(py, || Ok(file.get()?.read_at(buf, offset)?))
        })
    }

    /// Writes all of `data` at the position, or at the end of a file that was opened to append.
    fn write(&self, py: Python<'_>, data: PyBackedBytes) -> PyResult<usize> {
        let data: &[u8] = &data;
        self.with_position(py, |file, at| {
            file.write_all_at(data, *at)?;
            *at = if self.appends { file.len() } else { at.saturating_add(data.len() as u64) };
            Ok(data.len())
        })
    }

    /// Sets the position: `whence` as io.SEEK_SET, SEEK_CUR and SEEK_END.
    fn seek(&self, py: Python<'_>, offset: i64, whence: u8) -> PyResult<u64> {
        let at = self.with_position(py, |file, at| {
            let new = match whence {
                0 => u64::try_from(offset).ok(),
                1 => at.checked_add_signed(offset),
                2 => file.len().checked_add_signed(offset),
                _ => None,
            };
            // Offsets of Python and of the kernel are signed.
            let new = new.filter(|new| i64::try_from(*new).is_ok());
            *at = new.unwrap_or(*at);
            Ok(new)
        })?;
        at.ok_or_else(|| PyValueError::new_err(format!("invalid seek: {offset} from {whence}")))
    }

    /// Returns the position.
    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.with_position(py, |_, at| Ok(*at))
    }

    /// Cuts the file to a length, or lets it grow with a hole.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.with_position(py, |file, _| Ok(file.set_len(size)?))
    }

    /// Makes content and attributes durable, or content alone.
    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        let file = self.open()?;
        detached(py, || {
            let file = file.get()?;
            let done = if data_only { file.sync_data() } else { file.sync() };
            Ok(done?)
        })
    }

    /// Length in bytes.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.open()?;
        detached(py, || Ok(file.get()?.len()))
    }

    /// Closes the file; without effect on a closed one.
    fn close(&self) {
        let file = lock(&self.file).take();
        // Without the lock: this may free the space of a removed file, and lets other threads run.
        drop(file);
    }
}

/// Reads a whole file.
pub(crate) fn read_all(py: Python<'_>, file: extant::File) -> PyResult<Bound<'_, PyBytes>> {
    let file = Owned::new(file);
    let size = detached(py, || Ok(file.get()?.len()))?;
    read_bytes(py, size, |buf| detached(py, || Ok(file.get()?.read_at(buf, 0)?)))
}

/// Makes `bytes` of a size, and cuts them to the number that `read` fills.
fn read_bytes<'py>(
    py: Python<'py>,
    size: u64,
    read: impl FnOnce(&mut [u8]) -> PyResult<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let size = usize::try_from(size).unwrap_or(usize::MAX).min(isize::MAX as usize - 4096);
    let mut len = 0;
    let bytes = PyBytes::new_with(py, size, |buf| {
        len = read(buf)?;
        Ok(())
    })?;
    if len == size {
        return Ok(bytes);
    }
    // The file became shorter meanwhile, or another thread moved the position.
    Ok(PyBytes::new(py, bytes.as_bytes().get(..len).unwrap_or_default()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
