//! Files that come and go.

use super::{Job, Size, accept, ensure_file, filled, many, own};
use crate::target::{Put, Target};
use extant_measure::timing::Limit;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The longest that jobs of so many operations may take.
const CAP: Duration = Duration::from_secs(5);

/// Content of a block.
pub const BLOCK: [u8; 4096] = [0x5a; 4096];

/// As many operations of each thread.
pub fn times(ops: u64) -> Limit {
    Limit { ops, time: CAP }
}

/// Makes files with `data`.
pub fn create<'a>(
    target: &'a dyn Target,
    (what, threads): (&str, usize),
    files: usize,
    data: &'static [u8],
) -> io::Result<Job<'a>> {
    let names = Arc::new(many(target, what, threads, files)?);
    let made = names.clone();
    let limit = times(names[0].len() as u64);
    let job = Job::new(limit, move |t, n| put(target, &names[t][n as usize], data));
    // Files are missing if the time was too short.
    let remove = |name: &Vec<u8>| accept(io::ErrorKind::NotFound, target.unlink(name));
    Ok(job.then(move || made.iter().flatten().try_for_each(remove)))
}

/// Makes a file that must not exist.
fn put(target: &dyn Target, path: &[u8], data: &[u8]) -> io::Result<()> {
    match data {
        [] => target.create(path),
        data => target.put(path, Put { data, mode: 0o644, mtime: None }),
    }
}

/// Deletes files with `data`.
pub fn unlink<'a>(
    target: &'a dyn Target,
    (what, threads): (&str, usize),
    files: usize,
    data: &[u8],
) -> io::Result<Job<'a>> {
    let names = many(target, what, threads, files)?;
    let ensure = |name| accept(io::ErrorKind::AlreadyExists, put(target, name, data));
    names.iter().flatten().try_for_each(|name| ensure(name))?;
    Ok(Job::new(times(names[0].len() as u64), move |t, n| target.unlink(&names[t][n as usize])))
}

/// Overwrites the same block of an open file of its own: in memory, on both sides.
pub fn write<'a>(target: &'a dyn Target, threads: usize, size: &Size) -> io::Result<Job<'a>> {
    let files = filled(target, "write", threads, |file| file.write_at(0, &BLOCK))?;
    Ok(Job::new(Limit::time(size.window), move |t, _| files[t].write_at(0, &BLOCK)))
}

/// Renames a file to and fro.
pub fn rename<'a>(target: &'a dyn Target, threads: usize, size: &Size) -> io::Result<Job<'a>> {
    let paths = own(target, "rename", threads)?;
    let away: Vec<Vec<u8>> =
        paths.iter().map(|path| [path.as_slice(), b".away"].concat()).collect();
    for (path, away) in paths.iter().zip(&away) {
        match target.rename(away, path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => ensure_file(target, path)?,
            other => other?,
        }
    }
    Ok(Job::new(Limit::time(size.window), move |t, n| match n % 2 {
        0 => target.rename(&paths[t], &away[t]),
        _ => target.rename(&away[t], &paths[t]),
    }))
}
