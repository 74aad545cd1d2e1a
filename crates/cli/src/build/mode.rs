//! Changes of permissions, as chmod(1) takes them.

/// Changes that are made one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChanges(Vec<Change>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// All bits, from octal digits.
    All(u16),
    /// Some bits of some classes.
    Some { classes: u16, operator: u8, bits: Bits },
}

/// Bits of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bits {
    /// For all classes, and those that are set only where something can be executed already, or
    /// searched.
    Named(u16, u16),
    /// Those of another class, which begin at this bit.
    Copied(u16),
}

/// Set-user-ID and set-group-ID.
const SET_ID: u16 = 0o6000;

/// Permission to execute, of all classes.
const EXECUTE: u16 = 0o111;

/// Parses permission bits from octal digits.
pub fn parse_mode(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("permissions are octal digits, at most 7777".into()),
    }
}

impl ModeChanges {
    /// Parses octal digits or a list of changes, such as `u=rwX,go-w`. Without a class a change is
    /// one for all, whatever the umask of the process is.
    ///
    /// # Errors
    /// The form.
    pub fn parse(text: &str) -> Result<ModeChanges, String> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return parse_mode(text).map(|mode| ModeChanges(vec![Change::All(mode)]));
        }
        let wrong = || "permissions are octal digits, or changes such as u=rwX,go-w".to_owned();
        let parts = text.split(',').map(|part| parse_part(part.as_bytes()).ok_or_else(wrong));
        Ok(ModeChanges(parts.collect::<Result<Vec<_>, _>>()?.concat()))
    }

    /// Returns the changed permission bits of a file.
    pub fn apply(&self, mode: u16, is_directory: bool) -> u16 {
        self.0.iter().fold(mode, |mode, change| change.apply(mode, is_directory))
    }
}

/// Parses classes with one change or several.
fn parse_part(part: &[u8]) -> Option<Vec<Change>> {
    let count = part.iter().take_while(|letter| b"ugoa".contains(letter)).count();
    let (names, mut rest) = part.split_at(count);
    let named = names.iter().fold(0, |all, name| {
        all | match name {
            b'u' => 0o4700,
            b'g' => 0o2070,
            b'o' => 0o1007,
            _ => 0o7777,
        }
    });
    let classes = if names.is_empty() { 0o7777 } else { named };
    let mut changes = Vec::new();
    while let [operator @ (b'+' | b'-' | b'='), after @ ..] = rest {
        let count = after.iter().take_while(|letter| !b"+-=".contains(letter)).count();
        let (letters, next) = after.split_at(count);
        changes.push(Change::Some { classes, operator: *operator, bits: parse_bits(letters)? });
        rest = next;
    }
    (rest.is_empty() && !changes.is_empty()).then_some(changes)
}

fn parse_bits(letters: &[u8]) -> Option<Bits> {
    match letters {
        b"u" => return Some(Bits::Copied(6)),
        b"g" => return Some(Bits::Copied(3)),
        b"o" => return Some(Bits::Copied(0)),
        _ => {}
    }
    letters.iter().try_fold(Bits::Named(0, 0), |bits, letter| {
        let Bits::Named(all, some) = bits else { return None };
        Some(match letter {
            b'r' => Bits::Named(all | 0o444, some),
            b'w' => Bits::Named(all | 0o222, some),
            b'x' => Bits::Named(all | EXECUTE, some),
            b'X' => Bits::Named(all, some | EXECUTE),
            b's' => Bits::Named(all | SET_ID, some),
            b't' => Bits::Named(all | 0o1000, some),
            _ => return None,
        })
    })
}

impl Change {
    fn apply(self, mode: u16, is_directory: bool) -> u16 {
        let (classes, operator, bits) = match self {
            Change::All(all) => return all,
            Change::Some { classes, operator, bits } => (classes, operator, bits),
        };
        let bits = match bits {
            Bits::Copied(from) => ((mode >> from) & 0o7) * EXECUTE,
            Bits::Named(all, some) if is_directory || mode & EXECUTE != 0 => all | some,
            Bits::Named(all, _) => all,
        };
        // As with chmod(1), these bits of directories are changed only where they are named.
        let kept = if is_directory { mode & SET_ID & !bits } else { 0 };
        let given = bits & classes;
        match operator {
            b'+' => mode | given,
            b'-' => mode & !given,
            _ => mode & !classes | given | kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_testkit::Scratch;
    use extant_testkit::tool::run;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn changes_are_those_of_chmod() {
        let scratch = Scratch::new();
        let (file, dir) = (scratch.file("file", 0), scratch.dir("dir"));
        for text in [
            "a=rX",
            "u=rwX,go=rX",
            "go-w",
            "a+x",
            "ug+s,o=",
            "a-s",
            "g=u",
            "o=g-w",
            "u+t",
            "a+t",
            "a=rwxt",
            "u=rw,g=r+x,o=",
            "a+X",
            "uo=",
            "g=s",
            "a=",
        ] {
            let changes = ModeChanges::parse(text).unwrap();
            for mode in [0o644, 0o755, 0o600, 0o4711, 0o2750, 0o1777, 0o6111, 0o0] {
                for (path, is_directory) in [(&file, false), (&dir, true)] {
                    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
                    let words = [text.into(), path.clone().into_os_string()];
                    run("chmod", &words).must_succeed();
                    let expected = fs::metadata(path).unwrap().permissions().mode() & 0o7777;
                    let found = u32::from(changes.apply(mode as u16, is_directory));
                    assert_eq!(found, expected, "{text} of {mode:o}: {found:o} {expected:o}");
                }
            }
        }
        assert_eq!(ModeChanges::parse("4755").unwrap().apply(0o600, true), 0o4755);
        for bad in ["", "8", "77777", "u", "rw", "u=q", "u=rw,", "x=r", "u=ug"] {
            assert!(ModeChanges::parse(bad).is_err(), "{bad}");
        }
    }
}
