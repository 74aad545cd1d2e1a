//! readdir.

use super::create::check_dir;
use super::{Node, Operations};
use crate::bounds::Steps;
use crate::dir;
use crate::error::Result;
use extant_format::types::{FileType, InodeNr};
use smallvec::SmallVec;
use std::ops::Range;

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

/// Entries read under one lock of the directory.
const BATCH: usize = 64;

/// As [`BATCH`], where each entry's inode is loaded, whether it is asked for or not.
const BATCH_PLUS: usize = 16;

/// The kind of listing.
#[derive(Clone, Copy)]
enum Listing {
    Names,
    /// With each entry's inode.
    Inodes,
}

/// Copies of entries, which are handed out when the directory is no longer locked: a caller may
/// change it then.
///
/// Those of a small directory take no memory from the heap.
#[derive(Debug, Default)]
struct Batch {
    names: SmallVec<[u8; 1024]>,
    entries: SmallVec<[Copied; BATCH]>,
}

#[derive(Debug)]
struct Copied {
    name: Range<usize>,
    ino: InodeNr,
    ftype: FileType,
    next: u64,
    hash: Option<[u8; 8]>,
    node: Option<Node>,
}

impl Batch {
    fn clear(&mut self) {
        self.names.clear();
        self.entries.clear();
    }

    #[inline]
    fn push(&mut self, e: &dir::Entry<'_>, node: Option<Node>) {
        let start = self.names.len();
        self.names.extend_from_slice(e.name);
        let name = start..self.names.len();
        self.entries.push(Copied {
            name,
            ino: e.ino,
            ftype: e.ftype,
            next: e.next,
            hash: e.hash,
            node,
        });
    }

    /// Hands the entries out; where reading goes on behind them, unless `each` has enough.
    fn hand_out(
        &self,
        cookie: u64,
        each: &mut impl FnMut(dir::Entry<'_>, Option<&Node>) -> bool,
    ) -> Option<u64> {
        for e in &self.entries {
            let name = self.names.get(e.name.clone()).unwrap_or_default();
            let entry = dir::Entry { name, ino: e.ino, ftype: e.ftype, next: e.next, hash: e.hash };
            if !each(entry, e.node.as_ref()) {
                return None;
            }
        }
        Some(self.entries.last().map_or(cookie, |e| e.next))
    }
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
        self.read_batches(dir, cookie, Listing::Names, |e, _| each(e))
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
        self.read_batches(dir, cookie, Listing::Inodes, each)
    }

    fn read_batches(
        &self,
        dir: &Node,
        mut cookie: u64,
        listing: Listing,
        mut each: impl FnMut(dir::Entry<'_>, Option<&Node>) -> bool,
    ) -> Result<()> {
        let size = match listing {
            Listing::Names => BATCH,
            Listing::Inodes => BATCH_PLUS,
        };
        let (mut bad, mut steps) = (Ok(()), Steps::default());
        let mut batch = Batch::default();
        loop {
            steps.next()?;
            self.own(dir)?;
            check_dir(&dir.0)?;
            batch.clear();
            let read = {
                let _lock = dir.0.read_lock()?;
                dir::read(self.st(), &dir.0, cookie, &mut |e| {
                    let node = match listing {
                        Listing::Names => None,
                        // Under the directory's lock: no name can be removed before its inode is
                        // found.
                        Listing::Inodes => {
                            self.record_corruption(self.vfs.given_out(&dir.0, &e)).ok().map(Node)
                        }
                    };
                    batch.push(&e, node);
                    batch.entries.len() < size
                })
            };
            let read = self.record_corruption(read);
            let Some(next) = batch.hand_out(cookie, &mut each) else { return bad };
            bad = bad.and(read);
            // A full batch ended at its last entry: an error is that of a name on the way.
            if batch.entries.len() < size {
                return bad;
            }
            cookie = next;
        }
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
