//! The upgrade of a server: a process of the program as it is on the disk now goes on with the
//! mount.
//!
//! `extant upgrade` starts a server that is told to *succeed* ([`super::succeed`]). It asks the one
//! that serves by an ioctl of the mount, and takes its descriptors ([`extant_fuse::TakenOffer`]): a
//! socket, the connection, and the file of the image. By the socket the two servers go on, with
//! messages that begin with a byte:
//!
//! | message | from | meaning |
//! | --- | --- | --- |
//! | `R` | the new one | it is in its sandbox, and ready to open the image |
//! | `S` and bytes | the old one | a part of its state; it has halted and closed the image |
//! | `E` | the old one | the state is complete |
//! | `O` | the new one | it has opened the image; its keeper and its threads are ready |
//! | `G` | the old one | go: it serves no request any more |
//! | `F` and text | both | it failed |
//!
//! The old server goes on if the new one fails, or ends, before `O`. A new server that takes too
//! long ends itself; the old one waits for that, since two must not write to an image. When the new
//! one is ready, the end of the old one means go, too: it does not close the socket and serve.

use super::serve::open_options;
use super::{Plan, options, served_options, shown_options, spawn};
use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::table::HeldMount;
use crate::text::shown;
use extant_engine::Fs;
use extant_engine::device::{image_spec, is_remote};
use extant_fuse::{Handover, Mounted, Offer, await_message, receive_message};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::thread::Builder;
use std::time::Duration;

/// First bytes of messages.
pub(super) const READY: u8 = b'R';
pub(super) const STATE: u8 = b'S';
pub(super) const END: u8 = b'E';
pub(super) const OPEN: u8 = b'O';
pub(super) const GO: u8 = b'G';
pub(super) const FAILED: u8 = b'F';

/// Longest message in bytes.
pub(super) const MESSAGE: usize = 64 << 10;

/// How long the new server may take until it is ready to open the image.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the new server may take to open the image before that is told.
const QUIET: Duration = Duration::from_secs(10);

/// Makes another process of the program go on with a mount. Returns when it serves.
///
/// # Errors
/// The mount is none of this user, or cannot be handed over; those of the new server. The mount is
/// served as before then.
pub fn run(plan: &mut Plan, context: &Context) -> Result {
    let name = shown(plan.dir.as_os_str().as_bytes());
    let held = HeldMount::of(&plan.dir).at(&name)?;
    if !held.mount().is_ours(&plan.subtype) {
        return Err(Failure::new(format_args!(
            "{name}: extant of this user serves no mount there; `extant mounts` lists mounts"
        )));
    }
    let theirs = served_options(&held).ok_or_else(|| {
        Failure::new(format_args!(
            "{name}: its server does not answer; unmount it, and mount again"
        ))
    })?;
    plan.inherit(&held)?;
    plan.options = plan.options.clone().for_image(&plan.image).with_absolute_paths()?;
    plan.lists.push(shown_options(held.mount()));
    refuse(plan, &theirs).map_err(|why| Failure::new(format_args!("{name}: {why}")))?;
    let names = |word: &str| plan.lists.iter().any(|list| list.split(',').any(|own| own == word));
    let dropped = theirs.split(',').filter(|word| options::gives_power(word) && !names(word));
    let dropped: Vec<&str> = dropped.collect();
    if !dropped.is_empty() {
        let dropped = dropped.join(",");
        context.note(format_args!("{name}: not taken over unless named again: -o {dropped}"));
    }
    spawn::start(plan, &plan.lists, context)
}

fn refuse(plan: &Plan, theirs: &str) -> std::result::Result<(), &'static str> {
    if plan.lacks_files {
        return Err("its journal is outside, or it is no raw image; unmount it, and mount again");
    }
    if theirs.split(',').any(|word| word.starts_with("service=")) || plan.options.service.is_some()
    {
        return Err("a mount service serves it; unmount it, and mount again");
    }
    if is_remote(&image_spec(&plan.image).path) {
        return Err("network block devices cannot be handed over; unmount it, and mount again");
    }
    if plan.options.superblock.is_some() {
        return Err("it was opened by a copy of the superblock; unmount it, and mount again");
    }
    Ok(())
}

