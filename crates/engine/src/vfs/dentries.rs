//! Dentries: a bounded table from (directory, name) to inode, negative entries included. Lookups
//! take no lock.
//!
//! For example, (2, "etc") leads to inode 11, and the negative entry (11, "no") says that directory
//! 11 has no name "no".
//!
//! # Invariants
//! - An entry of a directory is created under the directory's `rw` lock for reading, and changed
//!   under that lock for writing. Entries therefore agree with the directory's blocks.
//! - Directories are identified by number *and* generation: an entry of a removed directory never
//!   matches a new one.
//! - Name and directory of an entry never change. Its target changes in place, under its shard's
//!   lock.
//! - An entry is on the LRU lists from its insertion on. A walk that takes an entry off the lists
//!   removes it from the table next. An entry off the lists is therefore about to be removed.
//! - The mark of a directory that everyone may search belongs to the entry's present target: it is
//!   set under the shard's lock, and cleared with each change of the target.
//!
//! # Locking
//! A lookup takes no lock and writes nothing, except for the mark of use if it is not set. Entries
//! have no reference counts: a path walk uses them while it has the epoch pinned, and its result is
//! a counted reference to an inode.

use extant_format::types::{FileType, InodeNr};
use extant_sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
use extant_sync::epoch::{Guard, pin};
use extant_sync::list_lru::{Answer, Cursor, Link, ListLru};
use extant_sync::table::{Hashed, Table, TableShard};
use extant_sync::{Level, ShardedCounter, shard_index};
use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;
use std::hash::Hasher;

const SHARDS: usize = 64;

/// Memory of an entry with a name of up to [`SHORT`] bytes: the entry, the allocator's overhead,
/// its bucket, its place on a list.
const ENTRY_BYTES: u64 = (size_of::<Entry>() + 16 + 8 + 8 + 12) as u64;

/// Length of the longest name that lies in the entry.
const SHORT: usize = 22;

/// Entries examined for each entry above the limit.
const SHRINK_BATCH: usize = 32;

/// The inode that a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Inode number.
    pub ino: InodeNr,
    /// Generation of the inode.
    pub generation: u32,
    /// Type of the inode.
    pub ftype: FileType,
}

#[derive(Debug)]
enum Name {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

impl Name {
    fn new(name: &[u8]) -> Self {
        let mut short = [0; SHORT];
        match short.get_mut(..name.len()) {
            Some(start) => {
                start.copy_from_slice(name);
                Name::Short(name.len() as u8, short)
            }
            None => Name::Long(name.into()),
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Name::Short(len, bytes) => &bytes[..usize::from(*len).min(SHORT)],
            Name::Long(bytes) => bytes,
        }
    }

    fn heap(&self) -> usize {
        match self {
            Name::Short(..) => 0,
            Name::Long(bytes) => bytes.len() + 16,
        }
    }
}

/// Low bits of a state: the type of the target, or [`ABSENT`].
const KIND: u32 = 0xf;
const ABSENT: u32 = 0xf;
/// Bit of a state: the target is being changed.
const CHANGING: u32 = 0x10;
/// Unit of a state's version.
const VERSION: u32 = 0x20;

/// Bit of the marks: the entry was looked up since the last examination.
const USED: u32 = 1;
/// Shift of the number of restrictions in the marks.
const NOTED_SHIFT: u32 = 1;

#[derive(Debug)]
struct Entry {
    hash: u32,
    dir: InodeNr,
    generation: u32,
    /// Version and kind. A copy of `target` is valid if the state is the same before and after the
    /// load.
    state: AtomicU32,
    /// Number and generation of the inode.
    target: AtomicU64,
    /// [`USED`], and above it the number of restrictions at which everyone was seen to have the
    /// permission to search the target, a directory; 0 if unknown. See [`super::search`].
    marks: AtomicU32,
    link: Link,
    name: Name,
}

impl Hashed for Entry {
    #[inline]
    fn hash(&self) -> u32 {
        self.hash
    }
}

/// The key of a lookup.
#[derive(Clone, Copy)]
struct Key<'a> {
    hash: u32,
    dir: InodeNr,
    generation: u32,
    name: &'a [u8],
}

