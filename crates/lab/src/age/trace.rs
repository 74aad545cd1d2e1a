//! The trace of a long use of a file system, the same for all sides.
//!
//! Sizes of files are lognormal with the parameters that Agrawal, Arpaci-Dusseau and Arpaci-Dusseau
//! give for the bodies of a five-year study of file systems (Impressions, FAST 2009: μ = 9.48, σ =
//! 2.46 of the natural logarithm of bytes), cut off at a part of the disk. Existing files rarely
//! change: one event in ten grows a file, one in twenty rewrites it.

use extant_sync::SplitMix64;
use std::collections::VecDeque;
use std::f64::consts::TAU;

const MU: f64 = 9.48;
const SIGMA: f64 = 2.46;
/// The largest file is so small a part of the disk.
const LARGEST: u64 = 32;
/// Bytes of a write.
pub const CHUNK: u64 = 64 << 10;
/// Bytes of a block, by which use is counted.
pub const BLOCK: u64 = 4096;
pub const DIRS: u32 = 64;
/// Files that are written in turns.
const TOGETHER: usize = 4;
/// Bytes written between two syncs.
const SYNC: u64 = 64 << 20;

/// One thing that is done. Files have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new empty file.
    Create(u32),
    /// So many bytes at a file's end.
    Append(u32, u64),
    /// A file becomes empty.
    Empty(u32),
    /// A file goes.
    Remove(u32),
    /// Everything becomes durable.
    Sync,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Bytes that files may have.
    pub room: u64,
    /// Percent of `room` that are used after filling.
    pub fill: u64,
    /// How often as many bytes as there is room for are written after filling.
    pub churn: f64,
}

/// Returns a number between 0 and 1, neither of them.
fn unit(random: &mut SplitMix64) -> f64 {
    ((random.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

fn size(random: &mut SplitMix64, most: u64) -> u64 {
    let (radius, angle) = ((-2.0 * unit(random).ln()).sqrt(), TAU * unit(random));
    ((MU + SIGMA * radius * angle.cos()).exp() as u64).clamp(1, most)
}

/// The events, made as they are needed. See the module's description.
pub struct Trace {
    scale: Scale,
    random: SplitMix64,
    /// Files and their bytes.
    live: Vec<(u32, u64)>,
    next: u32,
    used: u64,
    written: u64,
    filled: bool,
    unsynced: u64,
    /// Files that are being written, with their remaining bytes.
    open: VecDeque<(u32, u64)>,
    ready: VecDeque<Event>,
}

fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK) * BLOCK
}

impl Trace {
    /// Makes the events of a seed.
    pub fn new(scale: Scale, seed: u64) -> Trace {
        Trace {
            scale,
            random: SplitMix64::new(seed),
            live: Vec::new(),
            next: 0,
            used: 0,
            written: 0,
            filled: false,
            unsynced: 0,
            open: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    fn full(&self) -> u64 {
        self.scale.room / 100 * self.scale.fill
    }

    /// A file begins, or one that is there grows or is written anew.
    fn begin(&mut self) {
        let most = self.scale.room / LARGEST;
        let bytes = size(&mut self.random, most);
        let kind = self.random.below(20);
        let old = self.random.below(self.live.len() as u64) as usize;
        let known = self.filled && !self.live.is_empty();
        let id = match kind {
            0 if known => {
                let (id, had) = &mut self.live[old];
                self.used -= blocks(std::mem::take(had));
                self.ready.push_back(Event::Empty(*id));
                *id
            }
            1 | 2 if known => self.live[old].0,
            _ => {
                self.next += 1;
                self.live.push((self.next, 0));
                self.ready.push_back(Event::Create(self.next));
                self.next
            }
        };
        self.open.push_back((id, bytes));
        let place = self.live.iter_mut().rev().find(|(live, _)| *live == id);
        if let Some((_, had)) = place {
            self.used = self.used - blocks(*had) + blocks(*had + bytes);
            *had += bytes;
        }
    }

    /// Files go until there is room.
    fn make_room(&mut self) {
        while self.used > self.full() && !self.live.is_empty() {
            let at = self.random.below(self.live.len() as u64) as usize;
            let (id, bytes) = self.live.swap_remove(at);
            self.used -= blocks(bytes);
            self.open.retain(|(open, _)| *open != id);
            self.ready.push_back(Event::Remove(id));
        }
    }

    /// The next part of a file that is being written.
    fn go_on(&mut self) {
        let Some((id, left)) = self.open.pop_front() else { return };
        let now = left.min(CHUNK);
        self.ready.push_back(Event::Append(id, now));
        self.written += now;
        self.unsynced += now;
        if left > now {
            self.open.push_back((id, left - now));
        }
        if self.unsynced >= SYNC {
            self.unsynced = 0;
            self.ready.push_back(Event::Sync);
        }
    }
}

impl Iterator for Trace {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            if !self.filled && self.used >= self.full() {
                (self.filled, self.written) = (true, 0);
            }
            if self.filled && self.written as f64 >= self.scale.churn * self.scale.room as f64 {
                return None;
            }
            if self.filled {
                self.make_room();
            }
            if self.open.len() < TOGETHER {
                self.begin();
            }
            self.go_on();
        }
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_trace_keeps_the_disk_as_full_as_asked_and_is_the_same_each_time() {
        let scale = Scale { room: 64 << 20, fill: 90, churn: 3.0 };
        let mut files: HashMap<u32, u64> = HashMap::new();
        let (mut written, mut most, mut removed) = (0, 0, 0);
        for event in Trace::new(scale, 7) {
            match event {
                Event::Create(id) => assert!(files.insert(id, 0).is_none()),
                Event::Append(id, bytes) => {
                    *files.get_mut(&id).unwrap() += bytes;
                    written += bytes;
                }
                Event::Empty(id) => *files.get_mut(&id).unwrap() = 0,
                Event::Remove(id) => {
                    files.remove(&id).unwrap();
                    removed += 1;
                }
                Event::Sync => {}
            }
            if written % 64 == 0 {
                most = most.max(files.values().map(|bytes| blocks(*bytes)).sum());
            }
        }
        assert!(written > 3 * scale.room && removed > 100, "{written} {removed}");
        assert!((scale.room / 10 * 8..scale.room / 100 * 96).contains(&most), "{most}");
        assert!(
            Trace::new(scale, 7).eq(Trace::new(scale, 7))
                && Trace::new(scale, 7).ne(Trace::new(scale, 8))
        );
    }
}
