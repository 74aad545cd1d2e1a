//! Images stored.

use crate::address::{StoreAddress, StoreObject};
use crate::chunk::encode;
use crate::digest::ChunkDigest;
use crate::image::named;
use crate::manifest::{CHUNK_SIZE, MAX_MANIFEST, StoreManifest, is_chunk_size};
use crate::pull::by_threads;
use crate::transport::ObjectTransport;
use extant_blocks::BlockDevice;
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_sync::{Level, Mutex};
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::PoisonError;

/// The way to store an image.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PushOptions {
    /// Bytes of a chunk: a power of two from 4 KiB to 16 MiB.
    pub chunk_size: u32,
    /// Threads that read, compress and send.
    pub threads: usize,
    /// Another image of the name may be there, and is replaced.
    pub replace: bool,
}

impl Default for PushOptions {
    fn default() -> PushOptions {
        PushOptions { chunk_size: CHUNK_SIZE, threads: 8, replace: false }
    }
}

/// The result of a [`push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushReport {
    /// Digest of the manifest.
    pub manifest: ChunkDigest,
    /// Chunks of the image that are not zeroes.
    pub chunks: u64,
    /// Chunks that were sent; the others were there, or are equal to these.
    pub sent_chunks: u64,
    /// Bytes of them as they are stored.
    pub sent_bytes: u64,
}

/// The parts of a device in use, as the parts of one chunk after the other.
struct Parts<'p> {
    device: &'p dyn BlockDevice,
    used: &'p mut (dyn Iterator<Item = Range<u64>> + Send),
    chunk_size: u64,
    /// The rest of the current range.
    rest: Range<u64>,
}

impl Parts<'_> {
    /// Returns the next piece of a range with data, within one chunk.
    fn piece(&mut self) -> io::Result<Option<Range<u64>>> {
        loop {
            if self.rest.is_empty() {
                let Some(range) = self.used.next() else { return Ok(None) };
                self.rest = range;
            }
            let Some(data) = self.device.next_data(self.rest.start)? else {
                self.rest = 0..0;
                continue;
            };
            let start = data.start.max(self.rest.start);
            let chunk_end = (start / self.chunk_size + 1).saturating_mul(self.chunk_size);
            let end = data.end.min(self.rest.end).min(chunk_end);
            if start < end {
                return Ok(Some(start..end));
            }
            self.rest.start = start.min(self.rest.end);
        }
    }

    /// Returns the pieces of the next chunk that has any.
    fn next(&mut self) -> io::Result<Option<(u64, Vec<Range<u64>>)>> {
        let Some(first) = self.piece()? else { return Ok(None) };
        let number = first.start / self.chunk_size;
        let mut pieces = Vec::new();
        let mut next = Some(first);
        while let Some(piece) = next.filter(|piece| piece.start / self.chunk_size == number) {
            self.rest.start = piece.end;
            pieces.push(piece);
            next = self.piece()?;
        }
        Ok(Some((number, pieces)))
    }
}

/// A push under way.
struct Push<'p> {
    device: &'p dyn BlockDevice,
    address: &'p StoreAddress,
    transport: &'p dyn ObjectTransport,
    chunk_size: u64,
    /// Held while the device is asked for data: a lock without a level, which is outside of all.
    parts: std::sync::Mutex<Parts<'p>>,
    chunks: Mutex<Vec<(u64, ChunkDigest)>>,
    /// Chunks that are there, or on their way.
    known: Mutex<HashSet<ChunkDigest>>,
    sent_chunks: AtomicU64,
    sent_bytes: AtomicU64,
    failed: AtomicBool,
}

