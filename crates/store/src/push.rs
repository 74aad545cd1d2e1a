//! Images stored.

use crate::address::{StoreAddress, StoreObject};
use crate::chunk::{decode, encode, max_stored};
use crate::digest::ChunkDigest;
use crate::image::named;
use crate::manifest::{CHUNK_SIZE, MAX_MANIFEST, StoreManifest, is_chunk_size};
use crate::pull::by_threads;
use crate::transport::ObjectTransport;
use extant_blocks::{BlockDevice, DataPieces};
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_sync::{Level, Mutex};
use std::collections::HashSet;
use std::io;
use std::iter::Peekable;
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
    /// Chunks that are there are fetched, and damaged ones replaced.
    pub verify: bool,
}

impl Default for PushOptions {
    fn default() -> PushOptions {
        PushOptions { chunk_size: CHUNK_SIZE, threads: 8, replace: false, verify: false }
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

/// The data of a device, as the pieces of one chunk after the other.
type Chunks<'p> = Peekable<DataPieces<'p>>;

/// Returns the number and the pieces of the next chunk that has any.
fn next_chunk(pieces: &mut Chunks<'_>, size: u64) -> io::Result<Option<(u64, Vec<Range<u64>>)>> {
    let Some(first) = pieces.next().transpose()? else { return Ok(None) };
    let number = first.start / size;
    let mut found = vec![first];
    // An error is told as that of the next chunk.
    let is_same = |next: &io::Result<Range<u64>>| {
        next.as_ref().is_ok_and(|piece| piece.start / size == number)
    };
    while let Some(piece) = pieces.next_if(is_same) {
        found.push(piece?);
    }
    Ok(Some((number, found)))
}

/// A push under way.
struct Push<'p> {
    device: &'p dyn BlockDevice,
    address: &'p StoreAddress,
    transport: &'p dyn ObjectTransport,
    chunk_size: u64,
    verify: bool,
    /// Held while the device is asked for data: a lock without a level, which is outside of all.
    pieces: std::sync::Mutex<Chunks<'p>>,
    chunks: Mutex<Vec<(u64, ChunkDigest)>>,
    /// Chunks that are there, or on their way.
    known: Mutex<HashSet<ChunkDigest>>,
    /// Relaxed, both: read after the threads have ended.
    sent_chunks: AtomicU64,
    sent_bytes: AtomicU64,
    failed: AtomicBool,
}

impl Push<'_> {
    /// Stores chunks until none is left.
    fn work(&self, stop: &AtomicBool, progress: &(dyn Fn(u64) + Sync)) -> io::Result<()> {
        loop {
            let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
            let next = next_chunk(&mut pieces, self.chunk_size)?;
            drop(pieces);
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
            if self.is_there(object, (&digest, data.len()))? {
                return Ok(());
            }
            let stored = encode(&data);
            self.sent_bytes.fetch_add(stored.len() as u64, Ordering::Relaxed);
            self.sent_chunks.fetch_add(1, Ordering::Relaxed);
            self.transport.put(object, stored, true)
        };
        send().map_err(|error| named(self.address, object, error))
    }

    /// Returns whether a chunk is there: by its name, or by its content if that is to be verified.
    fn is_there(
        &self,
        object: StoreObject,
        (digest, len): (&ChunkDigest, usize),
    ) -> io::Result<bool> {
        if !self.verify {
            return self.transport.exists(object);
        }
        let stored = self.transport.get(object, max_stored(len as u64), true);
        match stored.and_then(|stored| decode(&stored, len, digest)) {
            Ok(_) => Ok(true),
            Err(error) if is_wrong(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Returns whether an error tells that a chunk is missing or damaged.
fn is_wrong(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, InvalidData, NotFound};
    matches!(error.kind(), FileTooLarge | InvalidData | NotFound)
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
    used: Box<dyn Iterator<Item = Range<u64>> + Send + '_>,
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
        verify: options.verify,
        pieces: std::sync::Mutex::new(DataPieces::new(device, used, chunk_size).peekable()),
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
