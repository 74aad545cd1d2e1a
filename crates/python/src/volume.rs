//! An open file system, with its calls by path.

use crate::call::detached;
use crate::entries::Entries;
use crate::failure::{Failure, Result};
use crate::file::{File, read_all};
use crate::image::ImageArgs;
use crate::owned::Owned;
use extant::{FileOptions, Fs, Inode, Metadata, SetMetadata, Timestamp, XattrMode};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Options of opening.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct OpenArgs {
    read_only: bool,
    recover: bool,
    lenient: bool,
    memory: Option<u64>,
    /// Seconds.
    commit_interval: Option<f64>,
    direct_io: bool,
    discard: bool,
}

impl OpenArgs {
    fn options(&self, wait: bool) -> Result<extant::OpenOptions> {
        let mut options = Fs::options();
        if self.read_only {
            options = options.read_only();
        }
        if !self.recover {
            options = options.no_recovery();
        }
        if self.lenient {
            options = options.lenient();
        }
        if wait {
            options = options.wait();
        }
        if let Some(bytes) = self.memory {
            options = options.memory(bytes);
        }
        if let Some(seconds) = self.commit_interval {
            let interval = Duration::try_from_secs_f64(seconds);
            let interval = interval.map_err(|error| Failure::invalid(error.to_string()))?;
            options = options.commit_interval(interval);
        }
        if self.direct_io {
            options = options.direct_io();
        }
        if self.discard {
            options = options.discard();
        }
        Ok(options)
    }
}

/// Attributes to set; `None` keeps one.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct SetArgs {
    mode: Option<u16>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    /// Nanoseconds since 1970.
    atime: Option<i128>,
    mtime: Option<i128>,
}

impl SetArgs {
    /// Returns the attributes for an inode with these present ones.
    fn change(&self, present: &Metadata) -> Result<SetMetadata> {
        let mut set = SetMetadata::new();
        if let Some(mode) = self.mode {
            set = set.permissions(mode);
        }
        if self.uid.is_some() || self.gid.is_some() {
            let (uid, gid) = (present.uid(), present.gid());
            set = set.owner(self.uid.unwrap_or(uid), self.gid.unwrap_or(gid));
        }
        if let Some(bytes) = self.size {
            set = set.len(bytes);
        }
        if let Some(time) = self.atime {
            set = set.accessed(timestamp(time)?);
        }
        if let Some(time) = self.mtime {
            set = set.modified(timestamp(time)?);
        }
        Ok(set)
    }
}

const SECOND: i128 = 1_000_000_000;

/// Returns the time that is a number of nanoseconds after 1970.
fn timestamp(nanoseconds: i128) -> Result<Timestamp> {
    let seconds = i64::try_from(nanoseconds.div_euclid(SECOND));
    let seconds = seconds.map_err(|_| Failure::invalid("the time is out of range"))?;
    Ok(Timestamp::new(seconds, nanoseconds.rem_euclid(SECOND) as u32))
}

fn nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.sec) * SECOND + i128::from(time.nsec)
}

/// A device number as `st_rdev` of Linux has it.
fn device_number((major, minor): (u32, u32)) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    (major & !0xfff) << 32 | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (minor & 0xff)
}

/// Numbers of `StatResult`, and its times in nanoseconds.
type StatNumbers = (u16, u32, u32, u32, u32, u64, u64, u32, u64, u32, u32);
type StatTimes = (i128, i128, i128, Option<i128>);

/// Opens a file system.
#[pyfunction]
pub(crate) fn open_volume(py: Python<'_>, image: ImageArgs, args: OpenArgs) -> PyResult<Volume> {
    let fs = detached(py, || {
        let options = args.options(image.wait)?;
        let opened = options.open_image(&image.spec()?);
        // The text of the image names its place, too; the name of a file is its path alone.
        opened.map_err(|error| Failure::from(error).of_file(image.name()))
    })?;
    Ok(Volume { fs: Owned::new(fs) })
}

