//! `extant pull`: an image out of an object store.

use super::push::{failed, of_transfer, parse, prepare};
use crate::context::Context;
use crate::copy::output::{Output, hold_replaced};
use crate::failure::{At, Failure, Result};
use crate::interrupt::Interrupt;
use crate::json;
use crate::sandbox::command::{Preparation, leave_feigned_root};
use crate::text::{shown, size};
use extant_engine::Errno;
use extant_store::{PullSink, StoreAddress, StoredImage, pull};
use indicatif::ProgressBar;
use serde_json::Map;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Fetch an image from an object store into a sparse file.
///
/// Each chunk is verified by its digest before it is written. DST gets its name when it is complete
/// and durable.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Address of the image: s3://BUCKET/DIR/NAME, gs://BUCKET/..., az://CONTAINER/...,
    /// https://HOST/DIR/NAME, file:///DIR/NAME; @sha256:DIGEST behind it demands one manifest
    #[arg(value_name = "URL")]
    url: String,
    /// New image file
    #[arg(value_name = "DST")]
    dest: PathBuf,
    /// Replace an existing file DST
    #[arg(short, long)]
    force: bool,
}

/// Chunks that are fetched at once at least: most of the time is that of the answers.
const FETCHERS: usize = 8;

/// A file that takes chunks.
struct Image<'f> {
    file: &'f File,
    bar: &'f ProgressBar,
}

impl PullSink for Image<'_> {
    fn chunk(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)?;
        self.bar.inc(data.len() as u64);
        Ok(())
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    if context.sandbox {
        leave_feigned_root();
    }
    let address = parse(&args.url)?;
    args.check()?;
    let _replaced = hold_replaced(&args.dest)?;
    let mut output = Output::begin(&args.dest)?.before_sandbox(context)?;
    prepare(context, &address, false)?;
    let sandbox = Preparation::default().writing_to(&output.path());
    sandbox.enter(context, &[]).map_err(|(_, error)| failed(&args.url, &error, ""))?;
    let interrupt = Interrupt::register().at("signals")?;
    let image = StoredImage::open(&address).map_err(|e| failed(&args.url, &of_transfer(e), ""))?;
    let len = image.manifest().len();
    let file = output.file();
    let name = args.dest.as_os_str().as_bytes();
    file.set_len(len).at_path(name)?;
    let bar =
        context.progress(image.manifest().chunk_count() * u64::from(image.manifest().chunk_size()));
    let threads = context.thread_count().max(FETCHERS);
    let sink = Image { file, bar: &bar };
    let done = pull(&image, threads, &interrupt.flag(), &sink);
    bar.finish_and_clear();
    done.map_err(|error| failed(&args.url, &of_transfer(error), ""))?;
    file.sync_all().at_path(name)?;
    if interrupt.restore_default() {
        return Err(failed(&args.url, &Errno::Intr.into(), ""));
    }
    output.finish()?;
    args.report(context, &address, &image)
}

impl Args {
    /// Refuses a destination that is there.
    fn check(&self) -> Result {
        let Ok(found) = std::fs::metadata(&self.dest) else { return Ok(()) };
        let name = shown(self.dest.as_os_str().as_bytes());
        if !found.is_file() {
            return Err(Failure::new(format_args!("{name} is no regular file")));
        }
        if !self.force {
            return Err(Failure::new(format_args!("{name} exists; --force replaces it")));
        }
        Ok(())
    }

    fn report(&self, context: &Context, address: &StoreAddress, image: &StoredImage) -> Result {
        let manifest = image.manifest();
        if context.json {
            let mut document = Map::new();
            document.insert("url".into(), address.to_string().into());
            json::put_bytes(&mut document, "image", self.dest.as_os_str().as_bytes());
            document.insert("bytes".into(), manifest.len().into());
            document.insert("manifest".into(), image.digest().to_string().into());
            document.insert("chunks".into(), manifest.chunk_count().into());
            return context.document(&document.into());
        }
        let name = shown(self.dest.as_os_str().as_bytes());
        context.note(format_args!(
            "{name}: {} from {} chunks; {}",
            size(manifest.len()),
            manifest.chunk_count(),
            image.digest()
        ));
        Ok(())
    }
}
