//! Former designs of the list of all inodes, and of the search for those under writeback.
//!
//! [`LIST`] and [`FIND`] choose one for the process. An inode stays on the list that was chosen
//! when it came into memory. The search may be changed while nothing is under writeback: a write
//! that began before is not found by another design.

use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_sync::designs::Choice;
use extant_sync::{
    LazyLock, Level, Link, ListMark, Mutex, MutexGuard, Sharded, ShardedList, shard_index,
};
use std::sync::Arc;

/// The list of all inodes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeList {
    /// The table by number serves as the list, as everywhere else.
    Table,
    /// One list with one lock for all file systems: Linux before 2015.
    Global,
    /// One for each file system: Linux since then.
    PerFs,
    /// Parts with a lock each, chosen by the thread: proposed in 2013.
    Sharded,
}

/// The way in which a sync finds the inodes that it has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindWrites {
    /// A sharded list that inodes leave with their last page: Linux since 4.8, but for the shards,
    /// and the engine.
    Eager,
    /// The same, by one sync after the other.
    EagerSerial,
    /// All inodes are looked at under the lock of their list: Linux before 4.8.
    Walk,
    /// The same, by one sync after the other.
    WalkSerial,
    /// A list that inodes leave when a sync comes by: proposed in 2013.
    Lazy,
    /// The same, and whenever it has doubled.
    LazyTrimmed,
}

/// The chosen list of all inodes.
pub static LIST: Choice<InodeList> = {
    use InodeList::*;
    Choice::new(&[Table, Global, PerFs, Sharded])
};

/// The chosen search for inodes under writeback.
pub static FIND: Choice<FindWrites> = {
    use FindWrites::*;
    Choice::new(&[Eager, EagerSerial, Walk, WalkSerial, Lazy, LazyTrimmed])
};

/// Inodes that searches of this process looked at.
pub static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// The least length of a lazy list that is trimmed.
const MIN_TRIMMED: usize = 64;

/// An inode, as far as these lists look at it.
#[derive(Debug, Default)]
struct Member {
    /// Odd while its pages are being written; grows with each start and each end.
    writes: AtomicU64,
    /// Whether it is on the lazy list.
    remembered: AtomicBool,
    /// Its place on the eager list.
    link: Link,
}

impl Member {
    fn is_written(&self) -> bool {
        self.writes.load(Ordering::SeqCst) % 2 == 1
    }

    /// Waits for the write in progress, and for no later one.
    fn wait(&self) {
        let seen = self.writes.load(Ordering::SeqCst);
        while seen % 2 == 1 && self.writes.load(Ordering::SeqCst) == seen {
            std::thread::yield_now();
        }
    }
}

/// A list whose members keep their places.
#[derive(Debug, Default)]
struct List {
    /// Members and the file systems that they belong to.
    slots: Vec<Option<(u64, Arc<Member>)>>,
    free: Vec<usize>,
}

impl List {
    fn add(&mut self, fs: u64, member: &Arc<Member>) -> usize {
        let slot = Some((fs, member.clone()));
        match self.free.pop() {
            Some(at) => {
                self.slots[at] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        }
    }

    fn remove(&mut self, at: usize) {
        self.slots[at] = None;
        self.free.push(at);
    }

    /// Appends the members of a file system that are under writeback.
    fn written(&self, fs: u64, found: &mut Vec<Arc<Member>>) {
        let own = self.slots.iter().flatten().filter(|(of, _)| *of == fs);
        let looked = own.inspect(|(_, member)| {
            if member.is_written() {
                found.push(member.clone());
            }
        });
        LOOKED_AT.fetch_add(looked.count() as u64, Ordering::Relaxed);
    }

    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

static GLOBAL: LazyLock<Mutex<List>> = LazyLock::new(|| Mutex::new(Level::Leaf, List::default()));

/// All inodes of a file system.
#[derive(Debug)]
pub struct AllInodes {
    fs: u64,
    one: Mutex<List>,
    parts: Sharded<Mutex<List>>,
}

impl Default for AllInodes {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let list = || Mutex::new(Level::Leaf, List::default());
        let fs = NEXT.fetch_add(1, Ordering::Relaxed);
        AllInodes { fs, one: list(), parts: Sharded::new(|_| list()) }
    }
}

impl AllInodes {
    fn lists(&self) -> impl Iterator<Item = &Mutex<List>> {
        [&*GLOBAL, &self.one].into_iter().chain(self.parts.iter())
    }

