//! Path walks: from paths to inodes.
//!
//! A walk first uses the dentry table, the links to parents and the inode cache alone, without
//! locks. If an entry is missing, the path has a symlink or an error must be determined, the slow
//! walk starts at the root and reads directories under their locks.

use super::inode_cache::InodeRef;
use super::search::Passed;
use super::{Caller, Target, Vfs};
use crate::error::{Errno, Result};
use crate::inode::Inode;
use crate::{dir, file};
use extant_format::types::{FileType, InodeNr};
use extant_sync::epoch::{Guard, pin};
use std::sync::Arc;

/// Maximum number of symlinks that one walk follows.
const MAX_LINKS: u32 = 40;

/// Maximum number of lookups of a name that other threads remove and create again meanwhile.
const MAX_TRIES: u32 = 100;

/// Longest path in bytes, as PATH_MAX.
const MAX_PATH: usize = 4096;

/// Longest name in bytes.
pub const MAX_NAME: usize = 255;

/// Whether a symlink at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// As stat(2) does.
    Yes,
    /// As lstat(2) does.
    No,
}

/// A directory on the path, as the dentry table identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub ino: InodeNr,
    pub generation: u32,
}

/// The result of a walk of the dentry table alone.
enum Known {
    /// The path leads here.
    At(Place),
    /// A component is absent.
    Absent,
    /// A directory on the path may not be searched.
    Denied,
    /// An entry is not in the table, or a symlink must be followed.
    Unknown,
}

/// A walk through directories and symlinks.
struct Walk<'a> {
    caller: Option<&'a Caller<'a>>,
    root: Place,
    /// Number of symlinks that may still be followed.
    budget: u32,
}

impl From<Target> for Place {
    fn from(t: Target) -> Self {
        Place { ino: t.ino, generation: t.generation }
    }
}

impl Vfs {
    /// Returns the inode, loaded if needed.
    pub fn inode(&self, ino: InodeNr) -> Result<Arc<Inode>> {
        self.node(ino).map(|node| Arc::clone(&node))
    }

    /// Returns a reference to the inode, which is loaded if needed.
    pub fn node(&self, ino: InodeNr) -> Result<InodeRef> {
        self.inodes.get(&self.st, ino, false)
    }

