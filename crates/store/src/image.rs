//! An image in a store: its manifest, and its chunks, verified.

use crate::address::{StoreAddress, StoreObject};
use crate::chunk::{decode, max_stored};
use crate::digest::ChunkDigest;
use crate::manifest::{MAX_MANIFEST, StoreManifest};
use crate::transport::ObjectTransport;
use crate::ways::transport_of;
use extant_sync::Arc;
use std::io::{self, ErrorKind};

/// An image in a store.
#[derive(Clone, Debug)]
pub struct StoredImage {
    address: StoreAddress,
    manifest: Arc<StoreManifest>,
    digest: ChunkDigest,
    transport: Arc<dyn ObjectTransport>,
}

impl StoredImage {
    /// Fetches the manifest of an image.
    ///
    /// # Errors
    /// `NotFound` if there is none, `InvalidData` if it is none, or another one than the address
    /// demands; those of the transport. They name the object.
    pub fn open(address: &StoreAddress) -> io::Result<StoredImage> {
        let transport = transport_of(address)?;
        StoredImage::open_by(address, transport)
    }

    /// As [`StoredImage::open`], by a transport.
    ///
    /// # Errors
    /// As [`StoredImage::open`].
    pub fn open_by(
        address: &StoreAddress,
        transport: Arc<dyn ObjectTransport>,
    ) -> io::Result<StoredImage> {
        let named = |error| named(address, StoreObject::Manifest, error);
        let bytes = transport.get(StoreObject::Manifest, MAX_MANIFEST, true).map_err(named)?;
        let digest = ChunkDigest::of(&bytes);
        if let Some(wanted) = address.digest.filter(|wanted| *wanted != digest) {
            let text =
                format!("the manifest is {digest}, and not {wanted}; the image was replaced");
            return Err(named(io::Error::new(ErrorKind::InvalidData, text)));
        }
        let manifest = StoreManifest::parse(&bytes).map_err(|error| {
            let text = format!("this is no image that `extant push` has stored: {error}");
            named(io::Error::new(error.kind(), text))
        })?;
        Ok(StoredImage {
            address: address.clone(),
            manifest: Arc::new(manifest),
            digest,
            transport,
        })
    }

    /// Returns the address.
    pub fn address(&self) -> &StoreAddress {
        &self.address
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &StoreManifest {
        &self.manifest
    }

    /// Returns the digest of the manifest.
    pub fn digest(&self) -> ChunkDigest {
        self.digest
    }

    /// Fetches a chunk of `len` bytes and verifies it. A wrong one is fetched once more: it may be
    /// one of a cache, or damaged on its way.
    ///
    /// # Errors
    /// `InvalidData` for another content; those of the transport. They name the object.
    pub(crate) fn chunk(&self, digest: ChunkDigest, len: usize) -> io::Result<Vec<u8>> {
        let object = StoreObject::Chunk(digest);
        let get = |fresh| {
            let stored = self.transport.get(object, max_stored(len as u64), fresh)?;
            decode(&stored, len, &digest)
        };
        let got = match get(false) {
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                tracing::debug!("{}: {error}; fetched again", self.address.address_of(object));
                get(true)
            }
            got => got,
        };
        got.map_err(|error| named(&self.address, object, error))
    }
}

/// Names the object of an error.
pub(crate) fn named(address: &StoreAddress, object: StoreObject, error: io::Error) -> io::Error {
    let kind = match object {
        StoreObject::Chunk(_) => "chunk ",
        StoreObject::Manifest => "",
    };
    io::Error::new(error.kind(), format!("{kind}{}: {error}", address.address_of(object)))
}
