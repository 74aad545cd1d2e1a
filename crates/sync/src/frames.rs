//! Memory for pages: frames of one size, cut from slabs that come from the system whole, and ahead
//! of need.
//!
//! A frame that is let go is used again, by the same thread if possible. The system hands out
//! memory page by page, when each is first written, which takes longer than the writing itself: so
//! slabs are had with all their pages there, and while somebody takes frames, a thread keeps a few
//! slabs ready, and gives back what has not been used for a while. All users of one size share
//! frames; when the last of them goes, what is unused goes back to the system.
//!
//! # Invariants
//! - A frame's bytes belong to one [`Loose`]: those of a slab are made when the slab comes, or when
//!   it has none left that were never used, each once; afterwards they are moved, and come to an
//!   end only where [`Slabs::give`] noted the place.
//! - A slab lives as long as a frame of it does.
//!
//! # Locking
//! A thread's own frames and the slabs are of level Leaf, never both at once. No memory is had or
//! given back under either.
#![expect(unsafe_code, reason = "frames are parts of memory that several own")]

use crate::{Arc, Condvar, Level, Mutex, Sharded};
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Bytes of a slab; less only in models of memory.
const SLAB: usize = if cfg!(miri) { 1 << 13 } else { 1 << 20 };

/// Slabs that are kept ready while somebody takes frames, and unused ones that are kept.
const READY: usize = 4;
const IDLE: usize = 4;

/// Unused slabs beyond those are kept for a while, since who lets go of much takes as much before
/// long, and to give them back takes longer than to use them again: until nobody has wanted slabs
/// for so long, and so many at most.
const REST: Duration = Duration::from_millis(200);
const MAX_IDLE: usize = 64;

/// Frames that a thread takes at once.
const BATCH: usize = 32;

/// The most frames of a size that a thread keeps, a slab's at least; it gives back all but half of
/// them at once.
const fn most_near(size: usize) -> usize {
    if SLAB / size > 2 * BATCH { SLAB / size } else { 2 * BATCH }
}

/// Frames are of a power of two of bytes, from the first of these to the second.
const LEAST: u32 = 10;
const MOST: u32 = 16;

static SIZES: [OnceLock<Shared>; (MOST - LEAST + 1) as usize] =
    [const { OnceLock::new() }; (MOST - LEAST + 1) as usize];

#[cfg(not(miri))]
type Memory = Result<memmap2::MmapMut, Vec<u8>>;
#[cfg(miri)]
type Memory = Result<Vec<u8>, Vec<u8>>;

/// Memory from the system, all of it there; zeroes.
fn memory() -> Memory {
    #[cfg(not(miri))]
    return memmap2::MmapOptions::new().len(SLAB).populate().map_anon().map_err(|_| vec![0; SLAB]);
    #[cfg(miri)]
    return Ok(vec![0; SLAB]);
}

struct Slab {
    start: NonNull<u8>,
    /// Bytes of a frame.
    size: usize,
    shared: &'static Shared,
    /// Reached through `start` only, until it is dropped.
    _memory: Memory,
}

// SAFETY: the memory may be used and given back by any thread, and a slab's own methods do not
// touch it: that do frames, each its own part.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(shared: &'static Shared) -> Arc<Slab> {
        let mut memory = memory();
        let start = match &mut memory {
            Ok(map) => NonNull::from(&mut map[..]).cast(),
            Err(heap) => NonNull::from(heap.as_mut_slice()).cast(),
        };
        Arc::new(Slab { start, size: shared.size, shared, _memory: memory })
    }

    /// The name of the slab: its address.
    fn key(&self) -> usize {
        self.start.addr().get()
    }
}

/// A frame, and the only way to its bytes.
struct Loose {
    /// `slab.size` bytes of the slab's memory.
    start: NonNull<u8>,
    /// All bytes are zero.
    fresh: bool,
    slab: Arc<Slab>,
}

// SAFETY: as a `Box<[u8]>`, it owns its bytes.
unsafe impl Send for Loose {}
// SAFETY: as above; by a shared reference they are only read.
unsafe impl Sync for Loose {}

/// A slab that frames are taken from.
struct Stock {
    slab: Arc<Slab>,
    /// Indices of frames that were used and are not.
    used: Vec<u32>,
    /// The index of the first of those that never were.
    fresh: u32,
}

