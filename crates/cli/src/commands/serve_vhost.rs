//! `extant serve-vhost`: an image as the disk of a virtual machine.

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
use extant_vhost::VhostServer;
use serde_json::Map;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{Builder, available_parallelism};

/// Bytes of a serial number.
const SERIAL_LEN: usize = 20;

/// Queues at most.
const MAX_QUEUES: usize = 64;

/// Offer an image to a virtual machine as its disk, by vhost-user (QEMU, cloud-hypervisor, crosvm)
///
/// The machine shares its memory with this server, so reads and writes cross no socket. The image
/// is locked meanwhile, as by a mount. One machine at a time uses it; the next one is served when
/// that has ended. The server ends by SIGTERM or Ctrl-C, after a flush.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Image file or block device, with @OFFSET or @pN for a part of it
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Listen at this socket in the file system, which is made, for this user alone
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Refuse writes
    #[arg(short, long)]
    read_only: bool,
    /// End when the first machine that has used the disk has ended
    #[arg(long)]
    once: bool,
    /// Wait until no other program uses the image
    #[arg(long)]
    wait: bool,
    /// Queues that a machine may use, from 1 to 64; as many as there are processors by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: Option<u16>,
    /// Serial number of the disk, of at most 20 bytes; by default the name of the image, cut off
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,
    #[command(flatten)]
    stored: FormatArgs,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    if context.sandbox {
        leave_feigned_root();
    }
    let serial = args.serial()?;
    let (wait, stored) = (args.wait, args.stored.clone());
    let image = ImageArgs { wait, stored, ..ImageArgs::of(&args.image) };
    let options = OpenOptions::new().read_only(args.read_only).wait(args.wait);
    // Before the socket is made: a missing image is told, and one in use is waited for, which a
    // signal ends. The image is not parsed.
    let file = ImageSpec::whole(image.spec().path);
    if !is_remote(&file.path) {
        options.device_of(&file).map_err(|error| image.refused(&error))?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).at("signals")?;
    // In the sandbox no socket is made.
    let listener = socket::bind(&args.socket)?;
    let _name = SocketName::of(&args.socket)?;
    image.contain(context, Preparation::writing(!args.read_only).serving())?;
    let device = options.device_of(&image.spec()).map_err(|error| image.refused(&error))?;
    #[cfg(debug_assertions)]
    crate::planted::strike_from(&*device);
    let (len, queues) = (device.len(), args.queues());
    let server = VhostServer::new(device, listener).queues(queues).serial(&serial);
    let server = Arc::new(server.read_only(args.read_only).once(args.once));
    let (stopped, handle) = (server.clone(), signals.handle());
    let body = move || signals.forever().for_each(|_| stopped.stop());
    Builder::new().name("extant-signals".into()).spawn(body).at("signals")?;
    args.tell(context, len, queues)?;
    let served = server.serve();
    handle.close();
    served.at_path(args.image.as_os_str().as_bytes())
}

impl Args {
    fn serial(&self) -> Result<Vec<u8>> {
        let Some(serial) = &self.serial else {
            let name = self.image.file_name().unwrap_or_default().as_bytes();
            return Ok(name[..name.len().min(SERIAL_LEN)].to_vec());
        };
        if serial.len() > SERIAL_LEN {
            return Err(Failure::new(format_args!(
                "--serial has {} bytes; a disk has at most {SERIAL_LEN}",
                serial.len()
            )));
        }
        Ok(serial.clone().into_bytes())
    }

    fn queues(&self) -> u16 {
        let processors = || available_parallelism().map_or(1, usize::from).min(MAX_QUEUES) as u16;
        self.queues.unwrap_or_else(processors)
    }

    fn tell(&self, context: &Context, len: u64, queues: u16) -> Result {
        if context.json {
            let mut document = Map::new();
            json::put_bytes(&mut document, "image", self.image.as_os_str().as_bytes());
            json::put_bytes(&mut document, "socket", self.socket.as_os_str().as_bytes());
            document.insert("bytes".into(), len.into());
            document.insert("queues".into(), queues.into());
            document.insert("read_only".into(), self.read_only.into());
            return context.document(&document.into());
        }
        let name = shown(self.image.as_os_str().as_bytes());
        let socket = shown(self.socket.as_os_str().as_bytes());
        context.note(format_args!("{name}: {} at {socket}", size(len)));
        Ok(())
    }
}
