//! Undo files: the old content of the blocks that a command writes.

use super::output::Output;
use crate::context::Context;
use crate::failure::{At, Result};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An undo file that appears before the first write.
#[derive(Debug)]
pub struct UndoFile {
    path: PathBuf,
    begun: Output,
}

impl UndoFile {
    /// Begins the file, which must be missing, before this process enters a sandbox.
    ///
    /// # Errors
    /// Those of creation.
    pub fn begin(path: &Path, context: &Context) -> Result<UndoFile> {
        let begun = Output::begin_new(path)?.before_sandbox(context)?;
        Ok(UndoFile { path: path.into(), begun })
    }

    /// Fills the file by `save`, and gives it its name, durably.
    ///
    /// # Errors
    /// Those of `save` as `refuse` turns them into failures; those of the file.
    pub fn save<E>(
        mut self,
        save: impl FnOnce(&mut dyn Write) -> std::result::Result<(), E>,
        refuse: impl FnOnce(E) -> crate::failure::Failure,
    ) -> Result {
        let name = self.path.as_os_str().as_bytes();
        let mut out = BufWriter::new(self.begun.file());
        save(&mut out).map_err(refuse)?;
        let saved: io::Result<()> = out.flush();
        drop(out);
        saved.and_then(|()| self.begun.file().sync_all()).at_path(name)?;
        self.begun.finish()
    }
}
