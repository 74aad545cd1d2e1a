//! readdir.

use super::create::check_dir;
use super::{Node, Operations};
use crate::bounds::Steps;
use crate::dir;
use crate::error::Result;
use extant_format::types::FileType;
use smallvec::SmallVec;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Name: bytes, not UTF-8.
    pub name: Vec<u8>,
    /// Inode number.
    pub ino: u64,
    /// Type; Unknown where the file system keeps none in its directories.
    pub ftype: FileType,
    /// Where reading goes on behind this entry.
    pub next: u64,
}

/// Inodes loaded under one lock of the directory.
const BATCH: usize = 16;

/// Entries of a listing that count as a step towards its interruption.
const STEP: u64 = 64;

/// Inodes of entries, in the order of the entries.
type Nodes = SmallVec<[Option<Node>; BATCH]>;

/// The kind of listing.
#[derive(Clone, Copy)]
enum Listing {
    Names,
    /// With each entry's inode.
    Inodes,
}

impl Operations {
    /// Hands out the entries of `dir` (with `.` and `..`) from `cookie` on, 0 being the start,
    /// until `each` returns false or none is left. Cookies stay valid while entries come and go.
    /// The directory is not locked while `each` runs, which may call any operation: an entry may be
    /// gone by then.
    ///
    /// # Errors
    /// Names that are no path components (empty, or with `/` or NUL) are never handed out: the
    /// error for them, `Corrupt`, comes after the other entries.
    pub fn read_dir_from(
        &self,
        dir: &Node,
        cookie: u64,
        mut each: impl FnMut(dir::Entry<'_>) -> bool,
    ) -> Result<()> {
        self.read_parts(dir, cookie, Listing::Names, |e, _| each(e))
    }

    /// As [`Operations::read_dir_from`], with each entry's inode, which stays in memory while
    /// `each` runs; `None` for an inode that cannot be had, since it is damaged, say: the name is
    /// there nevertheless.
    pub fn read_dir_plus(
        &self,
        dir: &Node,
        cookie: u64,
        each: impl FnMut(dir::Entry<'_>, Option<&Node>) -> bool,
    ) -> Result<()> {
        self.read_parts(dir, cookie, Listing::Inodes, each)
    }

    fn read_parts(
        &self,
        dir: &Node,
        mut cookie: u64,
        listing: Listing,
        mut each: impl FnMut(dir::Entry<'_>, Option<&Node>) -> bool,
    ) -> Result<()> {
        let (mut bad, mut steps, mut passed) = (None, Steps::default(), 0u64);
        loop {
            steps.next()?;
            self.own(dir)?;
            check_dir(&dir.0)?;
            let (part, nodes) = self.record_corruption(self.part(dir, cookie, listing))?;
            let mut nodes = nodes.into_iter();
            let (mut enough, mut go_on) = (false, Ok(()));
            let all = part.each(|e| {
                if let Err(e) = part.check(&e) {
                    bad.get_or_insert(e);
                    return true;
                }
                let node = match listing {
                    Listing::Names => None,
                    Listing::Inodes => match nodes.next() {
                        Some(node) => node,
                        // Only the first entries have theirs.
                        None => return false,
                    },
                };
                cookie = e.next;
                enough = !each(e, node.as_ref());
                passed += 1;
                if !enough && passed.is_multiple_of(STEP) {
                    go_on = steps.next();
                }
                !enough && go_on.is_ok()
            });
            go_on?;
            if !enough && self.record_corruption(all)? {
                match self.record_corruption(part.next)? {
                    Some(next) => cookie = next,
                    None => enough = true,
                }
            }
            if enough {
                return self.record_corruption(bad.map_or(Ok(()), |e| Err(e.into())));
            }
        }
    }

    /// Finds the part from `cookie` on and, for a listing with inodes, those of the first entries:
    /// under the directory's lock, so that no name is removed before its inode is found.
    fn part(&self, dir: &Node, cookie: u64, listing: Listing) -> Result<(dir::Part, Nodes)> {
        let _lock = dir.0.read_lock()?;
        let part = dir::part(self.st(), &dir.0, cookie)?;
        let mut nodes = Nodes::new();
        if let Listing::Inodes = listing {
            // An error comes again when the entries are passed on.
            let _ = part.each(|e| {
                if part.check(&e).is_ok() {
                    let node = self.record_corruption(self.vfs.given_out(&dir.0, &e));
                    nodes.push(node.ok().map(Node));
                }
                nodes.len() < BATCH
            });
        }
        Ok((part, nodes))
    }

    /// All entries of a directory, without `.` and `..`. A damaged directory may hold the same name
    /// several times.
    ///
    /// # Errors
    /// As [`Operations::read_dir_from`].
    pub fn read_dir(&self, dir: &Node) -> Result<Vec<DirEntry>> {
        let mut all = Vec::new();
        self.read_dir_from(dir, 0, |e| {
            if e.name != b"." && e.name != b".." {
                all.push(DirEntry {
                    name: e.name.to_vec(),
                    ino: u64::from(e.ino.0),
                    ftype: e.ftype,
                    next: e.next,
                });
            }
            true
        })?;
        Ok(all)
    }
}
