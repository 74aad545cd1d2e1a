//! All that is measured in a workspace, as plain data.

use std::collections::{BTreeMap, BTreeSet};

use super::dependencies::{self, Dependencies};
use super::exports::Exports;
use super::functions::{Function, functions};
use super::modules::Uses;
use super::prose::{Prose, comments};
use super::source::{Kind, Module, Target, Workspace};
use super::surface::{self, Names, Surface};
use super::tokens::{Token, arguments, flatten, positions};
use super::{documents, rules::Rules};

/// Methods of `BlockDevice` that change the device, with the number of their arguments.
const DEVICE_WRITES: [(&str, usize); 5] = [
    ("write_all_at", 2),
    ("write_vectored_at", 2),
    ("write_zeroes", 2),
    ("discard", 2),
    ("set_len", 1),
];

const BYTE_ORDER: [&str; 4] = ["from_le_bytes", "from_be_bytes", "to_le_bytes", "to_be_bytes"];

/// Code that only some files may have: the table of `tidy.toml`, and its file and line.
pub type Places = BTreeMap<&'static str, BTreeSet<(String, usize)>>;

#[derive(Default, Clone, Debug)]
pub struct Crate {
    pub uses: Uses,
    pub prose: Prose,
    pub exports: Exports,
    /// Calls that panic, in production code.
    pub panics: u64,
    /// The rest is measured for the table only.
    pub files: u64,
    pub tokens: u64,
    pub unsafe_blocks: u64,
    pub longest: u64,
    pub parameters: u64,
}

#[derive(Default, Clone, Debug)]
pub struct Report {
    pub crates: BTreeMap<String, Crate>,
    pub pages: Prose,
    pub places: Places,
    pub functions: Vec<Function>,
    pub file_lines: BTreeMap<String, u64>,
    pub lost: Vec<String>,
    pub unfinished: Vec<String>,
    pub broken_links: Vec<String>,
    pub missing_tests: Vec<String>,
    pub missing_members: Vec<String>,
    pub image_holders: BTreeSet<String>,
    /// The surfaces of documented libraries, by crate.
    pub surfaces: BTreeMap<String, Surface>,
    /// The stored surface of the public library.
    pub stored_surface: String,
    pub dependencies: Dependencies,
    /// The page about dependencies.
    pub dependency_page: String,
}

impl Report {
    pub fn of(space: &Workspace, rules: &Rules) -> Self {
        let mut report = Self {
            lost: space.lost.clone(),
            broken_links: documents::broken_links(&space.files),
            missing_tests: documents::missing_tests(space),
            missing_members: documents::missing_members(&space.files),
            image_holders: documents::image_holders(&space.files),
            stored_surface: space.files.get(surface::PAGE).cloned().unwrap_or_default(),
            dependencies: space.dependencies.clone(),
            dependency_page: space.files.get(dependencies::PAGE).cloned().unwrap_or_default(),
            ..Self::default()
        };
        for (file, parsed) in &space.parsed {
            report.functions.extend(functions(file, &parsed.items));
            let text = &space.files[file];
            report.file_lines.insert(file.clone(), text.lines().count() as u64);
            let has_mark = |text: &&str| text.contains("FIXME") || text.contains("XXX:");
            let marks = comments(text).into_iter().filter(has_mark);
            report.unfinished.extend(marks.map(|text| format!("{file}: {text}")));
        }
        let pages = space.files.iter().filter(|(path, _)| path.ends_with(".md"));
        for (_, text) in pages.filter(|(path, _)| !rules.generated.contains(*path)) {
            report.pages += Prose::of_page(text);
        }
        let names: BTreeSet<&String> = space.targets.iter().map(|t| &t.root.package).collect();
        for name in names {
            let targets: Vec<&Target> =
                space.targets.iter().filter(|target| target.root.package == *name).collect();
            let measured = report.measure(space, &targets);
            report.crates.insert(name.clone(), measured);
        }
        let names = Names::of(&space.targets);
        for library in &rules.surface.documented {
            report.surfaces.insert(library.clone(), Surface::of(&names, library));
        }
        report
    }

    fn measure(&mut self, space: &Workspace, targets: &[&Target]) -> Crate {
        let mut own = Crate { uses: Uses::of(targets.iter().copied()), ..Crate::default() };
        if let Some(library) = targets.iter().find(|target| target.root.kind == Kind::Library) {
            own.exports = Exports::of(library);
        }
        let all = || targets.iter().flat_map(|target| &target.modules);
        let files: BTreeSet<&String> = all().map(|module| &module.file).collect();
        files.iter().for_each(|file| own.prose += Prose::of_source(&space.files[*file]));
        let production: BTreeSet<&String> = all().filter(|m| !m.test).map(|m| &m.file).collect();
        own.files = production.len() as u64;
        for module in all() {
            let tokens = flatten(&module.items);
            self.find_places(module, &tokens);
            if !module.test {
                own.measure_code(module, &tokens);
            }
        }
        own
    }

    fn find_places(&mut self, module: &Module, tokens: &[Token]) {
        let mut add = |table, at: usize| {
            let place = (module.file.clone(), tokens[at].line);
            self.places.entry(table).or_default().insert(place);
        };
        positions(tokens, &["unsafe"]).for_each(|at| add("unsafe", at));
        if !module.test {
            for name in BYTE_ORDER {
                positions(tokens, &[name]).for_each(|at| add("byte_order", at));
            }
            // A plug writes the pieces that it has taken.
            positions(tokens, &["Plug", ":", ":", "new"]).for_each(|at| add("device_writes", at));
            for (name, count) in DEVICE_WRITES {
                positions(tokens, &[".", name, "("])
                    .filter(|at| arguments(tokens, at + 2) == count)
                    .for_each(|at| add("device_writes", at));
            }
        }
        for name in ["todo", "unimplemented", "dbg"] {
            for at in positions(tokens, &[name, "!", "("]) {
                self.unfinished.push(format!("{}:{}: {name}!", module.file, tokens[at].line));
            }
        }
    }
}

impl Crate {
    fn measure_code(&mut self, module: &Module, tokens: &[Token]) {
        self.tokens += tokens.len() as u64;
        self.unsafe_blocks += positions(tokens, &["unsafe", "{"]).count() as u64;
        let calls: [&[&str]; 5] = [
            &[".", "unwrap", "("],
            &[".", "expect", "("],
            &["panic", "!", "("],
            &["todo", "!", "("],
            &["unimplemented", "!", "("],
        ];
        let panics: usize = calls.iter().map(|call| positions(tokens, call).count()).sum();
        self.panics += panics as u64;
        for function in functions(&module.file, &module.items) {
            self.longest = self.longest.max(function.lines);
            self.parameters = self.parameters.max(function.parameters);
        }
    }
}
