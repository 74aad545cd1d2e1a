//! Writes that no flush covers yet, for a repetition over a new connection.
//!
//! For example, writes 1 and 2 are sent, and 1 is answered. A flush begins, then 2 is answered, and
//! the flush. It covers write 1, which is forgotten, and not write 2, which was under way when it
//! began. *Epochs* tell them apart: each flush begins a new one, and covers the writes that were
//! answered in its own epoch or before.
//!
//! # Invariants
//! Writes under way at the same time do not overlap, so an order of theirs does not matter. Writes
//! are repeated in the order of their numbers, with a wait where two overlap.

use crate::assembly::Request;
use crate::wire::command;
use extant_sync::Arc;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// Bytes that a write takes in addition to its data.
const OVERHEAD: usize = 128;

/// A change of a range.
#[derive(Debug)]
pub enum Change {
    Data(Vec<u8>),
    Zeroes(u32),
    Discard(u32),
}

/// A write, a zeroing or a discard.
#[derive(Debug)]
pub struct Entry {
    pub number: u64,
    pub change: Change,
    pub offset: u64,
}

impl Entry {
    /// Returns the request for it. `durable` asks for data that is durable with the answer.
    pub fn request(&self, durable: bool) -> Request {
        let command = match &self.change {
            Change::Data(_) => command::WRITE,
            Change::Zeroes(_) => command::WRITE_ZEROES,
            Change::Discard(_) => command::TRIM,
        };
        let flags = if durable { command::FUA } else { 0 };
        Request { command, flags, offset: self.offset, len: self.len() }
    }

    pub fn payload(&self) -> &[u8] {
        match &self.change {
            Change::Data(data) => data,
            Change::Zeroes(_) | Change::Discard(_) => &[],
        }
    }

    fn len(&self) -> u32 {
        match &self.change {
            Change::Data(data) => data.len() as u32,
            Change::Zeroes(len) | Change::Discard(len) => *len,
        }
    }

    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len().into())
    }

    fn cost(&self) -> usize {
        self.payload().len() + OVERHEAD
    }
}

#[derive(Debug)]
struct Kept {
    entry: Arc<Entry>,
    /// The epoch of its last answer; `None` while it is under way, or not sent in this session.
    answered: Option<u64>,
    /// An answer has come, perhaps in an earlier session.
    confirmed: bool,
    /// A later write of the same place has failed, and may have changed it.
    blurred: bool,
}

/// A write under way.
#[derive(Debug)]
struct Sent {
    number: u64,
    range: Range<u64>,
    bytes: usize,
    since: Instant,
}

/// Writes in the order of their numbers.
#[derive(Debug, Default)]
pub struct Log {
    entries: BTreeMap<u64, Kept>,
    sent: Vec<Sent>,
    next: u64,
    epoch: u64,
    bytes: usize,
}

impl Log {
    /// Adds a write, which counts as sent.
    pub fn add(&mut self, change: Change, offset: u64) -> Arc<Entry> {
        let entry = Arc::new(Entry { number: self.next, change, offset });
        self.next += 1;
        self.bytes += entry.cost();
        let kept = Kept { entry: entry.clone(), answered: None, confirmed: false, blurred: false };

        self.entries.insert(entry.number, kept);
        self.note_sent(&entry);
        entry
    }

    /// Notes that a write is sent again.
    pub fn note_sent(&mut self, entry: &Entry) {
        let (number, range, bytes) = (entry.number, entry.range(), entry.payload().len());
        self.sent.push(Sent { number, range, bytes, since: Instant::now() });
    }

    /// Returns the number of the next write.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the bytes that the log takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of writes under way, and their bytes.
    pub fn load(&self) -> (usize, usize) {
        (self.sent.len(), self.sent.iter().map(|sent| sent.bytes).sum())
    }

