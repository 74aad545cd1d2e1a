//! Sources of an image: their names on the command line, and their addition to a tree.

use super::ext4;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::format::{Format, FormatArgs};
use crate::image::ImageArgs;
use crate::sandbox::command::Preparation;
use crate::text::shown;
use extant_archive::{Container, Input, Loader, ScanOptions, Selection, root_is_feigned};
use extant_engine::Error;
use extant_engine::device::{FileOptions, identify, image_spec};
use extant_qcow2::Qcow2Device;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Variables by which libraries that feign root let their programs know. They change the results of
/// functions of the C library alone.
const FEIGNED_ROOT: [&str; 3] = ["FAKEROOTKEY", "PSEUDO", "PSEUDO_PREFIX"];

/// Bytes that a pipe may hold without privileges.
const PIPE: usize = 1 << 20;

/// Bytes of a superblock's magic number in an image, and of that of most tar archives.
const MAGIC: Range<usize> = 1080..1082;
const TAR_MAGIC: Range<usize> = 257..262;

/// First bytes of most manifests.
const MANIFEST_MAGIC: &[u8; 6] = b"#mtree";

/// Kind of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    Tar,
    /// An archive whose kind is recognized.
    Archive,
    Layer,
    Image,
    /// An image in the format qcow2.
    Qcow2,
    Oci,
    Docker,
    Manifest,
}

/// Kinds by the prefixes that ask for them.
const PREFIXES: [(&str, Kind); 8] = [
    ("dir:", Kind::Directory),
    ("tar:", Kind::Tar),
    ("layer:", Kind::Layer),
    ("ext4:", Kind::Image),
    ("qcow2:", Kind::Qcow2),
    ("oci:", Kind::Oci),
    ("docker:", Kind::Docker),
    ("mtree:", Kind::Manifest),
];

/// A source of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    kind: Kind,
    path: PathBuf,
}

impl Source {
    /// Takes an argument: a path, with a prefix or not.
    pub fn of(argument: &OsStr) -> Source {
        let bytes = argument.as_bytes();
        for (prefix, kind) in PREFIXES {
            if let Some(rest) = bytes.strip_prefix(prefix.as_bytes()) {
                return Source { kind, path: OsStr::from_bytes(rest).into() };
            }
        }
        let path = PathBuf::from(argument);
        let kind = match (path.is_dir(), path.join("oci-layout").is_file()) {
            (true, true) => Kind::Oci,
            (true, false) => Kind::Directory,
            _ if is_image(&path) => Kind::Image,
            _ if is_manifest(&path) => Kind::Manifest,
            _ => Kind::Archive,
        };
        Source { kind, path }
    }

    /// Adds the source to a tree.
    ///
    /// # Errors
    /// Those of the source, with path, member and byte.
    pub fn add(
        &self,
        loader: &mut Loader<'_>,
        (scan, select): (&ScanOptions, &Selection),
        context: &Context,
    ) -> Result {
        let name = shown(self.path.as_os_str().as_bytes());
        let added = match self.kind {
            Kind::Directory => loader.add_directory(&self.path, scan),
            Kind::Tar => loader.add_tar(&name, self.input()?),
            Kind::Archive => loader.add_recognized_tar(&name, self.input()?),
            Kind::Layer => loader.add_layer(&name, self.input()?),
            Kind::Image | Kind::Qcow2 => {
                let added = ext4::add(loader.tree(), &self.image(), context);
                return added.map_err(|failure| self.advise(failure));
            }
            Kind::Oci => loader.add_oci(&name, self.container()?, select),
            Kind::Docker => loader.add_docker(&name, self.container()?, select),
            Kind::Manifest => loader.add_mtree(&name, self.input()?),
        };
        #[cfg(debug_assertions)]
        crate::planted::strike_from_tree(loader.tree());
        added.map_err(|error| self.failed(&error))
    }

