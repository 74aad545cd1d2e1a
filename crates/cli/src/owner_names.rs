//! Names of users and groups in the files of the host: read before a sandbox hides them.
//!
//! Other sources of names, such as LDAP, need code of the C library's plugins and are not asked.

use std::fs;
use std::path::Path;

/// Bytes of a file that are read.
const MAX_BYTES: u64 = 16 << 20;

/// Users and groups of the host.
#[derive(Debug, Default)]
pub struct OwnerNames {
    users: Vec<(String, u32)>,
    groups: Vec<(String, u32)>,
}

impl OwnerNames {
    /// Reads the files; one that cannot be read has no names.
    pub fn read() -> OwnerNames {
        OwnerNames { users: names("/etc/passwd"), groups: names("/etc/group") }
    }

    /// Returns the name of a user, `unknown` for one without.
    pub fn user(&self, id: u32) -> &str {
        name(&self.users, id)
    }

    /// Returns the name of a group, `unknown` for one without.
    pub fn group(&self, id: u32) -> &str {
        name(&self.groups, id)
    }

    /// Returns the number of a user by name.
    pub fn user_id(&self, name: &str) -> Option<u32> {
        id(&self.users, name)
    }

    /// Returns the number of a group by name.
    pub fn group_id(&self, name: &str) -> Option<u32> {
        id(&self.groups, name)
    }
}

fn name(list: &[(String, u32)], id: u32) -> &str {
    list.iter().find(|(_, known)| *known == id).map_or("unknown", |(name, _)| name)
}

fn id(list: &[(String, u32)], name: &str) -> Option<u32> {
    list.iter().find(|(known, _)| known == name).map(|(_, id)| *id)
}

fn names(file: &str) -> Vec<(String, u32)> {
    let path = Path::new(file);
    let is_short = fs::metadata(path).is_ok_and(|found| found.len() <= MAX_BYTES);
    let text = if is_short { fs::read(path).unwrap_or_default() } else { Vec::new() };
    parse(&String::from_utf8_lossy(&text))
}

/// Parses lines of `NAME:PASSWORD:NUMBER:...`.
fn parse(text: &str) -> Vec<(String, u32)> {
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        Some((name.to_owned(), number.parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_found() {
        let users = parse("root:x:0:0:root:/root:/bin/sh\nbad\n:x:\nbin:x:2:2\n");
        let owners = OwnerNames { users, groups: parse("tty:x:5:\n") };
        assert_eq!((owners.user(2), owners.user(3), owners.group(5)), ("bin", "unknown", "tty"));
        assert_eq!((owners.user_id("bin"), owners.group_id("bin")), (Some(2), None));
    }
}
