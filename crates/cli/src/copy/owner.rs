//! Owners as numbers.

use extant_engine::Caller;

/// An owner and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Owner {
    /// Returns the owner as the creator of new inodes.
    pub fn caller(self) -> Caller<'static> {
        Caller { uid: self.uid, gid: self.gid, ..Caller::default() }
    }
}

/// Parses `UID:GID`.
pub fn parse_owner(text: &str) -> Result<Owner, String> {
    let numbers =
        text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    let (uid, gid) = numbers.ok_or("an owner is two numbers, as in 1000:1000")?;
    Ok(Owner { uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_two_numbers() {
        assert_eq!(parse_owner("0:4294967295"), Ok(Owner { uid: 0, gid: u32::MAX }));
        for bad in ["", "1", "1:", "root:root", "-1:0", "4294967296:0"] {
            assert!(parse_owner(bad).is_err(), "{bad}");
        }
    }
}