    /// Returns whether the source is a directory of the host.
    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Lets a process in a sandbox read the source. Images are added to a sandbox by themselves.
    pub fn allow_in(&self, sandbox: Preparation) -> Preparation {
        match self.kind {
            Kind::Image | Kind::Qcow2 => sandbox,
            Kind::Directory => sandbox.scanning(&self.path),
            // Its lines name the files with the content, anywhere.
            Kind::Manifest => sandbox.reading_beneath(Path::new("/")),
            // Open already.
            _ if self.path == Path::new("-") => sandbox,
            _ if self.path.is_dir() => sandbox.reading_beneath(&self.path),
            _ => sandbox.reading(&self.path),
        }
    }

    /// Returns the image of a source that is one.
    pub fn as_image(&self) -> Option<ImageArgs> {
        matches!(self.kind, Kind::Image | Kind::Qcow2).then(|| self.image())
    }

    fn image(&self) -> ImageArgs {
        let is_qcow2 = self.kind == Kind::Qcow2;
        let format = if is_qcow2 { Format::Qcow2 } else { Format::Raw };
        let stored = FormatArgs { format, backing: Vec::new() };
        ImageArgs { stored, ..ImageArgs::of(&self.path) }
    }

    /// Names the source that reads a disk image, or the image that an overlay must become before.
    fn advise(&self, failure: Failure) -> Failure {
        let name = shown(self.path.as_os_str().as_bytes());
        let path = image_spec(&self.path).path;
        let Ok(file) = FileOptions::new(&path).read_only(true).open() else { return failure };
        if self.kind == Kind::Image {
            let found = identify(&file).filter(|found| found.name.contains("qcow2"));
            return found.map_or(failure, |found| {
                Failure::new(format_args!(
                    "{name} holds {}; the source qcow2:{name} reads it",
                    found.name
                ))
            });
        }
        match Qcow2Device::open_layer(Arc::new(file)) {
            Ok(layer) if layer.backing_name().is_some() => Failure::new(format_args!(
                "{name} is an overlay, whose base a source cannot name; `extant overlay flatten \
                 {name} OUT --backing BASE` makes an image of both"
            )),
            _ => failure,
        }
    }

