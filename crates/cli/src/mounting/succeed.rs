//! The new server of an upgrade: goes on with a mount whose server hands it over.
//!
//! It takes the descriptors of the old server before it enters the sandbox, and opens the image
//! inside. The state of the old server, which may have been taken over, is read there, too.
//!
//! # Invariants
//! - The image is the file that the old server has open, with its lock, and the file at the path
//!   that the mount shows. Otherwise nothing is done.
//! - The old server waits for this one from the end of its state on. So this one ends itself if it
//!   is not ready in time.

use super::announce::Audience;
use super::keep::{self, Kept};
use super::same_image::ImageFile;
use super::serve::{fuse_options, open_options, refused, signals, watch};
use super::upgrade::{END, GO, OPEN, READY, STATE, expect, next, offer, tell, tell_failure};
use super::{Plan, served_process};
use crate::failure::{At, Failure, Result};
use crate::interrupt::Interrupt;
use crate::sandbox::{self, Containment, Sandbox};
use crate::table::HeldMount;
use extant_engine::device::{BlockDevice, FileDevice, FileOptions, image_spec};
use extant_engine::{Fs, OpenOptions};
use extant_fuse::control::{self, UPGRADE};
use extant_fuse::{
    Adopted, HandedOver, MountIdentity, MountOptions, Mounted, SharedMount, TakenOffer, adopt,
    await_message,
};
use rustix::fs::{OFlags, fcntl_getfl};
use std::fmt::Display;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, sleep};
use std::time::Duration;

/// How long the old server may take for its first message, and for its last changes.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long this server may take to open the image.
const OPENING: Duration = Duration::from_secs(60);

/// Longest state in bytes: that of some 60 million inodes.
const MAX_STATE: usize = 1 << 30;

/// Goes on with the mount of a plan.
pub(super) fn mount(plan: &Plan, audience: &Audience) -> Result<(Mounted, Kept)> {
    let interrupt = Interrupt::register().at("signals")?;
    if plan.options.sandbox {
        sandbox::command::check_libraries().map_err(|error| refused(plan, &error))?;
    }
    let held = HeldMount::of(&plan.dir).at_path(plan.dir.as_os_str().as_bytes())?;
    let identity = held.root().and_then(MountIdentity::of).at("the mount")?;
    let file = file_at_path(plan)?;
    // No other file that takes its place is mounted by the keeper.
    let plan = &Plan { adopts: Some(identity), image_file: Some(file), ..plan.clone() };
    let keeper = start_keeper(plan)?;
    let TakenOffer { socket, shared } = take(plan, &held, file)?;
    let SharedMount { image, connection } = shared;
    // A mount that is held could not be unmounted.
    drop(held);
    let failed = |error: &dyn Display| {
        tell_failure(&socket, &error.to_string());
        Failure::new(format_args!("{}: cannot be handed over: {error}", plan.dir.display()))
    };
    let device = device(plan, image).map_err(|error| failed(&error))?;
    let fuse = MountOptions { containment: contain(plan), ..fuse_options(plan) };
    let options = open_options(plan).interrupt(interrupt.flag());
    let state = receive(&socket).map_err(|error| failed(&error))?;
    let deadline = Deadline::start(OPENING).map_err(|error| failed(&error))?;
    let fs = open(device, options, &state).map_err(|error| failed(&error))?;
    let adopted = adopt(fs, &state, connection, &keeper, &fuse).map_err(|error| failed(&error))?;
    let (mounted, signals) = match signals(plan, &interrupt) {
        Ok(signals) => (start(adopted, &deadline, &socket).map_err(|e| failed(&e))?, signals),
        Err(failure) => {
            adopted.leave();
            return Err(failure);
        }
    };
    tracing::info!("{} is served at {}", plan.image.display(), plan.dir.display());
    offer(plan, &mounted);
    watch(signals, &mounted, &keeper, audience)?;
    Ok((mounted, keeper))
}

/// Asks the server for its mount, and takes its descriptors. The file of the image must be `file`.
fn take(plan: &Plan, held: &HeldMount, file: ImageFile) -> Result<TakenOffer> {
    let dir = plan.dir.display();
    let cannot = "its server cannot hand it over; unmount it, and mount again";
    let process =
        served_process(held).ok_or_else(|| Failure::new(format_args!("{dir}: {cannot}")))?;
    let number = control::set(&held.path(), UPGRADE, 0).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::NotFound | ErrorKind::Unsupported => cannot.into(),
            ErrorKind::ResourceBusy => "another upgrade is at work".into(),
            _ => error.to_string(),
        };
        Failure::new(format_args!("{dir}: {why}"))
    })?;
    let check = |found: &Metadata| {
        let is_same = ImageFile::of(found) == file;
        is_same.then_some(()).ok_or_else(|| io::Error::new(ErrorKind::NotFound, moved(plan)))
    };
    TakenOffer::take(process, number, PATIENCE, check).map_err(|error| {
        Failure::new(format_args!("{dir}: its server does not hand it over: {error}"))
    })
}

