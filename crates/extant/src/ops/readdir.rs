//! readdir.

use super::create::check_dir;
use super::{Node, Operations};
use crate::dir;
use crate::error::Result;
use extant_format::types::FileType;

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

impl Operations {
    /// Hands out the entries of `dir` (with `.` and `..`) from `cookie` on, 0 being the start, until `each` returns false or none is left. Cookies
    /// stay valid while entries come and go.
    ///
    /// # Errors
    /// Names that are no path components (empty, or with `/` or NUL) are never handed out: the error for them, `Corrupt`, comes after
    /// the other entries.
    pub fn read_dir_from(&self, dir: &Node, cookie: u64, mut each: impl FnMut(dir::Entry<'_>) -> bool) -> Result<()> {
        check_dir(&dir.0)?;
        let _lock = dir.0.read_lock()?;
        self.noticed(dir::read(self.st(), &dir.0, cookie, &mut each))
    }

    /// As [`Operations::read_dir_from`], with each entry's inode, which cannot go away while `each` runs; `None` for an
    /// inode that cannot be had, since it is damaged, say: the name is there nevertheless.
    pub fn read_dir_plus(
        &self,
        dir: &Node,
        cookie: u64,
        mut each: impl FnMut(dir::Entry<'_>, Option<&Node>) -> bool,
    ) -> Result<()> {
        check_dir(&dir.0)?;
        // Held throughout: no name can be removed before its inode is handed out.
        let _lock = dir.0.read_lock()?;
        self.noticed(dir::read(self.st(), &dir.0, cookie, &mut |e| {
            let node = self.noticed(self.vfs.given_out(&dir.0, &e)).ok().map(Node);
            each(e, node.as_ref())
        }))
    }

    /// All entries of a directory, without `.` and `..`. A damaged directory may hold the same name several times.
    ///
    /// # Errors
    /// As [`Operations::read_dir_from`].
    pub fn read_dir(&self, dir: &Node) -> Result<Vec<DirEntry>> {
        let mut all = Vec::new();
        self.read_dir_from(dir, 0, |e| {
            if e.name != b"." && e.name != b".." {
                all.push(DirEntry { name: e.name.to_vec(), ino: u64::from(e.ino.0), ftype: e.ftype, next: e.next });
            }
            true
        })?;
        Ok(all)
    }
}