/// Lets other processes ask a server for its mount.
pub(super) fn offer(plan: &Plan, mounted: &Mounted) {
    let is_fixed = plan.options.service.is_some()
        || plan.options.superblock.is_some()
        || is_remote(&image_spec(&plan.image).path);
    if is_fixed {
        return;
    }
    let (plan, handover) = (plan.clone(), mounted.handover());
    mounted.when_upgraded(move |process| {
        let offer = handover.offer(process)?;
        let number = offer.number();
        // The request that asks must be answered before.
        let (plan, handover) = (plan.clone(), handover.clone());
        let body = move || {
            if let Err(error) = hand_over(&plan, &handover, offer) {
                tracing::error!("{} is not handed over: {error}", plan.dir.display());
            }
        };
        Builder::new().name("extant-upgrade".into()).spawn(body)?;
        Ok(number)
    });
}

fn hand_over(plan: &Plan, handover: &Handover, mut offer: Offer) -> io::Result<()> {
    let handed = handover.share().and_then(|shared| {
        offer.give(&shared, PATIENCE)?;
        await_message(offer.socket(), PATIENCE)?;
        expect(offer.socket(), READY)
    });
    let options = open_options(plan);
    let handed = handed.and_then(|()| {
        handover.run(
            |state| give(offer.socket(), state),
            |device, held| Fs::open_device(device, &options.clone().adopt(held)),
        )
    });
    handed.map_err(|error| offer.fail(error, PATIENCE))
}

/// Gives the state to the new server, and lets it go when it is ready.
fn give(socket: &OwnedFd, state: &[u8]) -> io::Result<()> {
    let given = state
        .chunks(MESSAGE - 1)
        .try_for_each(|part| tell(socket, STATE, part))
        .and_then(|()| tell(socket, END, &[]))
        .and_then(|()| await_open(socket))
        .and_then(|()| tell(socket, GO, &[]));
    if given.is_err() {
        // Not before its end: it may have the image open.
        while receive_message(socket, &mut [0; 64]).is_ok_and(|(len, _)| len > 0) {}
    }
    given
}

/// Waits until the new server is ready. Requests of programs wait, too, so a long wait is told.
fn await_open(socket: &OwnedFd) -> io::Result<()> {
    if await_message(socket, QUIET).is_err() {
        tracing::warn!(
            "the new server is not ready yet; requests wait for it, or for its end: kill it to let \
             this one go on"
        );
    }
    expect(socket, OPEN)
}

/// Sends a message.
pub(super) fn tell(socket: &OwnedFd, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let message: Vec<u8> = [&[kind], bytes].concat();
    match send(socket, &message, SendFlags::NOSIGNAL) {
        Err(Errno::PIPE | Errno::CONNRESET) => {
            Err(io::Error::new(ErrorKind::BrokenPipe, "the other server has ended"))
        }
        sent => Ok(sent.map(drop)?),
    }
}

/// Tells the other process why this one fails.
pub(super) fn tell_failure(socket: impl AsFd, why: &str) {
    let text: Vec<u8> = [FAILED].into_iter().chain(why.bytes().take(4096)).collect();
    // It may have ended.
    let _ = send(socket, &text, SendFlags::NOSIGNAL);
}

/// Waits for a message without content.
pub(super) fn expect(socket: &OwnedFd, kind: u8) -> io::Result<()> {
    receive(socket, kind).map(drop)
}

/// Waits for a message; an error if it is of another kind. Returns its content.
pub(super) fn receive(socket: &OwnedFd, kind: u8) -> io::Result<Vec<u8>> {
    let (found, content) = next(socket)?;
    if found == kind {
        return Ok(content);
    }
    Err(io::Error::new(ErrorKind::InvalidData, "the other server sent another message"))
}

/// Waits for a message.
///
/// # Errors
/// The failure of the other server; `UnexpectedEof` after its end.
pub(super) fn next(socket: &OwnedFd) -> io::Result<(u8, Vec<u8>)> {
    let mut message = vec![0; MESSAGE];
    let len = match receive_message(socket, &mut message) {
        // It has ended without reading the last message of this one.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
        received => received?.0,
    };
    message.truncate(len);
    match message.split_first() {
        Some((&FAILED, text)) => Err(io::Error::other(String::from_utf8_lossy(text).into_owned())),
        Some((kind, content)) => Ok((*kind, content.to_vec())),
        None => Err(io::Error::new(ErrorKind::UnexpectedEof, "the other server has ended")),
    }
}
