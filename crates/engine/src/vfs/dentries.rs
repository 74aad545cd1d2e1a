//! Names: (directory, name) to inode, negative entries too. Looked up without a lock, bounded.
//!
//! # Invariants
//! - An entry for a directory changes only under that directory's `rw` lock: filled under the read
//!   lock, changed under the write lock. So an entry says what the directory's blocks say.
//! - A directory is named by number *and* generation: entries of a removed directory can never
//!   match a new one.
//! - Name and directory of an entry never change; where it leads does, in place, under its shard's
//!   lock.
//! - An entry is on the LRU lists from its insertion on. A walk that has taken it off removes it
//!   from the table next; so an entry without a link is one that is going.
//!
//! # Locking
//! A lookup takes no lock and writes nothing, but for the mark of use that it finds missing.
//! Entries are not counted: a walk needs them for as long as it has the epoch pinned, and its end
//! is a counted reference to an inode.

use extant_format::types::{FileType, InodeNr};
use extant_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use extant_sync::epoch::{Guard, pin};
use extant_sync::list_lru::{Answer, Cursor, Link, ListLru};
use extant_sync::table::{Hashed, Table, TableShard};
use extant_sync::{Level, ShardedCounter, shard_index};
use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;
use std::hash::Hasher;

const SHARDS: usize = 64;

/// What an entry with a name of up to [`SHORT`] bytes costs in memory: itself, what the allocator
/// adds, its bucket, its place on a list.
const ENTRY_BYTES: u64 = (size_of::<Entry>() + 16 + 8 + 8 + 12) as u64;

/// Bytes of a name that lie in the entry.
const SHORT: usize = 22;

/// Entries looked at for each one that is too many.
const SHRINK_BATCH: usize = 32;

/// Where a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Inode number.
    pub ino: InodeNr,
    /// Its generation.
    pub generation: u32,
    /// Its type.
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

/// Low bits of a state: the type of what the name leads to, or [`ABSENT`].
const KIND: u32 = 0xf;
const ABSENT: u32 = 0xf;
/// Bit of a state: it is being changed.
const CHANGING: u32 = 0x10;
/// What a state's version counts in.
const VERSION: u32 = 0x20;

#[derive(Debug)]
struct Entry {
    hash: u32,
    dir: InodeNr,
    generation: u32,
    /// Version and kind: `target` belongs to it if it is the same before and afterwards.
    state: AtomicU32,
    /// Number and generation of the inode.
    target: AtomicU64,
    link: Link,
    used: AtomicBool,
    name: Name,
}

impl Hashed for Entry {
    #[inline]
    fn hash(&self) -> u32 {
        self.hash
    }
}

/// Names on which the dentry table works: what is looked for.
#[derive(Clone, Copy)]
struct Key<'a> {
    hash: u32,
    dir: InodeNr,
    generation: u32,
    name: &'a [u8],
}

/// Whether two names are equal. Each step of each walk asks that of short ones: they are compared
/// by their first and last words, which overlap, and without a call.
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
            link: Link::new(),
            used: AtomicBool::new(false),
            name: Name::new(key.name),
        }
    }

    #[inline]
    fn is(&self, key: &Key<'_>) -> bool {
        self.dir == key.dir
            && self.generation == key.generation
            && same(self.name.bytes(), key.name)
    }

    /// Where the name leads; the outer `None` while that is being changed.
    #[inline]
    fn target(&self) -> Option<Option<Target>> {
        let state = self.state.load(Ordering::Acquire);
        let target = self.target.load(Ordering::Relaxed);
        // As in `seqcell`: pairs with the fence in `set`.
        fence(Ordering::Acquire);
        let same = self.state.load(Ordering::Relaxed) == state && state & CHANGING == 0;
        same.then(|| unpack(state & KIND, target))
    }

    /// The shard is locked.
    fn set(&self, target: Option<Target>) {
        let (kind, target) = pack(target);
        let version = self.state.load(Ordering::Relaxed) & !(KIND | CHANGING);
        self.state.store(version | CHANGING | ABSENT, Ordering::Relaxed);
        fence(Ordering::Release);
        self.target.store(target, Ordering::Relaxed);
        self.state.store(version.wrapping_add(VERSION) | kind, Ordering::Release);
    }

    #[inline]
    fn mark_used(&self) {
        // Relaxed: a hint for eviction, stored only where it changes something.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
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
    /// Of the table's life, so that nobody who makes names knows which of them meet.
    seed: u64,
    /// Made from the same.
    seeds: SharedSeed,
    /// If not, the table stays empty.
    remembers: bool,
    limit: i64,
    bytes: ShardedCounter,
    len: ShardedCounter,
    evicted: ShardedCounter,
}

