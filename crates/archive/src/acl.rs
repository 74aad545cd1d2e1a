//! Access control lists as text, as archives store them.

use extant_format::Printable;
use extant_format::acl::{Acl, AclEntry, Tag};
use std::collections::HashMap;

/// Maximum number of names that are remembered, of users and of groups.
const MAX_NAMES: usize = 1 << 16;

/// Maximum length of a name that is remembered, in bytes.
const MAX_NAME: usize = 256;

/// Numbers of users or groups by name.
#[derive(Debug, Default)]
struct NumbersByName(HashMap<Vec<u8>, u32>);

impl NumbersByName {
    fn add(&mut self, name: &[u8], number: u32) {
        let fits = !name.is_empty() && name.len() <= MAX_NAME && self.0.len() < MAX_NAMES;
        if fits && !self.0.contains_key(name) {
            self.0.insert(name.to_vec(), number);
        }
    }

    fn get(&self, name: &[u8]) -> Option<u32> {
        let number = str::from_utf8(name).ok().and_then(|name| name.parse().ok());
        number.or_else(|| self.0.get(name).copied())
    }
}

/// Names and numbers of the owners of earlier members. Lists may name a user without a number, and
/// the users of the building machine must be of no importance.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    users: NumbersByName,
    groups: NumbersByName,
}

impl Owners {
    /// Remembers the owner of a member.
    pub(crate) fn add(&mut self, user: (&[u8], u32), group: (&[u8], u32)) {
        self.users.add(user.0, user.1);
        self.groups.add(group.0, group.1);
    }

    /// Parses a list. Entries are separated by commas or line ends, their fields by colons:
    /// `user:NAME:rwx`, also with the number as a fourth field. `Err` has the cause.
    pub(crate) fn acl(&self, text: &[u8]) -> Result<Acl, String> {
        let lines = text.split(|byte| matches!(byte, b',' | b'\n'));
        let mut entries = Vec::new();
        for line in lines {
            let line = line.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii();
            if line.is_empty() {
                continue;
            }
            entries.push(self.entry(line).map_err(|cause| {
                format!("the access control entry {} {cause}", Printable(line))
            })?);
        }
        Acl::new(entries).map_err(|error| format!("the access control list is not valid: {error}"))
    }

    fn entry(&self, line: &[u8]) -> Result<AclEntry, &'static str> {
        let mut fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        if matches!(fields.first(), Some(&b"default" | &b"d")) {
            fields.remove(0);
        }
        let (tag, name, perm, number) = match fields[..] {
            [tag @ (b"mask" | b"m" | b"other" | b"o"), perm] => (tag, &b""[..], perm, &b""[..]),
            [tag, name, perm] => (tag, name, perm, &b""[..]),
            [tag, name, perm, number] => (tag, name, perm, number),
            _ => return Err("is malformed"),
        };
        let number = |numbers: &NumbersByName| {
            let name = if number.is_empty() { name } else { number };
            numbers
                .get(name)
                .ok_or("names an owner without a number; make the archive with `--numeric-owner`")
        };
        let tag = match tag {
            b"user" | b"u" if name.is_empty() => Tag::UserObj,
            b"user" | b"u" => Tag::User(number(&self.users)?),
            b"group" | b"g" if name.is_empty() => Tag::GroupObj,
            b"group" | b"g" => Tag::Group(number(&self.groups)?),
            b"mask" | b"m" => Tag::Mask,
            b"other" | b"o" => Tag::Other,
            _ => return Err("has an unknown kind"),
        };
        Ok(AclEntry { tag, perm: perm_bits(perm).ok_or("has unknown permissions")? })
    }
}

/// Parses `rwx`, with `-` for those that are not given.
fn perm_bits(text: &[u8]) -> Option<u16> {
    text.trim_ascii().iter().try_fold(0, |bits, letter| match letter {
        b'r' => Some(bits | 4),
        b'w' => Some(bits | 2),
        b'x' => Some(bits | 1),
        b'-' => Some(bits),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(owners: &Owners, text: &str) -> Result<Vec<(Tag, u16)>, String> {
        let acl = owners.acl(text.as_bytes())?;
        Ok(acl.entries().iter().map(|entry| (entry.tag, entry.perm)).collect())
    }

    #[test]
    fn names_get_the_numbers_of_earlier_members() {
        let mut owners = Owners::default();
        owners.add((b"lisa", 502), (b"staff", 20));
        let list = [
            (Tag::UserObj, 7),
            (Tag::User(502), 6),
            (Tag::GroupObj, 5),
            (Tag::Group(20), 4),
            (Tag::Mask, 7),
            (Tag::Other, 0),
        ];
        for text in [
            "user::rwx,user:lisa:rw-,group::r-x,group:staff:r--,mask::rwx,other::---",
            "user::rwx\nuser:502:rw-\t#effective\ngroup::r-x\ngroup:20:r--\nmask:rwx\nother:---\n",
            "user::rwx,user:other:rw-:502,group::r-x,group:x:r--:20,mask::rwx,other::---",
        ] {
            assert_eq!(entries(&owners, text).unwrap(), list, "{text}");
        }
    }

    #[test]
    fn bad_lists_are_refused() {
        for (text, cause) in [
            ("user::rwx,user:nobody:r--,group::r--,mask::r--,other::---", "--numeric-owner"),
            ("user::rwx,user:5:r--,group::r--,other::---", "not valid"),
            ("user::rwx,group::r--", "not valid"),
            ("user::rwz,group::r--,other::r--", "unknown permissions"),
            ("everyone::r--", "unknown kind"),
            ("user", "malformed"),
        ] {
            let found = entries(&Owners::default(), text).unwrap_err();
            assert!(found.contains(cause), "{found}");
        }
    }
}