impl Stock {
    fn frames(&self) -> u32 {
        (SLAB / self.slab.size) as u32
    }

    fn free(&self) -> usize {
        self.used.len() + (self.frames() - self.fresh) as usize
    }

    fn is_idle(&self) -> bool {
        self.free() == self.frames() as usize
    }

    fn take(&mut self) -> Option<Loose> {
        let used = self.used.pop();
        let fresh = used.is_none();
        let index = match used {
            Some(index) => index,
            None if self.fresh < self.frames() => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return None,
        };
        // SAFETY: `index` is less than the number of frames, so the offset lies within the slab's
        // memory.
        let start = unsafe { self.slab.start.add(index as usize * self.slab.size) };
        Some(Loose { start, fresh, slab: self.slab.clone() })
    }
}

/// All slabs of frames of one size.
#[derive(Default)]
struct Slabs {
    by_address: BTreeMap<usize, Stock>,
    /// Those that have frames: they are taken from the lowest, so that others become idle.
    with_frames: BTreeSet<usize>,
    /// How many have all their frames.
    idle: usize,
    ready: Vec<Arc<Slab>>,
    users: usize,
    filler: Option<JoinHandle<()>>,
    /// Changes when a filler has to end.
    turn: u64,
}

impl Slabs {
    fn add(&mut self, slab: Arc<Slab>) {
        let key = slab.key();
        self.with_frames.insert(key);
        self.idle += 1;
        self.by_address.insert(key, Stock { slab, used: Vec::new(), fresh: 0 });
    }

    /// Some frames, if there are any.
    fn take(&mut self) -> Vec<Loose> {
        let Some(key) = self.with_frames.first().copied() else { return Vec::new() };
        let Some(stock) = self.by_address.get_mut(&key) else { return Vec::new() };
        self.idle -= usize::from(stock.is_idle());
        let taken = core::iter::from_fn(|| stock.take()).take(BATCH).collect();
        if stock.free() == 0 {
            self.with_frames.remove(&key);
        }
        taken
    }

    /// Notes frames that are not used any more, those of a slab one after the other. Gives slabs
    /// that nobody needs.
    fn give(&mut self, frames: &[Loose]) -> Vec<Arc<Slab>> {
        let keep = match (self.users, &self.filler) {
            (0, _) => 0,
            (_, None) => IDLE,
            (_, Some(_)) => MAX_IDLE,
        };
        let mut gone = Vec::new();
        for of_one in frames.chunk_by(|a, b| Arc::ptr_eq(&a.slab, &b.slab)) {
            let Some(slab) = of_one.first().map(|loose| &loose.slab) else { continue };
            let key = slab.key();
            let Some(stock) = self.by_address.get_mut(&key) else { continue };
            if stock.free() == 0 {
                self.with_frames.insert(key);
            }
            stock.used.extend(
                of_one.iter().map(|loose| ((loose.start.addr().get() - key) / slab.size) as u32),
            );
            if stock.is_idle() {
                self.idle += 1;
                if self.idle > keep {
                    gone.extend(self.drop_idle(key));
                }
            }
        }
        gone
    }

    /// Slabs that are unused, all but so many.
    fn drop_all_idle_but(&mut self, keep: usize) -> Vec<Arc<Slab>> {
        let idle = self.by_address.iter().filter(|(_, stock)| stock.is_idle());
        let idle: Vec<usize> = idle.map(|(key, _)| *key).skip(keep).collect();
        idle.into_iter().filter_map(|key| self.drop_idle(key)).collect()
    }

    fn drop_idle(&mut self, key: usize) -> Option<Arc<Slab>> {
        self.idle -= 1;
        self.with_frames.remove(&key);
        self.by_address.remove(&key).map(|stock| stock.slab)
    }
}

struct Shared {
    size: usize,
    near: Sharded<Mutex<Vec<Loose>>>,
    slabs: Mutex<Slabs>,
    /// Slabs are wanted, or nobody is left.
    wanted: Condvar,
}

