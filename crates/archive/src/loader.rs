//! Sources, one after the other, into one tree.

use crate::ahead::Ahead;
use crate::blobs::Blob;
use crate::codec::{Compression, Decoded, decode};
use crate::digest::{Digest, Hashing};
use crate::error::{Error, Result};
use crate::members::{Adder, Markers, Place, Rules};
use crate::patterns::Patterns;
use crate::spool::Spool;
use crate::stream::{Headers, Section, Stream};
use crate::tar::{EndMark, TarReader};
use extant_image::{ContentSink, SourceId, Tree};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of an archive.
pub enum Input {
    /// A regular file, which is read twice if it is not compressed.
    File(File),
    /// A stream, which is read once.
    Stream(Box<dyn Read + Send>),
}

impl Input {
    /// Takes an open file: as a stream unless it is a regular one.
    ///
    /// # Errors
    /// If the type of the file cannot be read.
    pub fn of(file: File) -> io::Result<Input> {
        let is_regular = file.metadata()?.is_file();
        Ok(if is_regular { Input::File(file) } else { Input::Stream(Box::new(file)) })
    }
}

/// Adds archives to a tree.
///
/// Content of archives that cannot be read twice is kept in a file without a name, in the directory
/// for temporary files; zeroes in it take no space. That of streams goes to the image at once, if a
/// place there is given.
pub struct Loader<'t> {
    pub(crate) tree: &'t mut Tree,
    directory: PathBuf,
    /// File for a spool that is not made yet, or the reason why there is none.
    spool_file: Option<io::Result<File>>,
    spool: Option<(SourceId, Spool)>,
    image: Option<&'t mut dyn ContentSink>,
}

