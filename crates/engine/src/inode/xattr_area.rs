//! The bytes of a slot behind its fields. Most are zeros, which take no memory.

use std::ops::Deref;

static ZEROS: [u8; 1024] = [0; 1024];

/// The in-inode area of attributes.
#[derive(Clone, Debug)]
pub enum Tail {
    /// So many zeros, at most [`ZEROS`].
    Zeros(u16),
    /// Any bytes.
    Bytes(Box<[u8]>),
}

impl Tail {
    /// `len` zeros.
    pub fn zeros(len: usize) -> Tail {
        match u16::try_from(len) {
            Ok(short) if len <= ZEROS.len() => Tail::Zeros(short),
            _ => Tail::Bytes(vec![0; len].into()),
        }
    }
}

impl From<&[u8]> for Tail {
    fn from(bytes: &[u8]) -> Tail {
        if bytes.iter().all(|byte| *byte == 0) {
            Tail::zeros(bytes.len())
        } else {
            Tail::Bytes(bytes.into())
        }
    }
}

impl Deref for Tail {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Tail::Zeros(len) => ZEROS.get(..usize::from(*len)).unwrap_or_default(),
            Tail::Bytes(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        for bytes in [&[][..], &[0; 96], &[1; 96], &[0; 1024], &[0; 1025], &[0; 65_000]] {
            assert_eq!(&*Tail::from(bytes), bytes);
        }
        assert!(matches!(Tail::from(&[0u8; 96][..]), Tail::Zeros(96)));
    }
}
