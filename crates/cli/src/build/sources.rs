//! All sources of an image, and the sandbox in which they are parsed.
//!
//! Sources of strangers are parsed by a process that can open them, and the image, and nothing else
//! (see [`sandbox`](crate::sandbox)). Its other files are opened before: the output, and a file
//! without a name for content that is decompressed. The kernel parses directories: a build of
//! directories alone needs no sandbox, unless the image goes to a server of network block devices.

use super::source::Source;
use super::target::Target;
use crate::context::Context;
use crate::failure::Result;
use crate::format::Format;
use crate::image::ImageArgs;
use crate::sandbox::command::{Images, Preparation, leave_feigned_root};
use extant_archive::{Loader, root_is_feigned};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;

/// The sources, in their order.
pub struct Sources {
    all: Vec<Source>,
    /// File for content that is decompressed, or the reason why there is none. A process outside of
    /// a sandbox makes it when it is needed.
    spool: Option<io::Result<File>>,
}

impl Sources {
    /// Takes the arguments that name them.
    pub fn of(arguments: &[OsString]) -> Sources {
        Sources {
            all: arguments.iter().map(|argument| Source::of(argument)).collect(),
            spool: None,
        }
    }

    /// Returns each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.all.iter()
    }

    /// Returns those that are images.
    fn images(&self) -> Vec<ImageArgs> {
        self.iter().filter_map(Source::as_image).collect()
    }

    /// Executes this program again without a library that feigns root, if that changes no source.
    pub fn leave_feigned_root(&self, context: &Context) {
        if context.sandbox && self.images().len() == self.all.len() {
            leave_feigned_root();
        }
    }

    /// Enters the sandbox, with all files that the image needs. There is none under a library that
    /// feigns root, which gives files of the host, and the root, other owners, and none without
    /// `/proc`, unless all sources are images.
    ///
    /// # Errors
    /// An image among the sources is in use, or a file of the target cannot be made.
    pub fn contain(
        &mut self,
        target: Option<&mut Target<'_>>,
        (out, format): (&Path, Format),
        context: &Context,
    ) -> Result {
        let images = self.images();
        let is_remote = matches!(target, Some(Target::Remote(..)));
        let is_parsed = is_remote || !self.iter().all(Source::is_directory);
        // Files under way are known to a sandbox by their names there.
        let has_names = Path::new("/proc/self/fd").is_dir();
        let is_possible = images.len() == self.all.len() || has_names && !root_is_feigned();
        if !(context.sandbox && is_parsed && is_possible) {
            return Ok(());
        }
        let mut sandbox =
            self.iter().fold(Preparation::default(), |sandbox, source| source.allow_in(sandbox));
        if let Some(target) = target {
            target.begin(format, context, &mut sandbox)?;
        }
        if images.len() < self.all.len() {
            self.spool = Some(tempfile::tempfile());
        }
        let files: Vec<Images> = images.iter().map(ImageArgs::files).collect();
        sandbox.enter(context, &files).map_err(|(number, error)| {
            let image = images.get(number).cloned().unwrap_or_else(|| ImageArgs::of(out));
            image.refused(&error)
        })
    }

    /// Gives a loader the file for content that is decompressed.
    pub fn spool_into(&mut self, loader: &mut Loader<'_>) {
        if let Some(spool) = self.spool.take() {
            loader.spool_into(spool);
        }
    }
}
