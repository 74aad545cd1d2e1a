//! The new server of an upgrade: goes on with a mount whose server hands it over.
//!
//! It meets the old server before it enters the sandbox, and opens the image inside. The state of
//! the old server, which may have been taken over, is read there, too.

use super::Plan;
use super::announce::Audience;
use super::keep::{self, Kept};
use super::serve::{Contained, enter, fuse_options, hold, open_options, refused, signals, watch};
use super::upgrade::{
    END, GO, OPEN, READY, STATE, expect, is_claimed, next, offer, reopen, tell, tell_failure,
};
use crate::failure::{At, Failure, Result};
use crate::interrupt::Interrupt;
use crate::sandbox;
use crate::table::HeldMount;
use extant_engine::{Fs, OpenOptions};
use extant_fuse::control::{self, UPGRADE};
use extant_fuse::{
    Adopted, HandedOver, MeetingPoint, MountOptions, Mounted, PreparedRings, Transport, adopt,
};
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// How long the keeper of the old server may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Goes on with the mount of a plan.
pub(super) fn mount(plan: &Plan, audience: &Audience) -> Result<(Mounted, Kept)> {
    let interrupt = Interrupt::register().at("signals")?;
    if plan.options.sandbox {
        sandbox::command::check_libraries().map_err(|error| refused(plan, &error))?;
    }
    let held = HeldMount::of(&plan.dir).at_path(plan.dir.as_os_str().as_bytes())?;
    let options = open_options(plan).claimed(is_claimed(&held)).interrupt(interrupt.flag());
    let (socket, connection) = meet(plan, &held)?;
    // A mount that is held could not be unmounted.
    drop(held);
    let contained = contain(plan, &connection).inspect_err(|failure| {
        tell_failure(&socket, failure.message().unwrap_or_default());
    })?;
    let failed = |error: &dyn Display| {
        tell_failure(&socket, &error.to_string());
        Failure::new(format_args!("{}: cannot be handed over: {error}", plan.dir.display()))
    };
    let Contained { keeper, containment, .. } = contained;
    let fuse = MountOptions { containment, ..fuse_options(plan) };
    let (fs, state) = open(plan, &options, &socket).map_err(|error| failed(&error))?;
    let operations = fs.operations().clone();
    let adopted = adopt(fs, &state, connection, &keeper, &fuse).map_err(|error| failed(&error))?;
    let signals = signals(plan, &interrupt)?;
    let mounted = start(adopted, &socket).map_err(|error| failed(&error))?;
    tracing::info!("{} is served at {}", plan.image.display(), plan.dir.display());
    offer(plan, &mounted);
    watch(signals, (&mounted, &keeper, operations), audience)?;
    Ok((mounted, keeper))
}

/// Asks the server for its mount, and waits for its keeper.
fn meet(plan: &Plan, held: &HeldMount) -> Result<(OwnedFd, OwnedFd)> {
    let dir = plan.dir.display();
    let point = MeetingPoint::new().at("a socket for the server")?;
    control::set(&held.path(), UPGRADE, point.number().into()).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::NotFound | ErrorKind::Unsupported => {
                "its server cannot hand it over; unmount it, and mount again".into()
            }
            _ => error.to_string(),
        };
        Failure::new(format_args!("{dir}: {why}"))
    })?;
    point.accept(PATIENCE).map_err(|error| {
        Failure::new(format_args!(
            "{dir}: its server does not hand it over ({error}); its log has the reason"
        ))
    })
}

/// Starts the keeper, and enters the sandbox.
fn contain(plan: &Plan, connection: &OwnedFd) -> Result<Contained> {
    // The connection was made for this transport.
    let rings = PreparedRings::of(Transport::Device);
    let is_other = plan.options.sandbox || plan.options.restart;
    let keeper = if is_other { keep::start(plan)? } else { Kept::own(plan)? };
    // For the server that will follow this one.
    keeper.keep_connection(connection).at("the process that keeps the privileges")?;
    if plan.options.sandbox {
        return enter(plan, keeper, rings);
    }
    hold(plan)?;
    Ok(Contained { keeper, rings, containment: vec![("state", "off".into())] })
}

/// Opens the image, when the old server has closed it.
fn open(plan: &Plan, options: &OpenOptions, socket: &OwnedFd) -> io::Result<(Fs, HandedOver)> {
    tell(socket, READY, &[])?;
    let mut bytes = Vec::new();
    loop {
        match next(socket)? {
            (STATE, part) => bytes.extend(part),
            (END, _) => break,
            _ => return Err(ErrorKind::InvalidData.into()),
        }
    }
    let state = HandedOver::from_bytes(&bytes)?;
    let fs = reopen(plan, options, state.held()).map_err(io::Error::other)?;
    Ok((fs, state))
}

fn start(adopted: Adopted, socket: &OwnedFd) -> io::Result<Mounted> {
    tell(socket, OPEN, &[])?;
    expect(socket, GO)?;
    adopted.start()
}
