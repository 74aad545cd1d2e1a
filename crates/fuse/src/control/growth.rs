//! Request and reply of the ioctl that makes a mounted file system larger.
//!
//! Both have [`BYTES`] bytes: numbers of eight bytes in native order, and in a reply a text behind
//! them. A refusal is a reply, too, since the number of an error would not tell its cause. For
//! example, a growth from 100 to 300 MiB with blocks of 4 KiB is answered by `0, 4096, 25600,
//! 25600, 76800, 76800` and an empty text.

use super::ControlRefusal;
use extant_engine::{FsSize, GrowTo};

/// Bytes of a request and of a reply.
pub(super) const BYTES: usize = 1024;

/// Bytes of a number.
const NUMBER: usize = size_of::<u64>();

/// Numbers of a reply before its text.
const NUMBERS: usize = 6;

/// A wish for a larger file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowRequest {
    /// The size.
    pub to: GrowTo,
    /// Only the size that would result is wanted.
    pub dry_run: bool,
}

/// The reply of a server, which may have been taken over by its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowReply {
    /// The size before.
    pub before: FsSize,
    /// The size afterwards, or that of a dry run. After a refusal it may lie between.
    pub after: FsSize,
    /// The refusal, if there is one.
    pub refusal: Option<ControlRefusal>,
}

impl GrowRequest {
    /// Encodes the request for the ioctl.
    pub(super) fn encode(self) -> [u8; BYTES] {
        let (kind, number) = match self.to {
            GrowTo::Device => (0, 0),
            GrowTo::Bytes(bytes) => (1, bytes),
            GrowTo::MoreBytes(more) => (2, more),
            GrowTo::Blocks(blocks) => (3, blocks),
        };
        encode(&[kind, number, self.dry_run.into()], "")
    }

    /// Decodes a request; `None` if the bytes are none.
    pub(crate) fn decode(input: &[u8]) -> Option<GrowRequest> {
        let [kind, number, dry_run] = numbers(input)?;
        let to = match kind {
            0 => GrowTo::Device,
            1 => GrowTo::Bytes(number),
            2 => GrowTo::MoreBytes(number),
            3 => GrowTo::Blocks(number),
            _ => return None,
        };
        Some(GrowRequest { to, dry_run: dry_run == 1 })
    }
}

impl GrowReply {
    /// Encodes the reply. A text that is too long is cut.
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let errno = self.refusal.as_ref().map_or(0, |refusal| refusal.errno.unsigned_abs());
        let (before, after) = (self.before, self.after);
        let text = self.refusal.as_ref().map_or("", |refusal| &refusal.text);
        let numbers = [
            errno.into(),
            after.block_size.into(),
            before.blocks,
            before.inodes,
            after.blocks,
            after.inodes,
        ];
        encode(&numbers, text)
    }

    /// Decodes a reply; `None` if the bytes are none.
    pub(super) fn decode(bytes: &[u8]) -> Option<GrowReply> {
        let [errno, block_size, blocks, inodes, blocks_after, inodes_after]: [u64; NUMBERS] =
            numbers(bytes)?;
        let block_size = u32::try_from(block_size).ok()?;
        let text = bytes.get(NUMBERS * NUMBER..)?.split(|byte| *byte == 0).next()?;
        let refusal = || {
            let errno = i32::try_from(errno).ok()?;
            Some(ControlRefusal { errno, text: String::from_utf8_lossy(text).into_owned() })
        };
        Some(GrowReply {
            before: FsSize { block_size, blocks, inodes },
            after: FsSize { block_size, blocks: blocks_after, inodes: inodes_after },
            refusal: if errno == 0 { None } else { Some(refusal()?) },
        })
    }
}

fn encode(numbers: &[u64], text: &str) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let numbers = numbers.iter().flat_map(|number| number.to_ne_bytes());
    bytes.iter_mut().zip(numbers).for_each(|(to, from)| *to = from);
    // At least one zero follows the text.
    let room = bytes.iter_mut().take(BYTES - 1).skip(NUMBERS * NUMBER);
    room.zip(text.bytes()).for_each(|(to, from)| *to = from);
    bytes
}

fn numbers<const COUNT: usize>(bytes: &[u8]) -> Option<[u64; COUNT]> {
    let mut chunks = bytes.chunks_exact(NUMBER);
    let mut numbers = [0; COUNT];
    for number in &mut numbers {
        *number = u64::from_ne_bytes(chunks.next()?.try_into().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_as_they_were() {
        let all = [
            GrowTo::Device,
            GrowTo::Bytes(u64::MAX),
            GrowTo::MoreBytes(1 << 40),
            GrowTo::Blocks(7),
        ];
        for (to, dry_run) in all.into_iter().zip([true, false, true, false]) {
            let request = GrowRequest { to, dry_run };
            assert_eq!(GrowRequest::decode(&request.encode()), Some(request));
        }
        assert_eq!(GrowRequest::decode(&[9; BYTES]), None);
        assert_eq!(GrowRequest::decode(&[0; 8]), None);
    }

    #[test]
    fn replies_come_back_with_the_text_that_fits() {
        let before = FsSize { block_size: 4096, blocks: 100, inodes: 16 };
        let after = FsSize { blocks: 1 << 33, inodes: 1 << 20, ..before };
        let done = GrowReply { before, after, refusal: None };
        assert_eq!(GrowReply::decode(&done.encode()), Some(done.clone()));
        let refused = |text: String| GrowReply {
            refusal: Some(ControlRefusal { errno: 22, text }),
            ..done.clone()
        };
        let short = refused("it is too short".into());
        assert_eq!(GrowReply::decode(&short.encode()), Some(short));
        let most = BYTES - 1 - NUMBERS * NUMBER;
        let cut = GrowReply::decode(&refused("x".repeat(BYTES)).encode());
        assert_eq!(cut, Some(refused("x".repeat(most))));
        assert_eq!(GrowReply::decode(&[255; BYTES]), None);
        assert_eq!(GrowReply::decode(&[]), None);
    }
}
