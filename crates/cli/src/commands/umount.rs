//! `extant umount`: ends mounts, and waits until the image is closed.

use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::holders::{self, Process};
use crate::json;
use crate::mounting::anew::{self, Release};
use crate::mounting::asked::{Served, ask};
use crate::mounting::found::{Found, find};
use crate::mounting::serve::was_in_use;
use crate::mounting::users::{self, MountUsers};
use crate::sandbox::command::{Images, Preparation};
use crate::table::{self, HeldMount, Mount, mount_point};
use crate::text::shown;
use extant_engine::device::{
    BlockDevice, FileOptions, ImageFormat, ImageSpec, Place, SignatureKind, image_spec, is_remote,
};
use extant_engine::format::Superblock;
use extant_engine::{Error, Fs, OpenOptions};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_fuse::{MountIdentity, Unmounter};
use extant_qcow2::Qcow2Device;
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde_json::{Map, Value};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Unmount an image, and wait until its server has written everything and closed it
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where it is mounted, or the image: then it is unmounted at all places
    #[arg(value_name = "DIR|IMAGE")]
    place: PathBuf,
    /// Detach a mount in use, without a wait: it disappears at once, and ends with its last user
    #[arg(short, long)]
    lazy: bool,
    /// Detach the mount only if its server is gone; otherwise nothing is done
    #[arg(long, conflicts_with = "lazy")]
    dead: bool,
}

/// How long a mount may be in use: programs look at it in passing, `extant mounts` for example.
const PASSING: Duration = Duration::from_millis(500);

/// How often it is looked whether it still is.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    if args.dead {
        return detach_dead(&args.place, context);
    }
    let mounts = chosen(&args.place)?;
    let Some(first) = mounts.first().cloned() else { return Err(nothing(&args.place)) };
    let server = users::server_of(first.device);
    // Its format is known to the server alone.
    let served = if args.lazy || !first.is_writable() { Served::Unknown } else { ask(&first) };
    let lost = mounts
        .iter()
        .map(|mount| unmount(mount, args.lazy))
        .collect::<Result<Vec<Option<Failure>>>>()?;
    let image = shown(first.source.as_os_str().as_bytes());
    let closed = !args.lazy && await_closed(&first, server.as_ref())?;
    if closed && first.is_writable() {
        let looked = Preparation::default().enter(context, &[Images::of(&first.source)]);
        match looked.map_err(|(_, error)| error) {
            Ok(()) => ended_well(&first.source, served)?,
            Err(error) => readable::<()>(&first.source, Err(error)).map(drop)?,
        }
    }
    // A server that is gone wrote nothing either, which is told above if it matters.
    lost.into_iter().flatten().map(Err).next().unwrap_or(Ok(()))?;
    context.detail(match (closed, args.lazy) {
        (true, _) => format!("{image} is unmounted and closed"),
        (_, true) => format!("{image} is detached{}", remaining(&first)),
        _ => format!("{image} is unmounted, and in use by others"),
    });
    tell(&mounts, closed, context)
}

/// Detaches the mount at a directory if its server is gone. Open files do not keep it.
fn detach_dead(place: &Path, context: &Context) -> Result {
    let dir = mount_point(place).at_path(place.as_os_str().as_bytes())?;
    let held = HeldMount::of(&dir).ok();
    let is_dead = |held: &HeldMount| held.mount().is_ours("extant") && held.is_dead();
    // The descriptor would keep the mount.
    let dead = held.filter(is_dead).map(|held| held.mount().clone());
    if let Some(mount) = &dead {
        unmount(mount, true)?;
        context.detail(format!("{} is detached", shown(dir.as_os_str().as_bytes())));
    }
    tell(dead.as_slice(), false, context)
}

/// Returns the mount at a directory, or all those of an image, newest first.
fn chosen(place: &Path) -> Result<Vec<Mount>> {
    match find(place)? {
        Found::At(mount) if !mount.is_ours("extant") => Err(Failure::new(format_args!(
            "{}: another user, or another program, made this mount ({}); umount(8) ends it",
            shown(mount.dir.as_os_str().as_bytes()),
            mount.shown_type()
        ))),
        Found::At(mount) => Ok(vec![mount]),
        Found::Of(mounts) => Ok(mounts),
    }
}