    /// Refuses a directory whose owners would be those behind a feigned root: where that is
    /// announced, but its library is not loaded, as in a static program.
    ///
    /// # Errors
    /// With the remedy.
    pub fn check_owners(&self) -> Result {
        let set = FEIGNED_ROOT.iter().find(|name| std::env::var_os(name).is_some());
        match (self.kind, set) {
            (Kind::Directory, Some(variable)) if !root_is_feigned() => {
                Err(Failure::new(format_args!(
                    "{}: {variable} is set, and the owners that fakeroot or pseudo show are not \
                     seen here, since its library is not loaded; use a program that is not static, \
                     give --owner, or pass a tar archive that was made there",
                    shown(self.path.as_os_str().as_bytes())
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns the metadata of the file of an archive or a manifest. Images are
    /// read as they were when they were opened.
    pub fn file(&self) -> Option<Metadata> {
        if self.kind == Kind::Image {
            return None;
        }
        if self.path == Path::new("-") {
            let stdin = io::stdin().as_fd().try_clone_to_owned();
            return stdin.and_then(|stdin| File::from(stdin).metadata()).ok();
        }
        self.path.metadata().ok()
    }

    /// Returns the metadata of the file or the device that has the bytes of the source.
    pub fn storage(&self) -> Option<Metadata> {
        match self.kind {
            Kind::Image | Kind::Qcow2 => image_spec(&self.path).path.metadata().ok(),
            _ => self.file(),
        }
    }

    /// Returns whether the source is an archive that arrives as a stream.
    pub fn is_stream(&self) -> bool {
        let is_archive = matches!(self.kind, Kind::Tar | Kind::Archive | Kind::Layer);
        let is_file = || self.path.metadata().is_ok_and(|found| found.is_file());
        is_archive && (self.path == Path::new("-") || !is_file())
    }

    fn input(&self) -> Result<Input> {
        if self.path == Path::new("-") {
            // A larger pipe takes fewer changes of threads; it may be no pipe.
            let _ = rustix::pipe::fcntl_setpipe_size(io::stdin(), PIPE);
            return Ok(Input::Stream(Box::new(io::stdin())));
        }
        File::open(&self.path).and_then(Input::of).map_err(|error| {
            let name = self.path.as_os_str().as_bytes();
            let message = format!("{}: {error}", shown(name));
            Failure::of(&Error::Io(error), name, message)
        })
    }

    fn container(&self) -> Result<Container> {
        Ok(if self.path.is_dir() {
            Container::Directory(self.path.clone())
        } else {
            Container::Archive(self.input()?)
        })
    }

    fn failed(&self, error: &extant_archive::Error) -> Failure {
        let name = self.path.as_os_str().as_bytes();
        match error.io().and_then(io::Error::raw_os_error) {
            Some(errno) => {
                Failure::of(&Error::Io(io::Error::from_raw_os_error(errno)), name, error)
            }
            None => Failure::new(error),
        }
    }
}

/// Returns whether a file or a disk is an image, and no archive with bytes of one.
fn is_image(path: &Path) -> bool {
    let mut bytes = [0; MAGIC.end];
    let is_storage = path
        .metadata()
        .is_ok_and(|metadata| metadata.is_file() || metadata.file_type().is_block_device());
    let read = is_storage.then(|| File::open(path)?.read_exact_at(&mut bytes, 0));
    matches!(read, Some(Ok(()))) && bytes[MAGIC] == [0x53, 0xef] && &bytes[TAR_MAGIC] != b"ustar"
}

/// Returns whether a file begins as manifests do.
fn is_manifest(path: &Path) -> bool {
    let mut bytes = [0; MANIFEST_MAGIC.len()];
    let read = path.is_file().then(|| File::open(path)?.read_exact_at(&mut bytes, 0));
    matches!(read, Some(Ok(()))) && bytes == *MANIFEST_MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_testkit::kernel::Loop;
    use extant_testkit::{Image, Scratch};

    #[test]
    fn kinds_are_named_or_found() {
        let scratch = Scratch::new();
        let (plain, oci) = (scratch.dir("plain"), scratch.dir("oci"));
        let list = scratch.join("list");
        std::fs::write(&list, "#mtree\n").unwrap();
        std::fs::write(oci.join("oci-layout"), "{}").unwrap();
        let image = Image::mke2fs(1 << 20, &["-t", "ext4", "-O", "^has_journal"]);
        let disk = Loop::attach(image.path(), true);
        let join =
            |prefix: &str, path: &Path| [OsStr::new(prefix), path.as_os_str()].join(OsStr::new(""));
        for (argument, kind, path) in [
            (plain.clone().into_os_string(), Kind::Directory, plain.as_path()),
            (oci.clone().into_os_string(), Kind::Oci, &oci),
            (join("dir:", &oci), Kind::Directory, &oci),
            (image.path().into(), Kind::Image, image.path()),
            (disk.device().into(), Kind::Image, disk.device()),
            (list.clone().into_os_string(), Kind::Manifest, &list),
            ("a.tar".into(), Kind::Archive, Path::new("a.tar")),
            ("-".into(), Kind::Archive, Path::new("-")),
            ("tar:-".into(), Kind::Tar, Path::new("-")),
            ("layer:l.tar".into(), Kind::Layer, Path::new("l.tar")),
            ("ext4:i@p1".into(), Kind::Image, Path::new("i@p1")),
            ("qcow2:i@p1".into(), Kind::Qcow2, Path::new("i@p1")),
            ("docker:a:b".into(), Kind::Docker, Path::new("a:b")),
            ("mtree:-".into(), Kind::Manifest, Path::new("-")),
            ("./dir:a".into(), Kind::Archive, Path::new("./dir:a")),
        ] {
            assert_eq!(Source::of(&argument), Source { kind, path: path.into() });
        }
    }
}
