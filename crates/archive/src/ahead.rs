//! A stream that a thread reads ahead of its consumer, so that decompression and the use of its
//! bytes take two processors.

use crate::stream::{PIECE, Stream};
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

/// Pieces that wait for the consumer.
const WAITING: usize = 8;

/// A reader with a thread. The thread ends at the end of the stream, at an error, and after the
/// reader is dropped.
pub(crate) struct Ahead {
    /// Pieces in their order; an empty one is the end.
    filled: Receiver<io::Result<Vec<u8>>>,
    /// Pieces to be filled again.
    used: Sender<Vec<u8>>,
    piece: Vec<u8>,
    at: usize,
    ended: bool,
}

impl Ahead {
    /// Starts a thread that reads a stream.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn new(stream: impl Read + Send + 'static) -> io::Result<Ahead> {
        let (to_consumer, filled) = sync_channel(WAITING);
        let (used, to_thread) = channel();
        let run = move || read_all(stream, &to_consumer, &to_thread);
        thread::Builder::new().name("extant-archive".into()).spawn(run)?;
        Ok(Ahead { filled, used, piece: Vec::new(), at: 0, ended: false })
    }

    /// Returns the next bytes, `max` at most; none at the end.
    fn take(&mut self, max: usize) -> io::Result<&[u8]> {
        if self.at == self.piece.len() && !self.ended {
            self.next_piece()?;
        }
        let start = self.at;
        self.at = self.piece.len().min(start.saturating_add(max));
        Ok(self.piece.get(start..self.at).unwrap_or_default())
    }

    fn next_piece(&mut self) -> io::Result<()> {
        // The thread sends the end itself, so a lost connection means a panic in a decoder.
        let lost = || io::Error::other("the decoder of the compressed data has failed");
        let piece = self.filled.recv().map_err(|_| lost())??;
        self.ended = piece.is_empty();
        let used = std::mem::replace(&mut self.piece, piece);
        self.at = 0;
        // After its last piece the thread takes none back.
        let _ = self.used.send(used);
        Ok(())
    }
}

fn read_all(
    mut stream: impl Read,
    consumer: &SyncSender<io::Result<Vec<u8>>>,
    used: &Receiver<Vec<u8>>,
) {
    loop {
        let mut piece = used.try_recv().unwrap_or_default();
        piece.resize(PIECE, 0);
        let read = loop {
            match stream.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let is_last = !matches!(read, Ok(1..));
        let sent = consumer.send(read.map(|len| {
            piece.truncate(len);
            piece
        }));
        if is_last || sent.is_err() {
            return;
        }
    }
}

impl Read for Ahead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let part = self.take(buf.len())?;
        let len = part.len();
        buf[..len].copy_from_slice(part);
        Ok(len)
    }
}

impl Stream for Ahead {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let mut left = count;
        while left > 0 {
            let max = usize::try_from(left).unwrap_or(usize::MAX);
            match self.take(max)?.len() as u64 {
                0 => break,
                len => left -= len,
            }
        }
        Ok(count - left)
    }

    fn part<'a>(&'a mut self, buf: &'a mut [u8]) -> io::Result<&'a [u8]> {
        self.take(buf.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Panicking(u32);

    impl Read for Panicking {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0 -= 1;
            buf[0] = self.0 as u8;
            Ok(1)
        }
    }

    #[test]
    fn bytes_arrive_in_their_order() {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7) as u8).collect();
        let mut found = Vec::new();
        let mut ahead = Ahead::new(io::Cursor::new(bytes.clone())).unwrap();
        ahead.read_to_end(&mut found).unwrap();
        assert!(found == bytes);
        assert_eq!(ahead.read(&mut [0; 10]).unwrap(), 0);
    }

    #[test]
    fn parts_are_passed_over_and_lent() {
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| (n / 7) as u8).collect();
        let mut ahead = Ahead::new(io::Cursor::new(bytes.clone())).unwrap();
        assert_eq!(ahead.skip(700_001).unwrap(), 700_001);
        let (mut found, mut buf) = (Vec::new(), [0; 1000]);
        while let part @ [_, ..] = ahead.part(&mut buf).unwrap() {
            assert!(part.len() <= 1000);
            found.extend_from_slice(part);
        }
        assert!(found == bytes[700_001..]);
        assert_eq!((ahead.skip(1).unwrap(), ahead.skip(0).unwrap()), (0, 0));
    }

    #[test]
    fn a_panic_in_a_decoder_is_an_error() {
        let mut found = Vec::new();
        let error = Ahead::new(Panicking(3)).unwrap().read_to_end(&mut found).unwrap_err();
        assert!(error.to_string().contains("has failed"));
        assert_eq!(found, [2, 1, 0]);
    }
}
