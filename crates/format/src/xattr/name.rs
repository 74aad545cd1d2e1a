//! Names of attributes: a number stands for the prefix.

/// The numbers of prefixes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameIndex;

impl NameIndex {
    /// `user.`
    pub const USER: u8 = 1;
    /// `system.posix_acl_access`, whole.
    pub const POSIX_ACL_ACCESS: u8 = 2;
    /// `system.posix_acl_default`, whole.
    pub const POSIX_ACL_DEFAULT: u8 = 3;
    /// `trusted.`
    pub const TRUSTED: u8 = 4;
    /// Lustre.
    pub const LUSTRE: u8 = 5;
    /// `security.`
    pub const SECURITY: u8 = 6;
    /// `system.`
    pub const SYSTEM: u8 = 7;
    /// `system.richacl`, whole.
    pub const RICHACL: u8 = 8;
    /// Encryption contexts.
    pub const ENCRYPTION: u8 = 9;
    /// `gnu.`, of the Hurd.
    pub const HURD: u8 = 10;
    /// The name, with [`NameIndex::SYSTEM`], of the attribute that holds the rest of inline data.
    pub const INLINE_DATA_NAME: &[u8] = b"data";
}

const WHOLE: [(u8, &[u8]); 3] = [
    (NameIndex::POSIX_ACL_ACCESS, b"system.posix_acl_access"),
    (NameIndex::POSIX_ACL_DEFAULT, b"system.posix_acl_default"),
    (NameIndex::RICHACL, b"system.richacl"),
];

const PREFIXES: [(u8, &[u8]); 5] = [
    (NameIndex::USER, b"user."),
    (NameIndex::TRUSTED, b"trusted."),
    (NameIndex::SECURITY, b"security."),
    (NameIndex::SYSTEM, b"system."),
    (NameIndex::HURD, b"gnu."),
];

/// Prefix number and rest of a full name; `None` for an unknown prefix or an empty rest.
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    if let Some((index, _)) = WHOLE.iter().find(|(_, name)| *name == full) {
        return Some((*index, &[]));
    }
    PREFIXES.iter().find_map(|(index, prefix)| {
        full.strip_prefix(*prefix).filter(|rest| !rest.is_empty()).map(|rest| (*index, rest))
    })
}

/// Returns the full name of an attribute; `None` for an unknown prefix number, or if no lookup by
/// that name can find the attribute. Such an image holds a prefix without a rest, a rest after a
/// whole name, or a whole name under another prefix's number.
pub fn full_name(index: u8, name: &[u8]) -> Option<Vec<u8>> {
    let (_, prefix) = WHOLE.iter().chain(&PREFIXES).find(|(number, _)| *number == index)?;
    let full = [*prefix, name].concat();
    (split_name(&full) == Some((index, name))).then_some(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_and_joined() {
        let names: [(&[u8], u8, &[u8]); 6] = [
            (b"user.mime_type", 1, b"mime_type"),
            (b"system.posix_acl_access", 2, b""),
            (b"system.posix_acl_default", 3, b""),
            (b"trusted.x", 4, b"x"),
            (b"security.selinux", 6, b"selinux"),
            (b"system.data", 7, b"data"),
        ];
        for (full, index, rest) in names {
            assert_eq!(split_name(full), Some((index, rest)));
            assert_eq!(full_name(index, rest).as_deref(), Some(full));
        }
        assert_eq!(split_name(b"user."), None);
        assert_eq!(split_name(b"other.x"), None);
        assert_eq!(full_name(99, b"x"), None);
    }

    #[test]
    fn names_without_a_lookup_are_none() {
        let names: [(u8, &[u8]); 4] = [(1, b""), (7, b""), (2, b"x"), (7, b"posix_acl_access")];
        for (index, rest) in names {
            assert_eq!(full_name(index, rest), None, "{index} {rest:?}");
        }
    }
}
