//! Images of containers by the OCI image specification: a layer, its configuration, a manifest and
//! an index, as a directory (layout) or as an archive of one.
//!
//! All bytes follow from the tree and the options: no time of the machine is in them.

use super::compress::{self, Compression};
use super::keeper::Stage;
use super::output::{Output, parent};
use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::json::hex;
use crate::sandbox::FileCalls;
use crate::sandbox::command::Preparation;
use crate::text;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// The folder of blobs in a layout.
const BLOBS: &str = "blobs/sha256";

/// The file that marks a layout, and its content.
const MARK: (&str, &str) = ("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);

/// The last second that a time of a configuration can have: 9999-12-31 23:59:59.
const LAST_SECOND: i64 = 253_402_300_799;

/// The platform that an image is for.
#[derive(Clone, Debug)]
pub struct Platform(Map<String, Value>);

impl Platform {
    /// Parses `OS/ARCH` or `OS/ARCH/VARIANT`.
    pub fn parse(text: &str) -> Result<Platform, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let is_word = |part: &&str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b))
        };
        if !(2..=3).contains(&parts.len()) || !parts.iter().all(is_word) {
            return Err("a platform is OS/ARCH or OS/ARCH/VARIANT, as in linux/arm64/v8".into());
        }
        let keys = ["os", "architecture", "variant"].map(String::from);
        Ok(Platform(keys.into_iter().zip(parts.into_iter().map(Value::from)).collect()))
    }
}

/// A written layer.
#[derive(Debug)]
pub struct Layer {
    compression: Compression,
    /// Digest of the uncompressed archive.
    pub diff_id: String,
    /// Digest of the bytes as they are stored.
    pub digest: String,
    /// Bytes as they are stored.
    pub size: u64,
    /// The latest time of an entry, in seconds since 1970.
    newest: i64,
}

impl Layer {
    /// Writes a layer to `out`; `fill` writes its archive and returns the latest time of an entry.
    ///
    /// # Errors
    /// Those of `fill` and `out`.
    pub fn write(
        compression: Compression,
        threads: usize,
        out: &mut dyn Write,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<i64>,
    ) -> io::Result<Layer> {
        let mut stored = Hashing::new(BufWriter::with_capacity(1 << 20, out));
        let (newest, diff_id) = compress::through(compression, threads, &mut stored, |raw| {
            let mut raw = Hashing::new(raw);
            Ok((fill(&mut raw)?, raw.digest().0))
        })?;
        stored.out.flush()?;
        let (digest, size) = stored.digest();
        Ok(Layer { compression, diff_id, digest, size, newest })
    }

    fn media_type(&self) -> &'static str {
        match self.compression {
            Compression::None => "application/vnd.oci.image.layer.v1.tar",
            Compression::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            Compression::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
        }
    }
}

/// Hashes and counts the bytes on their way to another writer.
struct Hashing<W> {
    out: W,
    sum: Sha256,
    len: u64,
}

impl<W> Hashing<W> {
    fn new(out: W) -> Hashing<W> {
        Hashing { out, sum: Sha256::new(), len: 0 }
    }

    fn digest(self) -> (String, u64) {
        (named(&self.sum.finalize()), self.len)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let len = self.out.write(data)?;
        self.sum.update(&data[..len]);
        self.len += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn named(sum: &[u8]) -> String {
    format!("sha256:{}", hex(sum))
}

/// The documents of an image around its layer.
pub struct Image {
    layer: Layer,
    config: Vec<u8>,
    manifest: Vec<u8>,
    index: Vec<u8>,
}

impl Image {
    /// Describes the image of one layer. `created` is the time of the configuration; without it the
    /// latest time of an entry is.
    pub fn new(layer: Layer, platform: &Platform, tag: &str, created: Option<i64>) -> Image {
        let created = rfc3339(created.unwrap_or(layer.newest));
        let mut config = platform.0.clone();
        config.insert("created".into(), created.clone().into());
        config.insert("config".into(), json!({}));
        config.insert("rootfs".into(), json!({ "type": "layers", "diff_ids": [layer.diff_id] }));
        config.insert(
            "history".into(),
            json!([{ "created": created, "created_by": "extant export" }]),
        );
        let config = Value::from(config).to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob("application/vnd.oci.image.config.v1+json", &config),
            "layers": [{
                "mediaType": layer.media_type(),
                "digest": layer.digest,
                "size": layer.size,
            }],
        });
        let manifest = manifest.to_string().into_bytes();
        let mut listed = blob("application/vnd.oci.image.manifest.v1+json", &manifest);
        listed.insert("platform".into(), platform.0.clone().into());
        listed.insert("annotations".into(), json!({ "org.opencontainers.image.ref.name": tag }));
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [listed],
        });
        Image { layer, config, manifest, index: index.to_string().into_bytes() }
    }

    /// Returns the digests by name: of the manifest, of the configuration, and of the layer, stored
    /// and uncompressed.
    pub fn digests(&self) -> [(&'static str, String); 4] {
        let digest = |bytes: &[u8]| named(&Sha256::digest(bytes));
        [
            ("manifest", digest(&self.manifest)),
            ("config", digest(&self.config)),
            ("layer", self.layer.digest.clone()),
            ("diff_id", self.layer.diff_id.clone()),
        ]
    }

    /// Returns the small files of a layout: paths and contents.
    fn files(&self) -> Vec<(String, &[u8])> {
        let digests = self.digests();
        let blob = |digest: &str| format!("{BLOBS}/{}", bare(digest));
        vec![
            (MARK.0.into(), MARK.1.as_bytes()),
            ("index.json".into(), &self.index),
            (blob(&digests[0].1), &self.manifest),
            (blob(&digests[1].1), &self.config),
        ]
    }
}

