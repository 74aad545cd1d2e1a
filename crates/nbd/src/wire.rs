//! Numbers of the protocol, and fields of messages, which are big-endian.

/// First bytes of a server.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Before each option, and in the greeting of a newstyle server.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// In the greeting of an oldstyle server.
pub const OLD_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Before each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before each simple reply.
pub const SIMPLE_MAGIC: u32 = 0x6744_6698;
/// Before each chunk of a structured reply.
pub const STRUCTURED_MAGIC: u32 = 0x668e_33ef;

/// Flags of the greeting and of the client's answer.
pub const FIXED_NEWSTYLE: u16 = 1;
pub const NO_ZEROES: u16 = 2;

/// Flags of an export.
pub const HAS_FLAGS: u16 = 1;
pub const READ_ONLY: u16 = 1 << 1;
pub const SEND_FLUSH: u16 = 1 << 2;
pub const SEND_FUA: u16 = 1 << 3;
pub const SEND_TRIM: u16 = 1 << 5;
pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
pub const CAN_MULTI_CONN: u16 = 1 << 8;

/// Options.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    /// Set in all errors.
    pub const ERROR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = ERROR | 1;
    pub const ERR_POLICY: u32 = ERROR | 2;
    pub const ERR_INVALID: u32 = ERROR | 3;
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    pub const ERR_SHUTDOWN: u32 = ERROR | 7;
}

/// Types of information about an export.
pub const INFO_EXPORT: u16 = 0;
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Commands.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
    /// Flag: the data is durable when the request is answered.
    pub const FUA: u16 = 1;
    /// Flag: one extent answers a request for the status of blocks.
    pub const REQ_ONE: u16 = 1 << 3;
}

/// Chunks of structured replies.
pub mod chunk {
    /// Flag of the last one.
    pub const DONE: u16 = 1;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in all errors.
    pub const ERROR: u16 = 1 << 15;
    pub const PLAIN_ERROR: u16 = ERROR | 1;
}

/// The context of allocation, with the flags of its extents.
pub const ALLOCATION: &[u8] = b"base:allocation";
pub const STATE_HOLE: u32 = 1;
pub const STATE_ZERO: u32 = 2;

/// Numbers of errors, which are those of Linux.
pub mod errno {
    pub const PERM: u32 = 1;
    pub const IO: u32 = 5;
    pub const NOMEM: u32 = 12;
    pub const INVAL: u32 = 22;
    pub const NOSPC: u32 = 28;
    pub const OVERFLOW: u32 = 75;
    pub const NOTSUP: u32 = 95;
    pub const SHUTDOWN: u32 = 108;
}

/// Longest name or text of the protocol, in bytes.
pub const MAX_STRING: usize = 4096;

/// Bytes of the largest payload that every server takes.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// Length of a request without its payload, in bytes.
pub const REQUEST_LEN: usize = 28;

/// A message that is put together.
#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn new() -> Message {
        Message::default()
    }

    pub fn u16(mut self, value: u16) -> Message {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Message {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Message {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Message {
        self.0.extend(bytes);
        self
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The rest of a message that is taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'m>(pub &'m [u8]);

impl<'m> Fields<'m> {
    pub fn bytes(&mut self, len: usize) -> Option<&'m [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Returns a text with its length before it.
    pub fn string(&mut self) -> Option<&'m [u8]> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_big_endian() {
        let bytes = Message::new().u16(1).u32(2).u64(3).bytes(b"x").into_bytes();
        assert_eq!(bytes, b"\0\x01\0\0\0\x02\0\0\0\0\0\0\0\x03x");
        let mut fields = Fields(&bytes);
        assert_eq!((fields.u16(), fields.u32(), fields.u64()), (Some(1), Some(2), Some(3)));
        assert_eq!((fields.bytes(1), fields.u16()), (Some(&b"x"[..]), None));
        let mut long = Fields(b"\xff\xff\xff\xffabc");
        assert_eq!(long.string(), None);
    }
}
