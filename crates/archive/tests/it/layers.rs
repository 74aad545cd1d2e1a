//! Layers over each other.

use crate::bundle::{archive, layout, load, opaque_by_attribute, paths, plain_image};
use extant_archive::Selection;

type Members<'a> = &'a [(char, &'a str, &'a str)];

fn merged(layers: &[Vec<u8>]) -> Result<Vec<String>, String> {
    let image = plain_image(layers);
    let top = image.manifest.clone();
    load(&layout(vec![image], vec![top]), &Selection::default()).map(|tree| paths(&tree))
}

#[test]
fn upper_layers_change_lower_ones() {
    let lower: Members<'_> = &[
        ('d', "d", ""),
        ('f', "d/a", "1"),
        ('f', "d/b", "1"),
        ('d', "usr/lib", ""),
        ('l', "lib", "usr/lib"),
        ('l', "abs", "/usr/lib"),
    ];
    let rest = ["abs->/usr/lib", "d", "d/a=1", "d/b=1", "lib->usr/lib", "usr", "usr/lib"];
    let without = |gone: &[&str], more: &[&str]| {
        let kept = rest.iter().filter(|line| !gone.contains(line));
        let mut lines: Vec<String> = kept.chain(more).map(|line| line.to_string()).collect();
        lines.sort_by(|a, b| {
            let path = |line: &str| line.split(['=', '-']).next().unwrap().to_string();
            path(a).cmp(&path(b))
        });
        lines
    };
    let cases: [(Members<'_>, Vec<String>); 13] = [
        (&[('f', "d/.wh.a", "")], without(&["d/a=1"], &[])),
        (&[('f', ".wh.d", "")], without(&["d", "d/a=1", "d/b=1"], &[])),
        // Markers apply to lower layers wherever they stand.
        (&[('f', "d/a", "2"), ('f', "d/.wh.a", "")], without(&["d/a=1"], &["d/a=2"])),
        (&[('f', "d/.wh.a", ""), ('f', "d/a", "2")], without(&["d/a=1"], &["d/a=2"])),
        (
            &[('f', "d/c", "2"), ('f', "d/.wh..wh..opq", "")],
            without(&["d/a=1", "d/b=1"], &["d/c=2"]),
        ),
        (
            &[('f', "d/.wh..wh..opq", ""), ('f', "d/c", "2")],
            without(&["d/a=1", "d/b=1"], &["d/c=2"]),
        ),
        (
            &[('d', "d", ""), ('f', "d/c", "2"), ('f', ".wh.d", "")],
            without(&["d/a=1", "d/b=1"], &["d/c=2"]),
        ),
        // Directories merge; everything else replaces.
        (&[('d', "d", ""), ('f', "d/c", "2")], without(&[], &["d/c=2"])),
        (&[('f', "d", "2")], without(&["d", "d/a=1", "d/b=1"], &["d=2"])),
        // Symlinks before the last name lead inside the root.
        (
            &[('f', "lib/x", "2"), ('f', "abs/y", "3")],
            without(&[], &["usr/lib/x=2", "usr/lib/y=3"]),
        ),
        // Links lead to files of lower layers.
        (&[('h', "d/c", "d/a")], without(&[], &["d/c=1"])),
        (&[('w', "d/a", "")], without(&["d/a=1"], &[])),
        (&[('f', ".wh..wh.aufs", ""), ('f', ".wh.nothing", "")], without(&[], &[])),
    ];
    for (upper, expected) in cases {
        let found = merged(&[archive(lower), archive(upper)]).unwrap();
        assert_eq!(found, expected, "{upper:?}");
    }
}

#[test]
fn attributes_of_overlayfs_make_directories_opaque() {
    let lower = archive(&[('f', "d/a", "1"), ('f', "d/b", "1")]);
    for attribute in ["trusted.overlay.opaque", "user.overlay.opaque"] {
        let upper = opaque_by_attribute(attribute, "d", "d/c");
        assert_eq!(merged(&[lower.clone(), upper]).unwrap(), ["d", "d/c=new"]);
    }
    let error = merged(&[opaque_by_attribute("user.overlay.redirect", "d", "d/c")]).unwrap_err();
    assert!(error.contains("d: at byte 0: the attribute user.overlay.redirect"), "{error}");
}

#[test]
fn an_opaque_marker_below_a_symlink_is_for_its_target() {
    let lower = archive(&[('f', "usr/lib/a", "1"), ('l', "lib", "usr/lib")]);
    let upper = archive(&[('f', "lib/.wh..wh..opq", ""), ('f', "lib/b", "2")]);
    let found = merged(&[lower, upper]).unwrap();
    assert_eq!(found, ["lib->usr/lib", "usr", "usr/lib", "usr/lib/b=2"]);
    // A whiteout of a symlink is not for its target.
    let lower = archive(&[('f', "usr/lib/a", "1")]);
    let upper = archive(&[('l', "lib", "usr/lib"), ('f', ".wh.lib", "")]);
    let found = merged(&[lower, upper]).unwrap();
    assert_eq!(found, ["lib->usr/lib", "usr", "usr/lib", "usr/lib/a=1"]);
}

#[test]
fn tricks_with_links_stay_inside_or_are_refused() {
    let outside = archive(&[('l', "up", "../../../../etc"), ('l', "self", "self")]);
    let found = merged(&[outside.clone(), archive(&[('f', "up/x", "2")])]).unwrap();
    assert_eq!(found, ["etc", "etc/x=2", "self->self", "up->../../../../etc"]);
    let cases: [(Members<'_>, &str); 7] = [
        (&[('f', "self/x", "2")], "too many symlinks"),
        (&[('f', "a/../../x", "2")], "`..` in a path"),
        (&[('h', "x", "missing")], "links to missing, which is missing"),
        (&[('h', "x", "../../etc/passwd")], "is missing"),
        (&[('f', ".wh.up", ""), ('h', "x", "up")], "links to up, which is missing"),
        (&[('f', ".wh..", "")], "a whiteout without a name"),
        (&[('f', ".wh.a/b", "")], "below the whiteout .wh.a"),
    ];
    for (upper, cause) in cases {
        let error = merged(&[outside.clone(), archive(upper)]).unwrap_err();
        assert!(error.contains(cause) && error.contains("sha256:"), "{upper:?}: {error}");
    }
}
