//! Redo files of changes in place, which a power cut leaves to be completed.

use super::output::{Output, PlacedOutput, parent};
use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::image::ImageArgs;
use crate::text::shown;
use extant_check::RedoRecord;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Makes a record durable.
pub type SaveRedo<'s> = dyn FnMut(&RedoRecord<'_>) -> io::Result<()> + 's;

/// A redo file that appears when the change begins, and is removed when it is made.
#[derive(Debug)]
pub struct RedoFile {
    path: PathBuf,
    /// Until it has its name.
    begun: Option<Output>,
    placed: Option<PlacedOutput>,
    /// The reason why it has none.
    failure: Option<Failure>,
}

impl RedoFile {
    /// Begins the file, which must be missing, before this process enters a sandbox.
    ///
    /// # Errors
    /// Those of creation. A file that exists may be that of a change under way.
    pub fn begin(path: &Path, image: &ImageArgs, context: &Context) -> Result<RedoFile> {
        if std::fs::symlink_metadata(path).is_ok() {
            let (file, name) = (shown(path.as_os_str().as_bytes()), image.name());
            return Err(Failure::new(format_args!(
                "{file} exists: if a change was interrupted, `extant recover --redo {file} {name}` \
                 completes it; then remove the file, or name another one"
            )));
        }
        let name = path.as_os_str().as_bytes();
        // Its name must be durable before the first write; a directory that cannot be read or
        // synced shows that here, before any change.
        File::open(parent(path)).and_then(|dir| dir.sync_all()).at_path(name)?;
        let mut begun = Output::begin_new(path)?;
        // It has content of the image, which other users may not read.
        begun.file().set_permissions(Permissions::from_mode(0o600)).at_path(name)?;
        let begun = Some(begun.before_sandbox(context)?);
        Ok(RedoFile { path: path.into(), begun, placed: None, failure: None })
    }

    /// Writes the record, and gives the file its name, durably. Says how a change is completed that
    /// is interrupted from now on.
    ///
    /// # Errors
    /// Those of the file, which [`RedoFile::failure`] has with its name.
    pub fn save(
        &mut self,
        record: &RedoRecord<'_>,
        (image, context): (&ImageArgs, &Context),
    ) -> io::Result<()> {
        let saved = self.write(record);
        saved.map_err(|failure| {
            let error = io::Error::other(failure.message().unwrap_or_default());
            self.failure = Some(failure);
            error
        })?;
        context.note(format_args!(
            "{}: the change is in {} until it is made; after a power cut, {}",
            image.name(),
            shown(self.path.as_os_str().as_bytes()),
            self.remedy(image)
        ));
        Ok(())
    }

    fn write(&mut self, record: &RedoRecord<'_>) -> Result {
        let begun = self.begun.take();
        let mut file = begun.ok_or_else(|| Failure::new("a change has one record"))?;
        let mut out = BufWriter::new(file.file());
        let saved = record.write_to(&mut out).and_then(|()| out.flush());
        drop(out);
        let saved = saved.and_then(|()| file.file().sync_all());
        saved.at_path(self.path.as_os_str().as_bytes())?;
        self.placed = Some(file.place()?);
        Ok(())
    }

    /// Returns the failure of [`RedoFile::save`].
    pub fn failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    /// Makes a change with the file, which goes when the change is made. `refuse` turns an error
    /// into a failure, with the command that completes a change of which a part is made.
    pub fn make<T, E>(
        mut self,
        (image, context): (&ImageArgs, &Context),
        change: impl FnOnce(&mut SaveRedo<'_>) -> std::result::Result<T, E>,
        refuse: impl FnOnce(E, &str) -> Failure,
    ) -> Result<T> {
        let done = change(&mut |record| self.save(record, (image, context)));
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let done = done.map_err(|error| refuse(error, &self.remedy(image)))?;
        self.end(context);
        Ok(done)
    }

    /// Names the command that completes the change.
    pub fn remedy(&self, image: &ImageArgs) -> String {
        let file = shown(self.path.as_os_str().as_bytes());
        format!("`extant recover --redo {file} {}` completes it", image.name())
    }

    /// Removes the file of a change that is made. A failure is told: the change is whole.
    pub fn end(&mut self, context: &Context) {
        if let Some(Err(failure)) = self.placed.take().map(PlacedOutput::remove) {
            let cause = failure.message().unwrap_or_default();
            context.note(format_args!("{cause}; the change is made, and the file of no more use"));
        }
    }
}
