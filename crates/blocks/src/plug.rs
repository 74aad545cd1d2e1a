//! A collection of writes, sorted and merged before they reach the device.
//!
//! For example, writes of blocks 20, 8 and 9 become two requests: blocks 8 to 9, and block 20.

use crate::BlockDevice;
use crate::device::total_len;
use extant_sync::Arc;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::thread::Builder;

/// The most pieces of one request, which is also the limit of the operating system.
const MAX_PIECES: usize = 1024;

/// The least bytes for a thread of its own: a millisecond or more on any device.
pub const SHARE: usize = 4 << 20;

/// The bytes of one write.
#[derive(Clone, Debug)]
pub enum Piece<'a> {
    /// Frozen bytes shared with other owners, such as a block's snapshot.
    Shared(Arc<[u8]>),
    /// Bytes that outlive the plug.
    Borrowed(&'a [u8]),
    /// Bytes owned by this write.
    Owned(Vec<u8>),
}

impl Deref for Piece<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Piece::Shared(bytes) => bytes,
            Piece::Borrowed(bytes) => bytes,
            Piece::Owned(bytes) => bytes,
        }
    }
}

impl From<Arc<[u8]>> for Piece<'_> {
    fn from(bytes: Arc<[u8]>) -> Self {
        Piece::Shared(bytes)
    }
}

impl<'a> From<&'a [u8]> for Piece<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Piece::Borrowed(bytes)
    }
}

impl From<Vec<u8>> for Piece<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Piece::Owned(bytes)
    }
}

/// The work of a plug.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlugStats {
    /// Writes added.
    pub pieces: u64,
    /// Requests to the device.
    pub requests: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// A collection of writes, which are submitted in the order of their offsets, adjacent ones as one
/// request.
///
/// If any writes overlap, all writes are submitted one by one in the order of their addition, so
/// that the last one wins.
#[must_use]
pub struct Plug<'a> {
    device: &'a dyn BlockDevice,
    pieces: Vec<(u64, Piece<'a>)>,
}

impl<'a> Plug<'a> {
    /// Makes a plug without writes.
    pub fn new(device: &'a dyn BlockDevice) -> Self {
        Plug { device, pieces: Vec::new() }
    }

    /// Adds a write of `bytes` at `offset`.
    pub fn add(&mut self, offset: u64, bytes: impl Into<Piece<'a>>) {
        let piece = bytes.into();
        if !piece.is_empty() {
            self.pieces.push((offset, piece));
        }
    }

    /// Returns whether no writes were added.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the number of writes added.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Submits all writes and returns when they are complete. They are not durable yet.
    ///
    /// # Errors
    /// The first error of the device. The other requests are submitted nevertheless.
    pub fn finish(self) -> io::Result<PlugStats> {
        let mut first_error = Ok(());
        let stats = self.finish_each(|_, _, result| {
            if let (Err(error), Ok(())) = (result, &first_error) {
                first_error = Err(error);
            }
        });
        first_error.map(|()| stats)
    }

    /// Submits all writes and passes each request's offset, length in bytes and result to `done`.
    pub fn finish_each(self, done: impl FnMut(u64, u64, io::Result<()>)) -> PlugStats {
        self.finish_by(1, done)
    }

    /// As [`Self::finish_each`], by at most `threads` threads including this one, each with at
    /// least `SHARE` bytes. Overlapping writes are submitted by this thread alone. If a thread
    /// cannot be started, the caller does its part.
    pub fn finish_by(
        mut self,
        threads: usize,
        mut done: impl FnMut(u64, u64, io::Result<()>),
    ) -> PlugStats {
        let order = self.sort();
        let most = if order == Order::Sorted { threads } else { 1 };
        let mut stats = PlugStats { pieces: self.pieces.len() as u64, ..PlugStats::default() };
        for Done { offset, len, result } in submit(self.device, &self.pieces, order, most) {
            stats.requests += 1;
            stats.bytes += len;
            done(offset, len, result);
        }
        stats
    }

    /// Sorts the writes by offset, unless any overlap.
    fn sort(&mut self) -> Order {
        let end = |(at, piece): &(u64, Piece<'_>)| at.saturating_add(piece.len() as u64);
        if self.pieces.windows(2).all(|pair| end(&pair[0]) <= pair[1].0) {
            return Order::Sorted;
        }
        let mut sorted: Vec<(u64, u64)> =
            self.pieces.iter().map(|(at, piece)| (*at, piece.len() as u64)).collect();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0].0.saturating_add(pair[0].1) > pair[1].0) {
            return Order::AsAdded;
        }
        self.pieces.sort_unstable_by_key(|(offset, _)| *offset);
        Order::Sorted
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Sorted,
    AsAdded,
}

/// A finished request.
struct Done {
    offset: u64,
    len: u64,
    result: io::Result<()>,
}

