//! Images fetched as a whole.

use crate::image::StoredImage;
use extant_sync::atomic::{AtomicBool, Ordering};
use extant_sync::{Level, Mutex};
use std::io;

/// The receiver of a [`pull`], for many threads at once.
pub trait PullSink: Sync {
    /// Takes the bytes of a chunk at an offset in bytes. Bytes of no call are zeroes.
    ///
    /// # Errors
    /// Those of its medium.
    fn chunk(&self, data: &[u8], offset: u64) -> io::Result<()>;
}

/// Fetches and verifies all chunks of an image by `threads` threads.
///
/// # Errors
/// `Interrupted` when `stop` is set; those of the chunks and of `sink`.
pub fn pull(
    image: &StoredImage,
    threads: usize,
    stop: &AtomicBool,
    sink: &dyn PullSink,
) -> io::Result<()> {
    let manifest = image.manifest();
    let chunks = Mutex::new(Level::Leaf, manifest.chunks());
    let failed = AtomicBool::new(false);
    let work = || -> io::Result<()> {
        loop {
            let next = chunks.lock().next();
            let Some((number, digest)) = next else { return Ok(()) };
            // Relaxed: the flags order nothing, and may be seen a chunk later.
            if stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let offset = number * u64::from(manifest.chunk_size());
            let data = image.chunk(digest, manifest.chunk_len(number));
            data.and_then(|data| sink.chunk(&data, offset)).inspect_err(|_| {
                failed.store(true, Ordering::Relaxed);
            })?;
        }
    };
    by_threads(threads, work)
}

/// Does the same work in several threads, and returns the first error.
pub(crate) fn by_threads(
    threads: usize,
    work: impl Fn() -> io::Result<()> + Sync,
) -> io::Result<()> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(&work)).collect();
        let failed = || io::Error::other("a thread of the transfer failed");
        let done: Vec<_> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(failed())))
            .collect();
        done.into_iter().collect()
    })
}
