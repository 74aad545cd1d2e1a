//! Progress of a copy: copied entries, errors, and attributes that were left out.

use crate::context::{Context, complain};
use crate::failure::{Failure, Result};
use crate::text::{count, shown, size};
use extant_engine::Fs;
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

/// Something that the target cannot take, or that this user may not give it. It is left out, and
/// told once with the number.
#[derive(Clone, Copy, Debug)]
pub enum Left {
    /// An owner, since only root may give files away.
    Owner,
    /// Permissions.
    Mode,
    /// An extended attribute.
    Attribute,
    /// A device.
    Device,
}

/// How often blocks that may be shared are copied, on average.
const MAX_SHARING: u64 = 8;

/// Bytes of holes that are copied as zeroes, for each byte of the device.
const MAX_HOLES: u64 = 8;

/// Problems that are told one by one.
const TOLD: u64 = 50;

/// A copy under way; shared by its threads.
#[derive(Debug)]
pub struct Job<'c> {
    context: &'c Context,
    bar: ProgressBar,
    files: AtomicU64,
    directories: AtomicU64,
    others: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    owners_left: AtomicU64,
    modes_left: AtomicU64,
    attributes_left: AtomicU64,
    devices_left: AtomicU64,
    /// Bytes of data that are copied at most, and those admitted so far.
    max_data: u64,
    admitted: AtomicU64,
    /// Bytes of holes admitted so far, where they are copied as zeroes.
    holes: AtomicU64,
}

/// Kind of a copied entry.
#[derive(Clone, Copy, Debug)]
pub enum Copied {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink, a device, another name of a file, and so on.
    Other,
}

impl<'c> Job<'c> {
    /// Makes the job of a copy of about `total` bytes (0: not known).
    pub fn new(context: &'c Context, total: u64) -> Job<'c> {
        Job {
            context,
            bar: context.progress(total),
            files: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            others: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            owners_left: AtomicU64::new(0),
            modes_left: AtomicU64::new(0),
            attributes_left: AtomicU64::new(0),
            devices_left: AtomicU64::new(0),
            max_data: u64::MAX,
            admitted: AtomicU64::new(0),
            holes: AtomicU64::new(0),
        }
    }

    /// Makes the job of a copy out of an image: of no more data than its device has, since each
    /// block belongs to one inode. Where blocks may be shared (`shared_blocks`), [`MAX_SHARING`]
    /// times as much.
    pub fn out_of(fs: &Fs, context: &'c Context) -> Job<'c> {
        let sb = fs.superblock();
        let bytes = sb.blocks_count().saturating_mul(sb.block_size().into());
        let shares = sb.features().names().iter().any(|name| name == "shared_blocks");
        let max_data = if shares { bytes.saturating_mul(MAX_SHARING) } else { bytes };
        Job { max_data, ..Job::new(context, 0) }
    }

    /// Asks to copy so many bytes of data more.
    ///
    /// # Errors
    /// The copy holds more data than the image can hold in blocks of its own.
    pub fn admit(&self, bytes: u64) -> Result<(), &'static str> {
        add_within(&self.admitted, bytes, self.max_data).ok_or(
            "corrupt: the files hold more data than the device: inodes share blocks; `e2fsck \
             -fy` on a copy of the image separates them",
        )
    }

    /// Returns whether so many bytes of data more would be admitted now: a thread that reads ahead
    /// must not read more than the image can hold.
    pub fn admits(&self, bytes: u64) -> bool {
        self.admitted.load(Ordering::Relaxed).saturating_add(bytes) <= self.max_data
    }

    /// Asks to copy so many bytes of holes more as zeroes.
    ///
    /// # Errors
    /// The holes take more than [`MAX_HOLES`] times the bytes of the device: a small image may
    /// have any number of long files without data.
    pub fn admit_holes(&self, bytes: u64) -> Result<(), &'static str> {
        add_within(&self.holes, bytes, self.max_data.saturating_mul(MAX_HOLES)).ok_or(
            "the holes of sparse files would take more than 8 times the bytes of the device as \
             zeroes; `export --tar` keeps holes",
        )
    }

    /// Returns the number of threads to work with.
    pub fn threads(&self) -> usize {
        self.context.thread_count()
    }

    /// Ends the progress bar, and tells nothing.
    ///
    /// # Errors
    /// Some entries could not be read.
    pub fn close(&self) -> Result {
        self.bar.finish_and_clear();
        match self.errors.load(Ordering::Relaxed) {
            0 => Ok(()),
            n => Err(Failure::new(format_args!("{} could not be read", count(n, "thing")))),
        }
    }

