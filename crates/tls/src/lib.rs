//! TLS for connections that several threads use, without C.
//!
//! [`TlsClient`] and [`TlsServer`] have the certificates, which they read from files once, and make
//! the handshake over a connected socket. The [`TlsSession`] that follows encrypts and decrypts.
//! TLS 1.2 and 1.3, without resumption: each connection verifies the certificates.
//!
//! # Certificates
//! A directory has them in PEM, with the names of other programs of NBD: `ca-cert.pem`, the
//! authorities that sign those of the other end; `client-cert.pem` and `client-key.pem`, or
//! `server-cert.pem` and `server-key.pem`, the own ones; and `ca-crl.pem`, revoked ones.
#![forbid(unsafe_code)]

mod client;
mod explain;
mod files;
mod provider;
mod server;
mod session;

pub use client::TlsClient;
pub use provider::{crypto_provider, system_certificates};
pub use server::TlsServer;
pub use session::TlsSession;