    /// Looks at all inodes, each list under its lock.
    fn written(&self) -> Vec<Arc<Member>> {
        let mut found = Vec::new();
        self.lists().for_each(|list| list.lock().written(self.fs, &mut found));
        found
    }

    fn len(&self) -> usize {
        self.lists().map(|list| list.lock().len()).sum()
    }
}

/// The place of an inode on these lists.
#[derive(Debug)]
pub struct WritebackLink {
    member: Arc<Member>,
    /// Whether `place` may be set. An inode that has left memory is dropped wherever epochs end,
    /// under any locks: it must take none then.
    listed: AtomicBool,
    place: Mutex<Option<Place>>,
}

#[derive(Debug)]
struct Place {
    all: Arc<AllInodes>,
    list: InodeList,
    part: usize,
    at: usize,
}

impl Place {
    fn list(&self) -> &Mutex<List> {
        match self.list {
            InodeList::Global => &GLOBAL,
            InodeList::Sharded => self.all.parts.at(self.part),
            InodeList::Table | InodeList::PerFs => &self.all.one,
        }
    }
}

impl Default for WritebackLink {
    fn default() -> Self {
        let place = Mutex::new(Level::Device, None);
        WritebackLink { member: Arc::default(), listed: AtomicBool::new(false), place }
    }
}

impl WritebackLink {
    /// Whether pages are under writeback.
    pub fn is_linked(&self) -> bool {
        self.member.is_written()
    }

    /// Puts the inode on the chosen list of all inodes.
    pub fn enter(&self, all: &Arc<AllInodes>) {
        match LIST.get() {
            InodeList::Table => {}
            list => self.enter_list(all, list),
        }
    }

    fn enter_list(&self, all: &Arc<AllInodes>, list: InodeList) {
        let mut place = self.place.lock();
        if place.is_none() {
            let mut new = Place { all: all.clone(), list, part: shard_index(), at: 0 };
            let at = new.list().lock().add(all.fs, &self.member);
            new.at = at;
            self.listed.store(true, Ordering::Release);
            *place = Some(new);
        }
    }

    /// Takes the inode off that list.
    pub fn leave(&self) {
        if self.listed.swap(false, Ordering::AcqRel)
            && let Some(place) = self.place.lock().take()
        {
            place.list().lock().remove(place.at);
        }
    }
}

/// The inodes under writeback.
#[derive(Debug)]
pub struct WritebackList {
    all: Arc<AllInodes>,
    eager: ShardedList<()>,
    lazy: Mutex<LazyList>,
    /// Held by the search of designs that have one sync at a time.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct LazyList {
    members: Vec<Arc<Member>>,
    /// The length at which it is trimmed.
    full: usize,
}

impl LazyList {
    /// Removes the inodes that are not being written.
    fn prune(&mut self) {
        LOOKED_AT.fetch_add(self.members.len() as u64, Ordering::Relaxed);
        self.members.retain(|member| {
            // This thread clears the flag first and then reads the count again; a write that begins
            // counts first and then reads the flag. All of these accesses are SeqCst, so one of the
            // two sees the other.
            let stays = member.is_written();
            member.remembered.store(stays, Ordering::SeqCst);
            stays || member.is_written() && !member.remembered.swap(true, Ordering::SeqCst)
        });
        self.full = (2 * self.members.len()).max(MIN_TRIMMED);
    }
}

/// Inodes that were under writeback at some moment.
#[derive(Debug)]
pub struct Found<'a> {
    members: Vec<Arc<Member>>,
    mark: Option<ListMark>,
    _turn: Option<MutexGuard<'a, ()>>,
}

impl WritebackList {
    /// Makes an empty list whose locks are of `level`.
    pub fn new(level: Level) -> Self {
        WritebackList {
            all: Arc::default(),
            eager: ShardedList::new(level),
            lazy: Mutex::new(level, LazyList::default()),
            turn: Mutex::new(Level::SetAside, ()),
        }
    }