fn nothing(place: &Path) -> Failure {
    Failure::new(format_args!(
        "{}: no mount point and no mounted image of this user; `extant mounts` lists the mounts",
        shown(place.as_os_str().as_bytes())
    ))
}

/// Unmounts, or detaches. Returns a failure to write the kernel's cache, with which the mount ends
/// nevertheless.
fn unmount(mount: &Mount, lazy: bool) -> Result<Option<Failure>> {
    let dir = shown(mount.dir.as_os_str().as_bytes());
    let (path, _parent) = steady(&mount.dir).at(&dir)?;
    let there = MountIdentity::at(&path).at(&dir)?;
    if !there.is_shown_as(mount.id, mount.device) {
        return Err(Failure::new(format_args!(
            "{dir}: another mount lies there, or this one has ended meanwhile; `extant mounts` \
            lists the mounts"
        )));
    }
    let unmounter = Unmounter::of(&path, there);
    let begin = Instant::now();
    let ended = loop {
        match if lazy { unmounter.detach() } else { unmounter.unmount() } {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && begin.elapsed() < PASSING => {
                sleep(LOOK);
            }
            done => break done,
        }
    };
    let is_there = || table::mounts().iter().any(|other| other.id == mount.id);
    match ended {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Err(in_use(mount)),
        Err(error) if is_there() => Err(Failure::new(format_args!("{dir}: {error}"))),
        // Another program has ended it.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(None),
        Err(error) => Ok(Some(Failure::new(format_args!(
            "{dir} is unmounted, but changes could not be written: {error}"
        )))),
    }
}

/// Returns a path of a mount point that renames of the directories above it do not change, with the
/// descriptor on which it rests. From another namespace of mounts the mount point itself can be
/// exchanged, so the mount there is compared with the one that is meant just before it is
/// unmounted. fusermount3(1), which unmounts for users other than root, needs the plain path and
/// has checks of its own.
fn steady(dir: &Path) -> io::Result<(PathBuf, Option<OwnedFd>)> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Ok((dir.into(), None));
    };
    if !rustix::process::geteuid().is_root() {
        return Ok((dir.into(), None));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = openat(CWD, parent, flags, Mode::empty())?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
    Ok((Path::new(&path).join(name), Some(held)))
}

/// Names the reason why a mount cannot end.
fn in_use(mount: &Mount) -> Failure {
    let dir = shown(mount.dir.as_os_str().as_bytes());
    if let Some(above) = table::mounts().iter().find(|other| other.parent == mount.id) {
        let above = shown(above.dir.as_os_str().as_bytes());
        return Failure::new(format_args!("{dir}: {above} is mounted on it; unmount that first"));
    }
    let users = MountUsers::of(mount.device).inside;
    let who = if users.is_empty() {
        "processes that this user cannot see".into()
    } else {
        holders::list(&users)
    };
    Failure::new(format_args!("{dir} is in use ({who}); end that, or detach the mount with --lazy"))
}

/// Names the processes that keep a detached mount, if there are some.
fn remaining(mount: &Mount) -> String {
    let users = MountUsers::of(mount.device);
    let all: Vec<Process> = users.inside.into_iter().chain(users.namespaces).collect();
    match all.as_slice() {
        [] => String::new(),
        some => format!("; it ends with its last user ({})", holders::list(some)),
    }
}

/// Waits until the image is closed. Returns false if it is mounted at other places, too, or if
/// other programs use it.
fn await_closed(mount: &Mount, server: Option<&Process>) -> Result<bool> {
    let image = shown(mount.source.as_os_str().as_bytes());
    let told = || {
        let users = MountUsers::of(mount.device);
        let all: Vec<Process> = users.namespaces.into_iter().chain(users.inside).collect();
        let why = match (all.as_slice(), server) {
            ([], Some(server)) => {
                format!("{} writes the last changes", holders::list(std::slice::from_ref(server)))
            }
            ([], None) => format!("it is open{}", holders::named(&image_spec(&mount.source).path)),
            (some, _) => {
                format!("it is mounted in other mount namespaces ({})", holders::list(some))
            }
        };
        complain(format_args!("{image}: waiting until it is closed: {why}"));
    };
    // One that is not known has ended, or cannot be seen.
    let is_remote = is_remote(&image_spec(&mount.source).path);
    let ended = || server.map_or(is_remote, |server| !server.is_alive());
    Ok(anew::await_release(&mount.source, "extant", told, ended)? == Release::Closed)
}

