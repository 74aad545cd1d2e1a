//! Request and reply of the ioctl that gives a mounted file system another label or UUID.
//!
//! Both have [`BYTES`] bytes. A request has two flags, 16 bytes of a label, padded with zeroes, and
//! 16 bytes of a UUID. A reply has the number of an error, and a text behind it: the number would
//! not tell why a UUID stays.

use super::ControlRefusal;
use extant_engine::{Errno, Error};

/// Bytes of a request and of a reply.
pub(super) const BYTES: usize = 512;

/// Bytes of the flags, of the number of an error, and of each value.
const NUMBER: usize = size_of::<u64>();
const VALUE: usize = 16;

/// Flags of a request.
const HAS_LABEL: u64 = 1;
const HAS_UUID: u64 = 2;

/// New names of a file system; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IdentityRequest {
    /// The label, padded with zeroes.
    pub label: Option<[u8; VALUE]>,
    /// The UUID.
    pub uuid: Option<[u8; VALUE]>,
}

impl IdentityRequest {
    /// Returns a request for a label of at most 16 bytes without a zero.
    ///
    /// # Errors
    /// EINVAL for other labels.
    pub fn with_label(mut self, label: &[u8]) -> Result<IdentityRequest, Error> {
        let mut bytes = [0; VALUE];
        if label.contains(&0) {
            return Err(Errno::Inval.into());
        }
        bytes.get_mut(..label.len()).ok_or(Errno::Inval)?.copy_from_slice(label);
        self.label = Some(bytes);
        Ok(self)
    }

    /// Encodes the request for the ioctl.
    pub(super) fn encode(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let label = self.label.map_or(0, |_| HAS_LABEL);
        let flags = label | self.uuid.map_or(0, |_| HAS_UUID);
        let values = [self.label, self.uuid].map(Option::unwrap_or_default);
        let all = flags.to_ne_bytes().into_iter().chain(values.into_iter().flatten());
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        bytes
    }

    /// Decodes a request; `None` if the bytes are none.
    pub(crate) fn decode(input: &[u8]) -> Option<IdentityRequest> {
        let flags = u64::from_ne_bytes(*input.first_chunk()?);
        let value = |at: usize| input.get(at..)?.first_chunk::<VALUE>().copied();
        let (label, uuid) = (value(NUMBER)?, value(NUMBER + VALUE)?);
        (flags & !(HAS_LABEL | HAS_UUID) == 0).then_some(IdentityRequest {
            label: (flags & HAS_LABEL != 0).then_some(label),
            uuid: (flags & HAS_UUID != 0).then_some(uuid),
        })
    }
}

/// Encodes a reply. A text that is too long is cut.
pub(crate) fn encode_reply(refusal: Option<&ControlRefusal>) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let errno = refusal.map_or(0, |refusal| u64::from(refusal.errno.unsigned_abs()));
    let text = refusal.map_or("", |refusal| &refusal.text);
    let all = errno.to_ne_bytes().into_iter().chain(text.bytes());
    // At least one zero follows the text.
    bytes.iter_mut().take(BYTES - 1).zip(all).for_each(|(to, from)| *to = from);
    bytes
}

/// Decodes a reply; `None` if the bytes are none.
pub(super) fn decode_reply(bytes: &[u8]) -> Option<Result<(), ControlRefusal>> {
    let errno = i32::try_from(u64::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let text = bytes.get(NUMBER..)?.split(|byte| *byte == 0).next()?;
    let text = String::from_utf8_lossy(text).into_owned();
    Some(if errno == 0 { Ok(()) } else { Err(ControlRefusal { errno, text }) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        let none = IdentityRequest::default();
        let label = none.with_label(b"a label").expect("a label");
        let both = IdentityRequest { uuid: Some([7; VALUE]), ..label };
        for request in [none, label, both, IdentityRequest { label: None, ..both }] {
            assert_eq!(IdentityRequest::decode(&request.encode()), Some(request));
        }
        assert_eq!(IdentityRequest::decode(&[9; BYTES]), None);
        assert_eq!(IdentityRequest::decode(&[0; 9]), None);
        for bad in [&b"seventeen bytes!!"[..], b"a\0"] {
            assert!(none.with_label(bad).is_err());
        }
        assert_eq!(decode_reply(&encode_reply(None)), Some(Ok(())));
        let refusal = |text: String| ControlRefusal { errno: 95, text };
        let long = encode_reply(Some(&refusal("x".repeat(BYTES))));
        let cut = refusal("x".repeat(BYTES - 1 - NUMBER));
        assert_eq!(decode_reply(&long), Some(Err(cut)));
        assert_eq!(decode_reply(&[255; BYTES]), None);
    }
}
