//! `extant build`: an image of directories, archives and images of containers.

use crate::build::attributes::XattrNames;
use crate::build::mode::ModeChanges;
use crate::build::progress::{Arriving, Shown};
use crate::build::size::SizeArgs;
use crate::build::source::Source;
use crate::build::sources::Sources;
use crate::build::storage::shares_bytes;
use crate::build::target::{FileIdentity, Target};
use crate::build::verity::{HashTree, TreePlace};
use crate::context::Context;
use crate::copy::owner::{IdMap, Owner, parse_owner};
use crate::failure::{Failure, Result};
use crate::format::Format;
use crate::json;
use crate::layout::{LayoutArgs, creation_time, epoch};
use crate::text::{count, shown, size, uuid};
use extant_archive::{Loader, Patterns, Platform, ScanOptions, Selection, root_is_feigned};
use extant_engine::device::DeviceError;
use extant_engine::mkfs::Zeroing;
use extant_engine::{Error, Timestamp};
use extant_image::{
    Attributes, BuildOptions, ContentSink, ContentStream, EntryKind, ImageFacts, ImagePlan, Tree,
};
use serde_json::{Map, json};
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// Make an image of directories, archives and container images.
///
/// SOURCE is a directory, a tar archive (also compressed by gzip, zstd, xz or bzip2), an image, an
/// OCI layout, or - for an archive on standard input. A prefix names the kind: dir:, tar:, layer:
/// (an archive with whiteouts), ext4: (an image), qcow2: (an image in this format), oci:, docker:
/// (an archive of `docker save`), mtree: (a manifest of files).
/// Later sources are laid over earlier ones. The same sources give the same bytes, with any number
/// of threads. An existing file OUT is replaced when the image is complete, one
/// behind a symlink too. A block device is zeroed and written in place; - is standard output.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// New image file, block device, or - for standard output
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Directories, archives, layouts
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<OsString>,
    #[command(flatten)]
    size: SizeArgs,
    /// Format of OUT; qcow2 for a regular file or standard output
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
    /// Least length of a raw file OUT in bytes, with zeroes behind the image: mke2fs cuts no file
    #[arg(long, hide = true, value_name = "BYTES", default_value_t = 0)]
    file_length: u64,
    /// Print the size in bytes, and write nothing
    #[arg(long)]
    estimate: bool,
    /// Append a hash tree of dm-verity, and print its root hash and parameters
    #[arg(long)]
    verity: bool,
    /// Overwrite a file system, a partition table or the like on a block device OUT without asking
    #[arg(short = 'F', long)]
    force: bool,
    /// Seed of UUID and hash seed [default: from names, attributes and sizes]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Owner of all files, as numbers
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    owner: Option<Owner>,
    /// Map owners of files and in ACLs: COUNT numbers from FROM on become those from TO on
    #[arg(long, value_name = "FROM:TO[:COUNT]", value_parser = IdMap::parse)]
    #[arg(conflicts_with = "owner")]
    map_uid: Vec<IdMap>,
    /// Map groups likewise
    #[arg(long, value_name = "FROM:TO[:COUNT]", value_parser = IdMap::parse)]
    #[arg(conflicts_with = "owner")]
    map_gid: Vec<IdMap>,
    /// Change permissions of all files but symlinks, as chmod(1) does: u=rwX,go-w, or octal digits
    #[arg(long, value_name = "CHANGES", value_parser = ModeChanges::parse)]
    mode: Option<ModeChanges>,
    /// Keep the extended attributes, ACLs among them, whose names match a pattern with * and ?,
    /// and leave out those of a pattern with ^ before it [default: *]
    #[arg(long, value_name = "PATTERN,...")]
    xattrs: Vec<OsString>,
    /// Leave out entries by a pattern with * and ?: of a name, or of a whole path if it has a /
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<OsString>,
    /// Leave directories empty that are on other file systems than their source
    #[arg(long)]
    one_file_system: bool,
    /// Make holes of zeroes in files; reads all content once more
    #[arg(long)]
    sparse: bool,
    /// Name or digest of the container image, where a source has several
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// Platform of the container image, where a source has several
    #[arg(long, value_name = "OS/ARCH", value_parser = parse_platform)]
    platform: Option<Platform>,
    #[command(flatten)]
    layout: LayoutArgs,
}

