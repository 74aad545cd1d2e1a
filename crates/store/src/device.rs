//! An image in a store as a [`BlockDevice`], whose chunks are fetched when they are read.
//!
//! # Mechanism
//! A read of bytes 300 KiB to 600 KiB takes chunks 1 and 2 (of 256 KiB). The reading thread fetches
//! chunk 1 itself, while another thread fetches chunk 2; it continues when both are there. If the
//! read begins where the last one ended, the threads also fetch the chunks behind it. Chunks stay
//! in memory within a bound, the most recently used ones.
//!
//! # Invariants
//! Each chunk has one [`Slot`] at most, by its digest, and at most one thread fetches it. Only
//! verified chunks are ready. Failures are not kept: the next read asks again.
//!
//! # Locking
//! One lock (`Device`) covers the slots; none is held while a chunk is fetched.

use crate::address::StoreAddress;
use crate::digest::ChunkDigest;
use crate::image::StoredImage;
use extant_blocks::{BlockDevice, DeviceError, Op};
use extant_sync::{Arc, Condvar, Level, Mutex};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::thread::Builder;

/// Bytes of chunks in memory.
const MEMORY: usize = 64 << 20;

/// Chunks in memory at least.
const MIN_KEPT: usize = 16;

/// Threads that fetch chunks beside those that read.
const THREADS: usize = 8;

/// Bytes that are fetched ahead of a sequence of reads at most.
const AHEAD: u64 = 4 << 20;

/// An image in a store, for reading.
///
/// A wrong chunk is an error that names its object, never data.
#[derive(Debug)]
pub struct StoreDevice {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    image: StoredImage,
    /// Chunks in memory at most.
    max_kept: usize,
    state: Mutex<State>,
    /// A chunk is ready, or has failed.
    fetched: Condvar,
    /// A chunk is wanted, or the device has ended.
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<ChunkDigest, Slot>,
    /// Ready chunks by the time of their last use.
    order: BTreeMap<u64, ChunkDigest>,
    clock: u64,
    /// Chunks that wait for a thread, with their lengths.
    queue: VecDeque<(ChunkDigest, usize)>,
    threads: usize,
    idle: usize,
    /// The end of the last read, and how far chunks were asked for ahead of it.
    last_end: u64,
    ahead_end: u64,
    ended: bool,
}

/// A chunk in memory, or on its way there.
#[derive(Debug)]
enum Slot {
    Queued,
    Fetching,
    Ready(Arc<Vec<u8>>, u64),
}

impl StoreDevice {
    /// Opens an image for reading.
    ///
    /// # Errors
    /// Those of its manifest ([`StoredImage::open`]).
    pub fn open(address: &StoreAddress) -> io::Result<StoreDevice> {
        Ok(StoreDevice::of(StoredImage::open(address)?))
    }

    /// Makes a device of an image.
    pub fn of(image: StoredImage) -> StoreDevice {
        let max_kept = (MEMORY / image.manifest().chunk_size() as usize).max(MIN_KEPT);
        let state = Mutex::new(Level::Device, State::default());
        let (fetched, wanted) = (Condvar::new(), Condvar::new());
        StoreDevice { shared: Arc::new(Shared { image, max_kept, state, fetched, wanted }) }
    }

    fn error(&self, op: Op, (offset, len): (u64, u64), cause: io::Error) -> io::Error {
        DeviceError { op, device: self.name(), offset, len, cause }.into()
    }

    /// Asks threads for the chunks of a read behind its first one, and for those behind a sequence
    /// of reads.
    fn prefetch(&self, range: &Range<u64>) {
        let manifest = self.shared.image.manifest();
        let size = u64::from(manifest.chunk_size());
        let mut state = self.shared.state.lock();
        let mut end = range.end;
        if range.start == state.last_end && range.start > 0 {
            // Not again for each read of a sequence.
            if state.ahead_end < range.end.saturating_add(AHEAD / 2) {
                end = range.end.saturating_add(AHEAD).min(manifest.len());
                state.ahead_end = end;
            }
        } else {
            state.ahead_end = 0;
        }
        state.last_end = range.end;
        let mut asked = 0;
        for number in range.start / size + 1..end.div_ceil(size) {
            let Some(digest) = manifest.digest(number) else { continue };
            if state.queue.len() < self.shared.max_kept / 2 && !state.slots.contains_key(&digest) {
                state.slots.insert(digest, Slot::Queued);
                state.queue.push_back((digest, manifest.chunk_len(number)));
                asked += 1;
            }
        }
        let more = state.queue.len().saturating_sub(state.idle).min(THREADS - state.threads);
        state.threads += more;
        drop(state);
        (0..asked).for_each(|_| self.shared.wanted.notify_one());
        for _ in 0..more {
            let shared = self.shared.clone();
            let started = Builder::new().name("extant-store".into()).spawn(move || shared.serve());
            if started.is_err() {
                // The reading thread fetches the chunks that no other thread does.
                self.shared.state.lock().threads -= 1;
            }
        }
    }
}

