//! Progress of a build on a terminal: bytes, files, and the time that is left.

use crate::context::Context;
use crate::text::count;
use extant_image::{ContentSink, ContentStream};
use indicatif::ProgressBar;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Content that was written so far.
pub struct Shown {
    bar: ProgressBar,
    is_hidden: bool,
    files: AtomicU64,
    /// Files in all; `None` if that is not known.
    all: Option<u64>,
}

impl Shown {
    /// Begins with `bytes` to come; 0 if that is not known.
    pub fn new(context: &Context, bytes: u64, files: Option<u64>) -> Shown {
        Shown {
            bar: context.progress(bytes),
            is_hidden: !context.shows_progress(),
            files: AtomicU64::new(0),
            all: files,
        }
    }

    /// Counts bytes and files. Called by all threads.
    pub fn add(&self, bytes: u64, files: u64) {
        if self.is_hidden {
            return;
        }
        self.bar.inc(bytes);
        // Relaxed: the number is shown, and publishes nothing else.
        let done = self.files.fetch_add(files, Ordering::Relaxed) + files;
        if files > 0 {
            self.bar.set_message(match self.all {
                Some(all) => format!("{done} of {}", count(all, "file")),
                None => count(done, "file"),
            });
        }
    }

    /// Removes it from the terminal.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// An image to which content goes as it arrives, with its progress.
pub struct Arriving<'a, 'd>(pub &'a mut ContentStream<'d>, pub &'a Shown);

impl ContentSink for Arriving<'_, '_> {
    fn begin(&mut self, size: u64, ranges: &[Range<u64>]) -> extant_image::Result<u64> {
        self.1.add(0, 1);
        self.0.begin(size, ranges)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.1.add(bytes.len() as u64, 0);
        self.0.write(bytes)
    }
}