/// Returns the file at the path that the mount shows.
fn file_at_path(plan: &Plan) -> Result<ImageFile> {
    let there = std::fs::metadata(image_spec(&plan.image).path);
    there.map(|there| ImageFile::of(&there)).map_err(|_| Failure::new(moved(plan)))
}

fn moved(plan: &Plan) -> String {
    let path = image_spec(&plan.image).path;
    format!("the image is no longer at {}; move it back", path.display())
}

/// Takes the file of the image as a device, as the old server has it open.
fn device(plan: &Plan, image: File) -> io::Result<FileDevice> {
    let read_only = fcntl_getfl(&image)? & OFlags::ACCMODE == OFlags::RDONLY;
    FileOptions::from_spec(&image_spec(&plan.image))
        .read_only(read_only)
        .direct(plan.options.direct_io)
        .open_shared(image)
}

/// Starts the keeper. It asks the mount at its start, so a server must serve it until then: the old
/// one, or none at all, if that has ended and this process does not hold the connection yet.
fn start_keeper(plan: &Plan) -> Result<Kept> {
    let is_other = plan.options.sandbox || plan.options.restart;
    let keeper = if is_other { keep::start(plan)? } else { Kept::own(plan) };
    // This waits for it.
    keeper.release();
    Ok(keeper)
}

/// Enters the sandbox. No file is opened any more, and requests come through no rings.
fn contain(plan: &Plan) -> Containment {
    if plan.options.sandbox {
        Sandbox { processes: true, ..Sandbox::default() }.enter()
    } else {
        vec![("state", "off".into())]
    }
}

/// Receives the state of the old server, which has closed the image then.
fn receive(socket: &OwnedFd) -> io::Result<HandedOver> {
    tell(socket, READY, &[])?;
    let mut bytes = Vec::new();
    loop {
        await_message(socket, PATIENCE)?;
        match next(socket)? {
            (STATE, part) if bytes.len() < MAX_STATE => bytes.extend(part),
            (END, _) => return HandedOver::from_bytes(&bytes),
            _ => return Err(ErrorKind::InvalidData.into()),
        }
    }
}

fn open(device: FileDevice, options: OpenOptions, state: &HandedOver) -> io::Result<Fs> {
    // The old server may have made it larger.
    device.refresh_len()?;
    Fs::open_device(Arc::new(device), &options.adopt(state.held())).map_err(io::Error::other)
}

/// Tells the old server that this one is ready, and serves when it may.
fn start(adopted: Adopted, deadline: &Deadline, socket: &OwnedFd) -> io::Result<Mounted> {
    deadline.pass();
    match await_go(socket) {
        Ok(()) => Ok(adopted.start()),
        Err(error) => {
            adopted.leave();
            Err(error)
        }
    }
}

/// Waits until the old server serves no request any more. It has halted and closed the image, and
/// does not close the socket to serve again: so its end means the same, before the message of this
/// one or after it.
fn await_go(socket: &OwnedFd) -> io::Result<()> {
    use ErrorKind::{BrokenPipe, UnexpectedEof};
    match tell(socket, OPEN, &[]).and_then(|()| expect(socket, GO)) {
        Err(e) if [BrokenPipe, UnexpectedEof].contains(&e.kind()) => Ok(()),
        told => told,
    }
}

/// Ends this process unless it passes in time.
struct Deadline(Arc<AtomicBool>);

impl Deadline {
    fn start(patience: Duration) -> io::Result<Deadline> {
        let is_over = Arc::<AtomicBool>::default();
        let watched = is_over.clone();
        let body = move || {
            sleep(patience);
            if !watched.swap(true, Ordering::AcqRel) {
                tracing::error!("the image could not be opened in time: the old server goes on");
                std::process::exit(1);
            }
        };
        Builder::new().name("extant-deadline".into()).spawn(body)?;
        Ok(Deadline(is_over))
    }

    /// Passes, or waits for the end of the process.
    fn pass(&self) {
        if self.0.swap(true, Ordering::AcqRel) {
            sleep(Duration::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounting::upgrade::FAILED;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn the_end_of_the_old_server_lets_the_new_one_serve() {
        let pair = || {
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("sockets")
        };
        let (ours, theirs) = pair();
        drop(theirs);
        await_go(&ours).expect("it ended before the message");
        let (ours, theirs) = pair();
        let ended = std::thread::spawn(move || {
            sleep(Duration::from_millis(20));
            drop(theirs);
        });
        await_go(&ours).expect("it ended, and has not read the message");
        ended.join().expect("a thread");
        for (kind, goes) in [(GO, true), (FAILED, false), (STATE, false)] {
            let (ours, theirs) = pair();
            tell(&theirs, kind, b"planted").expect("a message");
            assert_eq!(await_go(&ours).is_ok(), goes, "{kind}");
        }
    }
}