/// Returns the hexadecimal digits of a digest.
fn bare(digest: &str) -> &str {
    digest.strip_prefix("sha256:").unwrap_or(digest)
}

/// Describes a blob.
fn blob(media_type: &str, bytes: &[u8]) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("mediaType".into(), media_type.into());
    object.insert("digest".into(), named(&Sha256::digest(bytes)).into());
    object.insert("size".into(), bytes.len().into());
    object
}

fn rfc3339(sec: i64) -> String {
    format!("{}Z", text::seconds(sec.clamp(0, LAST_SECOND)).replace(' ', "T"))
}

/// A layout under way, as a directory or as an archive (`DEST.tar`), which appears when it is
/// complete.
pub enum Layout {
    /// A new directory, or an empty one that is replaced.
    Directory(Stage),
    /// An archive, and a file for its layer: the names and lengths of the blobs must be known
    /// before the archive begins.
    Archive(Output, File),
}

impl Layout {
    /// Begins a layout, before this process enters a sandbox.
    ///
    /// # Errors
    /// The destination exists and is no empty directory; those of creation.
    pub fn begin(dest: &Path, context: &Context) -> Result<Layout> {
        let name = dest.as_os_str().as_bytes();
        if dest.extension().is_some_and(|extension| extension == "tar") {
            let spool = tempfile::tempfile_in(parent(dest)).at_path(name)?;
            return Ok(Layout::Archive(Output::begin(dest)?.before_sandbox(context)?, spool));
        }
        if fs::read_dir(dest).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(Failure::new(format_args!(
                "{}: holds files; an image goes into a new or an empty directory",
                text::shown(name)
            )));
        }
        Ok(Layout::Directory(Stage::begin(dest, 0o777)?))
    }

    /// Returns the sandbox in which it can be written.
    pub fn sandbox(&self) -> Preparation {
        match self {
            Layout::Directory(stage) => {
                Preparation::default().beneath(stage.dir(), FileCalls::Making)
            }
            Layout::Archive(..) => Preparation::default(),
        }
    }

    /// Writes the layout. `make` writes the layer and describes the image.
    ///
    /// # Errors
    /// Those of `make`; those of writing.
    pub fn write(
        self,
        dest: &Path,
        make: impl FnOnce(&mut File) -> Result<Image>,
    ) -> Result<Image> {
        match self {
            Layout::Directory(stage) => write_directory(&stage, dest, make),
            Layout::Archive(output, spool) => write_archive(output, spool, dest, make),
        }
    }
}

fn write_directory(
    stage: &Stage,
    dest: &Path,
    make: impl FnOnce(&mut File) -> Result<Image>,
) -> Result<Image> {
    let name = dest.as_os_str().as_bytes();
    let blobs = stage.dir().join(BLOBS);
    fs::create_dir_all(&blobs).at_path(name)?;
    let spool = blobs.join("layer");
    let mut file = File::create_new(&spool).at_path(name)?;
    let image = make(&mut file)?;
    fs::rename(&spool, blobs.join(bare(&image.layer.digest))).at_path(name)?;
    for (path, content) in image.files() {
        fs::write(stage.dir().join(path), content).at_path(name)?;
    }
    stage.place().at_path(name)?;
    Ok(image)
}

fn write_archive(
    mut output: Output,
    mut spool: File,
    dest: &Path,
    make: impl FnOnce(&mut File) -> Result<Image>,
) -> Result<Image> {
    let image = make(&mut spool)?;
    let written = spool.rewind().and_then(|()| {
        let mut builder = Builder::new(BufWriter::with_capacity(1 << 20, output.file()));
        for (path, content) in image.files() {
            append(&mut builder, &path, content.len() as u64, content)?;
        }
        let path = format!("{BLOBS}/{}", bare(&image.layer.digest));
        append(&mut builder, &path, image.layer.size, spool)?;
        builder.into_inner()?.flush()
    });
    written.at_path(dest.as_os_str().as_bytes())?;
    output.finish()?;
    Ok(image)
}

fn append(
    builder: &mut Builder<impl Write>,
    path: &str,
    size: u64,
    content: impl Read,
) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(size);
    builder.append_data(&mut header, path, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_have_two_or_three_parts() {
        let platform = Platform::parse("linux/arm64/v8").unwrap();
        assert_eq!(
            Value::from(platform.0),
            json!({ "os": "linux", "architecture": "arm64", "variant": "v8" })
        );
        assert_eq!(Platform::parse("linux/amd64").unwrap().0.len(), 2);
        for bad in ["", "linux", "linux/", "/amd64", "a/b/c/d", "linux/a b"] {
            assert!(Platform::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        assert_eq!(rfc3339(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(rfc3339(i64::MIN), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(i64::MAX), "9999-12-31T23:59:59Z");
    }
}
