//! The server's side: the own certificate, and the verification of clients.

use crate::client::unusable;
use crate::explain::{Peer, failure};
use crate::files::{authorities, identity, revocations};
use crate::provider::crypto_provider;
use crate::session::TlsSession;
use extant_sync::Arc;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

/// A server with its certificate.
#[derive(Clone, Debug)]
pub struct TlsServer {
    config: Arc<ServerConfig>,
}

impl TlsServer {
    /// Reads certificates from a directory. With `verify` each client must have one of an authority
    /// in `ca-cert.pem`.
    ///
    /// # Errors
    /// `Unsupported` if this processor lacks instructions, those of the files.
    pub fn load(dir: &Path, verify: bool) -> io::Result<TlsServer> {
        let provider = crypto_provider()?;
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| failure(&error, Peer::Client))?;
        let builder = if verify {
            let (roots, revoked) = (authorities(dir)?, revocations(dir)?);
            let mut clients =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            if !revoked.is_empty() {
                clients = clients.with_crls(revoked).allow_unknown_revocation_status();
            }
            let clients = clients.build().map_err(|error| {
                let text = format!("certificates of {}: {error}", dir.display());
                io::Error::new(ErrorKind::InvalidData, text)
            })?;
            builder.with_client_cert_verifier(clients)
        } else {
            builder.with_no_client_auth()
        };
        let (chain, key) = identity(dir, "server")?;
        let built = builder.with_single_cert(chain, key);
        let mut config = built.map_err(|error| unusable(dir, "server", &error))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsServer { config: Arc::new(config) })
    }

    /// Makes the handshake over the socket of a client.
    ///
    /// # Errors
    /// Those of the socket; `InvalidData` if the client is not one that is served, or breaks the
    /// protocol.
    pub fn accept(&self, socket: &mut (impl Read + Write)) -> io::Result<TlsSession> {
        let connection = ServerConnection::new(self.config.clone());
        let connection = connection.map_err(|error| failure(&error, Peer::Client))?;
        TlsSession::begin(connection, Peer::Client, socket)
    }
}
