//! Calls by path. Paths begin at the root directory; permissions are not checked.

use crate::call::{EINVAL, Failure, Result, bytes, call, done, fill, give, object, text};
use crate::fs::Fs;
use crate::options::refuse_unknown;
use crate::types::{Stat, Time};
use extant::{Dir, FileType, Inode, NodeKind, SetMetadata, Timestamp, XattrMode};
use std::ffi::{c_char, c_int, c_void};

/// Look at a symlink itself.
pub const EXTANT_NOFOLLOW: u32 = 1;
/// Set an attribute only if there is none of the name.
pub const EXTANT_XATTR_CREATE: u32 = 2;
/// Set an attribute only if there is one of the name.
pub const EXTANT_XATTR_REPLACE: u32 = 4;

const NANOSECONDS: u32 = 1_000_000_000;

/// # Safety
/// The file system is live, the path is text.
unsafe fn arguments<'a>(fs: *const Fs, path: *const c_char) -> Result<(&'a extant::Fs, &'a [u8])> {
    // SAFETY: as the caller promises.
    Ok((unsafe { &object(fs, "fs")?.0 }, unsafe { text(path, "path") }?))
}

/// # Safety
/// As `arguments`.
unsafe fn inode(fs: *const Fs, path: *const c_char, flags: u32, known: u32) -> Result<Inode> {
    refuse_unknown(flags, EXTANT_NOFOLLOW | known)?;
    // SAFETY: as the caller promises.
    let (fs, path) = unsafe { arguments(fs, path) }?;
    Ok(if flags & EXTANT_NOFOLLOW != 0 { fs.lookup_symlink(path) } else { fs.lookup(path) }?)
}

/// Tells the attributes of an inode. `flags` is 0 or `EXTANT_NOFOLLOW`.
///
/// # Safety
/// The file system is live, the path is text, `stat` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_stat(
    fs: *const Fs,
    path: *const c_char,
    flags: u32,
    stat: *mut Stat,
) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe {
        let metadata = inode(fs, path, flags, 0)?.metadata()?;
        give(stat, Stat::from(&metadata), "stat")
    })
}

/// Sets permission bits (07777). A symlink at the end is followed.
///
/// # Safety
/// The file system is live, the path is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_chmod(fs: *const Fs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe { set(fs, path, 0, &SetMetadata::new().permissions(permissions(mode)?)) })
}

/// Sets owner and group. `flags` is 0 or `EXTANT_NOFOLLOW`.
///
/// # Safety
/// The file system is live, the path is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_chown(
    fs: *const Fs,
    path: *const c_char,
    flags: u32,
    uid: u32,
    gid: u32,
) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe { set(fs, path, flags, &SetMetadata::new().owner(uid, gid)) })
}

/// Sets the times of access and of change; one whose pointer is null stays. `flags` is 0 or
/// `EXTANT_NOFOLLOW`.
///
/// # Safety
/// The file system is live, the path is text, the times are null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_utimes(
    fs: *const Fs,
    path: *const c_char,
    flags: u32,
    accessed: *const Time,
    modified: *const Time,
) -> c_int {
    let time = |time: &Time| match time.nsec {
        0..NANOSECONDS => Ok(Timestamp::new(time.sec, time.nsec)),
        nsec => Err(Failure::new(EINVAL, format!("{nsec} nanoseconds are a second or more"))),
    };
    done(|| {
        let mut changes = SetMetadata::new();
        // SAFETY: as the caller promises.
        if let Some(accessed) = unsafe { accessed.as_ref() } {
            changes = changes.accessed(time(accessed)?);
        }
        // SAFETY: as the caller promises.
        if let Some(modified) = unsafe { modified.as_ref() } {
            changes = changes.modified(time(modified)?);
        }
        // SAFETY: as the caller promises.
        unsafe { set(fs, path, flags, &changes) }
    })
}

/// Cuts a file to a length in bytes, or lets it grow with a hole.
///
/// # Safety
/// The file system is live, the path is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_truncate(fs: *const Fs, path: *const c_char, len: u64) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe { set(fs, path, 0, &SetMetadata::new().len(len)) })
}

