//! Images of containers: OCI layouts, and archives of `docker save`.
//!
//! An image is a list of layers, each an archive with changes to the layers before. Sizes and
//! digests of documents are verified before they are interpreted. Layers are verified by other
//! threads while they are read, and so is the digest of each uncompressed layer: nothing else is
//! told of an image with a wrong digest. A layer that is not compressed has one digest under both
//! names, and is verified once.

mod model;
mod select;

pub use model::Platform;
pub use select::Selection;

use crate::ahead::Ahead;
use crate::blobs::{ArchiveMember, Blob, Blobs, link_target, normal};
use crate::codec::{Compression, decode};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::loader::{Input, Loader};
use crate::members::Rules;
use crate::stream::{Section, Stream};
use crate::tar::{EndMark, MemberKind, TarReader};
use crate::verification::{Check, Verification};
use model::{Config, Descriptor, Layout, parse};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number of layers.
const MAX_LAYERS: usize = 1000;

/// Maximum number of files in an archive with an image.
const MAX_MEMBERS: usize = 100_000;

/// Layers that are open and verified at a time.
const GROUP: usize = 64;

/// Place of an image of containers.
pub enum Container {
    /// Directory.
    Directory(PathBuf),
    /// Tar archive, possibly compressed.
    Archive(Input),
}

/// A layer.
struct Layer {
    name: String,
    blob: Blob,
    compression: Compression,
    /// Digest of the stored bytes, where the image has one.
    stored: Option<Digest>,
    /// Digest of the uncompressed bytes.
    diff_id: Digest,
}

impl Layer {
    fn new(name: String, blob: Blob, stored: Option<Digest>, diff_id: Digest) -> Result<Layer> {
        let compression = blob.compression()?;
        Ok(Layer { name, blob, compression, stored, diff_id })
    }

    /// Returns the digests that its stored bytes must have.
    fn checks(&self) -> impl Iterator<Item = Check> {
        let is_plain = self.compression == Compression::None;
        let plain = Some(self.diff_id).filter(|digest| is_plain && Some(*digest) != self.stored);
        self.stored.into_iter().chain(plain).map(|digest| {
            let (name, content) = (self.name.clone(), self.blob.section.clone());
            Check { name, content, digest }
        })
    }
}

/// Returns the name of a configuration without folders and extension.
fn config_name(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".json").unwrap_or(name)
}

impl Loader<'_> {
    /// Adds the files of an image in an OCI layout. `name` names the layout in errors.
    ///
    /// # Errors
    /// [`Error`] if no image or several fit the selection, for blobs that are missing or changed,
    /// and for members as [`Loader::add_tar`].
    pub fn add_oci(&mut self, name: &str, from: Container, selection: &Selection) -> Result<()> {
        self.oci(from, selection).map_err(|error| error.in_source(name))
    }

    /// Adds the files of an image in an archive of `docker save`, or in a directory with its files.
    ///
    /// # Errors
    /// As [`Loader::add_oci`].
    pub fn add_docker(&mut self, name: &str, from: Container, selection: &Selection) -> Result<()> {
        self.docker(from, selection).map_err(|error| error.in_source(name))
    }

    fn oci(&mut self, from: Container, selection: &Selection) -> Result<()> {
        let blobs = self.blobs(from)?;
        let blob = blobs.open("oci-layout")?;
        let layout: Layout = parse(&blob).map_err(|error| error.in_source("oci-layout"))?;
        if !layout.image_layout_version.starts_with("1.") {
            let version = layout.image_layout_version.escape_debug();
            return Err(Error::new(format_args!("the layout has the unknown version {version}")));
        }
        let chosen = select::choose_oci(&blobs, selection)?;
        let layers = chosen.manifest.layers;
        let diff_ids = diff_ids(&chosen.config, layers.len())?;
        let opened = layers.iter().zip(diff_ids).map(|(descriptor, diff_id)| {
            check_layer_type(descriptor)?;
            let blob = select::open_sized(&blobs, descriptor)?;
            let (name, stored) = (descriptor.digest.clone(), descriptor.digest()?);
            Layer::new(name, blob, Some(stored), diff_id)
        });
        self.add_layers(opened)
    }

    fn docker(&mut self, from: Container, selection: &Selection) -> Result<()> {
        let blobs = self.blobs(from)?;
        let image = select::choose_docker(&blobs, selection)?;
        let blob = blobs.open(&image.config)?;
        let in_config = |error: Error| error.in_source(image.config.escape_debug());
        if let Some(digest) = Digest::from_hex(config_name(&image.config)) {
            digest.verify(blob.section.clone()).map_err(in_config)?;
        }
        let config: Config = parse(&blob).map_err(in_config)?;
        if let (Some(wanted), Some(found)) = (&selection.platform, &config.platform)
            && !found.is(wanted)
        {
            return Err(Error::new(format_args!("the image is for {found}, not for {wanted}")));
        }
        let diff_ids = diff_ids(&config, image.layers.len())?;
        let opened = image.layers.iter().zip(diff_ids).map(|(path, diff_id)| {
            Layer::new(path.escape_debug().to_string(), blobs.open(path)?, None, diff_id)
        });
        self.add_layers(opened)
    }

    fn add_layers(&mut self, mut layers: impl Iterator<Item = Result<Layer>>) -> Result<()> {
        loop {
            let group = layers.by_ref().take(GROUP).collect::<Result<Vec<_>>>()?;
            if group.is_empty() {
                return Ok(());
            }
            let verification = Verification::begin(group.iter().flat_map(Layer::checks).collect())?;
            let added = group.into_iter().try_for_each(|layer| self.add_layer_of_image(layer));
            // Errors of the content of a changed blob follow from that change.
            verification.end().and(added)?;
        }
    }

    fn add_layer_of_image(&mut self, layer: Layer) -> Result<()> {
        let Layer { name, blob, compression, diff_id, .. } = layer;
        self.tree.begin_layer();
        let added = match compression {
            Compression::None => self.add_in_place(blob, Rules::Layer, EndMark::Optional),
            _ => self.unpack(decode(blob.section)?, Rules::Layer, Some(&diff_id)),
        };
        added.map(drop).map_err(|error| error.in_source(name))
    }

    fn blobs(&mut self, from: Container) -> Result<Blobs> {
        match from {
            Container::Directory(path) => Ok(Blobs::directory(&path)?),
            Container::Archive(Input::File(file)) => {
                let len = file.metadata()?.len();
                let file = Arc::new(file);
                let blob = Blob::shared(Section::new(file.clone(), 0, len));
                if blob.compression()? == Compression::None {
                    let mut reader = TarReader::new(blob.section, EndMark::Optional);
                    let members = list(&mut reader, |_, offset| Ok(offset))?;
                    return Ok(Blobs::Archive { file, members, is_shared: true });
                }
                self.spooled_blobs(decode(blob.section)?.stream)
            }
            Container::Archive(Input::Stream(stream)) => self.spooled_blobs(decode(stream)?.stream),
        }
    }

    fn spooled_blobs(&mut self, stream: Box<dyn Stream + Send>) -> Result<Blobs> {
        let stream = Ahead::new(stream)?;
        let mut reader = TarReader::new(stream, EndMark::Optional);
        let (source, mut spool) = self.take_spool()?;
        let members = list(&mut reader, |reader, _| {
            let position = spool.position();
            reader.copy_data(&mut spool)?;
            Ok(position)
        });
        let file = spool.file().cloned();
        self.put_spool((source, spool));
        Ok(Blobs::Archive { members: members?, file: file?, is_shared: false })
    }
}

