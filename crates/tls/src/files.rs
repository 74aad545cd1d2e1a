//! Certificates, keys and revocations in files, as PEM.

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Bytes of a file at most.
const MAX_FILE: u64 = 16 << 20;

/// Returns an error with the path of a file.
fn of_file(path: &Path, kind: ErrorKind, why: impl std::fmt::Display) -> io::Error {
    io::Error::new(kind, format!("{}: {why}", path.display()))
}

fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let read = || {
        let file = File::open(path)?;
        // A FIFO would be waited for.
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error: io::Error| of_file(path, error.kind(), error))
}

/// Returns all objects of a kind in a file, of which there is one at least.
fn objects<T: PemObject>(path: &Path, kind: &str) -> io::Result<Vec<T>> {
    let bytes = bytes(path)?;
    let found: Result<Vec<T>, Error> = T::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(of_file(path, ErrorKind::InvalidData, format!("it has no {kind} in PEM"))),
        Err(error) => Err(of_file(path, ErrorKind::InvalidData, format!("no PEM: {error}"))),
    }
}

/// Returns a certificate, with those of the authorities between it and a trusted one behind it, and
/// its key.
pub fn identity(
    dir: &Path,
    role: &str,
) -> io::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let chain = objects(&dir.join(format!("{role}-cert.pem")), "certificate")?;
    let path = dir.join(format!("{role}-key.pem"));
    let key = PrivateKeyDer::from_pem_slice(&bytes(&path)?).map_err(|_| {
        of_file(&path, ErrorKind::InvalidData, "it has no private key without a passphrase in PEM")
    })?;
    Ok((chain, key))
}

/// Returns the authorities of `ca-cert.pem`.
pub fn authorities(dir: &Path) -> io::Result<RootCertStore> {
    let path = dir.join("ca-cert.pem");
    let mut roots = RootCertStore::empty();
    for certificate in objects(&path, "certificate")? {
        roots.add(certificate).map_err(|error| of_file(&path, ErrorKind::InvalidData, error))?;
    }
    Ok(roots)
}

/// Returns the revocations of `ca-crl.pem`, if there is one.
pub fn revocations(dir: &Path) -> io::Result<Vec<CertificateRevocationListDer<'static>>> {
    match objects(&dir.join("ca-crl.pem"), "list of revocations") {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        found => found,
    }
}
