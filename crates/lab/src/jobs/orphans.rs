//! Jobs that need orphan records: cutting files, and making one file again and again.

use super::make::times;
use super::{Job, Size, filled, own};
use crate::target::{How, Target};
use std::io;

pub const BLOCK: u64 = 4096;

/// Blocks that a cut of [`by_pieces`] frees, none beside another.
const PIECES: u64 = 6;

/// As [`cut`], several pieces of a file at a time, between which there are holes: that may take
/// several transactions, so there is a record from the first to the last.
pub fn by_pieces<'a>(target: &'a dyn Target, threads: usize, size: &Size) -> io::Result<Job<'a>> {
    const STEP: u64 = 2 * PIECES * BLOCK;
    let cuts = size.cuts.min(256);
    let files = filled(target, "pieces", threads, |file| {
        (0..cuts * PIECES).try_for_each(|n| file.write_at(2 * n * BLOCK, &[7; BLOCK as usize]))
    })?;
    Ok(Job::new(times(cuts), move |t, n| files[t].set_len((cuts - 1 - n) * STEP)))
}

/// Each thread cuts a file of its own to nothing, `step` bytes at a time.
pub fn cut<'a>(
    target: &'a dyn Target,
    (what, threads): (&str, usize),
    cuts: u64,
    step: u64,
) -> io::Result<Job<'a>> {
    let content = vec![7; (cuts * step) as usize];
    let files = filled(target, what, threads, |file| file.write_at(0, &content))?;
    Ok(Job::new(times(cuts), move |t, n| files[t].set_len((cuts - 1 - n) * step)))
}

/// Clients as reaim has them: each makes and closes one path of its own so many times, all but the
/// first of which empty a file that is there, and removes it in the end.
pub fn creat_clo<'a>(target: &'a dyn Target, threads: usize, size: &Size) -> io::Result<Job<'a>> {
    let paths = own(target, "creat", threads)?;
    let last = size.rounds;
    Ok(Job::new(times(size.rounds + 1), move |t, n| match n {
        n if n == last => target.unlink(&paths[t]),
        _ => target.creat(&paths[t]),
    }))
}

/// The same with an unlink after each.
pub fn creat_clo_unlink<'a>(
    target: &'a dyn Target,
    threads: usize,
    size: &Size,
) -> io::Result<Job<'a>> {
    let paths = own(target, "creat-unlink", threads)?;
    Ok(Job::new(times(size.rounds), move |t, _| {
        target.creat(&paths[t])?;
        target.unlink(&paths[t])
    }))
}

/// The same with the file held open while its name goes, as programs do with temporary files.
pub fn creat_clo_held<'a>(
    target: &'a dyn Target,
    threads: usize,
    size: &Size,
) -> io::Result<Job<'a>> {
    let paths = own(target, "creat-held", threads)?;
    Ok(Job::new(times(size.rounds), move |t, _| {
        target.creat(&paths[t])?;
        let held = target.open(&paths[t], How::Write)?;
        target.unlink(&paths[t])?;
        drop(held);
        Ok(())
    }))
}
