//! Reader of all streams of a bzip2 file.
//!
//! A decoder has memory of 4 MB that is filled with zeroes at the begin of each stream. Empty
//! streams, of 14 bytes, would cost a thousand times the work of other input: they get no decoder.

use crate::stream::fill;
use bzip2::bufread::BzDecoder;
use std::io::{self, BufRead, Chain, Cursor, Read};

/// Bytes of a stream without content.
const EMPTY: usize = 14;

/// The bytes behind the digit of the size of blocks in such a stream: the mark of its end, and the
/// checksum of nothing.
const EMPTY_END: [u8; 10] = [0x17, 0x72, 0x45, 0x38, 0x50, 0x90, 0, 0, 0, 0];

/// The first bytes of a stream with its reader after them.
type Started<R> = Chain<Cursor<Vec<u8>>, R>;

/// Reader of all streams of a bzip2 file.
pub(crate) struct BzStreams<R> {
    state: State<R>,
}

enum State<R> {
    Between(R),
    Inside(Box<BzDecoder<Started<R>>>),
    End,
}

impl<R: BufRead> BzStreams<R> {
    pub(crate) fn new(input: R) -> BzStreams<R> {
        BzStreams { state: State::Between(input) }
    }

    /// Begins the next stream with content.
    fn begin(mut input: R) -> io::Result<State<R>> {
        loop {
            let mut start = [0; EMPTY];
            let filled = fill(&mut input, &mut start)?;
            match &start[..filled] {
                [] => return Ok(State::End),
                [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..] if *rest == EMPTY_END => {}
                start => {
                    let all = Cursor::new(start.to_vec()).chain(input);
                    return Ok(State::Inside(Box::new(BzDecoder::new(all))));
                }
            }
        }
    }
}

impl<R: BufRead> Read for BzStreams<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, State::End) {
                State::End => return Ok(0),
                State::Between(input) => self.state = Self::begin(input)?,
                State::Inside(mut decoder) => match decoder.read(buf)? {
                    // No stream is shorter than the bytes in front of its reader.
                    0 if !buf.is_empty() => {
                        self.state = State::Between(decoder.into_inner().into_inner().1);
                    }
                    read => {
                        self.state = State::Inside(decoder);
                        return Ok(read);
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bzip2::Compression;
    use bzip2::bufread::BzEncoder;
    use std::io::BufReader;

    fn packed(content: &[u8], level: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = BzEncoder::new(content, Compression::new(level));
        encoder.read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn unpacked(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        // Pieces that end anywhere within a stream.
        let input = BufReader::with_capacity(5, bytes);
        BzStreams::new(input).read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn empty_streams_between_others_are_passed_over() {
        let long = vec![b'l'; 100_000];
        let parts: [&[u8]; 7] = [b"", b"a", b"", b"", &long, b"b", b""];
        let mut bytes = Vec::new();
        for (level, part) in (1..).zip(parts) {
            bytes.extend(packed(part, level));
        }
        assert!(unpacked(&bytes).unwrap() == parts.concat());
        assert!(unpacked(&[]).unwrap().is_empty());
        for end in [bytes.len() - 1, bytes.len() - 13, 5] {
            unpacked(&bytes[..end]).unwrap_err();
        }
        bytes.extend(b"no stream");
        unpacked(&bytes).unwrap_err();
    }

    #[test]
    fn empty_streams_get_no_decoder() {
        let bytes = packed(b"", 9).repeat(1000);
        assert!(matches!(BzStreams::begin(&bytes[..]), Ok(State::End)));
    }
}
