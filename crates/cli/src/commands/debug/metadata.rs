//! Images of the metadata of a file system, to show damage to others.

use super::MetadataArgs;
use super::out::{Out, Record};
use crate::build::target::pack;
use crate::commands::clone::random_uuid;
use crate::context::Context;
use crate::copy::output::{Output, check_other, device_of, hold_replaced, parent};
use crate::failure::{At, Failure, Result};
use crate::image::ImageArgs;
use crate::sandbox::command::Preparation;
use crate::text::shown;
use extant_check::debug::{Inspector, SavedMetadata};
use extant_engine::device::{BlockDevice, FileDevice, image_spec};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An image under way, whose files were made before the sandbox.
pub struct Begun<'a> {
    args: &'a MetadataArgs,
    output: Output,
    /// A raw image without a name, which is packed.
    scratch: Option<File>,
    /// The secret from which other names follow.
    key: Option<[u8; 16]>,
    /// An image that is replaced.
    _held: Option<FileDevice>,
}

/// Makes the files of an image, and lets a sandbox write to them.
pub fn begin<'a>(
    args: &'a MetadataArgs,
    image: &ImageArgs,
    context: &Context,
    sandbox: Preparation,
) -> Result<(Begun<'a>, Preparation)> {
    check_other(&args.out, &image.spec())?;
    if let Some(journal) = &image.journal {
        check_other(&args.out, &image_spec(journal))?;
    }
    check_new(&args.out, args.force)?;
    let held = hold_replaced(&args.out)?;
    let key = args.scramble.then(random_uuid).transpose()?;
    let mut scratch = None;
    if args.qcow2 {
        let dir = parent(&args.out);
        scratch = Some(tempfile::tempfile_in(dir).at_path(dir.as_os_str().as_bytes())?);
    }
    // Without --force also a file that appears meanwhile is not replaced.
    let begin = if args.force { Output::begin } else { Output::begin_new };
    let mut output = begin(&args.out)?.before_sandbox(context)?;
    let path = |file: &File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let files = [Some(output.path()), scratch.as_ref().map(path)];
    let sandbox = files.iter().flatten().fold(sandbox, |sandbox, file| sandbox.writing_to(file));
    Ok((Begun { args, output, scratch, key, _held: held }, sandbox))
}

/// Refuses a file that is there.
fn check_new(path: &Path, force: bool) -> Result {
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    let name = shown(path.as_os_str().as_bytes());
    if !found.is_file() {
        return Err(Failure::new(format_args!("{name} is no regular file")));
    }
    if !force {
        return Err(Failure::new(format_args!("{name} exists; --force replaces it")));
    }
    Ok(())
}

impl Begun<'_> {
    /// Writes the image. It appears when it is complete, also if parts of the file system cannot be
    /// read, which are problems.
    pub fn save(mut self, inspector: &Inspector, context: &Context, out: &mut Out) -> Result {
        let name = self.args.out.as_os_str().as_bytes();
        let len = inspector.device_len();
        let saved = match &self.scratch {
            None => {
                let target = self.output.device(len).at_path(name)?;
                save(inspector, &target, self.key, context).at_path(name)?
            }
            Some(scratch) => {
                let raw = device_of(scratch, len).at_path(name)?;
                let saved = save(inspector, &raw, self.key, context).at_path(name)?;
                let packed = self.output.device(0).at_path(name)?;
                pack(&raw, &packed, context).at_path(name)?;
                saved
            }
        };
        self.output.finish()?;
        let record = Record::new()
            .bytes("metadata", name)
            .with("bytes", len)
            .with("stored_bytes", saved.bytes)
            .with("scrambled", self.args.scramble);
        out.line(&record)?;
        saved.notes.iter().for_each(|note| context.note(note));
        Ok(out.problems(&saved.problems)?)
    }
}

fn save(
    inspector: &Inspector,
    target: &dyn BlockDevice,
    key: Option<[u8; 16]>,
    context: &Context,
) -> std::io::Result<SavedMetadata> {
    let bar = context.progress(u64::from(inspector.group_count()) * 2);
    let saved = inspector.save_metadata(target, key, &mut |done| bar.set_position(done.into()));
    bar.finish_and_clear();
    saved
}
