//! Devices of the caller: functions in C that read and write.

use crate::call::{EINVAL, Failure, Result, object};
use extant::device::{BlockDevice, DeviceError, Op};
use std::ffi::{c_int, c_void};
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// A device of the caller. Any number of threads call its functions at once. Each returns 0, or an
/// errno as a positive number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Device {
    /// The first argument of each function.
    pub user: *mut c_void,
    /// Length in bytes.
    pub len: u64,
    /// 1 if writes are refused.
    pub read_only: u32,
    /// Fills a buffer with bytes from an offset, all of them.
    pub read: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            data: *mut c_void,
            len: usize,
            offset: u64,
        ) -> c_int,
    >,
    /// Writes bytes at an offset, all of them. Null if writes are refused.
    pub write: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            data: *const c_void,
            len: usize,
            offset: u64,
        ) -> c_int,
    >,
    /// Makes all writes durable that have returned. Null if writes are refused.
    pub flush: Option<unsafe extern "C" fn(user: *mut c_void) -> c_int>,
    /// Bytes that are no longer used, whose content may be lost. May be null.
    pub discard: Option<unsafe extern "C" fn(user: *mut c_void, offset: u64, len: u64) -> c_int>,
    /// Is called once, when nothing uses the device any more, also if it could not be opened. May
    /// be null.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

struct Foreign(Device);

// SAFETY: the caller promises that all threads may call the functions at once.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

/// Takes a device of the caller, which is released if it lacks a function.
///
/// # Safety
/// The pointer is null, or to a device whose functions fulfil their descriptions.
pub(crate) unsafe fn take_device(device: *const Device) -> Result<Arc<dyn BlockDevice>> {
    // SAFETY: as the caller promises.
    let device = Foreign(*unsafe { object(device, "device") }?);
    let needed = [
        (device.0.read.is_some(), "read"),
        (device.0.read_only != 0 || device.0.write.is_some(), "write"),
        (device.0.read_only != 0 || device.0.flush.is_some(), "flush"),
    ];
    match needed.iter().find(|(is_there, _)| !is_there) {
        None => Ok(Arc::new(device)),
        Some((_, name)) => Err(Failure::new(EINVAL, format!("the device has no function {name}"))),
    }
}

impl Foreign {
    /// Calls a function of the device for a range within it.
    fn request(
        &self,
        (op, offset, len): (Op, u64, u64),
        function: impl FnOnce() -> io::Result<c_int>,
    ) -> io::Result<()> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.0.len);
        let outside =
            if op == Op::Read { ErrorKind::UnexpectedEof } else { ErrorKind::InvalidInput };
        let cause = match if is_inside { function() } else { Err(outside.into()) } {
            Ok(0) => return Ok(()),
            // Also from functions that have this library's own habit.
            Ok(errno) => io::Error::from_raw_os_error(errno.saturating_abs()),
            Err(cause) => cause,
        };
        Err(DeviceError { op, device: self.name(), offset, len, cause }.into())
    }

    /// Returns a function that changes the device.
    fn change<T>(&self, function: Option<T>) -> io::Result<T> {
        match (self.read_only(), function) {
            (true, _) => Err(ErrorKind::ReadOnlyFilesystem.into()),
            (false, function) => function.ok_or(ErrorKind::Unsupported.into()),
        }
    }
}

impl BlockDevice for Foreign {
    fn len(&self) -> u64 {
        self.0.len
    }

    fn name(&self) -> String {
        "device of the caller".into()
    }

    fn read_only(&self) -> bool {
        self.0.read_only != 0
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.request((Op::Read, offset, buf.len() as u64), || {
            let read = self.0.read.ok_or(ErrorKind::Unsupported)?;
            // SAFETY: as the device promises; the buffer is ours for the call.
            Ok(unsafe { read(self.0.user, buf.as_mut_ptr().cast(), buf.len(), offset) })
        })
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.request((Op::Write, offset, data.len() as u64), || {
            let write = self.change(self.0.write)?;
            // SAFETY: as the device promises; the data stays for the call.
            Ok(unsafe { write(self.0.user, data.as_ptr().cast(), data.len(), offset) })
        })
    }

    fn flush(&self) -> io::Result<()> {
        // SAFETY: as the device promises.
        let flush = || Ok(self.0.flush.map_or(0, |flush| unsafe { flush(self.0.user) }));
        self.request((Op::Flush, 0, 0), flush)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.request((Op::Discard, offset, len), || {
            let discard = self.change(self.0.discard)?;
            // SAFETY: as the device promises.
            Ok(unsafe { discard(self.0.user, offset, len) })
        })
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: as the device promises; this is the last use.
            unsafe { release(self.0.user) };
        }
    }
}

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device of the caller of {} bytes", self.0.len)
    }
}
