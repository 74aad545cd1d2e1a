//! Chunks as they are stored: one zstd frame, whose content has the digest that names the object.

use crate::digest::ChunkDigest;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::{self, Read};

/// Maximum window of a frame in bytes: frames of other programs have at most the largest chunk.
const MAX_WINDOW: u64 = crate::manifest::MAX_CHUNK_SIZE as u64;

/// Returns the stored form of a chunk.
pub(crate) fn encode(data: &[u8]) -> Vec<u8> {
    compress_to_vec(data, CompressionLevel::Fastest)
}

/// Returns the greatest length of the stored form of a chunk of `len` bytes: a frame of raw blocks.
pub(crate) fn max_stored(len: u64) -> u64 {
    len + len / 128 + 1024
}

/// Returns the content of a stored chunk of `len` bytes, with this digest.
///
/// # Errors
/// `InvalidData`, with the difference. No more than `len` bytes are decompressed.
pub(crate) fn decode(stored: &[u8], len: usize, digest: &ChunkDigest) -> io::Result<Vec<u8>> {
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let (mut data, mut rest) = (Vec::with_capacity(len), stored);
    StreamingDecoder::new_with_max_window_size(&mut rest, MAX_WINDOW)
        .map_err(|error| wrong(format!("no frame of zstd: {error}")))?
        .take(len as u64 + 1)
        .read_to_end(&mut data)
        .map_err(|error| wrong(format!("the compressed data is damaged: {error}")))?;
    if data.len() != len {
        let more = if data.len() > len { "more" } else { "fewer" };
        return Err(wrong(format!("it has {more} than {len} bytes")));
    }
    if !rest.is_empty() {
        return Err(wrong(format!("{} bytes lie behind its frame", rest.len())));
    }
    let found = ChunkDigest::of(&data);
    if found != *digest {
        return Err(wrong(format!("its content has the digest {found}")));
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_decoded_as_they_were() {
        let noise: Vec<u8> =
            (0..100_000_u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        for data in [&b"x"[..], &[7; 70_000], &noise] {
            let stored = encode(data);
            assert!(stored.len() as u64 <= max_stored(data.len() as u64));
            assert_eq!(decode(&stored, data.len(), &ChunkDigest::of(data)).unwrap(), data);
        }
    }

    #[test]
    fn wrong_chunks_are_errors() {
        let data = [7; 70_000];
        let (stored, digest) = (encode(&data), ChunkDigest::of(&data));
        let refused = |stored: &[u8], len, digest: &ChunkDigest, text: &str| {
            let error = decode(stored, len, digest).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        };
        refused(&stored, 69_999, &digest, "more than 69999");
        refused(&stored, 70_001, &digest, "fewer than 70001");
        refused(&encode(&[8; 70_000]), 70_000, &digest, "has the digest");
        refused(b"", 1, &digest, "no frame");
        for at in 0..stored.len() {
            let mut bad = stored.clone();
            bad[at] ^= 0x55;
            // Bits of the header may have no meaning.
            assert!(decode(&bad, data.len(), &digest).map_or(true, |got| got == data), "{at}");
            assert!(decode(&stored[..at], data.len(), &digest).is_err(), "{at}");
        }
    }
}
