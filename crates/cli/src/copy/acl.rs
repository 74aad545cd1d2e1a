//! Permissions of a copy that lacks the ACL of its source.
//!
//! The group bits of a mode are the mask of the access ACL where there is one. Without the ACL the
//! same bits would grant the mask to the owning group, and users and groups that the ACL names
//! would get the permissions of the owning group or of others.

/// The attribute that holds the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";

/// The attribute that holds the default ACL of a directory.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The bits of a mode for the group and for others.
const NOT_OWNER: u32 = 0o077;

/// Returns `mode` for a copy without the access ACL `acl`, the value of its attribute. The copy
/// grants no user more than the ACL does. If the ACL is unknown or malformed, only the owner keeps
/// permissions.
pub fn mode_without(mode: u32, acl: Option<&[u8]>) -> u32 {
    let (group, other) = acl.and_then(permissions).unwrap_or((0, 0));
    mode & (!NOT_OWNER | group << 3 | other)
}

/// Returns the permissions of the owning group and of others that each user has by the ACL too.
///
/// Without the ACL a named user belongs to the owning group or to others, and a member of a named
/// group to others. A member of both groups has the permissions of either entry by the ACL.
fn permissions(acl: &[u8]) -> Option<(u32, u32)> {
    const VERSION: &[u8] = &[2, 0, 0, 0];
    const USER: u8 = 2;
    const GROUP_OBJ: u8 = 4;
    const GROUP: u8 = 8;
    const MASK: u8 = 16;
    const OTHER: u8 = 32;
    let mut entries = acl.strip_prefix(VERSION)?.chunks_exact(8);
    let (mut group, mut other) = (None, None);
    let (mut mask, mut users, mut groups) = (7, None, None);
    for entry in &mut entries {
        let [tag, 0, permissions, ..] = *entry else { return None };
        let permissions = u32::from(permissions & 7);
        match tag {
            USER => users = Some(users.unwrap_or(7) & permissions),
            GROUP_OBJ => group = Some(permissions),
            GROUP => groups = Some(groups.unwrap_or(7) & permissions),
            MASK => mask = permissions,
            OTHER => other = Some(permissions),
            _ => {}
        }
    }
    if !entries.remainder().is_empty() {
        return None;
    }
    // The mask limits named entries, and not others.
    let named = |permissions: Option<u32>| permissions.map_or(7, |permissions| permissions & mask);
    Some((group? & mask & named(users), other? & named(users) & named(groups)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_gets_the_rights_that_all_its_users_have() {
        let value = |entries: &[(u8, u8)]| {
            let entry = |(tag, perm): &(u8, u8)| [*tag, 0, *perm, 0, 255, 255, 255, 255];
            [&[2, 0, 0, 0][..], &entries.iter().flat_map(entry).collect::<Vec<_>>()].concat()
        };
        let acl = |perm: u8| value(&[(1, 7), (4, perm), (32, 5)]);
        let named = |tag: u8, perm: u8, mask: u8| {
            value(&[(1, 7), (tag, perm), (4, 7), (16, mask), (32, 7)])
        };
        assert_eq!(mode_without(0o777, Some(&named(2, 4, 7))), 0o744);
        assert_eq!(mode_without(0o777, Some(&named(2, 7, 4))), 0o744);
        assert_eq!(mode_without(0o777, Some(&named(8, 4, 7))), 0o774);
        assert_eq!(mode_without(0o777, Some(&named(8, 7, 0))), 0o700);
        assert_eq!(mode_without(0o4775, Some(&acl(5))), 0o4755);
        assert_eq!(mode_without(0o740, Some(&acl(7))), 0o740);
        assert_eq!(mode_without(0o775, Some(&acl(0))), 0o705);
        assert_eq!(mode_without(0o775, Some(&acl(5)[..27])), 0o700);
        assert_eq!(mode_without(0o775, Some(b"")), 0o700);
        assert_eq!(mode_without(0o2775, None), 0o2700);
    }
}
