//! The cryptography, and the certificates of the system.

use extant_sync::Arc;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use std::io::{self, ErrorKind};

/// Returns whether this processor has the instructions that `graviola` needs, which ends the
/// process otherwise.
#[cfg(target_arch = "x86_64")]
fn is_usable() -> bool {
    use std::is_x86_feature_detected as has;
    has!("aes")
        && has!("pclmulqdq")
        && has!("ssse3")
        && has!("avx")
        && has!("avx2")
        && has!("bmi1")
        && has!("bmi2")
        && has!("adx")
}

#[cfg(target_arch = "aarch64")]
fn is_usable() -> bool {
    use std::arch::is_aarch64_feature_detected as has;
    has!("aes") && has!("sha2") && has!("pmull") && has!("neon")
}

/// Returns the cryptography of TLS.
///
/// # Errors
/// `Unsupported` if this processor lacks instructions for it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub fn crypto_provider() -> io::Result<Arc<CryptoProvider>> {
    if !is_usable() {
        let text = "TLS needs a processor with AES, AVX2, ADX and BMI2 (x86), or with AES, SHA2 \
                    and PMULL (ARM); this one lacks them; a proxy such as stunnel helps";
        return Err(io::Error::new(ErrorKind::Unsupported, text));
    }
    Ok(Arc::new(rustls_graviola::default_provider()))
}

/// Returns the cryptography of TLS.
///
/// # Errors
/// `Unsupported`, as there is none for this kind of processor.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn crypto_provider() -> io::Result<Arc<CryptoProvider>> {
    let text = "TLS is not supported on this kind of processor; a proxy such as stunnel helps";
    Err(io::Error::new(ErrorKind::Unsupported, text))
}

/// Returns the certificates of the authorities that this system trusts, or those of the variables
/// `SSL_CERT_FILE` and `SSL_CERT_DIR`.
///
/// # Errors
/// `NotFound` if there is none.
pub fn system_certificates() -> io::Result<Vec<CertificateDer<'static>>> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let text = "no certificates are installed; the package ca-certificates has them, and \
                    SSL_CERT_FILE names others";
        return Err(io::Error::new(ErrorKind::NotFound, text));
    }
    Ok(found.certs)
}
