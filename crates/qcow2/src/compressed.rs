//! Compressed clusters, which are only read.
//!
//! # Locking
//! The lock of the cache (`Leaf`) is not held while a cluster is expanded.

use crate::header::{Header, REPAIR};
use extant_blocks::BlockDevice;
use extant_sync::{Level, Mutex};
use flate2::bufread::DeflateDecoder;
use ruzstd::decoding::StreamingDecoder;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;

/// Memory of expanded clusters in bytes, and the most clusters: readers take a cluster in several
/// requests.
const MEMORY: usize = 4 << 20;
const MAX_CLUSTERS: usize = 32;

/// Memory of a decoder of zstd for its window in bytes: that of the largest cluster.
const MAX_WINDOW: u64 = 2 << 20;

/// Expanded clusters by their entries, the newest last.
#[derive(Debug)]
pub(crate) struct Expanded {
    clusters: Mutex<VecDeque<(u64, Arc<[u8]>)>>,
    max: usize,
}

impl Expanded {
    /// Makes an empty cache.
    pub fn new(header: &Header) -> Expanded {
        let max = (MEMORY >> header.cluster_bits).clamp(2, MAX_CLUSTERS);
        Expanded { clusters: Mutex::new(Level::Leaf, VecDeque::new()), max }
    }

    /// Returns the content of the compressed cluster of an entry.
    ///
    /// # Errors
    /// `InvalidData` if it is not within the file, or cannot be expanded; those of the file.
    pub fn cluster(
        &self,
        header: &Header,
        file: &dyn BlockDevice,
        entry: u64,
    ) -> io::Result<Arc<[u8]>> {
        let known = |clusters: &VecDeque<(u64, Arc<[u8]>)>| {
            clusters.iter().find(|(key, _)| *key == entry).map(|(_, bytes)| bytes.clone())
        };
        if let Some(bytes) = known(&self.clusters.lock()) {
            return Ok(bytes);
        }
        let bytes = expand(header, file, entry)?;
        let mut clusters = self.clusters.lock();
        if clusters.len() >= self.max {
            clusters.pop_front();
        }
        clusters.push_back((entry, bytes.clone()));
        Ok(bytes)
    }
}

fn expand(header: &Header, file: &dyn BlockDevice, entry: u64) -> io::Result<Arc<[u8]>> {
    let (offset, len) = header.compressed_at(entry);
    // The last sector may end beyond the file.
    let len = len.min(file.len().saturating_sub(offset));
    let damaged = |cause: &str| {
        let text = format_args!("the compressed cluster at {offset} of its file {cause}");
        header.refuse(text, REPAIR)
    };
    if len == 0 {
        return Err(damaged("lies beyond the end"));
    }
    let mut packed = vec![0; len as usize];
    file.read_exact_at(&mut packed, offset)?;
    let mut bytes = vec![0; header.cluster() as usize];
    let done = if header.zstd {
        let decoder = StreamingDecoder::new_with_max_window_size(&packed[..], MAX_WINDOW);
        decoder.map_err(io::Error::other).and_then(|mut decoder| decoder.read_exact(&mut bytes))
    } else {
        DeflateDecoder::new(&packed[..]).read_exact(&mut bytes)
    };
    done.map_err(|_| damaged("cannot be expanded"))?;
    Ok(bytes.into())
}