/// Returns whether two names are equal. Each step of each path walk compares short names: they are
/// compared by their first and last words, which overlap, without a call.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    fn ends<const N: usize>(a: &[u8], b: &[u8]) -> bool {
        a.first_chunk::<N>() == b.first_chunk::<N>() && a.last_chunk::<N>() == b.last_chunk::<N>()
    }
    a.len() == b.len()
        && match a.len() {
            0..4 => ends::<1>(a, b) && a.get(1) == b.get(1),
            4..8 => ends::<4>(a, b),
            8..=16 => ends::<8>(a, b),
            _ => a == b,
        }
}

fn pack(target: Option<Target>) -> (u32, u64) {
    match target {
        None => (ABSENT, 0),
        Some(t) => {
            (t.ftype.to_dir_byte().into(), u64::from(t.ino.0) << 32 | u64::from(t.generation))
        }
    }
}

fn unpack(kind: u32, target: u64) -> Option<Target> {
    let known = || Target {
        ino: InodeNr((target >> 32) as u32),
        generation: target as u32,
        ftype: FileType::from_dir_byte(kind as u8),
    };
    (kind != ABSENT).then(known)
}

impl Entry {
    fn new(key: &Key<'_>, target: Option<Target>) -> Entry {
        let (kind, target) = pack(target);
        Entry {
            hash: key.hash,
            dir: key.dir,
            generation: key.generation,
            state: AtomicU32::new(kind),
            target: AtomicU64::new(target),
            marks: AtomicU32::new(0),
            link: Link::new(),
            name: Name::new(key.name),
        }
    }

    #[inline]
    fn is(&self, key: &Key<'_>) -> bool {
        self.dir == key.dir
            && self.generation == key.generation
            && same(self.name.bytes(), key.name)
    }

    /// Returns the target of the name and the number noted with it; `None` while it is being
    /// changed.
    #[inline]
    fn target(&self) -> Option<(Option<Target>, u32)> {
        let state = self.state.load(Ordering::Acquire);
        let target = self.target.load(Ordering::Relaxed);
        let marks = self.marks.load(Ordering::Relaxed);
        // As in `seqcell`: pairs with the fence in `set`. If one of the two loads saw a value of a
        // concurrent `set`, the load of `state` below sees `CHANGING` or a later version.
        fence(Ordering::Acquire);
        let same = self.state.load(Ordering::Relaxed) == state && state & CHANGING == 0;
        same.then(|| (unpack(state & KIND, target), marks >> NOTED_SHIFT))
    }

    /// Sets the target. The caller must hold the shard's lock.
    fn set(&self, target: Option<Target>) {
        let (kind, target) = pack(target);
        let version = self.state.load(Ordering::Relaxed) & !(KIND | CHANGING);
        // The state shows the change before the target changes: the fence orders the two stores.
        // The last store publishes the target with the new version.
        self.state.store(version | CHANGING | ABSENT, Ordering::Relaxed);
        fence(Ordering::Release);
        self.target.store(target, Ordering::Relaxed);
        self.marks.fetch_and(USED, Ordering::Relaxed);
        self.state.store(version.wrapping_add(VERSION) | kind, Ordering::Release);
    }

    #[inline]
    fn mark_used(&self) {
        // Relaxed: a hint for eviction, stored only if it is not set.
        if self.marks.load(Ordering::Relaxed) & USED == 0 {
            self.marks.fetch_or(USED, Ordering::Relaxed);
        }
    }

    /// Stores a number of restrictions. The caller must hold the shard's lock.
    fn note(&self, number: u32) {
        // Other threads change `USED` only. It may get lost, which is a hint for eviction.
        let used = self.marks.load(Ordering::Relaxed) & USED;
        // Release: pairs with the fence in `target`. Another thread may have set the target that
        // the number belongs to; a reader that sees the number, but loaded the target before, then
        // sees that thread's state, and not the two of them as one.
        self.marks.store(number << NOTED_SHIFT | used, Ordering::Release);
    }

    fn bytes(&self) -> i64 {
        (ENTRY_BYTES as usize + self.name.heap()) as i64
    }
}

/// The dentry table.
#[derive(Debug)]
pub struct Dentries {
    table: Table<Entry>,
    lru: ListLru<u32>,
    /// Random, and constant for the table's lifetime: callers that choose names cannot make them
    /// collide.
    seed: u64,
    /// Derived from `seed`.
    seeds: SharedSeed,
    /// If false, the table stays empty.
    remembers: bool,
    limit: AtomicI64,
    bytes: ShardedCounter,
    len: ShardedCounter,
    evicted: ShardedCounter,
}

/// Returns the bound for `memory` bytes: enough for some names in each shard.
fn limit_of(memory: u64) -> i64 {
    let least = 64 * SHARDS as u64 * ENTRY_BYTES;
    i64::try_from(memory.max(least)).unwrap_or(i64::MAX)
}

