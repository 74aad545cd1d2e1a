//! The server's side of the handshake.
//!
//! # TLS
//! A server with a certificate answers nothing before the client has started TLS. Bytes that came
//! in the clear behind that option belong to the handshake of TLS, which fails then, and properties
//! that were agreed on in the clear are forgotten.

use crate::channel::{Channel, TlsServer};
use crate::connect::Socket;
use crate::wire::{self, ALLOCATION, Fields, MAX_STRING, Message, option, reply};
use std::io::{self, Read, Write};
use std::time::Instant;

/// Longest data of an option, in bytes, and the most options of a client.
const MAX_OPTION: u32 = 64 << 10;
const MAX_OPTIONS: usize = 256;

/// The number of the context of allocation.
pub const CONTEXT: u32 = 1;

/// Preferred bytes of a block.
const PREFERRED: u32 = 4096;

/// The export.
#[derive(Debug)]
pub struct Offer<'s> {
    pub name: &'s str,
    pub size: u64,
    pub flags: u16,
    /// Each connection is encrypted.
    pub tls: Option<&'s TlsServer>,
}

/// Properties of the transmission.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreed {
    /// Replies have chunks.
    pub structured: bool,
    /// The client has the context of allocation.
    pub allocation: bool,
}

/// A socket until a time. A timeout of the socket would begin again with each byte.
struct Limited<'s> {
    socket: &'s Socket,
    deadline: Instant,
}

impl Read for Limited<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        let mut socket = self.socket;
        socket.read(buf)
    }
}

impl Write for Limited<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.socket.write_all_parts(&[data], self.deadline)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection until a time.
struct Stream<'c> {
    channel: &'c Channel,
    deadline: Instant,
}

impl Stream<'_> {
    fn limited(&self) -> Limited<'_> {
        Limited { socket: self.channel.socket(), deadline: self.deadline }
    }

    fn write_all(&self, data: &[u8]) -> io::Result<()> {
        self.channel.write_all_parts(&[data], self.deadline)
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.channel.read_through(self.limited(), buf)
    }
}

/// A handshake in progress.
struct Handshake<'s> {
    stream: Stream<'s>,
    offer: &'s Offer<'s>,
    agreed: Agreed,
    no_zeroes: bool,
}