    /// The list of all inodes that searches walk.
    pub fn all(&self) -> &Arc<AllInodes> {
        &self.all
    }

    /// The first page of an inode is being written.
    pub fn add(&self, link: &WritebackLink, item: impl FnOnce()) {
        link.member.writes.fetch_add(1, Ordering::SeqCst);
        match FIND.get() {
            FindWrites::Eager | FindWrites::EagerSerial => {
                self.eager.add(&link.member.link, item);
            }
            // An inode that came into memory before there was a list would be missed.
            FindWrites::Walk | FindWrites::WalkSerial => {
                link.enter_list(&self.all, InodeList::PerFs);
            }
            FindWrites::Lazy => self.remember(&link.member, false),
            FindWrites::LazyTrimmed => self.remember(&link.member, true),
        }
    }

    fn remember(&self, member: &Arc<Member>, trims: bool) {
        if member.remembered.load(Ordering::SeqCst) {
            return;
        }
        let mut lazy = self.lazy.lock();
        if !member.remembered.swap(true, Ordering::SeqCst) {
            lazy.members.push(member.clone());
        }
        if trims && lazy.members.len() > lazy.full {
            lazy.prune();
        }
    }

    /// The last page of an inode is written.
    pub fn remove(&self, link: &WritebackLink) {
        link.member.writes.fetch_add(1, Ordering::SeqCst);
        self.eager.remove(&link.member.link);
    }

    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        let serial = matches!(FIND.get(), FindWrites::EagerSerial | FindWrites::WalkSerial);
        serial.then(|| self.turn.lock())
    }

    fn find(&self) -> Vec<Arc<Member>> {
        match FIND.get() {
            FindWrites::Eager | FindWrites::EagerSerial => Vec::new(),
            FindWrites::Walk | FindWrites::WalkSerial => self.all.written(),
            FindWrites::Lazy | FindWrites::LazyTrimmed => {
                let mut lazy = self.lazy.lock();
                lazy.prune();
                lazy.members.clone()
            }
        }
    }

    /// Whether nothing is under writeback.
    pub fn is_empty(&self) -> bool {
        let _turn = self.turn();
        self.find().is_empty() && self.eager.is_empty()
    }

    /// How many inodes the chosen design remembers.
    pub fn len(&self) -> usize {
        match FIND.get() {
            FindWrites::Eager | FindWrites::EagerSerial => self.eager.len(),
            FindWrites::Walk | FindWrites::WalkSerial => self.all.len(),
            FindWrites::Lazy | FindWrites::LazyTrimmed => self.lazy.lock().members.len(),
        }
    }

    /// Returns the inodes that are under writeback now.
    pub fn arrived(&self) -> Found<'_> {
        let turn = self.turn();
        let mark = (!self.eager.is_empty()).then(|| self.eager.arrived());
        Found { members: self.find(), mark, _turn: turn }
    }

    /// Waits until they are written.
    pub fn wait_gone(&self, found: &Found<'_>) {
        found.members.iter().for_each(|member| member.wait());
        found.mark.iter().for_each(|mark| self.eager.wait_gone(mark));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_are_on_the_list_that_was_chosen_when_they_came() {
        let all = Arc::new(AllInodes::default());
        let of = |list: &Mutex<List>| {
            list.lock().slots.iter().flatten().filter(|(fs, _)| *fs == all.fs).count()
        };
        let lens = || [of(&GLOBAL), of(&all.one), all.parts.iter().map(of).sum()];
        let mut links = Vec::new();
        for (list, lens_then) in [
            (InodeList::Table, [0, 0, 0]),
            (InodeList::Global, [1, 0, 0]),
            (InodeList::PerFs, [1, 1, 0]),
            (InodeList::Sharded, [1, 1, 1]),
        ] {
            LIST.set(list);
            let link = WritebackLink::default();
            link.enter(&all);
            LIST.set(InodeList::Table);
            links.push(link);
            assert_eq!(lens(), lens_then, "{list:?}");
        }
        links.iter().for_each(WritebackLink::leave);
        assert_eq!(lens(), [0, 0, 0]);
    }
}
