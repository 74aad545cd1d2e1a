//! Addresses of images in object stores.

use crate::digest::ChunkDigest;
use extant_blocks::parse_image_spec;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// How long one object is waited for, with all attempts, unless the address says otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_TIMEOUT: u64 = 24 * 3600;

/// Bound of a cache in a directory, in bytes, unless the address says otherwise.
const CACHE_SIZE: u64 = 1 << 30;

/// Directory of the chunks beside the manifests.
const CHUNKS: &str = "chunks";

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoreKind {
    S3,
    Google,
    Azure,
    Http,
    Https,
    Directory,
}

impl StoreKind {
    const ALL: [StoreKind; 6] = [
        StoreKind::S3,
        StoreKind::Google,
        StoreKind::Azure,
        StoreKind::Http,
        StoreKind::Https,
        StoreKind::Directory,
    ];

    fn scheme(self) -> &'static str {
        match self {
            StoreKind::S3 => "s3",
            StoreKind::Google => "gs",
            StoreKind::Azure => "az",
            StoreKind::Http => "http",
            StoreKind::Https => "https",
            StoreKind::Directory => "file",
        }
    }
}

/// An object of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreObject {
    /// The list of its chunks.
    Manifest,
    /// A chunk.
    Chunk(ChunkDigest),
}

/// A directory for chunks that were fetched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CachePlace {
    pub dir: PathBuf,
    /// Bytes that it may have.
    pub size: u64,
}

/// The address of an image in a store, such as `s3://BUCKET/DIR/NAME`.
///
/// `DIR/NAME` is its manifest, and `DIR/chunks` has the chunks of all images in `DIR`. Other stores
/// are `gs://BUCKET`, `az://CONTAINER`, `http://HOST[:PORT]`, `https://HOST[:PORT]` and `file:///`.
/// `NAME@sha256:DIGEST` demands that the manifest has this digest.
///
/// Parameters, after `?` and `&`, are `timeout=SECONDS`, 60 by default: how long an object is
/// waited for, with all attempts; `cache=DIRECTORY`: keep chunks there; and `cache-size=BYTES`,
/// with `k`, `M`, `G` or `T`, 1 GiB by default.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreAddress {
    pub(crate) kind: StoreKind,
    /// Bucket, container, or host and port; empty for a directory.
    pub(crate) authority: String,
    /// Names of directories, each with a slash behind it.
    pub(crate) dir: String,
    pub(crate) name: String,
    pub(crate) digest: Option<ChunkDigest>,
    pub(crate) timeout: Duration,
    pub(crate) cache: Option<CachePlace>,
}

impl FromStr for StoreAddress {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<StoreAddress> {
        parse(text).map_err(|why| {
            // Of an address with a password, this program shows nothing, nor a token.
            let shown = if text.contains('@') { "the address" } else { text };
            let shown = shown.split('?').next().unwrap_or_default();
            let shown = format!("{shown}: no address of an image in a store: {why}");
            io::Error::new(io::ErrorKind::InvalidInput, shown)
        })
    }
}

impl StoreAddress {
    /// Returns the path of an object within the bucket, container, host or machine.
    pub fn path_of(&self, object: StoreObject) -> String {
        match object {
            StoreObject::Manifest => format!("{}{}", self.dir, self.name),
            StoreObject::Chunk(digest) => {
                let hex = digest.hex();
                format!("{}{CHUNKS}/{}/{hex}", self.dir, &hex[..2])
            }
        }
    }

    /// Returns the address of an object, for messages.
    pub fn address_of(&self, object: StoreObject) -> String {
        format!("{}://{}/{}", self.kind.scheme(), self.authority, self.path_of(object))
    }

    /// Returns whether images can be pushed there.
    pub fn is_writable(&self) -> bool {
        !matches!(self.kind, StoreKind::Http | StoreKind::Https)
    }

    /// Returns the digest that the manifest must have.
    pub fn digest(&self) -> Option<ChunkDigest> {
        self.digest
    }

    /// Returns the address of the manifest with this digest.
    #[must_use]
    pub fn with_digest(self, digest: ChunkDigest) -> StoreAddress {
        StoreAddress { digest: Some(digest), ..self }
    }
}

fn parse(text: &str) -> Result<StoreAddress, String> {
    let (scheme, rest) = text.split_once("://").ok_or("it has no scheme")?;
    let kind = StoreKind::ALL.into_iter().find(|kind| kind.scheme() == scheme);
    let kind = kind.ok_or_else(|| format!("the scheme {scheme} is unknown"))?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if let Some(bad) = rest.chars().find(|c| c.is_control() || "#%\\".contains(*c)) {
        return Err(format!("names with {bad:?} are not supported"));
    }
    let (authority, path) = rest.split_once('/').ok_or("it names no image: SCHEME://PLACE/NAME")?;
    match kind {
        StoreKind::Directory if !authority.is_empty() => {
            return Err("a directory begins with a third slash: file:///DIR/NAME".into());
        }
        StoreKind::Directory => {}
        _ if authority.is_empty() => return Err("it names no bucket or host".into()),
        _ if authority.contains('@') => {
            return Err("it names a user; credentials come from the environment".into());
        }
        _ => {}
    }
    let (dir, name) = match path.rsplit_once('/') {
        Some((dir, name)) => (Some(dir), name),
        None => (None, path),
    };
    let (name, digest) = match name.split_once("@sha256:") {
        Some((name, digits)) => {
            let digest = ChunkDigest::parse(&format!("sha256:{digits}"));
            (name, Some(digest.ok_or("behind @sha256: it has not 64 lowercase digits")?))
        }
        None => (name, None),
    };
    if parse_image_spec(name).path != Path::new(name) {
        return Err("its name ends as that of a part of an image (@OFFSET, @pN)".into());
    }
    if name.is_empty() || name == CHUNKS {
        return Err(format!("its last part must be the name of an image, and not `{CHUNKS}`"));
    }
    let is_name = |part: &str| !["", ".", ".."].contains(&part);
    if !is_name(name) || !dir.is_none_or(|dir| dir.split('/').all(is_name)) {
        return Err("a directory in it is empty, `.` or `..`".into());
    }
    let (timeout, cache) = parameters(query)?;
    let dir = dir.map_or_else(String::new, |dir| format!("{dir}/"));
    let (authority, name) = (authority.into(), name.into());
    Ok(StoreAddress { kind, authority, dir, name, digest, timeout, cache })
}

