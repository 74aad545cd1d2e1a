//! Compressed output, by several threads.
//!
//! The bytes are divided into blocks of a fixed size, each of which becomes a member (gzip) or
//! frame (zstd) of its own. Decompressors take a sequence of these for one stream, and its bytes
//! do not depend on the number of threads.

use crate::ordered::{self, Pusher};
use flate2::{Compression as Level, GzBuilder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::{self, Write};

/// Bytes of a block.
const BLOCK: usize = 1 << 20;

/// Bytes of blocks that are compressed at a time.
const AHEAD: u64 = 32 << 20;

/// A way to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Compression {
    /// No compression.
    None,
    /// gzip, which every program reads.
    Gzip,
    /// Zstandard, which is faster.
    Zstd,
}

impl Compression {
    fn compress(self, block: Vec<u8>) -> io::Result<Vec<u8>> {
        match self {
            Compression::None => Ok(block),
            Compression::Gzip => {
                let out = Vec::with_capacity(block.len() / 2);
                // The header has neither a time nor the system.
                let mut gzip = GzBuilder::new().mtime(0).write(out, Level::new(6));
                gzip.write_all(&block)?;
                gzip.finish()
            }
            Compression::Zstd => Ok(compress_to_vec(block.as_slice(), CompressionLevel::Fastest)),
        }
    }
}

/// Calls `fill` with a writer, and writes its bytes, compressed by `threads` threads, to `out`.
///
/// # Errors
/// Those of `fill` and of `out`.
pub fn through<R>(
    compression: Compression,
    threads: usize,
    out: &mut dyn Write,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<R>,
) -> io::Result<R> {
    let mut filled = None;
    ordered::run(
        (threads, AHEAD),
        |block| compression.compress(block),
        |block: io::Result<Vec<u8>>| out.write_all(&block?),
        |pusher| {
            let mut blocks = Blocks { block: Vec::with_capacity(BLOCK), pusher };
            filled = Some(fill(&mut blocks)?);
            blocks.push()
        },
    )?;
    filled.ok_or_else(|| io::Error::other("the writer of a compressed stream is gone"))
}

/// Collects bytes into blocks.
struct Blocks<'a, 'p, C> {
    block: Vec<u8>,
    pusher: &'a mut Pusher<'p, Vec<u8>, io::Result<Vec<u8>>, C>,
}

impl<C: FnMut(io::Result<Vec<u8>>) -> io::Result<()>> Blocks<'_, '_, C> {
    fn push(&mut self) -> io::Result<()> {
        let block = std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK));
        if block.is_empty() { Ok(()) } else { self.pusher.push(block, BLOCK as u64) }
    }
}

impl<C: FnMut(io::Result<Vec<u8>>) -> io::Result<()>> Write for Blocks<'_, '_, C> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let len = data.len().min(BLOCK - self.block.len());
        self.block.extend_from_slice(&data[..len]);
        if self.block.len() == BLOCK {
            self.push()?;
        }
        Ok(len)
    }

    /// Does nothing: a block that ends early would change the bytes of the stream.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
