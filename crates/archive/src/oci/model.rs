//! Documents of images, with the fields that matter for their files.

use crate::blobs::Blob;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::stream::fill;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;

/// Maximum size of a document, in bytes: the limit of registries for manifests.
const MAX_DOCUMENT: u64 = 4 << 20;

/// Reference to a blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    pub platform: Option<Platform>,
    #[serde(default)]
    pub annotations: Option<HashMap<String, String>>,
}

/// Operating system and processor of an image.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Platform {
    /// Operating system, as Go names it.
    pub os: String,
    /// Processor, as Go names it.
    pub architecture: String,
    /// Variant of the processor.
    pub variant: Option<String>,
}

/// `index.json`, or an index of platforms.
#[derive(Debug, Deserialize)]
pub(super) struct Index {
    #[serde(default)]
    pub manifests: Vec<Descriptor>,
}

/// Manifest of an image.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// Configuration of an image.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    #[serde(flatten)]
    pub platform: Option<Platform>,
    pub rootfs: RootFs,
}

/// Digests of the uncompressed layers.
#[derive(Debug, Deserialize)]
pub(super) struct RootFs {
    pub diff_ids: Vec<String>,
}

/// `oci-layout`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Layout {
    pub image_layout_version: String,
}

/// An image in the `manifest.json` of `docker save`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DockerImage {
    pub config: String,
    pub repo_tags: Option<Vec<String>>,
    pub layers: Vec<String>,
}

impl Platform {
    /// Parses `OS/ARCHITECTURE`, possibly with `/VARIANT`.
    pub fn parse(text: &str) -> Option<Platform> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant.to_string())),
            _ => return None,
        };
        let is_empty = os.is_empty() || architecture.is_empty();
        let (os, architecture) = (os.to_string(), architecture.to_string());
        (!is_empty).then_some(Platform { os, architecture, variant })
    }

    /// Returns whether an image for `self` is one for `wanted`.
    pub(super) fn is(&self, wanted: &Platform) -> bool {
        let variant = |platform: &Platform| match (&platform.variant, &platform.architecture[..]) {
            (None, "arm64") => Some("v8".to_string()),
            (variant, _) => variant.clone().filter(|variant| !variant.is_empty()),
        };
        let is_variant = wanted.variant.is_none() || variant(self) == variant(wanted);
        self.os == wanted.os && self.architecture == wanted.architecture && is_variant
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os.escape_debug(), self.architecture.escape_debug())?;
        match &self.variant {
            Some(variant) if !variant.is_empty() => write!(f, "/{}", variant.escape_debug()),
            _ => Ok(()),
        }
    }
}

impl Descriptor {
    /// Returns the value of an annotation.
    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns the digest.
    pub(super) fn digest(&self) -> Result<Digest> {
        Digest::parse(&self.digest)
    }
}

/// Parses a document.
///
/// # Errors
/// [`Error`] for a document that is too large, or is not of this kind.
pub(super) fn parse<T: DeserializeOwned>(blob: &Blob) -> Result<T> {
    let len = blob.section.len();
    if len > MAX_DOCUMENT {
        let cause = format_args!("a document of {len} bytes; {MAX_DOCUMENT} are the most");
        return Err(Error::new(cause));
    }
    let mut bytes = vec![0; len as usize];
    let filled = fill(&mut blob.section.clone(), &mut bytes)?;
    bytes.truncate(filled);
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::new(format_args!("no such document: {error}")))
}
