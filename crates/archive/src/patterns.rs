//! Patterns of entries that an image leaves out.

/// Patterns of entries, with everything below them.
///
/// `*` stands for any bytes but `/`, `?` for one of them. A pattern without `/` is compared with
/// names, at any depth; a pattern with `/` with whole paths from the root.
#[derive(Debug, Clone, Default)]
pub struct Patterns {
    list: Vec<(Vec<u8>, bool)>,
}

impl Patterns {
    /// Adds a pattern. A `/` at its end has no meaning.
    pub fn add(&mut self, pattern: &[u8]) {
        let pattern = pattern.strip_suffix(b"/").unwrap_or(pattern);
        let is_path = pattern.contains(&b'/');
        let pattern = pattern.strip_prefix(b"/").unwrap_or(pattern);
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
            Some(b'?') if *byte != b'/' => (p, t) = (p + 1, t + 1),
            Some(other) if other == byte => (p, t) = (p + 1, t + 1),
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
        ] {
            let mut patterns = Patterns::default();
            patterns.add(pattern.as_bytes());
            assert_eq!(patterns.matches(path.as_bytes()), expected, "{pattern} {path}");
        }
    }
}
