//! Reasons for which a connection, or the device, ends.

use std::fmt;
use std::io;

/// The end of a connection.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// The connection was lost or not made; another one may be possible.
    Lost(String),
    /// The server does not offer the export now.
    Refused(String),
    /// The server broke the protocol, or the export is another one: no connection helps.
    Broken(String),
}

impl Trouble {
    /// Returns whether another attempt may succeed.
    pub fn may_pass(&self) -> bool {
        !matches!(self, Trouble::Broken(_))
    }

    /// Returns the trouble of a failed transfer of the connection.
    pub fn of(error: &io::Error) -> Trouble {
        Trouble::Lost(match error.kind() {
            // Sockets have no such error.
            io::ErrorKind::InvalidData => return Trouble::Refused(format!("no TLS: {error}")),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero => {
                "the server closed the connection".into()
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                "the server took no data in time".into()
            }
            _ => format!("the connection failed: {error}"),
        })
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::of(&error)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Trouble::Lost(why) | Trouble::Refused(why) | Trouble::Broken(why)) = self;
        f.write_str(why)
    }
}

impl From<Trouble> for io::Error {
    fn from(trouble: Trouble) -> io::Error {
        let kind = match &trouble {
            Trouble::Lost(_) => io::ErrorKind::NotConnected,
            Trouble::Refused(_) => io::ErrorKind::ConnectionRefused,
            Trouble::Broken(_) => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, trouble.to_string())
    }
}