/// # Safety
/// As `arguments`.
unsafe fn set(fs: *const Fs, path: *const c_char, flags: u32, set: &SetMetadata) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { inode(fs, path, flags, 0) }?.set_metadata(set)?;
    Ok(())
}

fn permissions(mode: u32) -> Result<u16> {
    match u16::try_from(mode) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(Failure::new(EINVAL, format!("permissions {mode:o} are more than 7777"))),
    }
}

/// Makes a directory that belongs to root, with permission bits (07777).
///
/// # Safety
/// The file system is live, the path is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_mkdir(fs: *const Fs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe { create(fs, path, NodeKind::Dir, permissions(mode)?) })
}

/// Makes a directory and those above it that are missing, with permissions 0755. One that is there
/// is no error.
///
/// # Safety
/// The file system is live, the path is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_mkdir_all(fs: *const Fs, path: *const c_char) -> c_int {
    done(|| {
        // SAFETY: as the caller promises.
        let (fs, path) = unsafe { arguments(fs, path) }?;
        fs.create_dir_all(path)?;
        Ok(())
    })
}

/// Makes a file, device file, FIFO or socket that belongs to root. `mode` has the type (`S_IFREG`
/// and others) and permission bits. The numbers are those of a device file.
///
/// # Safety
/// The file system is live, the path is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_mknod(
    fs: *const Fs,
    path: *const c_char,
    mode: u32,
    major: u32,
    minor: u32,
) -> c_int {
    let kind = u16::try_from(mode).map(FileType::from_mode).unwrap_or_default();
    let kind = match kind {
        FileType::Regular => Ok(NodeKind::File),
        FileType::BlockDevice => Ok(NodeKind::BlockDevice(major, minor)),
        FileType::CharDevice => Ok(NodeKind::CharDevice(major, minor)),
        FileType::Fifo => Ok(NodeKind::Fifo),
        FileType::Socket => Ok(NodeKind::Socket),
        _ => Err(Failure::new(EINVAL, format!("mode {mode:o}: no type that mknod makes"))),
    };
    // SAFETY: as the caller promises.
    done(|| unsafe { create(fs, path, kind?, permissions(mode & 0o7777)?) })
}

/// # Safety
/// As `arguments`.
unsafe fn create(
    fs: *const Fs,
    path: *const c_char,
    kind: NodeKind<'_>,
    permissions: u16,
) -> Result<()> {
    // SAFETY: as the caller promises.
    let (fs, path) = unsafe { arguments(fs, path) }?;
    let (dir, name) = place(fs, path)?;
    dir.create_as(name, kind, permissions, (0, 0))?;
    Ok(())
}

/// Splits a path into a directory and a name in it.
fn place<'a>(fs: &extant::Fs, path: &'a [u8]) -> Result<(Dir, &'a [u8])> {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let path = &path[..end];
    let start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let dir = if start == 0 { fs.root() } else { fs.open_dir(&path[..start]) }?;
    Ok((dir, &path[start..]))
}

/// Removes the name of a file, symlink or device file.
///
/// # Safety
/// The file system is live, the path is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_unlink(fs: *const Fs, path: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe { arguments(fs, path) }.and_then(|(fs, path)| Ok(fs.remove_file(path)?)))
}

/// Removes an empty directory.
///
/// # Safety
/// The file system is live, the path is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_rmdir(fs: *const Fs, path: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe { arguments(fs, path) }.and_then(|(fs, path)| Ok(fs.remove_dir(path)?)))
}

/// Gives an inode another name, as rename(2): one that has the new name is replaced.
///
/// # Safety
/// The file system is live, the paths are text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_rename(
    fs: *const Fs,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe {
        let (fs, from) = arguments(fs, from)?;
        Ok(fs.rename(from, text(to, "the new path")?)?)
    })
}

