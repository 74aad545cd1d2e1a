//! A device that logs its changes, so that a power cut can be simulated at any moment.
//!
//! For example, from the log "write 8, flush, write 9, write 10" a power cut may leave block 8
//! together with any subset of blocks 9 and 10.
//!
//! # Invariants
//! A write is logged after it completed. A flush is logged after it succeeded, at the position at
//! which it began. The writes before a flush in the log are therefore durable by that flush,
//! whatever ran concurrently.
//!
//! # Locking
//! One lock (`Device`) covers the log. The inner device is not called under it.

use crate::BlockDevice;
use crate::device::total_len;
use extant_sync::{Arc, Level, Mutex};
use std::io::{self, IoSlice};

/// A change of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes were written.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// The bytes.
        data: Arc<[u8]>,
    },
    /// A range was zeroed.
    Zero {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// All changes logged before are durable.
    Flush,
    /// A range was discarded.
    Discard {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The length changed.
    SetLen(u64),
    /// A mark of the test.
    Mark(String),
}

impl Event {
    /// Repeats the change on another device. Flushes and marks do nothing.
    ///
    /// # Errors
    /// Those of the device.
    pub fn apply(&self, device: &dyn BlockDevice) -> io::Result<()> {
        match self {
            Event::Write { offset, data } => device.write_all_at(data, *offset),
            Event::Zero { offset, len } => device.write_zeroes(*offset, *len),
            Event::Discard { offset, len } => device.discard(*offset, *len),
            Event::SetLen(len) => device.set_len(*len),
            Event::Flush | Event::Mark(_) => Ok(()),
        }
    }

    /// Returns whether the event changes the device's bytes.
    pub fn changes(&self) -> bool {
        !matches!(self, Event::Flush | Event::Mark(_))
    }

    /// Splits a write at the boundaries of sectors of `sector` bytes (not 0), at which a power cut
    /// may separate it. Other events are returned as one piece.
    pub fn split(&self, sector: u64) -> Vec<Event> {
        let Event::Write { offset, data } = self else { return vec![self.clone()] };
        let sector = sector.max(1);
        let mut pieces = Vec::new();
        let mut rest = &data[..];
        let mut at = *offset;
        while !rest.is_empty() {
            let count = usize::try_from(sector - at % sector).unwrap_or(usize::MAX).min(rest.len());
            let (piece, after) = rest.split_at(count);
            pieces.push(Event::Write { offset: at, data: Arc::from(piece) });
            at += count as u64;
            rest = after;
        }
        pieces
    }
}

/// Repeats chosen events in order on a device in the state before them. A prefix of the log up to a
/// flush and any subset of the following events give a state that a power cut may leave.
///
/// # Errors
/// Those of the device.
pub fn replay<'a>(
    events: impl IntoIterator<Item = &'a Event>,
    device: &dyn BlockDevice,
) -> io::Result<()> {
    events.into_iter().try_for_each(|event| event.apply(device))
}

/// A device that logs every change of another one in order.
#[derive(Debug)]
pub struct RecordingDevice<D> {
    inner: D,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// In ascending order of sequence numbers.
    events: Vec<(u64, Event)>,
    next: u64,
    paused: bool,
}

impl Log {
    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn push(&mut self, event: Event) {
        let number = self.take_number();
        self.insert(number, event);
    }

    /// Inserts an event at the position of a number that was taken before.
    fn insert(&mut self, number: u64, event: Event) {
        if !self.paused {
            let place = self.events.partition_point(|(other, _)| *other < number);
            self.events.insert(place, (number, event));
        }
    }
}

impl<D: BlockDevice> RecordingDevice<D> {
    /// Makes a device that records the changes of `inner`.
    pub fn new(inner: D) -> Self {
        RecordingDevice { inner, log: Mutex::new(Level::Device, Log::default()) }
    }

    /// Returns the inner device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Adds a mark to the log.
    pub fn mark(&self, label: impl Into<String>) {
        self.log.lock().push(Event::Mark(label.into()));
    }

    /// Returns a copy of the log, which shares the bytes.
    pub fn log(&self) -> Vec<Event> {
        self.log.lock().events.iter().map(|(_, event)| event.clone()).collect()
    }

    /// Returns the log and empties it.
    pub fn take_log(&self) -> Vec<Event> {
        std::mem::take(&mut self.log.lock().events).into_iter().map(|(_, event)| event).collect()
    }

    /// Pauses or resumes recording.
    pub fn pause(&self, paused: bool) {
        self.log.lock().paused = paused;
    }

    fn record(&self, result: io::Result<()>, event: impl FnOnce() -> Event) -> io::Result<()> {
        result.map(|()| {
            let mut log = self.log.lock();
            if !log.paused {
                log.push(event());
            }
        })
    }
}

impl<D: BlockDevice> BlockDevice for RecordingDevice<D> {
    crate::forward_device!(self => self.inner;
        len, name, alignment, read_only, read_exact_at, read_vectored_at, refresh_len, next_data,
        claim);

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.record(self.inner.write_all_at(data, offset), || Event::Write {
            offset,
            data: Arc::from(data),
        })
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.record(self.inner.write_vectored_at(bufs, offset), || {
            let mut data = Vec::with_capacity(total_len(bufs) as usize);
            bufs.iter().for_each(|buf| data.extend_from_slice(buf));
            Event::Write { offset, data: data.into() }
        })
    }

    fn flush(&self) -> io::Result<()> {
        let number = self.log.lock().take_number();
        self.inner.flush()?;
        self.log.lock().insert(number, Event::Flush);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.record(self.inner.discard(offset, len), || Event::Discard { offset, len })
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.record(self.inner.write_zeroes(offset, len), || Event::Zero { offset, len })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.record(self.inner.set_len(len), || Event::SetLen(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    #[test]
    fn a_flush_stands_where_it_began() {
        let mut log = Log::default();
        log.push(Event::SetLen(1));
        let number = log.take_number();
        log.push(Event::SetLen(2));
        log.insert(number, Event::Flush);
        let events: Vec<_> = log.events.into_iter().map(|(_, event)| event).collect();
        assert_eq!(events, [Event::SetLen(1), Event::Flush, Event::SetLen(2)]);
    }

    #[test]
    fn failed_changes_are_not_logged() {
        let device = RecordingDevice::new(MemDevice::new(4));
        assert!(device.write_all_at(&[1; 5], 0).is_err());
        assert_eq!(device.log(), []);
    }

    #[test]
    fn writes_split_at_sectors() {
        let write = Event::Write { offset: 3, data: Arc::from([1, 2, 3, 4, 5, 6]) };
        let pieces: Vec<_> = write
            .split(4)
            .into_iter()
            .map(|piece| match piece {
                Event::Write { offset, data } => (offset, data.to_vec()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(pieces, [(3, vec![1]), (4, vec![2, 3, 4, 5]), (8, vec![6])]);
        assert_eq!(Event::Flush.split(4), [Event::Flush]);
    }
}
