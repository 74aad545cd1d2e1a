//! The client's side of the handshake.
//!
//! # TLS
//! With TLS the first option starts it, and all that follows is encrypted. Of the server's answers
//! in the clear only the greeting and the consent are read, without a byte beyond: the rest belongs
//! to the handshake of TLS, which fails if another host has put replies there. A server, or another
//! host, that refuses TLS ends the handshake: nothing is asked without it.

use crate::channel::{Channel, TlsClient};
use crate::trouble::Trouble;
use crate::wire::{self, ALLOCATION, Fields, MAX_STRING, Message, option, reply};
use std::io::{self, Read};
use std::time::Instant;

/// Longest reply to an option, in bytes, and the most replies to one.
const MAX_REPLY: usize = 2 * MAX_STRING + 64;
const MAX_REPLIES: usize = 64;

/// Largest smallest block that the protocol allows, in bytes.
const MAX_MIN_BLOCK: u32 = 64 << 10;

/// An export as the server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Bytes, a multiple of `min_block`.
    pub size: u64,
    /// Flags of the export.
    pub flags: u16,
    /// Offsets and lengths must be multiples of it: a power of two.
    pub min_block: u32,
    /// Largest payload of a request.
    pub max_payload: u32,
    /// Replies have chunks.
    pub structured: bool,
    /// Number of the context of allocation.
    pub allocation: Option<u32>,
}

impl Export {
    /// Returns whether the server has told a flag.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

fn broken<T>(why: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Broken(format!("the server broke the protocol: {}", why.into())))
}

/// A reply to an option.
struct OptionReply {
    kind: u32,
    data: Vec<u8>,
}

/// A handshake in progress.
struct Handshake<'c> {
    channel: &'c Channel,
    deadline: Instant,
    no_zeroes: bool,
}

/// Opens an export of the server at the other end, encrypted if `tls` is there.
pub fn negotiate(
    channel: &Channel,
    name: &str,
    tls: Option<&TlsClient>,
    deadline: Instant,
) -> Result<Export, Trouble> {
    let no_zeroes = greet(channel, deadline)?;
    let mut handshake = Handshake { channel, deadline, no_zeroes };
    if let Some(tls) = tls {
        handshake.start_tls(tls)?;
    }
    let structured = handshake.ask_simply(option::STRUCTURED_REPLY, &[]);
    let structured = structured.map_err(|trouble| match trouble {
        // With TLS 1.3 the server verifies the client when that has completed its handshake.
        Trouble::Lost(_) if tls.is_some() => Trouble::Lost(
            "the server closed the connection after the handshake of TLS; it may demand a \
             certificate of the client, client-cert.pem and client-key.pem in the directory of \
             tls-certificates="
                .into(),
        ),
        trouble => trouble,
    })?;
    // The context makes sense with chunks only.
    let allocation = if structured { handshake.ask_allocation(name)? } else { None };
    let export = match handshake.go(name)? {
        Some(export) => export,
        None => handshake.export_name(name)?,
    };
    check(Export { structured, allocation, ..export })
}

/// Exchanges greetings. Returns whether both sides leave zeroes out.
fn greet(mut channel: &Channel, deadline: Instant) -> Result<bool, Trouble> {
    let mut greeting = [0; 18];
    channel.read_exact(&mut greeting)?;
    let mut fields = Fields(&greeting);
    let (first, second, flags) = (fields.u64(), fields.u64(), fields.u16().unwrap_or_default());
    if first != Some(wire::INIT_MAGIC) {
        return Err(Trouble::Broken("no server of NBD listens there".into()));
    }
    if second == Some(wire::OLD_MAGIC) {
        return Err(Trouble::Broken(
            "the server has the oldstyle handshake; let it offer the newstyle one".into(),
        ));
    }
    if second != Some(wire::OPTION_MAGIC) {
        return broken("its greeting is unknown");
    }
    if flags & wire::FIXED_NEWSTYLE == 0 {
        return Err(Trouble::Broken("the server lacks the fixed newstyle handshake".into()));
    }
    let own = flags & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
    channel.write_all_parts(&[&Message::new().u32(own.into()).into_bytes()], deadline)?;
    Ok(own & wire::NO_ZEROES != 0)
}

