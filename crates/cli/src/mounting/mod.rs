//! Mounting: the options, the process that serves, the table of mounts.

pub mod anew;
pub mod announce;
pub mod asked;
pub mod found;
pub mod handover;
pub mod hosted;
pub mod keep;
pub mod offer;
pub mod options;
mod pace;
pub mod same_image;
pub mod serve;
pub mod spawn;
mod succeed;
pub mod upgrade;
pub mod users;

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::format;
use crate::json;
use crate::table::{self, HeldMount, Mount};
use crate::text::shown;
use extant_engine::device::{ImageSpec, image_spec, is_remote};
use extant_fuse::MountIdentity;
use extant_fuse::control::READ_ONLY;
use options::{Options, is_of_access_times, is_shown_by_table};
use rustix::io::Errno;
use same_image::ImageFile;
use serde_json::{Map, Value};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How long a mount waits for an image in use. One that is mounted is waited for only where that
/// was asked for; else it is the last server that is to finish, since `umount` returns before that
/// has written everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Patience {
    /// Seconds.
    #[default]
    Short,
    /// A minute: no user waits at a terminal.
    Helper,
    /// An hour.
    Long,
}

/// Image, directory and options of a mount.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The image as the table of mounts shall show it: an absolute path.
    pub image: PathBuf,
    /// The directory.
    pub dir: PathBuf,
    /// How.
    pub options: Options,
    /// The same as the caller gave them; those of a remount after those of the mount that is there.
    pub lists: Vec<String>,
    /// The mount that is there has files besides its image, or a format, which a remount does not
    /// name.
    pub lacks_files: bool,
    /// The type shows as `fuse.SUBTYPE`, that of a disk that the kernel claims as
    /// `fuseblk.SUBTYPE`.
    pub subtype: String,
    /// Where the server's messages go.
    pub log: Option<PathBuf>,
    /// Targets whose traces go there, too.
    pub traces: Vec<String>,
    /// Where the machine's log takes messages.
    pub syslog: PathBuf,
    /// How long to wait for an image in use.
    pub patience: Patience,
    /// How much is told beyond results: 0 to 2.
    pub verbose: u8,
    /// A mount of the image is in the same place whose server is gone: it is taken away just before
    /// the new one is made.
    pub replaces: bool,
    /// A mount of the image is in the same place whose server hands it over.
    pub succeeds: bool,
    /// That mount, for its keeper.
    pub adopts: Option<MountIdentity>,
    /// The keeper of the mount has started this server: its sockets are standard input and output.
    pub kept: bool,
    /// The file of the image must be this one.
    pub image_file: Option<ImageFile>,
    /// The user that mounts, if that is not the one of this process.
    pub owner: Option<u32>,
}

impl Plan {
    /// Puts the options of the mount that is there before the plan's own: those of its server, and
    /// those that may have changed since, as the table of mounts shows them.
    ///
    /// # Errors
    /// The plan names other owners or modes, which only a new mount can show.
    fn inherit(&mut self, held: &HeldMount) -> Result {
        let theirs = served_options(held).unwrap_or_default();
        let names = |list: &str| list.split(',').any(options::names_file);
        self.lacks_files = names(&theirs) && !self.lists.iter().any(|list| names(list));
        // A server that was taken over must not choose the power of the next one.
        let kept: Vec<&str> = theirs
            .split(',')
            .filter(|word| !is_shown_by_table(word) && !options::gives_power(word))
            .collect();
        // The kernel prefers some of these to others, however late they come.
        let names_times =
            self.lists.iter().flat_map(|list| list.split(',')).any(is_of_access_times);
        let shown = shown_options(held.mount());
        let words = shown.split(',').filter(|word| !(names_times && is_of_access_times(word)));
        let others = if held.mount().allow_other { "allow_other" } else { "no_allow_other" };
        let words = words.chain([others]);
        let there = [kept.join(","), words.collect::<Vec<_>>().join(",")];
        let view = Options::parse(there.iter().map(String::as_str)).map(|options| options.view);
        self.lists.splice(0..0, there);
        let threads = self.options.threads;
        let lists = self.lists.iter().map(String::as_str);
        self.options = Options::parse(lists).map_err(Failure::usage)?;
        self.options.threads = threads;
        if view.is_ok_and(|view| view != self.options.view) {
            let dir = self.dir.display();
            return Err(Failure::new(format_args!(
                "{dir}: a remount cannot change the owners and modes that it shows; unmount it"
            )));
        }
        Ok(())
    }

    /// Refuses options that do not fit the image.
    ///
    /// # Errors
    /// The image is a network block device, whose server cannot be started again or be a service.
    pub fn check(&self) -> Result {
        let name = match &self.options {
            options if options.restart => "restart",
            options if options.service.is_some() => "service",
            _ => return Ok(()),
        };
        if is_remote(&image_spec(&self.image).path) {
            return Err(Failure::usage(format_args!(
                "mount option {name} is for files and disks, not for network block devices"
            )));
        }
        Ok(())
    }

    /// Takes the options that the mount may have got since it was made. The file of the image
    /// decides about its protection, as before.
    ///
    /// # Errors
    /// The mount is gone.
    fn follow(&mut self, held: &HeldMount) -> Result {
        self.lists.push(shown_options(held.mount()));
        let threads = self.options.threads;
        let options = Options::parse(self.lists.iter().map(String::as_str));
        self.options = options.map_err(Failure::usage)?.for_image(&self.image);
        self.options.threads = threads;
        Ok(())
    }

    /// Returns the mounts of the image, without a dead one that is replaced.
    pub fn served(&self) -> Vec<Mount> {
        let all = table::served(&self.image, &self.subtype).into_iter();
        all.filter(|mount| !(self.replaces && mount.dir == self.dir)).collect()
    }