/// An open file system. Paths are bytes.
#[pyclass(frozen, module = "extant._extant")]
pub(crate) struct Volume {
    fs: Owned<Fs>,
}

impl Volume {
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Fs) -> Result<T> + Send,
    ) -> PyResult<T> {
        detached(py, || work(self.fs.get()?))
    }

    /// Runs `work` with the inode at a path, which errors name.
    fn with_inode<T: Send>(
        &self,
        py: Python<'_>,
        (path, follow): (&[u8], bool),
        work: impl FnOnce(&Inode) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.run(py, |fs| {
            let inode = if follow { fs.lookup(path) } else { fs.lookup_symlink(path) };
            work(&inode?).map_err(|failure| failure.at(path))
        })
    }
}

/// Calls of the whole file system.
#[pymethods]
impl Volume {
    fn unmount(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |fs| Ok(fs.unmount()?))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |fs| Ok(fs.sync()?))
    }

    fn freeze(&self, py: Python<'_>) -> PyResult<Freeze> {
        let frozen = self.run(py, |fs| Ok(fs.freeze()?))?;
        Ok(Freeze(Mutex::new(Some(Owned::new(frozen)))))
    }

    /// Returns bytes of a block; blocks: all, free, available; inodes: all, free.
    fn usage(&self, py: Python<'_>) -> PyResult<(u32, u64, u64, u64, u64, u64)> {
        self.run(py, |fs| {
            let usage = fs.usage();
            let (blocks, inodes) = (usage.blocks, usage.inodes);
            Ok((fs.block_size(), blocks, usage.free, usage.available, inodes, usage.inodes_free))
        })
    }

    /// Returns the fields of `Recovery` in their order.
    #[expect(clippy::type_complexity, reason = "the fields of one type in Python")]
    fn recovery(
        &self,
        py: Python<'_>,
    ) -> PyResult<(u32, u64, u64, u64, u64, bool, bool, Option<String>, Option<String>)> {
        self.run(py, |fs| {
            let found = fs.recovery();
            Ok((
                found.transactions,
                found.blocks,
                found.orphans_freed,
                found.orphans_truncated,
                found.orphans_invalid,
                found.was_in_use,
                found.in_memory,
                found.skipped.clone(),
                found.read_only.clone(),
            ))
        })
    }

    fn stat(
        &self,
        py: Python<'_>,
        path: &[u8],
        follow: bool,
    ) -> PyResult<(StatNumbers, StatTimes)> {
        self.run(py, |fs| {
            let found = if follow { fs.metadata(path)? } else { fs.symlink_metadata(path)? };
            let numbers = (
                found.mode(),
                found.inode(),
                found.links(),
                found.uid(),
                found.gid(),
                found.len(),
                found.sectors(),
                fs.block_size(),
                device_number(found.device_number()),
                found.flags(),
                found.generation(),
            );
            let times = (
                nanoseconds(found.accessed()),
                nanoseconds(found.modified()),
                nanoseconds(found.changed()),
                found.created().map(nanoseconds),
            );
            Ok((numbers, times))
        })
    }

    fn set_attributes(
        &self,
        py: Python<'_>,
        path: &[u8],
        follow: bool,
        args: SetArgs,
    ) -> PyResult<()> {
        self.with_inode(py, (path, follow), |inode| {
            let set = args.change(&inode.metadata()?)?;
            inode.set_metadata(&set)?;
            Ok(())
        })
    }

    /// Reads a whole file.
    fn read<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.run(py, |fs| Ok(fs.open_file(path)?))?;
        read_all(py, file)
    }

    /// Writes a whole file, which is created or replaced.
    fn write(&self, py: Python<'_>, path: &[u8], data: PyBackedBytes) -> PyResult<()> {
        let data: &[u8] = &data;
        self.run(py, |fs| Ok(fs.write(path, data)?))
    }

    /// Opens a file. Letters of `flags`: `w` to write, `a` to append, `t` to cut it, `c` to create
    /// it, `x` to create it or fail.
    fn open(&self, py: Python<'_>, path: &[u8], flags: &str) -> PyResult<File> {
        let has = |letter| flags.contains(letter);
        let options = FileOptions::new()
            .write(has('w'))
            .append(has('a'))
            .truncate(has('t'))
            .create(has('c'))
            .create_new(has('x'));
        // `append(false)` and others leave the right to write alone.
        let file = self.run(py, |fs| Ok(fs.open_file_with(path, &options)?))?;
        Ok(File::new(file, has('a')))
    }

    fn entries(&self, py: Python<'_>, path: &[u8]) -> PyResult<Entries> {
        let entries = self.run(py, |fs| Ok(fs.open_dir(path)?.entries()))?;
        Ok(Entries::new(entries))
    }

    fn create_dir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, |fs| Ok(fs.create_dir(path).map(drop)?))
    }

    fn create_dir_all(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, |fs| Ok(fs.create_dir_all(path).map(drop)?))
    }

    fn remove_file(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, |fs| Ok(fs.remove_file(path)?))
    }

    fn remove_dir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, |fs| Ok(fs.remove_dir(path)?))
    }

    fn rename(&self, py: Python<'_>, from: &[u8], to: &[u8]) -> PyResult<()> {
        self.run(py, |fs| Ok(fs.rename(from, to)?))
    }

    fn symlink(&self, py: Python<'_>, target: &[u8], path: &[u8]) -> PyResult<()> {
        self.run(py, |fs| Ok(fs.symlink(target, path)?))
    }

    fn hard_link(&self, py: Python<'_>, original: &[u8], path: &[u8]) -> PyResult<()> {
        self.run(py, |fs| Ok(fs.hard_link(original, path)?))
    }

    fn read_link<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let target = self.run(py, |fs| Ok(fs.read_link(path)?))?;
        Ok(PyBytes::new(py, &target))
    }

    fn get_xattr<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        name: &[u8],
        follow: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.with_inode(py, (path, follow), |inode| Ok(inode.xattr(name)?))?;
        Ok(PyBytes::new(py, &value))
    }

    /// Sets an attribute: name and value, and the mode and whether a symlink is followed.
    fn set_xattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        attribute: (PyBackedBytes, PyBackedBytes),
        how: (String, bool),
    ) -> PyResult<()> {
        let (name, value): (&[u8], &[u8]) = (&attribute.0, &attribute.1);
        let (mode, follow) = how;
        self.with_inode(py, (path, follow), |inode| {
            Ok(inode.set_xattr(name, value, xattr_mode(&mode)?)?)
        })
    }

    fn list_xattrs<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        follow: bool,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let names = self.with_inode(py, (path, follow), |inode| Ok(inode.xattrs()?))?;
        Ok(names.iter().map(|name| PyBytes::new(py, name)).collect())
    }

    fn remove_xattr(&self, py: Python<'_>, path: &[u8], name: &[u8], follow: bool) -> PyResult<()> {
        self.with_inode(py, (path, follow), |inode| Ok(inode.remove_xattr(name)?))
    }
}

fn xattr_mode(name: &str) -> Result<XattrMode> {
    match name {
        "any" => Ok(XattrMode::Any),
        "create" => Ok(XattrMode::Create),
        "replace" => Ok(XattrMode::Replace),
        _ => Err(Failure::invalid(format!("{name:?} is no mode: any, create or replace"))),
    }
}

/// A frozen file system.
#[pyclass(frozen, module = "extant._extant")]
pub(crate) struct Freeze(Mutex<Option<Owned<extant::Frozen>>>);

#[pymethods]
impl Freeze {
    /// Thaws the file system; without effect on a thawed one.
    fn thaw(&self, py: Python<'_>) -> PyResult<()> {
        let frozen = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(frozen) = frozen else { return Ok(()) };
        detached(py, || Ok(frozen.into_inner()?.thaw()?))
    }
}
