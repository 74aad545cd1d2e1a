//! Case folding: two names of a directory with the flag `CASEFOLD` are equal if they are equal
//! after folding.
//!
//! The folding is `utf8-12.1` of Linux: full case folding, canonical decomposition, and removal of
//! default ignorable code points. `README` equals `readme`, `Straße` equals `STRASSE`. Code points
//! that Unicode 12.1 does not assign stay unchanged and count as letters. For the others the rules
//! of later versions equal those of 12.1, since Unicode changes neither foldings nor
//! decompositions. A name that is not UTF-8 equals only itself.

use regex_syntax::hir::{Class, HirKind};
use std::borrow::Cow;
use std::sync::LazyLock;
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

/// The encoding number of `utf8-12.1` in the superblock.
pub(super) const UTF8_12_1: u16 = 1;

/// Code points that folding removes: `Default_Ignorable_Code_Point`, unassigned ones included.
const IGNORED: [(u32, u32); 17] = [
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180E),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1_BCA0, 0x1_BCA3),
    (0x1_D173, 0x1_D17A),
    (0xE_0000, 0xE_0FFF),
];

/// Code points that Unicode 12.1 assigns, in ascending order.
static KNOWN: LazyLock<Vec<(u32, u32)>> =
    LazyLock::new(|| match regex_syntax::parse(r"\p{Age=12.1}").map(|hir| hir.into_kind()) {
        Ok(HirKind::Class(Class::Unicode(class))) => {
            class.ranges().iter().map(|range| (range.start().into(), range.end().into())).collect()
        }
        _ => Vec::new(),
    });

fn is_in(ranges: &[(u32, u32)], c: char) -> bool {
    let at = ranges.partition_point(|(_, end)| *end < u32::from(c));
    ranges.get(at).is_some_and(|(start, _)| *start <= u32::from(c))
}

/// Returns the form of a name that is compared and hashed; `None` if the name is not UTF-8.
pub(super) fn fold(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    let text = std::str::from_utf8(name).ok()?;
    let mut folded: Vec<(u8, char)> = Vec::with_capacity(text.len());
    for c in text.chars() {
        if is_in(&KNOWN, c) {
            caseless::default_case_fold_str(c.encode_utf8(&mut [0; 4])).chars().for_each(|c| {
                decompose_canonical(c, |c| folded.push((canonical_combining_class(c), c)))
            })
        } else {
            folded.push((0, c))
        }
    }
    // Combining marks between two letters are sorted by class. Ignored code points separate marks
    // as letters do, so they are removed after the sort.
    folded
        .chunk_by_mut(|a, b| (a.0 == 0) == (b.0 == 0))
        .for_each(|run| run.sort_by_key(|(class, _)| *class));
    folded.retain(|(_, c)| !is_in(&IGNORED, *c));
    Some(folded.into_iter().map(|(_, c)| c).collect::<String>().into_bytes())
}

/// Folds a name. Returns a name that cannot be folded unchanged.
pub(super) fn or_raw(name: &[u8]) -> Cow<'_, [u8]> {
    fold(name).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// A name that is searched for, with its folded form.
pub(super) struct FoldedName<'a> {
    name: &'a [u8],
    folded: Option<Vec<u8>>,
}

impl<'a> FoldedName<'a> {
    pub fn new(name: &'a [u8]) -> Self {
        FoldedName { name, folded: fold(name) }
    }

    /// Returns whether `entry` is a spelling of this name.
    pub fn is(&self, entry: &[u8]) -> bool {
        match &self.folded {
            _ if self.name == entry => true,
            Some(folded) if entry.is_ascii() => folded.eq_ignore_ascii_case(entry),
            Some(folded) => fold(entry).is_some_and(|entry| entry == *folded),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: &str, b: &str) -> bool {
        let (one, other) = (
            FoldedName::new(a.as_bytes()).is(b.as_bytes()),
            FoldedName::new(b.as_bytes()).is(a.as_bytes()),
        );
        assert_eq!(one, other, "{a} {b}");
        one
    }

    #[test]
    fn names_are_equal_but_for_case_and_composition() {
        assert!(same("README", "readme") && same("Straße", "STRASSE") && same("Ä", "a\u{308}"));
        // Marks of two classes in either order, and ignored code points.
        assert!(same("q\u{307}\u{323}", "Q\u{323}\u{307}") && same("a\u{AD}b\u{2065}", "AB"));
        // Marks with an ignored code point between them keep their order.
        assert!(same("a\u{301}\u{34F}\u{323}", "A\u{301}\u{200D}\u{323}"));
        assert!(!same("a\u{301}\u{34F}\u{323}", "a\u{323}\u{301}"));
        assert!(
            same("ﬃ", "FFI") && same("ǰ", "J\u{30C}") && same("한", "\u{1112}\u{1161}\u{11AB}")
        );
        assert!(!same("a", "b") && !same("ı", "i") && !same("a", "ä"));
        // Later than 12.1: U+A7C7 and U+A7C8 are a pair of 13.0.
        assert!(!same("\u{A7C7}", "\u{A7C8}") && same("A\u{A7C7}", "a\u{A7C7}"));
    }

    #[test]
    fn a_name_that_is_not_utf8_equals_only_itself() {
        assert!(FoldedName::new(b"A\xFF").is(b"A\xFF"));
        assert!(!FoldedName::new(b"A\xFF").is(b"a\xFF"));
        assert_eq!(&*or_raw(b"A\xFF"), b"A\xFF");
        assert!(KNOWN.len() > 600);
    }
}
