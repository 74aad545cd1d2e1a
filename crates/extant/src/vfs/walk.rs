//! From paths to inodes.

use super::table::InodeRef;
use super::{Target, Vfs};
use crate::error::{Errno, Result};
use crate::inode::Inode;
use crate::{dir, file};
use extant_format::types::{FileType, InodeNr};
use extant_sync::epoch::{Guard, pin};
use std::sync::Arc;

/// Symlinks that one walk follows at most.
const MAX_LINKS: u32 = 40;

/// How often a name is looked up again that others remove and make meanwhile.
const MAX_TRIES: u32 = 100;

/// Longest path, as PATH_MAX.
const MAX_PATH: usize = 4096;

/// Longest name.
pub const MAX_NAME: usize = 255;

/// Whether a symlink at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// As stat(2) does.
    Yes,
    /// As lstat(2) does.
    No,
}

/// A directory on the way: what the dentry table needs to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    ino: InodeNr,
    generation: u32,
}

/// What the dentry table alone knows of a path.
enum Known {
    /// It leads here.
    At(Place),
    /// A component is absent.
    Absent,
    /// Something is not in the table, or a symlink is to be followed.
    Unknown,
}

impl From<Target> for Place {
    fn from(t: Target) -> Self {
        Place { ino: t.ino, generation: t.generation }
    }
}

impl Vfs {
    /// The inode, loaded if need be.
    pub fn inode(&self, ino: InodeNr) -> Result<Arc<Inode>> {
        self.node(ino).map(|node| Arc::clone(&node))
    }

    /// A reference to the inode, which is loaded if need be.
    pub fn node(&self, ino: InodeNr) -> Result<InodeRef> {
        self.inodes.get(&self.st, ino, false)
    }

