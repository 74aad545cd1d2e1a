//! A file of the machine that appears when it is complete.

use super::keeper::OutputKeeper;
use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::text::shown;
use extant_engine::device::{FileDevice, FileOptions, ImageSpec};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::{NamedTempFile, TempPath};

/// Permissions of a new file, less the umask.
const MODE: u32 = 0o666;

/// The first arguments of a keeper of a file that replaces another one, and of one that must not.
const FILE: &str = "file";
const NEW_FILE: &str = "new-file";

/// A file under way, and its name.
#[derive(Debug)]
pub struct Output {
    file: Unfinished,
    /// A symlink leads here.
    dest: PathBuf,
    /// An existing file is replaced.
    replaces: bool,
    /// Gives the file its name for a process in a sandbox.
    keeper: Option<OutputKeeper>,
}

/// A file without a name or under another one in the same directory, or a device or FIFO that
/// exists.
#[derive(Debug)]
enum Unfinished {
    /// Vanishes with the program, whatever ends it, until it gets its name.
    Nameless(File),
    /// For file systems without files without names.
    Named(NamedTempFile),
    /// Is written in place.
    Special(File),
}

/// Refuses to replace one of the images that a new one is made of.
pub fn check_other(new: &Path, images: &ImageSpec) -> Result {
    let Some(new_id) = identity(new) else { return Ok(()) };
    let backing = images.backing.iter().map(|backing| &backing.path);
    match std::iter::once(&images.path).chain(backing).find(|path| identity(path) == Some(new_id)) {
        None => Ok(()),
        Some(_) => {
            let name = shown(new.as_os_str().as_bytes());
            Err(Failure::new(format_args!("{name} is the image itself")))
        }
    }
}

/// Returns the device and the inode number of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Holds an image that is to be replaced: no program may begin to write to it before it is. Files
/// that cannot be opened are not images in use.
///
/// # Errors
/// The image is in use.
pub fn hold_replaced(dest: &Path) -> Result<Option<FileDevice>> {
    match FileOptions::new(dest).read_only(true).open() {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            Err(Failure::new(format_args!("{error}; it is not replaced before it is unmounted")))
        }
        opened => Ok(opened.ok()),
    }
}

impl Output {
    /// Begins the file `dest`, or the one that the symlink `dest` leads to.
    ///
    /// # Errors
    /// Those of creation, with the path; a symlink that leads to no file.
    pub fn begin(dest: &Path) -> Result<Output> {
        let name = dest.as_os_str().as_bytes();
        let dest = target(dest).at_path(name)?;
        let file = Unfinished::begin(&dest).at_path(name)?;
        Ok(Output { file, dest, replaces: true, keeper: None })
    }

    /// Begins the file `dest`, which must be missing.
    ///
    /// # Errors
    /// Those of creation, with the path.
    pub fn begin_new(dest: &Path) -> Result<Output> {
        let name = dest.as_os_str().as_bytes();
        if std::fs::symlink_metadata(dest).is_ok() {
            return Err(io::Error::from(Errno::EXIST)).at_path(name);
        }
        let file = Unfinished::begin(dest).at_path(name)?;
        Ok(Output { file, dest: dest.into(), replaces: false, keeper: None })
    }

