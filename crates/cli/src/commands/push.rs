//! `extant push`: an image into an object store.

use super::check::open_for_reading;
use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::format::FormatArgs;
use crate::image::ImageArgs;
use crate::interrupt::Interrupt;
use crate::json;
use crate::remote;
use crate::sandbox::command::{Preparation, leave_feigned_root};
use crate::text::{shown, size};
use extant_check::{Trim, TrimError, TrimPlan};
use extant_engine::device::BlockDevice;
use extant_engine::{Errno, Error};
use extant_store::{
    CHUNK_SIZE, ObjectTransport, PushOptions, PushReport, StoreAddress, is_chunk_size, push,
    transport_of,
};
use serde_json::Map;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Store an image in an object store, without its unused space.
///
/// The image is divided into chunks, each named after its SHA-256 digest and compressed by zstd.
/// Chunks that are there are not sent again: images beside each other share equal ones, and a push
/// that was interrupted goes on. The image appears when it is complete. An image that needs
/// recovery or repair is stored as it is. Credentials come from the environment (AWS_*, GOOGLE_*,
/// AZURE_*).
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Image file or block device, with @OFFSET or @pN for a part of it
    image: PathBuf,
    /// Address of the new image: s3://BUCKET/DIR/NAME, gs://BUCKET/..., az://CONTAINER/...,
    /// file:///DIR/NAME
    #[arg(value_name = "URL")]
    url: String,
    /// Replace another image of this name
    #[arg(short, long)]
    force: bool,
    /// Fetch the chunks that are there, too, and replace damaged ones
    #[arg(long)]
    verify: bool,
    /// Bytes of a chunk in KiB: a power of two from 4 to 16384
    #[arg(long, value_name = "KIB", default_value_t = DEFAULT_KIB)]
    chunk: u32,
    /// Wait until no other program changes the image
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    stored: FormatArgs,
}

/// KiB of a chunk.
const DEFAULT_KIB: u32 = CHUNK_SIZE >> 10;

/// Chunks that are sent at once at least: most of the time is that of the answers.
const SENDERS: usize = 8;

/// Parses an address that another image may have.
pub(super) fn parse(url: &str) -> Result<StoreAddress> {
    url.parse().map_err(|error: io::Error| Failure::usage(error))
}

/// Starts the process that makes the requests, if this one is to enter a sandbox.
pub(super) fn prepare(context: &Context, address: &StoreAddress, writes: bool) -> Result {
    if context.sandbox {
        remote::prepare_store(address, writes).at_path(address.to_string().as_bytes())?;
    }
    Ok(())
}

/// Returns the failure of a transfer, with the remedy.
pub(super) fn failed(url: &str, error: &Error, advice: &str) -> Failure {
    let message = match error {
        Error::Posix(Errno::Intr) => format!("{url}: interrupted{advice}"),
        error => format!("{error}{advice}"),
    };
    Failure::of(error, url.as_bytes(), message)
}

/// Returns an error of the engine for one of a transfer.
pub(super) fn of_transfer(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::Interrupted => Errno::Intr.into(),
        _ => Error::Io(error),
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let image =
        ImageArgs { wait: args.wait, stored: args.stored.clone(), ..ImageArgs::of(&args.image) };
    if context.sandbox {
        leave_feigned_root();
    }
    let address = parse(&args.url)?;
    args.check(&address)?;
    prepare(context, &address, true)?;
    image.contain(context, Preparation::default())?;
    let device = open_for_reading(&image, &image.spec()).map_err(|e| e.with_exit_code(1))?;
    let interrupt = Interrupt::register().at("signals")?;
    let stop = interrupt.flag();
    let transport = transport_of(&address).at_path(args.url.as_bytes())?;
    let plan = args.plan(&image, &device, (&stop, context))?;
    let report = args.push(&*device, plan.as_ref(), (&address, &*transport), (&stop, context))?;
    args.report(context, &address, device.len(), report)
}

impl Args {
    fn check(&self, address: &StoreAddress) -> Result {
        if !is_chunk_size(u64::from(self.chunk) << 10) {
            return Err(Failure::usage("--chunk must be a power of two from 4 to 16384 (KiB)"));
        }
        if !address.is_writable() {
            return Err(Failure::usage(format_args!(
                "{}: stores by plain HTTP are for reading only; push to s3, gs, az or file",
                self.url
            )));
        }
        if address.digest().is_some() {
            return Err(Failure::usage(format_args!(
                "{}: the digest of an image is known when it is stored; leave @sha256: out",
                self.url
            )));
        }
        Ok(())
    }

    /// Finds the blocks in use; `None` for an image whose blocks are not known.
    fn plan(
        &self,
        image: &ImageArgs,
        device: &Arc<dyn BlockDevice>,
        (stop, context): (&Arc<AtomicBool>, &Context),
    ) -> Result<Option<TrimPlan>> {
        let trim = Trim::new(device.clone()).threads(context.thread_count());
        match trim.interrupt(stop.clone()).plan() {
            Ok(plan) => Ok(Some(plan)),
            Err(TrimError::Interrupted) => Err(failed(&self.url, &Errno::Intr.into(), "")),
            Err(TrimError::Io(error)) => Err(image.refused(&Error::Io(error))),
            Err(error) => {
                let name = image.name();
                context.note(format_args!("{name}: free blocks are stored, too: {error}"));
                Ok(None)
            }
        }
    }

    fn push(
        &self,
        device: &dyn BlockDevice,
        plan: Option<&TrimPlan>,
        (address, transport): (&StoreAddress, &dyn ObjectTransport),
        (stop, context): (&AtomicBool, &Context),
    ) -> Result<PushReport> {
        let used: Box<dyn Iterator<Item = Range<u64>> + Send + '_> = match plan {
            Some(plan) => Box::new(plan.used()),
            None => Box::new(std::iter::once(0..device.len())),
        };
        let mut options = PushOptions::default();
        options.chunk_size = self.chunk << 10;
        options.threads = context.thread_count().max(SENDERS);
        options.replace = self.force;
        options.verify = self.verify;
        let bar = context.progress(0);
        let progress = |len| bar.inc(len);
        let way = (address, transport);
        let done = push(device, used, way, &options, (stop, &progress));
        bar.finish_and_clear();
        done.map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::AlreadyExists => "; --force replaces it",
                _ => "; nothing has this name yet, and the same push goes on where this one ended",
            };
            let advice = if self.force {
                "; the former image stays, and the same push goes on"
            } else {
                advice
            };
            failed(&self.url, &of_transfer(error), advice)
        })
    }

    fn report(
        &self,
        context: &Context,
        address: &StoreAddress,
        len: u64,
        report: PushReport,
    ) -> Result {
        if context.json {
            let mut document = Map::new();
            json::put_bytes(&mut document, "image", self.image.as_os_str().as_bytes());
            document.insert("url".into(), address.to_string().into());
            document.insert("bytes".into(), len.into());
            document.insert("manifest".into(), report.manifest.to_string().into());
            document.insert("chunks".into(), report.chunks.into());
            document.insert("sent_chunks".into(), report.sent_chunks.into());
            document.insert("sent_bytes".into(), report.sent_bytes.into());
            return context.document(&document.into());
        }
        let name = shown(self.url.as_bytes());
        context.note(format_args!(
            "{name}: {} in {} chunks, of which {} were sent ({}); {}",
            size(len),
            report.chunks,
            report.sent_chunks,
            size(report.sent_bytes),
            report.manifest
        ));
        Ok(())
    }
}
