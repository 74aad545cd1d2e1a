//! Rules over the repository that the compiler does not check.
//!
//! `source` grows the module tree of each crate from its files, the modules after it measure, and
//! `rules` compares the measurements with `tidy.toml`. `make tidy` stores numbers that fell; a
//! number is raised, and an exception is added, by hand only.

mod cut;
mod dependencies;
mod documents;
mod exports;
mod functions;
mod hygiene;
mod modules;
mod prose;
mod ratchets;
mod report;
mod rules;
mod samples;
mod source;
mod surface;
mod table;
mod tokens;

use std::fs;
use std::path::Path;

use report::Report;
use rules::Rules;
use source::Workspace;

/// The workspace measured, with its rules and their text.
pub struct Tidy {
    report: Report,
    rules: Rules,
    text: String,
}

impl Tidy {
    pub fn read() -> Self {
        let text = fs::read_to_string(Self::path()).expect("tidy.toml is readable");
        let rules = Rules::parse(&text);
        Self { report: Report::of(&Workspace::read(), &rules), rules, text }
    }

    fn path() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tidy.toml")
    }

    pub fn table(&self) -> String {
        table::table(&self.report)
    }

    /// The text of `tidy.toml` with the lower numbers of today.
    pub fn lowered(&self) -> String {
        ratchets::lowered(&self.text, &self.rules.measured(&self.report))
    }

    /// The surface of the public library, and the stored one.
    fn surface(&self) -> (surface::Surface, &str) {
        let surface = self.report.surfaces.get(&self.rules.surface.public);
        (surface.cloned().unwrap_or_default(), &self.report.stored_surface)
    }

    /// All violations, by rule.
    pub fn violations(&self) -> std::collections::BTreeMap<&'static str, Vec<String>> {
        self.rules.violations(&self.report)
    }
}

/// Stores the numbers of `tidy.toml` that fell, and prints measurements and violations.
#[test]
#[ignore = "changes tidy.toml: `make tidy`"]
fn store() {
    let tidy = Tidy::read();
    fs::write(Tidy::path(), tidy.lowered()).expect("tidy.toml is writable");
    println!("{}", tidy.table());
    for (rule, violations) in tidy.violations() {
        violations.iter().for_each(|violation| println!("{rule}: {violation}"));
    }
}