    /// Returns whether a write under way overlaps a range.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        self.sent.iter().any(|sent| overlap(&sent.range, range))
    }

    /// Returns whether a write under way, or one that no flush covers, may overlap a range. It does
    /// not look through very many.
    pub fn may_cover(&self, range: &Range<u64>) -> bool {
        const MAX_LOOKED_AT: usize = 1024;
        self.entries.len() > MAX_LOOKED_AT
            || self.entries.values().any(|kept| overlap(&kept.entry.range(), range))
    }

    /// Returns whether a write with a lower number is under way.
    pub fn is_under_way_before(&self, number: u64) -> bool {
        self.sent.iter().any(|sent| sent.number < number)
    }

    /// Returns when the oldest write under way was sent.
    pub fn oldest(&self) -> Option<Instant> {
        self.sent.iter().map(|sent| sent.since).min()
    }

    /// Notes an answer. The write is forgotten if no flush is needed.
    pub fn answered(&mut self, number: u64, needs_flush: bool) {
        self.sent.retain(|sent| sent.number != number);
        if !needs_flush {
            self.forget(number);
        } else if let Some(kept) = self.entries.get_mut(&number) {
            (kept.answered, kept.confirmed) = (Some(self.epoch), true);
        }
    }

    /// Forgets a write that failed. Returns it, and whether it had succeeded in an earlier session.
    pub fn failed(&mut self, number: u64) -> Option<(Arc<Entry>, bool)> {
        self.sent.retain(|sent| sent.number != number);
        let kept = self.forget(number)?;
        let range = kept.entry.range();
        let others = self.entries.values_mut();
        others.filter(|other| overlap(&other.entry.range(), &range)).for_each(|other| {
            other.blurred = true;
        });
        Some((kept.entry, kept.confirmed))
    }

    fn forget(&mut self, number: u64) -> Option<Kept> {
        let kept = self.entries.remove(&number)?;
        self.bytes -= kept.entry.cost();
        Some(kept)
    }

    /// Begins a flush, when no write that it must cover is under way. Returns its epoch.
    pub fn begin_flush(&mut self) -> u64 {
        let epoch = self.epoch;
        self.epoch += 1;
        epoch
    }

    /// Forgets the writes that the flush of an epoch has made durable. Returns the last one with
    /// data, if its place has the same content since.
    pub fn flushed(&mut self, epoch: u64) -> Option<Arc<Entry>> {
        let is_data = |kept: &&Kept| {
            let durable = kept.answered.is_some_and(|answered| answered <= epoch);
            durable && matches!(kept.entry.change, Change::Data(_))
        };
        let last = self.entries.values().rev().find(is_data).filter(|last| !last.blurred);
        let last = last.map(|last| last.entry.clone()).filter(|last| {
            let mut later = self.entries.range(last.number + 1..);
            !later.any(|(_, kept)| overlap(&kept.entry.range(), &last.range()))
        });
        let bytes = &mut self.bytes;
        self.entries.retain(|_, kept| {
            let durable = kept.answered.is_some_and(|answered| answered <= epoch);
            if durable {
                *bytes -= kept.entry.cost();
            }
            !durable
        });
        last
    }

    /// Returns all writes, of which none is under way any more.
    pub fn restart(&mut self) -> Vec<Arc<Entry>> {
        self.sent.clear();
        let restart = |kept: &mut Kept| {
            kept.answered = None;
            kept.entry.clone()
        };
        self.entries.values_mut().map(restart).collect()
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(writes: usize) -> Log {
        let mut log = Log::default();
        for number in 0..writes {
            log.add(Change::Data(vec![7; 512]), 512 * number as u64);
        }
        log
    }

    fn numbers(log: &mut Log) -> Vec<u64> {
        log.restart().iter().map(|entry| entry.number).collect()
    }

    #[test]
    fn a_flush_covers_the_writes_before_it_alone() {
        let mut log = log_of(3);
        log.answered(0, true);
        let epoch = log.begin_flush();
        log.answered(1, true);
        log.flushed(epoch);
        assert_eq!(log.bytes(), 2 * (512 + OVERHEAD));
        assert_eq!(log.load(), (1, 512));
        assert_eq!(numbers(&mut log), [1, 2]);
    }

    #[test]
    fn a_repeated_write_needs_another_flush() {
        let mut log = log_of(1);
        log.answered(0, true);
        let epoch = log.begin_flush();
        // The connection is lost before the answer to the flush is known here.
        let again = log.restart();
        log.note_sent(&again[0]);
        log.answered(0, true);
        log.flushed(epoch);
        assert_eq!(numbers(&mut log), [0]);
        log.answered(0, true);
        let epoch = log.begin_flush();
        log.flushed(epoch);
        assert!(log.is_empty() && log.bytes() == 0);
    }

    #[test]
    fn writes_under_way_are_known() {
        let mut log = log_of(2);
        assert!(log.overlaps(&(1023..1024)) && !log.overlaps(&(1024..2000)));
        assert!(log.is_under_way_before(1) && !log.is_under_way_before(0));
        log.answered(0, true);
        assert!(!log.is_under_way_before(1) && log.oldest().is_some());
        let (entry, confirmed) = log.failed(0).unwrap();
        assert!((entry.number, confirmed) == (0, true));
        assert!(!log.failed(1).unwrap().1 && log.is_empty() && log.oldest().is_none());
    }

    #[test]
    fn a_server_without_flush_ends_a_write_by_its_answer() {
        let mut log = log_of(1);
        log.answered(0, false);
        assert!(log.is_empty() && log.bytes() == 0);
    }
}