    /// Returns the target of `name` in `dir`. Takes the directory's lock for reading if the dentry
    /// table does not know the name.
    pub fn child(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Target>> {
        if let Some(known) = self.dentries.get(dir.ino, dir.generation, name) {
            return Ok(known);
        }
        let _lock = dir.read_lock()?;
        self.child_locked(dir, name)
    }

    /// Returns the target as [`Self::child`] does, for callers that hold the directory's lock.
    pub fn child_locked(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Target>> {
        dir.check_not_freed()?;
        if let Some(known) = self.dentries.get(dir.ino, dir.generation, name) {
            return Ok(known);
        }
        check_name(name)?;
        let target = match dir::lookup(&self.st, dir, name)? {
            Some(found) => Some(self.target(found.ino)?),
            None => None,
        };
        if name != b"." && name != b".." {
            self.remember(dir, name, target);
        }
        Ok(target)
    }

    /// Stores the target of a name, or its absence, in the dentry table. Directories that fold case
    /// or are encrypted are excluded: their entries have several spellings. The caller must hold
    /// the directory's lock.
    pub fn remember(&self, dir: &Inode, name: &[u8], target: Option<Target>) {
        if !dir::has_spellings(&self.st, dir.stat().flags) {
            self.dentries.set(dir.ino, dir.generation, name, target);
        }
    }

    /// Returns the place for a new entry `name`, which [`check_name`] must have accepted, in `dir`;
    /// EEXIST if the name exists. The caller must hold the directory's lock. The absence is not
    /// stored, since the caller creates the name.
    pub fn slot_locked(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<dir::InsertSlot> {
        dir.check_not_freed()?;
        match self.dentries.get(dir.ino, dir.generation, name) {
            Some(None) => return Ok(dir::InsertSlot::default()),
            Some(Some(_)) => return Err(Errno::Exist.into()),
            None => {}
        }
        match dir::lookup_slot(&self.st, dir, name)? {
            Err(slot) => Ok(slot),
            // The target is stored: a caller that gets EEXIST may ask again.
            Ok(_) => match self.child_locked(dir, name)? {
                Some(_) => Err(Errno::Exist.into()),
                None => Ok(dir::InsertSlot::default()),
            },
        }
    }

    /// Returns the inode that `name` leads to in `dir`; `None` if the name is absent. Takes the
    /// directory's lock for reading if the dentry table does not know the name.
    pub fn child_inode(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        Ok(self.child_node(dir, name)?.map(|node| Arc::clone(&node)))
    }

    /// Returns a reference to the inode, as [`Self::child_inode`] does.
    pub fn child_node(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<InodeRef>> {
        if name == b".." {
            return self.parent(dir).map(Some);
        }
        if !self.dentries.remembers() {
            let _lock = dir.read_lock()?;
            return self.child_read(dir, name);
        }
        {
            let pinned = pin();
            match self.dentries.get_pinned(&pinned, dir.ino, dir.generation, name) {
                Some((None, _)) => return Ok(None),
                Some((Some(target), _)) => {
                    if let Some(inode) = self.known_at(&pinned, target.into()) {
                        return Ok(Some(inode));
                    }
                }
                None => {}
            }
        }
        for _ in 0..MAX_TRIES {
            let Some(target) = self.child(dir, name)? else { return Ok(None) };
            if let Some(inode) = self.current(target.into())? {
                return Ok(Some(inode));
            }
            // Another thread removed the name and freed its inode after the lookup. Or a damaged
            // image has more names for the inode than its link count, and the stored target of this
            // name is out of date: it must be read again.
            let _lock = dir.rw.read();
            self.dentries.forget(dir.ino, dir.generation, name, target);
        }
        Err(Errno::Stale.into())
    }

    /// Returns the inode that the directory's blocks name. The caller must hold the directory's
    /// lock: while the name exists, its inode does, too.
    fn child_read(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<InodeRef>> {
        check_name(name)?;
        dir::lookup(&self.st, dir, name)?.map(|found| self.asked_for(dir, found.ino)).transpose()
    }

    /// Returns the inode at a place; `None` if it was freed.
    pub(super) fn current(&self, place: Place) -> Result<Option<InodeRef>> {
        match self.node(place.ino) {
            Ok(inode) if inode.generation == place.generation => Ok(Some(inode)),
            Err(e) if !e.is(Errno::Stale) => Err(e),
            _ => Ok(None),
        }
    }

    fn target(&self, ino: InodeNr) -> Result<Target> {
        let inode = self.inode(ino)?;
        Ok(Target { ino, generation: inode.generation, ftype: inode.ftype })
    }

    /// Resolves an absolute path (bytes, components separated by `/`). If the caches know all of
    /// it, the cost is one lookup for each component and one reference at the end. Returns EACCES
    /// if the caller may not search a directory on the path; `None` may search all.
    pub fn resolve(
        &self,
        caller: Option<&Caller<'_>>,
        path: &[u8],
        follow: Follow,
    ) -> Result<InodeRef> {
        {
            let pinned = pin();
            let moves = self.moves.now();
            // The epoch stays pinned until the reference is taken: entries and inodes may leave
            // their tables meanwhile, but are not reclaimed.
            match self.known_to(&pinned, caller, (path, moves), follow) {
                Known::At(place) => {
                    if let Some(inode) = self.known_at(&pinned, place) {
                        return Ok(inode);
                    }
                }
                Known::Absent if self.moves.still(moves) => return Err(Errno::NoEnt.into()),
                Known::Denied => return Err(Errno::Acces.into()),
                _ => {}
            }
        }
        self.resolve_slowly(caller, path, follow)
    }

    /// Returns the inode at a place that was found while the epoch was pinned, if memory has it and
    /// it is not being freed.
    #[inline]
    fn known_at(&self, pinned: &Guard, place: Place) -> Option<InodeRef> {
        let inode = self.inodes.peek_pinned(pinned, place.ino)?;
        (inode.generation == place.generation && !inode.freeing()).then_some(inode)
    }

    /// Returns the inode at a path, without a reference, if the caches know all of the path.
    #[inline]
    pub fn look<'g>(
        &'g self,
        pinned: &'g Guard,
        caller: Option<&Caller<'_>>,
        path: &[u8],
        follow: Follow,
    ) -> Option<&'g Arc<Inode>> {
        let walked = self.known_to(pinned, caller, (path, self.moves.now()), follow);
        let Known::At(place) = walked else { return None };
        let inode = self.inodes.look(pinned, place.ino)?;
        (inode.generation == place.generation && !inode.freeing()).then_some(inode)
    }

    /// Follows a path through the dentry table and the links to parents alone. `moves` is their
    /// state at the beginning.
    #[inline(always)]
    fn known_to(
        &self,
        pinned: &Guard,
        caller: Option<&Caller<'_>>,
        from: (&[u8], u64),
        follow: Follow,
    ) -> Known {
        match caller {
            None => self.known::<false>(pinned, caller, from, follow),
            Some(_) => self.known::<true>(pinned, caller, from, follow),
        }
    }

    /// As [`Self::known_to`]. `ASKS` tells whether there is a caller: a walk without one need not
    /// remember its way.
    #[inline(always)]
    fn known<const ASKS: bool>(
        &self,
        pinned: &Guard,
        caller: Option<&Caller<'_>>,
        (path, moves): (&[u8], u64),
        follow: Follow,
    ) -> Known {
        let Some(&root) = self.root.get() else { return Known::Unknown };
        if path.len() > MAX_PATH {
            return Known::Unknown;
        }
        let searched = (caller, if ASKS { self.restrictions.now() } else { 0 });
        let noted = if ASKS { self.noted_of_root() } else { 0 };
        let (mut rest, mut went_up) = (path, false);
        let mut dir = Passed { at: root, came: None, noted };
        let arrived = |at, went_up: bool| {
            if went_up && !self.moves.still(moves) { Known::Unknown } else { Known::At(at) }
        };
        loop {
            let Some((name, behind)) = next_name(rest) else { return arrived(dir.at, went_up) };
            rest = behind;
            let may = if ASKS { self.known_to_search(pinned, &dir, searched) } else { Some(true) };
            match may {
                Some(true) => {}
                // A directory that moved away may not have been on the path.
                Some(false) if went_up => return Known::Unknown,
                Some(false) => return Known::Denied,
                None => return Known::Unknown,
            }
            let at = dir.at;
            match self.dentries.get_pinned(pinned, at.ino, at.generation, name) {
                None => match self.dots(pinned, at, name) {
                    Some(place) if place == at => {}
                    Some(place) => {
                        (went_up, dir) = (true, Passed { at: place, came: None, noted: 0 });
                    }
                    None => return Known::Unknown,
                },
                Some((None, _)) => return Known::Absent,
                Some((Some(target), noted)) if target.ftype == FileType::Directory => {
                    dir = Passed { at: target.into(), came: Some((at, name)), noted };
                }
                // More components, or a slash, follow: the slow walk determines the error or
                // follows the symlink.
                Some((Some(target), _)) => {
                    let ends = rest.is_empty()
                        && (target.ftype != FileType::Symlink || follow == Follow::No);
                    return if ends { arrived(target.into(), went_up) } else { Known::Unknown };
                }
            }
        }
    }

    /// Follows `.` and `..`, which the dentry table does not have, if memory knows where they lead.
    #[cold]
    fn dots(&self, pinned: &Guard, at: Place, name: &[u8]) -> Option<Place> {
        match name {
            b"." => Some(at),
            b".." => self.known_parent(pinned, at),
            _ => None,
        }
    }

    #[cold]
    fn resolve_slowly(
        &self,
        caller: Option<&Caller<'_>>,
        path: &[u8],
        follow: Follow,
    ) -> Result<InodeRef> {
        let root = self.node(InodeNr::ROOT)?;
        let start = *self.root.get_or_init(|| Place { ino: root.ino, generation: root.generation });
        for tries in 1..=MAX_TRIES {
            let moves = self.moves.now();
            let mut walk = Walk { caller, root: start, budget: MAX_LINKS };
            let walked = self.walk(&mut walk, start, path, follow);
            // A name that was absent at one moment may have existed all the time, under a directory
            // that moved. The last try accepts its result even if directories keep moving.
            let again = tries < MAX_TRIES && self.crossed_a_move(path, &walked, moves);
            match walked {
                _ if again => std::thread::yield_now(),
                // Another thread removed a component after its lookup.
                Err(e) if e.is(Errno::Stale) => continue,
                Err(e) => return Err(e),
                Ok(end) => match self.current(end)? {
                    Some(inode) => return Ok(inode),
                    None => continue,
                },
            }
        }
        Err(Errno::Stale.into())
    }

    /// Returns whether the result of a walk depends on the structure of the tree, and a directory
    /// moved during the walk.
    fn crossed_a_move(&self, path: &[u8], walked: &Result<Place>, began: u64) -> bool {
        let depends = match walked {
            Ok(_) => goes_up(path),
            Err(e) => e.is(Errno::NoEnt),
        };
        depends && !self.moves.still(began)
    }

    /// Resolves all components but the last. Returns the directory and the last name.
    pub fn resolve_parent<'p>(
        &self,
        caller: Option<&Caller<'_>>,
        path: &'p [u8],
    ) -> Result<(InodeRef, &'p [u8])> {
        let trimmed = trim_slashes(path);
        let (head, name) = match trimmed.iter().rposition(|&b| b == b'/') {
            Some(at) => (&trimmed[..at], &trimmed[at + 1..]),
            None => (&trimmed[..0], trimmed),
        };
        if name.is_empty() {
            return Err(Errno::Exist.into());
        }
        for _ in 0..MAX_TRIES {
            let dir = self.resolve(caller, head, Follow::Yes)?;
            let checked = match caller {
                Some(caller) => self.check_search_of(&dir, caller),
                None if !dir.is_dir() => Err(Errno::NotDir.into()),
                None => Ok(()),
            };
            match checked {
                // Another thread removed the directory after the walk, before its ACL was read.
                Err(e) if e.is(Errno::Stale) => std::thread::yield_now(),
                checked => return checked.map(|()| (dir, name)),
            }
        }
        Err(Errno::Stale.into())
    }

    fn walk(&self, walk: &mut Walk<'_>, from: Place, path: &[u8], follow: Follow) -> Result<Place> {
        if path.len() > MAX_PATH {
            return Err(Errno::NameTooLong.into());
        }
        let must_be_dir = path.last() == Some(&b'/');
        let mut parts = path.split(|&b| b == b'/').filter(|p| !p.is_empty()).peekable();
        let mut at = if path.first() == Some(&b'/') { walk.root } else { from };
        while let Some(name) = parts.next() {
            // Also for `.`: the kernel asks for it, too.
            self.check_search(at, walk.caller)?;
            if name == b"." {
                continue;
            }
            let target = self.step(at, name)?;
            let last = parts.peek().is_none();
            let through = !last || follow == Follow::Yes || must_be_dir;
            at = match target.ftype {
                FileType::Symlink if through => {
                    let end = self.follow(walk, at, target)?;
                    if last && !must_be_dir { end } else { self.directory(end)? }
                }
                FileType::Directory => target.into(),
                _ if last && !must_be_dir => target.into(),
                _ => return Err(Errno::NotDir.into()),
            };
        }
        Ok(at)
    }

    fn step(&self, at: Place, name: &[u8]) -> Result<Target> {
        if let Some(known) = self.dentries.get(at.ino, at.generation, name) {
            return known.ok_or(Errno::NoEnt.into());
        }
        let dir = self.current(at)?.ok_or(Errno::Stale)?;
        if !dir.is_dir() {
            return Err(Errno::NotDir.into());
        }
        let child = self.child_inode(&dir, name)?.ok_or(Errno::NoEnt)?;
        Ok(Target { ino: child.ino, generation: child.generation, ftype: child.ftype })
    }

    /// Verifies that a symlink, behind which more components or a slash follow, led to a directory.
    fn directory(&self, at: Place) -> Result<Place> {
        if self.current(at)?.ok_or(Errno::Stale)?.is_dir() {
            Ok(at)
        } else {
            Err(Errno::NotDir.into())
        }
    }

    /// Follows a symlink in directory `at`.
    fn follow(&self, walk: &mut Walk<'_>, at: Place, link: Target) -> Result<Place> {
        walk.budget = walk.budget.checked_sub(1).ok_or(Errno::Loop)?;
        let inode = self.current(link.into())?.ok_or(Errno::Stale)?;
        let target = {
            let _lock = inode.read_lock()?;
            file::read_link(&self.st, &inode)?
        };
        if target.is_empty() {
            return Err(Errno::NoEnt.into());
        }
        // The budget bounds the recursion.
        self.walk(walk, at, &target, Follow::Yes)
    }
}

/// Splits a path into its first component and the rest. Returns `None` if there is no component.
#[inline]
fn next_name(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut start = 0;
    while path.get(start) == Some(&b'/') {
        start += 1;
    }
    let path = path.get(start..)?;
    if path.is_empty() { None } else { path.split_at_checked(first_slash(path)) }
}

/// Returns the position of the first slash, or the length. Examines eight bytes at a time, since
/// names are short.
#[inline]
fn first_slash(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        let differs = u64::from_ne_bytes(*word).to_le() ^ (ONES * b'/' as u64);
        // The lowest zero byte of a word is the first byte whose high bit this sets.
        let zero = differs.wrapping_sub(ONES) & !differs & (ONES << 7);
        if zero != 0 {
            return at + zero.trailing_zeros() as usize / 8;
        }
        at += size_of::<u64>();
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len())
}

/// Returns whether a path has a component `..`.
fn goes_up(path: &[u8]) -> bool {
    path.split(|&b| b == b'/').any(|part| part == b"..")
}

fn trim_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    &path[..end]
}

/// Verifies that a name may be looked up in a directory: ENOENT if it is empty, ENAMETOOLONG,
/// EINVAL for a slash or a zero byte.
pub fn check_name(name: &[u8]) -> Result<()> {
    match name {
        [] => Err(Errno::NoEnt.into()),
        _ if name.len() > MAX_NAME => Err(Errno::NameTooLong.into()),
        _ if name.iter().any(|&b| b == b'/' || b == 0) => Err(Errno::Inval.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn paths_split_into_names_at_slashes(path in prop::collection::vec(
            prop::sample::select(&b"//a.\xaf\x2e\x30\xff"[..]),
            0..60,
        )) {
            let mut names = Vec::new();
            let mut rest = path.as_slice();
            while let Some((name, behind)) = next_name(rest) {
                names.push(name);
                rest = behind;
            }
            let expected: Vec<&[u8]> =
                path.split(|&b| b == b'/').filter(|name| !name.is_empty()).collect();
            prop_assert_eq!(names, expected);
        }
    }
}