impl Shared {
    fn of(size: usize) -> &'static Shared {
        let bits = size.max(1).next_power_of_two().ilog2().clamp(LEAST, MOST);
        let place = SIZES.get((bits - LEAST) as usize).unwrap_or(&SIZES[0]);
        place.get_or_init(|| Shared {
            size: 1 << bits,
            near: Sharded::new(|_| Mutex::new(Level::Leaf, Vec::new())),
            slabs: Mutex::new(Level::Leaf, Slabs::default()),
            wanted: Condvar::new(),
        })
    }

    fn take(&'static self) -> Loose {
        if let Some(near) = self.near.local().lock().pop() {
            return near;
        }
        loop {
            let mut batch = self.some();
            if let Some(one) = batch.pop() {
                self.near.local().lock().append(&mut batch);
                return one;
            }
            let slab = Slab::new(self);
            let mut slabs = self.slabs.lock();
            slabs.add(slab);
            // Others may have given much back meanwhile, before there was too much.
            if slabs.idle > IDLE {
                self.wanted.notify_one();
            }
        }
    }

    /// Frames from slabs that are there.
    fn some(&'static self) -> Vec<Loose> {
        let mut slabs = self.slabs.lock();
        if slabs.with_frames.is_empty() {
            let ready = slabs.ready.pop();
            ready.into_iter().for_each(|slab| slabs.add(slab));
            match slabs.filler {
                Some(_) => self.wanted.notify_one(),
                None if slabs.users > 0 && !cfg!(miri) => {
                    slabs.filler = self.start_filling(slabs.turn)
                }
                None => {}
            }
        }
        slabs.take()
    }

    /// Without the thread, those who need slabs wait for the system.
    fn start_filling(&'static self, turn: u64) -> Option<JoinHandle<()>> {
        Builder::new().name("extant-memory".into()).spawn(move || self.fill(turn)).ok()
    }

    fn fill(&'static self, turn: u64) {
        let mut slabs = self.slabs.lock();
        while slabs.turn == turn {
            if slabs.ready.len() < READY {
                drop(slabs);
                let slab = Slab::new(self);
                slabs = self.slabs.lock();
                slabs.ready.push(slab);
            } else if slabs.idle <= IDLE {
                self.wanted.wait(&mut slabs);
            } else if self.wanted.wait_for(&mut slabs, REST).timed_out() {
                let gone = slabs.drop_all_idle_but(IDLE);
                drop(slabs);
                drop(gone);
                slabs = self.slabs.lock();
            }
        }
    }

    fn give(&self, loose: Loose) {
        let most = most_near(self.size);
        let mut near = self.near.local().lock();
        near.push(loose);
        if near.len() > most {
            let mut others: Vec<Loose> = near.drain(..most / 2).collect();
            drop(near);
            others.sort_unstable_by_key(|loose| loose.start);
            let mut slabs = self.slabs.lock();
            let few = slabs.idle <= IDLE;
            let gone = slabs.give(&others);
            if few && slabs.idle > IDLE {
                self.wanted.notify_one();
            }
            drop(slabs);
            drop((gone, others));
        }
    }

    /// The last user has gone.
    fn clear(&self) {
        let mut near: Vec<Loose> =
            self.near.iter().flat_map(|near| core::mem::take(&mut *near.lock())).collect();
        near.sort_unstable_by_key(|loose| loose.start);
        let mut slabs = self.slabs.lock();
        let mut gone = slabs.give(&near);
        if slabs.users == 0 {
            gone.append(&mut slabs.ready);
            gone.append(&mut slabs.drop_all_idle_but(0));
        }
        drop(slabs);
        drop((gone, near));
    }
}

/// Where frames of one size come from.
pub struct SlabPages {
    shared: &'static Shared,
}

impl SlabPages {
    /// Of frames of `size` bytes: a power of two from 1 KiB to 64 KiB.
    pub fn new(size: usize) -> SlabPages {
        let shared = Shared::of(size);
        shared.slabs.lock().users += 1;
        SlabPages { shared }
    }

    /// A frame with `part` from `from` on, as far as it has room, and zeroes elsewhere.
    pub fn frame(&self, from: usize, part: &[u8]) -> Frame {
        let loose = self.shared.take();
        let fresh = loose.fresh;
        let mut frame = Frame { loose: Some(Loose { fresh: false, ..loose }) };
        let from = from.min(frame.len());
        let (before, rest) = frame.split_at_mut(from);
        let (to, behind) = rest.split_at_mut(part.len().min(rest.len()));
        if !fresh {
            before.fill(0);
            behind.fill(0);
        }
        to.copy_from_slice(part.get(..to.len()).unwrap_or_default());
        frame
    }
}

