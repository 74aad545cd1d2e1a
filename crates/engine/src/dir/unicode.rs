//! The Unicode part of case folding, with tables of other crates (feature `casefold`).

use regex_syntax::hir::{Class, HirKind};
use std::sync::LazyLock;
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

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
pub(super) static KNOWN: LazyLock<Vec<(u32, u32)>> =
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

/// Folds a text that is not all ASCII.
pub(super) fn fold(text: &str) -> String {
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
    folded.into_iter().map(|(_, c)| c).collect()
}
