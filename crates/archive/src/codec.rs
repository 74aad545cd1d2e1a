//! Compression of archives, recognized by the first bytes.
//!
//! All decoders verify the checksums of their format, read concatenated streams, and have a bound
//! on memory. A stream that expands to much more than its size is refused as a bomb.

use crate::bzip::BzStreams;
use crate::stream::{PIECE, Sequential, Stream, fill};
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use std::error::Error;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that show the compression.
const MAGIC: usize = 6;

/// Maximum memory of a decoder for its window, in bytes: the limit of `zstd -d`, and more than all
/// presets of xz need.
const MAX_WINDOW: u64 = 128 << 20;

/// Bytes that any stream may expand to.
const FREE_EXPANSION: u64 = 4 << 30;

/// Maximum ratio of expansion beyond.
const MAX_EXPANSION: u64 = 1000;

/// Compression of an archive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
    Bzip2,
}

impl Compression {
    /// Returns the compression of a stream that begins with these bytes.
    pub(crate) fn of(start: &[u8]) -> Compression {
        match start {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Compression::Bzip2,
            _ => Compression::None,
        }
    }
}

/// A stream whose compression is known and removed.
pub(crate) struct Decoded {
    /// Uncompressed bytes.
    pub stream: Box<dyn Stream + Send>,
    /// Bytes that were taken from the input.
    pub consumed: Arc<AtomicU64>,
}

/// Removes the compression of a stream.
///
/// # Errors
/// Those of the input.
pub(crate) fn decode(mut input: impl Read + Send + 'static) -> io::Result<Decoded> {
    let mut start = vec![0; MAGIC];
    let filled = fill(&mut input, &mut start)?;
    start.truncate(filled);
    let compression = Compression::of(&start);
    let consumed = Arc::new(AtomicU64::new(0));
    let all = Cursor::new(start).chain(input);
    let counted = Counted { inner: all, consumed: consumed.clone() };
    let input = BufReader::with_capacity(PIECE, counted);
    let reader: Box<dyn Read + Send> = match compression {
        Compression::None => {
            let stream = Box::new(Sequential(input));
            return Ok(Decoded { stream, consumed });
        }
        Compression::Gzip => Box::new(MultiGzDecoder::new(input)),
        Compression::Zstd => Box::new(ZstdFrames { state: ZstdState::Between(input) }),
        Compression::Xz => {
            Box::new(XzReader::new_mem_limit(input, true, (MAX_WINDOW >> 10) as u32))
        }
        Compression::Bzip2 => Box::new(BzStreams::new(input)),
    };
    let bounded = Bounded { inner: reader, produced: 0, consumed: consumed.clone() };
    let stream = Box::new(Sequential(bounded));
    Ok(Decoded { stream, consumed })
}

/// Counts the bytes that are read.
struct Counted<R> {
    inner: R,
    consumed: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buf)?;
        // Relaxed: a sum that bounds memory, and publishes nothing else.
        self.consumed.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Refuses a stream that expands too much.
struct Bounded<R> {
    inner: R,
    produced: u64,
    consumed: Arc<AtomicU64>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buf).map_err(|error| {
            if is_end(&error) {
                return io::Error::other("the compressed data is truncated");
            }
            io::Error::new(error.kind(), format!("the compressed data is damaged: {error}"))
        })?;
        self.produced += read as u64;
        let limit = self.consumed.load(Ordering::Relaxed).saturating_mul(MAX_EXPANSION);
        if self.produced > limit.max(FREE_EXPANSION) {
            return Err(io::Error::other(format!(
                "the compressed data expands to more than {MAX_EXPANSION} times its size; \
                 decompress it first if that is intended"
            )));
        }
        Ok(read)
    }
}

/// Returns whether the end of the input is the cause of an error.
fn is_end(error: &io::Error) -> bool {
    let is_io_end = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref().is_some_and(is_io_end) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Magic number of a frame with its reader after it.
type Frame<R> = Chain<Cursor<[u8; 4]>, R>;

/// Reader of all frames of a zstd stream.
struct ZstdFrames<R: Read> {
    state: ZstdState<R>,
}

enum ZstdState<R: Read> {
    Between(R),
    Inside(Box<StreamingDecoder<Frame<R>, FrameDecoder>>),
    End,
}

impl<R: BufRead> ZstdFrames<R> {
    /// Begins the next frame; passes over frames without content.
    fn begin(mut input: R) -> io::Result<ZstdState<R>> {
        loop {
            let mut magic = [0; 4];
            match fill(&mut input, &mut magic)? {
                0 => return Ok(ZstdState::End),
                4 => {}
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            if !matches!(magic, [0x50..=0x5f, 0x2a, 0x4d, 0x18]) {
                let frame = Cursor::new(magic).chain(input);
                let decoder = StreamingDecoder::new_with_max_window_size(frame, MAX_WINDOW);
                return decoder.map(Box::new).map(ZstdState::Inside).map_err(io::Error::other);
            }
            let mut len = [0; 4];
            input.read_exact(&mut len)?;
            let len = u64::from(u32::from_le_bytes(len));
            if Sequential(&mut input).skip(len)? < len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn end(decoder: StreamingDecoder<Frame<R>, FrameDecoder>) -> io::Result<R> {
        let (frame, decoder) = decoder.into_parts();
        let stored = decoder.get_checksum_from_data();
        if stored.is_some() && stored != decoder.get_calculated_checksum() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum is wrong"));
        }
        Ok(frame.into_inner().1)
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, ZstdState::End) {
                ZstdState::End => return Ok(0),
                ZstdState::Between(input) => self.state = Self::begin(input)?,
                ZstdState::Inside(mut decoder) => match decoder.read(buf)? {
                    0 if !buf.is_empty() => self.state = ZstdState::Between(Self::end(*decoder)?),
                    read => {
                        self.state = ZstdState::Inside(decoder);
                        return Ok(read);
                    }
                },
            }
        }
    }
}
