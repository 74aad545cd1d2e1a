//! Stores by HTTP, and directories, through the crate `object_store`.
//!
//! Credentials come from the environment, in the variables of the programs of each store. They are
//! in no message: those of this module have the causes of failures without addresses' queries.

mod crypto;
mod http;

use self::crypto::OwnCrypto;
use self::http::HttpWay;
use crate::address::{StoreAddress, StoreKind, StoreObject};
use crate::transport::ObjectTransport;
use extant_sync::Arc;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    RetryConfig,
};
use std::fmt::Write;
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Pauses between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Attempts for one object at most.
const ATTEMPTS: usize = 12;

/// Characters of a cause in a message.
const CAUSE: usize = 400;

/// A store with the objects of an image.
#[derive(Debug)]
pub(crate) struct NetworkTransport {
    address: StoreAddress,
    store: Arc<dyn ObjectStore>,
    /// Timers of attempts, and the threads that transfer.
    runtime: Runtime,
}

impl NetworkTransport {
    /// Makes a transport without a request.
    ///
    /// # Errors
    /// Those of the configuration in the environment.
    pub fn open(address: &StoreAddress) -> io::Result<NetworkTransport> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
        let store = store(address).map_err(|error| {
            let text = format!("{address}: {}", cause(&error));
            io::Error::new(ErrorKind::InvalidInput, text)
        })?;
        Ok(NetworkTransport { address: address.clone(), store, runtime })
    }

    fn path(&self, object: StoreObject) -> io::Result<Path> {
        let path = self.address.path_of(object);
        Path::parse(path)
            .map_err(|error| io::Error::new(ErrorKind::InvalidInput, error.to_string()))
    }

    /// Waits for a request, within the time of the address.
    fn within<T>(&self, request: impl Future<Output = Result<T, Error>>) -> io::Result<T> {
        let limit = self.address.timeout;
        let done = self.runtime.block_on(async { tokio::time::timeout(limit, request).await });
        done.unwrap_or_else(|_| {
            let seconds = limit.as_secs();
            let text = format!("no whole answer within {seconds} s; ?timeout=SECONDS allows more");
            Err(Error::Generic {
                store: "",
                source: Box::new(io::Error::new(ErrorKind::TimedOut, text)),
            })
        })
        .map_err(|error| translate(&error))
    }
}

/// Returns the store of an address.
fn store(address: &StoreAddress) -> Result<Arc<dyn ObjectStore>, Error> {
    let retry = RetryConfig {
        backoff: BackoffConfig { init_backoff: FIRST_PAUSE, max_backoff: LONGEST_PAUSE, base: 2.0 },
        max_retries: ATTEMPTS,
        retry_timeout: address.timeout,
    };
    let way = HttpWay::new(address.timeout);
    let (place, crypto) = (address.authority.as_str(), Arc::new(OwnCrypto));
    Ok(match address.kind {
        StoreKind::S3 => Arc::new(
            AmazonS3Builder::from_env()
                .with_bucket_name(place)
                .with_retry(retry)
                .with_crypto_provider(crypto)
                .with_http_connector(way)
                .build()?,
        ),
        StoreKind::Google => Arc::new(
            GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(place)
                .with_retry(retry)
                .with_crypto_provider(crypto)
                .with_http_connector(way)
                .build()?,
        ),
        StoreKind::Azure => Arc::new(
            MicrosoftAzureBuilder::from_env()
                .with_container_name(place)
                .with_retry(retry)
                .with_crypto_provider(crypto)
                .with_http_connector(way)
                .build()?,
        ),
        kind @ (StoreKind::Http | StoreKind::Https) => {
            let is_plain = kind == StoreKind::Http;
            let scheme = if is_plain { "http" } else { "https" };
            Arc::new(
                HttpBuilder::new()
                    .with_url(format!("{scheme}://{place}"))
                    .with_client_options(ClientOptions::new().with_allow_http(is_plain))
                    .with_retry(retry)
                    .with_http_connector(way)
                    .build()?,
            )
        }
        StoreKind::Directory => Arc::new(LocalFileSystem::new().with_fsync(true)),
    })
}