    /// Where `name` leads in `dir`; takes the directory's lock for reading on a miss.
    pub fn child(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Target>> {
        if let Some(known) = self.dentries.get(dir.ino, dir.generation, name) {
            return Ok(known);
        }
        let _lock = dir.read_lock()?;
        self.child_locked(dir, name)
    }

    /// As [`Self::child`], for callers that hold the directory's lock.
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

    /// Remembers where a name leads (or that it is absent), but in directories that fold case: there it is not the only spelling.
    /// The caller holds the directory's lock.
    pub fn remember(&self, dir: &Inode, name: &[u8], target: Option<Target>) {
        if !dir::folds(&self.st, dir.vitals().flags) {
            self.dentries.set(dir.ino, dir.generation, name, target);
        }
    }

    /// Where `name` would go in `dir`, whose lock the caller holds; EEXIST if it is there. That it is not is not remembered: the caller
    /// makes it.
    pub fn seat_locked(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<dir::Seat> {
        dir.check_not_freed()?;
        match self.dentries.get(dir.ino, dir.generation, name) {
            Some(None) => return Ok(dir::Seat::default()),
            Some(Some(_)) => return Err(Errno::Exist.into()),
            None => check_name(name)?,
        }
        match dir::lookup_seat(&self.st, dir, name)? {
            Err(seat) => Ok(seat),
            // Remembered: who was refused once may ask again.
            Ok(_) => match self.child_locked(dir, name)? {
                Some(_) => Err(Errno::Exist.into()),
                None => Ok(dir::Seat::default()),
            },
        }
    }

    /// The inode that `name` leads to in `dir`; None if there is no such name. Takes the directory's lock for reading on a miss.
    pub fn child_inode(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        Ok(self.child_node(dir, name)?.map(|node| Arc::clone(&node)))
    }

    /// As [`Self::child_inode`], a reference.
    pub fn child_node(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<InodeRef>> {
        for _ in 0..MAX_TRIES {
            let Some(target) = self.child(dir, name)? else { return Ok(None) };
            if let Some(inode) = self.current(target.into())? {
                return Ok(Some(inode));
            }
            // The name was removed, and its inode freed, since it was looked up; or the image has more names for an inode
            // than it counts, and what is remembered of this one is to be read again.
            let _lock = dir.rw.read();
            self.dentries.forget(dir.ino, dir.generation, name, target);
        }
        Err(Errno::Stale.into())
    }

    /// The inode at a place; None if that is gone.
    fn current(&self, place: Place) -> Result<Option<InodeRef>> {
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

    /// Resolves an absolute path (bytes, components divided by `/`). Where the tables know all of it, that costs a look for
    /// each component and one reference at the end.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<InodeRef> {
        {
            let pinned = pin();
            let moves = self.moves.now();
            match self.known(&pinned, path, follow) {
                Known::At(place) => {
                    if let Some(inode) = self.inodes.peek_pinned(&pinned, place.ino)
                        && inode.generation == place.generation
                        && !inode.freeing()
                    {
                        return Ok(inode);
                    }
                }
                Known::Absent if self.moves.still(moves) => return Err(Errno::NoEnt.into()),
                _ => {}
            }
        }
        self.resolve_slowly(path, follow)
    }

    /// What `f` says of the inode at a path, without a reference, if the tables know all of the path. None if not.
    pub fn look<R>(&self, path: &[u8], follow: Follow, f: impl FnOnce(&Arc<Inode>) -> Option<R>) -> Option<R> {
        let pinned = pin();
        let Known::At(place) = self.known(&pinned, path, follow) else { return None };
        let inode = self.inodes.look(&pinned, place.ino)?;
        match inode.generation == place.generation && !inode.freeing() {
            true => f(inode),
            false => None,
        }
    }

    /// Follows a path through the dentry table alone.
    #[inline]
    fn known(&self, pinned: &Guard, path: &[u8], follow: Follow) -> Known {
        let Some(&root) = self.root.get() else { return Known::Unknown };
        if path.len() > MAX_PATH {
            return Known::Unknown;
        }
        let (mut at, mut rest) = (root, path);
        loop {
            let Some(start) = rest.iter().position(|&b| b != b'/') else { return Known::At(at) };
            rest = &rest[start..];
            let end = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            let (name, behind) = rest.split_at(end);
            rest = behind;
            match self.dentries.get_pinned(pinned, at.ino, at.generation, name) {
                None => return Known::Unknown,
                Some(None) => return Known::Absent,
                Some(Some(target)) if target.ftype == FileType::Directory => at = target.into(),
                // More components, or a slash: errors and symlinks are for the slow walk.
                Some(Some(target)) => {
                    let ends = rest.is_empty() && (target.ftype != FileType::Symlink || follow == Follow::No);
                    return if ends { Known::At(target.into()) } else { Known::Unknown };
                }
            }
        }
    }

    #[cold]
    fn resolve_slowly(&self, path: &[u8], follow: Follow) -> Result<InodeRef> {
        let root = self.node(InodeNr::ROOT)?;
        let start = *self.root.get_or_init(|| Place { ino: root.ino, generation: root.generation });
        for tries in 1..=MAX_TRIES {
            let mut budget = MAX_LINKS;
            let moves = self.moves.now();
            let walked = self.walk(start, start, path, follow, &mut budget);
            // What was absent at one moment may have been there at all of them, under a directory that moved. If one moves all
            // the time, what was found counts.
            let again = tries < MAX_TRIES && self.crossed_a_move(path, &walked, moves);
            match walked {
                _ if again => std::thread::yield_now(),
                // Something on the way was removed since it was looked up.
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

    /// Whether a walk that depends on how directories hang together overlapped with the move of one.
    fn crossed_a_move(&self, path: &[u8], walked: &Result<Place>, began: u64) -> bool {
        let depends = match walked {
            Ok(_) => goes_up(path),
            Err(e) => e.is(Errno::NoEnt),
        };
        depends && !self.moves.still(began)
    }

    /// Resolves all but the last component; gives the directory and the last name.
    pub fn resolve_parent<'p>(&self, path: &'p [u8]) -> Result<(InodeRef, &'p [u8])> {
        let trimmed = trim_slashes(path);
        let (head, name) = match trimmed.iter().rposition(|&b| b == b'/') {
            Some(at) => (&trimmed[..at], &trimmed[at + 1..]),
            None => (&trimmed[..0], trimmed),
        };
        if name.is_empty() {
            return Err(Errno::Exist.into());
        }
        let dir = self.resolve(head, Follow::Yes)?;
        match dir.is_dir() {
            true => Ok((dir, name)),
            false => Err(Errno::NotDir.into()),
        }
    }

    fn walk(&self, root: Place, from: Place, path: &[u8], follow: Follow, budget: &mut u32) -> Result<Place> {
        if path.len() > MAX_PATH {
            return Err(Errno::NameTooLong.into());
        }
        let must_be_dir = path.last() == Some(&b'/');
        let mut parts = path.split(|&b| b == b'/').filter(|p| !p.is_empty() && *p != b".").peekable();
        let mut at = if path.first() == Some(&b'/') { root } else { from };
        while let Some(name) = parts.next() {
            let target = self.step(at, name)?;
            let last = parts.peek().is_none();
            let through = !last || follow == Follow::Yes || must_be_dir;
            at = match target.ftype {
                FileType::Symlink if through => self.follow(root, at, target, budget)?,
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

    /// Follows a symlink that stands in directory `at`.
    fn follow(&self, root: Place, at: Place, link: Target, budget: &mut u32) -> Result<Place> {
        *budget = budget.checked_sub(1).ok_or(Errno::Loop)?;
        let inode = self.current(link.into())?.ok_or(Errno::Stale)?;
        let target = {
            let _lock = inode.read_lock()?;
            dir::check_key(&inode)?;
            file::read_link(&self.st, &inode)?
        };
        if target.is_empty() {
            return Err(Errno::NoEnt.into());
        }
        // Recursion is bounded by the budget.
        self.walk(root, at, &target, Follow::Yes, budget)
    }
}

/// Whether a path has a component `..`.
fn goes_up(path: &[u8]) -> bool {
    path.split(|&b| b == b'/').any(|part| part == b"..")
}

fn trim_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    &path[..end]
}

/// A name that may stand in a directory.
pub fn check_name(name: &[u8]) -> Result<()> {
    match name {
        [] => Err(Errno::NoEnt.into()),
        _ if name.len() > MAX_NAME => Err(Errno::NameTooLong.into()),
        _ if name.iter().any(|&b| b == b'/' || b == 0) => Err(Errno::Inval.into()),
        _ => Ok(()),
    }
}
