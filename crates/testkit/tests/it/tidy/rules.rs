//! The rules of `tidy.toml` against a report.
//!
//! Most numbers are ratchets: a higher measurement fails, and a lower one fails until `make tidy`
//! has stored it. An exception without use fails, too.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::dependencies::Allowed;
use super::ratchets::{self, Ratchets};
use super::report::Report;
use super::surface::Surface;

/// Shortest function, and shortest file, that is too long, in lines.
const FUNCTION_LINES: u64 = 70;
const FILE_LINES: u64 = 700;

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Rules {
    /// Crates for tests and measurements, whose code may panic.
    pub tools: BTreeSet<String>,
    /// Pages that programs write.
    pub generated: BTreeSet<String>,
    /// Modules from the lowest to the highest, by crate.
    pub order: BTreeMap<String, Vec<String>>,
    /// Files and folders that may have code of a kind, with reasons.
    pub places: BTreeMap<String, BTreeMap<String, String>>,
    /// Files and folders whose tests hold images that nothing checks, with reasons.
    pub unchecked_images: BTreeMap<String, String>,
    /// Rules for crates of others.
    pub dependencies: Allowed,
    /// Rules for public surfaces.
    pub surface: SurfaceRules,
    /// Exported enums and structs that get no more variants or fields, with reasons.
    pub exhaustive: BTreeMap<String, String>,
    #[serde(skip)]
    pub limits: Ratchets,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct SurfaceRules {
    /// The library whose surface is stored.
    pub public: String,
    /// Libraries whose functions name their errors, the public one included.
    pub documented: BTreeSet<String>,
}

impl Rules {
    pub fn parse(text: &str) -> Self {
        let rules: Self = toml_edit::de::from_str(text).expect("tidy.toml has the known tables");
        Self { limits: ratchets::stored(text), ..rules }
    }

    /// Violations by rule. All rules have an entry.
    pub fn violations(&self, report: &Report) -> BTreeMap<&'static str, Vec<String>> {
        let measured = self.measured(report);
        let mut found: BTreeMap<_, _> = ratchets::TABLES
            .iter()
            .map(|table| (*table, ratchets::compare(table, &self.limits, &measured)))
            .collect();
        found.insert("lost_files", report.lost.clone());
        found.insert("unfinished", report.unfinished.clone());
        found.insert("links", report.broken_links.clone());
        found.insert("named_tests", report.missing_tests.clone());
        found.insert("named_members", report.missing_members.clone());
        found.insert("order", self.order_violations(report));
        let page = &report.dependency_page;
        found.insert("dependencies", report.dependencies.violations(&self.dependencies, page));
        let holders = report.image_holders.iter().map(|file| (file.clone(), file.clone()));
        found.insert("unchecked_images", excepted(holders, &self.unchecked_images));
        let silent = |(library, surface): (&String, &Surface)| -> Vec<String> {
            let names = surface.silent.iter();
            names.map(|name| format!("{name}: no section `# Errors` ({library})")).collect()
        };
        found.insert("error_sections", report.surfaces.iter().flat_map(silent).collect());
        let public = report.surfaces.get(&self.surface.public).cloned().unwrap_or_default();
        found.insert("unnamed", public.unnamed.iter().cloned().collect());
        let open = public.exhaustive.iter().map(|name| (name.clone(), name.clone()));
        found.insert("exhaustive", excepted(open, &self.exhaustive));
        found.insert("public_surface", public.differences(&report.stored_surface));
        for table in ["unsafe", "byte_order", "device_writes"] {
            let places = report.places.get(table).into_iter().flatten();
            let lines = places.map(|(file, line)| (file.clone(), format!("{file}:{line}")));
            let exceptions = self.places.get(table).cloned().unwrap_or_default();
            found.insert(table, excepted(lines, &exceptions));
        }
        found
    }

    /// The measurements that the ratchets of `tidy.toml` bound.
    pub fn measured(&self, report: &Report) -> Ratchets {
        let mut measured = Ratchets::new();
        let mut add = |path: &[&str], value: u64| {
            if value > 0 {
                let path = path.iter().map(|part| (*part).to_owned()).collect();
                let stored = measured.entry(path).or_insert(0);
                *stored = value.max(*stored);
            }
        };
        let mut exporters: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, own) in &report.crates {
            for (user, used) in own.uses.in_circles() {
                add(&["circles", name, &user, &used], 1);
            }
            add(&["exports", name], own.exports.len());
            if !self.tools.contains(name) {
                add(&["panics", name], own.panics);
            }
            for (_, export) in own.exports.own.keys() {
                exporters.entry(export).or_default().insert(name);
            }
        }
        for (name, crates) in exporters.iter().filter(|(_, crates)| crates.len() > 1) {
            add(&["shared_names", name], crates.len() as u64);
        }
        let texts = report.crates.iter().map(|(name, own)| (name.as_str(), &own.prose));
        for (name, prose) in texts.chain([("pages", &report.pages)]) {
            add(&["what", name], prose.what);
            add(&["who", name], prose.who);
            add(&["long_lines", name], prose.long_lines);
        }
        for function in report.functions.iter().filter(|f| f.lines >= FUNCTION_LINES) {
            let name = format!("{}::{}", function.file, function.name);
            add(&["functions", &name], function.lines);
        }
        for (file, lines) in report.file_lines.iter().filter(|(_, lines)| **lines >= FILE_LINES) {
            add(&["files", file], *lines);
        }
        measured
    }

    /// Modules without a place in the order, places without a module, and uses that lead upward
    /// outside of a known circle.
    fn order_violations(&self, report: &Report) -> Vec<String> {
        let mut found = Vec::new();
        for (name, order) in &self.order {
            let uses = report.crates.get(name).map(|own| own.uses.clone()).unwrap_or_default();
            let known: BTreeSet<&String> = order.iter().collect();
            let unknown = uses.modules.iter().filter(|module| !known.contains(module));
            found.extend(
                unknown.map(|module| format!("{name}: the order lacks the module {module}")),
            );
            let gone = known.into_iter().filter(|module| !uses.modules.contains(*module));
            found.extend(gone.map(|module| format!("{name}: the order has no use for {module}")));
            for edge in uses.upward(order) {
                let path = ["circles", name, &edge.0, &edge.1].map(str::to_owned).to_vec();
                if !self.limits.contains_key(&path) {
                    let place = &uses.edges[&edge];
                    found.push(format!("{place}: {} uses {}, which is above it", edge.0, edge.1));
                }
            }
        }
        found
    }
}

/// Places outside of the excepted files and folders, and exceptions without a place.
fn excepted(
    places: impl Iterator<Item = (String, String)>,
    exceptions: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut unused: BTreeSet<&String> = exceptions.keys().collect();
    let mut found = Vec::new();
    for (file, place) in places {
        let covers = |known: &&String| {
            let rest = file.strip_prefix(known.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let known: Vec<&String> = exceptions.keys().filter(covers).collect();
        if known.is_empty() {
            found.push(place);
        }
        unused.retain(|exception| !known.contains(exception));
    }
    found.extend(unused.iter().map(|path| format!("unused exception: {path}")));
    found
}
