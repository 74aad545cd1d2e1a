//! Patterns of entries that an image leaves out.

/// Patterns of entries, with everything below them.
///
/// `*` stands for any bytes but `/`, `?` for one of them, `[a-c]` for one of a set, and `[!a-c]`
/// for one outside of it. A pattern without `/` is compared with names, at any depth; a pattern
/// with `/` with whole paths from the root.
#[derive(Debug, Clone, Default)]
pub struct Patterns {
    list: Vec<(Vec<u8>, bool)>,
}

impl Patterns {
    /// Adds a pattern. A `/` at its end and `./` before it have no meaning.
    pub fn add(&mut self, pattern: &[u8]) {
        let pattern = pattern.strip_suffix(b"/").unwrap_or(pattern);
        let is_path = pattern.contains(&b'/');
        let mut pattern = pattern.strip_prefix(b"/").unwrap_or(pattern);
        while let Some(rest) = pattern.strip_prefix(b"./") {
            pattern = rest;
        }
        self.list.push((pattern.to_vec(), is_path));
    }

    /// Returns whether there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether a pattern matches a path, which has no leading `/`. Directories above are
    /// not looked at.
    pub fn matches(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        self.list.iter().any(|(pattern, is_path)| {
            let text = if *is_path { path } else { name };
            glob_matches(pattern, text)
        })
    }
}

/// Returns whether a pattern matches all of a text, as [`Patterns`] compares them. The work is
/// bounded by the product of the lengths: only the last `*` is tried again.
pub fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut star) = (0, 0, None);
    while let Some(byte) = text.get(t) {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(_) if let Some(len) = one_matches(&pattern[p..], *byte) => {
                (p, t) = (p + len, t + 1)
            }
            _ => match star {
                Some((at, from)) if text.get(from) != Some(&b'/') => {
                    star = Some((at, from + 1));
                    (p, t) = (at + 1, from + 1);
                }
                _ => return false,
            },
        }
    }
    pattern.get(p..).is_some_and(|rest| rest.iter().all(|byte| *byte == b'*'))
}

/// Returns the length of the beginning of a pattern that stands for one byte, if that is `byte`.
fn one_matches(pattern: &[u8], byte: u8) -> Option<usize> {
    let (len, matches) = match pattern {
        [b'?', ..] => (1, byte != b'/'),
        [b'[', rest @ ..] if let Some((len, is_in)) = set_matches(rest, byte) => {
            (1 + len, is_in && byte != b'/')
        }
        [other, ..] => (1, *other == byte),
        [] => return None,
    };
    matches.then_some(len)
}

/// Returns the length of a set behind its `[`, and whether it has the byte; `None` without an end,
/// where `[` is a byte like others. A `]` at the beginning is a member.
fn set_matches(set: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = usize::from(matches!(set.first(), Some(b'!' | b'^')));
    let members = set.get(negated..)?;
    let end = 1 + members.get(1..)?.iter().position(|member| *member == b']')?;
    let mut rest = members.get(..end)?;
    let mut is_in = false;
    while let [first, after @ ..] = rest {
        let (last, after) = match after {
            [b'-', last, after @ ..] => (last, after),
            _ => (first, after),
        };
        is_in |= (*first..=*last).contains(&byte);
        rest = after;
    }
    Some((negated + end + 1, is_in != (negated == 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names_or_paths() {
        for (pattern, path, expected) in [
            ("*.o", "a.o", true),
            ("*.o", "d/a.o", true),
            ("*.o", "a.oo", false),
            ("/*.o", "a.o", true),
            ("/*.o", "d/a.o", false),
            ("a/*/c", "a/b/c", true),
            ("a/*", "a/b/c", false),
            ("*/*", "a/b/c", false),
            ("var/cache/", "var/cache", true),
            ("??", "x/ab", true),
            ("a?b", "a/b", false),
            ("*a*b", "xaxbxb", true),
            ("*a*b", "xaxbxc", false),
            ("a?c", "ac", false),
            ("*", "", true),
            ("./a/*", "a/b", true),
            ("./a", "a", true),
            ("./a", "d/a", false),
            ("[ae]*", "etc", true),
            ("[ae]*", "bin", false),
            ("x[0-9-]", "x7", true),
            ("x[0-9-]", "x-", true),
            ("x[!0-9]y", "xay", true),
            ("x[^0-9]y", "x3y", false),
            ("[]a]", "]", true),
            ("a[!b]c", "a/c", false),
            ("[a", "[a", true),
            ("*[0-9].o", "a1b2.o", true),
            ("[z-a]", "b", false),
        ] {
            let mut patterns = Patterns::default();
            patterns.add(pattern.as_bytes());
            assert_eq!(patterns.matches(path.as_bytes()), expected, "{pattern} {path}");
        }
    }
}
