//! Images of directories, archives and container images.

use crate::call::detached;
use crate::failure::{Failure, Result};
use crate::make::{LayoutArgs, Made, path_bytes};
use extant::Timestamp;
use extant::device::{FileDevice, FileDeviceOptions};
use extant::mkfs::Zeroing;
use extant_archive::{Container, Input, Loader, Platform, ScanOptions, Selection, root_is_feigned};
use extant_image::{
    Attributes, BuildOptions, EntryKind, FileContent, FreeSpace, ImageFacts, ImageSize, Tree,
};
use pyo3::prelude::*;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Paths in the image and contents of files; directories have none.
type Files = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// A source: its kind, and a path on the host or files in memory.
#[derive(FromPyObject)]
pub(crate) struct SourceArgs(String, PathBuf, Files);

/// Options of a build.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct BuildArgs {
    output: PathBuf,
    sources: Vec<SourceArgs>,
    /// Bytes; `None` for the smallest size with `free`.
    size: Option<u64>,
    free: u64,
    free_percent: Option<f64>,
    inodes_free: u32,
    owner: Option<(u32, u32)>,
    exclude: Vec<Vec<u8>>,
    one_file_system: bool,
    sparse: bool,
    image: Option<String>,
    platform: Option<String>,
    threads: usize,
    overwrite: bool,
}

/// Builds an image, which appears at its path when it is complete.
#[pyfunction]
pub(crate) fn build(py: Python<'_>, args: BuildArgs, layout: LayoutArgs) -> PyResult<Made> {
    let facts = detached(py, || args.build(&layout))?;
    Ok((
        facts.bytes,
        facts.block_size,
        facts.blocks,
        facts.free_blocks,
        facts.inodes,
        facts.free_inodes,
        facts.uuid,
    ))
}

impl BuildArgs {
    fn build(&self, layout: &LayoutArgs) -> Result<ImageFacts> {
        let of_output = |failure: Failure| failure.at(path_bytes(&self.output));
        let _held = self.hold_replaced().map_err(of_output)?;
        let mut options = self.options(layout)?;
        let output = Output::begin(&self.output).map_err(|error| of_output(error.into()))?;
        let mut tree = self.tree(layout, output.identity()?)?;
        if self.sparse {
            tree.find_holes(options.threads)?;
        }
        options.mkfs.seed = Some(layout.seed.unwrap_or_else(|| tree.seed()));
        let plan = extant_image::plan(&tree, &options)?;
        let device = output.device(plan.facts().bytes).map_err(|error| of_output(error.into()))?;
        let facts = plan.write_to(&device)?;
        output.finish(self.overwrite).map_err(|error| of_output(error.into()))?;
        Ok(facts)
    }

    /// Holds an image that is replaced, so that no program writes to it meanwhile.
    fn hold_replaced(&self) -> Result<Option<FileDevice>> {
        match std::fs::symlink_metadata(&self.output) {
            Err(_) => Ok(None),
            Ok(_) if !self.overwrite => Err(io::Error::from_raw_os_error(EEXIST).into()),
            Ok(found) if found.is_file() => {
                match FileDeviceOptions::new(&self.output).read_only(true).open() {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(error.into()),
                    opened => Ok(opened.ok()),
                }
            }
            Ok(_) => Err(Failure::invalid("the output exists and is no regular file")),
        }
    }

    fn options(&self, layout: &LayoutArgs) -> Result<BuildOptions> {
        let mut options = BuildOptions::default();
        options.mkfs = layout.options()?;
        options.mkfs.time = Some(Timestamp::new(layout.time.unwrap_or(0), 0));
        // The output is a new file.
        options.mkfs.zeroing = Zeroing::Known;
        options.threads = self.threads;
        let free = self.free_percent.map_or(FreeSpace::Bytes(self.free), FreeSpace::Percent);
        options.size = match self.size {
            Some(bytes) => ImageSize::Bytes(bytes),
            None => ImageSize::Exact { free, inodes_free: self.inodes_free },
        };
        Ok(options)
    }

