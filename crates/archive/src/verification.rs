//! Digests of blobs, verified by threads of their own while the content is read.
//!
//! The content counts only if the digests are right: the caller must ask for [`Verification::end`]
//! before it uses or reports anything of it.

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::stream::Section;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, available_parallelism};

/// A blob that must have a digest.
pub(crate) struct Check {
    /// Name of the blob in errors.
    pub name: String,
    /// Bytes of the blob.
    pub content: Section,
    /// Their digest.
    pub digest: Digest,
}

/// Blobs that are not verified yet, and those that take turns to do it.
struct Pending {
    checks: Vec<Check>,
    next: AtomicUsize,
}

/// The number of a blob that could not be verified, and the reason.
type Failed = (usize, Error);

/// A verification under way. Its threads end at the first wrong digest.
pub(crate) struct Verification {
    threads: Vec<JoinHandle<Result<(), Failed>>>,
}

impl Verification {
    /// Starts to verify blobs, by as many threads as there are processors at most.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn begin(checks: Vec<Check>) -> Result<Verification> {
        let count = available_parallelism().map_or(1, usize::from).min(checks.len());
        let pending = Arc::new(Pending { checks, next: AtomicUsize::new(0) });
        let start = |_| {
            let pending = pending.clone();
            let thread = thread::Builder::new().name("extant-digest".into());
            Ok(thread.spawn(move || pending.work())?)
        };
        Ok(Verification { threads: (0..count).map(start).collect::<Result<_>>()? })
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// [`Error`] with the name of the first blob that has another digest, or that cannot be read.
    pub(crate) fn end(self) -> Result<()> {
        let lost = |_| Err((0, Error::new("a thread that computes digests has failed")));
        let results = self.threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost));
        let failures: Vec<Failed> = results.filter_map(Result::err).collect();
        // Blobs are taken in their order, so all before a wrong one were looked at.
        let first = failures.into_iter().min_by_key(|(number, _)| *number);
        first.map_or(Ok(()), |(_, error)| Err(error))
    }
}

impl Pending {
    fn work(&self) -> Result<(), Failed> {
        loop {
            // Relaxed: the blobs were listed before the threads began.
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(Check { name, content, digest }) = self.checks.get(number) else {
                return Ok(());
            };
            digest.verify(content.clone()).map_err(|error| {
                // The other threads end after their current blob.
                self.next.store(self.checks.len(), Ordering::Relaxed);
                (number, error.in_source(name))
            })?;
        }
    }
}