impl Drop for StoreDevice {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.wanted.notify_all();
    }
}

impl Shared {
    /// Fetches queued chunks until the device ends.
    fn serve(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            let Some((digest, len)) = state.queue.pop_front() else {
                state.idle += 1;
                self.wanted.wait(&mut state);
                state.idle -= 1;
                continue;
            };
            // A reading thread may have taken it.
            if !matches!(state.slots.get(&digest), Some(Slot::Queued)) {
                continue;
            }
            state.slots.insert(digest, Slot::Fetching);
            drop(state);
            let got = self.image.chunk(digest, len);
            state = self.state.lock();
            // A failure is that of the read that needs the chunk, and asks for it then.
            let _ = self.settle(&mut state, digest, got);
        }
    }

    /// Returns a chunk, which this thread fetches unless another one does.
    fn chunk(&self, digest: ChunkDigest, len: usize) -> io::Result<Arc<Vec<u8>>> {
        let mut state = self.state.lock();
        loop {
            match state.slots.get(&digest) {
                Some(Slot::Fetching) => self.fetched.wait(&mut state),
                Some(Slot::Ready(data, _)) => {
                    let data = data.clone();
                    state.touch(digest);
                    return Ok(data);
                }
                Some(Slot::Queued) | None => break,
            }
        }
        state.slots.insert(digest, Slot::Fetching);
        drop(state);
        let got = self.image.chunk(digest, len);
        self.settle(&mut self.state.lock(), digest, got)
    }

    /// Ends the fetch of a chunk.
    fn settle(
        &self,
        state: &mut State,
        digest: ChunkDigest,
        got: io::Result<Vec<u8>>,
    ) -> io::Result<Arc<Vec<u8>>> {
        state.slots.remove(&digest);
        let settled = got.map(|data| {
            let data = Arc::new(data);
            state.clock += 1;
            let now = state.clock;
            state.slots.insert(digest, Slot::Ready(data.clone(), now));
            state.order.insert(now, digest);
            while state.order.len() > self.max_kept {
                let Some((_, oldest)) = state.order.pop_first() else { break };
                state.slots.remove(&oldest);
            }
            data
        });
        self.fetched.notify_all();
        settled
    }
}

impl State {
    /// Makes a ready chunk the most recently used one.
    fn touch(&mut self, digest: ChunkDigest) {
        self.clock += 1;
        let now = self.clock;
        if let Some(Slot::Ready(_, used)) = self.slots.get_mut(&digest) {
            self.order.remove(&std::mem::replace(used, now));
            self.order.insert(now, digest);
        }
    }
}

impl BlockDevice for StoreDevice {
    fn len(&self) -> u64 {
        self.shared.image.manifest().len()
    }

    fn name(&self) -> String {
        self.shared.image.address().to_string()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let len = buf.len() as u64;
        let manifest = self.shared.image.manifest();
        let Some(end) = offset.checked_add(len).filter(|end| *end <= manifest.len()) else {
            let text = format!("beyond the end at {}", manifest.len());
            let cause = io::Error::new(ErrorKind::UnexpectedEof, text);
            return Err(self.error(Op::Read, (offset, len), cause));
        };
        if buf.is_empty() {
            return Ok(());
        }
        self.prefetch(&(offset..end));
        let size = u64::from(manifest.chunk_size());
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let (number, skip) = (at / size, (at % size) as usize);
            let whole = manifest.chunk_len(number);
            let (part, behind) = rest.split_at_mut(rest.len().min(whole - skip));
            match manifest.digest(number) {
                None => part.fill(0),
                Some(digest) => {
                    let chunk = self.shared.chunk(digest, whole);
                    let chunk = chunk.map_err(|e| self.error(Op::Read, (offset, len), e))?;
                    part.copy_from_slice(&chunk[skip..skip + part.len()]);
                }
            }
            at += part.len() as u64;
            rest = behind;
        }
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let text = "an image in a store is for reading only";
        let cause = io::Error::new(ErrorKind::ReadOnlyFilesystem, text);
        Err(self.error(Op::Write, (offset, data.len() as u64), cause))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let manifest = self.shared.image.manifest();
        let size = u64::from(manifest.chunk_size());
        let Some(run) = manifest.next_run(offset / size) else { return Ok(None) };
        let (start, end) = ((run.start * size).max(offset), run.end.saturating_mul(size));
        Ok(Some(start..end.min(manifest.len())).filter(|range| !range.is_empty()))
    }
}