    /// Reads all sources. `output` is the file that a directory among them may hold.
    fn tree(&self, layout: &LayoutArgs, output: (u64, u64)) -> Result<Tree> {
        let mut scan = ScanOptions::default();
        self.exclude.iter().for_each(|pattern| scan.exclude.add(pattern));
        scan.one_file_system = self.one_file_system;
        scan.through_library = root_is_feigned();
        let replaced = std::fs::metadata(&self.output).ok();
        scan.outputs.push(output);
        scan.outputs.extend(replaced.map(|found| (found.dev(), found.ino())));
        let select = self.selection()?;
        let mut tree = Tree::new();
        let mut loader = Loader::new(&mut tree, std::env::temp_dir());
        for source in &self.sources {
            source.add(&mut loader, &scan, &select)?;
        }
        loader.exclude(&scan.exclude)?;
        if let Some((uid, gid)) = self.owner {
            tree.set_owners(uid, gid);
        }
        if let Some(sec) = layout.time {
            tree.limit_times(Timestamp::new(sec, 0));
        }
        Ok(tree)
    }

    fn selection(&self) -> Result<Selection> {
        let platform = self.platform.as_ref().map(|text| {
            let wrong = || Failure::invalid("a platform is OS/ARCH, as in linux/amd64");
            Platform::parse(text).ok_or_else(wrong)
        });
        Ok(Selection { image: self.image.clone(), platform: platform.transpose()? })
    }
}

impl SourceArgs {
    fn add(&self, loader: &mut Loader<'_>, scan: &ScanOptions, select: &Selection) -> Result<()> {
        let SourceArgs(kind, path, files) = self;
        let name = path.display().to_string();
        let of_source = |failure: Failure| failure.at(path_bytes(path));
        let input = || {
            let input = File::open(path).and_then(Input::of);
            input.map_err(|error| of_source(error.into()))
        };
        let container = || {
            let is_dir = path.is_dir();
            let archive = || input().map(Container::Archive);
            if is_dir { Ok(Container::Directory(path.clone())) } else { archive() }
        };
        let added = match &**kind {
            "files" => return add_files(loader.tree(), files),
            "dir" => loader.add_directory(path, scan),
            "tar" => loader.add_tar(&name, input()?),
            "archive" => loader.add_recognized_tar(&name, input()?),
            "layer" => loader.add_layer(&name, input()?),
            "oci" => loader.add_oci(&name, container()?, select),
            "docker" => loader.add_docker(&name, container()?, select),
            "mtree" => loader.add_mtree(&name, input()?),
            _ => {
                let text = format!(
                    "{kind:?} is no kind of source: dir, tar, archive, layer, oci, docker or mtree"
                );
                return Err(Failure::invalid(text));
            }
        };
        added.map_err(|error| of_source(error.into()))
    }
}

fn add_files(tree: &mut Tree, files: &Files) -> Result<()> {
    for (path, content) in files {
        let kind = content.as_ref().map_or(EntryKind::Directory, |content| {
            EntryKind::File(FileContent::Bytes(content.clone()))
        });
        let mode = if content.is_some() { 0o644 } else { 0o755 };
        tree.add(path, &Attributes { mode, ..Attributes::default() }, kind)?;
    }
    Ok(())
}

const EEXIST: i32 = 17;

/// A file that gets its name when it is complete.
struct Output<'a> {
    file: tempfile::NamedTempFile,
    path: &'a Path,
}

impl<'a> Output<'a> {
    fn begin(path: &'a Path) -> io::Result<Output<'a>> {
        // Less the umask.
        let permissions = Permissions::from_mode(0o666);
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(".extant-").permissions(permissions);
        Ok(Output { file: builder.tempfile_in(parent(path))?, path })
    }

    /// Returns device and inode number.
    fn identity(&self) -> Result<(u64, u64)> {
        let found = self.file.as_file().metadata()?;
        Ok((found.dev(), found.ino()))
    }

    fn device(&self, len: u64) -> io::Result<FileDevice> {
        self.file.as_file().set_len(len)?;
        FileDevice::of_file(self.file.as_file().try_clone()?)
    }

    /// Gives the file its name, durably.
    fn finish(self, overwrite: bool) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        let named = if overwrite {
            self.file.persist(self.path)
        } else {
            self.file.persist_noclobber(self.path)
        };
        named.map_err(|error| error.error)?;
        File::open(parent(self.path))?.sync_all()
    }
}

/// Returns the directory of a file.
fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}
