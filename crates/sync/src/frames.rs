//! Memory for pages: frames of one size, cut from slabs that the operating system provides whole
//! and ahead of need.
//!
//! A released frame is reused, by the same thread if possible. The system provides memory page by
//! page at the first write, which takes longer than the write itself. Slabs are therefore mapped
//! with all their pages populated. While threads take frames, a background thread keeps a few slabs
//! ready, and returns slabs that have not been used for a while. All users of one size share the
//! frames; when the last user goes, the unused slabs return to the system.
//!
//! For example, a page of 4 KiB is frame 17 of a slab of 1 MiB. Its memory returns to the list of
//! the writing thread, then to the slab, and with the slab to the system.
//!
//! # Invariants
//! - The bytes of a frame belong to one [`RawFrame`]. [`Stock::take`] makes it from a free index:
//!   one that was never used, or that [`Slabs::give`] has noted. After `give` has noted its index,
//!   a `RawFrame` is only dropped, without an access to the bytes.
//! - A slab lives as long as one of its frames.
//!
//! # Locking
//! A thread's own frames and the slabs have locks of level Leaf, which are never held together.
//! Memory is neither requested from nor returned to the system under either.
#![expect(unsafe_code, reason = "frames are parts of memory that several own")]

use crate::{Arc, Condvar, Level, Mutex, Sharded};
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Bytes of a slab. Smaller only under Miri.
const SLAB: usize = if cfg!(miri) { 1 << 13 } else { 1 << 20 };

/// Slabs kept ready while threads take frames, and unused slabs that are kept.
const READY: usize = 4;
const IDLE: usize = 4;

/// Unused slabs beyond those are kept for a while: a thread that frees much memory usually needs as
/// much again soon, and returning memory takes longer than reusing it. They are returned when no
/// thread has wanted slabs for this duration. At most `MAX_IDLE` are kept.
const REST: Duration = Duration::from_millis(200);
const MAX_IDLE: usize = 64;

/// Frames that a thread takes at once.
const BATCH: usize = 32;

/// The most frames of a size that a thread keeps: at least a slab's. Beyond that, the thread
/// returns all but half of them at once.
const fn most_near(size: usize) -> usize {
    if SLAB / size > 2 * BATCH { SLAB / size } else { 2 * BATCH }
}

/// Logarithms of the smallest and of the largest size of a frame, in bytes.
const MIN_BITS: u32 = 10;
const MAX_BITS: u32 = 16;

static SIZES: [OnceLock<Shared>; (MAX_BITS - MIN_BITS + 1) as usize] =
    [const { OnceLock::new() }; (MAX_BITS - MIN_BITS + 1) as usize];

#[cfg(not(miri))]
type Memory = Result<memmap2::MmapMut, Vec<u8>>;
#[cfg(miri)]
type Memory = Result<Vec<u8>, Vec<u8>>;

/// Requests zeroed memory from the system with all its pages populated.
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
    /// Accessed only through `start` until it is dropped.
    _memory: Memory,
}

// SAFETY: any thread may use and return the memory. A slab's own methods do not access it; frames
// do, each its own part.
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

    /// Returns the slab's key: its address.
    fn key(&self) -> usize {
        self.start.addr().get()
    }
}

/// A frame: the only access to its bytes.
struct RawFrame {
    /// `slab.size` bytes of the slab's memory.
    start: NonNull<u8>,
    /// All bytes are zero.
    fresh: bool,
    slab: Arc<Slab>,
}

// SAFETY: as a `Box<[u8]>`, it owns its bytes.
unsafe impl Send for RawFrame {}
// SAFETY: as above. Through a shared reference the bytes are only read.
unsafe impl Sync for RawFrame {}

/// A slab from which frames are taken.
struct Stock {
    slab: Arc<Slab>,
    /// Indices of the free frames that were used before.
    used: Vec<u32>,
    /// The lowest index of the frames that were never used.
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

    fn take(&mut self) -> Option<RawFrame> {
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
        Some(RawFrame { start, fresh, slab: self.slab.clone() })
    }
}

/// All slabs of frames of one size.
#[derive(Default)]
struct Slabs {
    by_address: BTreeMap<usize, Stock>,
    /// Slabs with free frames. Frames are taken from the lowest address, so that other slabs become
    /// idle.
    with_frames: BTreeSet<usize>,
    /// The number of slabs whose frames are all free.
    idle: usize,
    ready: Vec<Arc<Slab>>,
    users: usize,
    filler: Option<JoinHandle<()>>,
    /// Changes when the filler thread must end.
    turn: u64,
}

impl Slabs {
    fn add(&mut self, slab: Arc<Slab>) {
        let key = slab.key();
        self.with_frames.insert(key);
        self.idle += 1;
        self.by_address.insert(key, Stock { slab, used: Vec::new(), fresh: 0 });
    }

    /// Takes some frames from one slab, if any are free.
    fn take(&mut self) -> Vec<RawFrame> {
        let Some(key) = self.with_frames.first().copied() else { return Vec::new() };
        let Some(stock) = self.by_address.get_mut(&key) else { return Vec::new() };
        self.idle -= usize::from(stock.is_idle());
        let taken = core::iter::from_fn(|| stock.take()).take(BATCH).collect();
        if stock.free() == 0 {
            self.with_frames.remove(&key);
        }
        taken
    }

