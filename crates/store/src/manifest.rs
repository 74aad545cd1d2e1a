//! The list of an image's chunks.
//!
//! All numbers are little-endian:
//!
//! | bytes | content |
//! | --- | --- |
//! | 0 to 7 | `EXTANTSM` |
//! | 8 to 11 | version: 1 |
//! | 12 to 15 | bytes of a chunk: a power of two from 4 KiB to 16 MiB |
//! | 16 to 23 | bytes of the image |
//! | 24 to 31 | number of runs |
//! | 16 for each run | its first chunk, and the number of its chunks |
//! | 32 for each chunk | its SHA-256 digest, in the order of the runs |
//! | last 32 | SHA-256 digest of all bytes before |
//!
//! Chunks of no run are zeroes. The last chunk of an image may be shorter than the others.
//!
//! # Invariants
//! A [`StoreManifest`] has runs in ascending order that do not touch, within the image, and one
//! digest for each of their chunks.

use crate::digest::{ChunkDigest, DIGEST_LEN};
use std::io;
use std::ops::Range;

const MAGIC: &[u8; 8] = b"EXTANTSM";
const VERSION: u32 = 1;
const HEADER: usize = 32;
const RUN: usize = 16;

/// Maximum size of a manifest in bytes: 2 TiB of content in chunks of 256 KiB.
pub const MAX_MANIFEST: u64 = 256 << 20;

/// Bytes of a chunk, unless a push chooses others.
///
/// A read of a mount fetches a whole chunk: 256 KiB take about as long as the answer of a store.
/// Smaller chunks would cost more requests, which stores count, and larger ones are equal in two
/// images less often.
pub const CHUNK_SIZE: u32 = 256 << 10;

pub(crate) const MIN_CHUNK_SIZE: u32 = 4 << 10;
pub(crate) const MAX_CHUNK_SIZE: u32 = 16 << 20;

/// Maximum size of an image in bytes.
const MAX_IMAGE: u64 = 1 << 62;

/// Neighboring chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u64,
    count: u64,
    /// Position of its first digest in the list.
    at: usize,
}

/// The chunks of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreManifest {
    len: u64,
    chunk_size: u32,
    runs: Vec<Run>,
    digests: Vec<ChunkDigest>,
}

/// Returns whether chunks may have this size in bytes.
pub fn is_chunk_size(size: u64) -> bool {
    size.is_power_of_two() && (MIN_CHUNK_SIZE.into()..=MAX_CHUNK_SIZE.into()).contains(&size)
}

/// The bytes of a manifest that were not read yet.
struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take(&mut self, len: usize) -> Result<&'b [u8], String> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("it is too short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().unwrap_or_default()))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().unwrap_or_default()))
    }
}