/// An image that was made, or planned.
struct Made {
    facts: ImageFacts,
    entries: u64,
    hashes: Option<HashTree>,
    /// Root hash, if the image was written with a hash tree.
    root: Option<String>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let mut sources = Sources::of(&args.sources);
    sources.leave_feigned_root(context);
    args.check_sources(&sources)?;
    let mut target = args.target(context)?;
    sources.contain(target.as_mut(), (&args.out, args.format), context)?;
    let mut target = target.map(Target::connect).transpose()?;
    let mut options = BuildOptions::default();
    if args.layout.journal_device().is_some() {
        let text = "-J device=: a built image has its journal inside; `extant tune \
                    --journal-device` moves it";
        return Err(Failure::usage(text));
    }
    options.mkfs = args.layout.options()?;
    options.size = args.size.size()?;
    options.threads = context.threads.unwrap_or(0);
    let epoch = epoch()?.map(|sec| Timestamp { sec, nsec: 0 });
    let time = creation_time()?.map(|sec| Timestamp { sec, nsec: 0 });
    options.mkfs.time = Some(time.unwrap_or_default());
    // The target reads as zeroes.
    options.mkfs.zeroing = Zeroing::Known;
    if let Some(bytes) = args.streamed(&sources, &options)?
        && let Some(target) = target.take()
    {
        let made = args.stream((target, bytes), sources, options, (epoch, context))?;
        return args.report(context, &made);
    }
    let mut tree = args.tree(sources, epoch, None, context)?;
    if args.sparse {
        tree.find_holes(options.threads).map_err(|error| args.failed(error))?;
    }
    options.mkfs.seed = Some(args.seed_of(&tree));
    let plan = extant_image::plan(&tree, &options).map_err(|error| args.failed(error))?;
    let hashes = args.hashes(&plan.facts(), options.threads)?;
    let write = |target| args.write(target, (&plan, hashes.as_ref()), context);
    let root = target.map(write).transpose()?.flatten();
    let made = Made { facts: plan.facts(), entries: tree.len(), hashes, root };
    args.report(context, &made)
}

impl Args {
    fn name(&self) -> String {
        shown(self.out.as_os_str().as_bytes())
    }

    /// Refuses an output that is a source, too: it would be read while it is replaced.
    fn check_sources(&self, sources: &Sources) -> Result {
        if self.estimate {
            return Ok(());
        }
        let Ok(out) = std::fs::metadata(&self.out) else { return Ok(()) };
        let is_same = |found: Metadata| (found.dev(), found.ino()) == (out.dev(), out.ino());
        let mut sources = sources.iter();
        let is_source = if out.file_type().is_block_device() {
            sources.any(|source| source.storage().is_some_and(|found| shares_bytes(&out, &found)))
        } else {
            out.is_file() && sources.any(|source| source.file().is_some_and(is_same))
        };
        if is_source {
            return Err(Failure::usage(format_args!(
                "{} is a source, too, or shares bytes with one; give the image another place",
                self.name()
            )));
        }
        Ok(())
    }

