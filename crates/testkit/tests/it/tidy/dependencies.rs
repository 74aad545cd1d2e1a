//! Crates of others: their licenses and sources, and the page with the reason for each.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, PackageId};
use serde::Deserialize;

/// The page with the reason for each crate.
pub const PAGE: &str = "docs/dependencies.md";

/// The rules of `tidy.toml` for crates of others.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Allowed {
    /// Licenses; each crate must offer a choice of these only.
    pub licenses: BTreeSet<String>,
    /// Registries.
    pub sources: BTreeSet<String>,
    /// Forbidden crates, each with the only crates that may use it.
    pub banned: BTreeMap<String, BTreeSet<String>>,
}

/// A crate that the lock file has.
#[derive(Clone, Debug, Default)]
pub struct Package {
    pub name: String,
    pub license: String,
    pub source: String,
    /// Crates that depend on it.
    pub users: BTreeSet<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Dependencies {
    /// Crates of others, on all platforms.
    pub packages: Vec<Package>,
    /// Crates of the workspace by the crates of others that their manifests name.
    pub direct: BTreeMap<String, BTreeSet<String>>,
}

impl Dependencies {
    pub fn of(metadata: &Metadata) -> Self {
        let names: BTreeMap<&PackageId, &str> =
            metadata.packages.iter().map(|p| (&p.id, p.name.as_str())).collect();
        let mut users: BTreeMap<&PackageId, BTreeSet<String>> = BTreeMap::new();
        for node in metadata.resolve.iter().flat_map(|resolve| &resolve.nodes) {
            for used in &node.dependencies {
                users.entry(used).or_default().insert(names[&node.id].to_owned());
            }
        }
        let mut found = Self::default();
        for package in &metadata.packages {
            match &package.source {
                Some(source) => found.packages.push(Package {
                    name: package.name.to_string(),
                    license: package.license.clone().unwrap_or_default(),
                    source: source.repr.clone(),
                    users: users.remove(&package.id).unwrap_or_default(),
                }),
                None => found.add_direct(package),
            }
        }
        found
    }

    fn add_direct(&mut self, package: &cargo_metadata::Package) {
        let user = package.name.strip_prefix("extant-").unwrap_or(&package.name);
        for used in package.dependencies.iter().filter(|used| used.source.is_some()) {
            let user = match used.kind {
                DependencyKind::Development => format!("{user} (tests)"),
                _ => user.to_owned(),
            };
            self.direct.entry(used.name.clone()).or_default().insert(user);
        }
    }

    /// Crates that the rules forbid, and differences between the manifests and the page.
    pub fn violations(&self, allowed: &Allowed, page: &str) -> Vec<String> {
        let mut found = Vec::new();
        for package in &self.packages {
            let name = &package.name;
            if !is_allowed(&package.license, &allowed.licenses) {
                found.push(format!("{name}: the license is `{}`", package.license));
            }
            if !allowed.sources.contains(&package.source) {
                found.push(format!("{name}: the source is {}", package.source));
            }
            if let Some(may_use) = allowed.banned.get(name) {
                let others = package.users.difference(may_use);
                found.extend(others.map(|user| format!("{name}: banned, and used by {user}")));
            }
        }
        let rows = rows(page);
        for (name, users) in &self.direct {
            let users = users.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            match rows.get(name.as_str()) {
                None => found.push(format!("{PAGE}: no row for {name}, used by {users}")),
                Some(row) if *row != users => {
                    found.push(format!("{PAGE}: {name} is used by {users}"));
                }
                Some(_) => {}
            }
        }
        let gone = rows.keys().filter(|name| !self.direct.contains_key(**name));
        found.extend(gone.map(|name| format!("{PAGE}: {name} is not used")));
        found
    }
}

/// The users of each crate in the page's table: `` | `name` | users | reason | ``.
fn rows(page: &str) -> BTreeMap<&str, &str> {
    page.lines().filter_map(split_row).collect()
}

fn split_row(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
    let (name, users, reason) = (cells.next()?, cells.next()?, cells.next()?);
    (!reason.is_empty()).then_some((name.strip_suffix('`')?, users))
}

/// Whether a license expression offers a choice of listed licenses only. `/` stands for `OR` in old
/// manifests.
fn is_allowed(expression: &str, licenses: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let allowed = any_of(&mut rest, licenses);
    allowed && rest.is_empty()
}

fn any_of(rest: &mut &[&str], licenses: &BTreeSet<String>) -> bool {
    let mut allowed = all_of(rest, licenses);
    while let ["OR", behind @ ..] = *rest {
        *rest = behind;
        allowed |= all_of(rest, licenses);
    }
    allowed
}

fn all_of(rest: &mut &[&str], licenses: &BTreeSet<String>) -> bool {
    let mut allowed = one(rest, licenses);
    while let ["AND", behind @ ..] = *rest {
        *rest = behind;
        allowed &= one(rest, licenses);
    }
    allowed
}

fn one(rest: &mut &[&str], licenses: &BTreeSet<String>) -> bool {
    match *rest {
        ["(", behind @ ..] => {
            *rest = behind;
            let allowed = any_of(rest, licenses);
            let [")", behind @ ..] = *rest else { return false };
            *rest = behind;
            allowed
        }
        [license, "WITH", exception, behind @ ..] => {
            *rest = behind;
            licenses.contains(&format!("{license} WITH {exception}"))
        }
        [license, behind @ ..] => {
            *rest = behind;
            licenses.contains(*license)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
        names.map(str::to_owned).into()
    }

    #[test]
    fn licenses_are_chosen_and_joined() {
        let licenses = set(["MIT", "Apache-2.0", "Unicode-3.0"]);
        for good in [
            "MIT",
            "GPL-2.0 OR MIT",
            "Unlicense/MIT",
            "(GPL-2.0 OR MIT) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0",
        ] {
            assert!(is_allowed(good, &licenses), "{good}");
        }
        for bad in [
            "",
            "GPL-2.0",
            "MIT AND GPL-2.0",
            "MIT AND (GPL-2.0 OR Zlib)",
            "MIT WITH more",
            "(MIT",
            "MIT MIT",
        ] {
            assert!(!is_allowed(bad, &licenses), "{bad}");
        }
    }

    #[test]
    fn forbidden_crates_and_rows_without_use_are_found() {
        let package = |name: &str, license: &str, source: &str, users: BTreeSet<String>| Package {
            name: name.into(),
            license: license.into(),
            source: source.into(),
            users,
        };
        let found = Dependencies {
            packages: vec![
                package("good", "MIT", "here", set(["a"])),
                package("bad", "GPL-2.0", "there", set([])),
                package("cc", "MIT", "here", set(["may", "a"])),
            ],
            direct: [("good".into(), set(["blocks", "fuse (tests)"])), ("new".into(), set(["x"]))]
                .into(),
        };
        let allowed = Allowed {
            licenses: set(["MIT"]),
            sources: set(["here"]),
            banned: [("cc".into(), set(["may"]))].into(),
        };
        let page = "| crate | used by | reason |\n| --- | --- | --- |\n| `good` | blocks | why |\n\
                    | `gone` | x | why |\n| `new` | x | |\n";
        assert_eq!(
            found.violations(&allowed, page),
            [
                "bad: the license is `GPL-2.0`",
                "bad: the source is there",
                "cc: banned, and used by a",
                "docs/dependencies.md: good is used by blocks, fuse (tests)",
                "docs/dependencies.md: no row for new, used by x",
                "docs/dependencies.md: gone is not used",
            ]
        );
    }
}
