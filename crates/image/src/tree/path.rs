//! Paths in the image: checks, and resolution inside the root.
//!
//! Symlinks in the middle of a path lead to places in the image, whatever the path on the host: an
//! absolute target begins at the image's root, and `..` at the root stays there.

use super::{Body, EntryKind, NodeId, Tree};
use crate::error::{Error, Result};
use crate::tree::Attributes;
use extant_format::dir::NAME_MAX;
use std::borrow::Cow;

/// Maximum number of symlinks in the resolution of a path, as in Linux.
const MAX_SYMLINKS: u32 = 40;

/// Maximum length of the targets of these symlinks in sum: that of several whole paths.
const MAX_TARGETS: usize = 16 << 10;

/// Maximum number of directories in directories: programs that walk a tree have a bound, too.
pub(super) const MAX_DEPTH: usize = 2048;

/// A directory that a path leads to, as far as it exists.
struct Resolved<'p> {
    directory: NodeId,
    /// A path, and the place of its first component that is missing.
    missing: Option<(Cow<'p, [u8]>, usize)>,
    followed: Followed,
}

/// Symlinks that were followed: their number, and the length of their targets.
#[derive(Clone, Copy, Default)]
struct Followed {
    symlinks: u32,
    targets: usize,
}

impl Followed {
    fn add(&mut self, target: &[u8]) -> Result<(), &'static str> {
        self.symlinks += 1;
        self.targets += target.len();
        if self.symlinks > MAX_SYMLINKS {
            return Err("the path has too many symlinks, or a circle of them");
        }
        if self.targets > MAX_TARGETS {
            return Err("the path has symlinks with targets of more than 16 KiB in sum");
        }
        Ok(())
    }
}

/// Returns the components of a path; empty ones and `.` mean nothing.
pub(super) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// Checks a path from outside. Refuses `..`, NUL bytes and names that are too long.
pub(super) fn check(path: &[u8]) -> Result<()> {
    for part in components(path) {
        let cause = match part {
            b".." => "`..` in a path would lead out of its directory",
            part if part.contains(&0) => "a name contains a NUL byte",
            part if part.len() > NAME_MAX => "a name is longer than 255 bytes",
            _ => continue,
        };
        return Err(Error::entry(path, cause));
    }
    Ok(())
}

/// Splits a path into its directory and its last name; `None` for the root.
pub(super) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let name = components(path).next_back()?;
    // The name is a part of the path, so its last occurrence is its place.
    let end = path.windows(name.len()).rposition(|part| part == name)?;
    Some((path.get(..end)?, name))
}

/// Returns whether a path leads to the root.
pub(super) fn is_root(path: &[u8]) -> bool {
    components(path).next().is_none()
}

/// Takes the next component from `rest`, which begins at `*at`.
fn next_component(rest: &[u8], at: &mut usize) -> Option<(usize, usize)> {
    loop {
        let start = *at;
        let left = rest.get(start..).filter(|left| !left.is_empty())?;
        let len = left.iter().position(|byte| *byte == b'/').unwrap_or(left.len());
        *at = start + len + 1;
        if len > 0 && left.get(..len) != Some(b".") {
            return Some((start, start + len));
        }
    }
}

impl Tree {
    /// Returns the directory that `path` leads to, for the entry `of`; makes missing ones.
    pub(super) fn make_directory(&mut self, of: &[u8], path: &[u8]) -> Result<NodeId> {
        let failed = |cause| Error::entry(of, cause);
        let mut found = self
            .resolve(NodeId::ROOT, (Cow::Borrowed(path), 0), Followed::default())
            .map_err(failed)?;
        while let Some((rest, mut at)) = found.missing.take() {
            let Some((start, end)) = next_component(&rest, &mut at) else { break };
            let name = rest.get(start..end).unwrap_or_default();
            let implied = Attributes::default();
            let made = self.put(of, (found.directory, name), &implied, EntryKind::Directory)?;
            found = self.resolve(made, (rest, at), found.followed).map_err(failed)?;
        }
        Ok(found.directory)
    }

