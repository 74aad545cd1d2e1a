//! Choice of one image among those of a layout.

use super::model::{Config, Descriptor, DockerImage, Index, Manifest, Platform, parse};
use crate::blobs::{Blob, Blobs};
use crate::error::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Maximum depth of indexes in indexes.
const MAX_DEPTH: u32 = 4;

/// Maximum number of references to images.
const MAX_REFERENCES: usize = 1000;

/// Maximum number of names in an error.
const MAX_SHOWN: usize = 20;

/// Choice of an image.
#[derive(Clone, Default, Debug)]
pub struct Selection {
    /// Reference or digest of the image; not needed if there is only one.
    pub image: Option<String>,
    /// Platform; not needed if there is only one.
    pub platform: Option<Platform>,
}

/// An image that was chosen.
pub(super) struct Chosen {
    pub manifest: Manifest,
    pub config: Rc<Config>,
}

/// Opens a blob and verifies its size and digest.
pub(super) fn open_verified(blobs: &Blobs, descriptor: &Descriptor) -> Result<Blob> {
    let blob = open_sized(blobs, descriptor)?;
    let digest = descriptor.digest()?;
    digest.verify(blob.section.clone()).map_err(|error| error.in_source(digest))?;
    Ok(blob)
}

/// Opens a blob and verifies its size.
pub(super) fn open_sized(blobs: &Blobs, descriptor: &Descriptor) -> Result<Blob> {
    let blob = blobs.open(&descriptor.digest()?.path())?;
    let (found, expected) = (blob.section.len(), descriptor.size);
    if found == expected {
        return Ok(blob);
    }
    let cause = format_args!("the blob has {found} bytes, not the {expected} of its descriptor");
    Err(Error::new(cause).in_source(&descriptor.digest))
}

fn has_type(descriptor: &Descriptor, ends: [&str; 2]) -> bool {
    ends.iter().any(|end| descriptor.media_type.ends_with(end))
}

fn is_index(descriptor: &Descriptor) -> bool {
    has_type(descriptor, ["image.index.v1+json", "manifest.list.v2+json"])
}

/// Returns whether a reference leads to an image, and not to a signature or an attestation.
fn is_image(descriptor: &Descriptor) -> bool {
    let kind = descriptor.annotation("vnd.docker.reference.type");
    let is_known = has_type(descriptor, ["image.manifest.v1+json", "manifest.v2+json"]);
    (is_known || is_index(descriptor)) && kind.is_none()
}

/// Returns the references of an image at the top of a layout.
fn references(descriptor: &Descriptor) -> impl Iterator<Item = &str> {
    let keys = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
    keys.into_iter().filter_map(|key| descriptor.annotation(key))
}

fn shown<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<String> = names.map(|name| name.escape_debug().to_string()).collect();
    names.sort();
    names.dedup();
    let rest = names.len().saturating_sub(MAX_SHOWN);
    names.truncate(MAX_SHOWN);
    if rest > 0 {
        names.push(format!("{rest} more"));
    }
    if names.is_empty() { "none".to_string() } else { names.join(", ") }
}

/// Returns whether a reference of a layout is the one that is wanted. Docker leaves out its
/// registry and the tag `latest`.
fn is_reference(found: &str, wanted: &str) -> bool {
    let short = found.strip_prefix("docker.io/").unwrap_or(found);
    let shorter = short.strip_prefix("library/").unwrap_or(short);
    [found, short, shorter]
        .iter()
        .any(|name| *name == wanted || name.strip_suffix(":latest") == Some(wanted))
}

/// Chooses an image of an OCI layout.
///
/// # Errors
/// [`Error`] if none or several fit, with their names; for blobs that are missing or have been
/// changed.
pub(super) fn choose_oci(blobs: &Blobs, selection: &Selection) -> Result<Chosen> {
    let blob = blobs.open("index.json")?;
    let index: Index = parse(&blob).map_err(|error| error.in_source("index.json"))?;
    let mut tops: Vec<Descriptor> = index.manifests.into_iter().filter(is_image).collect();
    let all = tops.clone();
    if let Some(wanted) = &selection.image {
        tops.retain(|top| {
            top.digest == *wanted || references(top).any(|found| is_reference(found, wanted))
        });
    }
    tops.sort_by(|a, b| a.digest.cmp(&b.digest));
    tops.dedup_by(|a, b| a.digest == b.digest);
    let mut found = Found::default();
    for top in &tops {
        found.collect(blobs, top, MAX_DEPTH)?;
    }
    let (mut fitting, mut configs) = (Vec::new(), HashMap::new());
    for leaf in found.leaves {
        let chosen = load(blobs, &leaf, &mut configs)?;
        let platform = leaf.platform.or_else(|| chosen.config.platform.clone());
        fitting.push((platform, chosen));
    }
    let platforms: Vec<String> =
        fitting.iter().flat_map(|(platform, _)| platform).map(|p| p.to_string()).collect();
    if let Some(wanted) = &selection.platform {
        fitting.retain(|(found, _)| found.as_ref().is_some_and(|found| found.is(wanted)));
    }
    let platforms = || shown(platforms.iter().map(String::as_str));
    match (fitting.len(), tops.len()) {
        (1, _) => fitting.pop().map(|(_, chosen)| chosen).ok_or_else(|| Error::new("no image")),
        (_, 0) | (2.., 2..) => {
            let names = all.iter().flat_map(|top| references(top).chain([top.digest.as_str()]));
            Err(Error::new(format_args!(
                "one image must be chosen with --image; the layout has: {}",
                shown(names)
            )))
        }
        _ => Err(Error::new(format_args!(
            "one platform must be chosen with --platform; the image has: {}",
            platforms()
        ))),
    }
}

