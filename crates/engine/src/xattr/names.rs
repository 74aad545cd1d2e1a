//! Attribute names: the full names of system calls, and the index and suffix that entries store.

use crate::error::{Errno, Result};
use extant_format::xattr::{NameIndex, full_name, split_name};

/// Longest full name, in bytes.
const NAME_MAX: usize = 255;

/// The index and suffix that an entry stores for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key<'a> {
    pub index: u8,
    pub suffix: &'a [u8],
}

/// Full name of the access ACL.
pub(super) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// Full name of the default ACL.
pub(super) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Key of the access ACL.
pub(super) const ACCESS: Key<'static> = Key { index: NameIndex::POSIX_ACL_ACCESS, suffix: b"" };
/// Key of the default ACL.
pub(super) const DEFAULT: Key<'static> = Key { index: NameIndex::POSIX_ACL_DEFAULT, suffix: b"" };
/// Key of the second part of inline data.
pub(super) const INLINE_DATA: Key<'static> =
    Key { index: NameIndex::SYSTEM, suffix: NameIndex::INLINE_DATA_NAME };

impl Key<'_> {
    /// Returns whether the values are POSIX ACLs, whose on-disk format differs from that of system
    /// calls.
    pub fn is_acl(&self) -> bool {
        matches!(self.index, NameIndex::POSIX_ACL_ACCESS | NameIndex::POSIX_ACL_DEFAULT)
    }
}

/// Returns whether system calls show attributes with this prefix.
fn is_visible(index: u8) -> bool {
    use NameIndex as I;
    matches!(index, I::USER | I::TRUSTED | I::SECURITY | I::POSIX_ACL_ACCESS | I::POSIX_ACL_DEFAULT)
}

/// Parses a full name. Errors: ERANGE (too long), EINVAL (nothing after the prefix), EOPNOTSUPP
/// (unknown namespace).
pub(super) fn parse(name: &[u8]) -> Result<Key<'_>> {
    if name.len() > NAME_MAX {
        return Err(Errno::Range.into());
    }
    match split_name(name) {
        Some((index, suffix)) if is_visible(index) => Ok(Key { index, suffix }),
        None if matches!(name, b"user." | b"trusted." | b"security.") => Err(Errno::Inval.into()),
        _ => Err(Errno::OpNotSupp.into()),
    }
}

/// Returns the full name of an entry; `None` for namespaces that system calls do not show.
pub(super) fn full(index: u8, suffix: &[u8]) -> Option<Vec<u8>> {
    if is_visible(index) { full_name(index, suffix) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in
            [&b"user.a"[..], b"trusted.overlay.x", b"security.selinux", ACL_ACCESS, ACL_DEFAULT]
        {
            let key = parse(name).unwrap();
            assert_eq!(full(key.index, key.suffix).as_deref(), Some(name));
        }
    }

    #[test]
    fn bad_names_have_their_errors() {
        let error = |name: &[u8]| parse(name).unwrap_err();
        assert!(error(b"user.").is(Errno::Inval));
        assert!(error(b"system.data").is(Errno::OpNotSupp));
        assert!(error(b"com.example").is(Errno::OpNotSupp));
        assert!(error(&[b"user.".as_slice(), &[b'x'; 251]].concat()).is(Errno::Range));
        assert_eq!(full(INLINE_DATA.index, INLINE_DATA.suffix), None);
    }
}