impl StoreManifest {
    /// Makes the manifest of an image of `len` bytes from its chunks, by their numbers in ascending
    /// order.
    ///
    /// # Errors
    /// `InvalidInput` if the chunks are no list of this image, or too many.
    pub(crate) fn new(
        len: u64,
        chunk_size: u32,
        chunks: &[(u64, ChunkDigest)],
    ) -> io::Result<StoreManifest> {
        let mut runs: Vec<Run> = Vec::new();
        for (at, (number, _)) in chunks.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if run.first + run.count == *number => run.count += 1,
                _ => runs.push(Run { first: *number, count: 1, at }),
            }
        }
        let digests = chunks.iter().map(|(_, digest)| *digest).collect();
        let manifest = StoreManifest { len, chunk_size, runs, digests };
        let size = HEADER + manifest.runs.len() * RUN + (manifest.digests.len() + 1) * DIGEST_LEN;
        if size as u64 > MAX_MANIFEST {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the list of its chunks has {size} bytes; larger chunks make it shorter"),
            ));
        }
        manifest.check().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        Ok(manifest)
    }

    /// Parses a manifest.
    ///
    /// # Errors
    /// `InvalidData`, with the difference. Memory is bounded by the length of `bytes`.
    pub fn parse(bytes: &[u8]) -> io::Result<StoreManifest> {
        parse(bytes).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// Returns the manifest as it is stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.chunk_size.to_le_bytes());
        bytes.extend_from_slice(&self.len.to_le_bytes());
        bytes.extend_from_slice(&(self.runs.len() as u64).to_le_bytes());
        for run in &self.runs {
            bytes.extend_from_slice(&run.first.to_le_bytes());
            bytes.extend_from_slice(&run.count.to_le_bytes());
        }
        self.digests.iter().for_each(|digest| bytes.extend_from_slice(&digest.0));
        let own = ChunkDigest::of(&bytes);
        bytes.extend_from_slice(&own.0);
        bytes
    }

    /// Returns the length of the image in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no image is empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the bytes of a chunk.
    pub fn chunk_size(&self) -> u32 {
        self.chunk_size
    }

    /// Returns the number of stored chunks. Equal ones count each time.
    pub fn chunk_count(&self) -> u64 {
        self.digests.len() as u64
    }

    /// Returns the bytes of chunk `number`: the last one may be shorter.
    pub(crate) fn chunk_len(&self, number: u64) -> usize {
        let size = u64::from(self.chunk_size);
        self.len.saturating_sub(number.saturating_mul(size)).min(size) as usize
    }

    /// Returns the digest of chunk `number`; `None` for zeroes.
    pub(crate) fn digest(&self, number: u64) -> Option<ChunkDigest> {
        let run = self.runs.get(self.run_from(number)?)?;
        let place = usize::try_from(number.checked_sub(run.first)?).ok()?;
        self.digests.get(run.at + place).copied()
    }

    /// Returns the first run of stored chunks that ends behind chunk `number`.
    pub(crate) fn next_run(&self, number: u64) -> Option<Range<u64>> {
        let run = self.runs.get(self.run_from(number)?)?;
        Some(run.first.max(number)..run.first + run.count)
    }

    /// Returns all stored chunks, by their numbers.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (u64, ChunkDigest)> + Send + '_ {
        self.runs
            .iter()
            .flat_map(|run| run.first..run.first + run.count)
            .zip(self.digests.iter().copied())
    }

    /// Returns the place of the first run that ends behind chunk `number`.
    fn run_from(&self, number: u64) -> Option<usize> {
        let place = self.runs.partition_point(|run| run.first + run.count <= number);
        (place < self.runs.len()).then_some(place)
    }

    fn check(&self) -> Result<(), String> {
        if !is_chunk_size(self.chunk_size.into()) {
            return Err(format!(
                "its chunks have {} bytes, which is no power of two from {MIN_CHUNK_SIZE} to \
                 {MAX_CHUNK_SIZE}",
                self.chunk_size
            ));
        }
        if self.len == 0 || self.len > MAX_IMAGE {
            return Err(format!("its image has {} bytes", self.len));
        }
        let total = self.len.div_ceil(self.chunk_size.into());
        let (mut end, mut count) = (None, 0u64);
        for run in &self.runs {
            let last = run.first.checked_add(run.count).filter(|last| *last <= total);
            let follows = end.is_none_or(|end| run.first > end);
            let (Some(last), true, true) = (last, run.count > 0, follows) else {
                return Err(format!(
                    "its run of {} chunks from number {} is not behind the one before it, or not \
                     in the image of {total} chunks",
                    run.count, run.first
                ));
            };
            end = Some(last);
            count += run.count;
        }
        if count != self.digests.len() as u64 {
            return Err(format!("it has {} digests for {count} chunks", self.digests.len()));
        }
        Ok(())
    }
}