impl Dentries {
    /// Creates a table that tries to stay within `memory` bytes. All hashes depend on `seed`.
    pub fn new(memory: u64, seed: u64) -> Self {
        Dentries {
            table: Table::new(Level::DentryShard, SHARDS),
            lru: ListLru::new(),
            seed,
            seeds: SharedSeed::from_u64(seed.rotate_left(32)),
            remembers: true,
            limit: AtomicI64::new(limit_of(memory)),
            bytes: ShardedCounter::default(),
            len: ShardedCounter::default(),
            evicted: ShardedCounter::default(),
        }
    }

    /// Creates a table that stays empty.
    pub fn empty() -> Self {
        Dentries { remembers: false, ..Dentries::new(0, 0) }
    }

    /// Returns whether the table stores anything.
    #[inline]
    pub fn remembers(&self) -> bool {
        self.remembers
    }

    #[inline]
    fn key<'a>(&self, dir: InodeNr, generation: u32, name: &'a [u8]) -> Key<'a> {
        let mut h = FoldHasher::with_seed(self.seed, &self.seeds);
        // The directory comes last: a walk knows it last.
        h.write(name);
        h.write_u64(u64::from(dir.0) << 32 | u64::from(generation));
        let hash = h.finish();
        Key { hash: (hash >> 32) as u32 ^ hash as u32, dir, generation, name }
    }

    /// Looks a name up. Returns `None` if nothing is known, `Some(None)` if the name is known to be
    /// absent.
    pub fn get(&self, dir: InodeNr, generation: u32, name: &[u8]) -> Option<Option<Target>> {
        if !self.remembers {
            return None;
        }
        self.get_pinned(&pin(), dir, generation, name).map(|(target, _)| target)
    }

    /// Looks a name up as [`Dentries::get`] does, for walks that have pinned the epoch. Also
    /// returns the number that [`Dentries::set_searchable`] stored for this target, or 0.
    #[inline(always)]
    pub fn get_pinned(
        &self,
        pinned: &Guard,
        dir: InodeNr,
        generation: u32,
        name: &[u8],
    ) -> Option<(Option<Target>, u32)> {
        if !self.remembers {
            return None;
        }
        let key = self.key(dir, generation, name);
        let entry = self.table.find(pinned, key.hash, |e| e.is(&key))?;
        entry.mark_used();
        entry.target()
    }

    /// Records the target of a name, or its absence (`None`). The caller must hold the directory's
    /// lock.
    pub fn set(&self, dir: InodeNr, generation: u32, name: &[u8], target: Option<Target>) {
        if !self.remembers {
            return;
        }
        let key = self.key(dir, generation, name);
        let mut shard = self.table.lock(key.hash);
        if let Some(entry) = shard.find(key.hash, |e| e.is(&key)) {
            entry.set(target);
            return;
        }
        let entry = shard.insert(Entry::new(&key, target));
        self.lru.add(&entry.link, key.hash);
        self.bytes.add(entry.bytes());
        self.len.add(1);
        // `shrink` locks other shards of the table.
        drop(shard);
        if self.bytes.at_least(self.limit.load(Ordering::Relaxed)) {
            self.shrink(SHRINK_BATCH);
        }
    }

    /// Stores, with a name that leads to `target`, the number of restrictions at which everyone was
    /// seen to have the permission to search it. Does nothing while another thread has the lock: a
    /// later walk notes it.
    pub fn set_searchable(
        &self,
        (dir, generation, name): (InodeNr, u32, &[u8]),
        target: (InodeNr, u32),
        number: u32,
    ) {
        let key = self.key(dir, generation, name);
        // The lock excludes changes of the target, which clear the number.
        let Some(shard) = self.table.try_lock(key.hash) else { return };
        if let Some(entry) = shard.find(key.hash, |e| e.is(&key))
            && let Some((Some(leads), _)) = entry.target()
            && (leads.ino, leads.generation) == target
        {
            entry.note(number);
        }
    }

    /// Removes the entry of a name if it leads to `target`. The caller must hold the directory's
    /// lock.
    pub fn forget(&self, dir: InodeNr, generation: u32, name: &[u8], target: Target) {
        let key = self.key(dir, generation, name);
        let mut shard = self.table.lock(key.hash);
        self.remove(&mut shard, key.hash, |e| {
            e.is(&key) && e.target().is_some_and(|(leads, _)| leads == Some(target))
        });
    }

    /// Removes all entries of a directory. The caller must hold the directory's lock for writing,
    /// so that no thread adds entries meanwhile.
    pub fn forget_all(&self, dir: InodeNr, generation: u32) {
        if !self.remembers {
            return;
        }
        let of_dir = |e: &Entry| e.dir == dir && e.generation == generation;
        for index in 0..self.table.shard_count() {
            let mut hashes = Vec::new();
            self.table.each_in_shard(index, |e| {
                if of_dir(e) {
                    hashes.push(e.hash);
                }
            });
            for hash in hashes {
                self.remove(&mut self.table.lock(hash), hash, of_dir);
            }
        }
    }

    fn remove(
        &self,
        shard: &mut TableShard<'_, Entry>,
        hash: u32,
        is: impl Fn(&Entry) -> bool,
    ) -> bool {
        let Some(entry) = shard.find(hash, &is) else { return false };
        self.lru.del(&entry.link);
        self.bytes.sub(entry.bytes());
        self.len.sub(1);
        shard.remove(hash, is)
    }

    /// Changes the bound, in bytes, and evicts names beyond it.
    pub fn set_memory(&self, memory: u64) {
        let limit = limit_of(memory);
        self.limit.store(limit, Ordering::Relaxed);
        // The first pass may only clear marks of use.
        let mut passes = self.len().saturating_mul(2) / SHRINK_BATCH;
        while passes > 0 && self.bytes.at_least(limit) {
            self.shrink(SHRINK_BATCH);
            passes -= 1;
        }
    }

    /// Returns the number of names in memory.
    pub fn len(&self) -> usize {
        usize::try_from(self.len.sum()).unwrap_or(0)
    }

    /// Returns the number of names that were evicted to stay within the limit.
    pub fn evicted(&self) -> u64 {
        u64::try_from(self.evicted.sum()).unwrap_or(0)
    }

    /// Examines up to `budget` names, the oldest of each list first, and this thread's list before
    /// the others. Evicts names that were not looked up since the last examination, and returns
    /// their number.
    pub fn shrink(&self, budget: usize) -> usize {
        let (mut budget, mut dispose, first) = (budget, Vec::new(), shard_index());
        for shard in 0..self.lru.shards() {
            self.lru.walk(first + shard, &mut budget, |hash, cursor| {
                self.isolate(hash, cursor, &mut dispose)
            });
        }
        // Removal follows the walk, since it takes the table's lock before that of a list.
        let going = |e: &Entry| !e.link.is_linked();
        let gone = dispose
            .iter()
            .filter(|hash| self.remove(&mut self.table.lock(**hash), **hash, going))
            .count();
        self.evicted.add(gone as i64);
        gone
    }

    fn isolate(&self, hash: u32, cursor: &mut Cursor<'_, u32>, dispose: &mut Vec<u32>) -> Answer {
        let pinned = pin();
        // Threads that add to the list hold the table's lock, so the walk only tries it.
        let Some(found) = self.table.try_find(&pinned, hash, |e| cursor.at(&e.link)) else {
            return Answer::Skip;
        };
        let Some(entry) = found else {
            cursor.isolate_lost();
            return Answer::Removed;
        };
        if entry.marks.fetch_and(!USED, Ordering::Relaxed) & USED != 0 {
            return Answer::Rotate;
        }
        cursor.isolate_move(&entry.link, dispose);
        Answer::Removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: InodeNr = InodeNr(2);

    /// Types of directory entries, the unknown one included.
    const KINDS: u8 = 8;

    fn target(ino: u32, ftype: FileType) -> Option<Target> {
        Some(Target { ino: InodeNr(ino), generation: !ino, ftype })
    }

    #[test]
    fn names_of_each_length_are_equal_only_if_all_their_bytes_are() {
        for len in 0..40 {
            let name: Vec<u8> = (0..len).map(|n| b'a' + n as u8 % 26).collect();
            assert!(same(&name, &name.clone()));
            assert!(!same(&name, &[&name[..], b"x"].concat()));
            for at in 0..len {
                let mut other = name.clone();
                other[at] ^= 1;
                assert!(!same(&name, &other), "byte {at} of {len}");
            }
        }
    }

    #[test]
    fn an_entry_is_small() {
        let entry =
            Entry::new(&Key { hash: 0, dir: DIR, generation: 0, name: b"a-name-of-16-byt" }, None);
        assert!(entry.bytes() < 150, "{} bytes", entry.bytes());
        // With the pointer to the next entry of its chain it fits in one cache line.
        assert!(size_of::<Entry>() + 8 <= 64, "{} bytes", size_of::<Entry>());
    }

    #[test]
    fn names_lead_where_they_were_set_to() {
        let dentries = Dentries::new(1 << 20, 7);
        let long = [b'x'; 255];
        for (n, ftype) in (0..KINDS).map(FileType::from_dir_byte).enumerate() {
            for name in [&b"short"[..], &long, b"", &long[..SHORT], &long[..SHORT + 1]] {
                dentries.set(DIR, n as u32, name, target(n as u32, ftype));
                assert_eq!(dentries.get(DIR, n as u32, name), Some(target(n as u32, ftype)));
                dentries.set(DIR, n as u32, name, None);
                assert_eq!(dentries.get(DIR, n as u32, name), Some(None));
                assert_eq!(dentries.get(DIR, 99, name), None);
            }
        }
        assert_eq!(dentries.len(), 5 * usize::from(KINDS));
        let known = Target { ino: InodeNr(5), generation: 1, ftype: FileType::Regular };
        dentries.set(DIR, 0, b"short", Some(known));
        dentries.forget(DIR, 0, b"short", Target { generation: 2, ..known });
        assert_eq!(dentries.get(DIR, 0, b"short"), Some(Some(known)));
        dentries.forget(DIR, 0, b"short", known);
        assert_eq!(dentries.get(DIR, 0, b"short"), None);
    }

    #[test]
    fn the_bound_holds_and_the_used_stay() {
        let dentries = Dentries::new(0, 7);
        let limit = dentries.limit.load(Ordering::Relaxed);
        dentries.set(DIR, 0, b"hot", target(1, FileType::Directory));
        for n in 0..50_000u32 {
            dentries.set(DIR, 1, &n.to_le_bytes(), None);
            assert!(dentries.get(DIR, 0, b"hot").is_some(), "looked up all the time");
        }
        assert!(
            dentries.bytes.sum() <= limit + 64 * ENTRY_BYTES as i64 * dentries.bytes.error_bound()
        );
        assert!(dentries.evicted() > 10_000);
        assert_eq!(dentries.len() as u64 + dentries.evicted(), 50_001);
        assert_eq!(dentries.lru.count(), dentries.len());
    }

    #[test]
    fn the_note_of_a_directory_goes_with_its_target() {
        let dentries = Dentries::new(1 << 20, 7);
        let noted = |name| dentries.get_pinned(&pin(), DIR, 0, name).map(|(_, noted)| noted);
        let (old, new) = (target(5, FileType::Directory), target(6, FileType::Directory));
        dentries.set(DIR, 0, b"name", old);
        assert_eq!(noted(b"name"), Some(0));
        dentries.set_searchable((DIR, 0, b"name"), (InodeNr(5), !5), 3);
        assert_eq!(noted(b"name"), Some(3));
        dentries.set(DIR, 0, b"name", new);
        assert_eq!(noted(b"name"), Some(0), "the note was of another directory");
        // A walk that saw the old target is late.
        dentries.set_searchable((DIR, 0, b"name"), (InodeNr(5), !5), 3);
        dentries.set_searchable((DIR, 0, b"name"), (InodeNr(6), 6), 3);
        dentries.set_searchable((DIR, 0, b"other"), (InodeNr(6), !6), 3);
        assert_eq!((noted(b"name"), noted(b"other")), (Some(0), None));
    }

    #[test]
    fn an_empty_table_stays_empty() {
        let dentries = Dentries::empty();
        dentries.set(DIR, 0, b"name", target(1, FileType::Regular));
        assert_eq!(dentries.get(DIR, 0, b"name"), None);
        assert_eq!(dentries.len(), 0);
    }

    #[test]
    fn readers_see_one_target_whole() {
        let dentries = Dentries::new(1 << 20, 7);
        let targets = [target(1, FileType::Regular), target(2, FileType::Directory), None];
        dentries.set(DIR, 0, b"name", None);
        std::thread::scope(|scope| {
            let writer = scope
                .spawn(|| (0..30_000).for_each(|n| dentries.set(DIR, 0, b"name", targets[n % 3])));
            while !writer.is_finished() {
                if let Some(seen) = dentries.get(DIR, 0, b"name") {
                    assert!(targets.contains(&seen), "{seen:?}");
                }
            }
        });
    }
}
