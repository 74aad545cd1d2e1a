//! Addresses of exports.

use crate::wire::MAX_STRING;
use std::fmt::{self, Write};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The port of NBD.
const PORT: u16 = 10809;

/// How long a reply and a new connection are waited for, unless the address says otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_TIMEOUT: u64 = 24 * 3600;

/// Connections to a server that allows several.
const CONNECTIONS: usize = 4;
const MAX_CONNECTIONS: usize = 16;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Host and port.
    Tcp(String, u16),
    /// A socket in the file system, by an absolute path.
    Unix(PathBuf),
}

/// TLS of an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tls {
    /// The directory of certificates, in place of those of the system.
    pub(crate) certificates: Option<PathBuf>,
    /// The host that the certificate of the server is for, if it is another one than that of the
    /// place.
    pub(crate) host: Option<String>,
    /// Whether the certificate of the server is verified.
    pub(crate) verifies: bool,
}

impl Default for Tls {
    fn default() -> Tls {
        Tls { certificates: None, host: None, verifies: true }
    }
}

/// The address of an export: `nbd://HOST[:PORT]/EXPORT`, or `nbd+unix:///EXPORT?socket=PATH`. With
/// TLS the schemes are `nbds` and `nbds+unix`.
///
/// Reserved characters of EXPORT and PATH are written as `%XX`. Further parameters, after `?` and
/// `&`, are `timeout=SECONDS`, 60 by default: how long a reply is waited for, and how long a
/// new connection after a lost one; and `connections=N`, 4 by default, for servers that allow
/// several.
///
/// With TLS, `tls-certificates=DIR` names a directory with `ca-cert.pem`, and with
/// `client-cert.pem` and `client-key.pem` if the server demands them; without it the system has the
/// authorities. `tls-hostname=NAME` is the host that the certificate of the server must be for, by
/// default that of the address, or `localhost` for a socket. `tls-verify-peer=false` accepts any
/// server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    pub(crate) place: Place,
    pub(crate) export: String,
    pub(crate) tls: Option<Tls>,
    pub(crate) timeout: Duration,
    pub(crate) connections: usize,
}

impl FromStr for Address {
    type Err = io::Error;

    /// Parses an address. A relative path of a socket begins at the current directory.
    fn from_str(text: &str) -> io::Result<Address> {
        parse(text).map_err(|why| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{text}: no address of NBD: {why}"))
        })
    }
}

impl Address {
    /// Returns the address of an export at this host; [`Address::at_host`] and
    /// [`Address::at_socket`] name another place.
    pub fn named(export: impl Into<String>) -> Address {
        let place = Place::Tcp("localhost".into(), PORT);
        let (timeout, connections) = (TIMEOUT, CONNECTIONS);
        Address { place, export: export.into(), tls: None, timeout, connections }
    }

    /// Returns the same address with TLS.
    #[must_use]
    pub fn secured(self) -> Address {
        Address { tls: Some(Tls::default()), ..self }
    }

    /// Returns the same address at a host and a port.
    #[must_use]
    pub fn at_host(self, host: impl Into<String>, port: u16) -> Address {
        Address { place: Place::Tcp(host.into(), port), ..self }
    }

    /// Returns the same address at a socket in the file system. A relative path begins at the
    /// current directory.
    #[must_use]
    pub fn at_socket(self, path: impl AsRef<Path>) -> Address {
        let path = path.as_ref();
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        Address { place: Place::Unix(path), ..self }
    }
}

fn parse(text: &str) -> Result<Address, String> {
    let (scheme, rest) = text.split_once("://").ok_or("it has no scheme")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let export = decode(path)?;
    if export.len() > MAX_STRING {
        return Err(format!("the name of the export is longer than {MAX_STRING} bytes"));
    }
    let Parameters { socket, timeout, connections, tls } = Parameters::parse(query)?;
    let (scheme, tls) = match (scheme, tls) {
        ("nbds", tls) => ("nbd", Some(tls.unwrap_or_default())),
        ("nbds+unix", tls) => ("nbd+unix", Some(tls.unwrap_or_default())),
        (_, Some(_)) => return Err("parameters of TLS belong to nbds:// and nbds+unix://".into()),
        (scheme, None) => (scheme, None),
    };
    let place = match (scheme, socket) {
        ("nbd", None) => {
            let (host, port) = host_and_port(host)?;
            Place::Tcp(host, port)
        }
        ("nbd+unix", Some(path)) if !path.is_empty() => {
            if !host.is_empty() {
                return Err("a socket has no host: nbd+unix:///EXPORT?socket=PATH".into());
            }
            Place::Unix(absolute(&path)?)
        }
        ("nbd", Some(_)) => return Err("socket=PATH belongs to nbd+unix://".into()),
        ("nbd+unix", _) => return Err("it names no socket: ?socket=PATH".into()),
        _ => return Err(format!("the scheme {scheme} is unknown")),
    };
    Ok(Address { place, export, tls, timeout, connections })
}