    /// Takes the place of the image, unless only its size is wanted.
    fn target(&self, context: &Context) -> Result<Option<Target<'_>>> {
        if self.estimate {
            return Ok(None);
        }
        let target = Target::take(&self.out, self.force, context)?;
        if self.verity && matches!(target, Target::Stdout(_)) {
            return Err(Failure::usage("--verity prints a root hash where the image would go"));
        }
        Ok(Some(target))
    }

    fn seed_of(&self, tree: &Tree) -> u64 {
        self.seed.unwrap_or_else(|| tree.seed())
    }

    /// Returns the bytes of the image if content goes there as it arrives.
    fn streamed(&self, sources: &Sources, options: &BuildOptions) -> Result<Option<u64>> {
        let rereads = self.sparse || self.verity || self.estimate;
        if rereads || !sources.iter().any(Source::is_stream) {
            return Ok(None);
        }
        ContentStream::image_bytes(options).map_err(|error| self.failed(error))
    }

    /// Makes an image to which content goes as it arrives.
    fn stream(
        &self,
        (target, bytes): (Target<'_>, u64),
        sources: Sources,
        mut options: BuildOptions,
        (epoch, context): (Option<Timestamp>, &Context),
    ) -> Result<Made> {
        let len = bytes.max(self.file_length);
        target.write(self.format, len, context, |device, own_file| {
            let failed = |error| self.failed(error);
            let mut image = ContentStream::new(device, &options).map_err(failed)?;
            let shown = Shown::new(context, 0, None);
            let mut arriving = Arriving(&mut image, &shown);
            let tree = self.tree(sources, epoch, Some((&mut arriving, own_file)), context);
            shown.end();
            let tree = tree?;
            options.mkfs.seed = Some(self.seed_of(&tree));
            let plan = image.plan(&tree, &options).map_err(failed)?;
            let facts = plan.write_to(device).map_err(failed)?;
            Ok(Made { facts, entries: tree.len(), hashes: None, root: None })
        })
    }

    /// Reads all sources. Content of streams goes to an image, if that is given with the identity
    /// of its file.
    fn tree(
        &self,
        mut sources: Sources,
        epoch: Option<Timestamp>,
        image: Option<(&mut dyn ContentSink, Option<FileIdentity>)>,
        context: &Context,
    ) -> Result<Tree> {
        let mut scan = ScanOptions::default();
        self.exclude.iter().for_each(|pattern| scan.exclude.add(pattern.as_bytes()));
        scan.one_file_system = self.one_file_system;
        scan.through_library = root_is_feigned();
        let output = std::fs::metadata(&self.out).ok().filter(|data| data.is_file());
        scan.outputs.extend(output.map(|data| (data.dev(), data.ino())));
        let select = Selection { image: self.image.clone(), platform: self.platform.clone() };
        let mut tree = Tree::new();
        self.filter_xattrs(&mut tree);
        let mut loader = Loader::new(&mut tree, std::env::temp_dir());
        sources.spool_into(&mut loader);
        if let Some((image, own_file)) = image {
            // It may have a name in a directory that is read.
            scan.outputs.extend(own_file);
            loader.stream_to(image);
        }
        for source in sources.iter() {
            if self.owner.is_none() {
                source.check_owners()?;
            }
            source.add(&mut loader, (&scan, &select), context)?;
        }
        exclude(&mut loader, &scan.exclude)?;
        if let Some(Owner { uid, gid }) = self.owner {
            tree.set_owners(uid, gid);
        }
        if !(self.map_uid.is_empty() && self.map_gid.is_empty()) {
            let maps = [&self.map_uid, &self.map_gid];
            let [uid, gid] = maps.map(|maps| |id| IdMap::apply(maps, id));
            tree.map_owners(uid, gid).map_err(Failure::new)?;
        }
        if let Some(changes) = &self.mode {
            let change = |mode, is_directory| changes.apply(mode, is_directory);
            tree.map_modes(change).map_err(Failure::new)?;
        }
        if let (Some((uid, gid)), Some(root)) = (self.layout.root_owner()?, tree.entry(b"")) {
            let attributes = Attributes { uid, gid, ..root.attributes };
            let set = tree.add(b"", &attributes, EntryKind::Directory);
            set.map_err(|error| self.failed(error))?;
        }
        if let Some(epoch) = epoch {
            tree.limit_times(epoch);
        }
        Ok(tree)
    }

    /// Chooses the extended attributes that the image gets.
    fn filter_xattrs(&self, tree: &mut Tree) {
        let names = XattrNames::of(self.xattrs.iter().map(OsString::as_os_str));
        let leaves_all_out = self.layout.leaves_xattrs_out();
        if leaves_all_out || !names.keeps_all() {
            tree.filter_xattrs(move |name| !leaves_all_out && names.keeps(name));
        }
    }

    /// Writes the image. Returns the root hash of its hash tree.
    fn write(
        &self,
        target: Target<'_>,
        (plan, hashes): (&ImagePlan<'_>, Option<&HashTree>),
        context: &Context,
    ) -> Result<Option<String>> {
        let len = hashes.map_or(plan.facts().bytes, HashTree::end).max(self.file_length);
        target.write(self.format, len, context, |device, _| {
            let (bytes, files) = if context.shows_progress() { plan.content() } else { (0, 0) };
            let shown = Shown::new(context, bytes, Some(files));
            let written = plan.write_with(device, &|bytes, files| shown.add(bytes, files));
            shown.end();
            written.map_err(|error| self.failed(error))?;
            let stop = AtomicBool::new(false);
            let root = hashes.map(|hashes| hashes.write(device, device, &stop));
            root.transpose().map_err(|error| self.failed(error))
        })
    }

    /// Plans the hash tree.
    fn hashes(&self, facts: &ImageFacts, threads: usize) -> Result<Option<HashTree>> {
        let size = (facts.bytes, facts.block_size);
        let plan = || HashTree::plan(size, facts.uuid, TreePlace::Behind, threads);
        self.verity.then(plan).transpose()
    }

    fn failed(&self, error: extant_image::Error) -> Failure {
        use extant_image::Error as Image;
        let name = self.name();
        let name_bytes = self.out.as_os_str().as_bytes();
        match error {
            Image::Layout(extant_image::mkfs::Error::Invalid(why)) => Failure::usage(why),
            // The device is known by a number only.
            Image::Layout(extant_image::mkfs::Error::Io(error)) => {
                let inner = error.get_ref().and_then(|e| e.downcast_ref::<DeviceError>());
                let errno = inner.and_then(|inner| inner.cause.raw_os_error());
                let error = errno.map_or(error, io::Error::from_raw_os_error);
                let message = format!("{name}: {error}");
                Failure::of(&Error::Io(error), name_bytes, message)
            }
            other => Failure::new(format_args!("{name}: {other}")),
        }
    }

    fn report(&self, context: &Context, made: &Made) -> Result {
        let Made { facts, entries, hashes, root } = made;
        if context.json {
            return context.document(&self.document(made).into());
        }
        if self.estimate {
            let mut out = io::stdout().lock();
            writeln!(out, "{}", hashes.as_ref().map_or(facts.bytes, HashTree::end))?;
            return Ok(out.flush()?);
        }
        if let (Some(hashes), Some(root)) = (hashes, root) {
            hashes.print(root)?;
        }
        context.note(format_args!(
            "{}: made an image of {} ({} of {}, {} free; {}, {} free) with {}, UUID {}",
            self.name(),
            size(facts.bytes),
            count(facts.blocks, "block"),
            size(facts.block_size.into()),
            facts.free_blocks,
            count(facts.inodes.into(), "inode"),
            facts.free_inodes,
            count(*entries, "name"),
            uuid(facts.uuid),
        ));
        Ok(())
    }

    fn document(&self, made: &Made) -> Map<String, serde_json::Value> {
        let Made { facts, entries, hashes, root } = made;
        let mut document = Map::new();
        json::put_bytes(&mut document, "image", self.out.as_os_str().as_bytes());
        let facts = json!({
            "written": !self.estimate,
            "bytes": facts.bytes,
            "block_size": facts.block_size,
            "blocks": facts.blocks,
            "free_blocks": facts.free_blocks,
            "inodes": facts.inodes,
            "free_inodes": facts.free_inodes,
            "entries": entries,
            "uuid": uuid(facts.uuid),
        });
        document.extend(facts.as_object().cloned().unwrap_or_default());
        if let (Some(hashes), Some(root)) = (hashes, root) {
            document.insert("verity".into(), hashes.document(root));
        }
        document
    }
}

fn exclude(loader: &mut Loader<'_>, patterns: &Patterns) -> Result {
    if patterns.is_empty() {
        return Ok(());
    }
    loader.exclude(patterns).map_err(Failure::new)
}

fn parse_platform(text: &str) -> Result<Platform, String> {
    Platform::parse(text).ok_or_else(|| "a platform is OS/ARCH, as in linux/amd64".into())
}