/// Writes pieces by up to `threads` threads, if there is enough work for each.
fn submit(
    device: &dyn BlockDevice,
    pieces: &[(u64, Piece<'_>)],
    order: Order,
    threads: usize,
) -> Vec<Done> {
    let bytes =
        |pieces: &[(u64, Piece<'_>)]| pieces.iter().map(|(_, piece)| piece.len()).sum::<usize>();
    if threads < 2 || bytes(pieces) < 2 * SHARE {
        return one_by_one(device, pieces, order);
    }
    let (mut left, half) = (0, bytes(pieces) / 2);
    let is_left = |(_, piece): &&(u64, Piece<'_>)| {
        left += piece.len();
        left <= half
    };
    let (own, others) = pieces.split_at(pieces.iter().take_while(is_left).count());
    let (many, rest) = (threads.div_ceil(2), threads / 2);
    std::thread::scope(|scope| {
        let theirs = || submit(device, others, order, rest);
        let other = Builder::new().name("extant-submit".into()).spawn_scoped(scope, theirs);
        let mut done = submit(device, own, order, many);
        // The writes of a thread that panicked are unknown, so all of them are repeated.
        let theirs = other.ok().and_then(|other| other.join().ok());
        done.extend(theirs.unwrap_or_else(|| one_by_one(device, others, order)));
        done
    })
}

fn one_by_one(device: &dyn BlockDevice, mut rest: &[(u64, Piece<'_>)], order: Order) -> Vec<Done> {
    let mut done = Vec::new();
    while let Some(((offset, _), _)) = rest.split_first() {
        let count = if order == Order::Sorted { adjacent(rest) } else { 1 };
        let (request, after) = rest.split_at(count);
        let slices: Vec<IoSlice<'_>> =
            request.iter().map(|(_, piece)| IoSlice::new(piece)).collect();
        let len = total_len(&slices);
        done.push(Done {
            offset: *offset,
            len,
            result: device.write_vectored_at(&slices, *offset),
        });
        rest = after;
    }
    done
}

/// Returns how many of the first pieces follow each other without a gap; at least one.
fn adjacent(pieces: &[(u64, Piece<'_>)]) -> usize {
    let follows = |pair: &&[(u64, Piece<'_>)]| {
        pair[0].0.checked_add(pair[0].1.len() as u64) == Some(pair[1].0)
    };
    let followers = pieces.windows(2).take_while(follows).count();
    (1 + followers).min(MAX_PIECES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    #[test]
    fn adjacent_writes_become_one_request() {
        let device = MemDevice::new(100);
        let mut plug = Plug::new(&device);
        plug.add(20, vec![3; 10]);
        plug.add(0, &[1; 10][..]);
        plug.add(50, vec![5; 10]);
        plug.add(10, Arc::<[u8]>::from(vec![2; 10]));
        plug.add(70, vec![]);
        let stats = plug.finish().unwrap();
        assert_eq!(stats, PlugStats { pieces: 4, requests: 2, bytes: 40 });
        let bytes = device.to_vec();
        assert_eq!((bytes[5], bytes[15], bytes[25], bytes[35], bytes[55]), (1, 2, 3, 0, 5));
    }

    #[test]
    fn the_last_of_overlapping_writes_wins() {
        let device = MemDevice::new(100);
        let mut plug = Plug::new(&device);
        plug.add(5, vec![1; 10]);
        plug.add(0, vec![2; 10]);
        assert_eq!(plug.finish().unwrap().requests, 2);
        assert_eq!(device.to_vec()[..16], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn threads_share_large_submissions() {
        let piece = |i: usize| vec![i as u8 + 1; SHARE / 2];
        for (pieces, threads) in [(3, 4), (5, 2), (9, 3), (17, 4)] {
            let device = MemDevice::new(((pieces - 1) * SHARE / 2) as u64);
            let mut plug = Plug::new(&device);
            (0..pieces).rev().for_each(|i| plug.add((i * SHARE / 2) as u64, piece(i)));
            let (mut end, mut failed) = (0, Vec::new());
            let stats = plug.finish_by(threads, |offset, len, result| {
                assert_eq!(offset, end, "requests are reported in their order");
                end += len;
                failed.extend(result.err().map(|_| offset..offset + len));
            });
            assert_eq!(stats.bytes, (pieces * SHARE / 2) as u64);
            assert_eq!(end, stats.bytes);
            // The last piece is beyond the end of the device.
            assert_eq!(failed.len(), 1);
            let held = device.to_vec();
            for i in (0..pieces - 1).filter(|i| !failed[0].contains(&((i * SHARE / 2) as u64))) {
                assert!(held[i * SHARE / 2..][..SHARE / 2] == *piece(i), "piece {i} of {pieces}");
            }
        }
    }

    #[test]
    fn an_error_does_not_stop_the_other_requests() {
        let device = MemDevice::new(10);
        let mut plug = Plug::new(&device);
        plug.add(20, vec![1; 1]);
        plug.add(0, vec![2; 1]);
        plug.add(30, vec![2; 1]);
        assert!(plug.finish().is_err());
        assert_eq!(device.to_vec()[0], 2);
    }
}
