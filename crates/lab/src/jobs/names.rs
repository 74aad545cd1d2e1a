//! Names that are prepared before a clock runs, and files that all jobs use.

use crate::target::Target;
use std::io;

/// Files in a directory.
const IN_DIRECTORY: usize = 500;

/// Makes a directory unless it is there.
pub fn ensure_dir(target: &dyn Target, path: &[u8]) -> io::Result<()> {
    match target.mkdir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Makes an empty file unless it is there.
pub fn ensure_file(target: &dyn Target, path: &[u8]) -> io::Result<()> {
    match target.create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// One path for each thread, in a directory of its own.
pub fn own(target: &dyn Target, what: &str, threads: usize) -> io::Result<Vec<Vec<u8>>> {
    ensure_dir(target, what.as_bytes())?;
    (0..threads)
        .map(|t| {
            let dir = format!("{what}/own{t}");
            ensure_dir(target, dir.as_bytes())?;
            Ok(format!("{dir}/file").into_bytes())
        })
        .collect()
}

/// Paths for each thread, together `count`, in directories of the thread's own.
pub fn many(
    target: &dyn Target,
    what: &str,
    threads: usize,
    count: usize,
) -> io::Result<Vec<Vec<Vec<u8>>>> {
    ensure_dir(target, what.as_bytes())?;
    let each = (count / threads).max(1);
    for t in 0..threads {
        ensure_dir(target, format!("{what}/t{t}").as_bytes())?;
        (0..each.div_ceil(IN_DIRECTORY))
            .try_for_each(|d| ensure_dir(target, format!("{what}/t{t}/d{d}").as_bytes()))?;
    }
    let name =
        |t: usize, i: usize| format!("{what}/t{t}/d{}/file{i}", i / IN_DIRECTORY).into_bytes();
    Ok((0..threads).map(|t| (0..each).map(|i| name(t, i)).collect()).collect())
}