    /// Returns the image with its format and its backing files.
    pub fn spec(&self) -> ImageSpec {
        format::spec(&self.image, self.options.format, &self.options.backing)
    }

    /// Prints the JSON document of a mount that is there, where one is wanted.
    pub fn tell(&self, context: &Context) -> Result {
        if !context.json {
            return Ok(());
        }
        let mut document = Map::new();
        json::put_bytes(&mut document, "image", self.image.as_os_str().as_bytes());
        json::put_bytes(&mut document, "dir", self.dir.as_os_str().as_bytes());
        // Unknown if the mount has ended since.
        let mount = HeldMount::of(&self.dir).ok();
        let mount =
            mount.as_ref().map(HeldMount::mount).filter(|mount| mount.is_ours(&self.subtype));
        document.insert("type".into(), mount.map(table::Mount::shown_type).into());
        context.document(&document.into())
    }
}

/// Returns the options of the mount itself, as the table of mounts shows them, with those that only
/// the lack of others shows. A mount anew needs them.
fn shown_options(mount: &Mount) -> String {
    let mut shown = mount.options();
    for (clear, set) in [("suid", "nosuid"), ("dev", "nodev")] {
        if !shown.split(',').any(|word| word == set) {
            shown.push(',');
            shown.push_str(clear);
        }
    }
    shown
}

/// Result of a change of a mount's options.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remounted {
    /// It has them.
    Done,
    /// It was to become writable, and cannot: its image was opened for reading.
    OpenedForReading,
}

/// Changes the options of an existing mount, which keeps those that the plan does not name: the
/// plan's get them. The kernel refuses forbidden requests itself. The server is told when the mount
/// has become read-only, and makes everything durable. An image that was opened for reading stays
/// so.
///
/// # Errors
/// Fails if `dir` is not a mount of this program by the user of this process. Otherwise a user
/// could remove `nosuid` from a mount whose server offers set-user-id programs. Returns the errors
/// of mount(2) too.
pub fn remount(plan: &mut Plan) -> Result<Remounted> {
    let dir = plan.dir.display();
    let held = HeldMount::of(&plan.dir).at_path(plan.dir.as_os_str().as_bytes())?;
    if !held.mount().is_ours(&plan.subtype) {
        return Err(Failure::new(format_args!(
            "{dir}: cannot remount it: another user, or another program, made this mount; unmount \
            it and mount the image"
        )));
    }
    plan.inherit(&held)?;
    if !plan.options.read_only
        && let Err(e) = extant_fuse::control::set(&held.path(), READ_ONLY, 0)
        && e.raw_os_error() == Some(Errno::ROFS.raw_os_error())
    {
        return Ok(Remounted::OpenedForReading);
    }
    rustix::mount::mount_remount(held.path(), plan.options.mount_flags(), "")
        .at_path(plan.dir.as_os_str().as_bytes())?;
    if plan.options.read_only {
        // After the kernel has written its cache. An fsync of the root directory would not do: it
        // commits names, and leaves content of small files waiting.
        extant_fuse::control::set(&held.path(), READ_ONLY, 1)
            .at_path(plan.dir.as_os_str().as_bytes())?;
    }
    Ok(Remounted::Done)
}

/// Returns the options with which a mount's server was started; `None` if it does not answer.
pub fn served_options(held: &HeldMount) -> Option<String> {
    stats(held)?.get("options")?.as_str().map(String::from)
}

/// Returns the number of a mount's server, as it tells it.
fn served_process(held: &HeldMount) -> Option<u32> {
    stats(held)?.pointer("/server/process")?.as_u64()?.try_into().ok()
}

fn stats(held: &HeldMount) -> Option<Value> {
    let told = extant_fuse::control::stats(&held.path()).ok()?;
    serde_json::from_slice(&told).ok()
}

/// Returns the directory to mount an image on, and whether a mount of it is there whose server is
/// gone and that the new one replaces.
///
/// # Errors
/// It is no directory, or another dead mount is there.
pub fn place(
    dir: &Path,
    image: &Path,
    options: &Options,
    subtype: &str,
) -> Result<(PathBuf, bool)> {
    match table::mount_point(dir).ok().filter(|_| options.restart) {
        Some(there) if is_dead_mount_of(&there, image, subtype) => Ok((there, true)),
        _ => Ok((directory(dir)?, false)),
    }
}

fn is_dead_mount_of(dir: &Path, image: &Path, subtype: &str) -> bool {
    HeldMount::of(dir).is_ok_and(|held| {
        let mount = held.mount();
        mount.is_ours(subtype) && mount.source == image && mount.whole && held.is_dead()
    })
}

/// Returns the directory to mount on, without symlinks on the way.
pub fn directory(dir: &Path) -> Result<PathBuf> {
    let name = shown(dir.as_os_str().as_bytes());
    let found = dir.canonicalize().and_then(|path| Ok((std::fs::metadata(&path)?, path)));
    let is_dead = |dir: &Path| HeldMount::of(dir).is_ok_and(|held| held.is_dead());
    match found {
        Ok((_, path)) if is_dead(&path) => Err(dead(&name)),
        Ok((meta, path)) if meta.is_dir() => Ok(path),
        Ok(_) => Err(Failure::new(format_args!("{name}: not a directory"))),
        Err(e) if e.kind() == ErrorKind::NotConnected => Err(dead(&name)),
        Err(e) => Err(Failure::new(format_args!("{name}: {e}"))),
    }
}

fn dead(name: &str) -> Failure {
    Failure::new(format_args!("{name}: a mount whose server is gone is there; umount it first"))
}
