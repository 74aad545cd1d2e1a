//! Making a plan's tree with system calls.

use super::plan::{Content, Entry, Plan, What};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

impl Plan {
    /// Makes the tree below the existing directory `root`. Owners and devices need root.
    ///
    /// # Panics
    /// If anything cannot be made, with its path.
    #[track_caller]
    pub fn apply(&self, root: &Path) {
        for entry in &self.entries {
            make(root, entry)
                .unwrap_or_else(|e| panic!("making {}: {e}", entry.path.escape_ascii()));
        }
        // A directory's time changes while entries come in, so times go last, children before
        // parents.
        for entry in self.entries.iter().rev() {
            finish(root, entry)
                .unwrap_or_else(|e| panic!("attributes of {}: {e}", entry.path.escape_ascii()));
        }
    }
}

fn make(root: &Path, entry: &Entry) -> io::Result<()> {
    let path = root.join(OsStr::from_bytes(&entry.path));
    match &entry.what {
        What::File(content) => write_file(&path, content)?,
        What::Directory => return std::fs::create_dir(&path),
        What::Symlink(target) => std::os::unix::fs::symlink(OsStr::from_bytes(target), &path)?,
        What::HardLink(target) => {
            return std::fs::hard_link(root.join(OsStr::from_bytes(target)), &path);
        }
        What::Device { block, major, minor } => {
            let kind = if *block { FileType::BlockDevice } else { FileType::CharacterDevice };
            make_node(&path, kind, rustix::fs::makedev(*major, *minor))?;
        }
        What::Fifo => make_node(&path, FileType::Fifo, 0)?,
        What::Socket => make_node(&path, FileType::Socket, 0)?,
    }
    set_attributes(&path, entry)
}

fn make_node(path: &Path, kind: FileType, device: u64) -> io::Result<()> {
    Ok(rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), device)?)
}

fn write_file(path: &Path, content: &Content) -> io::Result<()> {
    let file = std::fs::File::create_new(path)?;
    for (index, (offset, _)) in content.pieces.iter().enumerate() {
        file.write_all_at(&content.piece(index), *offset)?;
    }
    file.set_len(content.size)
}

fn set_attributes(path: &Path, entry: &Entry) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
    rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    if !matches!(entry.what, What::Symlink(_)) {
        rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(entry.mode), AtFlags::empty())?;
    }
    for (name, value) in &entry.xattrs {
        rustix::fs::lsetxattr(path, OsStr::from_bytes(name), value, XattrFlags::empty())?;
    }
    Ok(())
}

fn finish(root: &Path, entry: &Entry) -> io::Result<()> {
    let path = root.join(OsStr::from_bytes(&entry.path));
    match entry.what {
        What::HardLink(_) => return Ok(()),
        What::Directory => set_attributes(&path, entry)?,
        _ => {}
    }
    let time = Timespec { tv_sec: entry.mtime.0, tv_nsec: entry.mtime.1.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    let path = root.join(OsStr::from_bytes(&entry.path));
    Ok(rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
