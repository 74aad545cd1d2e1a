//! Open files.

use crate::call::{
    EINVAL, Failure, buffer, bytes, call, done, give, give_new, object, quietly, take, text,
};
use crate::fs::Fs;
use crate::options::refuse_unknown;
use crate::types::{Extent, Stat};
use extant::{Falloc, FileOptions};
use std::ffi::{c_char, c_int, c_void};

/// Allow changes of content. A file is open for reading in any case.
pub const EXTANT_WRITE: u32 = 1;
/// Send every write to the end of the file. Implies `EXTANT_WRITE`.
pub const EXTANT_APPEND: u32 = 2;
/// Cut the file to no bytes. Implies `EXTANT_WRITE`.
pub const EXTANT_TRUNCATE: u32 = 4;
/// Make the file if there is none. Implies `EXTANT_WRITE`.
pub const EXTANT_CREATE: u32 = 8;
/// Make the file, which must not be there. Implies `EXTANT_WRITE`.
pub const EXTANT_CREATE_NEW: u32 = 16;

/// Take space, and let the file grow.
pub const EXTANT_ALLOCATE: u32 = 0;
/// Take space, also behind the end of the file, which stays.
pub const EXTANT_ALLOCATE_KEEP_SIZE: u32 = 1;
/// Free space and leave a hole.
pub const EXTANT_PUNCH: u32 = 2;
/// Let the range read as zeroes.
pub const EXTANT_ZERO: u32 = 3;
/// As `EXTANT_ZERO`; the end of the file stays.
pub const EXTANT_ZERO_KEEP_SIZE: u32 = 4;
/// Remove the range; content behind it moves.
pub const EXTANT_COLLAPSE: u32 = 5;
/// Insert a hole; content behind it moves.
pub const EXTANT_INSERT: u32 = 6;

/// An open file. Any number of threads may use it at once.
pub struct File(extant::File);

/// Opens a file. `flags` are `EXTANT_WRITE` and others, or 0 to read. A new file belongs to root
/// and has permissions 0644.
///
/// # Safety
/// The file system is live, the path is text, `file` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_file_open(
    fs: *const Fs,
    path: *const c_char,
    flags: u32,
    file: *mut *mut File,
) -> c_int {
    const KNOWN: u32 =
        EXTANT_WRITE | EXTANT_APPEND | EXTANT_TRUNCATE | EXTANT_CREATE | EXTANT_CREATE_NEW;
    done(|| {
        refuse_unknown(flags, KNOWN)?;
        let has = |flag| flags & flag != 0;
        let options = FileOptions::new()
            .write(flags != 0)
            .append(has(EXTANT_APPEND))
            .truncate(has(EXTANT_TRUNCATE))
            .create(has(EXTANT_CREATE))
            .create_new(has(EXTANT_CREATE_NEW));
        // SAFETY: as the caller promises.
        unsafe {
            give_new(file, "file", || {
                Ok(File(object(fs, "fs")?.0.open_file_with(text(path, "path")?, &options)?))
            })
        }
    })
}

/// Closes a file and frees it; null is none. Changes are not lost, and not durable yet: see
/// `extant_file_sync`.
///
/// # Safety
/// `extant_file_open` gave it, and no thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_file_close(file: *mut File) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(file) }));
}

/// Reads bytes from an offset. Returns their number: less than `len` at the end of the file only.
///
/// # Safety
/// The file is live, the buffer has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_file_read(
    file: *const File,
    data: *mut c_void,
    len: usize,
    offset: u64,
) -> isize {
    // SAFETY: as the caller promises.
    call(|| unsafe {
        let mut rest = buffer(data, len)?;
        let (file, mut offset) = (&object(file, "file")?.0, offset);
        while !rest.is_empty() {
            let read = file.read_at(rest, offset)?;
            if read == 0 {
                break;
            }
            (rest, offset) = (&mut rest[read..], offset.saturating_add(read as u64));
        }
        Ok((len - rest.len()) as isize)
    })
}

/// Writes bytes at an offset, all of them or, after an error, a part. A file that was opened to
/// append takes them at its end.
///
/// # Safety
/// The file is live, the data has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_file_write(
    file: *const File,
    data: *const c_void,
    len: usize,
    offset: u64,
) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe { Ok(object(file, "file")?.0.write_all_at(bytes(data, len)?, offset)?) })
}

/// Tells the attributes of an open file, also of one without a name.
///
/// # Safety
/// The file is live, `stat` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_file_stat(file: *const File, stat: *mut Stat) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe {
        let metadata = object(file, "file")?.0.inode().metadata()?;
        give(stat, Stat::from(&metadata), "stat")
    })
}

/// Cuts a file to a length in bytes, or lets it grow with a hole.
///
/// # Safety
/// The file is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_file_truncate(file: *const File, len: u64) -> c_int {
    // SAFETY: as the caller promises.
    done(|| Ok(unsafe { object(file, "file") }?.0.set_len(len)?))
}

/// Changes the space of a range in bytes, as fallocate(2): `how` is `EXTANT_ALLOCATE` or another.
///
/// # Safety
/// The file is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_file_allocate(
    file: *const File,
    how: u32,
    offset: u64,
    len: u64,
) -> c_int {
    done(|| {
        let how = match how {
            EXTANT_ALLOCATE => Falloc::Allocate,
            EXTANT_ALLOCATE_KEEP_SIZE => Falloc::KeepSize,
            EXTANT_PUNCH => Falloc::Punch,
            EXTANT_ZERO => Falloc::Zero,
            EXTANT_ZERO_KEEP_SIZE => Falloc::ZeroKeepSize,
            EXTANT_COLLAPSE => Falloc::Collapse,
            EXTANT_INSERT => Falloc::Insert,
            how => return Err(Failure::new(EINVAL, format!("unknown change of space {how}"))),
        };
        // SAFETY: as the caller promises.
        Ok(unsafe { object(file, "file") }?.0.allocate(how, offset, len)?)
    })
}

/// Tells the parts of a file: writes at most `count` of them, from the first that ends behind
/// `offset`, and returns how many. Less than `count` are the last ones.
///
/// # Safety
/// The file is live, `extents` has `count` places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_file_extents(
    file: *const File,
    offset: u64,
    extents: *mut Extent,
    count: usize,
) -> isize {
    call(|| {
        // SAFETY: as the caller promises.
        let file = &unsafe { object(file, "file") }?.0;
        let mut given = 0;
        for extent in file.extents() {
            let extent = extent?;
            if extent.offset.saturating_add(extent.len) <= offset {
                continue;
            }
            if given == count {
                break;
            }
            let value = Extent {
                offset: extent.offset,
                len: extent.len,
                place: extent.place.unwrap_or(u64::MAX),
                unwritten: extent.unwritten.into(),
                is_inline: extent.inline.into(),
            };
            // SAFETY: `given` is less than the number of places.
            unsafe { give(extents.wrapping_add(given), value, "extents") }?;
            given += 1;
        }
        Ok(given as isize)
    })
}

/// Makes content and attributes of a file durable, and the names that lead to it.
///
/// # Safety
/// The file is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_file_sync(file: *const File) -> c_int {
    // SAFETY: as the caller promises.
    done(|| Ok(unsafe { object(file, "file") }?.0.sync()?))
}

/// As `extant_file_sync`, without attributes that are not needed to read the content.
///
/// # Safety
/// The file is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_file_sync_data(file: *const File) -> c_int {
    // SAFETY: as the caller promises.
    done(|| Ok(unsafe { object(file, "file") }?.0.sync_data()?))
}
