//! Manifests as sources: lists of files in the format of mtree(5), as bsdtar, go-mtree and umoci
//! write them. Content comes from files of the host; extended attributes are those of go-mtree
//! (`xattr.NAME=BASE64`).
//!
//! A line has a path and keywords. A path with `/` begins at the root. One without is an entry of
//! the current directory, which a line of a directory enters and the line `..` leaves. So after
//! `. type=dir`, `etc type=dir` and `hosts size=0`, there is a file `etc/hosts`.

mod line;
mod vis;

use crate::directory::{HostFiles, HostSource, data_ranges, open, state};
use crate::error::{Error, Result};
use crate::loader::{Input, Loader};
use extant_format::Printable;
use extant_image::{Attributes, EntryKind, FileContent, SourceId, Tree};
use line::{Defaults, Facts, Kind};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum length of a line with its continuations, in bytes.
const MAX_LINE: usize = 1 << 20;

/// Maximum length of a path, in bytes: that of system calls.
const MAX_PATH: usize = 4096;

/// Memory that long paths of short lines may take, in bytes, and more for each byte of the
/// manifest.
const FREE_MEMORY: u64 = 256 << 20;
const MEMORY_PER_BYTE: u64 = 32;

impl Loader<'_> {
    /// Adds the entries of a manifest. `name` names it in errors; paths of content without a `/` at
    /// the beginning start at the current directory.
    ///
    /// # Errors
    /// [`Error`] with manifest, line and cause; the tree has the entries before it.
    pub fn add_mtree(&mut self, name: &str, input: Input) -> Result<()> {
        let input: Box<dyn Read> = match input {
            Input::File(file) => Box::new(file),
            Input::Stream(stream) => stream,
        };
        let shared = Arc::new(HostSource::default());
        let source = self.tree.add_source(shared.clone());
        let mut manifest = Manifest {
            tree: self.tree,
            source,
            files: HostFiles::default(),
            defaults: Defaults::default(),
            current: Vec::new(),
            links: HashMap::new(),
            memory: 0,
            read: 0,
        };
        let done = manifest.all(&mut Lines { input: BufReader::new(input), number: 0 });
        // Also after a failure: files in the tree refer to the source.
        let _ = shared.0.set(manifest.files);
        done.map_err(|(line, error)| error.in_source(format_args!("{name}: line {line}")))
    }
}

/// The lines of a manifest, with continuations joined.
struct Lines<R> {
    input: BufReader<R>,
    /// Number of the line that was read last.
    number: u64,
}

impl<R: Read> Lines<R> {
    /// Reads a line without its end; `None` behind the last one.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        loop {
            let left = (MAX_LINE + 1).saturating_sub(line.len()) as u64;
            self.number += 1;
            let read = self.input.by_ref().take(left).read_until(b'\n', &mut line)?;
            if line.len() > MAX_LINE {
                return Err(Error::new(format_args!("longer than {MAX_LINE} bytes")));
            }
            if read == 0 {
                return Ok((!line.is_empty()).then_some(line));
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            let slashes = line.iter().rev().take_while(|byte| **byte == b'\\').count();
            if slashes % 2 == 0 {
                return Ok(Some(line));
            }
            line.pop();
        }
    }
}

struct Manifest<'a> {
    tree: &'a mut Tree,
    source: SourceId,
    files: HostFiles,
    /// Values of `/set`.
    defaults: Defaults,
    /// Names of the directories that were entered.
    current: Vec<Vec<u8>>,
    /// First path of each file with several names, by device and inode number.
    links: HashMap<(Vec<u8>, Vec<u8>), Vec<u8>>,
    /// Bytes of paths that are kept beside the tree, and of lines so far.
    memory: u64,
    read: u64,
}

