//! Members of OCI layers that stand for the removal of others, and overlayfs's forms of them.

use crate::error::{Error, Result};
use crate::tar::{Member, MemberKind};
use extant_format::Printable;

/// Prefix of a name that removes the rest of the name.
const WHITEOUT: &[u8] = b".wh.";

/// Prefix of names with other meanings.
const SPECIAL: &[u8] = b".wh..wh.";

/// Name that removes everything that lower layers have in its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Prefixes of the attributes of overlayfs, with and without privileges.
const OVERLAY: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// Meaning of a member.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum LayerStep {
    /// A file of its own.
    Add,
    /// A directory of its own, without the entries of lower layers.
    AddOpaque,
    /// Removal of a path from lower layers.
    Whiteout(Vec<u8>),
    /// Removal of all entries of a directory from lower layers.
    Opaque(Vec<u8>),
    /// Bookkeeping of a storage driver.
    Ignore,
}

/// Returns the meaning of a member of a layer. Attributes of overlayfs are removed from it.
///
/// # Errors
/// [`Error`] for a whiteout without a name, an entry below a whiteout, and a file of overlayfs
/// whose content is in another layer.
pub(crate) fn interpret(member: &mut Member) -> Result<LayerStep> {
    if let Some(step) = by_name(&member.path)? {
        return Ok(step);
    }
    let overlay = take_overlay(&mut member.xattrs)?;
    let is_empty = matches!(&member.kind, MemberKind::File(data) if data.size == 0);
    Ok(match member.kind {
        MemberKind::CharDevice(0, 0) => LayerStep::Whiteout(member.path.clone()),
        MemberKind::Directory if overlay.is_opaque => LayerStep::AddOpaque,
        _ if overlay.is_whiteout && is_empty => LayerStep::Whiteout(member.path.clone()),
        _ => LayerStep::Add,
    })
}

fn by_name(path: &[u8]) -> Result<Option<LayerStep>> {
    let mut names: Vec<&[u8]> =
        path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    let Some(last) = names.pop() else { return Ok(None) };
    if let Some(marked) = names.iter().find(|name| name.starts_with(WHITEOUT)) {
        if marked.starts_with(SPECIAL) {
            return Ok(Some(LayerStep::Ignore));
        }
        let cause = format_args!("an entry below the whiteout {}", Printable(marked));
        return Err(Error::new(cause));
    }
    let directory = names.join(&b'/');
    if last == OPAQUE {
        return Ok(Some(LayerStep::Opaque(directory)));
    }
    if last.starts_with(SPECIAL) {
        return Ok(Some(LayerStep::Ignore));
    }
    match last.strip_prefix(WHITEOUT) {
        Some(b"" | b"." | b"..") => Err(Error::new("a whiteout without a name")),
        Some(name) => Ok(Some(LayerStep::Whiteout([&directory, &b"/"[..], name].concat()))),
        None => Ok(None),
    }
}

/// Meaning of the attributes of overlayfs.
#[derive(Default)]
struct Overlay {
    is_opaque: bool,
    is_whiteout: bool,
}

fn take_overlay(xattrs: &mut Vec<(Vec<u8>, Vec<u8>)>) -> Result<Overlay> {
    let mut overlay = Overlay::default();
    let mut kept = Vec::with_capacity(xattrs.len());
    for (name, value) in xattrs.drain(..) {
        let Some((prefix, rest)) = split_overlay(&name) else {
            kept.push((name, value));
            continue;
        };
        match rest {
            b"opaque" => overlay.is_opaque |= value == b"y",
            b"whiteout" => overlay.is_whiteout = true,
            b"redirect" | b"metacopy" => {
                return Err(Error::new(format_args!(
                    "the attribute {} refers to another layer of overlayfs",
                    Printable(&name)
                )));
            }
            // Attributes of an overlayfs inside have the prefix twice.
            rest if rest.starts_with(b"overlay.") => {
                let inner = rest.strip_prefix(b"overlay.").unwrap_or_default();
                kept.push(([prefix, inner].concat(), value));
            }
            _ => {}
        }
    }
    *xattrs = kept;
    Ok(overlay)
}

fn split_overlay(name: &[u8]) -> Option<(&'static [u8], &[u8])> {
    OVERLAY.iter().find_map(|prefix| Some((*prefix, name.strip_prefix(*prefix)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_meanings() {
        let step = |path: &str| by_name(path.as_bytes());
        for (path, meaning) in [
            ("a/b", None),
            ("./", None),
            ("a/.wh.b", Some(LayerStep::Whiteout(b"a/b".to_vec()))),
            ("./.wh.b/", Some(LayerStep::Whiteout(b"/b".to_vec()))),
            ("a/.wh..wh..opq", Some(LayerStep::Opaque(b"a".to_vec()))),
            (".wh..wh..opq", Some(LayerStep::Opaque(Vec::new()))),
            (".wh..wh.plnk/7", Some(LayerStep::Ignore)),
            (".wh..wh.aufs", Some(LayerStep::Ignore)),
        ] {
            assert_eq!(step(path).unwrap(), meaning, "{path}");
        }
        for bad in [".wh.", "a/.wh..", "a/.wh...", ".wh.a/b"] {
            assert!(step(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn attributes_of_overlayfs_are_removed() {
        let attribute = |name: &str, value: &str| (name.into(), value.into());
        let mut list = vec![
            attribute("trusted.overlay.opaque", "y"),
            attribute("user.overlay.origin", "x"),
            attribute("trusted.overlay.overlay.opaque", "y"),
            attribute("user.overlayed", "z"),
        ];
        assert!(take_overlay(&mut list).unwrap().is_opaque);
        assert_eq!(
            list,
            [attribute("trusted.overlay.opaque", "y"), attribute("user.overlayed", "z")]
        );
        assert!(take_overlay(&mut vec![attribute("user.overlay.redirect", "/a")]).is_err());
    }
}
