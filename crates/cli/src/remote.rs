//! Network block devices, as `nbd://HOST/EXPORT`, in place of images.
//!
//! A process in a sandbox cannot connect. It starts a second process of the program before, the
//! *connector*, which connects to the one address and hands the sockets over. So a connection that
//! was lost can be made again, and the handshake with the server is made inside. A process that is
//! taken over can ask for connections to this address, and for nothing else.

use crate::failure::{At, Failure, Result};
use crate::process;
use crate::table;
use extant_engine::Error;
use extant_engine::device::{ImageSpec, Place, image_spec, is_remote};
use extant_fuse::receive_message;
use extant_nbd::{Address, Connect, Socket, WriteLock, connect_by};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    send, sendmsg, socketpair,
};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Name of the program as a connector. The address comes through a socket.
pub const NAME: &str = "extant-connector";

/// Longest message in bytes: an address, or the text of an error.
const MESSAGE: usize = 32 << 10;

/// Kinds of replies: the text of an error, and sockets.
const FAILED: u8 = 0;
const TCP: u8 = 1;
const UNIX: u8 = 2;

/// Returns an absolute path, or the full form of an address, which does not depend on the current
/// directory either.
pub fn absolute(image: &Path) -> Result<PathBuf> {
    let spec = image_spec(image);
    let name = image.as_os_str().as_bytes();
    if !is_remote(&spec.path) {
        return std::path::absolute(image).at_path(name);
    }
    let address = parse(&spec).map_err(Failure::usage)?;
    let whole = spec.place == Place::Whole;
    let shown = ImageSpec::whole(address.to_string()).at(spec.place).to_string();
    // An export may end like a place.
    let needs_place = whole && image_spec(Path::new(&shown)).place != Place::Whole;
    Ok(if needs_place { format!("{shown}@0") } else { shown }.into())
}

/// Returns the absolute path of a file, which is no place of a part, or an address as it is.
pub fn absolute_path(file: &Path) -> Result<PathBuf> {
    if is_remote(file) {
        return Ok(file.into());
    }
    std::path::absolute(file).at_path(file.as_os_str().as_bytes())
}

/// Refuses to write to a network block device that this user has mounted here: it has no lock.
///
/// # Errors
/// `ResourceBusy` if it is mounted.
pub fn refuse_mounted(image: &Path) -> std::result::Result<(), Error> {
    if !is_remote(image) {
        return Ok(());
    }
    let source = absolute(image).unwrap_or_else(|_| image.into());
    let Some(there) = table::served(&source, "extant").pop() else { return Ok(()) };
    let text = format!("{} is mounted at {}", image.display(), there.dir.display());
    Err(Error::Io(io::Error::new(io::ErrorKind::ResourceBusy, text)))
}

fn parse(image: &ImageSpec) -> io::Result<Address> {
    image.path.to_string_lossy().parse()
}

/// Starts the connector of an image that is a network block device. From then on this process
/// connects by it.
///
/// # Errors
/// The address is none, or no process can be started.
pub fn prepare(image: &ImageSpec) -> std::result::Result<(), Error> {
    if is_remote(&image.path) {
        let address = parse(image)?;
        let connector = Connector::start(&address)?;
        connect_by(&address, Arc::new(connector));
    }
    Ok(())
}

/// Keeps other processes of this user from writing to an image that is a network block device,
/// until this process ends. In a sandbox it cannot be done.
///
/// # Errors
/// `ResourceBusy` if one writes to it for longer than `patience`, or has mounted it.
pub fn hold(image: &ImageSpec, patience: Duration) -> std::result::Result<(), Error> {
    static HELD: Mutex<Vec<WriteLock>> = Mutex::new(Vec::new());
    if is_remote(&image.path) {
        let whole = ImageSpec::whole(&image.path);
        refuse_mounted(Path::new(&whole.at(image.place).to_string()))?;
        let lock = WriteLock::take(&parse(image)?, patience)?;
        HELD.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
    }
    Ok(())
}

/// The other end of a connector, which ends with this value.
#[derive(Debug)]
struct Connector(Mutex<OwnedFd>);

impl Connector {
    fn start(address: &Address) -> io::Result<Connector> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (socket, its_socket) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new(process::program());
        command.arg0(NAME);
        command.stdin(Stdio::from(its_socket)).stdout(Stdio::null()).stderr(Stdio::null());
        extant_fuse::keep_descriptors_from_children()?;
        // It ends when its socket does; this process may be in a sandbox that waits for nothing.
        drop(command.spawn()?);
        send(&socket, address.to_string().as_bytes(), SendFlags::NOSIGNAL)?;
        Ok(Connector(Mutex::new(socket)))
    }
}

impl Connect for Connector {
    fn connect(&self) -> io::Result<Socket> {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        send(&*socket, &[0], SendFlags::NOSIGNAL)?;
        let mut message = vec![0; MESSAGE];
        let (len, descriptor) = receive_message(&*socket, &mut message)?;
        match (message[..len].split_first(), descriptor) {
            (Some((&TCP, _)), Some(descriptor)) => Ok(Socket::Tcp(descriptor.into())),
            (Some((&UNIX, _)), Some(descriptor)) => Ok(Socket::Unix(descriptor.into())),
            (Some((&FAILED, text)), _) => {
                Err(io::Error::other(String::from_utf8_lossy(text).into_owned()))
            }
            _ => Err(io::Error::other("the process that connects has ended")),
        }
    }
}

/// Connects for another process, until that has ended.
pub fn run() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> Result {
    rustix::thread::set_name(c"extant-connect").at("the name of the process")?;
    process::leave_signals()?;
    std::env::set_current_dir("/").at("/")?;
    let socket = io::stdin();
    let mut message = vec![0; MESSAGE];
    let (len, _) = receive_message(&socket, &mut message).at("a socket")?;
    let address: Address = String::from_utf8_lossy(&message[..len]).parse().at("an address")?;
    while receive_message(&socket, &mut message).at("a socket")?.0 > 0 {
        answer(socket.as_fd(), address.connect()).at("a socket")?;
    }
    Ok(())
}

fn answer(socket: BorrowedFd<'_>, connected: io::Result<Socket>) -> io::Result<()> {
    let (kind, descriptor): (u8, OwnedFd) = match connected {
        Ok(Socket::Tcp(stream)) => (TCP, stream.into()),
        Ok(Socket::Unix(stream)) => (UNIX, stream.into()),
        Ok(_) => return refuse(socket, "a socket of another kind"),
        Err(error) => return refuse(socket, &error.to_string()),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut extra = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    if !extra.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS.into());
    }
    sendmsg(socket, &[IoSlice::new(&[kind])], &mut extra, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn refuse(socket: BorrowedFd<'_>, why: &str) -> io::Result<()> {
    let mut message = vec![FAILED];
    message.extend(why.bytes().take(MESSAGE - 1));
    send(socket, &message, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_do_not_depend_on_the_directory() {
        let full = |text: &str| absolute(Path::new(text)).unwrap().display().to_string();
        assert_eq!(full("nbd://h"), "nbd://h/");
        assert_eq!(full("nbd://h/a@p1"), "nbd://h/a@p1");
        assert_eq!(full("nbd+unix:///a?socket=/s@1M"), "nbd+unix:///a?socket=/s@1048576");
        let here = std::env::current_dir().unwrap();
        assert_eq!(full("a.img"), here.join("a.img").display().to_string());
        assert!(full("nbd+unix:///?socket=s").ends_with("/s"));
        assert!(absolute(Path::new("nbd:///x")).is_err());
    }
}
