//! A walk through a tree.

use super::{Dir, Entries};
use crate::error::{Error, ErrorKind, Op, Result};
use crate::types::DirEntry;
use extant_engine::{Errno, FileType};
use std::collections::HashSet;

/// An item of [`Fs::walk`](crate::Fs::walk).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WalkEntry {
    /// Path: that of the walk's beginning, and the names below it.
    pub path: Vec<u8>,
    /// The entry.
    pub entry: DirEntry,
    /// Directories between the beginning and the entry; 0 for entries of the beginning.
    pub depth: usize,
}

/// The iterator of [`Fs::walk`](crate::Fs::walk).
#[derive(Debug)]
pub struct Walk {
    levels: Vec<Level>,
    /// Directories that were entered: a damaged tree may have loops.
    entered: HashSet<u32>,
    /// Of entering the directory that was the last item.
    error: Option<Error>,
    /// The last item is the directory of the last level.
    at_dir: bool,
}

#[derive(Debug)]
struct Level {
    dir: Dir,
    path: Vec<u8>,
    entries: Entries,
}

impl Walk {
    pub(crate) fn new(dir: Dir, path: &[u8]) -> Walk {
        let path = match path {
            [path @ .., b'/'] => path.to_vec(),
            path => path.to_vec(),
        };
        let entered = HashSet::from([dir.inode().number()]);
        let entries = dir.entries();
        Walk { levels: vec![Level { dir, path, entries }], entered, error: None, at_dir: false }
    }

    /// Leaves out the entries below the directory that was the last item. Without effect after
    /// other items.
    ///
    /// ```
    /// # use extant::*;
    /// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
    /// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
    /// fs.create_dir_all("/proc/1")?;
    /// fs.create_dir_all("/usr/bin")?;
    /// let mut walk = fs.walk("/")?;
    /// let mut paths = Vec::new();
    /// while let Some(entry) = walk.next() {
    ///     let entry = entry?;
    ///     if entry.path == b"/proc" {
    ///         walk.skip_dir();
    ///     }
    ///     paths.push(entry.path);
    /// }
    /// assert!(paths.contains(&b"/usr/bin".to_vec()));
    /// assert!(!paths.contains(&b"/proc/1".to_vec()));
    /// # fs.unmount()?; Ok::<(), Error>(())
    /// ```
    pub fn skip_dir(&mut self) {
        self.error = None;
        if std::mem::take(&mut self.at_dir) {
            self.levels.pop();
        }
    }

    /// Goes down into a directory; the error of that is the next item.
    fn enter(&mut self, parent: &Dir, path: &[u8], name: &[u8]) {
        let dir = match parent.subdir(name) {
            Ok(Some(dir)) => dir,
            // Another thread replaced the entry.
            Ok(None) => return,
            Err(error) => {
                // An entry that another thread removed meanwhile is none.
                self.error =
                    (error.kind() != ErrorKind::NotFound).then(|| error.at(Op::Walk, path));
                return;
            }
        };
        if !self.entered.insert(dir.inode().number()) {
            let error = Error::new(ErrorKind::Corrupt, Errno::Uclean, Op::Walk);
            self.error = Some(error.at(Op::Walk, path));
            return;
        }
        let entries = dir.entries();
        self.levels.push(Level { dir, path: path.to_vec(), entries });
        self.at_dir = true;
    }
}

impl Iterator for Walk {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.at_dir = false;
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        loop {
            let depth = self.levels.len().checked_sub(1)?;
            let level = &mut self.levels[depth];
            let entry = match level.entries.next() {
                Some(Ok(entry)) => entry,
                Some(Err(error)) => return Some(Err(error.at(Op::Walk, &level.path))),
                None => {
                    self.levels.pop();
                    continue;
                }
            };
            let path = [&*level.path, b"/", &*entry.name].concat();
            if matches!(entry.file_type, FileType::Directory | FileType::Unknown) {
                let parent = level.dir.clone();
                self.enter(&parent, &path, &entry.name);
            }
            return Some(Ok(WalkEntry { path, entry, depth }));
        }
    }
}