impl Handshake<'_> {
    fn send(&mut self, number: u32, data: &[u8]) -> Result<(), Trouble> {
        let message = Message::new().u64(wire::OPTION_MAGIC).u32(number).u32(data.len() as u32);
        let message = message.bytes(data).into_bytes();
        Ok(self.channel.write_all_parts(&[&message], self.deadline)?)
    }

    fn reply(&mut self, number: u32) -> Result<OptionReply, Trouble> {
        let mut head = [0; 20];
        self.channel.read_exact(&mut head)?;
        let mut fields = Fields(&head);
        let magic = fields.u64();
        let (of, kind, len) = (fields.u32(), fields.u32(), fields.u32());
        let (Some(kind), Some(len)) = (kind, len) else { return broken("a reply is short") };
        if magic != Some(wire::OPTION_REPLY_MAGIC) || of != Some(number) {
            return broken("a reply to an option that was not asked for");
        }
        if len as usize > MAX_REPLY {
            return broken(format!("a reply to an option has {len} bytes"));
        }
        let mut data = vec![0; len as usize];
        self.channel.read_exact(&mut data)?;
        Ok(OptionReply { kind, data })
    }

    /// Encrypts the connection.
    fn start_tls(&mut self, tls: &TlsClient) -> Result<(), Trouble> {
        self.send(option::STARTTLS, &[])?;
        let answer = self.reply(option::STARTTLS)?;
        if answer.kind & reply::ERROR != 0 {
            return Err(Trouble::Refused(format!(
                "the server offers no TLS{}; start it with its certificates, or use nbd:// if \
                 the network is trusted",
                said(&answer)
            )));
        }
        if answer.kind != reply::ACK || !answer.data.is_empty() {
            return broken("its consent to TLS is unknown");
        }
        let secured = self.channel.secure(|mut socket| tls.connect(&mut socket));
        secured.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Trouble::Lost(
                "the server closed the connection in the handshake of TLS; its messages have the \
                 reason"
                    .into(),
            ),
            _ => Trouble::of(&error),
        })
    }

    /// Asks for an option that is granted or not.
    fn ask_simply(&mut self, number: u32, data: &[u8]) -> Result<bool, Trouble> {
        let sent = self.send(number, data);
        let answer = match (sent, self.reply(number)) {
            // A server that takes nothing more may have told the reason.
            (_, Err(refused @ Trouble::Refused(_))) => return Err(refused),
            (sent, answer) => sent.and(answer)?,
        };
        match answer.kind {
            reply::ACK => Ok(true),
            reply::ERR_TLS_REQD => Err(refusal(&answer)),
            kind if kind & reply::ERROR != 0 => Ok(false),
            _ => broken("a reply to an option has an unknown type"),
        }
    }

    /// Asks for the context of allocation. Returns its number.
    fn ask_allocation(&mut self, name: &str) -> Result<Option<u32>, Trouble> {
        let data = Message::new().u32(name.len() as u32).bytes(name.as_bytes()).u32(1);
        let data = data.u32(ALLOCATION.len() as u32).bytes(ALLOCATION).into_bytes();
        self.send(option::SET_META_CONTEXT, &data)?;
        let mut found = None;
        for _ in 0..MAX_REPLIES {
            let answer = self.reply(option::SET_META_CONTEXT)?;
            let mut fields = Fields(&answer.data);
            match answer.kind {
                reply::ACK => return Ok(found),
                reply::META_CONTEXT => match (fields.u32(), fields.0) {
                    (Some(number), context) if context == ALLOCATION => found = Some(number),
                    _ => return broken("a context that was not asked for"),
                },
                kind if kind & reply::ERROR != 0 => return Ok(None),
                _ => return broken("a reply to an option has an unknown type"),
            }
        }
        broken("an option has very many replies")
    }

    /// Opens the export; `None` from a server that lacks the option.
    fn go(&mut self, name: &str) -> Result<Option<Export>, Trouble> {
        let data = Message::new().u32(name.len() as u32).bytes(name.as_bytes()).u16(1);
        self.send(option::GO, &data.u16(wire::INFO_BLOCK_SIZE).into_bytes())?;
        let (mut found, mut blocks) = (None, None);
        for _ in 0..MAX_REPLIES {
            let answer = self.reply(option::GO)?;
            let mut fields = Fields(&answer.data);
            match (answer.kind, fields.u16()) {
                (reply::ACK, _) => {
                    let Some((size, flags)) = found else {
                        return broken("the export has no size");
                    };
                    let (min_block, max_payload) = blocks.unwrap_or((1, wire::MAX_PAYLOAD));
                    let (structured, allocation) = (false, None);
                    return Ok(Some(Export {
                        size,
                        flags,
                        min_block,
                        max_payload,
                        structured,
                        allocation,
                    }));
                }
                (reply::INFO, Some(wire::INFO_EXPORT)) => match (fields.u64(), fields.u16()) {
                    (Some(size), Some(flags)) => found = Some((size, flags)),
                    _ => return broken("the size of the export is short"),
                },
                (reply::INFO, Some(wire::INFO_BLOCK_SIZE)) => {
                    match (fields.u32(), fields.u32(), fields.u32()) {
                        (Some(min), Some(_), Some(max)) => blocks = Some((min, max)),
                        _ => return broken("the sizes of blocks are short"),
                    }
                }
                (reply::INFO, Some(_)) => {}
                (reply::ERR_UNSUP, _) => return Ok(None),
                (kind, _) if kind & reply::ERROR != 0 => return Err(refusal(&answer)),
                _ => return broken("a reply to an option has an unknown type"),
            }
        }
        broken("an option has very many replies")
    }

    /// Opens the export as older servers do, which close the connection if there is none.
    fn export_name(&mut self, name: &str) -> Result<Export, Trouble> {
        self.send(option::EXPORT_NAME, name.as_bytes())?;
        let mut answer = vec![0; if self.no_zeroes { 10 } else { 134 }];
        self.channel.read_exact(&mut answer)?;
        let mut fields = Fields(&answer);
        let (Some(size), Some(flags)) = (fields.u64(), fields.u16()) else {
            return broken("the size of the export is short");
        };
        let (min_block, max_payload) = (1, wire::MAX_PAYLOAD);
        Ok(Export { size, flags, min_block, max_payload, structured: false, allocation: None })
    }
}

