//! Images as commands open them: readers change nothing, writers recover first, and both refuse an image in use.

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::text::{count, shown};
use extant::device::image_spec;
use extant::{Error, Fs, OpenOptions, Recovery};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The image that a command works on.
#[derive(Clone, Debug, clap::Args)]
pub struct ImageArgs {
    /// Image file or block device, with @OFFSET or @pN for a part of it
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Wait until nobody else uses the image
    #[arg(long)]
    pub wait: bool,
    /// Image file or block device of the journal, where the file system has an external one
    #[arg(long, value_name = "PATH")]
    pub journal: Option<PathBuf>,
    /// Bound on all caches together, at least 64M [default: what the engine derives from the memory of the machine]
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub memory: Option<u64>,
}

fn memory_size(text: &str) -> Result<u64, String> {
    extant::mkfs::parse_size(text).map_err(|e| e.to_string())
}

impl ImageArgs {
    /// The image's name for messages.
    pub fn name(&self) -> String {
        shown(self.image.as_os_str().as_bytes())
    }

    /// Opens for reading. An image that needs recovery is recovered in memory.
    pub fn read(&self, context: &Context) -> Result<Fs> {
        self.read_with(context, OpenOptions::new())
    }

    /// As [`ImageArgs::read`], with further options.
    pub fn read_with(&self, context: &Context, options: OpenOptions) -> Result<Fs> {
        let fs = self.open(&options.read_only(true))?;
        if let Some(replayed) = replayed(fs.recovery()) {
            context.detail(format_args!("{}: {replayed} in memory, the image stays as it is", self.name()));
        }
        Ok(fs)
    }

    /// Opens for writing; recovers first.
    pub fn write(&self, context: &Context) -> Result<Fs> {
        let fs = self.open(&OpenOptions::new())?;
        if let Some(why) = &fs.recovery().read_only {
            return Err(Failure::new(format_args!("{} cannot be changed: {why}", self.name())));
        }
        if let Some(replayed) = replayed(fs.recovery()) {
            context.note(format_args!("{}: {replayed}", self.name()));
        }
        Ok(fs)
    }

    /// Opens as the options say.
    pub fn open(&self, options: &OpenOptions) -> Result<Fs> {
        let options = self.with_memory(self.with_journal(options.clone().wait(self.wait)));
        Fs::open_image(&image_spec(&self.image), &options).map_err(|e| self.refused(&e))
    }

    /// Options that name the external journal, if there is one.
    pub fn with_journal(&self, options: OpenOptions) -> OpenOptions {
        match &self.journal {
            Some(path) => options.journal_image(image_spec(path)),
            None => options,
        }
    }

    /// Options with the bound on memory, if there is one.
    pub fn with_memory(&self, options: OpenOptions) -> OpenOptions {
        match self.memory {
            Some(bytes) => options.memory(bytes),
            None => options,
        }
    }

    /// Writes everything and closes.
    pub fn close(&self, fs: Fs) -> Result {
        fs.unmount()
            .map_err(|e| Failure::new(format_args!("{}: the last changes could not be written: {e}", self.name())))
    }

    /// Ends a command that changed something and has nothing else to tell.
    pub fn finish(&self, fs: Fs, context: &Context) -> Result {
        self.close(fs)?;
        match context.json {
            true => context.document(&serde_json::json!({ "image": self.name() })),
            false => Ok(()),
        }
    }

    /// What an error of opening means, and what may be done.
    pub fn refused(&self, error: &Error) -> Failure {
        let name = self.name();
        let text = error.to_string();
        let text = text.strip_prefix(&format!("{name}: ")).unwrap_or(&text);
        match error {
            Error::Io(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
                let advice = "unmount it or let the other program end, or wait for that with --wait";
                Failure::new(format_args!("{text}; {advice}"))
            }
            Error::Posix(extant::Errno::Busy) => {
                Failure::new(format_args!("{name} is in use by another host, or was when that failed (MMP): {text}"))
            }
            _ => Failure::new(format_args!("{name}: {text}")),
        }
    }
}

/// What recovery brought back, if anything.
fn replayed(recovery: &Recovery) -> Option<String> {
    let journal = recovery.journal.as_ref().filter(|journal| journal.transactions > 0)?;
    let what = count(journal.transactions.into(), "transaction");
    Some(format!("replayed {what} ({}) of the journal", count(journal.blocks, "block")))
}

/// A path inside an image: bytes.
pub fn inside(path: &OsStr) -> &[u8] {
    path.as_bytes()
}

/// The path below `dir` with `name` behind it.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The root, for commands whose path may be left out.
pub fn root_path() -> OsString {
    "/".into()
}
