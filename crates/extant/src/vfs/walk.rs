//! From paths to inodes.

use super::{Target, Vfs};
use crate::error::{Errno, Result};
use crate::inode::Inode;
use crate::{dir, file};
use extant_format::types::{FileType, InodeNr};
use std::sync::Arc;

/// Symlinks that one walk follows at most.
const MAX_LINKS: u32 = 40;

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
#[derive(Clone, Copy)]
struct Place {
    ino: InodeNr,
    generation: u32,
}

impl From<Target> for Place {
    fn from(t: Target) -> Self {
        Place { ino: t.ino, generation: t.generation }
    }
}

impl Vfs {
    /// The inode, loaded if need be.
    pub fn inode(&self, ino: InodeNr) -> Result<Arc<Inode>> {
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
            self.dentries.set(dir.ino, dir.generation, name, target);
        }
        Ok(target)
    }

    fn target(&self, ino: InodeNr) -> Result<Target> {
        let inode = self.inode(ino)?;
        Ok(Target { ino, generation: inode.generation, ftype: inode.ftype })
    }

    /// Resolves an absolute path (bytes, components divided by `/`).
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<Arc<Inode>> {
        let root = self.inode(InodeNr::ROOT)?;
        let start = Place { ino: root.ino, generation: root.generation };
        let mut budget = MAX_LINKS;
        let end = self.walk(start, start, path, follow, &mut budget)?;
        self.inode(end.ino)
    }

    /// Resolves all but the last component; gives the directory and the last name.
    pub fn resolve_parent<'p>(&self, path: &'p [u8]) -> Result<(Arc<Inode>, &'p [u8])> {
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
        let dir = self.inode(at.ino)?;
        if !dir.is_dir() {
            return Err(Errno::NotDir.into());
        }
        self.child(&dir, name)?.ok_or(Errno::NoEnt.into())
    }

    /// Follows a symlink that stands in directory `at`.
    fn follow(&self, root: Place, at: Place, link: Target, budget: &mut u32) -> Result<Place> {
        *budget = budget.checked_sub(1).ok_or(Errno::Loop)?;
        let inode = self.inode(link.ino)?;
        let target = {
            let _lock = inode.read_lock()?;
            file::read_link(&self.st, &inode)?
        };
        if target.is_empty() {
            return Err(Errno::NoEnt.into());
        }
        // Recursion is bounded by the budget.
        self.walk(root, at, &target, Follow::Yes, budget)
    }
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