/// Returns the text of a refusal, in brackets.
fn said(answer: &OptionReply) -> String {
    let text: String =
        String::from_utf8_lossy(&answer.data).chars().filter(|c| !c.is_control()).collect();
    if text.is_empty() { String::new() } else { format!(" ({text:?})") }
}

/// Returns the refusal of an export.
fn refusal(answer: &OptionReply) -> Trouble {
    let said = said(answer);
    match answer.kind {
        reply::ERR_TLS_REQD => Trouble::Broken(format!(
            "the server demands TLS{said}; use nbds:// in the address, or nbds+unix://"
        )),
        reply::ERR_UNKNOWN => {
            Trouble::Refused(format!("the server has no such export{said}; check its name"))
        }
        reply::ERR_POLICY => Trouble::Refused(format!("the server refuses the export{said}")),
        reply::ERR_SHUTDOWN => Trouble::Refused(format!("the server is shutting down{said}")),
        kind => Trouble::Refused(format!(
            "the server refuses the export with the error {}{said}",
            kind & !reply::ERROR
        )),
    }
}

/// Checks the numbers of an export.
fn check(export: Export) -> Result<Export, Trouble> {
    let Export { size, flags, min_block, max_payload, .. } = export;
    if flags & wire::HAS_FLAGS == 0 {
        return broken("the export has no flags");
    }
    if i64::try_from(size).is_err() {
        return broken(format!("the export has {size} bytes"));
    }
    if !min_block.is_power_of_two() || min_block > MAX_MIN_BLOCK {
        return broken(format!("the smallest block has {min_block} bytes"));
    }
    if max_payload < min_block.max(512) {
        return broken(format!("the largest request has {max_payload} bytes"));
    }
    // A rest behind the last whole block cannot be reached.
    let size = size - size % u64::from(min_block);
    let max_payload = max_payload.min(wire::MAX_PAYLOAD);
    Ok(Export { size, max_payload: max_payload - max_payload % min_block, ..export })
}