    /// Counts a copied entry.
    pub fn done(&self, what: Copied, path: impl FnOnce() -> Vec<u8>) {
        let counter = match what {
            Copied::File => &self.files,
            Copied::Directory => &self.directories,
            Copied::Other => &self.others,
        };
        let number = counter.fetch_add(1, Ordering::Relaxed);
        if self.context.verbose > 0 && !self.context.quiet {
            self.bar.suspend(|| complain(shown(&path())));
        } else if number % 64 == 0 && !self.bar.is_hidden() {
            self.bar.set_message(shown(&path()));
        }
    }

    /// Counts copied bytes of content.
    pub fn bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bar.inc(bytes);
    }

    /// Reports the failure of one entry; the copy continues.
    pub fn problem(&self, path: &[u8], error: impl Display) {
        match self.errors.fetch_add(1, Ordering::Relaxed) {
            n if n < TOLD => {
                self.bar.suspend(|| complain(format_args!("{}: {error}", shown(path))))
            }
            TOLD => self.bar.suspend(|| complain("further problems are only counted")),
            _ => {}
        }
    }

    /// Reports an error as [`Job::problem`] does, and returns the value of a success.
    pub fn check<T, E: Display>(
        &self,
        path: impl FnOnce() -> Vec<u8>,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|error| self.problem(&path(), error)).ok()
    }

    /// Counts an attribute or entry that was left out.
    pub fn left(&self, what: Left) {
        let counter = match what {
            Left::Owner => &self.owners_left,
            Left::Mode => &self.modes_left,
            Left::Attribute => &self.attributes_left,
            Left::Device => &self.devices_left,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells the result, as JSON where that is wanted.
    pub fn finish(&self) -> Result {
        self.finish_with(Map::new())
    }

    /// Tells the result with `more` values of the JSON document.
    pub fn finish_with(&self, more: Map<String, Value>) -> Result {
        self.bar.finish_and_clear();
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let left = [
            (number(&self.attributes_left), "extended attribute"),
            (number(&self.owners_left), "owner"),
            (number(&self.modes_left), "file mode"),
            (number(&self.devices_left), "device"),
        ];
        for (left, what) in left.into_iter().filter(|(left, _)| *left > 0) {
            self.context.note(format_args!(
                "{} left out: the target does not take them, or only from root",
                count(left, what)
            ));
        }
        if self.context.json {
            let mut object = self.object();
            object.extend(more);
            self.context.document(&object.into())?
        } else {
            self.context.note(format_args!(
                "copied {} ({}), {}, {}",
                count(number(&self.files), "file"),
                size(number(&self.bytes)),
                directories(number(&self.directories)),
                count(number(&self.others), "other"),
            ))
        }
        match number(&self.errors) {
            0 => Ok(()),
            n => Err(Failure::new(format_args!("{} could not be copied", count(n, "thing")))),
        }
    }

    fn object(&self) -> Map<String, Value> {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = [
            ("files", &self.files),
            ("directories", &self.directories),
            ("others", &self.others),
            ("bytes", &self.bytes),
            ("errors", &self.errors),
        ];
        let mut object: Map<String, Value> = counts
            .into_iter()
            .map(|(name, counter)| (name.into(), number(counter).into()))
            .collect();
        let left_out = json!({
            "attributes": number(&self.attributes_left),
            "owners": number(&self.owners_left),
            "modes": number(&self.modes_left),
            "devices": number(&self.devices_left),
        });
        object.insert("left_out".into(), left_out);
        object
    }
}

/// Adds to a sum that stays within `max`. Refused bytes do not count: a smaller file may fit.
fn add_within(sum: &AtomicU64, bytes: u64, max: u64) -> Option<()> {
    let fits = |before: u64| before.checked_add(bytes).filter(|sum| *sum <= max);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok().map(drop)
}

fn directories(number: u64) -> String {
    match number {
        1 => "1 directory".into(),
        n => format!("{n} directories"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_bytes_leave_room_for_others() {
        let context = Context::helper(false);
        let job = Job { max_data: 10, ..Job::new(&context, 0) };
        assert!(job.admit(11).is_err());
        assert!(job.admit(u64::MAX).is_err());
        assert!(job.admit(10).is_ok());
        assert!(job.admit(1).is_err());
    }
}