    /// Notes frames as unused. Frames of one slab must be adjacent in `frames`. Returns the slabs
    /// that are no longer needed, for the caller to drop without the lock.
    fn give(&mut self, frames: &[RawFrame]) -> Vec<Arc<Slab>> {
        let keep = match (self.users, &self.filler) {
            (0, _) => 0,
            (_, None) => IDLE,
            (_, Some(_)) => MAX_IDLE,
        };
        let mut gone = Vec::new();
        for of_one in frames.chunk_by(|a, b| Arc::ptr_eq(&a.slab, &b.slab)) {
            // Frames of one slab are adjacent, so each slab is looked up once.
            let Some(slab) = of_one.first().map(|raw| &raw.slab) else { continue };
            let key = slab.key();
            let Some(stock) = self.by_address.get_mut(&key) else { continue };
            if stock.free() == 0 {
                self.with_frames.insert(key);
            }
            stock.used.extend(
                of_one.iter().map(|raw| ((raw.start.addr().get() - key) / slab.size) as u32),
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

    /// Removes all idle slabs but `keep`, and returns them.
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
    near: Sharded<Mutex<Vec<RawFrame>>>,
    slabs: Mutex<Slabs>,
    /// Notified when slabs are wanted, and when the last user goes.
    wanted: Condvar,
}

impl Shared {
    fn of(size: usize) -> &'static Shared {
        let bits = size.max(1).next_power_of_two().ilog2().clamp(MIN_BITS, MAX_BITS);
        let place = SIZES.get((bits - MIN_BITS) as usize).unwrap_or(&SIZES[0]);
        place.get_or_init(|| Shared {
            size: 1 << bits,
            near: Sharded::new(|_| Mutex::new(Level::Leaf, Vec::new())),
            slabs: Mutex::new(Level::Leaf, Slabs::default()),
            wanted: Condvar::new(),
        })
    }

    fn take(&'static self) -> RawFrame {
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
            // Other threads may have returned many frames meanwhile, below the limit of that time.
            // The filler is told, so that it returns the excess later.
            if slabs.idle > IDLE {
                self.wanted.notify_one();
            }
        }
    }

    /// Takes frames from the present slabs, or from a slab that is ready.
    fn some(&'static self) -> Vec<RawFrame> {
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

    /// Starts the filler thread. If that fails, threads that need slabs wait for the system
    /// instead.
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

    fn give(&self, raw: RawFrame) {
        let most = most_near(self.size);
        let mut near = self.near.local().lock();
        near.push(raw);
        if near.len() > most {
            let mut others: Vec<RawFrame> = near.drain(..most / 2).collect();
            drop(near);
            others.sort_unstable_by_key(|raw| raw.start);
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

    /// Returns all unused memory to the system after the last user has gone.
    fn clear(&self) {
        let mut near: Vec<RawFrame> =
            self.near.iter().flat_map(|near| core::mem::take(&mut *near.lock())).collect();
        near.sort_unstable_by_key(|raw| raw.start);
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

/// A source of frames of one size.
pub struct SlabPages {
    shared: &'static Shared,
}

impl SlabPages {
    /// Makes a source of frames of `size` bytes: a power of two from 1 KiB to 64 KiB.
    pub fn new(size: usize) -> SlabPages {
        let shared = Shared::of(size);
        shared.slabs.lock().users += 1;
        SlabPages { shared }
    }

    /// Returns a frame with `part` at offset `from`, cut at the frame's end, and zeroes elsewhere.
    pub fn frame(&self, from: usize, part: &[u8]) -> Frame {
        let raw = self.shared.take();
        let fresh = raw.fresh;
        let mut frame = Frame { raw: Some(RawFrame { fresh: false, ..raw }) };
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
        // If the filler panicked, it has ended, too.
        let _ = filler.map(JoinHandle::join);
        self.shared.clear();
    }
}

impl fmt::Debug for SlabPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabPages").field("size", &self.shared.size).finish_non_exhaustive()
    }
}

/// A page's memory. Returns to its source when dropped.
pub struct Frame {
    /// `None` only during the drop.
    raw: Option<RawFrame>,
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let Some(raw) = &self.raw else { return &[] };
        // SAFETY: `start` points to `size` bytes of the slab's memory, which lives as long as
        // `raw.slab`. They were initialized with zeroes when the slab was made. They belong to
        // this frame alone: a writer has exclusive access to this frame.
        unsafe { core::slice::from_raw_parts(raw.start.as_ptr(), raw.slab.size) }
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(raw) = &mut self.raw else { return &mut [] };
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(raw.start.as_ptr(), raw.slab.size) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            let shared = raw.slab.shared;
            shared.give(raw);
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

    /// Sizes used by one test each, since all users of a size share its slabs.
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
            "unused slabs have been returned"
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
        // The filler returns excess slabs when they were not wanted for a while. Miri runs without
        // the filler.
        while !cfg!(miri) && shared.slabs.lock().idle > IDLE {
            std::thread::sleep(REST / 8);
        }
        assert!(shared.slabs.lock().ready.len() <= READY);
    }
}