impl Dentries {
    /// A table that tries to stay within `memory` bytes. `seed` goes into all hashes.
    pub fn new(memory: u64, seed: u64) -> Self {
        let least = 64 * SHARDS as u64 * ENTRY_BYTES;
        Dentries {
            table: Table::new(Level::DentryShard, SHARDS),
            lru: ListLru::new(),
            seed,
            seeds: SharedSeed::from_u64(seed.rotate_left(32)),
            remembers: true,
            limit: i64::try_from(memory.max(least)).unwrap_or(i64::MAX),
            bytes: ShardedCounter::default(),
            len: ShardedCounter::default(),
            evicted: ShardedCounter::default(),
        }
    }

    /// A table that remembers nothing.
    pub fn empty() -> Self {
        Dentries { remembers: false, ..Dentries::new(0, 0) }
    }

    /// Whether it remembers anything.
    #[inline]
    pub fn remembers(&self) -> bool {
        self.remembers
    }

    #[inline]
    fn key<'a>(&self, dir: InodeNr, generation: u32, name: &'a [u8]) -> Key<'a> {
        let mut h = FoldHasher::with_seed(self.seed, &self.seeds);
        // The directory last: on a walk it is what is known last.
        h.write(name);
        h.write_u64(u64::from(dir.0) << 32 | u64::from(generation));
        let hash = h.finish();
        Key { hash: (hash >> 32) as u32 ^ hash as u32, dir, generation, name }
    }

    /// Looks a name up: `None` if nothing is known, `Some(None)` if it is known to be absent.
    pub fn get(&self, dir: InodeNr, generation: u32, name: &[u8]) -> Option<Option<Target>> {
        if !self.remembers {
            return None;
        }
        self.get_pinned(&pin(), dir, generation, name)
    }

    /// As [`Dentries::get`], for walks that have pinned the epoch.
    #[inline(always)]
    pub fn get_pinned(
        &self,
        pinned: &Guard,
        dir: InodeNr,
        generation: u32,
        name: &[u8],
    ) -> Option<Option<Target>> {
        if !self.remembers {
            return None;
        }
        let key = self.key(dir, generation, name);
        let entry = self.table.find(pinned, key.hash, |e| e.is(&key))?;
        entry.mark_used();
        entry.target()
    }

    /// Records where a name leads (or that it is absent). The caller holds the directory's lock.
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
        drop(shard);
        if self.bytes.at_least(self.limit) {
            self.shrink(SHRINK_BATCH);
        }
    }

    /// Forgets where a name leads if that is `target`. The caller holds the directory's lock.
    pub fn forget(&self, dir: InodeNr, generation: u32, name: &[u8], target: Target) {
        let key = self.key(dir, generation, name);
        let mut shard = self.table.lock(key.hash);
        self.remove(&mut shard, key.hash, |e| e.is(&key) && e.target() == Some(Some(target)));
    }

    /// Forgets all names of a directory. The caller holds its lock for writing, so that none comes
    /// meanwhile.
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

    /// Names in memory.
    pub fn len(&self) -> usize {
        usize::try_from(self.len.sum()).unwrap_or(0)
    }

    /// Names that were dropped to stay within the bound.
    pub fn evicted(&self) -> u64 {
        u64::try_from(self.evicted.sum()).unwrap_or(0)
    }

    /// Looks at up to `budget` names, the oldest of each list first, this thread's list before the
    /// others, and drops those that were not looked up since the last time; how many.
    pub fn shrink(&self, budget: usize) -> usize {
        let (mut budget, mut dispose, first) = (budget, Vec::new(), shard_index());
        for shard in 0..self.lru.shards() {
            self.lru.walk(first + shard, &mut budget, |hash, cursor| {
                self.isolate(hash, cursor, &mut dispose)
            });
        }
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
        // Others add to the list under the table's lock: not waited for here.
        let Some(found) = self.table.try_find(&pinned, hash, |e| cursor.at(&e.link)) else {
            return Answer::Skip;
        };
        let Some(entry) = found else {
            cursor.isolate_lost();
            return Answer::Removed;
        };
        if entry.used.swap(false, Ordering::Relaxed) {
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

    /// Types of directory entries, the unknown one among them.
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
        // With the pointer to the next one of its chain it takes one line of a cache.
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
        let limit = dentries.limit;
        dentries.set(DIR, 0, b"hot", target(1, FileType::Directory));
        for n in 0..50_000u32 {
            dentries.set(DIR, 1, &n.to_le_bytes(), None);
            assert!(dentries.get(DIR, 0, b"hot").is_some(), "looked up all the time");
        }
        assert!(
            dentries.bytes.sum() <= limit + 64 * ENTRY_BYTES as i64 * ShardedCounter::error_bound()
        );
        assert!(dentries.evicted() > 10_000);
        assert_eq!(dentries.len() as u64 + dentries.evicted(), 50_001);
        assert_eq!(dentries.lru.count(), dentries.len());
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