impl<'t> Loader<'t> {
    /// Makes a loader with its directory for temporary files.
    pub fn new(tree: &'t mut Tree, directory: PathBuf) -> Loader<'t> {
        Loader { tree, directory, spool_file: None, spool: None, image: None }
    }

    /// Gives content that cannot be read twice a file that was made before, which has no content
    /// and no name. An error is returned when the file is needed.
    pub fn spool_into(&mut self, file: io::Result<File>) {
        self.spool_file = Some(file);
    }

    /// Lets content of tar archives that are streams go to an image.
    pub fn stream_to(&mut self, image: &'t mut dyn ContentSink) {
        self.image = Some(image);
    }

    /// Returns the tree.
    pub fn tree(&mut self) -> &mut Tree {
        self.tree
    }

    /// Removes the entries that patterns match, with everything below them. Hard links to them keep
    /// their content.
    ///
    /// # Errors
    /// None that a tree of valid entries has.
    pub fn exclude(&mut self, patterns: &Patterns) -> Result<()> {
        let paths = self.tree.walk().map(|entry| entry.path);
        let gone: Vec<Vec<u8>> = paths.filter(|path| patterns.matches(path)).collect();
        gone.iter().try_for_each(|path| self.tree.remove(path).map(drop))?;
        Ok(())
    }

    /// Adds the members of a tar archive. `name` names it in errors.
    ///
    /// # Errors
    /// [`Error`] with archive, member and byte; the tree has the members before it.
    pub fn add_tar(&mut self, name: &str, input: Input) -> Result<()> {
        self.tar(input, Rules::Plain).map(drop).map_err(|error| error.in_source(name))
    }

    /// Adds the members of a layer of a container image, which is a tar archive: whiteouts and
    /// opaque markers in it remove entries that were added before. `name` names it in errors.
    ///
    /// # Errors
    /// As [`Loader::add_tar`].
    pub fn add_layer(&mut self, name: &str, input: Input) -> Result<()> {
        self.tree.begin_layer();
        self.tar(input, Rules::Layer).map(drop).map_err(|error| error.in_source(name))
    }

    /// Adds the members of a tar archive, unless it turns out to be one of a container image.
    ///
    /// # Errors
    /// As [`Loader::add_tar`], and for an archive with `oci-layout` or `manifest.json` at its root.
    pub fn add_recognized_tar(&mut self, name: &str, input: Input) -> Result<()> {
        let found = self.tar(input, Rules::Plain).map_err(|error| error.in_source(name))?;
        let kind = match found {
            Markers { oci_layout: true, .. } => "oci",
            Markers { docker_manifest: true, .. } => "docker",
            _ => return Ok(()),
        };
        let cause = format_args!(
            "the archive of a container image; write `{kind}:{name}` for its file system, or \
             `tar:{name}` for the archive's own files"
        );
        Err(Error::new(cause))
    }

    fn tar(&mut self, input: Input, rules: Rules) -> Result<Markers> {
        match input {
            Input::File(file) => {
                let len = file.metadata()?.len();
                let blob = Blob::shared(Section::new(Arc::new(file), 0, len));
                match blob.compression()? {
                    Compression::None => self.add_in_place(blob, rules, EndMark::Required),
                    _ => self.unpack(decode(blob.section)?, rules, None),
                }
            }
            Input::Stream(stream) => self.stream(decode(stream)?, rules),
        }
    }

    /// Adds the members of an archive that is read once.
    fn stream(&mut self, decoded: Decoded, rules: Rules) -> Result<Markers> {
        let Some(image) = self.image.take() else { return self.unpack(decoded, rules, None) };
        let ahead = Ahead::new(decoded.stream)?;
        let mut reader = TarReader::new(ahead, EndMark::Required);
        let source = self.tree.add_arrivals();
        let place = Place::Image { source, image: &mut *image, consumed: decoded.consumed };
        let added = Adder::new(self.tree, rules, place).add_all(&mut reader);
        self.image = Some(image);
        let markers = added?;
        read_to_end(reader)?;
        Ok(markers)
    }

    /// Adds the members of an archive whose content is read from the same place later.
    pub(crate) fn add_in_place(
        &mut self,
        blob: Blob,
        rules: Rules,
        end_mark: EndMark,
    ) -> Result<Markers> {
        let base = blob.section.position();
        let source = self.tree.add_source(Arc::new(blob.content()?));
        let mut reader = TarReader::new(Headers::new(blob.section), end_mark);
        let place = Place::Archive { source, base };
        Adder::new(self.tree, rules, place).add_all(&mut reader)
    }

    /// Adds the members of an archive that is decompressed now. `digest` is that of the
    /// decompressed bytes.
    pub(crate) fn unpack(
        &mut self,
        decoded: Decoded,
        rules: Rules,
        digest: Option<&Digest>,
    ) -> Result<Markers> {
        let ahead = Ahead::new(decoded.stream)?;
        let end_mark = if digest.is_some() { EndMark::Optional } else { EndMark::Required };
        let mut reader = TarReader::new(Hashing::new(ahead, digest.is_some()), end_mark);
        let (source, mut spool) = self.take_spool()?;
        let place = Place::Spool { source, spool: &mut spool, consumed: decoded.consumed };
        let added = Adder::new(self.tree, rules, place).add_all(&mut reader);
        let flushed = spool.flush();
        self.put_spool((source, spool));
        let markers = added?;
        flushed.map_err(|error| self.spool_failed(&error))?;
        let stream = read_to_end(reader)?;
        match digest {
            Some(digest) => stream.verify(digest).map(|()| markers),
            None => Ok(markers),
        }
    }

    /// Takes the spool out of the loader, to which it must return; makes it at first.
    pub(crate) fn take_spool(&mut self) -> Result<(SourceId, Spool)> {
        if let Some(spool) = self.spool.take() {
            return Ok(spool);
        }
        let made = self
            .spool_file
            .take()
            .map_or_else(|| Spool::new(&self.directory), |file| file.map(Spool::over));
        let spool = made.map_err(|error| self.spool_failed(&error))?;
        let source = self.tree.add_source(Arc::new(spool.content()));
        Ok((source, spool))
    }

    /// Returns the spool that [`Loader::take_spool`] gave.
    pub(crate) fn put_spool(&mut self, spool: (SourceId, Spool)) {
        self.spool = Some(spool);
    }

    fn spool_failed(&self, error: &io::Error) -> Error {
        let directory = self.directory.display();
        Error::new(format_args!(
            "{directory}: a temporary file cannot be written: {error}; set TMPDIR to a directory \
             with more space"
        ))
    }
}

/// Reads the rest behind the last member: a compression has its checksum there, after the padding
/// of the archive.
fn read_to_end<S: Stream>(reader: TarReader<S>) -> Result<S> {
    let offset = reader.offset();
    let mut stream = reader.into_stream();
    io::copy(&mut stream, &mut io::sink()).map_err(|error| Error::from(error).at(offset))?;
    Ok(stream)
}
