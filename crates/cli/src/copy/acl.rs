//! Permissions of a copy that lacks the ACL of its source.
//!
//! The group bits of a mode are the mask of the access ACL where there is one. Without the ACL the
//! same bits would grant the mask to the owning group.

/// The attribute that holds the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";

/// The group bits of a mode.
const GROUP: u32 = 0o070;

/// Returns `mode` for a copy without the access ACL `acl`, the value of its attribute. The group
/// keeps the permissions of its own entry, and none if the ACL is unknown or malformed.
pub fn mode_without(mode: u32, acl: Option<&[u8]>) -> u32 {
    let group = acl.and_then(group_entry).unwrap_or(0);
    mode & (!GROUP | group << 3)
}

/// Returns the permissions of the owning group's entry.
fn group_entry(acl: &[u8]) -> Option<u32> {
    const VERSION: &[u8] = &[2, 0, 0, 0];
    const GROUP_OBJ: u8 = 4;
    let entries = acl.strip_prefix(VERSION)?.chunks_exact(8);
    entries.into_iter().find_map(|entry| match entry {
        [GROUP_OBJ, 0, perm, ..] => Some(u32::from(perm & 7)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_gets_its_entry_within_the_mask() {
        let acl = |perm: u8| {
            let mut value = vec![2, 0, 0, 0];
            value.extend([1, 0, 7, 0, 255, 255, 255, 255, 4, 0, perm, 0, 255, 255, 255, 255]);
            value
        };
        assert_eq!(mode_without(0o4775, Some(&acl(5))), 0o4755);
        assert_eq!(mode_without(0o740, Some(&acl(7))), 0o740);
        assert_eq!(mode_without(0o775, Some(&acl(0))), 0o705);
        assert_eq!(mode_without(0o775, Some(&acl(5)[..11])), 0o705);
        assert_eq!(mode_without(0o775, Some(b"")), 0o705);
        assert_eq!(mode_without(0o2775, None), 0o2705);
    }
}
