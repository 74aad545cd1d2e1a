//! `extant serve-nbd`: an image for clients of NBD.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::format::FormatArgs;
use crate::image::ImageArgs;
use crate::json;
use crate::text::{shown, size};
use extant_engine::OpenOptions;
use extant_engine::device::BlockDevice;
use extant_nbd::{Listener, NbdServer};
use rustix::fs::Mode;
use rustix::process::umask;
use serde_json::Map;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;

/// Offer an image to clients of NBD (network block devices), such as the kernel, QEMU and this
/// program
///
/// The image is locked meanwhile, as by a mount. It ends by SIGTERM or Ctrl-C, after a flush. Each
/// client that can connect can read and write the image: NBD has no passwords, and there is no
/// encryption here.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Image file or block device, with @OFFSET or @pN for a part of it
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Listen at a socket in the file system, which is made, for this user alone
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    socket: Option<PathBuf>,
    /// Listen at an address of TCP; port 0 is any free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:10809")]
    listen: String,
    /// Name of the export; the empty name is accepted, too
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,
    /// Refuse writes
    #[arg(short, long)]
    read_only: bool,
    /// End when the last client has gone
    #[arg(long)]
    once: bool,
    /// Wait until no other program uses the image
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    stored: FormatArgs,
}

/// A socket in the file system, whose name ends with this value.
struct SocketName<'a> {
    path: &'a Path,
    /// Device and inode of the socket.
    file: (u64, u64),
}

impl<'a> SocketName<'a> {
    /// Notes the socket that was just made at a path.
    fn of(path: &'a Path) -> io::Result<SocketName<'a>> {
        Ok(SocketName { path, file: file_at(path)? })
    }
}

/// Returns device and inode of the file at a path.
fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    let found = path.symlink_metadata()?;
    Ok((found.dev(), found.ino()))
}

impl Drop for SocketName<'_> {
    fn drop(&mut self) {
        // Another server may have put its own in the place.
        if file_at(self.path).is_ok_and(|found| found == self.file) {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let image = ImageArgs { stored: args.stored.clone(), ..ImageArgs::of(&args.image) };
    let options = OpenOptions::new().read_only(args.read_only).wait(args.wait);
    let device = options.device_of(&image.spec()).map_err(|error| image.refused(&error))?;
    let len = device.len();
    // Before the socket is made, whose name would stay behind otherwise.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).at("signals")?;
    let (listener, address) = args.listener()?;
    let made = |path| SocketName::of(path).at_path(path.as_os_str().as_bytes());
    let _name = args.socket.as_deref().map(made).transpose()?;
    let server = NbdServer::new(device.clone(), listener).export(&args.export);
    let server = Arc::new(server.read_only(args.read_only).once(args.once));
    let (stopped, handle) = (server.clone(), signals.handle());
    let body = move || signals.forever().for_each(|_| stopped.stop());
    Builder::new().name("extant-signals".into()).spawn(body).at("signals")?;
    args.tell(context, &address, len)?;
    let served = server.serve();
    handle.close();
    served.at_path(args.image.as_os_str().as_bytes())
}

impl Args {
    /// Listens. Returns the address for clients, too.
    fn listener(&self) -> Result<(Listener, String)> {
        let export = extant_nbd::Address::named(&self.export);
        if let Some(path) = &self.socket {
            let name = shown(path.as_os_str().as_bytes());
            // No other user may connect, not for a moment either.
            let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
            let bound = UnixListener::bind(path);
            umask(before);
            let listener = bound.map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => Failure::new(format_args!(
                    "{name} exists; remove it if no server listens there, or name another path"
                )),
                _ => Failure::new(format_args!("{name}: {error}")),
            })?;
            return Ok((Listener::Unix(listener), export.at_socket(path).to_string()));
        }
        let failed = |error: std::io::Error| {
            let name = &self.listen;
            Failure::new(format_args!("{name}: {error}; name another address by --listen"))
        };
        let listener = TcpListener::bind(&self.listen).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let address = export.at_host(local.ip().to_string(), local.port());
        Ok((Listener::Tcp(listener), address.to_string()))
    }

    fn tell(&self, context: &Context, address: &str, len: u64) -> Result {
        if context.json {
            let mut document = Map::new();
            json::put_bytes(&mut document, "image", self.image.as_os_str().as_bytes());
            document.insert("address".into(), address.into());
            document.insert("bytes".into(), len.into());
            document.insert("read_only".into(), self.read_only.into());
            return context.document(&document.into());
        }
        let name = shown(self.image.as_os_str().as_bytes());
        context.note(format_args!("{name}: {} at {address}", size(len)));
        Ok(())
    }
}