/// The parameters behind an address.
struct Parameters {
    socket: Option<String>,
    timeout: Duration,
    connections: usize,
    tls: Option<Tls>,
}

impl Parameters {
    fn parse(query: &str) -> Result<Parameters, String> {
        let (timeout, connections) = (TIMEOUT, CONNECTIONS);
        let mut found = Parameters { socket: None, timeout, connections, tls: None };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match key {
                "socket" => found.socket = Some(decode(value)?),
                "timeout" => {
                    found.timeout = Duration::from_secs(number(key, value, MAX_TIMEOUT)?);
                }
                "connections" => {
                    found.connections = number(key, value, MAX_CONNECTIONS as u64)? as usize;
                }
                _ => found.tls.get_or_insert_default().set(key, value)?,
            }
        }
        Ok(found)
    }
}

impl Tls {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let text = decode(value)?;
        match (key, text.as_str()) {
            ("tls-certificates" | "tls-hostname", "") => return Err(format!("{key} is empty")),
            ("tls-certificates", path) => self.certificates = Some(absolute(path)?),
            ("tls-hostname", _) => self.host = Some(text),
            ("tls-verify-peer", "true" | "1") => self.verifies = true,
            ("tls-verify-peer", "false" | "0") => self.verifies = false,
            ("tls-verify-peer", _) => return Err(format!("{key} must be true or false")),
            ("tls-psk-file", _) => {
                return Err("keys that both sides share are not supported; use certificates".into());
            }
            _ => {
                return Err(format!(
                    "{key} is no parameter; there are socket, timeout, connections, \
                     tls-certificates, tls-hostname and tls-verify-peer"
                ));
            }
        }
        Ok(())
    }
}

fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| error.to_string())
}

fn number(key: &str, value: &str, max: u64) -> Result<u64, String> {
    let number = value.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| format!("{key} must be a number from 1 to {max}"))
}

fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or("a bracket is missing")?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if host.is_empty() {
        return Err("it names no host".into());
    }
    if text.contains('@') {
        return Err("it names a user, and NBD knows none".into());
    }
    let port = match port {
        "" | ":" => PORT,
        _ => {
            let number = port.strip_prefix(':').and_then(|port| port.parse().ok());
            number.ok_or_else(|| format!("{port} is no port"))?
        }
    };
    Ok((decode(host)?, port))
}

/// Replaces `%XX`.
fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| str::from_utf8(digits).ok());
        let byte = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(
            byte.ok_or_else(|| format!("% is followed by no two hexadecimal digits: {text}"))?,
        );
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| format!("it is no UTF-8: {text}"))
}

/// Writes text with `%XX` for all bytes that may have a meaning in an address or a list of options.
fn encode(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => {
                f.write_char(byte.into())?;
            }
            _ => write!(f, "%{byte:02X}")?,
        }
    }
    Ok(())
}

