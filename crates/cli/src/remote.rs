//! Network block devices, as `nbd://HOST/EXPORT`, and images in object stores, as
//! `s3://BUCKET/DIR/NAME`, in place of files.
//!
//! A process in a sandbox cannot connect. It starts a second process of the program before, the
//! *connector*, which connects to the one address and hands the sockets over. So a connection that
//! was lost can be made again, and the handshake with the server is made inside. A process that is
//! taken over can ask for connections to this address, and for nothing else.
//!
//! For an image in a store the second process also makes the requests, with the credentials of the
//! environment, and hands the objects over as they are: a process that is taken over can ask for
//! objects of this image and of those beside it, and stores some only if the command does.

use crate::failure::{At, Failure, Result};
use crate::process;
use crate::table;
use extant_engine::Error;
use extant_engine::device::{ImageSpec, Place, image_spec, is_in_store, is_remote};
use extant_fuse::{receive_message, send_message};
use extant_nbd::{Address, Connect, Socket, WriteLock, connect_by};
use extant_store::{
    LinkTransport, ObjectTransport, StoreAddress, open_transport, reach_by, serve_link,
};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Name of the program as a connector. The address comes through a socket.
pub const NAME: &str = "extant-connector";

/// Longest message in bytes: an address, or the text of an error.
const MESSAGE: usize = 32 << 10;

/// Tasks of a connector, before the address in its first message: sockets to a server, objects of a
/// store, and objects that are also stored.
const CONNECT: u8 = 0;
const FETCH: u8 = 1;
const STORE: u8 = 2;

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
    let address = if is_in_store(&spec.path) {
        parse_stored(&spec).map_err(Failure::usage)?.to_string()
    } else {
        parse(&spec).map_err(Failure::usage)?.to_string()
    };
    let whole = spec.place == Place::Whole;
    let shown = ImageSpec::whole(address).at(spec.place).to_string();
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

/// Refuses to write to a network block device that this user has mounted here: it has no lock. An
/// image in a store is always refused.
///
/// # Errors
/// `ResourceBusy` if it is mounted, `ReadOnlyFilesystem` if it is in a store.
pub fn refuse_mounted(image: &Path) -> std::result::Result<(), Error> {
    let path = image_spec(image).path;
    if !is_remote(&path) {
        return Ok(());
    }
    if is_in_store(&path) {
        return Err(protected(&path));
    }
    let source = absolute(image).unwrap_or_else(|_| image.into());
    let Some(there) = table::served(&source, "extant").pop() else { return Ok(()) };
    let text = format!("{} is mounted at {}", image.display(), there.dir.display());
    Err(Error::Io(io::Error::new(io::ErrorKind::ResourceBusy, text)))
}

/// Returns the error of a change of an image in a store.
fn protected(path: &Path) -> Error {
    let path = path.display();
    let text = format!(
        "{path}: an image in a store is for reading only; `extant pull {path} NEW.img` copies it, \
         and `extant overlay create NEW.qcow2 --backing {path}` makes an overlay that takes changes"
    );
    Error::Io(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, text))
}

fn parse(image: &ImageSpec) -> io::Result<Address> {
    image.path.to_string_lossy().parse()
}

fn parse_stored(image: &ImageSpec) -> io::Result<StoreAddress> {
    image.path.to_string_lossy().parse()
}

/// Starts the connector of an image that is a network block device, or in a store. From then on
/// this process connects by it.
///
/// # Errors
/// The address is none, or no process can be started.
pub fn prepare(image: &ImageSpec) -> std::result::Result<(), Error> {
    if is_in_store(&image.path) {
        return prepare_store(&parse_stored(image)?, false).map_err(Error::Io);
    }
    if is_remote(&image.path) {
        let address = parse(image)?;
        let connector = Connector::start(CONNECT, &address.to_string())?;
        connect_by(&address, Arc::new(connector))?;
    }
    Ok(())
}

/// Starts the connector of an image in a store, which stores objects only with `writes`.
///
/// # Errors
/// No process can be started.
pub fn prepare_store(address: &StoreAddress, writes: bool) -> io::Result<()> {
    let kind = if writes { STORE } else { FETCH };
    let connector = Connector::start(kind, &address.to_string())?;
    let connect = move || match connector.connect()? {
        Socket::Unix(stream) => Ok(stream),
        _ => Err(io::Error::other("a socket of another kind")),
    };
    reach_by(address, Arc::new(LinkTransport::new(Box::new(connect))));
    Ok(())
}

/// Keeps other processes of this user from writing to an image that is a network block device,
/// until this process ends. In a sandbox it cannot be done.
///
/// # Errors
/// `ResourceBusy` if one writes to it for longer than `patience`, or has mounted it;
/// `ReadOnlyFilesystem` if it is in a store.
pub fn hold(image: &ImageSpec, patience: Duration) -> std::result::Result<(), Error> {
    static HELD: Mutex<Vec<WriteLock>> = Mutex::new(Vec::new());
    if is_in_store(&image.path) {
        return Err(protected(&image.path));
    }
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
    fn start(task: u8, address: &str) -> io::Result<Connector> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (socket, its_socket) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new(process::program());
        command.arg0(NAME);
        command.stdin(Stdio::from(its_socket)).stdout(Stdio::null()).stderr(Stdio::null());
        extant_fuse::keep_descriptors_from_children()?;
        // It ends when its socket does; this process may be in a sandbox that waits for nothing.
        drop(command.spawn()?);
        send(&socket, &[&[task], address.as_bytes()].concat(), SendFlags::NOSIGNAL)?;
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
    let (task, address) = message[..len].split_first().unwrap_or((&CONNECT, &[]));
    let address = String::from_utf8_lossy(address);
    let connect: Box<dyn Fn() -> io::Result<Socket>> = match *task {
        task @ (FETCH | STORE) => fetcher(address.parse().at("an address")?, task == STORE),
        _ => {
            let address: Address = address.parse().at("an address")?;
            Box::new(move || address.connect())
        }
    };
    while receive_message(&socket, &mut message).at("a socket")?.0 > 0 {
        answer(socket.as_fd(), connect()).at("a socket")?;
    }
    Ok(())
}

/// Returns a function that makes sockets, each with a thread at its other end that gets objects.
fn fetcher(address: StoreAddress, writes: bool) -> Box<dyn Fn() -> io::Result<Socket>> {
    let transport: Mutex<Option<Arc<dyn ObjectTransport>>> = Mutex::new(None);
    Box::new(move || {
        let mut transport = transport.lock().unwrap_or_else(PoisonError::into_inner);
        let transport = match &*transport {
            Some(known) => known.clone(),
            None => transport.insert(open_transport(&address)?).clone(),
        };
        let (theirs, own) = UnixStream::pair()?;
        let serve = move || {
            // The other end has ended, or broken the protocol: nothing is left to do for it.
            let _ = serve_link(own, &*transport, writes);
        };
        Builder::new().name("extant-fetch".into()).spawn(serve)?;
        Ok(Socket::Unix(theirs))
    })
}

fn answer(socket: BorrowedFd<'_>, connected: io::Result<Socket>) -> io::Result<()> {
    let (kind, descriptor): (u8, OwnedFd) = match connected {
        Ok(Socket::Tcp(stream)) => (TCP, stream.into()),
        Ok(Socket::Unix(stream)) => (UNIX, stream.into()),
        Ok(_) => return refuse(socket, "a socket of another kind"),
        Err(error) => return refuse(socket, &error.to_string()),
    };
    send_message(socket, &[kind], &[descriptor.as_fd()])
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
