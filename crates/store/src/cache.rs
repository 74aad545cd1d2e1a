//! Chunks kept in a directory, as they are stored.
//!
//! `DIR/DIGEST` has the stored form of a chunk. It is not verified here, but by its reader, as a
//! chunk of the store is: a wrong one is fetched again and replaced. A file appears when it is
//! complete. Its time of change is that of its last use, so the files that were not used for the
//! longest time make way for others. Several processes may share a directory; each keeps it below
//! its bound as far as it knows, with one scan for each quarter of the bound that it adds.

use crate::address::{CachePlace, StoreObject};
use crate::transport::ObjectTransport;
use extant_sync::{Arc, Level, Mutex};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A transport with a directory of chunks before it.
#[derive(Debug)]
pub(crate) struct CachedTransport {
    inner: Arc<dyn ObjectTransport>,
    dir: PathBuf,
    size: u64,
    /// Bytes in the directory, as far as this process knows.
    used: Mutex<u64>,
}

impl CachedTransport {
    /// Takes a directory, which is made for this user alone if it is missing.
    ///
    /// # Errors
    /// Those of the directory, with its path.
    pub fn open(
        inner: Arc<dyn ObjectTransport>,
        place: &CachePlace,
    ) -> io::Result<CachedTransport> {
        let dir = place.dir.clone();
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("the cache {}: {error}", dir.display()))
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(named)?;
        let used = files(&dir).map_err(named)?.iter().map(|file| file.size).sum();
        let cache =
            CachedTransport { inner, dir, size: place.size, used: Mutex::new(Level::Leaf, used) };
        if used > place.size {
            cache.shrink();
        }
        Ok(cache)
    }

    /// Returns a kept chunk, and notes its use.
    fn kept(&self, path: &Path, max: u64) -> Option<Vec<u8>> {
        let file = File::open(path).ok()?;
        let mut data = Vec::new();
        (&file).take(max + 1).read_to_end(&mut data).ok()?;
        // A time that cannot be set makes the chunk go earlier.
        let _ = file.set_modified(SystemTime::now());
        (data.len() as u64 <= max).then_some(data)
    }

    /// Keeps a chunk, unless it alone exceeds the bound.
    fn keep(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        if data.len() as u64 > self.size {
            return Ok(());
        }
        let mut used = self.used.lock();
        *used += data.len() as u64;
        let is_full = *used > self.size;
        drop(used);
        if is_full {
            self.shrink();
        }
        let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
        file.write_all(data)?;
        file.persist(path).map(drop).map_err(|failed| failed.error)
    }

    /// Removes the files that were not used for the longest time, down to three quarters of the
    /// bound.
    fn shrink(&self) {
        let Ok(mut found) = files(&self.dir) else { return };
        found.sort_by_key(|file| file.used);
        let mut total: u64 = found.iter().map(|file| file.size).sum();
        for file in found {
            if total <= self.size / 4 * 3 {
                break;
            }
            if fs::remove_file(self.dir.join(&file.name)).is_ok() {
                total -= file.size;
            }
        }
        *self.used.lock() = total;
    }
}

/// A file of the cache.
struct Kept {
    name: String,
    size: u64,
    used: SystemTime,
}

/// Returns the chunks in a directory. Other files are not touched.
fn files(dir: &Path) -> io::Result<Vec<Kept>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_chunk = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let Ok(metadata) = entry.metadata() else { continue };
        if is_chunk && metadata.is_file() {
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push(Kept { name, size: metadata.len(), used });
        }
    }
    Ok(found)
}

impl ObjectTransport for CachedTransport {
    fn get(&self, object: StoreObject, max: u64, fresh: bool) -> io::Result<Vec<u8>> {
        let StoreObject::Chunk(digest) = object else {
            return self.inner.get(object, max, fresh);
        };
        let path = self.dir.join(digest.hex());
        if let Some(data) = (!fresh).then(|| self.kept(&path, max)).flatten() {
            return Ok(data);
        }
        let data = self.inner.get(object, max, fresh)?;
        if let Err(error) = self.keep(&path, &data) {
            tracing::debug!("{}: a chunk is not kept: {error}", self.dir.display());
        }
        Ok(data)
    }

    fn exists(&self, object: StoreObject) -> io::Result<bool> {
        self.inner.exists(object)
    }

    fn put(&self, object: StoreObject, data: Vec<u8>, replace: bool) -> io::Result<()> {
        self.inner.put(object, data, replace)
    }
}
