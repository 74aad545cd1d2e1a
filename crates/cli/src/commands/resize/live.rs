//! `extant resize` of a live mount: its server makes the file system larger, and the image file
//! with it, through the descriptor that it has.

use super::{Args, Resized, Size};
use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::mounting::found::{Found, find};
use crate::table::{HeldMount, Mount};
use crate::text::shown;
use extant_check::resize::NewSize;
use extant_engine::{Error, FsSize, GrowTo};
use extant_fuse::control::{self, ControlRefusal, GrowReply, GrowRequest};
use rustix::io::Errno;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the live mount at a directory, or that of an image by this user; `None` if the place is
/// an image that this program has not mounted.
///
/// # Errors
/// The place is a directory without such a mount.
pub(super) fn mount_of(place: &Path) -> Result<Option<Mount>> {
    let refused = |why: String| {
        // An image may be mounted on, too: a file that a container sees.
        if !std::fs::metadata(place).is_ok_and(|found| found.is_dir()) {
            return Ok(None);
        }
        let place = shown(place.as_os_str().as_bytes());
        Err(Failure::new(format_args!("{place}: {why}")))
    };
    // Other errors come again when the image is opened.
    match find(place) {
        Ok(Found::At(mount)) if mount.whole && mount.has_own_type("extant") => Ok(Some(mount)),
        Ok(Found::At(mount)) => refused(format!(
            "nothing that extant serves is mounted there ({}); resize2fs(8) makes a mount of the \
             kernel larger",
            mount.shown_type()
        )),
        Ok(Found::Of(mounts)) if !mounts.is_empty() => {
            let writable = mounts.iter().find(|mount| mount.is_writable());
            Ok(writable.or(mounts.first()).cloned())
        }
        _ => refused("no mount point; name the image, or the directory where it is mounted".into()),
    }
}

/// Asks the server of a mount for the growth, and prints both sizes.
pub(super) fn run(args: &Args, mount: &Mount, context: &Context) -> Result {
    let dir = shown(mount.dir.as_os_str().as_bytes());
    if args.minimum || args.estimate {
        return Err(Failure::new(format_args!(
            "{dir}: a mounted file system only gets larger; run `extant umount {dir}` first"
        )));
    }
    if args.redo.is_some() || args.undo.is_some() {
        return Err(Failure::usage(
            "--redo, --undo: the server of a mount makes a file system larger without a file",
        ));
    }
    let to = match args.wanted()? {
        None => GrowTo::Device,
        Some(NewSize::Bytes(bytes)) => GrowTo::Bytes(bytes),
        Some(NewSize::MoreBytes(more)) => GrowTo::MoreBytes(more),
        Some(NewSize::Blocks(blocks)) => GrowTo::Blocks(blocks),
    };
    let held = HeldMount::of(&mount.dir).at(&dir)?;
    // Another mount may lie over it by now.
    if held.mount() != mount {
        return Err(Failure::new(format_args!("{dir}: the mount there has changed; try again")));
    }
    if !mount.is_writable() {
        let image = shown(mount.source.as_os_str().as_bytes());
        let message = format!(
            "{dir} is mounted read-only; run `extant mount -o remount,rw {image} {dir}` first"
        );
        return Err(numbered(Errno::ROFS, mount, message));
    }
    let request = GrowRequest { to, dry_run: args.dry_run };
    let reply = control::grow(&held.path(), request);
    let reply = reply.map_err(|error| unanswered(mount, error))?;
    if let Some(refusal) = &reply.refusal {
        return Err(refused(mount, (&request, &reply), refusal));
    }
    let resized = Resized {
        image: &mount.source,
        dir: Some(&mount.dir),
        before: reply.before.into(),
        after: reply.after.into(),
        dry_run: args.dry_run,
    };
    resized.tell(context, &dir)
}

/// Returns a failure with the number of an error.
fn numbered(errno: Errno, mount: &Mount, message: String) -> Failure {
    let error = Error::Io(errno.into());
    Failure::of(&error, mount.dir.as_os_str().as_bytes(), message)
}

/// Turns a refusal of the server into a failure with the remedy, as far as the text has none.
fn refused(
    mount: &Mount,
    (request, reply): (&GrowRequest, &GrowReply),
    refusal: &ControlRefusal,
) -> Failure {
    let dir = shown(mount.dir.as_os_str().as_bytes());
    let present = reply.before;
    let is_smaller = match request.to {
        GrowTo::Bytes(bytes) => bytes < present.bytes(),
        GrowTo::Blocks(blocks) => blocks < present.blocks,
        GrowTo::Device | GrowTo::MoreBytes(_) => false,
    };
    let errno = Errno::from_raw_os_error(refusal.errno);
    let advice = match errno {
        Errno::INVAL if is_smaller => format!("; run `extant umount {dir}` first"),
        Errno::ROFS => format!("; `extant stats {dir}` tells why"),
        _ => String::new(),
    };
    let partly = if reply.after == present {
        String::new()
    } else {
        format!("; it has {} bytes now", reply.after.bytes())
    };
    let text = shown(refusal.text.as_bytes());
    numbered(errno, mount, format!("{dir}: {text}{partly}{advice}"))
}

/// Turns the lack of an answer into a failure.
fn unanswered(mount: &Mount, error: io::Error) -> Failure {
    let dir = shown(mount.dir.as_os_str().as_bytes());
    let message = match (error.kind(), Errno::from_io_error(&error)) {
        (ErrorKind::PermissionDenied, _) => {
            format!("{dir}: a mount is made larger by root and by the user that made it")
        }
        (_, Some(Errno::NOTTY)) => format!(
            "{dir}: its server cannot make it larger: it is another program, or of an earlier \
             version; unmount it, and resize its image"
        ),
        (ErrorKind::NotConnected, _) => format!("{dir}: its server is gone; unmount it"),
        _ => format!("{dir}: {error}"),
    };
    Failure::of(&Error::Io(error), mount.dir.as_os_str().as_bytes(), message)
}

impl From<FsSize> for Size {
    fn from(size: FsSize) -> Size {
        Size { bytes: size.bytes(), blocks: size.blocks, inodes: size.inodes }
    }
}
