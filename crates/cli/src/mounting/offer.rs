//! The client of a mount service: opens the image, and hands it over with the sockets to a keeper.
//!
//! The keeper is a process of the client's user, as that of a server which the program starts by
//! itself. It stays until the service has ended the mount, and with the option `restart` it hands
//! the image over again after the loss of a server.

use super::announce::listen;
use super::handover::{Handover, Words};
use super::same_image::ImageFile;
use super::{Plan, keep};
use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::text::shown;
use extant_engine::device::{image_spec, is_write_protected};
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Mounts by the service that the plan names. Returns when that has mounted the image.
///
/// # Errors
/// The image cannot be opened, there is no service, or it refuses.
pub fn start(plan: &Plan, lists: &[String], context: &Context) -> Result {
    let Some(service) = &plan.options.service else { return Ok(()) };
    let (image, read_only) = open_image(plan)?;
    let mut lists = lists.to_vec();
    lists.extend(read_only.then(|| "ro".into()));
    let socket = reach(service)?;
    let keep::Sockets { acts, quick } = if plan.kept {
        keep::Sockets::take()?
    } else {
        // The file that a later server must get is the one that this one gets.
        let found = image.metadata().at_path(plan.image.as_os_str().as_bytes())?;
        let image_file = Some(ImageFile::of(&found));
        keep::start_process(&Plan { lists: lists.clone(), image_file, ..plan.clone() })?.0
    };
    let words =
        Words { image: plan.image.clone(), dir: plan.dir.clone(), options: lists.join(",") };
    // The descriptors are the service's alone from then on: the keeper sees its end by them.
    Handover { words, image, acts, quick }.send(&socket)?;
    listen(File::from(socket), &plan.image, context)
}

fn reach(service: &Path) -> Result<OwnedFd> {
    let name = shown(service.as_os_str().as_bytes());
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let connected = SocketAddrUnix::new(service).and_then(|address| {
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &address)?;
        Ok(socket)
    });
    connected.map_err(|error| {
        Failure::new(format_args!(
            "{name}: {error}; it must be the socket of a mount service (`extant help serve`)"
        ))
    })
}

/// Opens the image as the service needs it. Returns whether that is for reading only although it
/// was to be written.
fn open_image(plan: &Plan) -> Result<(File, bool)> {
    let path = image_spec(&plan.image).path;
    let name = shown(path.as_os_str().as_bytes());
    let protected = !plan.options.read_only && is_write_protected(&path);
    let writes = !(plan.options.read_only || protected);
    let exclusive = if writes && plan.options.is_disk { OFlags::EXCL } else { OFlags::empty() };
    let opened = File::options()
        .read(true)
        .write(writes)
        .custom_flags((OFlags::NONBLOCK | exclusive).bits() as i32)
        .open(&path);
    let image = opened.at_path(path.as_os_str().as_bytes())?;
    let found = image.metadata().at_path(path.as_os_str().as_bytes())?;
    if found.file_type().is_block_device() != plan.options.is_disk {
        return Err(Failure::new(format_args!(
            "{name}: another file has taken the place of the image; mount it again"
        )));
    }
    plan.image_file.map_or(Ok(()), |file| file.check(&found, &path))?;
    Ok((image, protected))
}