/// The manifests that references lead to.
#[derive(Default)]
struct Found {
    leaves: Vec<Descriptor>,
    /// Digests of all indexes and manifests: each is read once.
    seen: HashSet<String>,
}

impl Found {
    /// Adds those of another reference.
    fn collect(&mut self, blobs: &Blobs, from: &Descriptor, depth: u32) -> Result<()> {
        if self.seen.len() >= MAX_REFERENCES || depth == 0 {
            return Err(Error::new("more than 1000 images, or indexes in indexes"));
        }
        if !self.seen.insert(from.digest.clone()) {
            return Ok(());
        }
        if !is_index(from) {
            self.leaves.push(from.clone());
            return Ok(());
        }
        let blob = open_verified(blobs, from)?;
        let index: Index = parse(&blob).map_err(|error| error.in_source(&from.digest))?;
        for descriptor in index.manifests.iter().filter(|descriptor| is_image(descriptor)) {
            // Layouts often have the blobs of one platform only.
            if descriptor.digest().is_ok_and(|digest| blobs.has(&digest.path())) {
                self.collect(blobs, descriptor, depth - 1)?;
            }
        }
        Ok(())
    }
}

/// Loads a manifest, and its config unless another manifest has the same.
fn load(
    blobs: &Blobs,
    descriptor: &Descriptor,
    configs: &mut HashMap<String, Rc<Config>>,
) -> Result<Chosen> {
    let in_manifest = |error: Error| error.in_source(&descriptor.digest);
    let manifest: Manifest = parse(&open_verified(blobs, descriptor)?).map_err(in_manifest)?;
    let digest = &manifest.config.digest;
    let config = match configs.get(digest) {
        Some(config) => config.clone(),
        None => {
            let blob = open_verified(blobs, &manifest.config)?;
            let config = Rc::new(parse(&blob).map_err(|error| error.in_source(digest))?);
            configs.entry(digest.clone()).or_insert(config).clone()
        }
    };
    Ok(Chosen { manifest, config })
}

/// Chooses an image of an archive of `docker save`.
///
/// # Errors
/// [`Error`] if none or several fit, with their names.
pub(super) fn choose_docker(blobs: &Blobs, selection: &Selection) -> Result<DockerImage> {
    let blob = blobs.open("manifest.json")?;
    let all: Vec<DockerImage> = parse(&blob).map_err(|error| error.in_source("manifest.json"))?;
    let names = all.iter().flat_map(|image| {
        let tags = image.repo_tags.iter().flatten().map(String::as_str);
        tags.chain([image.config.as_str()])
    });
    let names = shown(names);
    let is_wanted = |image: &DockerImage| {
        let Some(wanted) = &selection.image else { return true };
        let mut tags = image.repo_tags.iter().flatten();
        let id = wanted.strip_prefix("sha256:").unwrap_or(wanted);
        let is_id = id.len() >= 12 && super::config_name(&image.config).starts_with(id);
        tags.any(|tag| is_reference(tag, wanted)) || image.config == *wanted || is_id
    };
    let mut fitting: Vec<DockerImage> = all.into_iter().filter(is_wanted).collect();
    match fitting.pop() {
        Some(image) if fitting.is_empty() => Ok(image),
        _ => Err(Error::new(format_args!(
            "one image must be chosen with --image; the archive has: {names}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_short_forms() {
        for wanted in ["docker.io/library/a:latest", "library/a:latest", "a:latest", "a"] {
            assert!(is_reference("docker.io/library/a:latest", wanted), "{wanted}");
        }
        assert!(is_reference("1.0", "1.0"));
        for wanted in ["a", "b:1", "ibrary/b"] {
            assert!(!is_reference("docker.io/library/b:1.0", wanted), "{wanted}");
        }
    }

    #[test]
    fn platforms_match_by_variant_if_it_is_given() {
        let is = |found: &str, wanted: &str| {
            Platform::parse(found).unwrap().is(&Platform::parse(wanted).unwrap())
        };
        assert!(is("linux/arm64", "linux/arm64/v8") && is("linux/arm/v7", "linux/arm"));
        assert!(!is("linux/arm/v7", "linux/arm/v6") && !is("linux/amd64", "linux/arm64"));
        assert!(Platform::parse("linux").is_none() && Platform::parse("/amd64").is_none());
    }
}