/// Talks to a client until it opens the export, before `deadline`. Returns `None` if it does not.
/// The socket has a timeout of reads then.
pub fn negotiate(
    channel: &Channel,
    offer: &Offer<'_>,
    deadline: Instant,
) -> io::Result<Option<Agreed>> {
    let mut stream = Stream { channel, deadline };
    let flags = wire::FIXED_NEWSTYLE | wire::NO_ZEROES;
    let greeting = Message::new().u64(wire::INIT_MAGIC).u64(wire::OPTION_MAGIC).u16(flags);
    stream.write_all(&greeting.into_bytes())?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    let theirs = Fields(&answer).u32().unwrap_or_default();
    if theirs & !u32::from(flags) != 0 {
        return Err(invalid("its flags are unknown"));
    }
    let no_zeroes = theirs & u32::from(wire::NO_ZEROES) != 0;
    let mut handshake = Handshake { stream, offer, agreed: Agreed::default(), no_zeroes };
    for _ in 0..MAX_OPTIONS {
        let (number, data) = handshake.option()?;
        match number {
            option::ABORT => {
                handshake.reply(number, reply::ACK, &[])?;
                return Ok(None);
            }
            option::STARTTLS => handshake.start_tls(&data)?,
            // It has no reply for errors.
            option::EXPORT_NAME if handshake.lacks_tls() => return Ok(None),
            _ if handshake.lacks_tls() => {
                handshake.reply(number, reply::ERR_TLS_REQD, b"start TLS first")?;
            }
            option::EXPORT_NAME => return handshake.export_name(&data),
            option::GO if handshake.describe(number, &data)? => {
                return Ok(Some(handshake.agreed));
            }
            _ => handshake.answer(number, &data)?,
        }
    }
    Err(invalid("it has very many options"))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Handshake<'_> {
    /// Returns whether the client must start TLS first.
    fn lacks_tls(&self) -> bool {
        self.offer.tls.is_some() && !self.stream.channel.is_secure()
    }

    /// Encrypts the connection, if there is a certificate.
    fn start_tls(&mut self, data: &[u8]) -> io::Result<()> {
        let number = option::STARTTLS;
        let Some(tls) = self.offer.tls else {
            return self.reply(number, reply::ERR_UNSUP, b"the server has no certificate");
        };
        if !data.is_empty() || self.stream.channel.is_secure() {
            return self.reply(number, reply::ERR_INVALID, &[]);
        }
        self.reply(number, reply::ACK, &[])?;
        self.agreed = Agreed::default();
        let mut limited = self.stream.limited();
        self.stream.channel.secure(|_| tls.accept(&mut limited))
    }

    fn option(&mut self) -> io::Result<(u32, Vec<u8>)> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let mut fields = Fields(&head);
        let (magic, number, len) = (fields.u64(), fields.u32(), fields.u32());
        let (Some(number), Some(len)) = (number, len) else { return Err(invalid("short")) };
        if magic != Some(wire::OPTION_MAGIC) || len > MAX_OPTION {
            return Err(invalid("an option is unknown or long"));
        }
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data)?;
        Ok((number, data))
    }

    fn reply(&mut self, number: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let head = Message::new().u64(wire::OPTION_REPLY_MAGIC).u32(number).u32(kind);
        let message = head.u32(data.len() as u32).bytes(data);
        self.stream.write_all(&message.into_bytes())
    }

    /// Answers an option that does not end the handshake.
    fn answer(&mut self, number: u32, data: &[u8]) -> io::Result<()> {
        match number {
            // `describe` has refused it.
            option::GO => Ok(()),
            option::INFO => self.describe(number, data).map(|_| ()),
            option::LIST if data.is_empty() => {
                let name = self.offer.name;
                let entry = Message::new().u32(name.len() as u32).bytes(name.as_bytes());
                self.reply(number, reply::SERVER, &entry.into_bytes())?;
                self.reply(number, reply::ACK, &[])
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.agreed.structured = true;
                self.reply(number, reply::ACK, &[])
            }
            option::LIST | option::STRUCTURED_REPLY => self.reply(number, reply::ERR_INVALID, &[]),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(number, data),
            _ => self.reply(number, reply::ERR_UNSUP, &[]),
        }
    }

    fn is_own(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.offer.name.as_bytes()
    }

    /// Describes the export. Returns whether it is the one that was asked for.
    fn describe(&mut self, number: u32, data: &[u8]) -> io::Result<bool> {
        let mut fields = Fields(data);
        let name = fields.string();
        let infos = fields.u16().map(|count| usize::from(count) * 2);
        let Some(name) = name.filter(|_| infos == Some(fields.0.len())) else {
            self.reply(number, reply::ERR_INVALID, &[])?;
            return Ok(false);
        };
        if !self.is_own(name) {
            let text = format!("the export is called {:?}", self.offer.name);
            self.reply(number, reply::ERR_UNKNOWN, text.as_bytes())?;
            return Ok(false);
        }
        let export = Message::new().u16(wire::INFO_EXPORT).u64(self.offer.size);
        self.reply(number, reply::INFO, &export.u16(self.offer.flags).into_bytes())?;
        let blocks = Message::new().u16(wire::INFO_BLOCK_SIZE).u32(1).u32(PREFERRED);
        self.reply(number, reply::INFO, &blocks.u32(wire::MAX_PAYLOAD).into_bytes())?;
        self.reply(number, reply::ACK, &[])?;
        Ok(true)
    }

    /// Lists or chooses contexts.
    fn contexts(&mut self, number: u32, data: &[u8]) -> io::Result<()> {
        let chooses = number == option::SET_META_CONTEXT;
        let mut fields = Fields(data);
        let (name, count) = (fields.string(), fields.u32());
        let (Some(name), Some(count)) = (name, count) else {
            return self.reply(number, reply::ERR_INVALID, &[]);
        };
        if chooses && !self.agreed.structured {
            return self.reply(number, reply::ERR_INVALID, b"structured replies come first");
        }
        if !self.is_own(name) {
            return self.reply(number, reply::ERR_UNKNOWN, &[]);
        }
        // Without a query all are listed, and none is chosen.
        let mut wanted = count == 0 && !chooses;
        for _ in 0..count {
            let Some(query) = fields.string().filter(|query| query.len() <= MAX_STRING) else {
                return self.reply(number, reply::ERR_INVALID, &[]);
            };
            wanted |= query == ALLOCATION || query == b"base:" && !chooses;
        }
        if chooses {
            self.agreed.allocation = wanted;
        }
        if wanted {
            let context = Message::new().u32(CONTEXT).bytes(ALLOCATION).into_bytes();
            self.reply(number, reply::META_CONTEXT, &context)?;
        }
        self.reply(number, reply::ACK, &[])
    }

    /// Opens the export for an older client, which gets no error.
    fn export_name(&mut self, name: &[u8]) -> io::Result<Option<Agreed>> {
        if !self.is_own(name) {
            return Ok(None);
        }
        let answer = Message::new().u64(self.offer.size).u16(self.offer.flags);
        let zeroes: &[u8] = if self.no_zeroes { &[] } else { &[0; 124] };
        self.stream.write_all(&answer.bytes(zeroes).into_bytes())?;
        Ok(Some(self.agreed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn a_client_of_a_byte_at_a_time_meets_the_deadline() {
        let (own, mut client) = UnixStream::pair().unwrap();
        let drip = std::thread::spawn(move || {
            // It ends with the other end of the socket.
            while client.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let offer = Offer { name: "", size: 512, flags: 1, tls: None };
        let deadline = Instant::now() + Duration::from_millis(500);
        let channel = Channel::new(Socket::Unix(own));
        let mut stream = Stream { channel: &channel, deadline };
        let error = stream.read_exact(&mut [0; 1000]).unwrap_err();
        assert!(
            error.kind() == io::ErrorKind::TimedOut || error.kind() == io::ErrorKind::WouldBlock
        );
        assert!(negotiate(&channel, &offer, Instant::now()).is_err());
        drop(channel);
        drip.join().unwrap();
    }
}
