//! `extant tune` of a live mount: its server changes label and UUID while programs use the files.

use super::{Args, values};
use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::json::put_bytes;
use crate::mounting::found::{Found, find};
use crate::table::{HeldMount, Mount};
use crate::text::{shown, uuid};
use extant_check::tune::TuneChanges;
use extant_engine::Error;
use extant_fuse::control::{self, ControlRefusal, IdentityRequest};
use rustix::io::Errno;
use serde_json::Map;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the live mount at a directory, or that of an image by this user.
pub(super) fn mount_of(place: &Path) -> Option<Mount> {
    // Other errors come again when the image is opened.
    match find(place).ok()? {
        Found::At(mount) => (mount.whole && mount.has_own_type("extant")).then_some(mount),
        Found::Of(mounts) => {
            mounts.iter().find(|mount| mount.is_writable()).or(mounts.first()).cloned()
        }
    }
}

/// Asks the server of a mount for the changes, and tells them.
pub(super) fn run(
    args: &Args,
    (changes, clears): (&TuneChanges, bool),
    mount: &Mount,
    context: &Context,
) -> Result {
    let dir = shown(mount.dir.as_os_str().as_bytes());
    let (label, uuid) = (changes.label.clone(), changes.uuid);
    let names = TuneChanges { label: label.clone(), uuid, ..TuneChanges::default() };
    if *changes != names || clears {
        return Err(Failure::new(format_args!(
            "{dir}: only label and UUID of a mounted file system change; run `extant umount {dir}` \
             first"
        )));
    }
    if args.redo.is_some() || args.undo.is_some() {
        return Err(Failure::usage(
            "--redo, --undo: the server of a mount changes label and UUID without a file",
        ));
    }
    let mut request = IdentityRequest { uuid, ..IdentityRequest::default() };
    if let Some(label) = &label {
        let why = || Failure::usage(format_args!("label: {} bytes, of at most 16", label.len()));
        request = request.with_label(label).map_err(|_| why())?;
    }
    let held = HeldMount::of(&mount.dir).at(&dir)?;
    // Another mount may lie over it by now.
    if held.mount() != mount {
        return Err(Failure::new(format_args!("{dir}: the mount there has changed; try again")));
    }
    if !mount.is_writable() {
        return Err(refused(mount, &read_only()));
    }
    let reply = control::set_identity(&held.path(), request);
    let reply = reply.map_err(|error| unanswered(mount, error))?;
    reply.map_err(|refusal| refused(mount, &refusal))?;
    tell(mount, changes, context)
}

fn tell(mount: &Mount, changes: &TuneChanges, context: &Context) -> Result {
    let names = values::names(changes);
    if !context.json {
        let dir = shown(mount.dir.as_os_str().as_bytes());
        context.note(format_args!("{dir}: changed {}", names.join(", ")));
        return Ok(());
    }
    let mut document = Map::new();
    put_bytes(&mut document, "image", mount.source.as_os_str().as_bytes());
    put_bytes(&mut document, "mount", mount.dir.as_os_str().as_bytes());
    document.insert("changed".into(), names.into());
    if let Some(label) = &changes.label {
        document.insert("label".into(), shown(label).to_string().into());
    }
    if let Some(bytes) = changes.uuid {
        document.insert("uuid".into(), uuid(bytes).into());
    }
    context.document(&document.into())
}

fn read_only() -> ControlRefusal {
    let errno = Errno::ROFS.raw_os_error();
    ControlRefusal { errno, text: "it is mounted read-only".into() }
}

/// Turns a refusal into a failure with the remedy, as far as the text has none.
fn refused(mount: &Mount, refusal: &ControlRefusal) -> Failure {
    let (dir, image) =
        (shown(mount.dir.as_os_str().as_bytes()), shown(mount.source.as_os_str().as_bytes()));
    let errno = Errno::from_raw_os_error(refusal.errno);
    let advice = match errno {
        Errno::ROFS => format!("; run `extant mount -o remount,rw {image} {dir}` first"),
        _ => String::new(),
    };
    let text = shown(refusal.text.as_bytes());
    let error = Error::Io(errno.into());
    Failure::of(&error, mount.dir.as_os_str().as_bytes(), format!("{dir}: {text}{advice}"))
}

/// Turns the lack of an answer into a failure.
fn unanswered(mount: &Mount, error: io::Error) -> Failure {
    let dir = shown(mount.dir.as_os_str().as_bytes());
    let message = match (error.kind(), Errno::from_io_error(&error)) {
        (ErrorKind::PermissionDenied, _) => {
            format!("{dir}: label and UUID are changed by root and by the user that mounted it")
        }
        (_, Some(Errno::NOTTY)) => format!(
            "{dir}: its server cannot change label and UUID: it is another program, or of an \
             earlier version; unmount it, and change its image"
        ),
        (ErrorKind::NotConnected, _) => format!("{dir}: its server is gone; unmount it"),
        _ => format!("{dir}: {error}"),
    };
    Failure::of(&Error::Io(error), mount.dir.as_os_str().as_bytes(), message)
}
