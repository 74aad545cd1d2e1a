//! The client's side: the verification of a server, and the own certificate.

use crate::explain::{Peer, failure};
use crate::files::{authorities, identity, revocations};
use crate::provider::{crypto_provider, system_certificates};
use crate::session::TlsSession;
use extant_sync::Arc;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

/// A client of one host: the authorities that it trusts, and its own certificate.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    host: ServerName<'static>,
}

impl TlsClient {
    /// Reads certificates: those of the system, or of a directory alone. Without `verify` any
    /// server is accepted.
    ///
    /// # Errors
    /// `Unsupported` if this processor lacks instructions, `InvalidInput` if `host` is no name,
    /// those of the files.
    pub fn load(dir: Option<&Path>, host: &str, verify: bool) -> io::Result<TlsClient> {
        let provider = crypto_provider()?;
        let host = server_name(host)?;
        let verifier: Arc<dyn ServerCertVerifier> = if verify {
            verifier(dir, provider.clone())?
        } else {
            Arc::new(AnyServer(provider.clone()))
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failure(&error, Peer::Server))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let has_file = |dir: &&Path| dir.join("client-cert.pem").exists();
        let mut config = match dir.filter(has_file) {
            Some(dir) => {
                let (chain, key) = identity(dir, "client")?;
                let built = builder.with_client_auth_cert(chain, key);
                built.map_err(|error| unusable(dir, "client", &error))?
            }
            None => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        Ok(TlsClient { config: Arc::new(config), host })
    }

    /// Makes the handshake over a connected socket, of which nothing beyond is read.
    ///
    /// # Errors
    /// Those of the socket; `InvalidData` if the server is not the one that is asked for, or
    /// breaks the protocol.
    pub fn connect(&self, socket: &mut (impl Read + Write)) -> io::Result<TlsSession> {
        let connection = ClientConnection::new(self.config.clone(), self.host.clone());
        let connection = connection.map_err(|error| failure(&error, Peer::Server))?;
        TlsSession::begin(connection, Peer::Server, socket)
    }
}

/// Returns the error of a certificate and a key that were read.
pub(crate) fn unusable(dir: &Path, role: &str, error: &Error) -> io::Error {
    let text = format!("{}: {role}-cert.pem and {role}-key.pem: {error}", dir.display());
    io::Error::new(ErrorKind::InvalidData, text)
}

fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    // The zone of an address is for this host alone.
    let name = host.split_once('%').map_or(host, |(address, _)| address);
    ServerName::try_from(name.to_string()).map_err(|_| {
        let text = format!("{host:?} can be in no certificate; tls-hostname= names the host");
        io::Error::new(ErrorKind::InvalidInput, text)
    })
}

fn verifier(
    dir: Option<&Path>,
    provider: Arc<CryptoProvider>,
) -> io::Result<Arc<dyn ServerCertVerifier>> {
    let roots = match dir {
        Some(dir) => authorities(dir)?,
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(system_certificates()?);
            roots
        }
    };
    let revoked = dir.map(revocations).transpose()?.unwrap_or_default();
    let mut builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    if !revoked.is_empty() {
        // Other authorities may have no list.
        builder = builder.with_crls(revoked).allow_unknown_revocation_status();
    }
    let built = builder.build().map_err(|error| {
        let place = dir.map_or("the system".into(), |dir| dir.display().to_string());
        io::Error::new(ErrorKind::InvalidData, format!("certificates of {place}: {error}"))
    })?;
    Ok(built)
}

/// Accepts the certificate of any server, which must have its key.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