    /// Follows a path, from a place in it on, from a directory. The work is bounded: each of the
    /// few symlinks adds a target of limited length. `Err` has the cause.
    fn resolve<'p>(
        &self,
        from: NodeId,
        (path, at): (Cow<'p, [u8]>, usize),
        followed: Followed,
    ) -> Result<Resolved<'p>, &'static str> {
        let (mut rest, mut at) = (path, at);
        let mut found = Resolved { directory: from, missing: None, followed };
        while let Some((start, end)) = next_component(&rest, &mut at) {
            let name = rest.get(start..end).unwrap_or_default();
            if name == b".." {
                found.directory = self.parent(found.directory);
                continue;
            }
            let Some(child) = self.child(found.directory, name) else {
                found.missing = Some((rest, start));
                break;
            };
            match self.node(child).body {
                Body::Directory { .. } => found.directory = child,
                Body::Symlink { .. } => {
                    let target = self.target(child);
                    found.followed.add(target)?;
                    if target.first() == Some(&b'/') {
                        found.directory = NodeId::ROOT;
                    }
                    let left = rest.get(at.min(rest.len())..).unwrap_or_default();
                    (rest, at) = (Cow::Owned([target, b"/", left].concat()), 0);
                }
                _ => return Err("a part of the path is no directory"),
            }
        }
        Ok(found)
    }

    /// Returns whether a directory has place for directories below.
    pub(super) fn is_within_depth(&self, mut directory: NodeId) -> bool {
        let mut depth = 0;
        while directory != NodeId::ROOT && depth < MAX_DEPTH {
            directory = self.parent(directory);
            depth += 1;
        }
        depth < MAX_DEPTH
    }

    /// Returns the directory above one; the root is its own.
    pub(super) fn parent(&self, directory: NodeId) -> NodeId {
        match self.node(directory).body {
            Body::Directory { entry, .. } if directory != NodeId::ROOT => {
                self.entries.get(entry).parent
            }
            _ => NodeId::ROOT,
        }
    }

    /// Returns the directory that a path leads to, symlinks at its end included.
    pub(super) fn directory_at(&self, path: &[u8]) -> Result<Option<NodeId>> {
        check(path)?;
        let found = self.resolve(NodeId::ROOT, (Cow::Borrowed(path), 0), Followed::default());
        let found = found.ok().filter(|found| found.missing.is_none());
        Ok(found.map(|found| found.directory))
    }

    /// Returns the directory and the name of a path; `None` for the root, and if nothing can be
    /// there since a directory is missing.
    pub(super) fn place<'p>(&self, path: &'p [u8]) -> Result<Option<(NodeId, &'p [u8])>> {
        check(path)?;
        let Some((parent, name)) = split(path) else { return Ok(None) };
        let found = self.resolve(NodeId::ROOT, (Cow::Borrowed(parent), 0), Followed::default());
        let found = found.ok().filter(|found| found.missing.is_none());
        Ok(found.map(|found| (found.directory, name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_at_their_last_name() {
        assert_eq!(split(b"a"), Some((&b""[..], &b"a"[..])));
        assert_eq!(split(b"/a/b/"), Some((&b"/a/"[..], &b"b"[..])));
        assert_eq!(split(b"./b/b/."), Some((&b"./b/"[..], &b"b"[..])));
        assert_eq!(split(b"ab/b"), Some((&b"ab/"[..], &b"b"[..])));
        for root in [&b""[..], b"/", b".", b"./"] {
            assert_eq!(split(root), None);
        }
    }

    #[test]
    fn bad_paths_are_refused() {
        for good in [&b"a/b"[..], b"/a//b/./c", b"..a", &[b'x'; 255]] {
            check(good).unwrap();
        }
        for bad in [&b".."[..], b"a/../b", b"a\0b", &[b'x'; 256]] {
            assert!(check(bad).is_err());
        }
    }
}
