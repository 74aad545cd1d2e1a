//! `extant serve-nbd`: an image for clients of NBD.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::format::FormatArgs;
use crate::image::ImageArgs;
use crate::json;
use crate::sandbox::command::{Preparation, leave_feigned_root};
use crate::socket::{self, SocketName};
use crate::text::{shown, size};
use extant_engine::OpenOptions;
use extant_engine::device::{BlockDevice, ImageSpec, is_remote};
use extant_nbd::{Listener, NbdServer, TlsServer};
use serde_json::Map;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::Builder;

/// Offer an image to clients of NBD (network block devices), such as the kernel, QEMU and this
/// program
///
/// The image is locked meanwhile, as by a mount. It ends by SIGTERM or Ctrl-C, after a flush. Each
/// client that can connect can read and write the image, as NBD has no passwords, unless
/// --tls-verify-peer demands certificates of clients.
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
    /// Encrypt connections, with server-cert.pem and server-key.pem of a directory
    #[arg(long, value_name = "DIR")]
    tls_certificates: Option<PathBuf>,
    /// Serve only clients with a certificate of an authority in ca-cert.pem of that directory
    #[arg(long, requires = "tls_certificates")]
    tls_verify_peer: bool,
    /// End when the last client has gone
    #[arg(long)]
    once: bool,
    /// Wait until no other program uses the image
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    stored: FormatArgs,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    if context.sandbox {
        leave_feigned_root();
    }
    let (wait, stored) = (args.wait, args.stored.clone());
    let image = ImageArgs { wait, stored, ..ImageArgs::of(&args.image) };
    let options = OpenOptions::new().read_only(args.read_only).wait(args.wait);
    let open = || options.device_of(&image.spec()).map_err(|error| image.refused(&error));
    // Before the socket is made: a missing image is told, and one in use is waited for, which a
    // signal ends. The image is not parsed.
    let file = ImageSpec::whole(image.spec().path);
    if !is_remote(&file.path) {
        options.device_of(&file).map_err(|error| image.refused(&error))?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).at("signals")?;
    // In the sandbox no socket is made, and no certificate is read.
    let load = |dir: &PathBuf| TlsServer::load(dir, args.tls_verify_peer);
    let tls = args.tls_certificates.as_ref().map(load).transpose().at("--tls-certificates")?;
    let (listener, address) = args.listener()?;
    let _name = args.socket.as_deref().map(SocketName::of).transpose()?;
    image.contain(context, Preparation::writing(!args.read_only).serving())?;
    let device = open()?;
    #[cfg(debug_assertions)]
    crate::planted::strike_from(&*device);
    let len = device.len();
    let mut server = NbdServer::new(device.clone(), listener).export(&args.export);
    if let Some(tls) = tls {
        server = server.secured(tls);
    }
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
        let mut export = extant_nbd::Address::named(&self.export);
        if self.tls_certificates.is_some() {
            export = export.secured();
        }
        if let Some(path) = &self.socket {
            let listener = socket::bind(path)?;
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