/// Refuses objects that may be waited for without an end, such as a FIFO. The store tells that one
/// is missing.
fn check_file(path: &str) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"))
        }
        _ => Ok(()),
    }
}

impl ObjectTransport for NetworkTransport {
    fn get(&self, object: StoreObject, max: u64, _: bool) -> io::Result<Vec<u8>> {
        let path = self.path(object)?;
        if self.address.kind == StoreKind::Directory {
            check_file(&format!("/{}", self.address.path_of(object)))?;
        }
        let got = self.within(async {
            let found = self.store.get(&path).await?;
            // A store may lie about the size: the content is bounded by the connection, too.
            if found.meta.size > max { Ok(None) } else { found.bytes().await.map(Some) }
        })?;
        got.filter(|bytes| bytes.len() as u64 <= max).map(Vec::from).ok_or_else(|| {
            io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {max} bytes"))
        })
    }

    fn exists(&self, object: StoreObject) -> io::Result<bool> {
        let path = self.path(object)?;
        match self.within(self.store.head(&path)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            found => found.map(|_| true),
        }
    }

    fn put(&self, object: StoreObject, data: Vec<u8>, replace: bool) -> io::Result<()> {
        if !self.address.is_writable() {
            let text = "this store is for reading only; push to s3, gs, az or a directory";
            return Err(io::Error::new(ErrorKind::Unsupported, text));
        }
        let path = self.path(object)?;
        let data = object_store::PutPayload::from(data);
        let mode = if replace { PutMode::Overwrite } else { PutMode::Create };
        let put = |mode: PutMode| {
            let options = PutOptions::from(mode);
            self.within(self.store.put_opts(&path, data.clone(), options)).map(drop)
        };
        match put(mode) {
            // Stores without conditions: the caller has looked whether it is there.
            Err(error) if error.kind() == ErrorKind::Unsupported && !replace => {
                put(PutMode::Overwrite)
            }
            done => done,
        }
    }
}

/// Turns an error of a store into one without the name of the object.
fn translate(error: &Error) -> io::Error {
    let (kind, remedy) = match error {
        Error::NotFound { .. } => {
            return io::Error::new(ErrorKind::NotFound, "there is no such object");
        }
        Error::AlreadyExists { .. } | Error::Precondition { .. } => {
            return io::Error::new(ErrorKind::AlreadyExists, "it exists");
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            (ErrorKind::PermissionDenied, "; check the credentials in the environment")
        }
        Error::NotSupported { .. } | Error::NotImplemented { .. } => (ErrorKind::Unsupported, ""),
        other if is_timeout(other) => (ErrorKind::TimedOut, ""),
        _ => (ErrorKind::Other, ""),
    };
    io::Error::new(kind, format!("{}{remedy}", cause(error)))
}

/// Returns whether the innermost cause is a time that ran out.
fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::TimedOut) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Returns the text of an error and its causes: one line, bounded, without the queries of
/// addresses, which may have signatures.
fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let own = error.to_string();
        // Many errors have the text of their cause.
        if !text.contains(&own) {
            let mark = if text.is_empty() { "" } else { ": " };
            let _ = write!(text, "{mark}{own}");
        }
        next = error.source();
    }
    without_queries(&text).chars().filter(|c| !c.is_control()).take(CAUSE).collect()
}

fn without_queries(text: &str) -> String {
    let clean = |word: &str| match word.split_once('?') {
        Some((address, _)) if address.contains("://") => format!("{address}?..."),
        _ => word.to_owned(),
    };
    text.split_whitespace().map(clean).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_no_queries_and_a_bound() {
        let shown = |text: &str| cause(&io::Error::other(text.to_owned()));
        let signed = "GET https://a.b/c?sig=SECRET failed\n\x1b[31m: why?";
        assert_eq!(shown(signed), "GET https://a.b/c?... failed [31m: why?");
        assert_eq!(shown(&"x".repeat(10_000)).len(), CAUSE);
    }
}