impl Drop for SlabPages {
    fn drop(&mut self) {
        let filler = {
            let mut slabs = self.shared.slabs.lock();
            slabs.users -= 1;
            if slabs.users > 0 {
                return;
            }
            slabs.turn += 1;
            slabs.filler.take()
        };
        self.shared.wanted.notify_all();
        // If it panicked, it is gone, too.
        let _ = filler.map(JoinHandle::join);
        self.shared.clear();
    }
}

impl fmt::Debug for SlabPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabPages").field("size", &self.shared.size).finish_non_exhaustive()
    }
}

/// A page's memory. It goes back when it is dropped.
pub struct Frame {
    /// There until it is dropped.
    loose: Option<Loose>,
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let Some(loose) = &self.loose else { return &[] };
        // SAFETY: `start` leads to `size` bytes of the slab's memory, which lives as long as
        // `loose.slab`. They were zeroes when the slab came, and are nobody else's: whoever writes
        // them has this frame for himself.
        unsafe { core::slice::from_raw_parts(loose.start.as_ptr(), loose.slab.size) }
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(loose) = &mut self.loose else { return &mut [] };
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(loose.start.as_ptr(), loose.slab.size) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Some(loose) = self.loose.take() {
            let shared = loose.slab.shared;
            shared.give(loose);
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes that one test each uses, since slabs are shared by all of a size.
    const OF_ONE: usize = 1 << 10;
    const OF_THREADS: usize = 1 << 11;

    #[test]
    fn frames_are_apart_and_come_back_as_zeroes() {
        let frames = SlabPages::new(OF_ONE);
        let many = 2 * SLAB / OF_ONE + 1;
        for round in 0..2 {
            let mut all: Vec<Frame> =
                (0..many).map(|i| frames.frame(i % 7, &[1 + i as u8 % 200; 5])).collect();
            for (i, frame) in all.iter_mut().enumerate() {
                assert_eq!(frame.len(), OF_ONE);
                let at = i % 7;
                assert_eq!(frame[..at], [0; OF_ONE][..at], "round {round}");
                assert_eq!(frame[at..at + 5], [1 + i as u8 % 200; 5], "round {round}");
                assert_eq!(frame[at + 5..], [0; OF_ONE][at + 5..], "round {round}");
                frame.fill(255);
            }
        }
        assert_eq!(frames.frame(OF_ONE - 2, &[7; 9])[OF_ONE - 3..], [0, 7, 7]);
        assert_eq!(frames.frame(OF_ONE + 2, &[7; 9])[OF_ONE - 1], 0);
        let late = frames.frame(0, &[3; OF_ONE]);
        drop(frames);
        assert_eq!(late[OF_ONE - 1], 3);
        assert_eq!(
            Shared::of(OF_ONE).slabs.lock().by_address.len(),
            1,
            "what nobody uses has gone back"
        );
        drop(late);
    }

    #[test]
    fn threads_pass_frames_to_each_other() {
        let frames = SlabPages::new(OF_THREADS);
        let (give, get) = std::sync::mpsc::channel::<(u8, Frame)>();
        std::thread::scope(|scope| {
            for thread in 1..=3u8 {
                let (frames, give) = (&frames, give.clone());
                scope.spawn(move || {
                    for _ in 0..crate::times(3000) {
                        let mut frame = frames.frame(0, &[]);
                        assert_eq!(*frame, [0; OF_THREADS]);
                        frame.fill(thread);
                        give.send((thread, frame)).unwrap();
                    }
                });
            }
            drop(give);
            let mut kept = Vec::new();
            for (thread, frame) in get {
                assert_eq!(*frame, [thread; OF_THREADS]);
                kept.push(frame);
                if kept.len() > 700 {
                    kept.drain(..350).for_each(drop);
                }
            }
        });
        let shared = Shared::of(OF_THREADS);
        // What is too much goes back when it was not wanted for a while, by a thread that Miri does
        // without.
        while !cfg!(miri) && shared.slabs.lock().idle > IDLE {
            std::thread::sleep(REST / 8);
        }
        assert!(shared.slabs.lock().ready.len() <= READY);
    }
}
