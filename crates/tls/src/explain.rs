//! Failures of TLS as causes and remedies.

use rustls::{AlertDescription as Alert, CertificateError as Certificate, Error};
use std::io;

/// Characters of a text of the other end in a message.
const MAX_TEXT: usize = 400;

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Client,
    Server,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Peer::Client => "client",
            Peer::Server => "server",
        }
    }

    fn own_role(self) -> &'static str {
        match self {
            Peer::Client => "server",
            Peer::Server => "client",
        }
    }
}

/// Returns the error of a transfer with a cause and a remedy.
pub fn explained(error: io::Error, peer: Peer) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(inner) => failure(inner, peer),
        None => error,
    }
}

/// Returns a failure of TLS with a cause and a remedy.
pub fn failure(error: &Error, peer: Peer) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text(error, peer))
}

fn text(error: &Error, peer: Peer) -> String {
    let (name, role) = (peer.name(), peer.own_role());
    match error {
        Error::InvalidCertificate(why) => {
            format!("the certificate of the {name} {}", certificate(why))
        }
        Error::NoCertificatesPresented | Error::AlertReceived(Alert::CertificateRequired) => {
            "the server demands a certificate of the client; put client-cert.pem and \
             client-key.pem into the directory of tls-certificates="
                .into()
        }
        Error::AlertReceived(
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied,
        ) => format!(
            "the {name} refuses the certificate of this {role} ({error}); check its dates, and \
             that the {name} trusts its authority"
        ),
        Error::AlertReceived(_) => format!("the {name} ended TLS: {error}"),
        Error::PeerIncompatible(_) => format!(
            "the {name} has no version or cipher of TLS in common ({error}); let it offer TLS 1.3, \
             or 1.2 with ECDHE"
        ),
        Error::InvalidMessage(_)
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerSentOversizedRecord
        | Error::PeerMisbehaved(_) => {
            format!("the {name} broke the protocol of TLS, or something between does: {error}")
        }
        Error::DecryptError => "a message was changed on its way: check the network".into(),
        _ => error.to_string(),
    }
}

fn certificate(why: &Certificate) -> String {
    match why {
        Certificate::Expired | Certificate::ExpiredContext { .. } => {
            "has expired; renew it, and check the clock here".into()
        }
        Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
            "is not valid yet; check the clock here".into()
        }
        // The signature is wrong if another authority has the name of a trusted one.
        Certificate::UnknownIssuer | Certificate::BadSignature => {
            "has no authority that is trusted here; put that into ca-cert.pem in the directory of \
             tls-certificates="
                .into()
        }
        Certificate::NotValidForName => "is for another host; tls-hostname= names it".into(),
        Certificate::NotValidForNameContext { expected, presented } => {
            let names = match presented.as_slice() {
                [] => "no name (subjectAltName)".into(),
                names => printable(&names.join(", ")),
            };
            let expected = expected.to_str();
            format!("is not for {expected}, but for {names}; tls-hostname= names another host")
        }
        Certificate::Revoked => "is revoked; renew it".into(),
        other => format!("is refused: {}; renew it", printable(&other.to_string())),
    }
}

fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}