/// Lists the files and links of an archive. `place` returns the offset of a file's data, given that
/// in the archive.
fn list<S: Stream>(
    reader: &mut TarReader<S>,
    mut place: impl FnMut(&mut TarReader<S>, u64) -> Result<u64>,
) -> Result<HashMap<Vec<u8>, ArchiveMember>> {
    let mut members = HashMap::new();
    while let Some(member) = reader.next_member()? {
        let Some(path) = normal(&member.path) else {
            let cause = "the path leads out of the archive";
            return Err(Error::new(cause).in_member(&member.path).at(member.offset));
        };
        let entry = match member.kind {
            MemberKind::File(data) if data.ranges.is_none() => {
                ArchiveMember::File(place(reader, data.offset)?, data.size)
            }
            MemberKind::HardLink(target) => match normal(&target) {
                Some(target) => ArchiveMember::Link(target),
                None => continue,
            },
            MemberKind::Symlink(target) => match link_target(&path, &target) {
                Some(target) => ArchiveMember::Link(target),
                None => continue,
            },
            _ => continue,
        };
        members.insert(path, entry);
        if members.len() > MAX_MEMBERS {
            let cause = format_args!("more than {MAX_MEMBERS} files in an archive of an image");
            return Err(Error::new(cause).at(member.offset));
        }
    }
    Ok(members)
}

/// Returns the digests of the uncompressed layers, of which there must be one for each layer.
fn diff_ids(config: &Config, layers: usize) -> Result<Vec<Digest>> {
    let diff_ids = &config.rootfs.diff_ids;
    if layers > MAX_LAYERS || diff_ids.len() != layers {
        return Err(Error::new(format_args!(
            "the image has {layers} layers, and {} digests of uncompressed ones; both must be \
             equal, and {MAX_LAYERS} at most",
            diff_ids.len()
        )));
    }
    diff_ids.iter().map(|digest| Digest::parse(digest)).collect()
}

fn check_layer_type(descriptor: &Descriptor) -> Result<()> {
    let kind = &descriptor.media_type;
    // The compression is recognized, since producers have stated a wrong one.
    let is_layer = (kind.contains(".layer.") || kind.contains(".rootfs.")) && kind.contains(".tar");
    if is_layer && !kind.contains("encrypted") {
        return Ok(());
    }
    let cause = format_args!("the media type {} is not one of layers", kind.escape_debug());
    Err(Error::new(cause).in_source(&descriptor.digest))
}
