//! Extended attributes of sources that an image gets.

use extant_archive::glob_matches;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Patterns of full names, such as `user.*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XattrNames {
    kept: Vec<Vec<u8>>,
    left_out: Vec<Vec<u8>>,
}

impl XattrNames {
    /// Takes the arguments: patterns with commas between them, `^` before those of names that are
    /// left out.
    pub fn of<'a>(arguments: impl IntoIterator<Item = &'a OsStr>) -> XattrNames {
        let mut names = XattrNames::default();
        let lists = arguments.into_iter().flat_map(|list| list.as_bytes().split(|b| *b == b','));
        for pattern in lists.filter(|pattern| !pattern.is_empty()) {
            match pattern.strip_prefix(b"^") {
                Some(pattern) => names.left_out.push(pattern.to_vec()),
                None => names.kept.push(pattern.to_vec()),
            }
        }
        names
    }

    /// Returns whether all names are kept.
    pub fn keeps_all(&self) -> bool {
        self.kept.is_empty() && self.left_out.is_empty()
    }

    /// Returns whether an attribute of this name is kept: a pattern must match it, if there are
    /// some without `^`, and none with `^` may. A `*` matches `/`, too, which names of attributes
    /// may have.
    pub fn keeps(&self, name: &[u8]) -> bool {
        let matches = |patterns: &[Vec<u8>]| patterns.iter().any(|pattern| is_match(pattern, name));
        (self.kept.is_empty() || matches(&self.kept)) && !matches(&self.left_out)
    }
}

fn is_match(pattern: &[u8], name: &[u8]) -> bool {
    // In paths `*` ends at a slash; no Linux name has a NUL.
    let plain = |bytes: &[u8]| -> Vec<u8> {
        bytes.iter().map(|byte| if *byte == b'/' { 0 } else { *byte }).collect()
    };
    glob_matches(&plain(pattern), &plain(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_by_patterns() {
        for (arguments, kept, left_out) in [
            (&[][..], &["user.a", "security.selinux"][..], &[][..]),
            (&["user.*"], &["user.a", "user.", "user.a/b"], &["security.selinux", "xuser.a"]),
            (&["^security.selinux"], &["user.a", "security.capability"], &["security.selinux"]),
            (&["user.*,^user.x*"], &["user.a"], &["user.xy", "trusted.a"]),
            (&["user.?", "security.*"], &["user.a", "security.ima"], &["user.ab"]),
            (&["^*"], &[], &["user.a", "system.posix_acl_access"]),
        ] {
            let names = XattrNames::of(arguments.iter().map(OsStr::new));
            let keeps = |name: &&&str| names.keeps(name.as_bytes());
            assert!(kept.iter().all(|name| keeps(&name)), "{arguments:?}");
            assert!(!left_out.iter().any(|name| keeps(&name)), "{arguments:?}");
            assert_eq!(names.keeps_all(), arguments.is_empty());
        }
    }
}
