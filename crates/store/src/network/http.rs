//! Requests by HTTP 1.1, with TLS in Rust.
//!
//! The crate `ureq` makes them, each on a thread of its own, and this module hands its answers over
//! as a whole. No redirection is followed: a store could lead the request to another host.

use crate::chunk::max_stored;
use crate::manifest::{MAX_CHUNK_SIZE, MAX_MANIFEST};
use async_trait::async_trait;
use extant_tls::{crypto_provider, system_certificates};
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpService,
};
use std::io::{self, ErrorKind, Read};
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

/// Longest answer that is no object, such as the text of an error, in bytes.
const MAX_TEXT: u64 = 64 << 10;

/// Connections that are kept for later requests.
const IDLE: usize = 32;

/// Makes clients whose requests take half of the time for an object at most: then another attempt
/// may succeed.
#[derive(Debug)]
pub(super) struct HttpWay {
    timeout: Duration,
}

impl HttpWay {
    pub fn new(timeout: Duration) -> HttpWay {
        HttpWay { timeout }
    }
}

impl HttpConnector for HttpWay {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let tls = tls().map_err(|error| object_store::Error::Generic {
            store: "TLS",
            source: Box::new(error),
        });
        let is_secure = allows_http.as_deref() != Some("true");
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .https_only(is_secure)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections_per_host(IDLE)
            .max_idle_connections(IDLE)
            .user_agent("extant")
            .timeout_global(Some(self.timeout / 2));
        match tls {
            Ok(tls) => config = config.tls_config(tls),
            Err(error) if is_secure => return Err(error),
            Err(_) => config = config.https_only(false),
        }
        Ok(HttpClient::new(Requests(config.build().new_agent())))
    }
}

/// Returns the configuration of TLS: the provider in Rust, and the certificates of the system.
fn tls() -> io::Result<TlsConfig> {
    let provider = crypto_provider()?;
    let found = system_certificates()?;
    let certs = found.iter().map(|der| Certificate::from_der(der).to_owned());
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::from(certs))
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

/// A client.
#[derive(Debug)]
struct Requests(Agent);

#[async_trait]
impl HttpService for Requests {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let agent = self.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            send(&agent, http::Request::from_parts(parts, body.to_vec()))
        });
        done.await.unwrap_or_else(|error| Err(HttpError::new(HttpErrorKind::Unknown, error)))
    }
}

/// Sends a request, and takes the whole answer.
fn send(agent: &Agent, request: http::Request<Vec<u8>>) -> Result<HttpResponse, HttpError> {
    let limit = if request.uri().path().contains("/chunks/") {
        max_stored(MAX_CHUNK_SIZE.into())
    } else {
        MAX_MANIFEST
    };
    // A body, even an empty one, is none of these.
    let is_bare = matches!(*request.method(), http::Method::GET | http::Method::HEAD);
    let sent = if is_bare { agent.run(request.map(drop)) } else { agent.run(request) };
    let (parts, body) = sent.map_err(failed)?.into_parts();
    let limit = if parts.status.is_success() { limit } else { MAX_TEXT };
    let mut bytes = Vec::new();
    let read = body.into_reader().take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|error| failed(ureq::Error::from(error)))?;
    if bytes.len() as u64 > limit {
        let text = format!("the answer has more than {limit} bytes");
        let error = io::Error::new(ErrorKind::FileTooLarge, text);
        return Err(HttpError::new(HttpErrorKind::Decode, error));
    }
    Ok(http::Response::from_parts(parts, bytes.into()))
}

/// Tells which errors another attempt may overcome.
fn failed(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
        ureq::Error::Io(error) => match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => HttpErrorKind::Timeout,
            ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
            ErrorKind::InvalidData => HttpErrorKind::Unknown,
            _ => HttpErrorKind::Interrupted,
        },
        ureq::Error::Protocol(_) | ureq::Error::BodyStalled => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