/// Fails if the server ended without its last commit.
fn ended_well(image: &Path, served: Served) -> Result {
    let spec = image_spec(image);
    let is_lost = match served {
        Served::Format(ImageFormat::Qcow2) => {
            let spec = ImageSpec { format: ImageFormat::Qcow2, ..spec };
            let found = readable(image, superblock_in(&spec).map_err(Error::Io))?;
            found.is_some_and(|found| was_in_use(&found))
        }
        served => {
            let options = OpenOptions::new().read_only(true).no_recovery(true);
            let opened = Fs::open_image(&spec, &options);
            #[cfg(debug_assertions)]
            opened.iter().for_each(|fs| crate::planted::strike(&fs.superblock()));
            match opened {
                Ok(fs) => was_in_use(&fs.superblock()),
                // An image in another format than raw, whose server cannot have written anything.
                Err(Error::Foreign(found)) => {
                    served == Served::Gone && found.kind == SignatureKind::DiskImage
                }
                failed => readable(image, failed)?.is_some(),
            }
        }
    };
    if is_lost {
        let image = shown(image.as_os_str().as_bytes());
        return Err(Failure::new(format_args!(
            "{image} is unmounted, but its server did not end in order: changes that no fsync made \
            durable are lost; the next mount, or `extant recover`, replays the journal"
        )));
    }
    Ok(())
}

/// Returns the content read of an image, and nothing of one that is gone, that another program has
/// begun to use, or whose content is no such image. Fails if the image cannot be reached.
fn readable<T>(image: &Path, read: Result<T, Error>) -> Result<Option<T>> {
    use ErrorKind::{InvalidData, InvalidInput, NotFound, ResourceBusy, Unsupported};
    match read {
        Ok(read) => Ok(Some(read)),
        Err(Error::Io(error))
            if ![InvalidData, InvalidInput, ResourceBusy, Unsupported].contains(&error.kind())
                && (error.kind() != NotFound || is_remote(image)) =>
        {
            let image = shown(image.as_os_str().as_bytes());
            Err(Failure::new(format_args!(
                "{image} is unmounted, but cannot be read, so changes that no fsync made durable \
                may be lost: {error}; when it can be reached, the next mount, or `extant \
                recover`, replays the journal"
            )))
        }
        Err(_) => Ok(None),
    }
}

/// Reads the superblock of a file system in an image of the format qcow2, without its backing
/// files: the server must not name files to open, and an overlay that was mounted for writing has
/// the superblock itself.
fn superblock_in(image: &ImageSpec) -> io::Result<Superblock> {
    let (disk, start): (Arc<dyn BlockDevice>, u64) =
        match OpenOptions::new().read_only(true).device_of(image) {
            Ok(disk) => (disk, 0),
            Err(_) => {
                let file = FileOptions::new(&image.path).read_only(true).open()?;
                let layer = Arc::new(Qcow2Device::open_layer(Arc::new(file))?);
                match image.place {
                    Place::Whole => (layer, 0),
                    Place::Offset(start) => (layer, start),
                    // The table may be that of the base.
                    _ => return Err(ErrorKind::Unsupported.into()),
                }
            }
        };
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    disk.read_exact_at(&mut bytes, start.saturating_add(SUPERBLOCK_OFFSET))?;
    Superblock::parse(&bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

fn tell(mounts: &[Mount], closed: bool, context: &Context) -> Result {
    if !context.json {
        return Ok(());
    }
    let mut document = Map::new();
    if let Some(mount) = mounts.first() {
        json::put_bytes(&mut document, "image", mount.source.as_os_str().as_bytes());
    }
    let dirs: Vec<Value> = mounts
        .iter()
        .map(|mount| {
            let mut object = Map::new();
            json::put_bytes(&mut object, "dir", mount.dir.as_os_str().as_bytes());
            object.into()
        })
        .collect();
    document.insert("unmounted".into(), dirs.into());
    document.insert("closed".into(), closed.into());
    context.document(&document.into())
}