fn parse(bytes: &[u8]) -> Result<StoreManifest, String> {
    if !bytes.starts_with(MAGIC) {
        return Err("it does not begin like a manifest".into());
    }
    let end = bytes.len().checked_sub(DIGEST_LEN).ok_or("it is too short")?;
    let (content, own) = bytes.split_at(end);
    if ChunkDigest::of(content).0 != own {
        return Err("its content has not the digest at its end".into());
    }
    let mut rest = Bytes(content);
    rest.take(MAGIC.len())?;
    let version = rest.u32()?;
    if version != VERSION {
        return Err(format!("its version is {version}; this program reads version {VERSION}"));
    }
    let (chunk_size, len, count) = (rest.u32()?, rest.u64()?, rest.u64()?);
    // As many as there are bytes for: a number alone costs no memory.
    let count = usize::try_from(count).ok().filter(|count| *count <= rest.0.len() / RUN);
    let count = count.ok_or("it has fewer runs than it says")?;
    let (mut runs, mut at) = (Vec::with_capacity(count), 0);
    for _ in 0..count {
        let (first, count) = (rest.u64()?, rest.u64()?);
        runs.push(Run { first, count, at });
        at = usize::try_from(count)
            .ok()
            .and_then(|count| at.checked_add(count))
            .ok_or("it has too many chunks")?;
    }
    if rest.0.len() % DIGEST_LEN != 0 || rest.0.len() / DIGEST_LEN != at {
        return Err(format!("it has {} bytes of digests for {at} chunks", rest.0.len()));
    }
    let digests = rest
        .0
        .chunks_exact(DIGEST_LEN)
        .map(|bytes| ChunkDigest(bytes.try_into().unwrap_or_default()));
    let manifest = StoreManifest { len, chunk_size, runs, digests: digests.collect() };
    manifest.check()?;
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_sync::SplitMix64;

    fn digest(number: u64) -> ChunkDigest {
        ChunkDigest::of(&number.to_le_bytes())
    }

    fn sample() -> StoreManifest {
        let chunks = [0, 1, 2, 7, 9, 10].map(|number| (number, digest(number)));
        StoreManifest::new(10 * 4096 + 100, 4096, &chunks).unwrap()
    }

    #[test]
    fn manifests_are_parsed_as_they_are_stored() {
        let manifest = sample();
        assert_eq!(StoreManifest::parse(&manifest.encode()).unwrap(), manifest);
        let empty = StoreManifest::new(1, CHUNK_SIZE, &[]).unwrap();
        assert_eq!(StoreManifest::parse(&empty.encode()).unwrap(), empty);
        assert_eq!(empty.next_run(0), None);
    }

    #[test]
    fn chunks_are_found_by_their_numbers() {
        let manifest = sample();
        for number in 0..12 {
            let stored = [0, 1, 2, 7, 9, 10].contains(&number);
            assert_eq!(manifest.digest(number), stored.then(|| digest(number)), "{number}");
        }
        assert_eq!(manifest.next_run(1), Some(1..3));
        assert_eq!(manifest.next_run(3), Some(7..8));
        assert_eq!(manifest.next_run(8), Some(9..11));
        assert_eq!(manifest.next_run(11), None);
        assert_eq!(
            (manifest.chunk_len(9), manifest.chunk_len(10), manifest.chunk_len(11)),
            (4096, 100, 0)
        );
        assert_eq!(
            manifest.chunks().map(|(number, _)| number).collect::<Vec<_>>(),
            [0, 1, 2, 7, 9, 10]
        );
    }

    /// Replaces bytes, and makes the digest at the end right.
    fn forged(place: usize, with: &[u8]) -> io::Result<StoreManifest> {
        let mut bytes = sample().encode();
        bytes[place..place + with.len()].copy_from_slice(with);
        sealed(bytes)
    }

    fn sealed(mut bytes: Vec<u8>) -> io::Result<StoreManifest> {
        bytes.truncate(bytes.len() - DIGEST_LEN);
        let own = ChunkDigest::of(&bytes);
        bytes.extend_from_slice(&own.0);
        StoreManifest::parse(&bytes)
    }

    #[test]
    fn lies_are_refused() {
        let refused = |place, with: &[u8], text: &str| {
            let error = forged(place, with).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        refused(0, b"X", "does not begin like");
        refused(8, &[2], "version is 2");
        refused(12, &3u32.to_le_bytes(), "no power of two");
        refused(12, &(1u32 << 31).to_le_bytes(), "no power of two");
        refused(16, &0u64.to_le_bytes(), "image has 0 bytes");
        refused(16, &u64::MAX.to_le_bytes(), "image has");
        refused(16, &4096u64.to_le_bytes(), "not in the image");
        refused(24, &u64::MAX.to_le_bytes(), "fewer runs");
        refused(24, &1u64.to_le_bytes(), "bytes of digests");
        refused(32, &u64::MAX.to_le_bytes(), "not behind");
        refused(40, &u64::MAX.to_le_bytes(), "");
        refused(40, &0u64.to_le_bytes(), "digests");
        refused(48, &2u64.to_le_bytes(), "not behind");
        let mut torn = sample().encode();
        torn[100] ^= 1;
        assert!(StoreManifest::parse(&torn).unwrap_err().to_string().contains("digest at its end"));
    }

    #[test]
    fn mutations_are_errors_or_lists_within_the_image() {
        let mut random = SplitMix64::new(7);
        let whole = sample().encode();
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.below(4) {
                let place = random.below(bytes.len() as u64) as usize;
                bytes[place] =
                    [0, 1, 0x7f, 0xff, random.below(256) as u8][random.below(5) as usize];
            }
            bytes.truncate(
                whole.len()
                    - random.below(2) as usize * random.below(whole.len() as u64 - 31) as usize,
            );
            if let Ok(manifest) = sealed(bytes) {
                let end = manifest.len().div_ceil(manifest.chunk_size().into());
                assert!(manifest.chunks().all(|(number, digest)| {
                    number < end
                        && manifest.digest(number) == Some(digest)
                        && manifest.chunk_len(number) > 0
                }));
            }
        }
    }
}
