//! Progress of a copy: copied entries, errors, and attributes that were left out.

use super::budget::Budget;
use crate::context::{Context, complain};
use crate::failure::{Failure, Result};
use crate::text::{count, shown, size};
use extant_engine::Fs;
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use std::fmt::Display;
use std::sync::OnceLock;
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
    /// A device, a FIFO or a socket that is not wanted.
    Special,
}

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
    /// The first problem.
    first: OnceLock<String>,
    owners_left: AtomicU64,
    modes_left: AtomicU64,
    attributes_left: AtomicU64,
    devices_left: AtomicU64,
    special_left: AtomicU64,
    /// Devices, FIFOs and sockets are left out.
    no_special: bool,
    budget: Budget,
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
            first: OnceLock::new(),
            owners_left: AtomicU64::new(0),
            modes_left: AtomicU64::new(0),
            attributes_left: AtomicU64::new(0),
            devices_left: AtomicU64::new(0),
            special_left: AtomicU64::new(0),
            no_special: false,
            budget: Budget::unlimited(),
        }
    }

    /// Makes the job of a copy out of an image, of no more data than [`Budget::of`] admits.
    pub fn out_of(fs: &Fs, context: &'c Context) -> Job<'c> {
        Job { budget: Budget::of(fs), ..Job::new(context, 0) }
    }

    /// Leaves devices, FIFOs and sockets out if `no_special` is set.
    pub fn no_special(self, no_special: bool) -> Job<'c> {
        Job { no_special, ..self }
    }

    /// Returns whether devices, FIFOs and sockets are left out.
    pub fn leaves_special(&self) -> bool {
        self.no_special
    }

    /// Returns the bound on copied data.
    pub fn budget(&self) -> &Budget {
        &self.budget
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
        self.check_complete()
    }

    /// Returns the number of problems so far.
    pub fn problems(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Fails if there were problems.
    ///
    /// # Errors
    /// Some entries could not be read.
    pub fn check_complete(&self) -> Result {
        match self.problems() {
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
        self.first.get_or_init(|| format!("{}: {error}", shown(path)));
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
            Left::Special => &self.special_left,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells the result, as JSON where that is wanted.
    pub fn finish(&self) -> Result {
        self.finish_with(Map::new())
    }

    /// Ends the progress bar, and tells only which attributes were left out.
    ///
    /// # Errors
    /// Some entries could not be copied.
    pub fn end(&self) -> Result {
        self.bar.finish_and_clear();
        self.tell_left();
        self.check_copied().map_err(|failure| match self.first.get() {
            Some(first) if self.problems() == 1 => failure.with_message(first.clone()),
            _ => failure,
        })
    }

    fn check_copied(&self) -> Result {
        match self.problems() {
            0 => Ok(()),
            n => Err(Failure::new(format_args!("{} could not be copied", count(n, "thing")))),
        }
    }

    fn tell_left(&self) {
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
        match number(&self.special_left) {
            0 => {}
            left => self
                .context
                .note(format_args!("{} left out, as asked", count(left, "special file"))),
        }
    }

    /// Tells the result with `more` values of the JSON document.
    pub fn finish_with(&self, more: Map<String, Value>) -> Result {
        self.bar.finish_and_clear();
        self.tell_left();
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
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
        self.check_copied()
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
            "special": number(&self.special_left),
        });
        object.insert("left_out".into(), left_out);
        object
    }
}

fn directories(number: u64) -> String {
    match number {
        1 => "1 directory".into(),
        n => format!("{n} directories"),
    }
}