/// Makes a symlink at a path, to a target that need not exist.
///
/// # Safety
/// The file system is live, target and path are text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_symlink(
    fs: *const Fs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe {
        let (fs, path) = arguments(fs, path)?;
        Ok(fs.symlink(text(target, "target")?, path)?)
    })
}

/// Gives an inode a further name.
///
/// # Safety
/// The file system is live, the paths are text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_link(
    fs: *const Fs,
    original: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe {
        let (fs, path) = arguments(fs, path)?;
        Ok(fs.hard_link(text(original, "the first path")?, path)?)
    })
}

/// Reads the target of a symlink into a buffer, without a zero byte at the end. Returns its length;
/// with `len` 0 that alone. `ERANGE` if the buffer is too short.
///
/// # Safety
/// The file system is live, the path is text, the buffer has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_readlink(
    fs: *const Fs,
    path: *const c_char,
    data: *mut c_void,
    len: usize,
) -> isize {
    // SAFETY: as the caller promises.
    call(|| unsafe {
        let (fs, path) = arguments(fs, path)?;
        fill(&fs.read_link(path)?, data, len)
    })
}

/// Reads an extended attribute, such as "user.name", into a buffer. Returns the length of its
/// value; with `len` 0 that alone. `ENODATA` if there is none, `ERANGE` if the buffer is too short.
/// `flags` is 0 or `EXTANT_NOFOLLOW`.
///
/// # Safety
/// The file system is live, path and name are text, the buffer has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_getxattr(
    fs: *const Fs,
    path: *const c_char,
    flags: u32,
    name: *const c_char,
    data: *mut c_void,
    len: usize,
) -> isize {
    // SAFETY: as the caller promises.
    call(|| unsafe { fill(&inode(fs, path, flags, 0)?.xattr(text(name, "name")?)?, data, len) })
}

/// Reads the names of all extended attributes into a buffer, each with a zero byte at its end.
/// Returns the length of all; with `len` 0 that alone. `ERANGE` if the buffer is too short. `flags`
/// is 0 or `EXTANT_NOFOLLOW`.
///
/// # Safety
/// The file system is live, the path is text, the buffer has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_listxattr(
    fs: *const Fs,
    path: *const c_char,
    flags: u32,
    data: *mut c_void,
    len: usize,
) -> isize {
    // SAFETY: as the caller promises.
    call(|| unsafe {
        let names = inode(fs, path, flags, 0)?.xattrs()?;
        let names: Vec<u8> =
            names.iter().flat_map(|name| name.iter().chain(&[0])).copied().collect();
        fill(&names, data, len)
    })
}

/// Sets an extended attribute. `flags` may have `EXTANT_NOFOLLOW`, and `EXTANT_XATTR_CREATE` or
/// `EXTANT_XATTR_REPLACE`.
///
/// # Safety
/// The file system is live, path and name are text, the value has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_setxattr(
    fs: *const Fs,
    path: *const c_char,
    flags: u32,
    name: *const c_char,
    value: *const c_void,
    len: usize,
) -> c_int {
    const BOTH: u32 = EXTANT_XATTR_CREATE | EXTANT_XATTR_REPLACE;
    done(|| {
        let mode = match flags & BOTH {
            EXTANT_XATTR_CREATE => XattrMode::Create,
            EXTANT_XATTR_REPLACE => XattrMode::Replace,
            BOTH => return Err(Failure::new(EINVAL, "an attribute is made or replaced, not both")),
            _ => XattrMode::Any,
        };
        // SAFETY: as the caller promises.
        unsafe {
            let inode = inode(fs, path, flags, BOTH)?;
            Ok(inode.set_xattr(text(name, "name")?, bytes(value, len)?, mode)?)
        }
    })
}

/// Removes an extended attribute. `flags` is 0 or `EXTANT_NOFOLLOW`.
///
/// # Safety
/// The file system is live, path and name are text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_removexattr(
    fs: *const Fs,
    path: *const c_char,
    flags: u32,
    name: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    done(|| unsafe { Ok(inode(fs, path, flags, 0)?.remove_xattr(text(name, "name")?)?) })
}