impl Push<'_> {
    /// Stores chunks until none is left.
    fn work(&self, stop: &AtomicBool, progress: &(dyn Fn(u64) + Sync)) -> io::Result<()> {
        loop {
            let next = self.parts.lock().unwrap_or_else(PoisonError::into_inner).next()?;
            let Some((number, pieces)) = next else { return Ok(()) };
            // Relaxed: the flags order nothing, and may be seen a chunk later.
            if stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if self.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let len = pieces.iter().map(|piece| piece.end - piece.start).sum();
            self.store(number, &pieces)?;
            progress(len);
        }
    }

    /// Reads the pieces of a chunk, and stores it unless it is zeroes or there.
    fn store(&self, number: u64, pieces: &[Range<u64>]) -> io::Result<()> {
        let start = number * self.chunk_size;
        let len = (self.device.len() - start).min(self.chunk_size);
        // Unused parts of the chunk are zeroes, also if the device has other bytes there.
        let mut data = vec![0; len as usize];
        for piece in pieces {
            let part = &mut data[(piece.start - start) as usize..(piece.end - start) as usize];
            self.device.read_exact_at(part, piece.start)?;
        }
        if data.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let digest = ChunkDigest::of(&data);
        self.chunks.lock().push((number, digest));
        if !self.known.lock().insert(digest) {
            return Ok(());
        }
        let object = StoreObject::Chunk(digest);
        let send = || {
            if self.transport.exists(object)? {
                return Ok(());
            }
            let stored = encode(&data);
            self.sent_bytes.fetch_add(stored.len() as u64, Ordering::Relaxed);
            self.sent_chunks.fetch_add(1, Ordering::Relaxed);
            self.transport.put(object, stored, true)
        };
        send().map_err(|error| named(self.address, object, error))
    }
}

/// Checks that a device still has its last byte: the missing part of a shortened file looks like a
/// hole.
fn check_end(device: &dyn BlockDevice) -> io::Result<()> {
    let unit = (device.alignment() as u64).max(1);
    let start = device.len().saturating_sub(1) / unit * unit;
    let mut end = vec![0; (device.len() - start) as usize];
    device.read_exact_at(&mut end, start)
}

/// Stores the parts `used` of a device, in ascending order, as an image. Chunks that are there are
/// not sent again. The manifest comes last: until then there is no image, or the former one.
///
/// # Errors
/// `AlreadyExists` if an image of the name is there and none may be replaced, `Interrupted` when
/// `stop` is set; those of the device and of the transport. The same push again goes on.
pub fn push(
    device: &dyn BlockDevice,
    used: &mut (dyn Iterator<Item = Range<u64>> + Send),
    (address, transport): (&StoreAddress, &dyn ObjectTransport),
    options: &PushOptions,
    (stop, progress): (&AtomicBool, &(dyn Fn(u64) + Sync)),
) -> io::Result<PushReport> {
    if !is_chunk_size(options.chunk_size.into()) {
        let text = "a chunk has a power of two from 4 KiB to 16 MiB";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let object = StoreObject::Manifest;
    let named = |error| named(address, object, error);
    if !options.replace && transport.exists(object).map_err(named)? {
        return Err(named(io::Error::new(io::ErrorKind::AlreadyExists, "the image exists")));
    }
    let chunk_size = u64::from(options.chunk_size);
    let push = Push {
        device,
        address,
        transport,
        chunk_size,
        parts: std::sync::Mutex::new(Parts { device, used, chunk_size, rest: 0..0 }),
        chunks: Mutex::new(Level::Leaf, Vec::new()),
        known: Mutex::new(Level::Leaf, HashSet::new()),
        sent_chunks: AtomicU64::new(0),
        sent_bytes: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    by_threads(options.threads, || {
        push.work(stop, progress).inspect_err(|_| push.failed.store(true, Ordering::Relaxed))
    })?;
    check_end(device)?;
    let mut chunks = push.chunks.into_inner();
    chunks.sort_unstable();
    let bytes =
        StoreManifest::new(device.len(), options.chunk_size, &chunks).map_err(named)?.encode();
    let manifest = ChunkDigest::of(&bytes);
    match transport.put(object, bytes.clone(), options.replace) {
        // The answer to a first attempt was lost, or another push stored the same image.
        Err(error)
            if error.kind() == io::ErrorKind::AlreadyExists
                && transport.get(object, MAX_MANIFEST, true).is_ok_and(|found| found == bytes) => {}
        stored => stored.map_err(named)?,
    }
    Ok(PushReport {
        manifest,
        chunks: chunks.len() as u64,
        sent_chunks: push.sent_chunks.into_inner(),
        sent_bytes: push.sent_bytes.into_inner(),
    })
}
