//! Digests and signatures of requests.
//!
//! SHA-256 and HMAC are in Rust for every processor. Keys of service accounts of Google need RSA,
//! which comes from the provider of TLS.

use extant_sync::Arc;
use extant_tls::crypto_provider;
use hmac::{Hmac, Mac};
use object_store::client::{
    CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, Signer, SigningAlgorithm,
};
use object_store::{Error, Result};
use rustls::SignatureScheme;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::SigningKey;
use sha2::{Digest, Sha256};
use std::io;

/// The functions of this module for `object_store`.
#[derive(Debug)]
pub(super) struct OwnCrypto;

fn other(text: impl Into<String>) -> Error {
    Error::Generic { store: "signature", source: Box::new(io::Error::other(text.into())) }
}

struct Hash(Sha256, [u8; 32]);

impl DigestContext for Hash {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.1 = self.0.finalize_reset().into();
        Ok(&self.1)
    }
}

struct Code(Hmac<Sha256>, [u8; 32]);

impl HmacContext for Code {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.1 = self.0.clone().finalize().into_bytes().into();
        Ok(&self.1)
    }
}

impl CryptoProvider for OwnCrypto {
    fn digest(&self, algorithm: DigestAlgorithm) -> Result<Box<dyn DigestContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Hash(Sha256::new(), [0; 32]))),
            other_one => Err(other(format!("no digest {other_one:?}"))),
        }
    }

    fn hmac(&self, algorithm: DigestAlgorithm, secret: &[u8]) -> Result<Box<dyn HmacContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => {
                let code =
                    Hmac::new_from_slice(secret).map_err(|error| other(error.to_string()))?;
                Ok(Box::new(Code(code, [0; 32])))
            }
            other_one => Err(other(format!("no code of {other_one:?}"))),
        }
    }

    fn sign(&self, algorithm: SigningAlgorithm, pem: &[u8]) -> Result<Box<dyn Signer>> {
        match algorithm {
            SigningAlgorithm::RS256 => rsa(pem),
            other_one => Err(other(format!("no signature {other_one:?}"))),
        }
    }
}

/// Returns the signer of an RSA key.
fn rsa(pem: &[u8]) -> Result<Box<dyn Signer>> {
    let provider = crypto_provider().map_err(|error| other(error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| other("the key is no PEM"))?;
    let key = provider.key_provider.load_private_key(key);
    Ok(Box::new(Rsa(key.map_err(|_| other("the key is no RSA key"))?)))
}

struct Rsa(Arc<dyn SigningKey>);

impl Signer for Rsa {
    fn sign(&self, text: &[u8]) -> Result<Vec<u8>> {
        let signer = self.0.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]);
        let signer = signer.ok_or_else(|| other("the key is no RSA key"))?;
        signer.sign(text).map_err(|error| other(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 4231, test case 2.
    #[test]
    fn codes_are_those_of_the_standard() {
        let mut code = OwnCrypto.hmac(DigestAlgorithm::Sha256, b"Jefe").unwrap();
        code.update(b"what do ya ");
        code.update(b"want for nothing?");
        assert_eq!(
            hex(code.finish().unwrap()),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        let mut hash = OwnCrypto.digest(DigestAlgorithm::Sha256).unwrap();
        hash.update(b"abc");
        assert!(hex(hash.finish().unwrap()).starts_with("ba7816bf8f01cfea"));
    }
}