/// Parses the parameters of an address.
fn parameters(query: &str) -> Result<(Duration, Option<CachePlace>), String> {
    let (mut timeout, mut dir, mut size) = (TIMEOUT, None, None);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match key {
            "timeout" => {
                let seconds = value.parse().ok().filter(|n| (1..=MAX_TIMEOUT).contains(n));
                let seconds = seconds
                    .ok_or_else(|| format!("timeout must be a number from 1 to {MAX_TIMEOUT}"))?;
                timeout = Duration::from_secs(seconds);
            }
            "cache" if !value.is_empty() => {
                dir = Some(std::path::absolute(value).map_err(|error| error.to_string())?);
            }
            "cache" => return Err("cache names no directory".into()),
            "cache-size" => {
                size = Some(bytes(value).ok_or("cache-size must be a number of bytes")?);
            }
            _ => {
                return Err(format!(
                    "{key} is no parameter; there are timeout, cache and cache-size"
                ));
            }
        }
    }
    match (dir, size) {
        (None, Some(_)) => Err("cache-size belongs to cache=DIRECTORY".into()),
        (dir, size) => {
            let size = size.unwrap_or(CACHE_SIZE);
            Ok((timeout, dir.map(|dir| CachePlace { dir, size })))
        }
    }
}

/// Parses a number of bytes with a suffix `k`, `M`, `G` or `T` in powers of 1024.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['k', 'K', 'M', 'G', 'T']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address_of(StoreObject::Manifest))?;
        self.digest.iter().try_for_each(|digest| write!(f, "@{digest}"))?;
        let mut mark = '?';
        if self.timeout != TIMEOUT {
            write!(f, "{mark}timeout={}", self.timeout.as_secs())?;
            mark = '&';
        }
        if let Some(cache) = &self.cache {
            write!(f, "{mark}cache={}&cache-size={}", cache.dir.display(), cache.size)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_as_they_are_parsed() {
        let pin = format!("s3://b/n@{}", ChunkDigest::of(b"x"));
        for text in [
            "s3://bucket/name",
            "gs://bucket/a/b/name",
            "az://container/name",
            "http://localhost:8080/dir/name?timeout=5",
            "https://host/name",
            "file:///dir/na me",
            "s3://b/one@home",
            "s3://b/n?timeout=5&cache=/c&cache-size=4096",
            &pin,
        ] {
            assert_eq!(text.parse::<StoreAddress>().unwrap().to_string(), text);
        }
        let cached: StoreAddress = "s3://b/n?cache=/c&cache-size=2M".parse().unwrap();
        assert_eq!(cached.to_string(), "s3://b/n?cache=/c&cache-size=2097152");
    }

    #[test]
    fn objects_lie_beside_each_other() {
        let address: StoreAddress = "s3://bucket/a/b/name".parse().unwrap();
        assert_eq!(address.path_of(StoreObject::Manifest), "a/b/name");
        let chunk = address.path_of(StoreObject::Chunk(ChunkDigest::of(b"")));
        assert!(chunk.starts_with("a/b/chunks/e3/e3b0c44298fc1c14"), "{chunk}");
        assert!(address.is_writable());
        let top: StoreAddress = "http://host/name".parse().unwrap();
        assert_eq!(
            (top.path_of(StoreObject::Manifest).as_str(), top.is_writable()),
            ("name", false)
        );
    }

    #[test]
    fn other_texts_are_refused_without_their_passwords() {
        for (text, why) in [
            ("/dir/name", "no scheme"),
            ("ftp://h/n", "unknown"),
            ("s3://bucket", "names no image"),
            ("s3:///name", "names no bucket"),
            ("s3://b/", "last part"),
            ("s3://b/chunks", "last part"),
            ("s3://b/../n", "`..`"),
            ("s3://b//n", "empty"),
            ("s3://b/a%2fb", "not supported"),
            ("file://host/n", "third slash"),
            ("file:///d/n@p1", "part of an image"),
            ("s3://b/n@4096", "part of an image"),
            ("s3://b/n?timeout=0", "timeout must"),
            ("s3://b/n?cache-size=1G", "belongs to"),
            ("s3://b/n?cache=/c&cache-size=1X", "number of bytes"),
            ("s3://b/n?colour=red", "no parameter"),
            ("s3://b/n@sha256:12", "64 lowercase"),
            ("https://me:secret@host/n", "names a user"),
        ] {
            let error = text.parse::<StoreAddress>().unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }
}
