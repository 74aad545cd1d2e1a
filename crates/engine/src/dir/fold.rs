//! Case folding: two names of a directory with the flag `CASEFOLD` are equal if they are equal
//! after folding.
//!
//! The folding is `utf8-12.1` of Linux: full case folding, canonical decomposition, and removal of
//! default ignorable code points. `README` equals `readme`, `Straße` equals `STRASSE`. Code points
//! that Unicode 12.1 does not assign stay unchanged and count as letters. For the others the rules
//! of later versions equal those of 12.1, since Unicode changes neither foldings nor
//! decompositions. A name that is not UTF-8 equals only itself.

use std::borrow::Cow;

/// The encoding number of `utf8-12.1` in the superblock.
pub(super) const UTF8_12_1: u16 = 1;

/// Returns the form of a name that is compared and hashed; `None` if the name is not UTF-8.
pub(super) fn fold(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    let text = std::str::from_utf8(name).ok()?;
    fold_text(text).map(String::into_bytes)
}

#[cfg(feature = "casefold")]
fn fold_text(text: &str) -> Option<String> {
    Some(super::unicode::fold(text))
}

/// Without the tables no file system with folded names is opened ([`super::can_fold`]).
#[cfg(not(feature = "casefold"))]
fn fold_text(_text: &str) -> Option<String> {
    None
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

#[cfg(all(test, feature = "casefold"))]
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
        assert!(super::super::unicode::KNOWN.len() > 600);
    }
}