impl Manifest<'_> {
    /// Adds all entries. An error has the number of its line.
    fn all<R: Read>(&mut self, lines: &mut Lines<R>) -> Result<(), (u64, Error)> {
        while let Some(line) = lines.next().map_err(|error| (lines.number, error))? {
            self.read += line.len() as u64;
            self.line(&line).map_err(|error| (lines.number, error))?;
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<()> {
        let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|w| !w.is_empty());
        let Some(first) = words.next().filter(|word| !word.starts_with(b"#")) else {
            return Ok(());
        };
        match first {
            b"/set" => words.try_for_each(|word| {
                let is_common = self.defaults.set(word)?;
                let why = "cannot be set for all entries";
                is_common.then_some(()).ok_or_else(|| line::bad(word, why))
            }),
            b"/unset" => words.try_for_each(|word| self.defaults.unset(word)),
            b".." => match self.current.pop() {
                Some(_) => Ok(()),
                None => Err(Error::new("`..` leads out of the root")),
            },
            _ => {
                let mut facts = Facts { common: self.defaults, ..Facts::default() };
                words.try_for_each(|word| facts.add(word))?;
                self.entry(first, facts)
            }
        }
    }

    fn entry(&mut self, word: &[u8], facts: Facts) -> Result<()> {
        let unknown = || Error::new(format_args!("`{}` has an unknown escape", Printable(word)));
        let name = vis::decode(word).ok_or_else(unknown)?;
        let is_relative = !word.contains(&b'/');
        let path = if is_relative {
            self.current
                .iter()
                .map(|name| &name[..])
                .chain([&name[..]])
                .collect::<Vec<_>>()
                .join(&b'/')
        } else {
            name.clone()
        };
        if path.len() > MAX_PATH {
            return Err(Error::new(format_args!("a path longer than {MAX_PATH} bytes")));
        }
        let is_directory = facts.common.kind == Some(Kind::Directory);
        self.add(&path, facts).map_err(|error| error.in_member(&path))?;
        if is_relative && is_directory {
            self.current.push(name);
        }
        Ok(())
    }

    fn add(&mut self, path: &[u8], mut facts: Facts) -> Result<()> {
        let kind = facts.common.kind.unwrap_or_default();
        let is_linked = facts.common.links.is_some_and(|links| links > 1);
        let inode = facts.inode.take().filter(|_| is_linked && kind != Kind::Directory);
        let inode = inode.map(|inode| (std::mem::take(&mut facts.inode_device), inode));
        if let Some(first) = inode.as_ref().and_then(|inode| self.links.get(inode)) {
            return Ok(self.tree.hard_link(path, first)?);
        }
        let attributes = attributes(kind, &mut facts)?;
        let kind = match kind {
            Kind::Directory => EntryKind::Directory,
            Kind::File => match self.content(path, &facts)? {
                Some(content) => EntryKind::File(content),
                None => return Ok(()),
            },
            Kind::Symlink => {
                let missing = || Error::new("a symlink needs link=TARGET");
                EntryKind::Symlink(facts.target.ok_or_else(missing)?)
            }
            Kind::CharDevice | Kind::BlockDevice => {
                let missing = || Error::new("a device needs device=native,MAJOR,MINOR");
                let (major, minor) = facts.device.ok_or_else(missing)?;
                match kind {
                    Kind::CharDevice => EntryKind::CharDevice(major, minor),
                    _ => EntryKind::BlockDevice(major, minor),
                }
            }
            Kind::Fifo => EntryKind::Fifo,
            Kind::Socket => EntryKind::Socket,
        };
        self.tree.add(path, &attributes, kind)?;
        if let Some(inode) = inode {
            self.charge(path.len())?;
            self.links.insert(inode, path.to_vec());
        }
        Ok(())
    }

    /// Refuses a manifest whose paths take much more memory than its lines.
    fn charge(&mut self, bytes: usize) -> Result<()> {
        self.memory += bytes as u64;
        if self.memory > FREE_MEMORY.saturating_add(self.read.saturating_mul(MEMORY_PER_BYTE)) {
            let cause = "the paths of the manifest take more than 32 times as much memory as its \
                         lines; divide it";
            return Err(Error::new(cause));
        }
        Ok(())
    }

    /// Returns the content of a file; `None` if an optional file has none.
    fn content(&mut self, path: &[u8], facts: &Facts) -> Result<Option<FileContent>> {
        if facts.content.is_none() && facts.size == Some(0) {
            facts.digest.map_or(Ok(()), |digest| digest.verify(io::empty()))?;
            return Ok(Some(FileContent::Bytes(Vec::new())));
        }
        let own = || {
            let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
            path[start..].to_vec()
        };
        let host = facts.content.clone().unwrap_or_else(own);
        let host = Path::new(OsStr::from_bytes(&host));
        let failed =
            |error: io::Error| Error::from(error).in_source(Printable(host.as_os_str().as_bytes()));
        match self.host_file(host, facts) {
            Ok(content) => Ok(Some(content)),
            Err(error) if facts.optional && error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn host_file(&mut self, host: &Path, facts: &Facts) -> io::Result<FileContent> {
        // A later symlink at the place of the file is refused.
        let host = std::fs::canonicalize(host)?;
        let check = |found: Metadata| {
            let is_file = found.is_file();
            is_file.then_some(found).ok_or_else(|| io::Error::other("no regular file"))
        };
        // To open a device may have effects.
        check(std::fs::symlink_metadata(&host)?)?;
        let file = open(&host)?;
        let found = check(file.metadata()?)?;
        let size = found.size();
        if let Some(expected) = facts.size.filter(|expected| *expected != size) {
            let cause = format!("has {size} bytes, not {expected} as the manifest says");
            return Err(io::Error::other(cause));
        }
        if let Some(digest) = &facts.digest {
            // A change until the content is copied is noticed then.
            digest.verify(&file).map_err(io::Error::other)?;
        }
        let parent = host.parent().unwrap_or(Path::new("/"));
        if self.files.directories.last().map(PathBuf::as_path) != Some(parent) {
            self.charge(parent.as_os_str().len()).map_err(io::Error::other)?;
            self.files.directories.push(parent.to_path_buf());
        }
        let name = host.file_name().unwrap_or_default();
        let position = self.files.push(name.as_bytes(), state(&found));
        let source = self.source;
        if found.blocks().saturating_mul(512) < size {
            let ranges = data_ranges(&file, position, size)?;
            return Ok(FileContent::Sparse { source, size, ranges });
        }
        Ok(FileContent::Whole { source, position, size })
    }
}

fn attributes(kind: Kind, facts: &mut Facts) -> Result<Attributes> {
    let common = &facts.common;
    if common.user && common.uid.is_none() || common.group && common.gid.is_none() {
        return Err(Error::new("names of owners have no meaning here; give uid= and gid="));
    }
    let default_mode = match kind {
        Kind::Directory => 0o755,
        Kind::Symlink => 0o777,
        _ => 0o644,
    };
    Ok(Attributes {
        mode: common.mode.unwrap_or(default_mode),
        uid: common.uid.unwrap_or(0),
        gid: common.gid.unwrap_or(0),
        mtime: common.mtime.unwrap_or_default(),
        xattrs: std::mem::take(&mut facts.xattrs),
        ..Attributes::default()
    })
}
