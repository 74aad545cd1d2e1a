//! The border itself: arguments that are looked at, errors, panics.

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

pub(crate) const EIO: c_int = 5;
pub(crate) const EINVAL: c_int = 22;
pub(crate) const ERANGE: c_int = 34;
pub(crate) const EUCLEAN: c_int = 117;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// A failed call.
pub(crate) struct Failure {
    errno: c_int,
    text: String,
}

impl Failure {
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Failure {
        Failure { errno, text: text.into() }
    }

    fn null(name: &str) -> Failure {
        Failure::new(EINVAL, format!("{name} is a null pointer: pass an object"))
    }
}

impl From<extant::Error> for Failure {
    fn from(error: extant::Error) -> Failure {
        Failure::new(error.errno(), error.to_string())
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Runs the body of a call. Returns its result, or a negative errno, with the reason kept for
/// [`extant_error`].
pub(crate) fn call(body: impl FnOnce() -> Result<isize>) -> isize {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(result)) => return result,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(EIO, "a fault in the library: please report it"),
    };
    let text = failure.text.replace('\0', "\u{fffd}");
    MESSAGE.with(|message| *message.borrow_mut() = CString::new(text).unwrap_or_default());
    // Each error has a number, so that no failure looks like a success.
    -(failure.errno.max(1) as isize)
}

/// As [`call`], for calls without a result.
pub(crate) fn done(body: impl FnOnce() -> Result<()>) -> c_int {
    call(|| body().map(|()| 0)) as c_int
}

/// As [`done`], for calls that free an object: they tell nothing.
pub(crate) fn quietly(body: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(body));
}

/// Returns the message of the last call that failed on this thread, empty if none did. It is valid
/// until another call fails on this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn extant_error() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn extant_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Looks at an object of the caller.
///
/// # Safety
/// The pointer is null, or to a live object that nothing changes meanwhile.
pub(crate) unsafe fn object<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::null(name))
}

/// Looks at an object that one thread uses at a time.
///
/// # Safety
/// The pointer is null, or to a live object that nothing else uses meanwhile.
pub(crate) unsafe fn object_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::null(name))
}

/// Looks at text that ends with a zero byte.
///
/// # Safety
/// The pointer is null, or to such text, which nothing changes meanwhile.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a [u8]> {
    // SAFETY: as the caller promises.
    unsafe { optional_text(text) }.ok_or_else(|| Failure::null(name))
}

/// Looks at text that may be absent.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: as the caller promises.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Looks at the path of a file on the host.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn host_path<'a>(path: *const c_char) -> Result<&'a Path> {
    // SAFETY: as the caller promises.
    Ok(Path::new(OsStr::from_bytes(unsafe { text(path, "path") }?)))
}

/// Looks at bytes to be read; a null pointer is right for none.
///
/// # Safety
/// The pointer is to so many bytes, which nothing changes meanwhile.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    check_buffer(data.is_null(), len)?;
    // SAFETY: as the caller promises, and looked at above.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// Looks at bytes to be filled; a null pointer is right for none.
///
/// # Safety
/// The pointer is to so many bytes, which nothing else uses meanwhile.
pub(crate) unsafe fn buffer<'a>(data: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check_buffer(data.is_null(), len)?;
    // SAFETY: as the caller promises, and looked at above.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
}

fn check_buffer(is_null: bool, len: usize) -> Result<()> {
    match (is_null, isize::try_from(len)) {
        (true, _) => Err(Failure::null("the buffer")),
        (false, Err(_)) => Err(Failure::new(EINVAL, format!("{len} bytes: no buffer is so long"))),
        (false, Ok(_)) => Ok(()),
    }
}

/// Gives a value to the caller, at a place that may hold anything so far.
///
/// # Safety
/// The pointer is null, or to a place for the value.
pub(crate) unsafe fn give<T>(place: *mut T, value: T, name: &str) -> Result<()> {
    if place.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: as the caller promises.
    unsafe { place.write(value) };
    Ok(())
}

/// Gives a new object to the caller. The place is looked at first, as the object may be the result
/// of work that would be lost.
///
/// # Safety
/// As [`give`].
pub(crate) unsafe fn give_new<T>(
    place: *mut *mut T,
    name: &str,
    make: impl FnOnce() -> Result<T>,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { give(place, std::ptr::null_mut(), name) }?;
    let object = Box::into_raw(Box::new(make()?));
    // SAFETY: as the caller promises.
    unsafe { give(place, object, name) }
}

/// Takes an object back, unless the pointer is null.
///
/// # Safety
/// [`give_new`] gave the pointer, and nothing uses it any more.
pub(crate) unsafe fn take<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: as the caller promises.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

/// Copies a value into a buffer as readlink(2) and getxattr(2) do: a length of 0 asks for the
/// length of the value.
///
/// # Safety
/// As [`buffer`].
pub(crate) unsafe fn fill(value: &[u8], data: *mut c_void, len: usize) -> Result<isize> {
    if len > 0 {
        if len < value.len() {
            let text = format!("the value has {} bytes, the buffer {len}", value.len());
            return Err(Failure::new(ERANGE, text));
        }
        // SAFETY: as the caller promises.
        unsafe { buffer(data, len) }?[..value.len()].copy_from_slice(value);
    }
    Ok(value.len() as isize)
}
