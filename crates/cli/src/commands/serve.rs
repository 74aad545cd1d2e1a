//! `extant serve`: the server of a mount service.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::image::memory_size;
use crate::inherited;
use crate::log::SYSLOG;
use crate::mounting::announce::Audience;
use crate::mounting::handover::{Handover, is_socket};
use crate::mounting::hosted::{self, Bounds};
use rustix::net::sockopt::{socket_acceptconn, socket_peercred};
use rustix::process::geteuid;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// Serve the image that a client of a mount service hands over
///
/// systemd(1) starts this for each client of a socket (Accept=yes). The client is `extant mount -o
/// service=SOCKET`. It opens the image and mounts; this process gets the open image and the
/// connection, and needs no privileges and no access to the path of the image. It ends when the
/// mount ends; SIGTERM unmounts.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Serve this user, too (by number); root and the user of the service are served always
    #[arg(long = "user", value_name = "UID", conflicts_with = "any_user")]
    users: Vec<u32>,
    /// Serve every user that can connect
    #[arg(long)]
    any_user: bool,
    /// Largest bound on the caches of the mount together
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory_size)]
    memory: u64,
    /// Socket of the machine's log
    #[arg(long, hide = true, value_name = "PATH", default_value = SYSLOG)]
    syslog: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let socket = socket()?;
    inherited::close_unnamed();
    // Answers go to the client from here on.
    rustix::stdio::dup2_stdout(&socket).at("standard output")?;
    let nowhere = File::open("/dev/null").at("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere).at("standard input")?;
    // Also the message of a user that is refused: unread, it would reset the connection, and the
    // client would miss the answer.
    let handover = Handover::receive(&socket);
    let (user, handover) = match args.user(&socket).and_then(|user| Ok((user, handover?))) {
        Ok(served) => served,
        Err(failure) => return Audience::Parent.failed(failure),
    };
    // The client sees the end of its messages when standard output is closed.
    drop(socket);
    let (memory, syslog) = (args.memory, args.syslog.clone());
    let threads = context.threads.unwrap_or_default();
    hosted::run(handover, &Bounds { memory, threads, user, syslog })
}

/// Returns the socket of the client: the one that systemd(1) hands over, or standard input.
fn socket() -> Result<OwnedFd> {
    let socket = match inherited::take_socket() {
        Some(socket) => socket,
        None => io::stdin().as_fd().try_clone_to_owned().at("standard input")?,
    };
    if !is_socket(&socket) || socket_acceptconn(&socket) != Ok(false) {
        return Err(Failure::usage(
            "serve needs the socket of a client (of the kind SOCK_SEQPACKET) as standard input or \
             from systemd: start it by a socket unit with ListenSequentialPacket= and Accept=yes",
        ));
    }
    Ok(socket)
}

impl Args {
    /// Returns the user at the other end, which must be served.
    fn user(&self, socket: &OwnedFd) -> Result<u32> {
        let user = socket_peercred(socket).at("the client's credentials")?.uid;
        let is_served = self.any_user
            || user.is_root()
            || user == geteuid()
            || self.users.contains(&user.as_raw());
        if is_served {
            return Ok(user.as_raw());
        }
        let user = user.as_raw();
        Err(Failure::new(format_args!(
            "this service does not serve user {user}: `extant serve` needs `--user {user}`"
        )))
    }
}