    /// Leaves the name to a second process if this one is to enter a sandbox, where it can fill the
    /// file only.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn before_sandbox(self, context: &Context) -> Result<Output> {
        if !context.sandbox || matches!(self.file, Unfinished::Special(_)) {
            return Ok(self);
        }
        self.hand_over(OutputKeeper::start)
    }

    /// Leaves the name to the process that `start` starts. A file under a temporary name is removed
    /// if that fails.
    fn hand_over(
        self,
        start: impl FnOnce(&[&OsStr], Stdio) -> Result<OutputKeeper>,
    ) -> Result<Output> {
        let Output { file, dest, replaces, .. } = self;
        let name = dest.as_os_str().as_bytes();
        let (file, beside) = match file {
            Unfinished::Nameless(file) | Unfinished::Special(file) => (file, None),
            Unfinished::Named(file) => {
                let (file, path) = file.into_parts();
                (file, Some(path))
            }
        };
        let kind = OsStr::new(if replaces { FILE } else { NEW_FILE });
        let path = beside.as_ref().map(|path| path.as_os_str());
        let words: Vec<&OsStr> = [kind, dest.as_os_str()].into_iter().chain(path).collect();
        let its_file = Stdio::from(file.try_clone().at_path(name)?);
        let keeper = Some(start(&words, its_file)?);
        // From now on the other process removes it.
        beside.map(TempPath::keep).transpose().map_err(|kept| kept.error).at_path(name)?;
        Ok(Output { file: Unfinished::Nameless(file), dest, replaces, keeper })
    }

    /// Returns the output of another process, by the arguments of its keeper.
    pub(super) fn handed(words: &[OsString], file: File) -> io::Result<Output> {
        let [kind, dest, beside @ ..] = words else { return Err(Errno::INVAL.into()) };
        let file = match beside {
            [path, ..] => {
                Unfinished::Named(NamedTempFile::from_parts(file, TempPath::try_from_path(path)?))
            }
            [] => Unfinished::Nameless(file),
        };
        Ok(Output { file, dest: dest.into(), replaces: kind == FILE, keeper: None })
    }

    /// Returns a path that leads to the file and to no other.
    pub fn path(&mut self) -> PathBuf {
        path_of(self.file())
    }

    /// Returns the file.
    pub fn file(&mut self) -> &mut File {
        match &mut self.file {
            Unfinished::Named(file) => file.as_file_mut(),
            Unfinished::Nameless(file) | Unfinished::Special(file) => file,
        }
    }

    /// Gives a new file a length, and returns it as a device.
    ///
    /// # Errors
    /// Those of the file.
    pub fn device(&mut self, len: u64) -> io::Result<FileDevice> {
        device_of(self.file(), len)
    }

    /// Gives the file its name, which survives a power cut. An existing file of this name is
    /// replaced; the new one gets its permissions, and its owner if this process may give files
    /// away.
    ///
    /// # Errors
    /// Those of renaming, with the path. The file is then removed.
    pub fn finish(self) -> Result {
        self.place().map(drop)
    }

    /// Gives the file its name as [`Output::finish`] does. It can be removed later.
    ///
    /// # Errors
    /// As [`Output::finish`].
    pub fn place(mut self) -> Result<PlacedOutput> {
        let (dest, keeper) = (self.dest.clone(), self.keeper.take());
        let name = dest.as_os_str().as_bytes();
        let own = self.file().try_clone().at_path(name)?;
        let done = match &keeper {
            Some(keeper) => keeper.place(),
            None => self.settle(),
        };
        done.at_path(name)?;
        Ok(PlacedOutput { file: own, dest, keeper })
    }

    /// Gives the file its name, in this process.
    pub(super) fn settle(mut self) -> io::Result<()> {
        let replaced = std::fs::metadata(&self.dest).ok().filter(|_| self.replaces);
        if let Some(replaced) = replaced.filter(Metadata::is_file) {
            let _ = std::os::unix::fs::fchown(
                &*self.file(),
                Some(replaced.uid()),
                Some(replaced.gid()),
            );
            let mode = Permissions::from_mode(replaced.mode() & 0o777);
            self.file().set_permissions(mode)?;
        }
        let own = self.file().try_clone()?;
        let Output { file, dest, replaces, .. } = self;
        match file {
            Unfinished::Named(file) if replaces => {
                file.persist(&dest).map(drop).map_err(|e| e.error)
            }
            Unfinished::Named(file) => file.persist_noclobber(&dest).map(drop).map_err(|e| e.error),
            Unfinished::Nameless(file) => give_name(&file, &dest, replaces),
            Unfinished::Special(_) => return Ok(()),
        }
        .and_then(|()| sync_directory(parent(&dest)))
        .inspect_err(|_| {
            if !replaces {
                // The first failure is the one to tell.
                let _ = remove_own(&own, &dest);
            }
        })
    }
}

/// A file that has its name.
#[derive(Debug)]
pub struct PlacedOutput {
    file: File,
    dest: PathBuf,
    keeper: Option<OutputKeeper>,
}

impl PlacedOutput {
    /// Removes the file, unless another one has its name by now.
    ///
    /// # Errors
    /// Those of unlink(2), with the path.
    pub fn remove(self) -> Result {
        let done = match &self.keeper {
            Some(keeper) => keeper.remove(),
            None => remove_own(&self.file, &self.dest),
        };
        done.at_path(self.dest.as_os_str().as_bytes())
    }
}

/// Removes the name of a file, unless another one has it.
pub(super) fn remove_own(file: &File, name: &Path) -> io::Result<()> {
    let (own, named) = (file.metadata()?, std::fs::symlink_metadata(name)?);
    if (own.dev(), own.ino()) == (named.dev(), named.ino()) {
        std::fs::remove_file(name)?;
    }
    Ok(())
}

/// Gives a file that no other program knows a length, and returns it as a device.
///
/// # Errors
/// Those of the file.
pub fn device_of(file: &File, len: u64) -> io::Result<FileDevice> {
    file.set_len(len)?;
    FileDevice::of_file(file.try_clone()?)
}

fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Returns the file that a symlink leads to, or the path itself if it is none. The kernel follows
/// the link, so that its protection of links in shared directories holds.
fn target(path: &Path) -> io::Result<PathBuf> {
    if !std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
        return Ok(path.to_owned());
    }
    let file = match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => {
            let cause = "a symlink to a missing file; name that file, or remove the symlink";
            return Err(io::Error::new(io::ErrorKind::NotFound, cause));
        }
        Err(error) => return Err(error.into()),
    };
    let target = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let opened = file.metadata()?;
    if !opened.is_file() {
        // Devices and FIFOs are written in place, and pipes have no path.
        return Ok(path.to_owned());
    }
    let named = std::fs::symlink_metadata(&target)?;
    if (opened.dev(), opened.ino()) == (named.dev(), named.ino()) {
        Ok(target)
    } else {
        Err(io::Error::other("the file behind the symlink was removed meanwhile"))
    }
}

impl Unfinished {
    fn begin(dest: &Path) -> io::Result<Unfinished> {
        // A file in place of a device would hide it from all programs.
        if std::fs::metadata(dest).is_ok_and(|meta| !meta.is_file()) {
            return OpenOptions::new().write(true).open(dest).map(Unfinished::Special);
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(parent(dest), flags, Mode::from_raw_mode(MODE)) {
            Ok(file) => return Ok(Unfinished::Nameless(file.into())),
            // Refused by a file system or a kernel that does not have it.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        let mode = Permissions::from_mode(MODE);
        let prefix = prefix(dest);
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix(&prefix).permissions(mode).tempfile_in(parent(dest));
        file.map(Unfinished::Named)
    }
}

/// Gives a file without a name the name `dest`. A link cannot replace a file, so where it may, it
/// gets another name first.
fn give_name(file: &File, dest: &Path, replaces: bool) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |path: &Path| {
        io::Result::Ok(rustix::fs::linkat(CWD, &own, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    };
    match link(dest) {
        Err(error) if replaces && error.kind() == io::ErrorKind::AlreadyExists => {}
        result => return result,
    }
    let named = tempfile::Builder::new().prefix(&prefix(dest)).make_in(parent(dest), link)?;
    named.persist(dest).map(drop).map_err(|e| e.error)
}

/// Makes the names in a directory durable, if that can be asked for: some file systems refuse it,
/// and so do directories that may not be read.
fn sync_directory(dir: &Path) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied};
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        Err(error) if matches!(error.kind(), InvalidInput | PermissionDenied) => Ok(()),
        done => done,
    }
}

/// Returns the beginning of other names in the directory of `dest`.
fn prefix(dest: &Path) -> OsString {
    let prefix = [b".", dest.file_name().unwrap_or_default().as_bytes(), b"."].concat();
    OsStr::from_bytes(&prefix[..prefix.len().min(200)]).to_owned()
}

/// Returns the directory that has `path`.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_testkit::Scratch;
    use std::fs::{read, write};

    /// Where a file system has no files without names, the other process gets the name, too.
    #[test]
    fn another_process_names_or_removes_a_named_file() {
        let scratch = Scratch::new();
        let (dest, beside) = (scratch.join("dest"), scratch.join("beside"));
        let handed = |kind: &str| {
            write(&beside, "complete").expect("a file");
            let file = File::open(&beside).expect("a file");
            Output::handed(&[kind.into(), dest.clone().into(), beside.clone().into()], file)
        };
        write(&dest, "older").expect("a file");
        let refused = handed(NEW_FILE).and_then(Output::settle).expect_err("it exists");
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        drop(handed(FILE).expect("an output"));
        assert_eq!((read(&dest).expect("a file"), beside.exists()), (b"older".to_vec(), false));
        handed(FILE).and_then(Output::settle).expect("a name");
        assert_eq!((read(&dest).expect("a file"), beside.exists()), (b"complete".to_vec(), false));
    }

    #[test]
    fn no_name_stays_where_the_other_process_cannot_start() {
        let scratch = Scratch::new();
        let (dest, beside) = (scratch.join("dest"), scratch.join("beside"));
        write(&beside, "begun").expect("a file");
        let file = File::open(&beside).expect("a file");
        let output = Output::handed(&[FILE.into(), dest.into(), beside.into()], file);
        let output = output.expect("an output");
        let names = || std::fs::read_dir(scratch.path()).expect("a directory").count();
        assert_eq!(names(), 1);
        let refused = output.hand_over(|words, _| {
            assert_eq!(words.len(), 3, "the name is handed over");
            Err(Failure::new("no process"))
        });
        assert!(refused.is_err());
        assert_eq!(names(), 0);
    }
}