impl fmt::Display for Address {
    /// Writes the address in full, with absolute paths.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separators = std::iter::once('?').chain(std::iter::repeat('&'));
        let mut next = |f: &mut fmt::Formatter<'_>, key: &str| {
            write!(f, "{}{key}=", separators.next().unwrap_or('&'))
        };
        f.write_str(if self.tls.is_some() { "nbds" } else { "nbd" })?;
        match &self.place {
            Place::Tcp(host, port) => {
                f.write_str("://")?;
                if host.contains(':') {
                    // A zone, as in fe80::1%eth0, begins with a percent sign.
                    write!(f, "[{}]", host.replace('%', "%25"))?;
                } else {
                    encode(f, host)?;
                }
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                f.write_char('/')?;
                encode(f, &self.export)?;
            }
            Place::Unix(path) => {
                f.write_str("+unix:///")?;
                encode(f, &self.export)?;
                next(f, "socket")?;
                encode(f, &path.to_string_lossy())?;
            }
        }
        let tls = self.tls.as_ref();
        if let Some(path) = tls.and_then(|tls| tls.certificates.as_ref()) {
            next(f, "tls-certificates")?;
            encode(f, &path.to_string_lossy())?;
        }
        if let Some(host) = tls.and_then(|tls| tls.host.as_ref()) {
            next(f, "tls-hostname")?;
            encode(f, host)?;
        }
        if tls.is_some_and(|tls| !tls.verifies) {
            next(f, "tls-verify-peer")?;
            f.write_str("false")?;
        }
        if self.timeout != TIMEOUT {
            next(f, "timeout")?;
            write!(f, "{}", self.timeout.as_secs())?;
        }
        if self.connections != CONNECTIONS {
            next(f, "connections")?;
            write!(f, "{}", self.connections)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn hosts_and_exports_are_taken_apart() {
        let tcp = |host: &str, port| Place::Tcp(host.into(), port);
        assert_eq!(parsed("nbd://host").place, tcp("host", 10809));
        assert_eq!(parsed("nbd://host:7/a/b").export, "a/b");
        assert_eq!(parsed("nbd://host:7/a%20b").place, tcp("host", 7));
        assert_eq!(parsed("nbd://host:7/a%20b").export, "a b");
        assert_eq!(parsed("nbd://[::1]:9/").place, tcp("::1", 9));
        let unix = parsed("nbd+unix:///disk?socket=/run/a%3Db&timeout=5&connections=1");
        assert_eq!(unix.place, Place::Unix("/run/a=b".into()));
        assert_eq!(
            (unix.export.as_str(), unix.timeout.as_secs(), unix.connections),
            ("disk", 5, 1)
        );
    }

    #[test]
    fn addresses_are_shown_as_they_are_parsed() {
        for text in [
            "nbd://host/",
            "nbd://host:7/a%20b",
            "nbd://[::1]/x?timeout=5",
            "nbd://[fe80::1%25eth0]/",
            "nbd+unix:///?socket=/run/s",
            "nbd+unix:///a%2Cb?socket=/run/s&timeout=5&connections=2",
            "nbds://host:7/a?timeout=5",
            "nbds://10.0.0.1/?tls-certificates=/etc/pki&tls-hostname=disks&timeout=5",
            "nbds+unix:///?socket=/run/s&tls-certificates=/a%2Cb&tls-verify-peer=false",
        ] {
            assert_eq!(parsed(text).to_string(), text);
        }
        assert_eq!(parsed("nbd+unix:///?socket=s").to_string(), {
            let path = std::path::absolute("s").unwrap();
            format!("nbd+unix:///?socket={}", path.display())
        });
    }

    #[test]
    fn wrong_addresses_are_refused_with_a_cause() {
        for (text, cause) in [
            ("disk.img", "no scheme"),
            ("nbd:///x", "no host"),
            ("nbd://h:x/", "no port"),
            ("nbd://user@h/", "names a user"),
            ("nbd://h/%4", "hexadecimal"),
            ("nbd://h/%ff", "UTF-8"),
            ("nbd://h/?socket=/s", "nbd+unix"),
            ("nbd+unix:///x", "names no socket"),
            ("nbd+unix://h/x?socket=/s", "no host"),
            ("nbd://h/?timeout=0", "number from 1"),
            ("nbd://h/?tls=1", "no parameter"),
            ("nbd://h/?tls-hostname=x", "belong to nbds://"),
            ("nbds://h/?tls-hostname=", "tls-hostname is empty"),
            ("nbds://h/?tls-verify-peer=maybe", "true or false"),
            ("nbds://h/?tls-psk-file=/x", "use certificates"),
            ("nbdx://h/", "scheme nbdx is unknown"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(cause) && error.starts_with(text), "{error}");
        }
        assert!(format!("nbd://h/{}", "x".repeat(5000)).parse::<Address>().is_err());
    }
}
