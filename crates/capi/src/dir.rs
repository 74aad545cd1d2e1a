//! Entries of directories, and walks.

use crate::call::{
    EUCLEAN, Failure, Result, call, done, give, give_new, object, object_mut, quietly, take, text,
};
use crate::fs::Fs;
use crate::types::Entry;
use extant::{DirEntry, Entries, FileType};
use std::ffi::{CString, c_char, c_int};

/// The entries of a directory, or of a tree. One thread uses it at a time.
pub struct Dir {
    items: Items,
    /// The name of the last entry, which the caller may look at.
    name: CString,
}

enum Items {
    Entries(Entries),
    Walk(extant::Walk),
}

/// Opens a directory for `extant_dir_next`.
///
/// # Safety
/// The file system is live, the path is text, `dir` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_dir_open(
    fs: *const Fs,
    path: *const c_char,
    dir: *mut *mut Dir,
) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe {
        give_new(dir, "dir", || {
            let opened = object(fs, "fs")?.0.open_dir(text(path, "path")?)?;
            Ok(Dir { items: Items::Entries(opened.entries()), name: CString::default() })
        })
    })
}

/// Begins a walk through all entries below a directory, each directory before its entries, for
/// `extant_dir_next`. Names are paths then. Symlinks are not followed.
///
/// # Safety
/// As `extant_dir_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_walk_open(
    fs: *const Fs,
    path: *const c_char,
    dir: *mut *mut Dir,
) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe {
        give_new(dir, "dir", || {
            let walk = object(fs, "fs")?.0.walk(text(path, "path")?)?;
            Ok(Dir { items: Items::Walk(walk), name: CString::default() })
        })
    })
}

/// Gives the next entry, and returns 1, or 0 behind the last one. "." and ".." are left out. The
/// name is valid until the next call for the same directory. After an error the next call goes on
/// behind it.
///
/// # Safety
/// The directory is live, and nothing else uses it; `entry` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_dir_next(dir: *mut Dir, entry: *mut Entry) -> c_int {
    call(|| {
        // SAFETY: as the caller promises.
        let dir = unsafe { object_mut(dir, "dir") }?;
        let Some((name, found, depth)) = dir.items.next()? else { return Ok(0) };
        dir.name = CString::new(name).map_err(|_| {
            Failure::new(EUCLEAN, format!("a name of inode {} has a zero byte", found.inode))
        })?;
        let value = Entry {
            name: dir.name.as_ptr(),
            name_len: dir.name.as_bytes().len(),
            inode: found.inode,
            file_type: file_type(found.file_type),
            depth,
        };
        // SAFETY: as the caller promises.
        unsafe { give(entry, value, "entry") }?;
        Ok(1)
    }) as c_int
}

impl Items {
    /// Returns the name, the entry and the depth of the next one.
    fn next(&mut self) -> Result<Option<(Vec<u8>, DirEntry, u32)>> {
        Ok(match self {
            Items::Entries(entries) => {
                entries.next().transpose()?.map(|entry| (entry.name.clone(), entry, 0))
            }
            Items::Walk(walk) => {
                let found = walk.next().transpose()?;
                found.map(|found| {
                    (found.path, found.entry, found.depth.try_into().unwrap_or(u32::MAX))
                })
            }
        })
    }
}

fn file_type(kind: FileType) -> u32 {
    match kind {
        FileType::Unknown => 0,
        kind => kind.to_mode().into(),
    }
}

/// Leaves out the entries below the directory that `extant_dir_next` gave last in a walk.
///
/// # Safety
/// The directory is live, and nothing else uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_walk_skip(dir: *mut Dir) -> c_int {
    done(|| {
        // SAFETY: as the caller promises.
        if let Items::Walk(walk) = &mut unsafe { object_mut(dir, "dir") }?.items {
            walk.skip_dir();
        }
        Ok(())
    })
}

/// Closes a directory or a walk and frees it; null is none.
///
/// # Safety
/// `extant_dir_open` or `extant_walk_open` gave it, and nothing uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_dir_close(dir: *mut Dir) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(dir) }));
}
